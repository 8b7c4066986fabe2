"""A mechanism for a node's features, with an event of its own, as another package has it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override
from veilgraph_node_dp.mechanisms import FeatureMechanism

from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.privacy import noise
from veilgraph.privacy.event import Event, Neighbours, Unit


@dataclass(frozen=True)
class LogisticEvent(Event):
    """Logistic noise on all features of a node: the logarithm of its density has a slope of at most 1/scale."""

    kind: ClassVar[str] = "logistic"
    scale_multiplier: float
    neighbours: Neighbours = "replacement"
    unit: Unit = "node"

    @property
    def epsilon(self) -> float:
        return 1 / self.scale_multiplier


@dataclass(frozen=True)
class Logistic(FeatureMechanism):
    """x̃ = x + n, n independent logistic of scale (β − α)·d/ε, on a grid that tells nothing of x."""

    @property
    def _noise(self) -> float:
        return (self.high - self.low) * self.features / self.epsilon * (1 + 2.0**-20)  # room for what rounding moves

    @property
    @override
    def offset(self) -> float:
        return self.centre

    @override
    def variance(self, x: Tensor) -> Tensor:
        return torch.full(tuple(x.shape), (self._noise * math.pi) ** 2 / 3, dtype=torch.float64)

    @override
    def event(self) -> Event:
        return LogisticEvent(1 / self.epsilon)

    @override
    def _perturbed(self, x: Tensor, source: SecretSource) -> Tensor:
        cell, shape = noise.granularity(self._noise), tuple(x.shape)
        uniform = ((expand(source(SEED_BYTES), "logistic", shape) >> 11).double() + 2.0**52 + 0.5) * 2.0**-53
        values = torch.logit(uniform) * self._noise + (x.to_dense().double() - self.centre)
        return ((values / cell).round() * cell).float()
