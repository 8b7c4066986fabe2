"""Data sets as tables that organisations would export from their own systems, with jobs over them.

What the commands for tables need to be tried on: ids in another order at every holder, and nodes that only some know.
Vertical holders have columns of their own of the same nodes, horizontal ones nodes of their own in the same columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from numpy.typing import NDArray

from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.files import os_errors_as, private_folder, whole_file, write_whole
from veilgraph.core.types import PartyId
from veilgraph.core.yaml_file import yaml_bytes
from veilgraph.graph.dataset import load_parties, load_parts
from veilgraph.graph.federation import check_aligned
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.settings import DataSettings
from veilgraph.protocol.job import JobSettings, write_job
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.limits import LimitSettings, revelations, trust_of
from veilgraph.samples.shipped import shipped_job, shipped_jobs, with_overrides

TableFormat = Literal["csv", "parquet"]
Rows = NDArray[np.int64]

_SPLITS: Final = {"train_mask": "train", "val_mask": "val", "test_mask": "test"}


@dataclass(frozen=True)
class Export:
    """A holder's graph, the ids of all its rows, and the rows that are written, in that order."""

    graph: PartyGraph
    ids: list[str]
    rows: Rows


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Refuse an ``out`` that is not new or empty, and turn ``OSError`` in the block into ``RunError``."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} exists and is not an empty directory; choose another --out or remove it")
    with os_errors_as(RunError, f"{out}: cannot be written", "choose another --out"):
        yield


def export_party(export: Export, file: Path, suffix: TableFormat, limits: Mapping[str, Any]) -> None:
    """Write a holder's tables, CSV or Parquet by ``suffix``, and beside them its party ``file``, with ``limits``."""
    graph, rows, folder = export.graph, export.rows, file.parent
    features = graph.features.to_dense().numpy()[rows]
    digits = max(4, len(str(graph.num_features)))
    columns: dict[str, Any] = {"id": [export.ids[row] for row in rows]}
    columns.update((f"x{index + 1:0{digits}d}", features[:, index]) for index in range(graph.num_features))
    nodes: dict[str, Any] = {"file": f"nodes.{suffix}", "id": "id", "features": [{"columns": "x*"}]}
    if graph.membership is not None:
        columns["graph"] = graph.membership.numpy()[rows]
        nodes["graph"] = "graph"
    if graph.targets is not None:
        columns["target"] = pa.array(graph.targets.numpy()[rows], from_pandas=True)
        nodes["target"] = "target"
    if graph.labels is not None:
        columns["label"] = _label_column(graph, rows)
        nodes["label"] = {"column": "label", "classes": [str(index) for index in range(graph.num_classes or 0)]}
    if graph.labels is not None or graph.targets is not None:
        columns["split"] = _split_column(graph, rows)
        nodes["split"] = {"column": "split", "train": "train", "val": "val", "test": "test"}
    write_table(columns, folder / nodes["file"])

    ends, directed = _edge_columns(export)
    write_table(ends, folder / f"edges.{suffix}")
    own = [name for name in ends if name.startswith("e")]
    said = {name: name for name in ends if name not in own} | ({"features": own} if own else {})
    edges = {"file": f"edges.{suffix}", **said, "directed": directed}
    write_yaml({"party": graph.party, "nodes": nodes, "edges": [edges], **limits}, file)


def _label_column(graph: PartyGraph, rows: Rows) -> pa.Array:
    return pa.array([None if label < 0 else str(label) for label in np.asarray(graph.labels)[rows]], pa.string())


def _split_column(graph: PartyGraph, rows: Rows) -> pa.Array:
    split = np.full(graph.num_nodes, None, dtype=object)
    for mask, name in _SPLITS.items():
        members = getattr(graph, mask)
        if members is not None:
            split[members.numpy()] = name
    return pa.array(split[rows], pa.string())


def _edge_columns(export: Export) -> tuple[dict[str, Any], bool]:
    """Columns of the edges between known nodes, and whether their direction counts: else each pair is one row."""
    graph = export.graph
    known = np.zeros(graph.num_nodes, dtype=bool)
    known[export.rows] = True
    source, target = graph.edge_index.numpy()
    keep = known[source] & known[target]
    weight = None if graph.edge_weight is None else graph.edge_weight.numpy()
    directed = graph.edge_features is not None or not _is_symmetric(source, target, weight)
    if not directed:
        keep &= source <= target
    ids = pa.array(export.ids)
    columns = {"source": ids.take(pa.array(source[keep])), "target": ids.take(pa.array(target[keep]))}
    if weight is not None:
        columns["weight"] = weight[keep]
    features = torch.empty(len(keep), 0) if graph.edge_features is None else graph.edge_features
    columns.update({f"e{place + 1}": column.numpy()[keep] for place, column in enumerate(features.T)})
    return columns, directed


