"""A job, in whatever form it is given.

Training from Python: a job, and what each holder brings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from veilgraph.api.runs import ONE_MACHINE, Run
from veilgraph.core.arguments import check_functions, path_of, wrong_type
from veilgraph.core.deferred import deferred
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import fresh_path
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import PartyId
from veilgraph.core.yaml_file import read_yaml
from veilgraph.graph.settings import DEFAULT_DATASET, DESCRIPTIONS
from veilgraph.nn import CustomModel
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.launch.inputs import GivenIds, GivenParties, parties_by_name
from veilgraph.runtime.launch.jobs import Progress, check_job
from veilgraph.runtime.store.lifetime import GivenLedgers

with deferred():
    from veilgraph.samples.shipped import shipped_job, shipped_jobs

Job: TypeAlias = "JobSettings | Mapping[str, object] | str | Path"
"""A job, its settings, the path of its file, or the name of a shipped one."""

_SOURCES: Final = ("dataset", "graphs", "parties", "holders")  # keys of ``data`` that say who the holders are
_OF_DATA: Final = (
    "dataset",
    *DESCRIPTIONS,
    "root",
    "graphs",
    "parties",
    "feature_proportions",
    "edge_proportions",
    "split",
)
"""Settings of ``data`` that are of no use beside ``parties=``."""


def settings_of(job: Job, holders: Sequence[PartyId] | None = None) -> JobSettings:
    """Return the settings of a job given in any form; ``holders`` are set in one that names no data and no holders.

    Raises ``ConfigError``: it is of another type, there is no such file, or a setting breaks a rule.
    """
    if isinstance(job, JobSettings):
        check_job(job, "job")
        return job
    if isinstance(job, Mapping):
        return parse_job(_with_holders(job, holders))
    if not isinstance(job, str | os.PathLike):
        way_out = "give vg.Job(...), a dict of settings, the path of a YAML file, or the name of a shipped job"
        raise wrong_type("job", job, "a job", way_out)
    path = path_of("job", job, "a job file")
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises where a text is too long for a path
        return _shipped_settings(str(job), path)
    content = read_yaml(path, "job file")
    return parse_job(_with_holders({} if content is None else content, holders), str(path))


def settings_beside(job: Job, parties: GivenParties | None) -> JobSettings:
    """Return a job's settings with the holders of ``parties``, if given; ``ConfigError``: it names data too."""
    names = None if parties is None else list(parties_by_name(parties, None))
    settings = settings_of(job, names)
    if names is not None:
        _check_no_other_data(settings, len(names))
    return settings


def read_job(path: str | Path) -> JobSettings:
    """Reads and validates a job file, or the shipped job of that name (``cora``, as in the folder ``jobs``).

    Raises:
        ConfigError: the file cannot be read, is not YAML, or breaks a rule.
    """
    return settings_of(path_of("path", path, "a job file"))


def _shipped_settings(name: str, path: Path) -> JobSettings:
    if name in shipped_jobs():
        return shipped_job(name)
    found = "a directory" if os.path.isdir(path) else "no file"  # noqa: PTH112 - as above
    raise ConfigError(
        f"job={name!r} is {found}, and no shipped job; give the path of a YAML file (of a run, its job.yaml) or "
        f"one of {', '.join(shipped_jobs())}",
        code="no-such-job",
        key="job",
        value=name,
    )


def _with_holders(content: object, holders: Sequence[PartyId] | None) -> Any:  # noqa: ANN401 - what parse_job judges
    """A job's settings with the holders that bring their own data, where it names neither these nor other data."""
    if holders is None or not isinstance(content, Mapping):
        return content if not isinstance(content, Mapping) else dict(content)
    data = content.get("data")
    stated = {} if data is None else data
    if not isinstance(stated, Mapping) or any(stated.get(key) is not None for key in _SOURCES):
        return dict(content)
    return {**content, "data": {**stated, "holders": list(holders)}}


def _check_no_other_data(job: JobSettings, holders: int) -> None:
    """Refuses a job that says where its data come from, or how they are divided, beside holders that bring theirs.

    The default data set says nothing: it is in every job that names none.
    """
    for key in _OF_DATA:
        value = getattr(job.data, key)
        if value is not None and (key, value) != ("dataset", DEFAULT_DATASET):
            raise ConfigError(
                f"data.{key}: the job names it, and parties= brings the data in its place; leave one of them out "
                "(a job without: vg.Job(**{**job.model_dump(), 'data': {}}))",
                code="other-data",
                key=f"data.{key}",
                value=value,
            )
    stated = job.data.holders
    if "holders" in job.data.model_fields_set and isinstance(stated, int) and stated != holders:
        raise ConfigError(
            f"data.holders={stated}: parties= brings {holders}; give as many, or leave data.holders out",
            code="other-holders",
            key="data.holders",
            value=stated,
        )


