"""A party's own tables → its graph, in a vertical job with the common nodes first in the order agreed on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.party_settings import PartySettings
from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.party import PartyGraph
from veilgraph.tables.convert import look_up
from veilgraph.tables.edges import EdgeTable, read_edges
from veilgraph.tables.encode import FeatureEncoding, Scaling, Total, encode, fit_encoding
from veilgraph.tables.nodes import NodeTable, read_nodes
from veilgraph.tables.source import Rows

Order = Callable[[Sequence[str]], Sequence[int]]


@dataclass(frozen=True, eq=False)
class BuiltGraph:
    """A party's graph and what it was made with.

    Attributes:
        graph: validated.
        ids: pyarrow text array [N], the id of each row.
        encoding: of the features, for later tables.
    """

    graph: PartyGraph
    ids: pa.StringArray
    encoding: FeatureEncoding


def build_graph(
    settings: PartySettings,
    base: Path,
    common_ids: pa.Array | Sequence[str] | None,
    encoding: FeatureEncoding | None,
    scaling: Scaling,
    total: Total = list,
    order: Order | None = None,
    streams: LearningStreams | None = None,
    *,
    per_node: bool = False,
) -> BuiltGraph:
    """Reads a party's tables and makes its graph.

    Rows are the common nodes in the given order, then the party's other nodes in its table's order; or all as ``order``
    has them.

    Args:
        settings: of the party.
        base: the party file's folder.
        common_ids: [num_common] ids that all holders know, each once; None: no node is told apart from others.
        encoding: fitted on an earlier table; None: fitted on all rows of this one.
        scaling: the job's ``data.feature_scaling``.
        total: of an encoding that several holders fit together, as for ``fit_encoding``.
        order: without ``common_ids``, ids → the rows of the table in another order than its own.
        streams: of a run, by which a split without ``stratify`` is drawn.
        per_node: as for ``encode``.

    Raises:
        DataError: a rule that the tables break, an id of ``common_ids`` that the node table lacks, or an encoding of
            other settings.
    """
    if encoding is not None:
        _check_encoding(encoding, settings, scaling)
    table = read_nodes(settings, base, None if encoding is None else encoding.columns, streams)
    if encoding is None:
        encoding = fit_encoding(table, scaling, total)
    if common_ids is not None:
        table = table.take(_row_order(table, common_ids))
    elif order is not None:
        table = table.take(np.array(order(table.ids.to_pylist()), dtype=np.int64))
    edge_index, edge_weight = _join_edges([read_edges(edges, base, table.ids) for edges in settings.edges])
    label = settings.nodes.label
    graph = PartyGraph(
        party=settings.party,
        features=encode(table, encoding, per_node=per_node),
        edge_index=edge_index,
        edge_weight=edge_weight,
        labels=None if table.labels is None else torch.from_numpy(table.labels.astype(np.int64)),
        num_classes=None if label is None else len(label.classes),
        num_common=None if common_ids is None else len(common_ids),
        **_masks(table),
    )
    graph.validate()
    return BuiltGraph(graph, table.ids, encoding)


def _check_encoding(encoding: FeatureEncoding, settings: PartySettings, scaling: Scaling) -> None:
    if encoding.features != settings.nodes.features:
        raise DataError(
            f"party {settings.party!r}: nodes.features are not those that the features' encoding was fitted with; "
            "restore them, or train anew"
        )
    if encoding.scaling != scaling:
        raise DataError(
            f"party {settings.party!r}: data.feature_scaling={scaling!r}, and the features' encoding was fitted with "
            f"{encoding.scaling!r}; restore it, or train anew"
        )


def _row_order(table: NodeTable, common_ids: pa.Array | Sequence[str]) -> Rows:
    common = pa.array(common_ids, pa.string())
    rows = look_up(common, table.ids)
    absent = rows < 0
    if absent.any():
        raise DataError(
            f"{table.path}: {int(absent.sum())} of {len(rows)} common ids are not in the node table, the first is "
            f"{common[int(absent.argmax())].as_py()!r}; align the tables anew"
        )
    rest = np.ones(table.num_nodes, dtype=bool)
    rest[rows] = False
    order = np.concatenate([rows, np.flatnonzero(rest)])
    if len(order) != table.num_nodes:
        raise DataError(
            f"{table.path}: the common ids hold an id more than once ({len(rows)} ids of "
            f"{len(np.unique(rows))} nodes); align the tables anew"
        )
    return order


def _join_edges(tables: list[EdgeTable]) -> tuple[Tensor, Tensor | None]:
    """All tables' edges: of each its rows, then the other direction of those that have one.

    Returns:
        Tensor[2, E] int64, and Tensor[E] float32 if any table has weights.
    """
    backward = [(table.source != table.target) & np.bool_(not table.settings.directed) for table in tables]
    total = sum(len(table.source) + int(back.sum()) for table, back in zip(tables, backward, strict=True))
    edge_index = torch.empty(2, total, dtype=torch.int64)
    edge_weight = torch.ones(total) if any(table.weight is not None for table in tables) else None
    filled = 0
    for table, back in zip(tables, backward, strict=True):
        for source, target, weight in (
            (table.source, table.target, table.weight),
            (table.target[back], table.source[back], None if table.weight is None else table.weight[back]),
        ):
            here = slice(filled, filled + len(source))
            edge_index[0, here] = torch.from_numpy(source)
            edge_index[1, here] = torch.from_numpy(target)
            if edge_weight is not None and weight is not None:
                edge_weight[here] = torch.from_numpy(weight)
            filled += len(source)
    return edge_index, edge_weight


def _masks(table: NodeTable) -> dict[str, Tensor]:
    if table.splits is None:
        return {}
    names = ("train_mask", "val_mask", "test_mask")
    return {name: torch.from_numpy(table.splits == split) for split, name in enumerate(names)}
