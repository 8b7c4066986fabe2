"""Rules of federated averaging: what holders train for, and what the server makes of the sum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from veilgraph.core.settings import Settings


class Rule(ABC):
    """One kind of averaging, at a holder and at the server.

    Attributes:
        words: what the server makes of the holders' mean, in a sentence.
        sends_gradients: whether a holder gives its gradient in place of how its weights have changed.
    """

    words: ClassVar[str]
    sends_gradients: ClassVar[bool] = False

    def local_loss(self, loss: Tensor, weights: Sequence[Tensor], start: Sequence[Tensor]) -> Tensor:
        """What a holder trains for.

        Args:
            loss: mean loss of its training examples.
            weights: as they are in this local epoch.
            start: as the server sent them.
        """
        return loss

    @abstractmethod
    def step(self, weights: Tensor, mean: Tensor) -> Tensor:
        """The server's next weights.

        Args:
            weights: Tensor[W] float64, as the holders had them.
            mean: Tensor[W] float64, of the holders' changes or gradients, weighted by their training nodes.
        """

    def state(self) -> dict[str, Tensor]:
        """What the server keeps from round to round, live."""
        return {}


class RuleSettings(Settings):
    """Which rule, and what it needs."""

    def build(self, size: int, learning_rate: float) -> Rule:
        """The rule, for ``size`` weights and the job's ``train.learning_rate``."""
        raise NotImplementedError


class FedAvg(Rule):
    """w ← w + η·Σ n_i·Δ_i / Σ n_i, which for η = 1 is the mean of the holders' weights.

    McMahan et al. 2017, Algorithm 1.
    """

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


class FedProx(FedAvg):
    """As FedAvg, where a holder trains for loss + μ/2·‖w − w_start‖² (Li et al. 2020, eq. 2)."""

    def __init__(self, server_rate: float, mu: float) -> None:
        super().__init__(server_rate)
        self._mu = mu

    @override
    def local_loss(self, loss: Tensor, weights: Sequence[Tensor], start: Sequence[Tensor]) -> Tensor:
        away = [(now - before).square().sum() for now, before in zip(weights, start, strict=True)]
        return loss + self._mu / 2 * torch.stack(away).sum()


class FedProxSettings(RuleSettings):
    """FedProx."""

    name: Literal["fedprox"] = "fedprox"
    server_rate: float = Field(1.0, gt=0, description="η: how far the server goes along the mean change")
    mu: float = Field(0.01, ge=0, description="μ: how strongly a holder's weights are held near those it was sent")

    @override
    def build(self, size: int, learning_rate: float) -> Rule:
        return FedProx(self.server_rate, self.mu)


class FedSgd(Rule):
    """v ← β·v + Σ n_i·g_i / Σ n_i, w ← w − η·v, with η the job's ``train.learning_rate``.

    McMahan et al. 2017, section 2: the gradient of all holders' training nodes together, and one step of it. With
    momentum at the server (Hsu, Qi & Brown 2019, FedAvgM): what it keeps is made of what holders gave, and no more.
    """

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


class FedAdam(Rule):
    """m ← β₁·m + (1 − β₁)·Δ, v ← β₂·v + (1 − β₂)·Δ², w ← w + η·m / (√v + τ) (Reddi et al. 2021, Algorithm 2)."""

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


AnyRuleSettings = Annotated[
    FedAvgSettings | FedProxSettings | FedSgdSettings | FedAdamSettings, Field(discriminator="name")
]
"""Of whichever rule they name."""
