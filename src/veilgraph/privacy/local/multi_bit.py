"""The multi-bit mechanism: of m randomly chosen features one biased bit each, of the others nothing.

Source: Sajadmanesh & Gatica-Perez, "Locally private graph neural networks", 2020: Algorithm 1, Theorem 3.1 (ε) and
Proposition 3.5 (m, corrected: docs/errata.md). Its probabilities are put on the grid of ``chance``, where the theorem
holds for the program:

An output y has the chosen set S as its non-zero entries, and S does not depend on the input. So
P(y | x) = P(S)·∏_{i ∈ S} T_i/G or (G − T_i)/G, with an integer threshold L ≤ T_i ≤ G − L for every input, and
L ≥ G/(e^{ε/m} + 1). Each factor differs by at most e^{ε/m} between two inputs, and their product by at most e^ε,
exactly; with equality up to L's rounding where every chosen feature goes from α to β.

T_i is L + (x_i − α)/(β − α)·(G − 2L) rounded to an integer, so E[2t_i − 1] = (2(x_i − α)/(β − α) − 1)·(1 − 2L/G)
within 2^-53. With 1 − 2L/G in place of (e^{ε/m} − 1)/(e^{ε/m} + 1), which it equals but for L's rounding, the
paper's rectification is unbiased on the grid, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.privacy.event import LocalEvent
from veilgraph.privacy.local.chance import FEWEST_STEPS, GRID, least_cells, random_columns, uniform
from veilgraph.privacy.local.features import FeatureMechanism, check_whole, row_blocks
from veilgraph.privacy.local.settings import FeatureReleaseSettings

SPARSE_FROM = 16
"""At one chosen feature in so many the sparse layout takes less memory: 12 bytes each, against one for every entry."""

PIECE = 1 << 15
"""Entries perturbed at once: temporaries stay in the cache, and torch on one thread, which on a busy machine is many
times faster than threads that wait for each other at every small step."""

SAMPLED_PIECE = 1 << 22  # drawing sets takes m steps a block, so fewer blocks are faster


_BEST_SHARE: Final = 2.177318984
"""ε/m with the least variance over real m: sinh(ε/m) = 2·ε/m."""


def best_sample_size(epsilon: float, features: int) -> int:
    """Return m*, the number of sampled features with the least variance, from 1 to d.

    The variance of a feature grows with coth²(ε/2m)/m, which has one minimum over real m. So m* is one of the two
    integers beside it; Proposition 3.5 takes the lower one always.
    """
    below = max(1, math.floor(min(features, epsilon / _BEST_SHARE)))
    return min((below, min(features, below + 1)), key=lambda m: 1 / (m * math.tanh(epsilon / (2 * m)) ** 2))


@dataclass(frozen=True)
class MultiBit(FeatureMechanism):
    """x*_i = ±1 for m features chosen at random, each with ε/m, and 0 for the others.

    ``release`` returns values in {−1, 0, 1}: where m ≤ d/16 a sparse_csr tensor of float32, to multiply weights with as
    it is; else a dense one of int8.

    Args:
        epsilon: ε of one node's release, all its features together.
        low: α, the least value a feature may have.
        high: β, the largest.
        features: d, the number of features of a node.
        sampled: m in [1, d]; None for m*.

    Raises:
        ConfigError: a parameter is out of range.
    """

    has_sampled: ClassVar[bool] = True
    sampled: int | None = None

    @classmethod
    def of(cls, settings: FeatureReleaseSettings, features: int) -> MultiBit:
        """See ``FeatureMechanism.of``."""
        return MultiBit(settings.epsilon, settings.low, settings.high, features, settings.sampled)

    def __post_init__(self) -> None:
        super().__post_init__()
        best = best_sample_size(self.epsilon, self.features)
        if self.sampled is None and best != max(1, math.floor(min(self.features, self.epsilon / 2.18))):
            # Named, so that a release kept with the paper's m is another one and is not sent again under this m.
            object.__setattr__(self, "sampled", best)
        if self.sampled is not None:
            check_whole("sampled", self.sampled, 1)
            if self.sampled > self.features:
                raise ConfigError(
                    f"sampled={self.sampled} is more than the {self.features} features there are; lower it, or leave "
                    "it out"
                )
        if self._steps < FEWEST_STEPS:
            raise ConfigError(
                f"epsilon={self.epsilon!r} over {self.sample_size} features leaves too little for each to tell a "
                "feature's values apart; raise epsilon or lower sampled"
            )

    @property
    def sample_size(self) -> int:
        """m: how many features a node releases."""
        return best_sample_size(self.epsilon, self.features) if self.sampled is None else self.sampled

    @property
    def scale(self) -> float:
        """d(β − α)/(2m)·(e^{ε/m} + 1)/(e^{ε/m} − 1)."""
        return self.features * (self.high - self.low) / (2 * self.sample_size) * (GRID / self._steps)

    @property
    def offset(self) -> float:
        """(α + β)/2."""
        return self.centre

    def variance(self, x: Tensor) -> Tensor:
        """See ``FeatureMechanism.variance``: scale²·m/d − (x − (α + β)/2)², since x*² is 1 with probability m/d."""
        spread = self.scale**2 * self.sample_size / self.features
        return spread - (x.to_dense().to(torch.float64) - self.centre).square_()

    def event(self) -> LocalEvent:
        """See ``FeatureMechanism.event``."""
        return LocalEvent(self.epsilon, "node")

    def thresholds(self, values: Tensor) -> Tensor:
        """T, of whose G = 2^53 equally likely cells the first T make a feature's bit 1.

        Args:
            values: of chosen features, within the range; any shape and real dtype; not changed.

        Returns:
            int64 tensor of that shape, in [L, G − L].
        """
        share = values.to(torch.float64, copy=True).sub_(self.low).div_(self.high - self.low)
        cells = share.mul_(self._steps).add_(0.5).to(torch.int64).add_(self._least)
        return cells.clamp_(self._least, GRID - self._least)  # so that ε hangs on no floating-point error

    @cached_property
    def _least(self) -> int:
        return least_cells(self.epsilon, parts=self.sample_size)

    @property
    def _steps(self) -> int:
        return GRID - 2 * self._least

    def _perturbed(self, x: Tensor, source: SecretSource) -> Tensor:
        seed = source(SEED_BYTES)
        if self.sample_size == self.features:
            return self._of_all(x, seed)
        if self.sample_size * SPARSE_FROM <= self.features:
            return self._sparse(x, seed)
        released = torch.zeros(x.shape, dtype=torch.int8)
        for start, columns, signs in self._of_sampled(x, seed):
            released[start : start + len(signs)].scatter_(1, columns, signs)
        return released

    def _of_all(self, x: Tensor, seed: bytes) -> Tensor:
        released = torch.empty(x.shape, dtype=torch.int8)
        for start, block in row_blocks(x, PIECE):
            released[start : start + len(block)] = self._signs(block, seed, start)
        return released

    def _sparse(self, x: Tensor, seed: bytes) -> Tensor:
        chosen = torch.empty(len(x), self.sample_size, dtype=torch.int64)
        values = torch.empty(len(x), self.sample_size)
        for start, columns, signs in self._of_sampled(x, seed):
            chosen[start : start + len(signs)] = columns
            values[start : start + len(signs)] = signs
        pointers = torch.arange(len(x) + 1) * self.sample_size
        return torch.sparse_csr_tensor(pointers, chosen.view(-1), values.view(-1), x.shape, check_invariants=False)

    def _of_sampled(self, x: Tensor, seed: bytes) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The first row of each block, the columns chosen in its rows, and the signs there; both [rows, m]."""
        for start, block in row_blocks(x, SAMPLED_PIECE):
            columns = random_columns(seed, f"columns/{start}", len(block), self.features, self.sample_size)
            yield start, columns, self._signs(block.gather(1, columns), seed, start)

    def _signs(self, values: Tensor, seed: bytes, start: int) -> Tensor:
        ones = uniform(seed, f"bits/{start}", tuple(values.shape)) < self.thresholds(values)
        return ones.view(torch.int8).mul_(2).sub_(1)


def one_bit(epsilon: float, low: float, high: float, features: int) -> MultiBit:
    """The 1-bit mechanism: a bit of every feature, each with ε/d, which is the multi-bit mechanism with m = d."""
    return MultiBit(epsilon, low, high, features, sampled=features)


class OneBit(MultiBit):
    """``one_bit`` as a job names it."""

    has_sampled: ClassVar[bool] = False

    @classmethod
    def of(cls, settings: FeatureReleaseSettings, features: int) -> MultiBit:
        """See ``FeatureMechanism.of``."""
        return one_bit(settings.epsilon, settings.low, settings.high, features)
