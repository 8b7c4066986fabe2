"""GraphSAGE, by how neighbours are aggregated (Hamilton et al. 2017; VPA: Schneckenreiter et al. 2024)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import override

from veilgraph.nn.layers import linear
from veilgraph.nn.local.model import HopModel, LocalSettings
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


class SageMeanSettings(LocalSettings):
    """How its weights start."""

    start: Literal["glorot", "average"] = Field(
        "glorot",
        description="first weights: random, or [I/2, I/2], the mean of a node and its neighbours (sage-mean; "
        "relational likewise)",
    )

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        if self.start == "average" and not issubclass(self.kind.settings, SageMeanSettings):
            raise ValueError(
                f"start='average' is for model='sage-mean', not {self.model!r}: only there it is the mean of a node "
                "and its neighbours; leave start out or choose sage-mean"
            )
        return self


class SageMeanHop(SageHop):
    """AGG is the mean, weighted where edges have weights; zero for a node without neighbours.

    With ``averages`` it starts from W = [I/2, I/2], the mean of a node and its neighbours. With few labels that is
    worth more than ten points of accuracy on the citation graphs.
    """

    def __init__(self, dim: int, *, averages: bool = False) -> None:
        super().__init__(dim)
        if averages:
            with torch.no_grad():
                self.update.weight.copy_(torch.eye(dim).repeat(1, 2) / 2)

    def aggregate(self, h: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """(A·h)/degree."""
        return adjacency.mean(h)


class SageMean(HopModel[SageMeanSettings]):
    """K hops of it."""

    settings = SageMeanSettings
    words: ClassVar[str] = "the mean of its neighbours (GraphSAGE)"
    draws: ClassVar[bool] = False
    is_partitioned: ClassVar[bool] = True

    @override
    @staticmethod
    def hop(settings: SageMeanSettings, dim: int, holders: int) -> nn.Module:
        return SageMeanHop(dim, averages=settings.start == "average")


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


class SageLstmHop(SageHop):
    """AGG is the last state of an LSTM over the neighbours, each times its edge's weight.

    The neighbours come in random order in training (Hamilton et al. 2017, section 3.3) and in the order of
    ``edge_index`` in evaluation. Sequences are packed, not padded: a node's result does not depend on how many
    neighbours others have, and a node without neighbours gets zero. Costs O(E·d) memory.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=False)

    def aggregate(self, h: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """Runs all nodes' sequences as one packed batch, longest first, as the LSTM wants them."""
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
    """K hops of it."""

    words: ClassVar[str] = "its neighbours in a random order (GraphSAGE, LSTM)"

    @override
    @staticmethod
    def hop(settings: LocalSettings, dim: int, holders: int) -> nn.Module:
        return SageLstmHop(dim)


class SageVpaSettings(LocalSettings):
    """How alike a node's neighbours are taken to be."""

    correlation: float = Field(
        0.02,
        ge=0,
        le=1,
        description="ρ that neighbours are taken to have; 0: their sum by the root of their number, 1: their mean",
    )


class SageVpaHop(SageHop):
    """AGG is the sum by its standard deviation, were neighbours of variance 1; weighted where edges have weights.

    A mean is the same of two neighbours and of two hundred; here more of them that agree say more, up to 1/√ρ times as
    much. Without that bound, which is not in the paper, a hub would drown the nodes around it.
    """

    def __init__(self, dim: int, correlation: float) -> None:
        super().__init__(dim)
        self.correlation = correlation

    @override
    def aggregate(self, h: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """(A·h)/√((1 − ρ)·Σ w² + ρ·(Σ w)²)."""
        return adjacency.unit_variance_sum(h, self.correlation)


class SageVpa(HopModel[SageVpaSettings]):
    """K hops of it."""

    settings = SageVpaSettings
    words: ClassVar[str] = "the sum of its neighbours by the root of their number (GraphSAGE, VPA)"
    draws: ClassVar[bool] = False
    is_partitioned: ClassVar[bool] = True

    @override
    @staticmethod
    def hop(settings: SageVpaSettings, dim: int, holders: int) -> nn.Module:
        return SageVpaHop(dim, settings.correlation)
