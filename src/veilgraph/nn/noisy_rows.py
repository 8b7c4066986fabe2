"""Learning from noisy rows that others released: what they say about classes, and a network that has them as inputs.

A network that is trained on noisy rows learns the noise. In ``class_evidence`` the label holder's own classifier, which
has seen none of them, gives every node a probability of each class; with these as weights the rows of all N nodes, not
of the few with labels, tell where each class lies, and Bayes' rule adds the two up. The noise's variance is known, and
a class mean is drawn towards the overall mean by as much as noise alone would have moved it (positive-part
James-Stein): the more noise, the less is said, and with nothing but noise, nothing.

``JointNetwork`` has one branch for each block of rows, joined and classified, as in GAP's classification module
(Sajadmanesh, Shamsabadi, Bellet & Gatica-Perez 2023). Noisy rows are drawn towards zero by what their noise must have
added; columns without noise are whitened, for others hide small ones. Sums of few columns lie along few axes, and noise
along the others is taken off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilgraph.nn.layers import dropout, linear
from veilgraph.nn.propagate import SparseMatrix

_SCALES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
_SMALLEST_EIGENVALUE = 1e-3  # of the mean one: fewer nodes than columns leave directions without any variance


@torch.no_grad()
def calibrated(logits: Tensor, labels: Tensor, judged: Tensor) -> Tensor:
    """Log probabilities of logits [N, C] times one of nine factors from 1/4 to 4 (temperature scaling, Guo et al.
    2017).

    ``judged``: Tensor[N] bool, not trained on: there they are neither over- nor underconfident.
    """
    losses = {scale: float(functional.cross_entropy(scale * logits[judged], labels[judged])) for scale in _SCALES}
    best: float = min(losses, key=losses.__getitem__)
    return (best * logits).log_softmax(dim=1)


@torch.no_grad()
def class_evidence(rows: Tensor, opinion: Tensor, noise_variance: Tensor) -> Tensor:
    """Log p(row | class), up to what is the same for all classes: Tensor[N, C]; zeros where noise explains all means.

    Linear discriminant analysis with the classes' shared covariance (Fisher 1936), of noisy rows [N, d], weighed by
    ``opinion`` [N, C]. Columns of one ``noise_variance``, Tensor[d], are drawn towards the overall mean together.
    """
    centred, weights = (rows - rows.mean(dim=0)).double(), opinion.double()
    variances = noise_variance.double().clone()
    groups = [variances == value for value in sorted(set(variances.tolist()))]
    for alike in groups if len(groups) > 1 else ():  # of one size, or the largest would hide the others' eigenvalues
        size = centred[:, alike].square().mean().clamp_min(1e-300)
        centred[:, alike] /= size.sqrt()
        variances[alike] /= size
    sizes = weights.sum(dim=0).clamp_min(1e-12)
    means = (weights.T @ centred) / sizes[:, None]
    spread = weights.square().sum(dim=0) / sizes.square()
    for alike in groups:
        by_noise = variances[alike].sum() * spread
        lengths = means[:, alike].square().sum(dim=1).clamp_min(1e-300)
        means[:, alike] *= (1 - by_noise / lengths).clamp_min(0)[:, None]
    within = (centred.T @ centred) / len(rows) - (means.T * (sizes / len(rows))) @ means
    eigenvalues, axes = torch.linalg.eigh(within)
    smallest = max(float(variances.min()) / 2, _SMALLEST_EIGENVALUE * float(eigenvalues.clamp_min(0).mean()), 1e-30)
    directions: Tensor = means @ (axes / eigenvalues.clamp_min(smallest)) @ axes.T
    evidence: Tensor = centred @ directions.T - (directions * means).sum(dim=1) / 2
    return evidence.to(rows.dtype)


WIDTH: Final = 64
_DROPOUT: Final = 0.5
_FARTHEST: Final = 4.0  # standard deviations: a whitened value is no further out
_SMALLEST_VARIANCE: Final = 1e-6  # of the largest one: directions with less are rounding, and are left out


@torch.no_grad()
def shrunk(rows: Tensor, noise_variance: float) -> Tensor:
    """Rows [N, d] of length 1, times what share of squared length noise, of an entry's variance, leaves; or zeros."""
    squares = rows.square().sum(dim=1, keepdim=True).clamp_min(1e-30)
    kept = (1 - rows.shape[1] * noise_variance / squares).clamp_min(0)
    return rows / squares.sqrt() * kept


class Whitening(nn.Module):
    """Columns without means and correlations, of variance 1, cut off at four deviations, near their own axes (ZCA)."""

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
    """Logits of nodes, of their own columns and of ``blocks`` of other ones, by width.

    A branch selu(block · W + b) of ``WIDTH`` for the own columns and for each block; all of them side by side, then one
    hidden layer, then the logits. Call it inside ``LearningStreams.global_generator``.
    """

    def __init__(self, columns: int, blocks: Sequence[int], classes: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.own = linear(columns, WIDTH, bias=True)
        self.blocks = nn.ModuleList(linear(width, WIDTH, bias=True) for width in blocks)
        self.hidden = linear(WIDTH * (1 + len(blocks)), WIDTH, bias=True)
        self.output = linear(WIDTH, classes, bias=True)
        self.to(dtype)

    def forward(self, own: SparseMatrix, blocks: Sequence[Tensor], generator: torch.Generator | None) -> Tensor:
        """Logits [n, C], of own columns [n, F] and blocks [n, width] of the same n nodes; None means evaluation."""
        branches = [own.times(self.own.weight.T) + self.own.bias]
        branches += [branch(block) for branch, block in zip(self.blocks, blocks, strict=True)]
        joined = dropout(functional.selu(torch.cat(branches, dim=1)), _DROPOUT, generator)
        hidden = dropout(functional.selu(self.hidden(joined)), _DROPOUT, generator)
        logits: Tensor = self.output(hidden)
        return logits
