"""FedAdam (Reddi et al. 2021, Algorithm 2): the server takes a step of Adam along the mean change."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from veilgraph.paradigms.averaging.rules.rule import Rule, RuleSettings


class FedAdam(Rule):
    """m ← β₁·m + (1 − β₁)·Δ, v ← β₂·v + (1 − β₂)·Δ², w ← w + η·m / (√v + τ)."""

    words: ClassVar[str] = "takes a step of Adam along the mean of the holders' changes"

    def __init__(self, settings: FedAdamSettings, size: int) -> None:
        self._settings = settings
        self._first = torch.zeros(size, dtype=torch.float64)
        self._second = torch.zeros(size, dtype=torch.float64)

    @override
    def step(self, weights: Tensor, mean: Tensor) -> Tensor:
        one, two = self._settings.beta_1, self._settings.beta_2
        self._first.mul_(one).add_(mean, alpha=1 - one)
        self._second.mul_(two).add_(mean.square(), alpha=1 - two)
        return weights + self._settings.server_rate * self._first / (self._second.sqrt() + self._settings.tau)

    @override
    def state(self) -> dict[str, Tensor]:
        return {"first": self._first, "second": self._second}


class FedAdamSettings(RuleSettings):
    """FedAdam."""

    name: Literal["fedadam"] = "fedadam"
    server_rate: float = Field(0.01, gt=0, description="η: length of the server's step")
    beta_1: float = Field(0.9, ge=0, lt=1, description="β₁: how slowly the mean change is forgotten")
    beta_2: float = Field(0.99, ge=0, lt=1, description="β₂: how slowly its square is forgotten")
    tau: float = Field(1e-3, gt=0, description="τ: below which a change is not made longer")

    @override
    def build(self, size: int, learning_rate: float) -> Rule:
        return FedAdam(self, size)
