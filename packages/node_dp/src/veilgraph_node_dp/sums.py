"""Sums of neighbours' rows of length 1 over a learner's edges, with Gaussian noise of their own in every hop (GAP).

What that costs is in ``settings``; here it is made exact. Rows, and what each gives to a sum, are multiples of
the noise's grid, so that two sums which differ in one term differ by exactly that term:
docs/explanation/proofs.md#sums-that-are-exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import SecretSource
from veilgraph.privacy.mechanism import Gaussian, clip_to_grid

# Rows of the next hop, Tensor[N, d], of the sums that were released before, Tensor[N, k·d], and of nothing else that
# is private.
Then = Callable[[Tensor], Tensor]

_COPIES: Final = 2.0**32  # of the weight of one copy of a pair, a 1 is so many
_LARGEST_WHOLE: Final = 2.0**52


def pair_matrix(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> sp.csr_array:
    """Return the weighted adjacency A of ``settings.release_plan``, [N, N] CSR float64, entries up to 1, no loops.

    Entry (target, source) sums the copies of an edge, each weighing ``edge_weight`` ≥ 0, or 1, on a grid of 2^-32.
    """
    source, target = edge_index.numpy()
    weight = np.ones(len(source)) if edge_weight is None else edge_weight.double().numpy()
    weight = np.floor(np.minimum(weight, 1.0) * _COPIES) / _COPIES
    between = source != target
    matrix = sp.coo_array((weight[between], (target[between], source[between])), (num_nodes, num_nodes)).tocsr()
    matrix.data = np.minimum(matrix.data, 1.0)
    return matrix


@dataclass(frozen=True)
class NoisySums:
    """Sums over pairs of ``pair_matrix`` with noise in each of K ``hops``.

    ``mechanism``: Gaussian noise over a clip of 1. ``sum_clip``: B; None: sums are as long as they are.
    """

    hops: int
    mechanism: Gaussian
    sum_clip: float | None

    def release(self, pairs: sp.csr_array, rows: Tensor, source: SecretSource, then: Then) -> Tensor:
        """Return noisy sums Y_1, …, Y_K over ``pairs``, [N, N], side by side: Tensor[N, K·d] float64, on a grid.

        ``rows`` are X_0, Tensor[N, d], each scaled to length 1; ``then`` makes X_k of Y_1, …, Y_k. Raises
        ``ConfigError`` if so little noise makes sums on its grid inexact, ``RangeOverflow`` for an infinite entry.
        """
        nodes = pairs.shape[0]
        if nodes / self.mechanism.cell > _LARGEST_WHOLE:
            raise ConfigError(
                f"privacy.epsilon_total: noise of {self.mechanism.scale:.3g} is too little for sums of up to {nodes} "
                f"rows to be exact, which takes {2 * nodes / _LARGEST_WHOLE * 2**20:.3g}; lower it"
            )
        split, released = _Split.of(pairs), list[Tensor]()
        for _ in range(self.hops):
            sums = self._sum_rows(split, self._unit_rows(then(torch.cat(released, dim=1)) if released else rows))
            released.append(sums + self.mechanism.draw(tuple(sums.shape), source))
        return torch.cat(released, dim=1)

    def _unit_rows(self, rows: Tensor) -> Tensor:
        """Scale rows to length 1 on the noise's grid, a slack less if sums are clipped; zero rows stay zero."""
        slack, cell = 0.0, self.mechanism.cell
        if self.sum_clip is not None:
            slack = 2 * math.sqrt(rows.shape[1]) * cell + math.ldexp(self.sum_clip, -30)
        length = max(0.0, 1.0 - slack)
        rows = rows.double()
        if length == 0:
            return torch.zeros_like(rows)
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        scaled = torch.where(lengths == 0, 0.0, 2 * length * rows / lengths)  # longer than the clip, which shortens it
        return clip_to_grid(scaled, length, 2, cell)

    def _sum_rows(self, split: _Split, rows: Tensor) -> Tensor:
        """Sum each node's neighbours' rows, [N, d], exactly on the grid, and clip the sums to ``sum_clip`` if set."""
        values, cell = rows.numpy(), self.mechanism.cell
        sums = split.whole @ values
        for column in range(values.shape[1] if len(split.weight) else 0):
            given = np.trunc(split.weight * values[split.source, column] / cell) * cell
            sums[:, column] += np.bincount(split.target, given, len(sums))
        found = torch.from_numpy(sums)
        return found if self.sum_clip is None else clip_to_grid(found, self.sum_clip, 2, cell)


class _Split(NamedTuple):
    """Pairs of weight 1, whose rows are summed as they are, [N, N], and the others, whose rows are scaled first."""

    whole: sp.csr_array
    target: NDArray[np.int32]
    source: NDArray[np.int32]
    weight: NDArray[np.float64]

    @classmethod
    def of(cls, pairs: sp.csr_array) -> _Split:
        entries = pairs.tocoo()
        is_whole = entries.data == 1.0
        places = entries.row[is_whole], entries.col[is_whole]
        whole = sp.coo_array((entries.data[is_whole], places), pairs.shape).tocsr()
        return cls(whole, entries.row[~is_whole], entries.col[~is_whole], entries.data[~is_whole])
