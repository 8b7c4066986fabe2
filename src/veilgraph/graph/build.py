"""A party's own tables → its graph, in a vertical job with the common nodes first in the order agreed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.deferred import deferred
from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import append_others
from veilgraph.graph.rules import DTYPE, Relation, are_told_apart
from veilgraph.tables.drift import Profile, profiles
from veilgraph.tables.edges import EdgeTable, RemoteNodes, read_edges
from veilgraph.tables.encode import FeatureEncoding, Scaling, encode
from veilgraph.tables.nodes import NodeTable, read_nodes
from veilgraph.tables.settings import TableSettings, check_reaches
from veilgraph.tables.source import Bools, Rows

with deferred():  # a tenth of a second to import, and for tables alone
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class BuiltGraph:
    """A party's graph and what it was made with.

    ``ids`` [N] name its rows, written alike, ``written`` as the holder's own table has them; ``encoding`` is for later
    tables; ``profile`` of columns and relations, beside those of training, stays at home.
    """

    graph: PartyGraph
    ids: pa.StringArray
    written: pa.StringArray
    encoding: FeatureEncoding
    profile: tuple[Profile, ...] = ()


def read_table(
    settings: TableSettings,
    base: Path,
    encoding: FeatureEncoding | None,
    scaling: Scaling,
    streams: LearningStreams | None = None,
) -> NodeTable:
    """Read a party's node table; callers pass it on, so that a session reads it once.

    ``encoding`` was fitted on an earlier table, whose columns are read; None: those that the settings choose.
    ``streams`` draw a split without ``stratify``. Raises ``DataError``: a rule that the table breaks, or an encoding of
    other settings.
    """
    if encoding is None:
        return read_nodes(settings, base, None, streams)
    if set(encoding.features) != set(settings.nodes.features):  # their order may be the first holder's
        raise DataError(
            f"party {settings.party!r}: nodes.features differ from those of the training; restore them, or train anew"
        )
    if encoding.scaling != scaling:
        raise DataError(
            f"party {settings.party!r}: data.feature_scaling={scaling!r}, and the training had "
            f"{encoding.scaling!r}; restore it, or train anew"
        )
    return read_nodes(settings, base, encoding.columns, streams)


def common_first(nodes: int, rows: Rows) -> Rows:
    """Return the order of ``nodes`` rows in which the distinct common ``rows`` come first; the others keep theirs."""
    rest = np.ones(nodes, dtype=bool)
    rest[rows] = False
    return np.concatenate([rows, np.flatnonzero(rest)])


def read_edge_tables(
    settings: TableSettings, base: Path, table: NodeTable, elsewhere: RemoteNodes | None = None
) -> list[EdgeTable]:
    """Read a party's edge tables over the rows of ``table``; ``DataError``: a rule is broken.

    Other holders' nodes are added to ``elsewhere``; None: edges that end at one are dropped.
    """
    elsewhere = elsewhere or RemoteNodes(settings.party)
    return [read_edges(edges, base, table.ids, settings.ids, elsewhere) for edges in settings.edges]


def build_graph(
    settings: TableSettings,
    base: Path,
    table: NodeTable,
    encoding: FeatureEncoding,
    num_common: int | None = None,
    *,
    per_node: bool = False,
    then: Sequence[Profile] = (),
    others: Sequence[PartyId] = (),
    tables: Sequence[EdgeTable] | None = None,
) -> BuiltGraph:
    """Build a party's graph over the rows of ``table`` and of its edge ``tables``; ``DataError``: a rule is broken.

    ``tables`` are read here, where they are None. All holders know the first ``num_common`` rows; None: all.
    ``per_node`` is as for ``encode``. ``then``: profiles of the tables in training, whose bins the new profile reuses.
    ``others``: holders whose nodes are appended, where edges lead to them, by ``graph.pooling.append_others``.
    """
    elsewhere = RemoteNodes(settings.party, tuple(others))
    if tables is None:
        tables = read_edge_tables(settings, base, table, elsewhere)
    edge_index, edge_weight, edge_features = _join_edges(tables)
    relations = tuple(Relation(name, hops) for name, hops in check_reaches(settings.edges).items())
    told_apart = are_told_apart(relations)
    label = settings.nodes.label
    graph = PartyGraph(
        party=settings.party,
        features=encode(table, encoding, per_node=per_node),
        edge_index=edge_index,
        edge_weight=edge_weight,
        edge_features=edge_features,
        labels=None if table.labels is None else torch.from_numpy(table.labels.astype(np.int64)),
        num_classes=None if label is None else len(label.classes),
        num_common=num_common,
        targets=None if table.targets is None else torch.from_numpy(table.targets),
        membership=None if table.graphs is None else torch.from_numpy(table.graphs),
        edge_relation=_join_relations(tables, [relation.name for relation in relations]) if told_apart else None,
        relations=relations if told_apart else (),
        **{} if table.splits is None else {m: torch.from_numpy(table.splits == at) for at, m in enumerate(MASKS)},
    )
    ids, written = table.ids, table.written
    if others:
        graph, found = append_others(graph, len(elsewhere.ids)), pa.array(list(elsewhere.ids), pa.string())
        ids, written = (pa.concat_arrays([each, found]) for each in (ids, written))
    graph.validate()
    return BuiltGraph(graph, ids, written, encoding, profiles(table, tables, then))


def _join_edges(tables: Sequence[EdgeTable]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Join tables' edges, undirected ones both ways: index [2, E], weights [E] or None, features [E, F_e] or None."""
    ends = [_with_reverse(tables, *names) for names in (("source", "target"), ("target", "source"))]
    edge_index = torch.empty(2, sum(map(len, ends[0])), dtype=torch.int64)
    for row, parts in zip(edge_index.numpy(), ends, strict=True):
        np.concatenate([np.empty(0, np.int32), *parts], out=row)  # widened where it lies: graphs can be large
    weight = features = None
    if any(table.weight is not None for table in tables):
        weighted = [
            replace(table, weight=np.ones(len(table.source), np.float32)) if table.weight is None else table
            for table in tables
        ]
        weight = torch.from_numpy(np.concatenate(_with_reverse(weighted, "weight")))
    if tables and tables[0].features.shape[1]:
        features = torch.from_numpy(np.concatenate(_with_reverse(tables, "features")))
    return edge_index, weight, features


def _with_reverse(tables: Sequence[EdgeTable], name: str, backward: str = "") -> list[np.ndarray]:
    """List per table its attribute ``name``, then ``backward`` (default: ``name``) at its edges that have a reverse."""
    found = []
    for table in tables:
        found += [getattr(table, name), getattr(table, backward or name)[_has_reverse(table)]]
    return found


def _has_reverse(table: EdgeTable) -> Bools:
    back: Bools = (table.source != table.target) & np.bool_(not table.settings.directed)
    return back


def _join_relations(tables: Sequence[EdgeTable], names: list[str]) -> Tensor:
    """The place in ``names`` of every edge's relation, in the order of ``_join_edges``: Tensor[E]."""
    found = [torch.empty(0, dtype=DTYPE)]
    for table in tables:
        places = torch.tensor([names.index(name) for name in table.settings.reaches], dtype=DTYPE)
        rows = np.zeros(len(table.source), np.int64) if table.relation is None else table.relation
        each = places[torch.from_numpy(rows.astype(np.int64))]
        found += [each, each[torch.from_numpy(_has_reverse(table))]]
    return torch.cat(found)
