"""GraphSAGE with the maximum over the neighbours (Hamilton et al. 2017)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.nn.linear import linear
from veilgraph.nn.local.model import HopModel, LocalSettings
from veilgraph.nn.local.sage import SageHop
from veilgraph.nn.propagate import Adjacency


class SagePoolHop(SageHop):
    """AGG is the element-wise maximum of w·ReLU(W_pool·h_u + b), with an edge's weight w."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.pool = linear(dim, dim, bias=True)

    def aggregate(self, h: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """Maximum over neighbours."""
        return adjacency.maximum(torch.relu(self.pool(h)))


class SagePool(HopModel[LocalSettings]):
    """K hops of it."""

    words: ClassVar[str] = "the maximum over its neighbours (GraphSAGE)"
    draws: ClassVar[bool] = False
    is_partitioned: ClassVar[bool] = True

    @override
    @staticmethod
    def hop(settings: LocalSettings, dim: int, holders: int) -> nn.Module:
        return SagePoolHop(dim)
