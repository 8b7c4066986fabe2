"""Embeddings without weights, and how far one node's features or one edge can move them.

h^0(v) is row v of the features under a fixed random projection, of length 1 (or 0). With B = A/D, where A holds the
pairs that ``bound_degrees`` keeps, at most D of a node, the embeddings are

    H = (1/K)·(B·h^0 + B²·h^0 + … + B^K·h^0),      or h^0 itself where K = 0.

A node's own row is in its embedding only by way of back and forth (B² and on). D is a public setting, so that the sums
are divided by the same number whatever the graph. Row sums and column sums of B are at most 1, so its spectral norm is
at most 1, and every row of B^k·h^0 has length 1 at most, hence every row of H.

*One node's features*, the edges being the same: one row of h^0 moves by at most 2. A column of B has at most D entries
of 1/D, so its length is at most 1/√D; B^k with k ≥ 1 moves the whole matrix by at most ‖B‖^(k−1)·2/√D. So H moves by at
most **2/√D** in the Frobenius norm (2 where K = 0).

*One edge*, everything that is recorded between two nodes a and b, added or removed; h^0 is the same. At most three
pairs differ in being kept: {a, b}, and {a, c}, {b, d} the other way round (``bound_degrees``). With E = B − B', rows
of Y of length 1 at most, and c ≠ d, the rows of E·Y are at most 2/D, 2/D, 1/D and 1/D long at a, b, c and d, and where
c = d they are 2/D at each of a, b and c: ‖E·Y‖ ≤ √12/D. Then B^k − B'^k = Σ_j B^j·E·B'^(k−1−j), a sum of k terms of
‖B^j‖·‖E·(B'^(k−1−j)·h^0)‖ ≤ √12/D each. So H moves by at most **√3·(K+1)/D** (none where K = 0): √12/D·(1/K)·Σ_k k.

What is noised is H on the grid of the noise, computed in float64: entries move by one cell more by rounding towards
zero, and by the errors of the sums. ``Sensitivity.on_grid`` counts both.

Source: Sajadmanesh et al. 2023 (GAP, sums of rows of length 1 under noise); the bounds are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.propagate import Adjacency
from veilgraph.privacy.aggregation import bound_degrees
from veilgraph_embeddings.world import both_ways, to_scipy

_UNIT: Final = 2.0**-52
_SHORTEST: Final = 1e-12


def first_rows_of(features: Tensor, dim: int, streams: LearningStreams) -> Tensor:
    """h^0: every row by itself under a random projection that the job's seed fixes, then of length 1.

    Args:
        features: Tensor[N, F].
        dim: d.
        streams: of the job.

    Returns:
        Tensor[N, d] float64; a row without anything stays zero.
    """
    generator = streams.generator("projection")
    projection = torch.randn(features.shape[1], dim, dtype=torch.float64, generator=generator)
    projected = torch.from_numpy(to_scipy(features).astype("float64") @ projection.numpy())
    return functional.normalize(projected, dim=1, eps=_SHORTEST)


def aggregated(first: Tensor, pairs: Tensor, hops: int, bound: int) -> Tensor:
    """H of this file's head.

    Args:
        first: h^0, Tensor[N, d] float64, rows of length 1 at most.
        pairs: Tensor[2, E], every edge once.
        hops: K.
        bound: D.

    Returns:
        Tensor[N, d] float64, rows of length 1 at most.
    """
    if hops == 0:
        return first
    edge_index = both_ways(pairs)
    kept = edge_index[:, bound_degrees(edge_index, len(first), bound)]
    adjacency = Adjacency.of_edges(kept, None, len(first), torch.float64)
    h, total = first, torch.zeros_like(first)
    for _ in range(hops):
        h = adjacency.sum(h) / bound
        total = total + h
    return total / hops


@dataclass(frozen=True)
class Sensitivity:
    """How far H moves, in the Frobenius norm.

    Attributes:
        node: when one node has other features.
        edge: when one edge is added or removed.
    """

    node: float
    edge: float

    @classmethod
    def of(cls, hops: int, bound: int) -> Sensitivity:
        """That of this file's head, of exact numbers."""
        if hops == 0:
            return cls(2.0, 0.0)
        return cls(2 / math.sqrt(bound), math.sqrt(3) * (hops + 1) / bound)

    def on_grid(self, cell: float, shape: tuple[int, int], hops: int, bound: int) -> Sensitivity:
        """With what rounding to a grid of ``cell``, and float64, add to it.

        A sum of at most D numbers of 1 at most is off by D/2 units of 2^-52; K of them, each of what the one before
        gave, with the lengths before and the clip after, by less than K·(D/2 + 8). Twice that, for both worlds.
        """
        slack = (cell + max(hops, 1) * (bound + 16) * _UNIT) * math.sqrt(shape[0] * shape[1])
        return Sensitivity(self.node + slack, self.edge + slack if self.edge else 0.0)
