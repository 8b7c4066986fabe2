"""Graph isomorphism network (Xu et al. 2019)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.nn.linear import linear
from veilgraph.nn.local.model import HopModel, LocalSettings
from veilgraph.nn.propagate import Adjacency, first_rows


class GinHop(nn.Module):
    """MLP((1 + ε)·h + A·h) with trainable ε (Xu et al. 2019); edge weights are used."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.epsilon = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(linear(dim, dim, bias=True), nn.ReLU(), linear(dim, dim, bias=True))

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """One isomorphism layer."""
        result: Tensor = self.mlp((1 + self.epsilon) * first_rows(h, adjacency.num_targets) + adjacency.sum(h))
        return result


class Gin(HopModel[LocalSettings]):
    """K hops of it."""

    words: ClassVar[str] = "the sum of its neighbours (GIN)"
    draws: ClassVar[bool] = False
    is_partitioned: ClassVar[bool] = True

    @override
    @staticmethod
    def hop(settings: LocalSettings, dim: int, holders: int) -> nn.Module:
        return GinHop(dim)
