"""Mechanisms: clip every row, put it on the grid, add noise, and process what came out.

A mechanism is frozen, ``release`` is a function of it, the rows and a secret source alone, and its ``event`` says what
the release did, for the accountant. VFGNN, Algorithm 1 (its line 4 prints x^K where the clipped row x̄ is meant).

Clipping shortens a row to C·(1 - 2^-32) and then rounds every entry *towards zero* to the noise's grid. Rounding never
lengthens a row, and 2^-32 is more than float64's errors in the norm of up to 2^20 columns; so the exact norm of what
the noise is added to is at most C, the sensitivity that the event claims (``noise`` says why the grid).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, RangeOverflow
from veilgraph.core.randomness import SecretSource
from veilgraph.privacy import noise
from veilgraph.privacy.event import Event, GaussianEvent, LaplaceEvent
from veilgraph.privacy.settings import Neighbours, Unit

SMALLEST_MULTIPLIER = 1e-9
"""Less noise protects nothing, and its grid would be finer than float64 resolves within the clip."""

_LARGEST_ENTRY = 1e150  # squares still fit float64
_CLIP_MARGIN = 1.0 - 2.0**-32
_PIECE = 1 << 16  # entries clipped at once, so that temporaries stay in the cache
_FEWEST_COLUMNS = 3  # of James-Stein: below, it is no better than what it is given


class Mechanism(ABC):
    """A way to release rows.

    Attributes:
        clip: C, the largest norm of a row before noise (ℓ2; ℓ1 for Laplace).
    """

    clip: float

    @property
    @abstractmethod
    def variance(self) -> float:
        """Of the noise on one entry, before any shrinking."""

    @property
    @abstractmethod
    def cell(self) -> float:
        """Of the public grid that releases lie on, before any shrinking."""

    @abstractmethod
    def draw(self, shape: tuple[int, ...], source: SecretSource) -> Tensor:
        """The noise of one release, which may be made before its rows are there.

        Args:
            shape: (N, d).
            source: of the noise's seed; ``system_secrets`` outside tests.

        Returns:
            Tensor[N, d] float64.
        """

    @abstractmethod
    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Releases rows that are clipped and noised.

        Args:
            x: Tensor[N, d], any floating dtype; not changed.
            drawn: noise of that shape, for this release alone; changed in place.

        Returns:
            Tensor[N, d] float64.

        Raises:
            RangeOverflow: an entry is NaN, infinite or above 1e150 in magnitude.
            ConfigError: the mechanism cannot release rows of d columns.
        """

    @abstractmethod
    def event(self, neighbours: Neighbours = "zero-out", unit: Unit = "row") -> Event:
        """What one release did, under that neighbouring relation and unit."""

    def release(self, x: Tensor, source: SecretSource) -> Tensor:
        """One release with noise drawn for it; as ``apply``."""
        return self.apply(x, self.draw(tuple(x.shape), source))


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """x̃ = x̄ + n, n ~ N(0, σ²C²I), with x̄ = min(1, C/‖x‖₂)·x (VFGNN, Algorithm 1, lines 1-4).

    Args:
        clip: C, the largest ℓ2 norm of a row.
        noise_multiplier: σ, standard deviation of the noise over C.

    Raises:
        ConfigError: a parameter is out of range.
    """

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        _check(self.clip, "noise_multiplier", self.noise_multiplier)

    @property
    def standard_deviation(self) -> float:
        """Of the noise on one entry: σC."""
        return self.noise_multiplier * self.clip

    @property
    def variance(self) -> float:
        """See ``Mechanism.variance``: σ²C²."""
        return self.standard_deviation**2

    @property
    def cell(self) -> float:
        """See ``Mechanism.cell``."""
        return noise.granularity(self.standard_deviation)

    def draw(self, shape: tuple[int, ...], source: SecretSource) -> Tensor:
        """See ``Mechanism.draw``; multiples of ``granularity(σC)``."""
        return noise.gaussian(shape, self.standard_deviation, source)

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """See ``Mechanism.apply``; multiples of ``granularity(σC)``."""
        return _add_clipped(drawn, x, self.clip, 2, self.cell)

    def event(self, neighbours: Neighbours = "zero-out", unit: Unit = "row") -> GaussianEvent:
        """See ``Mechanism.event``. Whatever is computed from the noisy rows costs nothing more."""
        return GaussianEvent(self.noise_multiplier, neighbours, unit)


@dataclass(frozen=True)
class JamesStein(Gaussian):
    """The Gaussian mechanism, then the James-Stein estimate of every row (VFGNN, Algorithm 1, line 6; d ≥ 3)."""

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """See ``Mechanism.apply``."""
        _check_columns(x, "james-stein")
        return james_stein(super().apply(x, drawn), self.standard_deviation)


@dataclass(frozen=True)
class JamesSteinPlus(Gaussian):
    """The Gaussian mechanism, then the positive-part James-Stein estimate of every row (d ≥ 3)."""

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """See ``Mechanism.apply``."""
        _check_columns(x, "james-stein-plus")
        return james_stein(super().apply(x, drawn), self.standard_deviation, positive_part=True)


