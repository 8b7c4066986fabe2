"""Networks with hops between weights: every step propagates all nodes, forward and back.

The label holder's training rows are picked out of the logits of all nodes, and their errors put back where they
belong, by orders that nobody else learns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from veilgraph.mpc.sealed.wire import Wire, joined
from veilgraph.paradigms.sealed.networks.network import Network


class Coupled(Network):
    """What these have in common."""

    def picked(self, logits: Wire, wanted: slice) -> Wire:
        """Of all nodes' rows those of the wanted training nodes: [B, C]."""
        owner, rows, count = self.hidden_training_rows(wanted)
        return self.machine.open(self.machine.pick(owner, rows, count, logits))

    def put_back(self, error: Wire, wanted: slice) -> Wire:
        """Training nodes' rows where they belong among all nodes', zero elsewhere: [B, C] → [N, C]."""
        owner, rows, count = self.hidden_training_rows(wanted)
        nodes = self.context.sizes.nodes
        blank = self.machine.constant(torch.zeros((nodes - count, error.shape[1]), dtype=torch.int64), error.bits)
        order = None if rows is None else _places(rows, nodes)
        return self.machine.open(self.machine.pick(owner, order, nodes, joined([error, blank])))


def _places(rows: Tensor, nodes: int) -> Tensor:
    """For every node its place behind one another: those of ``rows`` first, in their order."""
    places = torch.empty(nodes, dtype=torch.int64)
    others = torch.ones(nodes, dtype=torch.bool)
    others[rows] = False
    places[rows] = torch.arange(rows.numel())
    places[others] = torch.arange(rows.numel(), nodes)
    return places
