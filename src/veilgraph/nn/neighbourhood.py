"""Neighbourhoods of some target nodes, for steps whose cost does not grow with the graph.

Around the targets lie rings of nodes: those with an edge into the targets, those with an edge into these, and so on, K
rings for K hops. The first hop computes all but the outermost ring, the last the targets alone. Where a node has more
than ``fanout`` neighbours, so many are drawn without replacement (Hamilton et al. 2017). Sums weigh their edges up, so
that a neighbourhood's sums, means and convolutions are unbiased estimates of the graph's.

Which nodes and edges are drawn stays with the holder: nothing of it is ever sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.nn.propagate import Adjacency, Kinds


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """The targets of a step and what lies around them.

    Attributes:
        nodes: Tensor[n] int64, rows of the holder's graph: the targets, then ring after ring.
        rings: how many nodes lie in the first ring (the targets), the first two, ..., all K + 1.
        edges: [n_K−1, n], those drawn into all rings but the outermost, ends as places in ``nodes``.
    """

    nodes: Tensor
    rings: tuple[int, ...]
    edges: Adjacency

    @property
    def num_targets(self) -> int:
        """T, the number of targets."""
        return self.rings[0]

    @property
    def edge_index(self) -> Tensor:
        """Tensor[2, E] int64, source and target as places in ``nodes``."""
        return self.edges.edge_index

    @property
    def edge_weight(self) -> Tensor | None:
        """Tensor[E], the edges' weights; None where all are 1."""
        return self.edges.edge_weight

    def layers(self, hops: int) -> Sequence[Adjacency]:
        """Return an adjacency for each of the K hops, the first and largest first; ``hops`` is K."""
        rings = zip(self.rings[-2::-1], self.rings[:0:-1], strict=True)
        return [self.edges.corner(targets, nodes) for targets, nodes in rings]


Edges = Adjacency | Neighbourhood
"""What a local model propagates over: a whole graph or a neighbourhood in it."""


class Sampler:
    """Draws neighbourhoods of some hops in one holder's graph, of all neighbours or at most ``fanout`` of each node."""

    def __init__(self, adjacency: Adjacency, hops: int, fanout: int | None) -> None:
        self.adjacency, self._hops = adjacency, hops
        self._fanout = np.iinfo(np.int64).max if fanout is None else fanout
        self._place = np.full(adjacency.num_nodes, -1, dtype=np.int32)

    def around(self, targets: Tensor, generator: torch.Generator | None) -> Neighbourhood:
        """Draw the K-hop neighbourhood of targets, int64 [T], distinct; all neighbours where ``generator`` is None."""
        whole, edges = self.adjacency, self.adjacency.incoming
        place, ring = self._place, targets.numpy()
        place[ring] = np.arange(len(ring))
        nodes, rings = [ring], [len(ring)]
        counts, boosts, drawn = list[np.ndarray](), [], []
        for _ in range(self._hops):
            picked, taken, boost = self._edges_into(ring, generator)
            found = edges.indices[picked].astype(np.int64)
            counts.append(taken)
            drawn.append(picked)
            boosts.append(boost)
            ring = _distinct(found[place[found] < 0])
            place[ring] = np.arange(rings[-1], rings[-1] + len(ring))
            nodes.append(ring)
            rings.append(rings[-1] + len(ring))
        rows = np.concatenate(nodes)
        chosen = np.concatenate([np.zeros(0, dtype=np.int64), *drawn])
        columns = place[edges.indices[chosen]]
        place[rows] = -1
        pointers = np.concatenate([[0], *counts]).cumsum()
        incoming = sp.csr_array((edges.data[chosen], columns, pointers), shape=(len(pointers) - 1, len(rows)))
        kinds, degrees = whole.kinds, whole.exact_degrees[rows]
        if kinds is not None:
            of_each = (whole.of_relation(relation.name).exact_degrees[rows] for relation in kinds.relations)
            kinds = Kinds(kinds.relations, kinds.places[chosen], tuple(of_each))
        boost = np.concatenate([np.zeros(0), *boosts])
        found = Adjacency(incoming, whole.dtype, degrees, kinds, whole.lengths[rows], boost)
        return Neighbourhood(torch.from_numpy(rows), tuple(rings), found)

    def blocks(self, rows: int = 1 << 14) -> Iterator[tuple[slice, Neighbourhood]]:
        """Yield the graph's nodes, ``rows`` at a time, as a slice and their neighbourhood of all neighbours."""
        total = self.adjacency.num_nodes
        for start in range(0, total, rows):
            stop = min(start + rows, total)
            yield slice(start, stop), self.around(torch.arange(start, stop), None)

    def _edges_into(
        self, ring: np.ndarray, generator: torch.Generator | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw edges into a ring's nodes: their places in ``incoming``; how many a node got; its degree over that."""
        pointers = self.adjacency.incoming.indptr
        starts = pointers[ring].astype(np.int64)
        degrees = pointers[ring + 1] - starts
        taken = degrees if generator is None else np.minimum(degrees, self._fanout)
        offsets = np.arange(taken.sum()) - np.repeat(taken.cumsum() - taken, taken)
        many = taken < degrees
        if generator is not None and many.any():
            offsets[np.repeat(many, taken)] = _without_replacement(degrees[many], self._fanout, generator).ravel()
        return np.repeat(starts, taken) + offsets, taken, degrees / np.maximum(taken, 1)


def _without_replacement(counts: np.ndarray, size: int, generator: torch.Generator) -> np.ndarray:
    """``size`` distinct numbers below each count (> ``size``), uniform: int64 [n, size] (Floyd's algorithm)."""
    uniform = torch.rand(size, len(counts), dtype=torch.float64, generator=generator).numpy()
    chosen = np.empty((size, len(counts)), dtype=np.int64)
    for index in range(size):
        last = counts - size + index
        drawn = np.minimum((uniform[index] * (last + 1)).astype(np.int64), last)
        chosen[index] = np.where((chosen[:index] == drawn).any(axis=0), last, drawn)
    return chosen.T


def _distinct(nodes: np.ndarray) -> np.ndarray:
    """Return the distinct ones of some nodes, sorted: as ``numpy.unique``, in a thirtieth of its time."""
    nodes = np.sort(nodes)
    first = np.ones(len(nodes), dtype=bool)
    np.not_equal(nodes[1:], nodes[:-1], out=first[1:])
    return nodes[first]
