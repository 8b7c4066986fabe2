"""Graph attention (Veličković et al. 2018)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.nn.local.model import HopModel, LocalSettings
from veilgraph.nn.propagate import Adjacency, first_rows

if TYPE_CHECKING:
    from torch_geometric.nn import GATConv


class GatSettings(LocalSettings):
    """How many heads attend."""

    heads: int = Field(4, ge=1, description="gat's attention heads; must divide dim")


@cache
def _attention() -> type[GATConv]:
    """PyTorch Geometric's attention with shares that are multiplied by weights."""
    from torch_geometric.nn import GATConv  # noqa: PLC0415  (seconds to import, and only this hop needs it)

    class WeightedAttention(GATConv):  # type: ignore[misc]
        def edge_update(
            self,
            alpha_j: Tensor,
            alpha_i: Tensor | None,
            edge_attr: Tensor | None,
            index: Tensor,
            ptr: Tensor | None,
            dim_size: int | None,
        ) -> Tensor:
            share: Tensor = super().edge_update(alpha_j, alpha_i, None, index, ptr, dim_size)
            if edge_attr is None:
                return share
            share = share * edge_attr
            total = share.new_zeros(dim_size or 0, share.shape[1]).index_add(0, index, share)
            return share / total.index_select(0, index)

    return WeightedAttention


class GatHop(nn.Module):
    """Graph attention with concatenated heads (Veličković et al. 2018), times the edges' weights.

    An edge's share is w·exp(a)/Σ w·exp(a), with its attention logit a; a node's own edge weighs 1. Attention is per
    edge and costs O(E·d) memory.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = _attention()(dim, dim // heads, heads=heads, fill_value=1.0)

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """One attention layer over neighbours and the node itself."""
        weight = adjacency.edge_weight
        column = None if weight is None else weight.unsqueeze(1).to(h)
        result: Tensor = self.attention(h, adjacency.edge_index.to(h.device), column)
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
