"""What holders put into a sealed job with noise on training records, and the noise: docs/explanation/sealed.md.

The label holder A has a model of its own, and residuals r_v, a vector for each training node v: its one-hot label less
probabilities of a model that was fitted without v. Holder i has rows x_v, made of v's columns alone. All compute

    W_i = Σ_v φ(x_v)·r_vᵀ + noise   over training nodes,      z_u = Σ_i φ(x_u)·W_i,

W_i stays hidden, and z_u is opened to A where u is not trained on. φ shortens a row to length 1 where it is longer, and
for up to ``MOST_WHITENED`` columns

    φ(x) = shortened(x·(G_i / N)^(−1/2) / √d)      G_i = Σ_u x_u·x_uᵀ + noise   over all nodes,

with G_i's small eigenvalues raised to those of its noise. G_i is made at holder i and never leaves it. With more
columns rows are divided by their length, and there is no G_i.

*One training record* is all columns that one holder i has of one training node v: there or zero. Nothing else of
holder i's enters with v's columns: z_v is not opened, and scores of other nodes are made of their own rows. A zero row
has φ(0) = 0. So G_i moves by x_v·x_vᵀ, whose entries have the length |x_v|² ≤ 1, and W_i, given G_i, by
φ(x_v)·r_vᵀ, whose entries have the length |φ(x_v)|·|r_v| ≤ **1**. Gaussian noise of deviations σ/√s on G_i and
σ/√(1 − s) on W_i makes both together tell as much as one release of sensitivity 1 and deviation σ, as 1/σ² = s/σ² +
(1 − s)/σ²; the second may depend on the first (Dong, Roth & Su 2022). A replaced record is twice as much, in 1/σ.

Rows and residuals are rounded towards zero, to a grid on which all sums are multiples of the noise's own step. So low
bits of a noisy sum say nothing (``privacy.noise``), and shortened rows stay short. Rounding adds at most 5·10^-10 to ε
for each noisy number, 2·10^-5 for 256 columns and two classes; no ledger counts that. The holder draws the noise
itself: the dealer does not know it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from veilgraph.core.secrets import SecretSource
from veilgraph.paradigms.sealed.plan import MOST_WHITENED
from veilgraph.privacy.mechanism import clip_to_grid
from veilgraph.privacy.noise import fine_gaussian, granularity
from veilgraph.privacy.plan import RecordPlan

_OF_RESIDUALS: Final = 0.4  # of the bits of a product, those of residuals
_STEP_OF_NO_NOISE: Final = 2.0**-20
_FAR: Final = 40.0  # deviations


@dataclass(frozen=True)
class RecordNoise:
    """Noise and roundings of a holder with ``columns`` columns.

    Attributes:
        multiplier: σ; 0: no noise.
        share: s, what second moments cost of 1/σ².
    """

    multiplier: float
    columns: int
    share: float = RecordPlan.share

    @property
    def whitens(self) -> bool:
        """Whether the holder makes second moments of its columns."""
        return self.columns <= MOST_WHITENED

    @property
    def of_moments(self) -> float:
        """Deviation of the noise on entries of G."""
        return self.multiplier / math.sqrt(self.share)

    @property
    def of_sums(self) -> float:
        """Deviation of the noise on entries of W."""
        return self.multiplier / math.sqrt(1 - self.share) if self.whitens else self.multiplier

    @property
    def bits(self) -> int:
        """Fractional bits of W, of which ``residual_bits`` are the residuals' and ``row_bits`` the rows'."""
        return _bits_of(self.of_sums)


def _bits_of(deviation: float) -> int:
    """Fractional bits of sums to which noise of such a deviation is added."""
    step = _STEP_OF_NO_NOISE if deviation == 0 else granularity(deviation)
    return -round(math.log2(step))


def residual_bits(multiplier: float) -> int:
    """Fractional bits of residuals, the same for all holders: of the largest noise that any of them adds."""
    return int(_OF_RESIDUALS * min(_bits_of(multiplier), _bits_of(multiplier / math.sqrt(1 - RecordPlan.share))))


def row_bits(noise: RecordNoise) -> int:
    """Fractional bits of a holder's rows: with the residuals' they are the noise's."""
    return noise.bits - residual_bits(noise.multiplier)


def moments(rows: Tensor, noise: RecordNoise) -> Tensor:
    """Sum x·xᵀ over short rows [N, d], on the grid of the noise on it: float64 [d, d]."""
    exact = clip_to_grid(rows, 1.0, 2, 2.0 ** -(_bits_of(noise.of_moments) // 2))
    return exact.T @ exact


def whitening(rows: Tensor, noise: RecordNoise, source: SecretSource) -> Tensor:
    """Make (G/N)^(−1/2)/√d of short rows [N, d] with noise on G: float64 [d, d]; the identity where there is no G."""
    nodes, columns = rows.shape
    if not noise.whitens:
        return torch.eye(columns, dtype=torch.float64)
    total, least = moments(rows, noise), 1e-3 * nodes / max(1, columns)
    if noise.multiplier:
        drawn = fine_gaussian((columns, columns), noise.of_moments, source)
        total += drawn.triu() + drawn.triu(1).T
        least = max(least, 2 * noise.of_moments * math.sqrt(columns))
    values, vectors = torch.linalg.eigh(total)
    roots = (values.clamp_min(least) * columns / nodes).rsqrt()
    found: Tensor = (vectors * roots) @ vectors.T
    return found


def feature_rows(rows: Tensor, whitened_by: Tensor, noise: RecordNoise) -> Tensor:
    """φ of short rows [N, d], no longer than 1, on the grid of the holder's rows: float64 [N, d]."""
    made = rows @ whitened_by if noise.whitens else rows
    return clip_to_grid(made, 1.0, 2, 2.0 ** -row_bits(noise))


def noise_of_sums(noise: RecordNoise, outputs: int, source: SecretSource) -> Tensor:
    """Draw the noise of W: float64 [d, outputs]."""
    if not noise.multiplier:
        return torch.zeros((noise.columns, outputs), dtype=torch.float64)
    return fine_gaussian((noise.columns, outputs), noise.of_sums, source)


def outputs_of(classes: int) -> int:
    """Number of scores of a node: one of two classes, else one for each."""
    return 1 if classes == 2 else classes


def residuals_of(likely: Tensor, labels: Tensor, multiplier: float) -> Tensor:
    """One-hot labels less probabilities [T, C], shortened to length 1, on their grid: float64 [T, outputs]."""
    found = nn.functional.one_hot(labels, likely.shape[1]).to(torch.float64) - likely
    found = found if outputs_of(likely.shape[1]) > 1 else found[:, 1:]
    return clip_to_grid(found, 1.0, 2, 2.0 ** -residual_bits(multiplier))


def halvings(noises: Sequence[RecordNoise], nodes: int) -> int:
    """How often sums over at most N nodes are halved, so that no row of length 1 makes a score above 1.

    A column of noise is longer than σ·(√d + 40) with a chance below e^−799 (Laurent & Massart 2000, lemma 1).
    """
    longest = (each.of_sums * (math.sqrt(each.columns) + _FAR) for each in noises)
    return max(1, math.ceil(math.log2(nodes + max(longest))))
