"""Several holders' graphs as one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from veilgraph.core.types import MASKS
from veilgraph.graph.features import compact
from veilgraph.graph.partition import POOLED
from veilgraph.graph.party import PartyGraph


def side_by_side(graphs: Sequence[PartyGraph]) -> PartyGraph:
    """One graph of several that have no node in common, in the same columns: their rows and edges one after another."""
    starts = _starts([graph.num_nodes for graph in graphs])
    return PartyGraph(
        party=POOLED,
        features=compact(torch.cat([graph.features.to_dense() for graph in graphs])),
        edge_index=torch.cat([graph.edge_index + start for graph, start in zip(graphs, starts, strict=True)], dim=1),
        edge_weight=_joined(graphs, "edge_weight", 1.0, [graph.num_edges for graph in graphs]),
        labels=_of_nodes(graphs, "labels", -1),
        num_classes=next((graph.num_classes for graph in graphs if graph.labels is not None), None),
        targets=_of_nodes(graphs, "targets", torch.nan),
        membership=_memberships(graphs),
        **{name: _of_nodes(graphs, name, fill=False) for name in MASKS},  # type: ignore[arg-type]
    )


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:place]) for place in range(len(sizes))]


def _of_nodes(graphs: Sequence[PartyGraph], name: str, fill: float) -> Tensor | None:
    return _joined(graphs, name, fill, [graph.num_nodes for graph in graphs])


def _joined(graphs: Sequence[PartyGraph], name: str, fill: float, sizes: Sequence[int]) -> Tensor | None:
    """Values of all graphs, ``fill`` where one has none; None where none has any."""
    values: list[Tensor | None] = [getattr(graph, name) for graph in graphs]
    if all(value is None for value in values):
        return None
    pairs = zip(values, sizes, strict=True)
    return torch.cat([torch.full((size,), fill) if value is None else value for value, size in pairs])


def _memberships(graphs: Sequence[PartyGraph]) -> Tensor | None:
    """Graphs numbered on from one holder to the next; a holder that tells none apart has one."""
    if all(graph.membership is None for graph in graphs):
        return None
    parts, first = [], 0
    for graph in graphs:
        own = torch.zeros(graph.num_nodes, dtype=torch.int64) if graph.membership is None else graph.membership
        parts.append(own + first)
        first += int(own.max()) + 1
    return torch.cat(parts)
