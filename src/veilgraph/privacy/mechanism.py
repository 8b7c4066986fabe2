"""Mechanisms: clip every row, put it on the grid, add noise, and process what came out.

``privacy.settings.MECHANISMS`` finds one by the name in a job. A package adds its own, a subclass of ``Mechanism``, by
an entry point of the group ``veilgraph.mechanisms``; ``veilgraph_testing.mechanism`` holds it to what all of them
promise.

A mechanism is frozen, ``release`` is a function of it, the rows and a secret source alone, and its ``event`` says what
the release did, for the accountant. VFGNN, Algorithm 1 (its line 4 prints x^K where the clipped row x̄ is meant).

Clipping shortens a row to C·(1 - 2^-32) and then rounds every entry *towards zero* to the noise's grid. Rounding never
lengthens a row, and 2^-32 is more than float64's errors in the norm of up to 2^20 columns; so the exact norm of what
the noise is added to is at most C, the sensitivity that the event claims (``noise`` says why the grid).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError, RangeOverflow
from veilgraph.core.secrets import SecretSource
from veilgraph.privacy import accountant, noise
from veilgraph.privacy.event import Calibration, Event, GaussianEvent, LaplaceEvent, Neighbours, Unit, check_whole

_LARGEST_ENTRY = 1e150  # squares still fit float64
_FEWEST_COLUMNS: Final = 3  # of James-Stein: below, it is no better than what it is given
_CLIP_MARGIN = 1.0 - 2.0**-32
_PIECE = 1 << 16  # entries clipped at once, so that temporaries stay in the cache


class Mechanism(ABC):
    """A way to release rows: frozen, and made with the clip and the multiplier of the noise over it.

    ``clip``: C, the largest norm of a row before noise, of ``order`` 1 or 2. ``is_plain``: a release is the clipped
    rows with the noise and nothing else.
    """

    clip: float
    order: ClassVar[int] = 2
    is_gaussian: ClassVar[bool] = False
    is_plain: ClassVar[bool] = False

    if TYPE_CHECKING:

        def __init__(self, clip: float, multiplier: float) -> None:
            """A dataclass has these two as its fields, under names of its own."""

    @classmethod
    def rows_moved(cls, rows: int) -> float:
        """How far so many rows move together in the norm, where one moves by 1."""
        return math.sqrt(rows) if cls.order == 2 else float(rows)

    @classmethod
    def for_one(cls, epsilon: float, delta: float, clips: float, calibration: Calibration) -> float:
        """The multiplier with which one release costs (ε, δ), of a sensitivity of ``clips``; Gaussian by a formula."""
        return cls.for_total(epsilon, delta, 1, clips)

    @classmethod
    def for_total(cls, epsilon: float, delta: float, releases: int, clips: float) -> float:
        """The multiplier with which ``releases`` ≥ 1 releases cost (ε, δ) together; found from ``event``.

        ``clips`` is the sensitivity over the clip. Raises ``ConfigError``: out of range, or no noise is enough.
        """
        return clips * accountant.least_multiplier(
            lambda multiplier: cls(1.0, multiplier).event(), epsilon, delta, releases
        )

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
        """The noise of one release, Tensor[N, d] float64, from a seed of ``source``; it may be made before the rows."""

    @abstractmethod
    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Release rows, Tensor[N, d] of any floating dtype, clipped and noised by ``drawn``, changed in place: float64.

        Raises ``RangeOverflow``: an entry is NaN, infinite or above 1e150 in magnitude; ``ConfigError``: it cannot
        release rows of d columns.
        """

    @abstractmethod
    def event(self, neighbours: Neighbours = "zero-out", unit: Unit = "row") -> Event:
        """What one release did, under that neighbouring relation and unit."""

    def release(self, x: Tensor, source: SecretSource) -> Tensor:
        """One release with noise drawn for it; as ``apply``."""
        return self.apply(x, self.draw(tuple(x.shape), source))


