"""What the GraphSAGE models share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.nn.linear import linear
from veilgraph.nn.propagate import Adjacency, first_rows


class SageHop(nn.Module, ABC):
    """W·CONCAT(h_v, AGG({h_u : u → v})) (VFGNN eq. 4); the subclass is the AGG."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.update = linear(2 * dim, dim, bias=False)

    @abstractmethod
    def aggregate(self, h: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """AGG of every target's neighbours: Tensor[N, d] to Tensor[T, d]."""

    @override
    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        neighbours = self.aggregate(h, adjacency, generator)
        own, others = torch.split(self.update.weight.t(), h.shape[1])  # W·CONCAT without the [T, 2d] that it would take
        return torch.addmm(neighbours @ others, first_rows(h, adjacency.num_targets), own)
