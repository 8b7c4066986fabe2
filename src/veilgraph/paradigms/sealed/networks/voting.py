"""The network of sealed jobs with ``privacy``: of other holders' edges it has nothing but noisy votes (``plan``)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.functions import BITS, one_hot_of_largest
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Summands, Wire
from veilgraph.paradigms.sealed.networks.network import Network
from veilgraph.paradigms.sealed.networks.propagation import Propagation, repeat_column
from veilgraph.paradigms.sealed.networks.rows import SavedWire
from veilgraph.paradigms.sealed.plan import MOST_OPENED, Context

_LIFT: Final = 4 * MOST_OPENED  # added to the logit of a training node's label, which then is its largest
VOTES: Final = "weight.votes"  # name of the noisy counts among the saved weights: a prediction needs both


class Voting(Network):
    """The network on hops over the label holder's edges alone, and votes over the others', once it is trained.

    Every node votes for its label where it is trained on, else for the class that it is taken for, in the row of one of
    the two ends of an edge. Noisy counts are kept with the weights, and opened to the label holder with predictions.
    """

    def __init__(self, machine: Machine, context: Context) -> None:
        super().__init__(machine, context)
        self._others = [holder for holder in context.sizes.edges if holder != context.label_party]
        self.votes = self.machine.constant(torch.zeros((context.sizes.nodes, context.sizes.classes), dtype=torch.int64))
        """[N, C], whole numbers; zero until they are counted."""

    @override
    def _relations(self, holders: Sequence[PartyId]) -> dict[str, dict[str, Propagation]]:
        return super()._relations([self.context.label_party])

    @override
    def enter(self, *, trains: bool) -> None:
        super().enter(trains=trains)
        if trains:
            self.edges.enter(self._others, (False, True))

    @override
    def finish(self, weights: Sequence[Wire]) -> None:
        """Count the noisy ``votes`` over the other holders' edges, with labels and the trained network's classes."""
        machine, epsilon = self.machine, self.context.plan.votes
        assert epsilon is not None
        machine.at("votes")
        nodes, classes = self.context.sizes.nodes, self.context.sizes.classes
        lifted = machine.put(self.context.label_party, self._training_lift(), (nodes, classes), BITS)
        opinions = machine.open(one_hot_of_largest(machine, self.predict(weights) + lifted))
        trains = machine.negative(-lifted.sum(1)).map(partial(repeat_column, columns=classes))
        of_training = machine.open(machine.gate(trains, opinions), ring=32)
        counts = self._sum_votes(machine.open(machine.split(opinions), ring=32), backwards=False)
        counts += self._sum_votes(of_training, backwards=True)
        kept = machine.gate(~trains, machine.open(counts))
        self.votes = machine.open(machine.noised(kept, epsilon))

    def _training_lift(self) -> Tensor | None:
        """At the label holder: ``_LIFT`` at each training node's label, else 0: float64 [N, C]; None at others."""
        owner, shape = self.context.label_party, (self.context.sizes.nodes, self.context.sizes.classes)
        rows, labels = self.context.of(owner, "rows"), self.context.of(owner, "labels")
        if rows is None or labels is None:
            return None
        lifted = torch.zeros(shape, dtype=torch.float64)
        lifted[rows, labels] = _LIFT
        return lifted

    def _sum_votes(self, votes: Wire, *, backwards: bool) -> Summands:
        """Sum votes [N, C] over the other holders' pairs that point to each node, or ``backwards`` from it."""
        graphs = self.edges.of(self._others, [backwards])
        return self.machine.hop(graphs, votes) - self.machine.split(votes)

    @override
    def kept(self) -> dict[str, SavedWire]:
        sizes = self.context.sizes
        return super().kept() | {VOTES: SavedWire(self, "votes", (sizes.nodes, sizes.classes), 0, predicts=True)}

    @override
    def told(self) -> Wire | None:
        return self.votes
