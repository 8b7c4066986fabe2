"""Training from Python: a job, and what each holder brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from veilgraph.api.runs import ONE_MACHINE, Run
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import fresh_path
from veilgraph.core.types import PartyId
from veilgraph.graph.parts import HorizontalPart
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.settings import DESCRIBED, PARTY_FILE_SUFFIXES
from veilgraph.nn import CustomModel
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job, read_job
from veilgraph.run import jobs
from veilgraph.run.inputs import GivenIds, GivenParties
from veilgraph.run.jobs import Progress

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data

Job: TypeAlias = "JobSettings | Mapping[str, object] | str | Path"
"""A job, its settings, or the path of its file."""

Party: TypeAlias = "PartyGraph | HorizontalPart | Data | str | Path"
"""What one holder brings: a graph, or the path of its party file (.yaml) or of a saved graph (.safetensors)."""

Parties: TypeAlias = "Mapping[PartyId, Party] | Sequence[PartyGraph | HorizontalPart]"
"""Holder → what it brings; graphs that know their holder may come as a list."""


def fit(
    job: Job,
    parties: Parties | None = None,
    out: str | Path | None = None,
    *,
    ids: GivenIds | None = None,
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
) -> Run:
    """Trains a job with all parties on this machine.

    Args:
        job: its settings (``veilgraph.Job``), a mapping of them, or the path of its file.
        parties: what each holder brings; default: what the job names. Graphs, or PyTorch Geometric ``Data``, of a
            vertical job have the same node in row v everywhere, and labels and masks at the label holder; those of a
            horizontal job have rows, labels and masks of their own over the same columns. Paths are of party files,
            whose tables are aligned first, or of saved graphs.
        out: the run's directory, which must not exist or be empty; default: ``runs/<job's name>-<date>-<time>``, kept.
        ids: horizontal, with graphs: holder → an id for each of its rows, where they are not ``Data.n_id`` already.
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
        progress: called now and then with the records of all epochs so far.

    Raises:
        VeilgraphError: a setting, a party's data or the exchange broke a rule.
    """
    settings, given, found = _brought(settings_of(job), parties, ids)
    earlier = begin_with.path if isinstance(begin_with, Run) else begin_with
    path = fresh_path(settings.name) if out is None else Path(out)
    jobs.train(
        settings,
        path,
        parties=given,
        custom=custom,
        ids=found,
        processes=processes,
        link=link,
        private_seeds=private_seeds,
        record_views=record_views,
        view_passes=view_passes,
        profile=profile,
        machines=machines,
        begin_with=None if earlier is None else Path(earlier),
        progress=progress,
    )
    return Run(path, custom=custom)


def settings_of(job: Job) -> JobSettings:
    """Those of a job, however it is given."""
    if isinstance(job, JobSettings):
        return job
    return read_job(Path(job)) if isinstance(job, str | Path) else parse_job(dict(job))


def _brought(
    job: JobSettings, parties: Parties | None, ids: GivenIds | None
) -> tuple[JobSettings, GivenParties | None, GivenIds | None]:
    """The job, what stands in place of its data, and the ids of its rows."""
    if parties is None:
        return job, None, ids
    if not isinstance(parties, Mapping):
        parts = {each.graph.party: each for each in parties if isinstance(each, HorizontalPart)}
        return job, [_graph(each, PartyGraph) for each in parties], _ids(parts, ids)
    paths = {name: each for name, each in parties.items() if isinstance(each, str | Path)}
    if paths and len(paths) == len(parties):
        kinds = {"parties" if Path(each).suffix in PARTY_FILE_SUFFIXES else "graphs" for each in paths.values()}
        content = job.model_dump(mode="json")
        content["data"].update(dict.fromkeys(("dataset", *DESCRIBED.values(), "graphs", "parties")))
        content["data"].update(dict.fromkeys(kinds, paths), holders=len(paths))
        return parse_job(content, "parties"), None, ids
    from torch_geometric.data import Data  # noqa: PLC0415 - seconds to import

    parts = {name: each for name, each in parties.items() if isinstance(each, HorizontalPart)}
    graphs = {name: _graph(each, PartyGraph, Data) for name, each in parties.items()}
    return job, graphs, _ids(parts, ids)


def _graph(brought: object, *kinds: type) -> PartyGraph | Data:
    graph = brought.graph if isinstance(brought, HorizontalPart) else brought
    if isinstance(graph, kinds):
        return graph
    raise ConfigError(
        f"parties: {type(graph).__name__} is not what a holder brings; give a list of PartyGraphs, or holder → "
        "PartyGraph, PyTorch Geometric's Data, or for all of them the path of a party file or a saved graph",
        key="parties",
    )


def _ids(parts: Mapping[PartyId, HorizontalPart], ids: GivenIds | None) -> GivenIds | None:
    return {**{name: part.ids for name, part in parts.items()}, **(ids or {})} or None