@torch.no_grad()
def clip_to_grid(x: Tensor, clip: float, order: int, step: float) -> Tensor:
    """Shortens rows, Tensor[N, d], to a norm of ``order`` of at most ``clip``, and rounds towards zero to multiples of
    ``step``.

    ``step`` is a power of two, at least clip·2^-52. Gives float64; one row's result does not depend on the others.
    Raises ``RangeOverflow`` where an entry is NaN, infinite or above 1e150 in magnitude.
    """
    if x.dim() != 2:
        raise ValueError(f"x of shape {tuple(x.shape)} must have rows and columns: the clip bounds a row")
    rows = x.to(torch.float64)
    norms = torch.linalg.vector_norm(rows, order, dim=1, keepdim=True)
    # No entry is above its row's norm, which is NaN or infinite where an entry is: only then are the entries looked at.
    unlikely = norms.numel() and not float(norms.max()) <= _LARGEST_ENTRY
    if unlikely and not max(-float(rows.min()), float(rows.max())) <= _LARGEST_ENTRY:
        raise RangeOverflow(
            f"x: has an entry that is NaN, infinite or above {_LARGEST_ENTRY:g} in magnitude, and a released row must "
            "be finite: lower train.learning_rate or scale the features"
        )
    factors = torch.clamp_max(clip * _CLIP_MARGIN / norms, 1.0)
    cells = torch.mul(rows, factors.div_(step))
    whole = cells.numpy()
    np.trunc(whole, out=whole)  # torch's takes four times as long
    return cells.mul_(step)


