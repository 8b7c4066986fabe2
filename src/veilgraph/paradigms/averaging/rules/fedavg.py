"""FedAvg (McMahan et al. 2017, Algorithm 1): the weights move by the mean of the holders' changes."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor
from typing_extensions import override

from veilgraph.paradigms.averaging.rules.rule import Rule, RuleSettings


class FedAvg(Rule):
    """w ← w + η·Σ n_i·Δ_i / Σ n_i, which for η = 1 is the mean of the holders' weights."""

    words: ClassVar[str] = "adds the mean of the holders' changes to the weights"

    def __init__(self, server_rate: float) -> None:
        self._rate = server_rate

    @override
    def step(self, weights: Tensor, mean: Tensor) -> Tensor:
        return weights + self._rate * mean


class FedAvgSettings(RuleSettings):
    """FedAvg."""

    name: Literal["fedavg"] = Field(
        "fedavg", description="what holders train for, and what the server makes of the sum"
    )
    server_rate: float = Field(1.0, gt=0, description="η: how far the server goes along the mean change")

    @override
    def build(self, size: int, learning_rate: float) -> Rule:
        return FedAvg(self.server_rate)
