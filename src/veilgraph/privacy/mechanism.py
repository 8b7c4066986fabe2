"""Noise on rows: clip every row, put it on the grid, add noise (VFGNN, Algorithm 1, whose line 4 prints x^K for x̄).

Clipping shortens a row to C·(1 - 2^-32) and then rounds every entry *towards zero* to the noise's grid. Rounding never
lengthens a row, and 2^-32 is more than float64's errors in the norm of up to 2^20 columns; so the exact norm of what
the noise is added to is at most C, the sensitivity that the event claims (``noise`` says why the grid).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError, RangeOverflow
from veilgraph.core.secrets import SecretSource
from veilgraph.privacy import accountant, noise
from veilgraph.privacy.event import GaussianEvent, LaplaceEvent, Neighbours, Unit

_LARGEST_ENTRY = 1e150  # squares still fit float64
_CLIP_MARGIN = 1.0 - 2.0**-32
_PIECE = 1 << 16  # entries clipped at once, so that temporaries stay in the cache


@torch.no_grad()
def clip_to_grid(x: Tensor, clip: float, order: int, step: float) -> Tensor:
    """Shorten rows, Tensor[N, d], to a norm of ``order`` of at most ``clip``, on a grid of ``step``.

    Entries are rounded towards zero. ``step`` is a power of two, at least clip·2^-52. Gives float64; one row's result
    does not depend on the others. Raises ``RangeOverflow`` where an entry is NaN, infinite or above 1e150 in magnitude.
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
    """Clip rows [N, d] by ``clip_to_grid``, add them to ``values`` in place, and return these."""
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


class Mechanism(ABC):
    """Clipped rows, and independent noise of one scale on every entry, both on the noise's grid.

    ``clip``: C, the largest norm of a row before noise, of ``order`` 1 or 2.
    """

    clip: float
    order: ClassVar[int] = 2

    @property
    @abstractmethod
    def scale(self) -> float:
        """Scale of the noise on one entry."""

    @property
    @abstractmethod
    def variance(self) -> float:
        """Variance of the noise on one entry."""

    @abstractmethod
    def draw(self, shape: tuple[int, ...], source: SecretSource) -> Tensor:
        """Draw the noise of one release, Tensor[N, d] float64, from a seed of ``source``."""

    @property
    def cell(self) -> float:
        """Step of the public grid that released entries lie on."""
        return noise.granularity(self.scale)

    def release(self, x: Tensor, source: SecretSource) -> Tensor:
        """Clip rows, Tensor[N, d] floating, and add noise: float64; ``RangeOverflow``: NaN, infinite or above 1e150."""
        return add_clipped(self.draw(tuple(x.shape), source), x, self.clip, self.order, self.cell)


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """x̃ = x̄ + n, n ~ N(0, σ²C²I), x̄ = min(1, C/‖x‖₂)·x (VFGNN, Algorithm 1); σ is ``noise_multiplier``."""

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_noise(self.clip, "noise_multiplier", self.noise_multiplier)

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

    def event(self, neighbours: Neighbours = "zero-out", unit: Unit = "node") -> GaussianEvent:
        """Return the event of one release; whatever is computed from the noisy rows costs nothing more."""
        return GaussianEvent(self.noise_multiplier, neighbours, unit)


@dataclass(frozen=True)
class Laplace(Mechanism):
    """x̃ = x̄ + n, n independent Laplace of scale bC, with x̄ = min(1, C/‖x‖₁)·x; b is ``scale_multiplier``.

    Pure ε-DP: δ = 0 up to the arithmetic.
    """

    order: ClassVar[int] = 1
    clip: float
    scale_multiplier: float

    def __post_init__(self) -> None:
        check_noise(self.clip, "scale_multiplier", self.scale_multiplier)

    @property
    @override
    def scale(self) -> float:
        """Scale of the Laplace noise: b·C."""
        return self.scale_multiplier * self.clip

    @property
    @override
    def variance(self) -> float:
        return 2 * self.scale**2

    @override
    def draw(self, shape: tuple[int, ...], source: SecretSource) -> Tensor:
        return noise.laplace(shape, self.scale, source)

    def event(self, neighbours: Neighbours = "zero-out", unit: Unit = "node") -> LaplaceEvent:
        """Return the event of one release; whatever is computed from the noisy rows costs nothing more."""
        return LaplaceEvent(self.scale_multiplier, neighbours, unit)
