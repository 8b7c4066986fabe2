"""All holders' parts of a graph as one, or one holder's alone: in simulations, what joint training is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph.features import compact, join_columns
from veilgraph.graph.federation import check_aligned, find_label_holder
from veilgraph.graph.party import PartyGraph, pairs_once
from veilgraph.graph.rules import DTYPE, EVERY, Relation

POOLED: PartyId = "pooled"


def holder_alone(graphs: Sequence[PartyGraph], party: PartyId, label_holder: PartyId) -> PartyGraph:
    """Return one holder's graph to train alone on, with validation and test masks over common nodes only.

    Other holders than the label holder are lent its labels and masks of the common nodes, as in the paper.
    """
    own = next(graph for graph in graphs if graph.party == party)
    labelled = find_label_holder(graphs, label_holder)
    common, only_own = own.common, own.num_nodes - own.common

    def of_common(values: Tensor | None, elsewhere: int) -> Tensor | None:
        return None if values is None else torch.cat([values[:common], values.new_full((only_own,), elsewhere)])

    trains = own is labelled  # its own nodes have labels then
    return replace(
        own,
        num_common=None,
        labels=own.labels if trains else of_common(labelled.labels, -1),
        train_mask=own.train_mask if trains else of_common(labelled.train_mask, False),
        val_mask=of_common(labelled.val_mask, False),
        test_mask=of_common(labelled.test_mask, False),
        num_classes=labelled.num_classes,
    )


def pool(graphs: Sequence[PartyGraph], label_holder: PartyId, *, relational: bool = False) -> PartyGraph:
    """Pool all holders' data of the common nodes into one graph: an upper bound, not allowed in practice.

    Columns are concatenated in the holders' order. Edges are united: one that several holders have appears once, with
    the sum of their weights, or where ``relational`` all stay as they are, each holder's relations as relations of
    their own. Nodes of a single holder are left out, since which of them several holders share is not known here.
    Raises ``DataError``: the counts of common nodes differ, or ``label_holder`` is no holder or has no labels.
    """
    check_aligned({graph.party: graph.common for graph in graphs})
    graphs = [graph.common_part() for graph in graphs]
    labelled = find_label_holder(graphs, label_holder)
    return replace(_side_by_side(graphs) if relational else _unite_edges(graphs), **labelled.label_fields)


def _unite_edges(graphs: Sequence[PartyGraph]) -> PartyGraph:
    edges, weights = torch.cat([graph.edge_index for graph in graphs], dim=1), _join_weights(graphs, torch.float64)
    unique, place = pairs_once(edges)
    features = join_columns([graph.features for graph in graphs])
    if weights is None and unique.shape[1] == edges.shape[1]:
        return PartyGraph(POOLED, features, unique)
    total = torch.bincount(place, weights=weights, minlength=unique.shape[1])
    return PartyGraph(POOLED, features, unique, total.to(torch.float32))


def _side_by_side(graphs: Sequence[PartyGraph]) -> PartyGraph:
    """Join all holders' columns and edges, and keep all relations apart, called ``holder/name``."""
    edges, weights = torch.cat([graph.edge_index for graph in graphs], dim=1), _join_weights(graphs, torch.float32)
    relations, places = list[Relation](), []
    for graph in graphs:
        own = torch.zeros(graph.num_edges) if graph.edge_relation is None else graph.edge_relation
        places.append(own.to(DTYPE) + len(relations))
        relations += [replace(each, name=f"{graph.party}/{each.name}") for each in graph.relations or (EVERY,)]
    features = join_columns([graph.features for graph in graphs])
    told = {"edge_relation": torch.cat(places), "relations": tuple(relations)}
    weights = torch.ones(edges.shape[1]) if weights is None else weights
    return PartyGraph(POOLED, features, edges, weights, **told)  # type: ignore[arg-type]


UNKNOWN: Final = -1
"""A label, or a holder, that there is not."""
ABSENT: Final[Mapping[str, float]] = {"labels": UNKNOWN, "targets": torch.nan, **dict.fromkeys(MASKS, False)}
"""What a node has that is no holder's own."""


@dataclass(frozen=True, eq=False)
class HorizontalPart:
    """One holder's graph, and its rows' node numbers in the whole: ``ids`` Tensor[N_p] int64, distinct, ascending."""

    graph: PartyGraph
    ids: Tensor


def without_duplicates(parts: Sequence[HorizontalPart], *, alike: bool = False) -> list[HorizontalPart]:
    """Return the parts of all holders with every directed edge at the first alone that has it.

    Copies of an edge within one holder stay. ``alike``: edges are the same only if weights and features are, too.
    """
    size = 1 + max((int(part.ids[-1]) for part in parts), default=0)
    ends = [part.ids[part.graph.edge_index] for part in parts]
    keys = torch.cat([torch.empty(0, dtype=torch.int64), *(source * size + target for source, target in ends)])
    graphs = [part.graph for part in parts]
    weights, features = _join_weights(graphs), _join_edge_features(graphs)
    if alike and (weights is not None or features is not None):
        found = [keys, weights, *(() if features is None else features.t())]
        rows = torch.stack([values.double() for values in found if values is not None], dim=1)
        _, keys = torch.unique(rows, dim=0, return_inverse=True)
    seen = torch.empty(0, dtype=torch.int64)
    kept = []
    for part, own in zip(parts, torch.split(keys, [graph.num_edges for graph in graphs]), strict=True):
        new = ~torch.isin(own, seen)
        seen = torch.cat([seen, torch.unique(own[new])])
        kept.append(replace(part, graph=part.graph.with_edges(new)))
    return kept


