"""Graph convolutions: GCN, GIN, APPNP, GAT and R-GCN."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.graph.rules import EVERY, Relation
from veilgraph.nn.layers import linear
from veilgraph.nn.local.model import HopModel, LocalSettings
from veilgraph.nn.propagate import Adjacency, first_rows


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


class AppnpSettings(LocalSettings):
    """How much of h^0 stays."""

    teleport: float = Field(0.1, ge=0, le=1, description="appnp's α")


class AppnpHop(nn.Module):
    """z ← (1 − α)·(A·z + z/P)/(degree + 1/P) + α·h^0, without weights (after Gasteiger et al. 2019).

    P is the number of holders, so that the holders' self-loops add up to one.
    """

    def __init__(self, teleport: float, holders: int) -> None:
        super().__init__()
        self._teleport = teleport
        self._self_weight = 1 / holders

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """One step of personalised propagation."""
        neighbours = adjacency.self_loop_mean(h, self._self_weight)
        return (1 - self._teleport) * neighbours + self._teleport * first_rows(initial, adjacency.num_targets)


class Appnp(HopModel[AppnpSettings]):
    """K hops of it."""

    settings = AppnpSettings
    words: ClassVar[str] = "its neighbours by personalised propagation (APPNP)"
    draws: ClassVar[bool] = False
    is_partitioned: ClassVar[bool] = True
    uses_initial: ClassVar[bool] = True
    is_fixed: ClassVar[bool] = True
    activates: ClassVar[bool] = False

    @override
    @staticmethod
    def hop(settings: AppnpSettings, dim: int, holders: int) -> nn.Module:
        return AppnpHop(settings.teleport, holders)


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


class RelationalSettings(LocalSettings):
    """How its weights start."""

    start: Literal["glorot", "average"] = Field(
        "glorot", description="first weights: random, or those of the mean of a node and its R relations' means"
    )


class RelationalHop(nn.Module):
    """W_0·h_v + Σ_r W_r·MEAN({h_u : u → v of relation r}) (Schlichtkrull et al. 2018, eq. 2, c_{i,r} their degree).

    A relation's mean is weighted where its edges have weights, and zero for a node without an edge of it. With one
    relation this is sage-mean. With ``averages`` it starts from W_0 = I/2 and W_r = I/(2R).
    """

    def __init__(self, dim: int, relations: Sequence[str], *, averages: bool = False) -> None:
        super().__init__()
        together = linear((1 + len(relations)) * dim, dim, bias=False).weight.detach()
        own, *others = (part.clone() for part in together.chunk(1 + len(relations), dim=1))
        if averages:
            nn.init.eye_(own).div_(2)
            for weight in others:
                nn.init.eye_(weight).div_(2 * len(others))
        self.own = nn.Parameter(own)
        self.related = nn.ParameterDict(
            {_key(name): nn.Parameter(w) for name, w in zip(relations, others, strict=True)}
        )
        self._relations = tuple(relations)

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """One hop."""
        result = first_rows(h, adjacency.num_targets) @ self.own.t()
        for name in self._relations:
            neighbours = adjacency.of_relation(name).mean(h)
            result = torch.addmm(result, neighbours, self.related[_key(name)].t())
        return result


def _key(name: str) -> str:
    """What a relation's weight is called: a text of which torch takes every one."""
    return "relation " + name.replace("%", "%25").replace(".", "%2E")


class Relational(HopModel[RelationalSettings]):
    """K hops of it; a relation that reaches fewer takes part in the last of them alone."""

    settings = RelationalSettings
    words: ClassVar[str] = "the mean of its neighbours, relation by relation (R-GCN)"
    is_relational: ClassVar[bool] = True
    draws: ClassVar[bool] = False

    def __init__(
        self,
        settings: RelationalSettings,
        dim: int,
        holders: int,
        *,
        normalize: bool,
        relations: Sequence[Relation] = (),
    ) -> None:
        hops = [self._hop(settings, dim, relations or (EVERY,), left) for left in range(settings.hops, 0, -1)]
        super().__init__(settings, dim, holders, normalize=normalize, hops=hops)

    @override
    @staticmethod
    def hop(settings: RelationalSettings, dim: int, holders: int) -> nn.Module:
        return Relational._hop(settings, dim, (EVERY,), 1)

    @staticmethod
    def _hop(settings: RelationalSettings, dim: int, relations: Sequence[Relation], left: int) -> nn.Module:
        """The hop after which ``left`` − 1 follow: edges of it count ``left`` hops from a node."""
        reaching = [each.name for each in relations if each.hops is None or each.hops >= left]
        return RelationalHop(dim, reaching, averages=settings.start == "average")
