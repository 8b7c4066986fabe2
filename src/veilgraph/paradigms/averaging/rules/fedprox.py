"""FedProx (Li et al. 2020, eq. 2): holders are held near the weights that they were sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from veilgraph.paradigms.averaging.rules.fedavg import FedAvg
from veilgraph.paradigms.averaging.rules.rule import Rule, RuleSettings


class FedProx(FedAvg):
    """As FedAvg, where a holder trains for loss + μ/2·‖w − w_start‖²."""

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
