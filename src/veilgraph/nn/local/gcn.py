"""Graph convolution (Kipf & Welling 2017)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.nn.linear import linear
from veilgraph.nn.local.model import HopModel, LocalSettings
from veilgraph.nn.propagate import Adjacency


class GcnHop(nn.Module):
    """D^-1/2·(A + I)·D^-1/2·h·W + b (Kipf & Welling 2017); edge weights are used."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = linear(dim, dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """One convolution."""
        return adjacency.gcn(self.weight(h)) + self.bias


class Gcn(HopModel[LocalSettings]):
    """K hops of it."""

    words: ClassVar[str] = "its neighbours, weighted by degree (GCN)"
    draws: ClassVar[bool] = False
    is_partitioned: ClassVar[bool] = True

    @override
    @staticmethod
    def hop(settings: LocalSettings, dim: int, holders: int) -> nn.Module:
        return GcnHop(dim)
