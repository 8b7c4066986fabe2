"""Tables as organisations would export them from their own systems, made from a data set that is known whole.

What the commands for tables need to be tried on: ids in another order at every holder, and nodes that only some know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import yaml
from numpy.typing import NDArray

from veilgraph.core.config import JobSettings, parse_job, write_job
from veilgraph.core.data_settings import DataSettings
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.types import PartyId
from veilgraph.experiments.shipped import shipped_job, shipped_jobs, with_overrides
from veilgraph.graph.datasets import load_parties
from veilgraph.graph.party import PartyGraph, check_aligned

TableFormat = Literal["csv", "parquet"]
Rows = NDArray[np.int64]

_SPLITS: Final = {"train_mask": "train", "val_mask": "val", "test_mask": "test"}


def export_dataset(
    settings: DataSettings,
    out: Path,
    overlap: float,
    seed: int,
    format: TableFormat = "csv",  # noqa: A002 - the option's name
    *,
    job: JobSettings | None = None,
) -> dict[PartyId, Path]:
    """Exports a data set, split among its holders, with a job for it: ``export_organisations`` says what is written.

    Args:
        settings: which data set, and how it is divided.
        out: folder, made here.
        overlap: as for ``export_organisations``.
        seed: of the data set's split and of who knows which node.
        format: of the tables.
        job: that trains on them; default: ``job_of`` the data set. ``settings.feature_scaling`` replaces its own where
            it is given.

    Returns:
        Holder → its party file.

    Raises:
        ConfigError: ``settings`` names parties and no data set, or the overlap is out of range.
        DataError: the data set cannot be read or divided so.
        RunError: ``out`` is in use or cannot be written.
    """
    if settings.parties is not None:
        raise ConfigError("data.parties: a data set is exported, not parties; leave parties out and give dataset")
    graphs = load_parties(settings.model_copy(update={"feature_scaling": "none"}), seed)
    changes: dict[str, object] = {"seed": seed}
    if "feature_scaling" in settings.model_fields_set:
        changes["data.feature_scaling"] = settings.feature_scaling
    job = with_overrides(job or job_of(settings.dataset), changes)
    return export_organisations(graphs, out, overlap=overlap, seed=seed, format=format, job=job)


def job_of(dataset: str) -> JobSettings:
    """The shipped job of a data set, the first of several; the default job where there is none."""
    jobs = (shipped_job(name) for name in shipped_jobs())
    return next((job for job in jobs if job.data.dataset == dataset), JobSettings(name=dataset))


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

    Row v of the graphs becomes the id ``C`` and v in six digits or more. Rows are in a random order, another at every
    holder. Beside the holders' folders are ``job.yaml`` for all of them on this machine, ``network-job.yaml`` for the
    same job across organisations, and ``project.yaml`` for a network on this machine.

    Args:
        graphs: one per holder, unscaled, over the same N nodes in the same order; one has labels.
        out: folder, made here.
        overlap: share of the nodes that every holder knows. Each other node is known to some holders, at least one
            and not all: all such sets of holders are as likely.
        seed: of who knows which node, and of the orders.
        format: of the tables.
        job: its ``data`` is replaced, the feature scaling aside; default: the default job.

    Returns:
        Holder → its party file.

    Raises:
        ConfigError: the overlap leaves no common node, or exceeds 1.
        DataError: the graphs' node counts differ.
        RunError: ``out`` is in use or cannot be written.
    """
    check_aligned({graph.party: graph.num_nodes for graph in graphs})
    generator = np.random.default_rng(seed)
    known = draw_knowledge(graphs[0].num_nodes, len(graphs), overlap, generator)
    files: dict[PartyId, Path] = {}
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RunError(f"{out} exists and is not an empty directory; choose another --out or remove it")
        for graph, knows in zip(graphs, known, strict=True):
            folder = out / graph.party
            folder.mkdir(parents=True)
            rows = generator.permutation(np.flatnonzero(knows))
            files[graph.party] = _export_party(graph, rows, folder, format)
        _write_jobs(job or JobSettings(), graphs, files, out)
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error}); choose another --out") from error
    return files


