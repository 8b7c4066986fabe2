"""The network of sealed jobs with ``privacy``: of other holders' edges it has nothing but noisy votes (``plan``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from typing_extensions import override

from veilgraph.core.types import PartyId
from veilgraph.mpc.ring import matmul
from veilgraph.mpc.sealed.functions import BITS, one_hot_of_largest
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Wire, joined
from veilgraph.paradigms.sealed.networks.network import Kept, Network
from veilgraph.paradigms.sealed.networks.propagation import Propagation
from veilgraph.paradigms.sealed.plan import Context, shrink

VOTE_BITS: Final = 8
"""Of counts, for noise: whole numbers have none."""
_SHRINK_BITS: Final = 24
VOTES: Final = "weight.votes"
"""Name of what is kept of them, with the weights: a prediction needs both."""


class Voting(Network):
    """softmax([Z, s·H]·W), hops over the label holder's edges alone, H the noisy votes over the others'.

    Half of the steps train on rows that are propagated over the label holder's own edges. Then every node votes for the
    class that it is taken for, in the rows of its neighbours over the other holders' edges, with noise. What comes of
    it is C more columns, which the other half of the steps train on as well, and every prediction uses again.
    """

    def __init__(self, machine: Machine, context: Context) -> None:
        super().__init__(machine, context)
        others = [holder for holder in context.sizes.edges if holder != context.label_party]
        self._others = Propagation(machine, context, self.edges, others)
        self.votes = self._none(context.sizes.nodes)
        """[N, C], shrunk; zero until they are counted."""
        self._picked = self._none(context.sizes.training)

    @override
    def _relations(self, holders: Sequence[PartyId]) -> dict[str, dict[str, Propagation]]:
        return super()._relations([self.context.label_party])

    def _none(self, rows: int) -> Wire:
        return self.machine.constant(torch.zeros((rows, self.context.sizes.classes), dtype=torch.int64), BITS)

    @property
    @override
    def beside(self) -> int:
        return self.context.sizes.classes

    @override
    def enter(self, *, trains: bool) -> None:
        super().enter(trains=trains)
        if trains:
            self.edges.enter(self._others.holders)

    @override
    def arrive(self, step: int, weights: Sequence[Wire]) -> None:
        super().arrive(step, weights)
        if step != self.context.plan.steps // 2:
            return
        machine, deviation = self.machine, self.context.plan.votes
        assert deviation is not None
        machine.at("votes")
        votes = machine.open(one_hot_of_largest(machine, self.predict(weights)), ring=32)
        sums = self._others.neighbours(votes).scaled(1.0, VOTE_BITS)
        noisy = machine.open(machine.noised(sums, deviation))
        shrunk = machine.split(noisy).scaled(shrink(deviation), _SHRINK_BITS)
        self.votes = machine.open(shrunk, shrunk.bits - BITS)
        self.resume()

    @override
    def resume(self) -> None:
        owner, rows, count = (
            self.context.label_party,
            self.context.of(self.context.label_party, "rows"),
            self.context.sizes.training,
        )
        self._picked = self.machine.open(self.machine.pick(owner, rows, count, self.votes))
        super().resume()

    @override
    def _beside(self, rows: Wire) -> Wire:
        return joined([rows, self._picked], 1)

    @override
    def predict(self, weights: Sequence[Wire]) -> Wire:
        voted = self.opened(self.machine.product(matmul, self.votes, weights[0][-self.beside :]))
        return super().predict(weights) + voted

    @override
    def kept(self) -> dict[str, Kept]:
        sizes = self.context.sizes
        return super().kept() | {VOTES: Kept(self, "votes", (sizes.nodes, sizes.classes), BITS, predicts=True)}
