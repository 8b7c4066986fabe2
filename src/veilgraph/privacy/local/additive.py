"""Local mechanisms that add noise to every feature, to compare the multi-bit mechanism with.

Two vectors of [α, β]^d are at most (β − α)·√d apart in the ℓ2 norm and (β − α)·d in the ℓ1 norm. Around the range's
centre they lie in a ball of half that size, which is what the row mechanisms clip to, under replacement (2C).

Unlike the multi-bit mechanism's, their ε is not exact but has the error that ``noise`` bounds and that grows with d: at
5,000 features at most 0.001 (Gaussian) or 0.002 (Laplace) is added to ε, typically 0.0001.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import SecretSource
from veilgraph.privacy.calibrate import analytic_multiplier
from veilgraph.privacy.event import Event, LocalEvent
from veilgraph.privacy.gaussian import Gaussian
from veilgraph.privacy.laplace import Laplace
from veilgraph.privacy.local.features import FeatureMechanism, row_blocks
from veilgraph.privacy.local.settings import FeatureReleaseSettings

PIECE = 1 << 20  # entries noised at once
_ROOM = 1 + 2.0**-31
"""On the clip, so that it never shortens a vector of the range, whose corners would not be unbiased then."""


@dataclass(frozen=True)
class _Additive(FeatureMechanism):
    """x̃ = x + noise; ``release`` returns a dense float32 tensor.

    The noise is on a grid of at most 2^-20 of its scale, and so is x before it: beyond that there is no bias.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._rows  # refuses what cannot be calibrated

    @property
    def scale(self) -> float:
        """1: a release is unbiased as it is."""
        return 1.0

    @property
    def offset(self) -> float:
        """0."""
        return 0.0

    def variance(self, x: Tensor) -> Tensor:
        """See ``FeatureMechanism.variance``; the same for every x."""
        return torch.full(x.shape, self._rows.variance, dtype=torch.float64)

    @cached_property
    @abstractmethod
    def _rows(self) -> Gaussian | Laplace:
        """The mechanism for x − centre."""

    def _perturbed(self, x: Tensor, source: SecretSource) -> Tensor:
        released = torch.empty(x.shape)
        for start, block in row_blocks(x, PIECE):
            noisy = self._rows.release(block.to(torch.float64) - self.centre, source)
            released[start : start + len(block)] = noisy.add_(self.centre)
        return released


@dataclass(frozen=True)
class AnalyticGaussian(_Additive):
    """Gaussian noise with the least σ that makes a node's release (ε, δ)-private (Balle & Wang 2018).

    Args:
        epsilon: ε of one node's release, all its features together.
        low: α, the least value a feature may have.
        high: β, the largest.
        features: d, the number of features of a node.
        delta: δ of one node's release, 0 < δ < 1.

    Raises:
        ConfigError: a parameter is out of range.
    """

    has_delta: ClassVar[bool] = True
    is_gaussian: ClassVar[bool] = True
    delta: float

    @classmethod
    def of(cls, settings: FeatureReleaseSettings, features: int) -> AnalyticGaussian:
        """See ``FeatureMechanism.of``."""
        if settings.delta is None:
            raise ConfigError("delta: mechanism='gaussian' needs a δ; give one")
        return cls(settings.epsilon, settings.low, settings.high, features, settings.delta)

    def event(self) -> Event:
        """See ``FeatureMechanism.event``."""
        return self._rows.event("replacement", "node")

    @cached_property
    def _rows(self) -> Gaussian:
        clip = (self.high - self.low) / 2 * math.sqrt(self.features) * _ROOM
        return Gaussian(clip, 2 * analytic_multiplier(self.epsilon, self.delta))


@dataclass(frozen=True)
class LocalLaplace(_Additive):
    """Laplace noise of scale (β − α)·d/ε on every feature (pure ε). The arguments are ``FeatureMechanism``'s."""

    def event(self) -> LocalEvent:
        """See ``FeatureMechanism.event``."""
        return LocalEvent(self.epsilon, "node")

    @cached_property
    def _rows(self) -> Laplace:
        return Laplace((self.high - self.low) / 2 * self.features * _ROOM, 2 / self.epsilon)
