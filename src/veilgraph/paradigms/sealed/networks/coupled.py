"""Networks with hops between weights: every step propagates all nodes, forward and back.

The label holder's training rows are picked out of the logits of all nodes, and their errors put back where they
belong, by orders that nobody else learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.types import PartyId
from veilgraph.mpc.ring import transposed_matmul
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire, joined
from veilgraph.paradigms.sealed.networks.network import NARROW_DEGREE, Network, Parts, Passed, Suits


class Coupled(Network):
    """What these have in common: two layers, the second one propagated."""

    @property
    @override
    def shapes(self) -> list[tuple[int, int]]:
        sizes, hidden = self.context.sizes, self.context.plan.hidden
        relations = len(self.relations)
        first = relations * hidden if self.first_is_moved else hidden
        return [(sum(sizes.columns.values()), first), (hidden, relations * sizes.classes)]

    @override
    def parts(self, holder: PartyId) -> Parts:
        rows, width = self.place(holder), self.context.plan.hidden
        if not self.first_is_moved:
            return {"columns": (rows, slice(None))}
        return {
            name: (rows, slice(number * width, (number + 1) * width)) for number, name in enumerate(self.relation_names)
        }

    first_is_moved: ClassVar[bool]
    """Whether the first layer is propagated as well."""

    @override
    def forward(self, weights: Sequence[Wire], wanted: slice) -> Passed:
        logits, hidden, gate = self._all(weights)
        return Passed(self.picked(logits, wanted), wanted, [hidden, gate])

    def _all(self, weights: Sequence[Wire]) -> tuple[Wire, Wire, Bit]:
        first = self.from_columns(self.columns, weights[0])
        hidden, gate = self.activated(self.moved(first) if self.first_is_moved else first)
        return self.moved(self.linear(hidden, weights[1])), hidden, gate

    @override
    def backward(self, weights: Sequence[Wire], passed: Passed, error: Wire) -> list[Summands]:
        hidden, gate = passed.inner
        assert isinstance(hidden, Wire)
        assert isinstance(gate, Bit)
        plan, rows = self.context.plan, self.context.sizes.training
        # Errors of T rows are up to 1. Against directed edges their sum of T or less is what bounds a sum over edges.
        narrow = not plan.weighted and (not plan.directed or rows <= NARROW_DEGREE)
        above = self.moved_back(self.put_back(error, passed.wanted), narrow=narrow)
        below = self.hidden_error(above, weights[1], gate)
        below = self.moved_back(below) if self.first_is_moved else below
        return [
            self.gradient_of_columns(self.columns, below),
            self.machine.product(transposed_matmul, hidden, above),
        ]

    @override
    def predict(self, weights: Sequence[Wire]) -> Wire:
        return self._all(weights)[0]

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


class Gcn(Coupled):
    """GCN (Kipf and Welling 2017, arXiv:1609.02907): softmax(P·relu(P·X·W₁)·W₂)."""

    suits: ClassVar[Suits] = Suits(hops=1, learning_rate=1.0, weight_decay=1e-2, teleport=0.0)
    words: ClassVar[str] = (
        "A graph convolutional network of two layers, hidden width {hidden}, with all holders' "
        "edges in every step, {hops} a layer"
    )
    first_is_moved: ClassVar[bool] = True


class Appnp(Coupled):
    """APPNP (Klicpera et al. 2019, arXiv:1810.05997).

    softmax(Z_K), Z_k = (1 − α)·P·Z_(k−1) + α·Z_0, Z_0 = relu(X·W₁)·W₂.
    """

    suits: ClassVar[Suits] = Suits(hops=10, learning_rate=1.0, weight_decay=1e-2)
    words: ClassVar[str] = (
        "A hidden layer of {hidden} on all holders' columns, whose outputs go {hops} far over "
        "all holders' edges in every step"
    )
    first_is_moved: ClassVar[bool] = False
