"""Gaussian noise on rows clipped in the ℓ2 norm (VFGNN, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veilgraph.core.secrets import SecretSource
from veilgraph.privacy import calibrate, noise
from veilgraph.privacy.event import GaussianEvent
from veilgraph.privacy.mechanism import Mechanism, add_clipped, check_noise
from veilgraph.privacy.units import Calibration, Neighbours, Unit


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """x̃ = x̄ + n, n ~ N(0, σ²C²I), with x̄ = min(1, C/‖x‖₂)·x (VFGNN, Algorithm 1, lines 1-4).

    Args:
        clip: C, the largest ℓ2 norm of a row.
        noise_multiplier: σ, standard deviation of the noise over C.

    Raises:
        ConfigError: a parameter is out of range.
    """

    is_gaussian: ClassVar[bool] = True
    is_plain: ClassVar[bool] = True
    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_noise(self.clip, "noise_multiplier", self.noise_multiplier)

    @classmethod
    def for_one(cls, epsilon: float, delta: float, clips: float, calibration: Calibration) -> float:
        """See ``Mechanism.for_one``."""
        if calibration == "classical":
            return clips * calibrate.classical_multiplier(epsilon, delta, as_in_the_paper=True)
        return clips * calibrate.analytic_multiplier(epsilon, delta)

    @classmethod
    def for_total(cls, epsilon: float, delta: float, releases: int, clips: float) -> float:
        """See ``Mechanism.for_total``."""
        return clips * calibrate.multiplier_for_total(epsilon, delta, releases, "zero-out")

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
        return add_clipped(drawn, x, self.clip, 2, self.cell)

    def event(self, neighbours: Neighbours = "zero-out", unit: Unit = "row") -> GaussianEvent:
        """See ``Mechanism.event``. Whatever is computed from the noisy rows costs nothing more."""
        return GaussianEvent(self.noise_multiplier, neighbours, unit)