@dataclass(frozen=True)
class Laplace(Mechanism):
    """x̃ = x̄ + n, n independent Laplace of scale bC, with x̄ = min(1, C/‖x‖₁)·x. Pure ε-DP: δ = 0 up to the arithmetic.

    Args:
        clip: C, the largest ℓ1 norm of a row.
        scale_multiplier: b, scale of the noise over C.

    Raises:
        ConfigError: a parameter is out of range.
    """

    clip: float
    scale_multiplier: float

    def __post_init__(self) -> None:
        _check(self.clip, "scale_multiplier", self.scale_multiplier)

    @property
    def scale(self) -> float:
        """Of the noise on one entry: bC."""
        return self.scale_multiplier * self.clip

    @property
    def variance(self) -> float:
        """See ``Mechanism.variance``: 2b²C²."""
        return 2 * self.scale**2

    @property
    def cell(self) -> float:
        """See ``Mechanism.cell``."""
        return noise.granularity(self.scale)

    def draw(self, shape: tuple[int, ...], source: SecretSource) -> Tensor:
        """See ``Mechanism.draw``; multiples of ``granularity(bC)``."""
        return noise.laplace(shape, self.scale, source)

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """See ``Mechanism.apply``; multiples of ``granularity(bC)``."""
        return _add_clipped(drawn, x, self.clip, 1, self.cell)

    def event(self, neighbours: Neighbours = "zero-out", unit: Unit = "row") -> LaplaceEvent:
        """See ``Mechanism.event``."""
        return LaplaceEvent(self.scale_multiplier, neighbours, unit)


MECHANISMS: Mapping[str, Callable[[float, float], Mechanism]] = MappingProxyType(
    {"gaussian": Gaussian, "james-stein": JamesStein, "james-stein-plus": JamesSteinPlus, "laplace": Laplace}
)
"""Name → builder of (clip, multiplier of the noise over the clip)."""


@torch.no_grad()
def clip_to_grid(x: Tensor, clip: float, order: int, step: float) -> Tensor:
    """Shortens every row to at most ``clip`` and rounds its entries towards zero to multiples of ``step``.

    Args:
        x: Tensor[N, d], any floating dtype; not changed. One row's result does not depend on the others.
        clip: the exact norm of a returned row is at most this.
        order: of the norm, 1 or 2.
        step: a power of two, at least clip·2^-52.

    Returns:
        Tensor[N, d] float64. A row of zeros stays one.

    Raises:
        RangeOverflow: an entry is NaN, infinite or above 1e150 in magnitude.
    """
    if x.dim() != 2:
        raise ValueError(f"x of shape {tuple(x.shape)} must have rows and columns: the clip bounds a row")
    rows = x.to(torch.float64)
    if rows.numel() and not max(-float(rows.min()), float(rows.max())) <= _LARGEST_ENTRY:
        raise RangeOverflow(
            f"x has an entry that is NaN, infinite or above {_LARGEST_ENTRY:g} in magnitude, and a released row must "
            "be finite: lower train.learning_rate or scale the features"
        )
    norms = torch.linalg.vector_norm(rows, order, dim=1, keepdim=True)
    factors = torch.clamp_max(clip * _CLIP_MARGIN / norms, 1.0)
    cells = torch.mul(rows, factors.div_(step))
    return cells.abs().floor_().copysign_(cells).mul_(step)  # torch's trunc takes four times as long


@torch.no_grad()
def james_stein(noisy: Tensor, standard_deviation: float, *, positive_part: bool = False) -> Tensor:
    """Shrinks noisy rows towards zero: (1 - (d-2)s²/‖x̃‖²)·x̃ (VFGNN, Theorem 2, s = σC).

    The paper's eq. 8 drops C² in its leading factor and prints as equal what is an upper bound. For x ~ N(0, w²I),
    E[1/‖x̃‖²] = 1/((d-2)(w² + s²)), and so

        E‖x̃_JS - x‖² = d·s²·(1 - (d-2)/d · s²/(w² + s²)).

    The printed factor (d-2)²/d² comes from E[1/‖x̃‖²] ≥ 1/E‖x̃‖² = 1/(d(w² + s²)).

    Args:
        noisy: Tensor[N, d] float64, changed in place.
        standard_deviation: s, of the noise on one entry.
        positive_part: shrink no further than to zero, where the plain estimate turns a short row round. Never worse in
            mean squared error.

    Returns:
        ``noisy``, shrunk. A row of zeros stays one.
    """
    norms = torch.linalg.vector_norm(noisy, dim=1, keepdim=True).div_(standard_deviation)
    # No row on the grid lies between 0 and one step; the bound only keeps 0/0 out.
    factors = 1.0 - (noisy.shape[1] - 2) / norms.clamp_min_(2.0 ** -(noise.GRID_BITS + 2)).square_()
    return noisy.mul_(factors.clamp_min_(0.0) if positive_part else factors)


def _add_clipped(values: Tensor, x: Tensor, clip: float, order: int, step: float) -> Tensor:
    rows = max(1, _PIECE // max(1, x.shape[-1]))
    for start in range(0, len(x), rows):
        values[start : start + rows].add_(clip_to_grid(x[start : start + rows], clip, order, step))
    return values


def _check(clip: float, name: str, multiplier: float) -> None:
    if not noise.SMALLEST_SCALE <= clip <= noise.LARGEST_SCALE:
        raise ConfigError(
            f"clip={clip!r} must lie in [{noise.SMALLEST_SCALE:g}, {noise.LARGEST_SCALE:g}]: take the norm of a "
            "typical row"
        )
    if not SMALLEST_MULTIPLIER <= multiplier < math.inf:
        raise ConfigError(
            f"{name}={multiplier!r} must be finite and at least {SMALLEST_MULTIPLIER:g}: for no noise (ε = ∞), "
            "leave the publisher out"
        )
    noise.granularity(multiplier * clip)


def _check_columns(x: Tensor, name: str) -> None:
    if x.shape[-1] < _FEWEST_COLUMNS:
        raise ConfigError(
            f"mechanism {name} needs rows of at least {_FEWEST_COLUMNS} columns, not {x.shape[-1]}: use gaussian or a "
            "larger model.dim"
        )
