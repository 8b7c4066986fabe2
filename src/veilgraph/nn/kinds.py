"""Which relation each edge of an adjacency is of, for local models that tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from veilgraph.graph.relations import Relation


@dataclass(frozen=True, eq=False)
class Kinds:
    """The relations of an adjacency's edges.

    Attributes:
        relations: of the graph.
        places: whole numbers [E], the place in ``relations`` of each edge's, in the order of the matrix: by target.
        degrees: in a neighbourhood, of each relation its degrees in the whole graph, Tensor[N] float64; else None.
    """

    relations: tuple[Relation, ...]
    places: np.ndarray
    degrees: tuple[Tensor, ...] | None = None

    def picked(self, edges: np.ndarray, degrees: Sequence[Tensor]) -> Kinds:
        """Those of some edges, by their places, of a neighbourhood with such degrees."""
        return Kinds(self.relations, self.places[edges], tuple(degrees))

    def within(self, edges: int, nodes: int) -> Kinds:
        """Those of the first edges of a neighbourhood, of its first nodes."""
        degrees = None if self.degrees is None else tuple(each[:nodes] for each in self.degrees)
        return Kinds(self.relations, self.places[:edges], degrees)

    def matrix(self, relation: str, incoming: sp.csr_array) -> tuple[sp.csr_array, Tensor | None]:
        """The edges of one relation alone, and its degrees where they are those of a whole graph.

        Args:
            relation: its name.
            incoming: [T, N] CSR of all edges.
        """
        place = [each.name for each in self.relations].index(relation)
        mine = self.places == place
        before = np.concatenate([[0], mine.cumsum()])
        parts = incoming.data[mine], incoming.indices[mine], before[incoming.indptr]
        return sp.csr_array(parts, shape=incoming.shape), None if self.degrees is None else self.degrees[place]