def _is_symmetric(source: Rows, target: Rows, weight: NDArray[np.floating[Any]] | None) -> bool:
    """Whether every edge has its reverse of the same weight, as often as itself."""
    weights = np.ones(len(source)) if weight is None else weight

    def ordered(first: Rows, second: Rows) -> tuple[NDArray[Any], ...]:
        order = np.lexsort((weights, second, first))
        return first[order], second[order], weights[order]

    pairs = zip(ordered(source, target), ordered(target, source), strict=True)
    return all(np.array_equal(there, back) for there, back in pairs)


def write_table(columns: Mapping[str, Any], path: Path) -> None:
    """Write columns (name → values), in the order given, as a Parquet or CSV file by the path's suffix."""
    table = pa.table(dict(columns))
    with whole_file(path) as file:
        if path.suffix == ".parquet":
            pa.parquet.write_table(table, file)
        else:
            pa.csv.write_csv(table, file)


def write_yaml(content: Mapping[str, Any], path: Path) -> None:
    """Writes settings in the order given."""
    write_whole(path, yaml_bytes(dict(content)))


Paradigm = Literal["vertical", "horizontal", "averaging"]


def export_dataset(
    settings: DataSettings,
    out: Path,
    overlap: float,
    seed: int,
    format: TableFormat = "csv",  # noqa: A002 - the option's name
    *,
    job: JobSettings | None = None,
) -> dict[PartyId, Path]:
    """Exports a data set, split vertically, with a job for it, as ``export_organisations`` has it.

    The ``job`` is by default ``job_of`` the data set; ``settings.feature_scaling`` replaces its own where it is given.
    Raises ``ConfigError``: ``settings`` names no data set, or the overlap is out of range; ``DataError``: it cannot be
    read or divided so; ``RunError``: ``out`` is in use or cannot be written.
    """
    job = _job_for(settings, seed, job, "vertical")
    graphs = load_parties(settings.model_copy(update={"feature_scaling": "none"}), seed)
    return export_organisations(graphs, out, overlap=overlap, seed=seed, format=format, job=job)


def export_parts(
    settings: DataSettings,
    out: Path,
    seed: int,
    format: TableFormat = "csv",  # noqa: A002 - the option's name
    *,
    job: JobSettings | None = None,
) -> dict[PartyId, Path]:
    """Exports a data set divided among holders with the same columns, each with its nodes, edges and labels.

    The files are those of ``export_organisations``. Every party file accepts what the job reveals, of paradigm
    horizontal or averaging. Errors are those of ``export_dataset``.
    """
    job = _job_for(settings, seed, job, "horizontal")
    parts = load_parts(settings.model_copy(update={"feature_scaling": "none"}), seed)
    if all(part.graph.labels is None for part in parts):
        raise DataError(
            f"data.dataset={settings.dataset!r}: nobody has labels, and the job beside the tables learns them; choose "
            "another data set, or the command of the package that makes this one"
        )
    generator = np.random.default_rng(seed)
    exports = [
        Export(part.graph, node_ids(part.ids.numpy()), generator.permutation(part.graph.num_nodes)) for part in parts
    ]
    return _write(exports, out, format, job)


def _job_for(settings: DataSettings, seed: int, job: JobSettings | None, paradigm: Paradigm) -> JobSettings:
    """Return ``job``, or the data set's own, with ``seed`` and the feature scaling that ``settings`` give, if any."""
    if settings.dataset is None:
        raise ConfigError("data.dataset: a data set is exported, not what holders bring; give one")
    changes: dict[str, object] = {"seed": seed}
    if "feature_scaling" in settings.model_fields_set:
        changes["data.feature_scaling"] = settings.feature_scaling
    return with_overrides(job or job_of(settings.dataset, paradigm), changes)


def job_of(dataset: str, paradigm: Paradigm = "vertical") -> JobSettings:
    """The shipped job of a data set and paradigm, the first of several; the default job where there is none."""
    for name in shipped_jobs():
        with suppress(ConfigError):  # it may need a distribution that is not installed
            if name.partition("-")[0] in dataset:  # a file is named after its data set
                job = shipped_job(name)
                if (job.data.dataset, job.paradigm) == (dataset, paradigm):
                    return job
    return parse_job({"name": dataset, "paradigm": paradigm, "data": {"dataset": dataset}})


