"""Features under local differential privacy: nodes perturb their own, before anybody sees them.

``settings.FEATURE_MECHANISMS`` finds a mechanism by the name in a job. A package adds its own, a subclass of
``FeatureMechanism``, by an entry point of the group ``veilgraph.feature_mechanisms``.

A node's whole feature vector is what one release protects: any vector of the range [α, β]^d against any other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.graph.features import from_scipy, is_sparse, to_scipy
from veilgraph.graph.party import rows_between
from veilgraph.privacy.accountant import analytic_multiplier
from veilgraph.privacy.event import Event, LocalEvent, check_positive, check_whole
from veilgraph.privacy.mechanism import Gaussian, Laplace
from veilgraph.privacy.randomised_response import FEWEST_STEPS, GRID, least_cells, uniform
from veilgraph_node_dp.feature_settings import FEATURE_MECHANISMS, FeatureReleaseSettings


@dataclass(frozen=True)
class FeatureMechanism(ABC):
    """A way for nodes to release their d features, from α to β, under local differential privacy of ε together.

    ``has_sampled`` and ``has_delta``: whether it takes these of the settings; ``is_gaussian``: whether the noise is.
    """

    has_sampled: ClassVar[bool] = False
    has_delta: ClassVar[bool] = False
    is_gaussian: ClassVar[bool] = False
    epsilon: float
    low: float
    high: float
    features: int

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        if not (self.low < self.high and math.isfinite(self.high - self.low)):
            raise ConfigError(
                f"range=[{self.low!r}, {self.high!r}] must be finite with low < high: features of one value need no "
                "release; mend one of them"
            )
        check_whole("features", self.features, 1)

    @classmethod
    def of(cls, settings: FeatureReleaseSettings, features: int) -> FeatureMechanism:
        """Make the mechanism by a job's settings, for ``features`` columns; ``ConfigError`` if they do not fit."""
        takes = {"sampled": cls.has_sampled, "delta": cls.has_delta}
        more: dict[str, Any] = {name: getattr(settings, name) for name, takes_it in takes.items() if takes_it}
        return cls(settings.epsilon, settings.low, settings.high, features, **more)

    @property
    def centre(self) -> float:
        """Centre of the range, (α + β)/2."""
        return self.low + (self.high - self.low) / 2

    @property
    def scale(self) -> float:
        """What a released value is multiplied by before ``offset`` is added, for an unbiased estimate."""
        return 1.0

    @property
    def offset(self) -> float:
        """What is added to a released value times ``scale``, for an unbiased estimate."""
        return 0.0

    @abstractmethod
    def variance(self, x: Tensor) -> Tensor:
        """Return the variance of each entry of ``rectify(release(x))``: Tensor[N, d] float64, for x [N, d] in range."""

    def event(self) -> Event:
        """Return the accountant's event for each node in one release."""
        return LocalEvent(self.epsilon, "node")

    @torch.no_grad()
    def release(self, x: Tensor, source: SecretSource) -> Tensor:
        """Perturb every node's features, Tensor[N, d] of any real dtype, dense or sparse_csr, independently of all
        others.

        The result has the mechanism's dtype and layout; working memory does not grow with N. ``source`` is
        ``system_secrets`` outside tests. Raises ``DataError`` where x has another form, or a value that is not in the
        range.
        """
        self.check(x)
        return self._perturbed(x, source)

    def rectify(self, released: Tensor) -> Tensor:
        """The unbiased estimate scale · released + offset, dense: Tensor[N, d] float32.

        Where that is too large, use ``scale`` and ``offset``: of a linear map A it is scale·(A·released) + offset·A·1.
        """
        return released.to_dense().to(torch.float32).mul(self.scale).add_(self.offset)

    @abstractmethod
    def _perturbed(self, x: Tensor, source: SecretSource) -> Tensor:
        """Perturb features that ``check`` has passed, as ``release`` does."""

    def check(self, x: Tensor) -> None:
        """Raise ``DataError`` if x is not dense or sparse_csr [N, d], or has a value outside [α, β]."""
        if x.layout not in (torch.strided, torch.sparse_csr):
            raise DataError(f"x: {x.layout}, and features are dense or sparse_csr; convert with to_sparse_csr()")
        if x.dim() != 2 or x.shape[1] != self.features:
            raise DataError(f"x: of shape {tuple(x.shape)} must be [N, {self.features}]: set features to its columns")
        if x.numel() == 0:
            return
        for value in data_range(x):
            if not self.low <= value <= self.high:
                raise DataError(
                    f"x: the value {value!r}, outside the declared range [{self.low!r}, {self.high!r}]: declare a "
                    "range that holds every value a feature can have, or clip x to it"
                )


