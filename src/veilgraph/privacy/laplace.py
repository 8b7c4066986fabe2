"""Laplace noise on rows clipped in the ℓ1 norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veilgraph.core.secrets import SecretSource
from veilgraph.privacy import calibrate, noise
from veilgraph.privacy.event import LaplaceEvent
from veilgraph.privacy.mechanism import Mechanism, add_clipped, check_noise
from veilgraph.privacy.units import Calibration, Neighbours, Unit


@dataclass(frozen=True)
class Laplace(Mechanism):
    """x̃ = x̄ + n, n independent Laplace of scale bC, with x̄ = min(1, C/‖x‖₁)·x. Pure ε-DP: δ = 0 up to the arithmetic.

    Args:
        clip: C, the largest ℓ1 norm of a row.
        scale_multiplier: b, scale of the noise over C.

    Raises:
        ConfigError: a parameter is out of range.
    """

    order: ClassVar[int] = 1
    is_plain: ClassVar[bool] = True
    clip: float
    scale_multiplier: float

    def __post_init__(self) -> None:
        check_noise(self.clip, "scale_multiplier", self.scale_multiplier)

    @classmethod
    def for_one(cls, epsilon: float, delta: float, clips: float, calibration: Calibration) -> float:
        """See ``Mechanism.for_one``."""
        return clips / epsilon

    @classmethod
    def for_total(cls, epsilon: float, delta: float, releases: int, clips: float) -> float:
        """See ``Mechanism.for_total``."""
        return clips * calibrate.laplace_scale_for_total(epsilon, delta, releases)

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
        return add_clipped(drawn, x, self.clip, 1, self.cell)

    def event(self, neighbours: Neighbours = "zero-out", unit: Unit = "row") -> LaplaceEvent:
        """See ``Mechanism.event``."""
        return LaplaceEvent(self.scale_multiplier, neighbours, unit)
