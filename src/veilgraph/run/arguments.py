"""What the functions of ``run.jobs`` are called with: checked before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from veilgraph.core.arguments import check_flags, check_functions, check_mapping, check_text, check_whole, wrong_type
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId
from veilgraph.link.factory import IN_PROCESSES, IN_THREADS, LINKS
from veilgraph.nn.local.build import CustomModel
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import JOBS
from veilgraph.run.launch import check_spread
from veilgraph.run.run_directory import Record

Progress = Callable[[list[Record]], None]
"""Called now and then with all epochs' records so far."""


def check_job(settings: object, key: str = "settings") -> None:
    """Refuses what are no job's settings.

    Raises:
        ConfigError: they are of another type, or of no paradigm.
    """
    if not isinstance(settings, JobSettings):
        raise wrong_type(key, settings, "a job", "give vg.Job(...); veilgraph.fit takes a dict and a path too")
    if not isinstance(settings, JOBS.get(settings.paradigm, ())):
        raise ConfigError(
            f"{key}: JobSettings are what jobs of all paradigms have, and not a job; make it with vg.Job(...)",
            code="no-paradigm",
            key=key,
            value=settings.paradigm,
        )


@dataclass(frozen=True)
class RunOptions:
    """How a job is worked on at this machine; none of it is the job's.

    Attributes:
        custom: for ``model.local.model: custom``, makes a user's local model for a width.
        processes: run every party in a process of its own.
        link: what joins them, of ``LINKS``; None: memory, and sockets between processes.
        machines: holder → how many processes share its local part.
        progress: called now and then with all epochs' records so far.

    Raises:
        ConfigError: one is of another type, or there is no such link, or it joins no processes.
    """

    custom: CustomModel | None = None
    processes: bool = False
    link: str | None = None
    machines: Mapping[PartyId, int] = field(default_factory=dict)
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_flags(processes=self.processes)
        check_functions(custom=self.custom, progress=self.progress)
        check_text(link=self.link)
        check_mapping("machines", self.machines, "holder → how many")
        for count in dict(self.machines).values():
            check_whole(machines=count)
            if count is None:
                raise wrong_type("machines", count, "a whole number (int)", "leave the holder out for one machine")
        LINKS.check("link", self.wire)
        if self.processes:
            LINKS[self.wire].invitations(())

    @property
    def wire(self) -> str:
        """The name of what joins the parties."""
        return (IN_PROCESSES if self.processes else IN_THREADS) if self.link is None else self.link

    def check(self, settings: JobSettings) -> None:
        """Refuse what a job cannot be worked on with.

        Raises:
            ConfigError: names the option.
        """
        if settings.inputs.is_custom != (self.custom is not None):
            raise ConfigError(
                f"custom={self.custom!r}: a custom local model is passed from Python as custom=<function of the "
                "width>, and only with model.local.model: custom"
            )
        if self.custom is not None and self.processes:
            raise ConfigError("custom: a Python object cannot be given to separate processes; use processes=False")
        for party, count in self.machines.items():
            if party not in settings.data.names:
                raise ConfigError(f"machines: {party!r} is not one of the holders {', '.join(settings.data.names)}")
            if count < 2:
                raise ConfigError(f"machines: {party}={count} must be at least 2; leave {party} out for one")
        if self.machines:
            check_spread(settings)
        if len(self.machines) > 1 and not self.processes:
            raise ConfigError("machines: two holders that have several need a process each; use processes=True")