def feature_mechanism(settings: FeatureReleaseSettings, features: int) -> FeatureMechanism:
    """Make the mechanism that a job's settings name, for ``features`` columns; errors as ``FeatureMechanism.of``."""
    kind: type[FeatureMechanism] = FEATURE_MECHANISMS[settings.mechanism]
    return kind.of(settings, features)


def data_range(x: Tensor) -> tuple[float, float]:
    """The least and the largest value of x, which must not be declared as the range without thought.

    A range computed from the data is itself a leak, and not covered by any ε. Declare what the features' meaning says
    (0 and 1 for words that are there or not); computed ranges are for experiments on public data.

    ``x`` is Tensor[N, d], dense or sparse_csr, whose missing entries are zeros; NaN in it makes both NaN. Raises
    ``DataError`` where it has no entries.
    """
    if x.numel() == 0:
        raise DataError(f"x: of shape {tuple(x.shape)} has no entries, so no range: declare one")
    values = x.values() if x.layout == torch.sparse_csr else x
    extremes = [float(value) for value in values.aminmax()] if values.numel() else []
    if values.numel() < x.numel():
        extremes.append(0.0)
    if any(math.isnan(value) for value in extremes):
        return math.nan, math.nan
    return min(extremes), max(extremes)


def row_blocks(x: Tensor, entries: int) -> Iterator[tuple[int, Tensor]]:
    """Yield x, [N, d], in dense blocks of whole rows, of about ``entries`` each, with their first row's number."""
    rows = max(1, entries // x.shape[1])
    for start in range(0, len(x), rows):
        yield start, rows_between(x, start, min(start + rows, len(x))).to_dense()


def to_wire(released: Tensor) -> Tensor:
    """Encode a mechanism's output for the wire.

    Of sparse_csr [N, d] of −1 and 1, as many in every row: Tensor[N, m] int64, 1 + column with the value's sign; of
    int8 of −1, 0 and 1: Tensor[N, d] uint8, 1 + value; float32 as it is.
    """
    if is_sparse(released):
        columns = released.col_indices().to(torch.int64) + 1
        return (columns * released.values().sign().to(torch.int64)).view(released.shape[0], -1)
    return (released + 1).to(torch.uint8) if released.dtype == torch.int8 else released


NOISED_PIECE = 1 << 20  # entries noised at once
# On the clip, so that it never shortens a vector of the range, whose corners would not be unbiased then.
_ROOM = 1 + 2.0**-31


@dataclass(frozen=True)
class _Additive(FeatureMechanism):
    """x̃ = x + noise on every feature, to compare with; ``release`` returns a dense float32 tensor.

    Two vectors of [α, β]^d are at most (β − α)·√d apart in the ℓ2 norm and (β − α)·d in the ℓ1 norm. Around the range's
    centre they lie in a ball of half that size, which is what the row mechanisms clip to, under replacement (2C).

    Unlike the multi-bit mechanism's, their ε is not exact but has the error that ``noise`` bounds and that grows with
    d: at 5,000 features at most 0.001 (Gaussian) or 0.002 (Laplace) is added to ε, typically 0.0001. The noise is on a
    grid of at most 2^-20 of its scale, and so is x before it: beyond that there is no bias.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._rows  # refuses what cannot be calibrated

    def variance(self, x: Tensor) -> Tensor:
        return torch.full(x.shape, self._rows.variance, dtype=torch.float64)

    @cached_property
    @abstractmethod
    def _rows(self) -> Gaussian | Laplace:
        """The row mechanism that noises x − centre."""

    def _perturbed(self, x: Tensor, source: SecretSource) -> Tensor:
        released = torch.empty(x.shape)
        for start, block in row_blocks(x, NOISED_PIECE):
            noisy = self._rows.release(block.to(torch.float64) - self.centre, source)
            released[start : start + len(block)] = noisy.add_(self.centre)
        return released


@dataclass(frozen=True)
class AnalyticGaussian(_Additive):
    """Gaussian noise with the least σ that makes a node's release (ε, δ)-private (Balle & Wang 2018)."""

    has_delta: ClassVar[bool] = True
    is_gaussian: ClassVar[bool] = True
    delta: float

    @override
    def event(self) -> Event:
        return self._rows.event("replacement", "node")

    @cached_property
    def _rows(self) -> Gaussian:
        clip = (self.high - self.low) / 2 * math.sqrt(self.features) * _ROOM
        return Gaussian(clip, 2 * analytic_multiplier(self.epsilon, self.delta))


@dataclass(frozen=True)
class LocalLaplace(_Additive):
    """Laplace noise of scale (β − α)·d/ε on every feature (pure ε)."""

    @cached_property
    def _rows(self) -> Laplace:
        return Laplace((self.high - self.low) / 2 * self.features * _ROOM, 2 / self.epsilon)


@dataclass(frozen=True, eq=False)
class AffineFeatures:
    """A feature matrix ``scale·values + offset``: values [N, F], strided or sparse_csr; offset a number or [F]."""

    values: Tensor
    scale: float = 1.0
    offset: float | Tensor = 0.0

    @classmethod
    def joined(cls, blocks: Sequence[AffineFeatures], dtype: torch.dtype) -> AffineFeatures:
        """Join matrices of the same nodes side by side, with values of ``dtype`` and scale 1; sparse if all are."""
        offsets = [torch.as_tensor(block.offset, dtype=dtype).expand(block.values.shape[1]) for block in blocks]
        scaled = [block.values.to(dtype) * block.scale for block in blocks]
        if all(is_sparse(values) for values in scaled):
            values = from_scipy(sp.hstack([to_scipy(values) for values in scaled], format="csr"))
        else:
            values = torch.cat([values.to_dense() for values in scaled], dim=1)
        return cls(values, 1.0, torch.cat(offsets))


# At one chosen feature in so many the sparse layout takes less memory: 12 bytes each, against one for every entry.
SPARSE_FROM = 16

# Entries perturbed at once: temporaries stay in the cache, and torch on one thread, which on a busy machine is many
# times faster than threads that wait for each other at every small step.
PIECE = 1 << 15

SAMPLED_PIECE = 1 << 22  # drawing sets takes m steps a block, so fewer blocks are faster


_BEST_SHARE: Final = 2.177318984  # ε/m with the least variance over real m: sinh(ε/m) = 2·ε/m


def best_sample_size(epsilon: float, features: int) -> int:
    """Return m*, the number of sampled features with the least variance, from 1 to d.

    The variance grows with coth²(ε/2m)/m, which has one minimum over real m: m* is one of the two integers beside it;
    Proposition 3.5 takes the lower one always.
    """
    below = max(1, math.floor(min(features, epsilon / _BEST_SHARE)))
    return min((below, min(features, below + 1)), key=lambda m: 1 / (m * math.tanh(epsilon / (2 * m)) ** 2))


def random_columns(seed: bytes, purpose: str, rows: int, columns: int, count: int) -> Tensor:
    """For every row a uniformly random set of columns, drawn without replacement: [rows, count] int64, ascending.

    Floyd's algorithm, on all rows at once; sets of more than half of the columns by what they leave out. A draw below n
    is a 63-bit word modulo n, each result's probability being 1/n within a factor 1 ± n·2^-63. So every set has its
    uniform probability within a factor (1 ± columns·2^-63)^count; at 5,000 columns, 1 ± 2^-38 for any count.
    """
    is_inverted = 2 * count > columns
    member = _members(seed, purpose, rows, columns, columns - count if is_inverted else count)
    if is_inverted:
        member.logical_not_()
    return member.nonzero()[:, 1].view(rows, count)


def _members(seed: bytes, purpose: str, rows: int, columns: int, count: int) -> Tensor:
    """Set ``count`` random entries in every row of Tensor[rows, columns] bool (Bentley & Floyd 1987, algorithm F2)."""
    member = torch.zeros(rows, columns, dtype=torch.bool)
    flat, first = member.view(-1), torch.arange(0, rows * columns, columns)
    words = expand(seed, purpose, (count, rows)).bitwise_and_((1 << 63) - 1)
    for last, word in zip(range(columns - count, columns), words, strict=True):
        pick = word.remainder_(last + 1).add_(first)
        pick = torch.where(flat.index_select(0, pick), first + last, pick)
        flat.index_fill_(0, pick, True)
    return member


@dataclass(frozen=True)
class MultiBit(FeatureMechanism):
    """The multi-bit mechanism: of m features chosen at random a biased bit each, x*_i = ±1 by ε/m; 0 for the others.

    ε holds exactly for the program, and the rectified values are unbiased:
    docs/explanation/proofs.md#bits-of-sampled-features.

    Source: Sajadmanesh & Gatica-Perez, "Locally private graph neural networks", 2020: Algorithm 1, Theorem 3.1 (ε) and
    Proposition 3.5 (m, corrected: docs/reference/errata.md).

    ``release`` returns values in {−1, 0, 1}: where m ≤ d/16 a sparse_csr tensor of float32, to multiply weights with as
    it is; else a dense one of int8. m is ``sampled``, or m* where that is None.
    """

    has_sampled: ClassVar[bool] = True
    sampled: int | None = None

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
        if self._free_cells < FEWEST_STEPS:
            raise ConfigError(
                f"epsilon={self.epsilon!r} over {self.sample_size} features leaves too little for each to tell a "
                "feature's values apart; raise epsilon or lower sampled"
            )

    @property
    def sample_size(self) -> int:
        """m: how many features a node releases."""
        return best_sample_size(self.epsilon, self.features) if self.sampled is None else self.sampled

    @property
    @override
    def scale(self) -> float:
        """d(β − α)/(2m)·(e^{ε/m} + 1)/(e^{ε/m} − 1)."""
        return self.features * (self.high - self.low) / (2 * self.sample_size) * (GRID / self._free_cells)

    @property
    @override
    def offset(self) -> float:
        return self.centre

    def variance(self, x: Tensor) -> Tensor:
        """scale²·m/d − (x − (α + β)/2)², since x*² is 1 with probability m/d."""
        spread = self.scale**2 * self.sample_size / self.features
        return spread - (x.to_dense().to(torch.float64) - self.centre).square_()

    def thresholds(self, values: Tensor) -> Tensor:
        """Return how many of G = 2^53 equally likely cells make each value's bit 1: int64 in [L, G − L]."""
        share = values.to(torch.float64, copy=True).sub_(self.low).div_(self.high - self.low)
        cells = share.mul_(self._free_cells).add_(0.5).to(torch.int64).add_(self._least_ones)
        return cells.clamp_(self._least_ones, GRID - self._least_ones)  # so that ε hangs on no floating-point error

    @cached_property
    def _least_ones(self) -> int:
        return least_cells(self.epsilon, parts=self.sample_size)

    @property
    def _free_cells(self) -> int:
        return GRID - 2 * self._least_ones

    def _perturbed(self, x: Tensor, source: SecretSource) -> Tensor:
        seed = source(SEED_BYTES)
        if self.sample_size * SPARSE_FROM <= self.features:
            return self._perturb_sparse(x, seed)
        released = torch.zeros(x.shape, dtype=torch.int8)
        if self.sample_size == self.features:
            for start, block in row_blocks(x, PIECE):
                released[start : start + len(block)] = self._draw_signs(block, seed, start)
        else:
            for start, columns, signs in self._sample_blocks(x, seed):
                released[start : start + len(signs)].scatter_(1, columns, signs)
        return released

    def _perturb_sparse(self, x: Tensor, seed: bytes) -> Tensor:
        chosen = torch.empty(len(x), self.sample_size, dtype=torch.int64)
        values = torch.empty(len(x), self.sample_size)
        for start, columns, signs in self._sample_blocks(x, seed):
            chosen[start : start + len(signs)] = columns
            values[start : start + len(signs)] = signs
        pointers = torch.arange(len(x) + 1) * self.sample_size
        return torch.sparse_csr_tensor(pointers, chosen.view(-1), values.view(-1), x.shape, check_invariants=False)

    def _sample_blocks(self, x: Tensor, seed: bytes) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield each block's first row, the columns sampled in its rows, and the signs there: [rows, m] each."""
        for start, block in row_blocks(x, SAMPLED_PIECE):
            columns = random_columns(seed, f"columns/{start}", len(block), self.features, self.sample_size)
            yield start, columns, self._draw_signs(block.gather(1, columns), seed, start)

    def _draw_signs(self, values: Tensor, seed: bytes, start: int) -> Tensor:
        """Draw 1 or −1, int8, for each value, 1 with probability ``thresholds`` / 2^53; ``start``: the first row."""
        ones = uniform(seed, f"bits/{start}", tuple(values.shape)) < self.thresholds(values)
        return ones.view(torch.int8).mul_(2).sub_(1)


class OneBit(MultiBit):
    """The 1-bit mechanism as a job names it: a bit of every feature, each with ε/d, so the multi-bit one with m = d."""

    has_sampled: ClassVar[bool] = False

    @classmethod
    @override
    def of(cls, settings: FeatureReleaseSettings, features: int) -> MultiBit:
        return MultiBit(settings.epsilon, settings.low, settings.high, features, features)
