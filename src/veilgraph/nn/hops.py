"""One hop of message passing over a holder's own edges, one class per kind of graph neural network.

Every hop has the same forward: ``(h, initial, adjacency, generator)`` with h Tensor[N, d], h^0 as ``initial``, and
``generator`` None in evaluation; the result is Tensor[T, d], of the adjacency's targets, the first T of the N nodes.
Isolated nodes and an empty edge set are allowed everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from veilgraph.nn.linear import linear
from veilgraph.nn.propagate import Adjacency, first_rows


class _SageHop(nn.Module, ABC):
    """W·CONCAT(h_v, AGG({h_u : u → v})) (VFGNN eq. 4); the subclass is the AGG."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.update = linear(2 * dim, dim, bias=False)

    @abstractmethod
    def aggregate(self, h: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """AGG of every target's neighbours: Tensor[N, d] to Tensor[T, d]."""

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        neighbours = self.aggregate(h, adjacency, generator)
        own, others = torch.split(self.update.weight.t(), h.shape[1])  # W·CONCAT without the [T, 2d] that it would take
        return torch.addmm(neighbours @ others, first_rows(h, adjacency.num_targets), own)


class SageMeanHop(_SageHop):
    """AGG is the mean, weighted where edges have weights; zero for a node without neighbours.

    Args:
        dim: d.
        averages: start from W = [I/2, I/2], the mean of a node and its neighbours, in place of random weights. With
            few labels that is worth more than ten points of accuracy on the citation graphs.
    """

    def __init__(self, dim: int, *, averages: bool = False) -> None:
        super().__init__(dim)
        if averages:
            with torch.no_grad():
                self.update.weight.copy_(torch.eye(dim).repeat(1, 2) / 2)

    def aggregate(self, h: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """(A·h)/degree."""
        return adjacency.mean(h)


class SagePoolHop(_SageHop):
    """AGG is the element-wise maximum of ReLU(W_pool·h_u + b); edge weights are not used."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.pool = linear(dim, dim, bias=True)

    def aggregate(self, h: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """Maximum over neighbours."""
        return adjacency.maximum(torch.relu(self.pool(h)))


class SageLstmHop(_SageHop):
    """AGG is the last state of an LSTM over the neighbours; edge weights are not used.

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
        batch_sizes = torch.bincount(place)
        inputs = PackedSequence(h.index_select(0, source[steps].to(h.device)), batch_sizes)
        _, (last, _) = self.lstm(inputs)
        return nothing.index_copy(0, nodes.to(h.device), last[0])


class GcnHop(nn.Module):
    """D^-1/2·(A + I)·D^-1/2·h·W + b (Kipf & Welling 2017); edge weights are used."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = linear(dim, dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """One convolution."""
        return adjacency.gcn(self.weight(h)) + self.bias


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
