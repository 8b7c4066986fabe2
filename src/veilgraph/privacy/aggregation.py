"""Noise in every hop: sums of neighbours' rows of length 1, each with Gaussian noise of its own (GAP).

What that costs is proven in ``hop_sensitivity``; here it is made exact. With g the grid of the noise, entries of rows
are multiples of g. What a row gives to a sum by a pair of weight w has entries w·x, rounded towards zero to multiples
of g: it hangs on that pair and that row alone, and lies between 0 and x, so it is never longer than the row and two
weights of a pair give what differs by no more. w is the sum of the pair's copies, each first at most 1 and a multiple
of 2^-32. Both sums are of multiples of a power of two, and so exact in float64 in whatever order, which hangs on other
edges: two sums that differ in one term differ by exactly that term.

Where sums are shortened to length B (unit ``node-edges``), that rounds once more. A shortened row is off by less than
√d·g + 2^-31·B from where the exact map, which brings no two rows further apart, takes it. So rows are not 1 long before
a hop but 1 − s, s = 2·√d·g + 2^-30·B, and a term of one row moves the shortened sum by at most (1 − s) + s. Where there
is so much noise that s ≥ 1, rows are zero: nothing but noise is released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import SecretSource
from veilgraph.privacy.mechanism import Mechanism, clip_to_grid

Then = Callable[[Tensor], Tensor]
"""Rows of the next hop, Tensor[N, d], of the sums that were released before, Tensor[N, k·d], and of nothing else that
is private."""

_COPIES: Final = 2.0**32
"""Of the weight of one copy of a pair, a 1 is so many."""
_LARGEST_WHOLE: Final = 2.0**52
_FREE_CELL: Final = 2.0**-40
"""Of rows in a release without noise, which protects nothing."""


def pair_matrix(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> sp.csr_array:
    """A of ``hop_sensitivity``: what is recorded from one node to another, as one weight of at most 1.

    Args:
        edge_index: Tensor[2, E] int64, source and target. Edges from a node to itself are left out.
        edge_weight: Tensor[E], at least 0, or None for weight 1. Copies of an edge add up, each to 2^-32.
        num_nodes: N.

    Returns:
        [N, N] CSR float64, entry (target, source) in [0, 1].
    """
    source, target = edge_index.numpy()
    weight = np.ones(len(source)) if edge_weight is None else edge_weight.double().numpy()
    weight = np.floor(np.minimum(weight, 1.0) * _COPIES) / _COPIES
    between = source != target
    matrix = sp.coo_array((weight[between], (target[between], source[between])), (num_nodes, num_nodes)).tocsr()
    matrix.data = np.minimum(matrix.data, 1.0)
    return matrix


def most_neighbours(edge_index: Tensor, num_nodes: int) -> int:
    """The most nodes that any node has an edge with, to it or from it, itself not counted.

    Args:
        edge_index: Tensor[2, E] int64.
        num_nodes: N.
    """
    between = edge_index[:, edge_index[0] != edge_index[1]]
    low, high = between.aminmax(dim=0)
    pairs = torch.unique(torch.stack([low, high]), dim=1)
    return int(torch.bincount(pairs.flatten(), minlength=max(1, num_nodes)).max())


class NoisySums:
    """A holder's release with noise in every hop.

    Args:
        pairs: of ``pair_matrix``, [N, N].
        hops: K.
        mechanism: Gaussian noise over a clip of 1; None for none.
        sum_clip: B; None: sums are as long as they are.
        own_length: λ of ``hop_sensitivity``: of own rows, which are released too, noised as the sums are; 0: are not.

    Raises:
        ConfigError: there is so little noise that sums of N rows on its grid are not exact.
    """

    def __init__(
        self,
        pairs: sp.csr_array,
        hops: int,
        mechanism: Mechanism | None,
        sum_clip: float | None,
        own_length: float = 1.0,
    ) -> None:
        self._own_length = own_length
        self._hops, self._mechanism, self._sum_clip = hops, mechanism, sum_clip
        entries = pairs.tocoo()
        whole = entries.data == 1.0
        places = entries.row[whole], entries.col[whole]
        self._whole = sp.coo_array((entries.data[whole], places), pairs.shape).tocsr()
        self._target, self._source, self._weight = entries.row[~whole], entries.col[~whole], entries.data[~whole]
        self._cell = _FREE_CELL if mechanism is None else mechanism.cell
        if mechanism is not None and pairs.shape[0] / self._cell > _LARGEST_WHOLE:
            deviation = math.sqrt(mechanism.variance)
            raise ConfigError(
                f"privacy.noise_multiplier={deviation:.3g}: too little noise for sums of up to {pairs.shape[0]} rows "
                f"to be exact; take at least {2 * pairs.shape[0] / _LARGEST_WHOLE * 2**20:.3g}, or a smaller ε"
            )

    def release(self, rows: Tensor, source: SecretSource, then: Then | None = None) -> Tensor:
        """Y_0, …, Y_K side by side; where own rows are not released from Y_1 on.

        Args:
            rows: Tensor[N, d], each made of one node's features.
            source: of the noise.
            then: makes X_k of Y_1, …, Y_k; None: it is Y_k itself.

        Returns:
            Tensor[N, (K + 1)·d] or [N, K·d] float64, multiples of the noise's grid.

        Raises:
            RangeOverflow: an entry is not finite.
        """
        released = [self._noised(self._own(rows), source)] if self._own_length else []
        own = len(released)
        for hop in range(self._hops):
            before = rows if hop == 0 else self._next(released[own:], then)
            released.append(self._noised(self._summed(self._of_length_1(before)), source))
        return torch.cat(released, dim=1)

    def clean(self, rows: Tensor, released: Tensor, then: Then | None = None) -> Tensor:
        """What the noise was added to, of the nodes whose neighbours' rows were all released.

        Args:
            rows: Tensor[N, d], as released.
            released: Tensor[C, w], of the first C nodes, as ``release`` gave them.
            then: as it was released with; of all nodes, C = N.

        Returns:
            Tensor[C, w] float64; only right at nodes without neighbours beyond the first C.
        """
        count, width = len(released), rows.shape[1]
        first = self._of_length_1(rows)
        found, before = [self._own(rows)[:count]] if self._own_length else [], first
        blocks, own = torch.split(released, width, dim=1), len(found)
        for hop in range(own, len(blocks)):
            found.append(self._summed(before)[:count])
            before = torch.zeros_like(first)
            before[:count] = self._of_length_1(self._next(blocks[own : hop + 1], then))
        return torch.cat(found, dim=1)

    @staticmethod
    def _next(released: Sequence[Tensor], then: Then | None) -> Tensor:
        return released[-1] if then is None else then(torch.cat(list(released), dim=1))

    def _noised(self, values: Tensor, source: SecretSource) -> Tensor:
        return values if self._mechanism is None else values + self._mechanism.draw(tuple(values.shape), source)

    def _own(self, rows: Tensor) -> Tensor:
        """λX_0."""
        return self._scaled(rows, self._own_length)

    def _of_length_1(self, rows: Tensor) -> Tensor:
        """Rows scaled to length 1 less the slack, on the grid; zero rows stay zero."""
        return self._scaled(rows, self._length(rows.shape[1]))

    def _scaled(self, rows: Tensor, length: float) -> Tensor:
        rows = rows.double()
        if length == 0:
            return torch.zeros_like(rows)
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        scaled = torch.where(lengths == 0, 0.0, 2 * length * rows / lengths)  # longer than the clip, which shortens it
        return clip_to_grid(scaled, length, 2, self._cell)

    def _length(self, width: int) -> float:
        if self._sum_clip is None:
            return 1.0
        return max(0.0, 1.0 - 2 * math.sqrt(width) * self._cell - math.ldexp(self._sum_clip, -30))

    def _summed(self, rows: Tensor) -> Tensor:
        values = rows.numpy()
        sums = self._whole @ values
        for column in range(values.shape[1] if len(self._weight) else 0):
            given = np.trunc(self._weight * values[self._source, column] / self._cell) * self._cell
            sums[:, column] += np.bincount(self._target, given, len(sums))
        found = torch.from_numpy(sums)
        return found if self._sum_clip is None else clip_to_grid(found, self._sum_clip, 2, self._cell)
