"""The linear network of a job with ``privacy``: it uses other holders' edges for one noisy count of votes.

Half of the steps train on rows that are propagated over the label holder's own edges. Then every node votes for the
class that it is taken for, in the rows of its neighbours over the other holders' edges, with noise (``private``); what
comes of it is C more columns, which the other half of the steps train on as well, and every prediction uses again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import torch
from typing_extensions import override

from veilgraph.mpc.ring import matmul, transposed_matmul
from veilgraph.mpc.sealed.functions import BITS, one_hot_of_largest
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Summands, Wire, joined
from veilgraph.paradigms.sealed.networks.linear import Linear
from veilgraph.paradigms.sealed.networks.network import Kept, Passed
from veilgraph.paradigms.sealed.plan import Context
from veilgraph.paradigms.sealed.private import shrink
from veilgraph.paradigms.sealed.propagation import Propagation

VOTE_BITS: Final = 8
"""Of noisy counts: up to 2^21 votes and the noise on them fit Z_2^32."""
_SHRINK_BITS: Final = 24
VOTES: Final = "weight.votes"
"""Name of what is kept of them, with the weights: a prediction needs both."""


class Voting(Linear):
    """softmax([P^K·X, s·H]·W), P over the label holder's edges, H the noisy votes over the others'."""

    words: ClassVar[str] = (
        "A linear model on rows that are propagated over the label holder's own edges once, {hops} far, and on votes "
        "of neighbours over all other holders' edges, counted once, with noise"
    )

    def __init__(self, machine: Machine, context: Context) -> None:
        super().__init__(machine, context)
        owner, holders = context.label_party, context.sizes.edges
        self.relations = [Propagation(machine, context, [owner])]
        self._others = Propagation(machine, context, [holder for holder in holders if holder != owner])
        self.votes = self._none(context.sizes.nodes)
        """[N, C], shrunk; zero until they are counted."""
        self._picked = self._none(context.sizes.training)

    def _none(self, rows: int) -> Wire:
        return self.machine.constant(torch.zeros((rows, self.context.sizes.classes), dtype=torch.int64), BITS)

    @property
    @override
    def shapes(self) -> list[tuple[int, int]]:
        classes = self.context.sizes.classes
        return [(self.row_columns + classes, classes)]

    @property
    @override
    def _computes_roots(self) -> bool:
        return False

    @override
    def enter(self, *, trains: bool) -> None:
        super().enter(trains=trains)
        if self.context.plan.hops:
            self.relations[0].enter_roots()
        if trains:
            self._others.enter(transposed=False)

    @override
    def arrive(self, step: int, weights: Sequence[Wire]) -> None:
        if step != self.context.plan.steps // 2:
            return
        machine, deviation = self.machine, self.context.plan.votes
        assert deviation is not None
        machine.at("votes")
        votes = machine.open(one_hot_of_largest(machine, self.first(self._of_rows(weights))), ring=32)
        sums = self._others.neighbours(votes).scaled(1.0, VOTE_BITS)
        noisy = machine.open(machine.noised(sums, deviation))
        shrunk = machine.split(noisy).scaled(shrink(deviation), _SHRINK_BITS)
        self.votes = machine.open(shrunk, shrunk.bits - BITS)
        self._pick()

    def _pick(self) -> None:
        owner, rows, count = self.hidden_training_rows(slice(None))
        self._picked = self.machine.open(self.machine.pick(owner, rows, count, self.votes))

    def _of_rows(self, weights: Sequence[Wire]) -> Wire:
        return weights[0][: self.row_columns]

    def _inputs(self, wanted: slice) -> Wire:
        assert self.rows is not None
        return joined([self.rows[wanted], self._picked[wanted]], 1)

    @override
    def forward(self, weights: Sequence[Wire], wanted: slice) -> Passed:
        return Passed(self.linear(self._inputs(wanted), weights[0]), wanted, [])

    @override
    def backward(self, weights: Sequence[Wire], passed: Passed, error: Wire) -> list[Summands]:
        return [self.machine.product(transposed_matmul, self._inputs(passed.wanted), error)]

    @override
    def predict(self, weights: Sequence[Wire]) -> Wire:
        voted = self.opened(self.machine.product(matmul, self.votes, weights[0][self.row_columns :]))
        return self.first(self._of_rows(weights)) + voted

    @override
    def remembers(self) -> Kept:
        sizes = self.context.sizes
        return {VOTES: ((sizes.nodes, sizes.classes), BITS)}

    @override
    def remember(self, found: Mapping[str, Wire]) -> None:
        self.votes = found[VOTES]

    @override
    def keeps(self) -> Kept:
        return super().keeps() | self.remembers()

    @override
    def kept(self) -> dict[str, Wire | None]:
        return super().kept() | {VOTES: self.votes}

    @override
    def keep(self, found: Mapping[str, Wire]) -> None:
        super().keep(found)
        self.remember(found)
        self._pick()
