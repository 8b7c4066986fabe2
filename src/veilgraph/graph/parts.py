"""The holders' parts of a horizontally divided graph, and the combined graph that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.types import MASKS
from veilgraph.graph.features import compact
from veilgraph.graph.partition import POOLED
from veilgraph.graph.party import PartyGraph

UNKNOWN: Final = -1
"""A label, or a holder, that there is not."""


@dataclass(frozen=True, eq=False)
class HorizontalPart:
    """What one holder has, and where its rows stand in the whole.

    Attributes:
        graph: its nodes, in ascending order of ``ids``.
        ids: Tensor[N_p] int64, distinct, ascending: positions in the graph that was split.
    """

    graph: PartyGraph
    ids: Tensor


def without_duplicates(parts: Sequence[HorizontalPart], *, alike: bool = False) -> list[HorizontalPart]:
    """Return the parts with every directed edge at the first holder alone that has it.

    Copies of an edge within one holder stay.

    Args:
        parts: of all holders.
        alike: whether edges are the same only if their weights and features are the same too.
    """
    size = 1 + max((int(part.ids[-1]) for part in parts), default=0)
    ends = [part.ids[part.graph.edge_index] for part in parts]
    keys = torch.cat([torch.empty(0, dtype=torch.int64), *(source * size + target for source, target in ends)])
    graphs = [part.graph for part in parts]
    weights, features = _weights(graphs), _edge_features(graphs)
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
    has one. Of edges that are alike in ends, weight and features one holder's stay.

    Raises:
        DataError: columns, columns of edges or classes differ between the holders.
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
    first = _first(place, given != UNKNOWN if name == "labels" else ~given.isnan(), len(ids))
    known, answers = first != UNKNOWN, dict[str, Tensor]()
    if name == "targets" or classes:
        answers = {mask: torch.cat([_values(graph, mask, False) for graph in graphs])[first] & known for mask in MASKS}
        answers[name] = torch.where(known, given[first], absent)

    unique = [part.graph for part in without_duplicates(parts, alike=True)]
    everywhere = torch.ones(len(place), dtype=torch.bool)
    pooled = PartyGraph(
        party=POOLED,
        features=compact(
            torch.cat([graph.features.to_dense() for graph in graphs])[_first(place, everywhere, len(ids))]
        ),
        edge_index=torch.cat([at[graph.edge_index] for graph, at in zip(unique, rows, strict=True)], dim=1),
        edge_weight=_weights(unique),
        edge_features=_edge_features(unique),
        num_classes=next(iter(classes), None),
        **answers,  # type: ignore[arg-type]
    )
    return HorizontalPart(pooled, ids)


def positions(parts: Sequence[HorizontalPart]) -> tuple[Tensor, list[Tensor]]:
    """All ids, ascending, Tensor[N]; and for each part where its rows stand among them, Tensor[N_p]."""
    ids = torch.unique(torch.cat([part.ids for part in parts]))
    return ids, [torch.searchsorted(ids, part.ids) for part in parts]


def _first(place: Tensor, among: Tensor, nodes: int) -> Tensor:
    """For each node the first row of ``among`` that is of it, −1 where there is none: Tensor[N]."""
    rows = torch.arange(len(place))[among]
    last = torch.full((nodes,), len(place))
    first = last.scatter_reduce(0, place[among], rows, "amin")
    return torch.where(first < len(place), first, UNKNOWN)


def _values(graph: PartyGraph, name: str, absent: float) -> Tensor:
    """Labels or a mask of every node, where the holder has none as ``absent``."""
    values: Tensor | None = getattr(graph, name)
    return torch.full((graph.num_nodes,), absent) if values is None else values


def _weights(graphs: Sequence[PartyGraph]) -> Tensor | None:
    if all(graph.edge_weight is None for graph in graphs):
        return None
    return torch.cat(
        [torch.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight for graph in graphs]
    )


def _edge_features(graphs: Sequence[PartyGraph]) -> Tensor | None:
    found = [graph.edge_features for graph in graphs if graph.edge_features is not None]
    return torch.cat(found) if found else None
