"""A network of one holder's own columns and of noisy rows that others released, side by side.

One branch for each block, joined and classified, as in GAP's classification module (Sajadmanesh, Shamsabadi, Bellet &
Gatica-Perez 2023). Rows are drawn towards zero by what their noise must have added (positive-part James-Stein), so
that a row that is nothing but noise is zeros; columns without noise are whitened, for others hide small ones. Sums of
few columns lie along few axes, and noise along the others is taken off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilgraph.nn.dropout import dropout
from veilgraph.nn.linear import linear
from veilgraph.nn.propagate import SparseMatrix

WIDTH: Final = 64
_DROPOUT: Final = 0.5
_FARTHEST: Final = 4.0
"""Standard deviations: a whitened value is no further out."""
_SMALLEST_VARIANCE: Final = 1e-6
"""Of the largest one: directions with less are rounding, and are left out."""


@torch.no_grad()
def shrunk(rows: Tensor, noise_variance: float) -> Tensor:
    """Rows scaled to length 1, times what share of their squared length the noise does not explain.

    Args:
        rows: Tensor[N, d], noisy.
        noise_variance: of the noise on one entry.

    Returns:
        Tensor[N, d]; zeros where the noise explains all of a row's length.
    """
    squares = rows.square().sum(dim=1, keepdim=True).clamp_min(1e-30)
    kept = (1 - rows.shape[1] * noise_variance / squares).clamp_min(0)
    return rows / squares.sqrt() * kept


class Whitening(nn.Module):
    """Columns without means and correlations, each of variance 1, and cut off at four standard deviations.

    Along the columns' own axes as nearly as that can be (ZCA), so that a little change of the data changes little.

    Args:
        width: d.
        dtype: of the rows.
    """

    mean: Tensor
    matrix: Tensor

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width, dtype=dtype))
        self.register_buffer("matrix", torch.eye(width, dtype=dtype))

    @torch.no_grad()
    def learn(self, rows: Tensor) -> None:
        """Takes means and covariance of the rows, Tensor[N, d]; later rows are whitened by the same."""
        wide = rows.double()
        mean = wide.mean(dim=0)
        centred = wide - mean
        variances, axes = torch.linalg.eigh(centred.T @ centred / len(rows))
        there = variances > max(_SMALLEST_VARIANCE * float(variances.max()), 1e-30)
        scales = torch.where(there, variances.clamp_min(1e-30).rsqrt(), 0.0)
        self.mean.copy_(mean)
        self.matrix.copy_((axes * scales) @ axes.T)

    def forward(self, rows: Tensor) -> Tensor:
        """Tensor[N, d] to Tensor[N, d]."""
        found: Tensor = ((rows - self.mean) @ self.matrix).clamp(-_FARTHEST, _FARTHEST)
        return found


class Axes(nn.Module):
    """The axes along which noisy rows vary by more than noise alone would.

    Of N rows of d entries of noise the largest axis has squares that sum to no more than σ²·(m + 2s) in 99 of 100
    cases, with m = (√N + √d)² and s = (√N + √d)·(1/√N + 1/√d)^⅓ (Johnstone 2001, *On the distribution of the largest
    eigenvalue in principal components analysis*, theorem 1.1).

    Args:
        width: d.
        dtype: of the rows.
    """

    matrix: Tensor

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(width, dtype=dtype))

    @torch.no_grad()
    def learn(self, rows: Tensor, noise_variance: float) -> None:
        """Takes them from the rows, Tensor[N, d]; later rows are seen along the same."""
        wide = rows.double()
        squares, axes = torch.linalg.eigh(wide.T @ wide)
        high, broad = math.sqrt(len(rows)), math.sqrt(rows.shape[1])
        by_noise = noise_variance * ((high + broad) ** 2 + 2 * (high + broad) * (1 / high + 1 / broad) ** (1 / 3))
        found = axes[:, squares > max(by_noise, _SMALLEST_VARIANCE * float(squares.max()))]
        self.matrix.copy_(found @ found.T)

    @property
    def share(self) -> float:
        """How many of the d axes these are, in parts of d: the share of the noise that is left."""
        return float(self.matrix.trace()) / len(self.matrix)

    def forward(self, rows: Tensor) -> Tensor:
        """Rows without what lies along other axes: Tensor[N, d] to Tensor[N, d]."""
        found: Tensor = rows @ self.matrix
        return found


class JointNetwork(nn.Module):
    """Logits of nodes, of their own columns and of blocks of other ones.

    A branch selu(block · W + b) of ``WIDTH`` for the own columns and for each block; all of them side by side, then one
    hidden layer, then the logits. Call it inside ``LearningStreams.global_generator``.

    Args:
        columns: F, own ones.
        blocks: width of each block.
        classes: C.
        dtype: of everything.
    """

    def __init__(self, columns: int, blocks: Sequence[int], classes: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.own = linear(columns, WIDTH, bias=True)
        self.blocks = nn.ModuleList(linear(width, WIDTH, bias=True) for width in blocks)
        self.hidden = linear(WIDTH * (1 + len(blocks)), WIDTH, bias=True)
        self.output = linear(WIDTH, classes, bias=True)
        self.to(dtype)

    def forward(self, own: SparseMatrix, blocks: Sequence[Tensor], generator: torch.Generator | None) -> Tensor:
        """Logits.

        Args:
            own: [n, F], of n nodes.
            blocks: Tensor[n, width] each, of the same nodes.
            generator: source of dropout; None means evaluation.

        Returns:
            Tensor[n, C].
        """
        branches = [own.times(self.own.weight.T) + self.own.bias]
        branches += [branch(block) for branch, block in zip(self.blocks, blocks, strict=True)]
        joined = dropout(functional.selu(torch.cat(branches, dim=1)), _DROPOUT, generator)
        hidden = dropout(functional.selu(self.hidden(joined)), _DROPOUT, generator)
        logits: Tensor = self.output(hidden)
        return logits
