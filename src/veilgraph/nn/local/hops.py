"""The local models of hops: GraphSAGE (Hamilton et al. 2017) with four aggregations, GCN, GIN, APPNP, GAT and R-GCN."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import override

from veilgraph.graph.rules import EVERY, Relation
from veilgraph.nn.layers import linear
from veilgraph.nn.local.model import HopModel, LocalSettings, S
from veilgraph.nn.propagate import Adjacency, first_rows


class _SageHop(nn.Module, ABC):
    """W·CONCAT(h_v, AGG({h_u : u → v})) (VFGNN eq. 4); the subclass is the AGG."""

    def __init__(self, settings: LocalSettings, dim: int, holders: int) -> None:
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


class SageMeanSettings(LocalSettings):
    """How its weights start."""

    start: Literal["glorot", "average"] = "glorot"
    """first weights: random, or the mean of a node and its neighbours (sage-mean, relational)"""

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        """Refuse ``start: average`` for a model that has no mean to start from."""
        if self.start == "average" and not issubclass(self.kind.settings, SageMeanSettings):
            raise ValueError(
                f"start='average' is for model='sage-mean', not {self.model!r}: only there it is the mean of a node "
                "and its neighbours; leave start out or choose sage-mean"
            )
        return self


class _SageMeanHop(_SageHop):
    """AGG is the mean, weighted where edges have weights; zero for a node without neighbours.

    With ``start: average`` it starts from W = [I/2, I/2], the mean of a node and its neighbours. With few labels that
    is worth more than ten points of accuracy on the citation graphs.
    """

    def __init__(self, settings: SageMeanSettings, dim: int, holders: int) -> None:
        super().__init__(settings, dim, holders)
        if settings.start == "average":
            with torch.no_grad():
                self.update.weight.copy_(torch.eye(dim).repeat(1, 2) / 2)

    @override
    def aggregate(self, h: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        return adjacency.mean(h)


class _ProductModel(HopModel[S]):
    """Local models whose hops use products of ``Adjacency`` alone: they draw nothing, and run on several machines."""

    draws: ClassVar[bool] = False
    is_partitioned: ClassVar[bool] = True


class SageMean(_ProductModel[SageMeanSettings]):
    """GraphSAGE with the mean over neighbours, K hops."""

    settings = SageMeanSettings
    words: ClassVar[str] = "the mean of its neighbours (GraphSAGE)"
    hop = _SageMeanHop


class _SagePoolHop(_SageHop):
    """AGG is the element-wise maximum of w·ReLU(W_pool·h_u + b), with an edge's weight w."""

    def __init__(self, settings: LocalSettings, dim: int, holders: int) -> None:
        super().__init__(settings, dim, holders)
        self.pool = linear(dim, dim, bias=True)

    def aggregate(self, h: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """Maximum of w·ReLU(W_pool·h_u + b) over neighbours u: Tensor[N, d] to Tensor[T, d]."""
        return adjacency.maximum(torch.relu(self.pool(h)))


class SagePool(_ProductModel[LocalSettings]):
    """GraphSAGE with a maximum over neighbours, K hops."""

    words: ClassVar[str] = "the maximum over its neighbours (GraphSAGE)"
    hop = _SagePoolHop


class _SageLstmHop(_SageHop):
    """AGG is the last state of an LSTM over the neighbours, each times its edge's weight.

    The neighbours come in random order in training (Hamilton et al. 2017, section 3.3) and in the order of
    ``edge_index`` in evaluation. Sequences are packed, not padded: a node's result does not depend on how many
    neighbours others have, and a node without neighbours gets zero. Costs O(E·d) memory.
    """

    def __init__(self, settings: LocalSettings, dim: int, holders: int) -> None:
        super().__init__(settings, dim, holders)
        self.lstm = nn.LSTM(dim, dim, batch_first=False)

    def aggregate(self, h: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """Return each target's last LSTM state, Tensor[T, d]; runs all sequences as one packed batch, longest first."""
        edges = adjacency.edge_index.shape[1]
        nothing = torch.zeros_like(h[: adjacency.num_targets])
        if edges == 0:
            return nothing
        order = torch.arange(edges) if generator is None else torch.randperm(edges, generator=generator)
        source, target = adjacency.edge_index[:, order]
        lengths = torch.bincount(target, minlength=adjacency.num_targets)
        by_target = torch.argsort(target, stable=True)
        position = torch.empty_like(by_target)
        position[by_target] = torch.arange(edges)
        place = position - (lengths.cumsum(0) - lengths)[target]  # of an edge among its target's
        nodes = torch.argsort(lengths, descending=True, stable=True)[: int((lengths > 0).sum())]
        rank = torch.empty_like(lengths)
        rank[nodes] = torch.arange(len(nodes))
        steps = torch.argsort(place * len(nodes) + rank[target])
        rows, weight = h.index_select(0, source[steps].to(h.device)), adjacency.edge_weight
        if weight is not None:
            rows = rows * weight[order][steps].unsqueeze(1).to(h)
        _, (last, _) = self.lstm(PackedSequence(rows, torch.bincount(place)))
        return nothing.index_copy(0, nodes.to(h.device), last[0])


class SageLstm(HopModel[LocalSettings]):
    """GraphSAGE with an LSTM over neighbours, K hops."""

    words: ClassVar[str] = "its neighbours in a random order (GraphSAGE, LSTM)"
    hop = _SageLstmHop


class SageVpaSettings(LocalSettings):
    """How alike a node's neighbours are taken to be."""

    correlation: float = Field(0.02, ge=0, le=1)
    """assumed correlation ρ of neighbours; 0: sum by the root of their number, 1: mean"""


class _SageVpaHop(_SageHop):
    """AGG is the sum divided by the standard deviation that it has for neighbours of variance 1; weighted by edges.

    A mean is the same of two neighbours and of two hundred; here more of them that agree say more, up to 1/√ρ times as
    much. Without that bound, which is not in the paper, a hub would drown the nodes around it.
    """

    def __init__(self, settings: SageVpaSettings, dim: int, holders: int) -> None:
        super().__init__(settings, dim, holders)
        self.correlation = settings.correlation

    @override
    def aggregate(self, h: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """(A·h)/√((1 − ρ)·Σ w² + ρ·(Σ w)²)."""
        return adjacency.unit_variance_sum(h, self.correlation)


class SageVpa(_ProductModel[SageVpaSettings]):
    """GraphSAGE with a sum of unit variance over neighbours, K hops."""

    settings = SageVpaSettings
    words: ClassVar[str] = "the sum of its neighbours by the root of their number (GraphSAGE, VPA)"
    hop = _SageVpaHop


class _GcnHop(nn.Module):
    """D^-1/2·(A + I)·D^-1/2·h·W + b (Kipf & Welling 2017); edge weights are used."""

    def __init__(self, settings: LocalSettings, dim: int, holders: int) -> None:
        super().__init__()
        self.weight = linear(dim, dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """One convolution: Tensor[N, d] to Tensor[T, d]."""
        return adjacency.gcn(self.weight(h)) + self.bias


class Gcn(_ProductModel[LocalSettings]):
    """Graph convolutional network, K hops."""

    words: ClassVar[str] = "its neighbours, weighted by degree (GCN)"
    hop = _GcnHop


class _GinHop(nn.Module):
    """MLP((1 + ε)·h + A·h) with trainable ε (Xu et al. 2019); edge weights are used."""

    def __init__(self, settings: LocalSettings, dim: int, holders: int) -> None:
        super().__init__()
        self.epsilon = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(linear(dim, dim, bias=True), nn.ReLU(), linear(dim, dim, bias=True))

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """One isomorphism layer: Tensor[N, d] to Tensor[T, d]."""
        result: Tensor = self.mlp((1 + self.epsilon) * first_rows(h, adjacency.num_targets) + adjacency.sum(h))
        return result


class Gin(_ProductModel[LocalSettings]):
    """Graph isomorphism network, K hops."""

    words: ClassVar[str] = "the sum of its neighbours (GIN)"
    hop = _GinHop


class AppnpSettings(LocalSettings):
    """How much of h^0 stays."""

    teleport: float = Field(0.1, ge=0, le=1)
    """appnp's α"""


class AppnpHop(nn.Module):
    """z ← (1 − α)·(A·z + z/P)/(degree + 1/P) + α·h^0 (after Gasteiger et al. 2019): P holders' self-loops are one."""

    def __init__(self, settings: AppnpSettings, dim: int, holders: int) -> None:
        super().__init__()
        self._teleport = settings.teleport
        self._self_weight = 1 / holders

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """One step of personalised propagation: z as ``h`` [N, d], h^0 as ``initial``, to Tensor[T, d]."""
        neighbours = adjacency.self_loop_mean(h, self._self_weight)
        return (1 - self._teleport) * neighbours + self._teleport * first_rows(initial, adjacency.num_targets)


class Appnp(_ProductModel[AppnpSettings]):
    """Personalised propagation without weights, K hops."""

    settings = AppnpSettings
    words: ClassVar[str] = "its neighbours by personalised propagation (APPNP)"
    uses_initial: ClassVar[bool] = True
    is_fixed: ClassVar[bool] = True
    activates: ClassVar[bool] = False
    hop = AppnpHop


if TYPE_CHECKING:
    from torch_geometric.nn import GATConv


class GatSettings(LocalSettings):
    """How many heads attend."""

    heads: int = Field(4, ge=1)
    """gat's attention heads, a divisor of dim"""


@cache
def _attention() -> type[GATConv]:
    """Return a ``GATConv`` class whose attention shares are multiplied by edge weights and normalised again."""
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

        def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
            """Do without code made from PyG's templates: PyG would leave it in the temporary folder."""

    return WeightedAttention


class _GatHop(nn.Module):
    """Graph attention with concatenated heads (Veličković et al. 2018), times the edges' weights.

    An edge's share is w·exp(a)/Σ w·exp(a), with its attention logit a; a node's own edge weighs 1. Attention is per
    edge and costs O(E·d) memory.
    """

    def __init__(self, settings: GatSettings, dim: int, holders: int) -> None:
        super().__init__()
        heads = settings.heads
        self.attention = _attention()(dim, dim // heads, heads=heads, fill_value=1.0)

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """One attention layer over neighbours and the node itself: Tensor[N, d] to Tensor[T, d]."""
        weight = adjacency.edge_weight
        column = None if weight is None else weight.unsqueeze(1).to(h)
        result: Tensor = self.attention(h, adjacency.edge_index.to(h.device), column)
        return first_rows(result, adjacency.num_targets)


class Gat(HopModel[GatSettings]):
    """Graph attention network, K hops."""

    settings = GatSettings
    words: ClassVar[str] = "its neighbours, weighted by attention (GAT)"
    draws: ClassVar[bool] = False

    @override
    @classmethod
    def check(cls, settings: GatSettings, dim: int) -> None:
        if dim % settings.heads:
            raise ValueError(f"local.heads={settings.heads} does not divide dim={dim}; change one of them")

    hop = _GatHop


class RelationalSettings(LocalSettings):
    """How its weights start."""

    start: Literal["glorot", "average"] = "glorot"
    """first weights: random, or those of the mean of a node and its R relations' means"""


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
            {_parameter_name(name): nn.Parameter(w) for name, w in zip(relations, others, strict=True)}
        )
        self._relations = tuple(relations)

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """One relational hop: Tensor[N, d] to Tensor[T, d]."""
        result = first_rows(h, adjacency.num_targets) @ self.own.t()
        for name in self._relations:
            neighbours = adjacency.of_relation(name).mean(h)
            result = torch.addmm(result, neighbours, self.related[_parameter_name(name)].t())
        return result


def _parameter_name(name: str) -> str:
    """Name a relation's weight in a ``ParameterDict``, with % and . escaped, as torch takes no dot in a name."""
    return "relation " + name.replace("%", "%25").replace(".", "%2E")


class Relational(HopModel[RelationalSettings]):
    """Relational GCN, K hops; a relation that reaches fewer hops takes part in the last of them alone."""

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
        """Build the hop after which ``left`` − 1 follow, without the relations that reach fewer than ``left`` hops."""
        reaching = [each.name for each in relations if each.hops is None or each.hops >= left]
        return RelationalHop(dim, reaching, averages=settings.start == "average")
