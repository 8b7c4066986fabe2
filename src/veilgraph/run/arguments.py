"""What the functions of ``run.jobs`` are called with, before anything is read: of the right types."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from veilgraph.core.errors import ConfigError
from veilgraph.core.given import check_flags, check_functions, check_mapping, check_text, check_whole, wrong_type
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import JOBS

_NONE: Final[Mapping[str, int]] = MappingProxyType({})


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


def check_options(
    flags: Mapping[str, object],
    *,
    custom: object = None,
    link: object = None,
    machines: object = _NONE,
    view_passes: object = None,
    progress: object = None,
) -> None:
    """Refuses options of other types than theirs; ``flags`` are True or False, the others as in ``jobs.train``.

    Raises:
        ConfigError: names the first.
    """
    check_flags(**flags)
    check_functions(custom=custom, progress=progress)
    check_text(link=link)
    check_whole(view_passes=view_passes)
    check_mapping("machines", machines, "holder → how many")
    for count in dict(machines).values():  # type: ignore[call-overload]
        check_whole(machines=count)
        if count is None:
            raise wrong_type("machines", count, "a whole number (int)", "leave the holder out for one machine")