def pool_parts(parts: Sequence[HorizontalPart]) -> HorizontalPart:
    """The combined graph, as no holder may have it: what the federation's result must equal.

    Every node once, with its features from the first holder that knows it and its label, or target, from the first that
    has one. Of edges alike in ends, weight and features one holder's stay. Raises ``DataError``: columns or classes
    differ.
    """
    graphs = [part.graph for part in parts]
    classes = {graph.num_classes for graph in graphs if graph.labels is not None}
    edges = {graph.num_edge_features for graph in graphs}
    columns = {graph.num_features for graph in graphs}
    for what, values in (("columns", columns), ("columns of edges", edges), ("classes", classes)):
        if len(values) > 1:
            raise DataError(f"holders: {what} differ ({sorted(map(str, values))}), and they must be the same; mend one")
    ids, rows = positions(parts)
    place = torch.cat(rows)
    name, absent = ("targets", torch.nan) if any(graph.targets is not None for graph in graphs) else ("labels", UNKNOWN)
    given = torch.cat([_values(graph, name, absent) for graph in graphs])
    first = _first_rows(place, given != UNKNOWN if name == "labels" else ~given.isnan(), len(ids))
    known, answers = first != UNKNOWN, dict[str, Tensor]()
    if name == "targets" or classes:
        answers = {mask: torch.cat([_values(graph, mask, False) for graph in graphs])[first] & known for mask in MASKS}
        answers[name] = torch.where(known, given[first], absent)

    unique = [part.graph for part in without_duplicates(parts, alike=True)]
    everywhere = torch.ones(len(place), dtype=torch.bool)
    pooled = PartyGraph(
        party=POOLED,
        features=compact(
            torch.cat([graph.features.to_dense() for graph in graphs])[_first_rows(place, everywhere, len(ids))]
        ),
        edge_index=torch.cat([at[graph.edge_index] for graph, at in zip(unique, rows, strict=True)], dim=1),
        edge_weight=_join_weights(unique),
        edge_features=_join_edge_features(unique),
        num_classes=next(iter(classes), None),
        **answers,  # type: ignore[arg-type]
    )
    return HorizontalPart(pooled, ids)


def append_others(own: PartyGraph, others: int) -> PartyGraph:
    """Append so many nodes of other holders, with zero features and no labels; the graph's own become the common ones.

    The graph's edges may already refer to the new nodes.
    """
    known = own.features
    if others:
        known = torch.cat([known.to_dense(), known.new_zeros((others, own.num_features), layout=torch.strided)])
    longer = {
        name: torch.cat([values, values.new_full((others,), ABSENT[name])])
        for name, values in own.node_values.items()
        if name in ABSENT
    }
    return replace(own, num_common=own.num_nodes, features=known, **longer)  # type: ignore[arg-type]


def positions(parts: Sequence[HorizontalPart]) -> tuple[Tensor, list[Tensor]]:
    """Return the union of all parts' ids, ascending, Tensor[N]; and each part's rows' indices there, Tensor[N_p]."""
    ids = torch.unique(torch.cat([part.ids for part in parts]))
    return ids, [torch.searchsorted(ids, part.ids) for part in parts]


def _first_rows(place: Tensor, among: Tensor, nodes: int) -> Tensor:
    """Return each node's first row among those that mask ``among`` selects, by ``place``; −1 without one: Tensor[N]."""
    rows = torch.arange(len(place))[among]
    last = torch.full((nodes,), len(place))
    first = last.scatter_reduce(0, place[among], rows, "amin")
    return torch.where(first < len(place), first, UNKNOWN)


def _values(graph: PartyGraph, name: str, absent: float) -> Tensor:
    """Return an attribute of all nodes, as labels or a mask: Tensor[N], of ``absent`` where the graph has none."""
    values: Tensor | None = getattr(graph, name)
    return torch.full((graph.num_nodes,), absent) if values is None else values


def _join_weights(graphs: Sequence[PartyGraph], dtype: torch.dtype | None = None) -> Tensor | None:
    """Concatenate all graphs' edge weights: Tensor[E], 1 at a graph without; None where no graph has any."""
    weights = [graph.edge_weight for graph in graphs]
    if all(each is None for each in weights):
        return None
    pairs = zip(graphs, weights, strict=True)
    return torch.cat([torch.ones(graph.num_edges) if own is None else own for graph, own in pairs]).to(dtype=dtype)


def _join_edge_features(graphs: Sequence[PartyGraph]) -> Tensor | None:
    found = [graph.edge_features for graph in graphs if graph.edge_features is not None]
    return torch.cat(found) if found else None
