"""What a holder trains on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from veilgraph.graph.party import PartyGraph
from veilgraph.nn.fixed_input import FixedInput
from veilgraph.nn.propagate import Adjacency


@dataclass(frozen=True, eq=False)
class Own:
    """A holder's graph as the network takes it. A task that needs more of it has a subclass.

    Attributes:
        graph: as it is.
        features: of its nodes.
        adjacency: of its edges.
    """

    graph: PartyGraph
    features: FixedInput
    adjacency: Adjacency

    @classmethod
    def of(cls, graph: PartyGraph, dtype: torch.dtype) -> Self:
        """Made ready for networks of one dtype."""
        return cls(graph, FixedInput(graph.features, dtype), Adjacency.from_graph(graph, dtype))
