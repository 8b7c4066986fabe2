"""A mechanism with an event of its own, as another package has it: docs/extending.md says how."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.privacy import noise
from veilgraph.privacy.event import Event, Neighbours, Unit, sensitivity_in_clips
from veilgraph.privacy.mechanism import Mechanism, add_clipped, check_noise


@dataclass(frozen=True)
class LogisticEvent(Event):
    """Logistic noise on rows clipped in ℓ1: the logarithm of its density has a slope of at most 1/scale."""

    kind: ClassVar[str] = "logistic"
    scale_multiplier: float
    neighbours: Neighbours = "zero-out"
    unit: Unit = "row"

    @property
    def epsilon(self) -> float:
        return sensitivity_in_clips(self.neighbours) / self.scale_multiplier

    def of_unit(self, unit: Literal["edge", "node"], rows: int) -> LogisticEvent:
        return LogisticEvent(self.scale_multiplier / rows, "replacement", unit)


@dataclass(frozen=True)
class Logistic(Mechanism):
    """x̃ = x̄ + n, n independent logistic of scale bC. Its calibration is found from its event."""

    order: ClassVar[int] = 1
    is_plain: ClassVar[bool] = True
    clip: float
    scale_multiplier: float

    def __post_init__(self) -> None:
        check_noise(self.clip, "scale_multiplier", self.scale_multiplier)

    @property
    def variance(self) -> float:
        return (self.scale_multiplier * self.clip * math.pi) ** 2 / 3

    @property
    def cell(self) -> float:
        return noise.granularity(self.scale_multiplier * self.clip)

    def draw(self, shape: tuple[int, ...], source: SecretSource) -> Tensor:
        uniform = ((expand(source(SEED_BYTES), "logistic", shape) >> 11).double() + 2.0**52 + 0.5) * 2.0**-53
        values = torch.logit(uniform) * self.scale_multiplier * self.clip
        return (values / self.cell).round() * self.cell + 0.0

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        return add_clipped(drawn, x, self.clip, self.order, self.cell)

    def event(self, neighbours: Neighbours = "zero-out", unit: Unit = "row") -> LogisticEvent:
        return LogisticEvent(self.scale_multiplier, neighbours, unit)
