"""GraphSAGE with an LSTM over the neighbours (Hamilton et al. 2017)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import override

from veilgraph.nn.local.model import HopModel, LocalSettings
from veilgraph.nn.local.sage import SageHop
from veilgraph.nn.propagate import Adjacency


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
        batch_sizes = torch.bincount(place)
        rows, weight = h.index_select(0, source[steps].to(h.device)), adjacency.edge_weight
        if weight is not None:
            rows = rows * weight[order][steps].unsqueeze(1).to(h)
        inputs = PackedSequence(rows, batch_sizes)
        _, (last, _) = self.lstm(inputs)
        return nothing.index_copy(0, nodes.to(h.device), last[0])


class SageLstm(HopModel[LocalSettings]):
    """K hops of it."""

    words: ClassVar[str] = "its neighbours in a random order (GraphSAGE, LSTM)"

    @override
    @staticmethod
    def hop(settings: LocalSettings, dim: int, holders: int) -> nn.Module:
        return SageLstmHop(dim)
