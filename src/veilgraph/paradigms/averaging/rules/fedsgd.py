"""FedSGD (McMahan et al. 2017, section 2): the gradient of all holders' training nodes together, and one step of it.

With momentum at the server (Hsu, Qi & Brown 2019, FedAvgM): what it keeps is made of what holders gave, and no more.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from veilgraph.paradigms.averaging.rules.rule import Rule, RuleSettings


class FedSgd(Rule):
    """v ← β·v + Σ n_i·g_i / Σ n_i, w ← w − η·v, with η the job's ``train.learning_rate``."""

    words: ClassVar[str] = "takes a step down the mean of the holders' gradients"
    sends_gradients: ClassVar[bool] = True

    def __init__(self, learning_rate: float, momentum: float, size: int) -> None:
        self._rate, self._momentum = learning_rate, momentum
        self._velocity = torch.zeros(size if momentum else 0, dtype=torch.float64)

    @override
    def step(self, weights: Tensor, mean: Tensor) -> Tensor:
        if not self._momentum:
            return weights - self._rate * mean
        return weights - self._rate * self._velocity.mul_(self._momentum).add_(mean)

    @override
    def state(self) -> dict[str, Tensor]:
        return {"velocity": self._velocity} if self._momentum else {}


class FedSgdSettings(RuleSettings):
    """FedSGD; its step is ``train.learning_rate``."""

    name: Literal["fedsgd"] = "fedsgd"
    momentum: float = Field(0.0, ge=0, lt=1, description="β: how slowly the mean gradient is forgotten")

    @override
    def build(self, size: int, learning_rate: float) -> Rule:
        return FedSgd(learning_rate, self.momentum, size)