def export_organisations(
    graphs: Sequence[PartyGraph],
    out: Path,
    *,
    overlap: float = 0.8,
    seed: int,
    format: TableFormat = "csv",  # noqa: A002 - the option's name
    job: JobSettings | None = None,
) -> dict[PartyId, Path]:
    """Writes what every holder would export of its own: nodes, edges and a party file, in a folder of its name.

    Row v of the graphs, unscaled, becomes the id ``C`` and v in six digits or more, at every holder in another random
    order. Beside the holders' folders are ``job.yaml`` for all of them on this machine, ``network-job.yaml`` for the
    same job across organisations, and ``project.yaml`` for a network on this machine.

    ``overlap`` is the share of the nodes that every holder knows. Each other one is known to some, at least one and not
    all: all such sets of holders are as likely. The job's ``data`` is replaced, the feature scaling aside.

    Returns holder → its party file. Raises ``ConfigError``: the overlap leaves no common node, or exceeds 1;
    ``DataError``: node counts differ; ``RunError``: ``out`` is in use or cannot be written.
    """
    check_aligned({graph.party: graph.num_nodes for graph in graphs})
    generator = np.random.default_rng(seed)
    known = draw_knowledge(graphs[0].num_nodes, len(graphs), overlap, generator)
    ids = node_ids(np.arange(graphs[0].num_nodes))
    exports = [
        Export(graph, ids, generator.permutation(np.flatnonzero(knows)))
        for graph, knows in zip(graphs, known, strict=True)
    ]
    return _write(exports, out, format, job or parse_job({}))


def _write(exports: Sequence[Export], out: Path, suffix: TableFormat, job: JobSettings) -> dict[PartyId, Path]:
    """Write holders' tables and party files, and beside them the jobs and the project; gives holder → party file."""
    files = {export.graph.party: out / export.graph.party / "party.yaml" for export in exports}
    labelled = next((export.graph.party for export in exports if export.graph.labels is not None), None)
    jobs = _jobs(job, files, labelled)
    with writing(out):
        for export in exports:
            file = files[export.graph.party]
            private_folder(file.parent)
            export_party(export, file, suffix, accepting(jobs["job.yaml"]))
        for name, each in jobs.items():
            write_job(each, out / name)
        write_yaml(_project(job.name, files), out / "project.yaml")
    return files


def draw_knowledge(nodes: int, holders: int, overlap: float, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Draw which holder knows which node, bool [holders, nodes]: all know a share ``overlap``, some the others.

    Raises ``ConfigError``: the overlap leaves no common node, or exceeds 1.
    """
    common = round(overlap * nodes) if 0 < overlap <= 1 else 0
    if common == 0:
        raise ConfigError(
            f"overlap={overlap} is the share of the {nodes} nodes that every holder knows, and must give at least one "
            "node and be at most 1; change it"
        )
    # As a binary number a set of holders lies in 1 … 2^P − 2: neither none of them nor all.
    sets = np.full(nodes, 2**holders - 1)
    rest = generator.permutation(nodes)[common:]
    sets[rest] = generator.integers(1, 2**holders - 1, len(rest))
    known: NDArray[np.bool_] = (sets >> np.arange(holders)[:, None]) & 1 == 1
    return known


def node_ids(rows: Rows) -> list[str]:
    """Return the ids of rows, int64 [n]: ``C`` and the row in six digits or more."""
    return [f"C{row:06d}" for row in rows]


def accepting(*jobs: JobSettings) -> dict[str, Any]:
    """Return a party file's ``limits`` that accept what jobs reveal and their rounds; empty if the defaults do."""
    revealed = dict.fromkeys(name for job in jobs for name in revelations(job))
    trusts = sorted({found for job in jobs if (found := trust_of(job)) is not None})
    trust = {"trust": trusts} if set(trusts) - set(LimitSettings().trust) else {}
    if all(job.is_aligned for job in jobs) and set(revealed) <= set(LimitSettings().leakage) and not trust:
        return {}
    rounds = [job.passes.exchanges[1] for job in jobs if job.passes.exchanges is not None]
    return {"limits": {"leakage": list(revealed), **({"max_rounds": max(rounds)} if rounds else {}), **trust}}


def _jobs(job: JobSettings, files: Mapping[PartyId, Path], labelled: PartyId | None) -> dict[str, JobSettings]:
    """Return file name → job: ``job.yaml`` over the party files here, ``network-job.yaml`` over holders' names."""
    here = {party: str(path.absolute()) for party, path in files.items()}
    jobs = {}
    for name, brought in (("job.yaml", {"parties": here}), ("network-job.yaml", {"holders": list(files)})):
        data = {**brought, "label_holder": labelled, "feature_scaling": job.data.feature_scaling}
        jobs[name] = parse_job(job.model_dump(mode="json", exclude={"data"}) | {"data": data}, name)
    return jobs


def _project(name: str, files: Mapping[PartyId, Path]) -> dict[str, Any]:
    """Return the content of ``project.yaml``: a network of the holders on this machine."""
    server = {"host": "localhost", "port": 8002}
    project = {"server": server, "holders": list(files), "administrators": ["admin@example.org"]}
    return {"name": name.replace(".", "-"), **project}
