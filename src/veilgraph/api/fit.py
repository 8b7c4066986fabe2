"""Training from Python: a job, and what each holder brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from veilgraph.api.jobs import Job, settings_beside
from veilgraph.api.runs import ONE_MACHINE, Run
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import fresh_path
from veilgraph.core.given import check_functions, path_of
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import PartyId
from veilgraph.nn import CustomModel
from veilgraph.run import jobs
from veilgraph.run.given import GivenIds, GivenParties
from veilgraph.run.jobs import Progress
from veilgraph.run.ledger_places import GivenLedgers


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
        ledgers: holder → the folder of its ledger for life (docs/privacy.md#one-budget-for-life), or ``{"folder": ...,
            "max_epsilon": 1.0}``, which is a limit from then on. Default: beside a saved graph, where a party file
            says, and of what comes from memory none: its releases are in the ledger of this run alone.
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
    path = None if out is None else _fresh(out)
    settings = settings_beside(job, parties)
    path = fresh_path(settings.name) if path is None else path
    jobs.train(
        settings,
        path,
        parties=parties,
        custom=custom,
        ids=ids,
        ledgers=ledgers,
        processes=processes,
        link=link,
        private_seeds=private_seeds,
        record_views=record_views,
        view_passes=view_passes,
        profile=profile,
        machines=machines,
        begin_with=begin_with.path if isinstance(begin_with, Run) else begin_with,
        progress=_teller(progress, on_epoch),
    )
    return Run(path, custom=custom)


def _fresh(out: str | Path) -> Path:
    path = path_of("out", out)
    if path.is_file():
        raise ConfigError(
            f"out={str(path)!r} is a file, and a run is a directory of its own; give one that is not there yet",
            code="not-a-directory",
            key="out",
            value=str(path),
        )
    return path


def _teller(progress: Progress, on_epoch: Callable[[Record], object] | None) -> Progress:
    """``progress``, and ``on_epoch`` once of every epoch, in their order."""
    told = 0

    def tell(records: list[Record]) -> None:
        nonlocal told
        progress(records)
        for record in records[told:]:
            told += 1
            assert on_epoch is not None
            on_epoch(dict(record))

    return progress if on_epoch is None else tell
