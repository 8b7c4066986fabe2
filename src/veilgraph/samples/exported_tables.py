"""Tables and party file of one organisation, as it would export them from its own system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from numpy.typing import NDArray

from veilgraph.core.errors import RunError
from veilgraph.core.files import whole_file, write_whole
from veilgraph.core.yaml_file import yaml_bytes
from veilgraph.graph.party import PartyGraph

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
    """A block that writes into a new folder.

    Raises:
        RunError: it is in use or cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} exists and is not an empty directory; choose another --out or remove it")
    try:
        yield
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error}); choose another --out") from error


def export_party(export: Export, file: Path, suffix: TableFormat, limits: Mapping[str, Any]) -> None:
    """Writes a holder's tables beside its party file, and that.

    Args:
        export: what it has.
        file: the party file's path; its folder exists.
        suffix: of the tables.
        limits: further keys of the party file.
    """
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
        columns["label"] = _labels(graph, rows)
        nodes["label"] = {"column": "label", "classes": [str(index) for index in range(graph.num_classes or 0)]}
    if graph.labels is not None or graph.targets is not None:
        columns["split"] = _splits(graph, rows)
        nodes["split"] = {"column": "split", "train": "train", "val": "val", "test": "test"}
    write_table(columns, folder / nodes["file"])

    ends, directed = _edge_columns(export)
    write_table(ends, folder / f"edges.{suffix}")
    own = [name for name in ends if name.startswith("e")]
    said = {name: name for name in ends if name not in own} | ({"features": own} if own else {})
    edges = {"file": f"edges.{suffix}", **said, "directed": directed}
    write_yaml({"party": graph.party, "nodes": nodes, "edges": [edges], **limits}, file)


def _labels(graph: PartyGraph, rows: Rows) -> pa.Array:
    return pa.array([None if label < 0 else str(label) for label in np.asarray(graph.labels)[rows]], pa.string())


def _splits(graph: PartyGraph, rows: Rows) -> pa.Array:
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
    """Writes a table of columns in the order given, as its suffix says."""
    table = pa.table(dict(columns))
    with whole_file(path) as file:
        if path.suffix == ".parquet":
            pa.parquet.write_table(table, file)
        else:
            pa.csv.write_csv(table, file)


def write_yaml(content: Mapping[str, Any], path: Path) -> None:
    """Writes settings in the order given."""
    write_whole(path, yaml_bytes(dict(content)))