def fit(
    job: Job,
    parties: GivenParties | None = None,
    out: str | Path | None = None,
    *,
    ids: GivenIds | None = None,
    ledgers: GivenLedgers | None = None,
    custom: CustomModel | None = None,
    processes: bool = False,
    link: str | None = None,
    private_seeds: bool = False,
    record_views: bool = False,
    view_passes: int | None = None,
    profile: bool = False,
    machines: Mapping[PartyId, int] = ONE_MACHINE,
    begin_with: Run | str | Path | None = None,
    progress: Progress = lambda records: None,
    on_epoch: Callable[[Record], object] | None = None,
) -> Run:
    """Trains a job with all parties on this machine.

    Args:
        job: its settings (``veilgraph.Job``), a dict of them, the path of its file, or the name of a shipped job.
        parties: what each holder brings; default: what the job names. A dict of holder → PyTorch Geometric ``Data``,
            ``PartyGraph``, a part of ``simulate.horizontally``, or the path of a saved graph (.safetensors); or of all
            holders ``Tables`` of DataFrames or the paths of party files (.yaml), which are aligned by id first. Graphs
            may come as a list: those that know their holder keep its name, others are A, B, …. The job then names no
            data; ``data.holders`` and ``data.label_holder`` follow, unless it states them. Graphs of a vertical job
            have the same node in row v everywhere, and one holder alone has labels and masks; those of a horizontal
            job have rows, labels and masks of their own over the same columns.
        out: the run's directory, which must not exist or be empty; default: ``runs/<job's name>-<date>-<time>``, kept.
        ids: with graphs: holder → an id for each of its rows. Horizontal jobs tell nodes by them, where they are not
            ``Data.n_id`` already; a ledger for life knows its nodes by them, and without them charges everybody.
        ledgers: holder → the folder of its ledger for life (docs/explanation/privacy.md#one-budget-for-life), or
            ``{"folder": ..., "max_epsilon": 1.0}``, which is a limit from then on. Default: beside a saved graph, where
            a party file says, and of what comes from memory none: its releases are in the ledger of this run alone.
        custom: for ``model.local.model: custom``, makes the user's local model for a width.
        processes: run every party in a process of its own; the result is the same.
        link: what joins them, one of ours or of an installed package; default: memory, and sockets between processes.
        private_seeds: every party draws its weights from a seed of its own. Without, all learn from the job's seed: the
            run can be repeated, but whoever has the job can compute every party's initial weights, and from them and
            the first h^0 another's features.
        record_views: every party keeps what it sends and receives, for ``Run.audit``; as large as that traffic.
        view_passes: of how many passes, beside the newest; 0: of all. Default: 50, and all where holders publish with
            noise.
        profile: write ``trace.json``: when each party computes, sends and waits.
        machines: holder → how many processes share its local part, as machines of its own would.
        begin_with: averaging: a complete run, whose weights this one begins with, whoever its holders were.
        progress: called now and then with the records of all epochs so far, in the calling thread.
        on_epoch: called with the record of each epoch, once and in their order, in the calling thread, while later
            ones are computed. What it raises ends the training, with which ``Run.resume`` goes on.

    Raises:
        VeilgraphError: a setting, a party's data or the exchange broke a rule.
    """
    check_functions(on_epoch=on_epoch, progress=progress)
    path = None if out is None else _checked_out(out)
    settings = settings_beside(job, parties)
    path = fresh_path(settings.name) if path is None else path
    jobs.train(
        settings,
        path,
        parties=parties,
        options=jobs.RunOptions(
            custom=custom, processes=processes, link=link, machines=machines, progress=_callback(progress, on_epoch)
        ),
        ids=ids,
        ledgers=ledgers,
        private_seeds=private_seeds,
        record_views=record_views,
        view_passes=view_passes,
        profile=profile,
        begin_with=begin_with.path if isinstance(begin_with, Run) else begin_with,
    )
    return Run(path, custom=custom)


def _checked_out(out: str | Path) -> Path:
    """The path of a run to be made; ``ConfigError`` where it is a file."""
    path = path_of("out", out)
    if path.is_file():
        raise ConfigError(
            f"out={str(path)!r} is a file, and a run is a directory of its own; give one that is not there yet",
            code="not-a-directory",
            key="out",
            value=str(path),
        )
    return path


def _callback(progress: Progress, on_epoch: Callable[[Record], object] | None) -> Progress:
    """Return a callback that calls ``progress``, and ``on_epoch`` once for every epoch, in order."""
    told = 0

    def tell(records: list[Record]) -> None:
        nonlocal told
        progress(records)
        for record in records[told:]:
            told += 1
            assert on_epoch is not None
            on_epoch(dict(record))

    return progress if on_epoch is None else tell
