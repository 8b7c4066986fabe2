"""FedSGD (McMahan et al. 2017, section 2): the gradient of all holders' training nodes together, and one step of it."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor
from typing_extensions import override

from veilgraph.paradigms.averaging.rules.rule import Rule, RuleSettings


class FedSgd(Rule):
    """w ← w − η·Σ n_i·g_i / Σ n_i, with η the job's ``train.learning_rate``."""

    words: ClassVar[str] = "takes a step down the mean of the holders' gradients"
    sends_gradients: ClassVar[bool] = True

    def __init__(self, learning_rate: float) -> None:
        self._rate = learning_rate

    @override
    def step(self, weights: Tensor, mean: Tensor) -> Tensor:
        return weights - self._rate * mean


class FedSgdSettings(RuleSettings):
    """FedSGD; its step is ``train.learning_rate``."""

    name: Literal["fedsgd"] = "fedsgd"

    @override
    def build(self, size: int, learning_rate: float) -> Rule:
        return FedSgd(learning_rate)
