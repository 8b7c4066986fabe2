"""The validation nodes that steps of a sealed job are judged by, and which of them are right, as secrets."""

from __future__ import annotations

import torch

from veilgraph.mpc.ring import matmul
from veilgraph.mpc.sealed.functions import largest
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Summands, Wire
from veilgraph.paradigms.sealed.networks.propagation import one_hot
from veilgraph.paradigms.sealed.plan import MOST_RANKED, Context


class Validation:
    """One party's part in judging logits.

    Args:
        machine: of the party.
        context: of the job. The label holder puts in classes, and which nodes are of two of them; once a session each.
    """

    def __init__(self, machine: Machine, context: Context) -> None:
        self._machine, self._context = machine, context
        self._classes: Wire | None = None
        self._apart: Wire | None = None

    def right(self, logits: Wire) -> Summands:
        """How many nodes are right, or pairs of them where the job ranks: [1, 1], of logits [V, C]."""
        owner, size = self._context.label_party, logits.shape
        if self._classes is None:
            labels = self._context.of(owner, "judged_labels")
            classes = None if labels is None else one_hot(labels, size[1]).to(torch.int64)
            self._classes = self._machine.put(owner, classes, size, 0)
        return (self._pairs if self._context.plan.ranks else self._nodes)(logits, self._classes)

    def _nodes(self, logits: Wire, classes: Wire) -> Summands:
        own = self._machine.product(torch.mul, logits, classes).map(lambda part: part.sum(1, keepdim=True))
        right = ~self._machine.negative(self._machine.open(own) - largest(self._machine, logits))
        return self._machine.value(right).map(lambda part: part.sum(0, keepdim=True))

    def _pairs(self, logits: Wire, classes: Wire) -> Summands:
        """Pairs of nodes of two classes, of which the one of the first node's class has the larger logit of it.

        Logits are taken less their mean over all classes; of equal ones the pair is not right. Which pairs are of two
        classes is the label holder's secret.
        """
        machine, owner = self._machine, self._context.label_party
        first = min(MOST_RANKED, logits.shape[0])
        if self._apart is None:
            own = self._context.of(owner, "judged_labels")
            apart = None if own is None else (own[:first, None] != own[None]).to(torch.int64)
            self._apart = machine.put(owner, apart, (first, logits.shape[0]), 0)
        whole = logits.times(logits.shape[1]) - logits.sum(1)
        others = machine.open(machine.product(matmul, classes[:first], whole.T))
        own_logits = machine.open(
            machine.product(torch.mul, classes[:first], whole[:first]).map(lambda part: part.sum(1, keepdim=True))
        )
        right = machine.open(machine.value(machine.negative(others - own_logits)))
        both = machine.product(torch.mul, right, self._apart)
        return both.map(lambda part: part.sum().reshape(1, 1))
