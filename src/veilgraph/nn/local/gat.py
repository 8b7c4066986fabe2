"""Graph attention (Veličković et al. 2018)."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.nn.local.model import HopModel, LocalSettings
from veilgraph.nn.propagate import Adjacency, first_rows


class GatSettings(LocalSettings):
    """How many heads attend."""

    heads: int = Field(4, ge=1, description="gat's attention heads; must divide dim")


class GatHop(nn.Module):
    """Graph attention with concatenated heads (Veličković et al. 2018); edge weights are not used.

    Attention is per edge and costs O(E·d) memory.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        from torch_geometric.nn import GATConv  # noqa: PLC0415  (seconds to import, and only this hop needs it)

        self.attention = GATConv(dim, dim // heads, heads=heads)

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """One attention layer over neighbours and the node itself."""
        result: Tensor = self.attention(h, adjacency.edge_index.to(h.device))
        return first_rows(result, adjacency.num_targets)


class Gat(HopModel[GatSettings]):
    """K hops of it."""

    settings = GatSettings
    words: ClassVar[str] = "its neighbours, weighted by attention (GAT)"
    draws: ClassVar[bool] = False

    @override
    @classmethod
    def check(cls, settings: GatSettings, dim: int) -> None:
        if dim % settings.heads:
            raise ValueError(f"local.heads={settings.heads} does not divide dim={dim}; change one of them")

    @override
    @staticmethod
    def hop(settings: GatSettings, dim: int, holders: int) -> nn.Module:
        return GatHop(dim, settings.heads)