def add_clipped(values: Tensor, x: Tensor, clip: float, order: int, step: float) -> Tensor:
    """Adds ``clip_to_grid`` of rows to noise, in place."""
    rows = max(1, _PIECE // max(1, x.shape[-1]))
    for start in range(0, len(x), rows):
        values[start : start + rows].add_(clip_to_grid(x[start : start + rows], clip, order, step))
    return values


def check_noise(clip: float, name: str, multiplier: float) -> None:
    """Raises ``ConfigError`` where a clip, or the noise over it, is out of range; ``name`` is the multiplier's."""
    if not noise.SMALLEST_SCALE <= clip <= noise.LARGEST_SCALE:
        raise ConfigError(
            f"clip={clip!r} must lie in [{noise.SMALLEST_SCALE:g}, {noise.LARGEST_SCALE:g}]: take the norm of a "
            "typical row"
        )
    if not accountant.SMALLEST_MULTIPLIER <= multiplier < math.inf:
        raise ConfigError(
            f"{name}={multiplier!r} must be finite and at least {accountant.SMALLEST_MULTIPLIER:g}: for no noise "
            "(ε = ∞), leave the publisher out"
        )
    noise.granularity(multiplier * clip)


class _NoisyRows(Mechanism):
    """The clipped rows, and independent noise of one scale on every entry, both on the noise's grid."""

    is_plain: ClassVar[bool] = True

    @property
    @abstractmethod
    def scale(self) -> float:
        """Of the noise on one entry."""

    @property
    @override
    def cell(self) -> float:
        return noise.granularity(self.scale)

    @override
    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        return add_clipped(drawn, x, self.clip, self.order, self.cell)


@dataclass(frozen=True)
class Gaussian(_NoisyRows):
    """x̃ = x̄ + n, n ~ N(0, σ²C²I), x̄ = min(1, C/‖x‖₂)·x (VFGNN, Algorithm 1); σ is ``noise_multiplier``."""

    is_gaussian: ClassVar[bool] = True
    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_noise(self.clip, "noise_multiplier", self.noise_multiplier)

    @classmethod
    @override
    def for_one(cls, epsilon: float, delta: float, clips: float, calibration: Calibration) -> float:
        if calibration == "classical":
            return clips * accountant.classical_multiplier(epsilon, delta)
        return clips * accountant.analytic_multiplier(epsilon, delta)

    @classmethod
    @override
    def for_total(cls, epsilon: float, delta: float, releases: int, clips: float) -> float:
        """As ``Mechanism.for_total``: σ grows as √releases (Dong, Roth & Su 2022, corollary 3.3)."""
        check_whole("releases", releases, 1)
        return clips * (accountant.analytic_multiplier(epsilon, delta) * math.sqrt(releases))

    @property
    @override
    def scale(self) -> float:
        """Standard deviation: σC."""
        return self.noise_multiplier * self.clip

    @property
    @override
    def variance(self) -> float:
        return self.scale**2

    @override
    def draw(self, shape: tuple[int, ...], source: SecretSource) -> Tensor:
        return noise.gaussian(shape, self.scale, source)

    @override
    def event(self, neighbours: Neighbours = "zero-out", unit: Unit = "row") -> GaussianEvent:
        """Whatever is computed from the noisy rows costs nothing more."""
        return GaussianEvent(self.noise_multiplier, neighbours, unit)


@dataclass(frozen=True)
class Laplace(_NoisyRows):
    """x̃ = x̄ + n, n independent Laplace of scale bC, with x̄ = min(1, C/‖x‖₁)·x; b is ``scale_multiplier``.

    Pure ε-DP: δ = 0 up to the arithmetic.
    """

    order: ClassVar[int] = 1
    clip: float
    scale_multiplier: float

    def __post_init__(self) -> None:
        check_noise(self.clip, "scale_multiplier", self.scale_multiplier)

    @classmethod
    @override
    def for_one(cls, epsilon: float, delta: float, clips: float, calibration: Calibration) -> float:
        return clips / epsilon

    @classmethod
    @override
    def for_total(cls, epsilon: float, delta: float, releases: int, clips: float) -> float:
        return clips * accountant.laplace_scale_for_total(epsilon, delta, releases)

    @property
    @override
    def scale(self) -> float:
        """Of Laplace noise: b·C."""
        return self.scale_multiplier * self.clip

    @property
    @override
    def variance(self) -> float:
        return 2 * self.scale**2

    @override
    def draw(self, shape: tuple[int, ...], source: SecretSource) -> Tensor:
        return noise.laplace(shape, self.scale, source)

    @override
    def event(self, neighbours: Neighbours = "zero-out", unit: Unit = "row") -> LaplaceEvent:
        return LaplaceEvent(self.scale_multiplier, neighbours, unit)


@dataclass(frozen=True)
class JamesStein(Gaussian):
    """The Gaussian mechanism, then the James-Stein estimate of rows of d ≥ 3: post-processing, which costs nothing.

    VFGNN, Algorithm 1, line 6.
    """

    is_plain: ClassVar[bool] = False
    name: ClassVar[str] = "james-stein"
    positive_part: ClassVar[bool] = False

    @override
    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        if x.shape[-1] < _FEWEST_COLUMNS:
            raise ConfigError(
                f"mechanism={self.name!r} needs rows of at least {_FEWEST_COLUMNS} columns, not {x.shape[-1]}: use "
                "gaussian or a larger model.dim"
            )
        return james_stein(super().apply(x, drawn), self.scale, positive_part=self.positive_part)


@dataclass(frozen=True)
class JamesSteinPlus(JamesStein):
    """The same with the positive-part estimate."""

    name: ClassVar[str] = "james-stein-plus"
    positive_part: ClassVar[bool] = True


@torch.no_grad()
def james_stein(noisy: Tensor, standard_deviation: float, *, positive_part: bool = False) -> Tensor:
    """Shrink noisy rows, float64, in place towards zero: (1 - (d-2)s²/‖x̃‖²)·x̃ (VFGNN, Theorem 2, s = σC).

    The paper's eq. 8 drops C² in its leading factor and prints as equal what is an upper bound. For x ~ N(0, w²I),
    E[1/‖x̃‖²] = 1/((d-2)(w² + s²)), and so

        E‖x̃_JS - x‖² = d·s²·(1 - (d-2)/d · s²/(w² + s²)).

    The printed factor (d-2)²/d² comes from E[1/‖x̃‖²] ≥ 1/E‖x̃‖² = 1/(d(w² + s²)). ``positive_part``: shrink no further
    than to zero, where the plain estimate turns a short row round; never worse in mean squared error.
    """
    norms = torch.linalg.vector_norm(noisy, dim=1, keepdim=True).div_(standard_deviation)
    # No row on the grid lies between 0 and one step; the bound only keeps 0/0 out.
    factors = 1.0 - (noisy.shape[1] - 2) / norms.clamp_min_(2.0 ** -(noise.GRID_BITS + 2)).square_()
    return noisy.mul_(factors.clamp_min_(0.0) if positive_part else factors)