def draw_knowledge(nodes: int, holders: int, overlap: float, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Which holder knows which node: [holders, nodes].

    Raises:
        ConfigError: the overlap leaves no common node, or exceeds 1.
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
    """The ids of some rows of the whole."""
    return [f"C{row:06d}" for row in rows]


def _export_party(graph: PartyGraph, rows: Rows, folder: Path, suffix: TableFormat) -> Path:
    features = graph.features.to_dense().numpy()[rows]
    digits = max(4, len(str(graph.num_features)))
    columns: dict[str, Any] = {"id": node_ids(rows)}
    columns.update((f"x{index + 1:0{digits}d}", features[:, index]) for index in range(graph.num_features))
    nodes: dict[str, Any] = {"file": f"nodes.{suffix}", "id": "id", "features": [{"columns": "x*"}]}
    if graph.labels is not None:
        columns.update(_label_columns(graph, rows))
        nodes["label"] = {"column": "label", "classes": [str(index) for index in range(graph.num_classes or 0)]}
        nodes["split"] = {"column": "split", "train": "train", "val": "val", "test": "test"}
    _write_table(columns, folder / nodes["file"])

    ends, directed = _edge_columns(graph, rows)
    _write_table(ends, folder / f"edges.{suffix}")
    edges = {"file": f"edges.{suffix}", **{name: name for name in ends}, "directed": directed}
    party_file = folder / "party.yaml"
    _write_yaml({"party": graph.party, "nodes": nodes, "edges": [edges]}, party_file)
    return party_file


def _label_columns(graph: PartyGraph, rows: Rows) -> dict[str, pa.Array]:
    labels = np.asarray(graph.labels)[rows]
    split = np.full(graph.num_nodes, None, dtype=object)
    for mask, name in _SPLITS.items():
        members = getattr(graph, mask)
        if members is not None:
            split[members.numpy()] = name
    return {
        "label": pa.array([None if label < 0 else str(label) for label in labels], pa.string()),
        "split": pa.array(split[rows], pa.string()),
    }


def _edge_columns(graph: PartyGraph, rows: Rows) -> tuple[dict[str, Any], bool]:
    """Columns of the edges between known nodes, and whether their direction counts: else each pair is one row."""
    known = np.zeros(graph.num_nodes, dtype=bool)
    known[rows] = True
    source, target = graph.edge_index.numpy()
    keep = known[source] & known[target]
    weight = None if graph.edge_weight is None else graph.edge_weight.numpy()
    directed = not _is_symmetric(source, target, weight)
    if not directed:
        keep &= source <= target
    ids = pa.array(node_ids(np.arange(graph.num_nodes)))
    columns = {"source": ids.take(pa.array(source[keep])), "target": ids.take(pa.array(target[keep]))}
    return columns if weight is None else {**columns, "weight": weight[keep]}, directed


def _is_symmetric(source: Rows, target: Rows, weight: NDArray[np.floating[Any]] | None) -> bool:
    """Whether every edge has its reverse of the same weight, as often as itself."""
    weights = np.ones(len(source)) if weight is None else weight

    def ordered(first: Rows, second: Rows) -> tuple[NDArray[Any], ...]:
        order = np.lexsort((weights, second, first))
        return first[order], second[order], weights[order]

    pairs = zip(ordered(source, target), ordered(target, source), strict=True)
    return all(np.array_equal(there, back) for there, back in pairs)


def _write_table(columns: Mapping[str, Any], path: Path) -> None:
    table = pa.table(dict(columns))
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path)
    else:
        pa.csv.write_csv(table, path)


def _write_jobs(job: JobSettings, graphs: Sequence[PartyGraph], files: Mapping[PartyId, Path], out: Path) -> None:
    label_holder = next((graph.party for graph in graphs if graph.labels is not None), None)
    here = {party: str(path.absolute()) for party, path in files.items()}
    for name, parties in (("job.yaml", here), ("network-job.yaml", list(files))):
        data = {"parties": parties, "label_holder": label_holder, "feature_scaling": job.data.feature_scaling}
        content = job.model_dump(mode="json", exclude={"data"}) | {"data": data}
        write_job(parse_job(content, name), out / name)
    server = {"host": "localhost", "port": 8002, "admin_port": 8003}
    project = {"server": server, "holders": list(files), "administrators": ["admin@example.org"]}
    _write_yaml({"name": job.name.replace(".", "-"), **project}, out / "project.yaml")


def _write_yaml(content: Mapping[str, Any], path: Path) -> None:
    path.write_text(yaml.safe_dump(dict(content), sort_keys=False), encoding="utf-8")
