"""What one holder adds to a round, and what the server makes of the sum: the same for the roles and for the twin."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.autograd import backward
from torch.nn import functional

from veilgraph.graph.party import PartyGraph
from veilgraph.nn.fixed_input import FixedInput
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.averaging.network import AveragedNetwork
from veilgraph.paradigms.averaging.rules.rule import Rule
from veilgraph.paradigms.averaging.settings import AveragingJob
from veilgraph.protocol.role import build_optimizer

EXTRA: Final = 2
"""Numbers in a summand beside those of the weights: the loss and the number of training nodes."""
UPDATE_BITS: Final = 32
"""Fractional bits of a summand: the sum stays below 2^29."""
TALLY_BITS: Final = 20
REMEDY: Final = "lower train.learning_rate or scale the features (data.feature_scaling)"

Dropout = Callable[[int], torch.Generator]
"""Local epoch of the round → its stream."""


@dataclass(frozen=True, eq=False)
class Own:
    """A holder's graph as the network takes it.

    Attributes:
        graph: as it is.
        features: of its nodes.
        adjacency: of its edges.
    """

    graph: PartyGraph
    features: FixedInput
    adjacency: Adjacency

    @classmethod
    def of(cls, graph: PartyGraph, dtype: torch.dtype) -> Own:
        """Made ready for networks of one dtype."""
        return cls(graph, FixedInput(graph.features, dtype), Adjacency.from_graph(graph, dtype))

    @property
    def training_nodes(self) -> int:
        """How many it has."""
        return 0 if self.graph.labels is None or self.graph.train_mask is None else int(self.graph.train_mask.sum())


def summand(job: AveragingJob, rule: Rule, network: AveragedNetwork, own: Own, dropout: Dropout) -> Tensor:
    """What a holder adds in a round: n·Δ, n·loss, n, for n training nodes; zeros where it has none.

    Δ is how the weights change in ``local_epochs`` of Adam, which begins anew in every round, or the gradient where the
    rule takes that. The loss is that of the weights as they were, in the first of these epochs.

    Args:
        job: of the holder.
        rule: of the job.
        network: with the weights of the round; afterwards with others.
        own: the holder's graph.
        dropout: its streams of the round.

    Returns:
        Tensor[W + 2], of the network's dtype.
    """
    nodes, start = own.training_nodes, network.vector()
    if not nodes:
        return torch.zeros(len(start) + EXTRA, dtype=start.dtype)
    weights = list(network.parameters())
    before = [weight.detach().clone() for weight in weights]
    optimizer = build_optimizer(weights, {}, job)
    first = math.nan
    for epoch in range(job.averaging.local_epochs):
        optimizer.zero_grad()
        loss = _loss(network, own, dropout(epoch))
        first = float(loss.detach()) if epoch == 0 else first
        backward(rule.local_loss(loss, weights, before))
        if not rule.sends_gradients:
            optimizer.step()
    if rule.sends_gradients:
        decay = job.train.weight_decay
        parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in weights]
        change = torch.cat([part.reshape(-1) for part in parts]) + decay * start
    else:
        change = network.vector() - start
    return torch.cat([nodes * change, change.new_tensor([nodes * first, nodes])])


def _loss(network: AveragedNetwork, own: Own, generator: torch.Generator) -> Tensor:
    mask, labels = own.graph.train_mask, own.graph.labels
    assert mask is not None  # there are training nodes
    assert labels is not None
    return functional.cross_entropy(network(own.features, own.adjacency, generator)[mask], labels[mask])


def averaged(rule: Rule, weights: Tensor, total: Tensor) -> tuple[Tensor, float | None]:
    """The next weights and the mean loss of the round; the same weights, and no loss, where nobody trained.

    Args:
        rule: of the job; its state changes.
        weights: Tensor[W], of the round.
        total: Tensor[W + 2], sum of what holders added.
    """
    total = total.double()
    nodes = round(float(total[-1]))  # what is moved by secret rounding is whole again
    if not nodes:
        return weights, None
    return rule.step(weights.double(), total[:-EXTRA] / nodes).to(weights.dtype), float(total[-EXTRA]) / nodes


def said(weights: Tensor, loss: float | None) -> Tensor:
    """What the server tells of a round: Tensor[W + 2], the weights, the mean loss, and whether there is one."""
    return torch.cat([weights, weights.new_tensor([0.0, 0.0] if loss is None else [loss, 1.0])])


def heard(told: Tensor) -> tuple[Tensor, float | None]:
    """What ``said`` said."""
    return told[:-EXTRA], float(told[-EXTRA]) if told[-1] else None
