"""How a step of a sealed job is judged: by its count of right validation nodes, and beside a mean of two networks.

The mean of two networks is one: (W_1 + W_2)/2, U_1 and U_2 side by side, and V_1/2 on top of V_2/2.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from veilgraph.mpc.ring import matmul
from veilgraph.mpc.sealed.comparison import SHORT_BITS
from veilgraph.mpc.sealed.functions import WHOLE_BITS
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire, concatenate
from veilgraph.paradigms.sealed.learners import Learners
from veilgraph.paradigms.sealed.networks.network import Network
from veilgraph.paradigms.sealed.networks.propagation import one_hot
from veilgraph.paradigms.sealed.plan import MOST_RANKED, Context, Trial


class Validation:
    """One party's part in counting validation nodes, or ranked pairs, that logits get right, without opening which."""

    def __init__(self, machine: Machine, context: Context) -> None:
        self._machine, self._context = machine, context
        self._classes: Wire | None = None
        self._apart: Wire | None = None
        self._all_pairs: Wire | None = None

    @property
    def pairs(self) -> Wire:
        """Number of ranked pairs of nodes of two classes: [1, 1]; only after ``right`` has been called."""
        assert self._apart is not None
        if self._all_pairs is None:  # under a mask of its own
            self._all_pairs = self._machine.open(self._machine.split(self._apart.sum(0).sum(1)))
        return self._all_pairs

    def right(self, logits: Wire) -> Summands:
        """Count right validation nodes, or rightly ranked pairs where ``plan.ranks``: [1, 1], of logits [V, C]."""
        self.enter()
        assert self._classes is not None
        return (self._right_pairs if self._context.plan.ranks else self._right_nodes)(logits, self._classes)

    def enter(self) -> None:
        """Put in classes of validation nodes, if there are any, and which of these are apart; once a session."""
        classes, nodes = self._context.sizes.classes, self._context.sizes.validation
        if self._classes is None and nodes:
            self._classes = Learners(self._machine, self._context).put(
                "judged_labels", lambda labels: one_hot(labels, classes).to(torch.int64), "validation", classes, 0
            )
            if self._context.plan.ranks:
                self._apart = self._classes_apart(self._classes, min(MOST_RANKED, nodes))

    def _right_nodes(self, logits: Wire, classes: Wire) -> Summands:
        """Count nodes of whose logits none is above that of their class, by one-hot ``classes`` [V, C]: [1, 1]."""
        machine = self._machine
        own = machine.product(torch.mul, logits, classes).map(lambda part: part.sum(1, keepdim=True))
        above = machine.value(machine.negative(machine.open(own) - logits, WHOLE_BITS))
        count = machine.open(above.map(lambda part: part.sum(1, keepdim=True)))
        return machine.value(machine.negative(count.plus(-1), SHORT_BITS)).map(lambda part: part.sum(0, keepdim=True))

    def _right_pairs(self, logits: Wire, classes: Wire) -> Summands:
        """Count pairs of nodes of two classes in which the first node has the larger logit of its class: [1, 1].

        Logits are taken less their mean over all classes; a tie is not right.
        """
        machine, first = self._machine, min(MOST_RANKED, logits.shape[0])
        assert self._apart is not None
        whole = logits.times(logits.shape[1]) - logits.sum(1)
        others = machine.open(machine.product(matmul, classes[:first], whole.T))
        own_logits = machine.open(
            machine.product(torch.mul, classes[:first], whole[:first]).map(lambda part: part.sum(1, keepdim=True))
        )
        right = machine.open(machine.value(machine.negative(others - own_logits)))
        return machine.product(torch.mul, right, self._apart).map(lambda part: part.sum().reshape(1, 1))

    def _classes_apart(self, classes: Wire, first: int) -> Wire:
        """Whether each of the ``first`` nodes and each of all V are of different classes, 1 or 0: [first, V]."""
        machine, (owner, *others) = self._machine, self._context.learners
        if others:  # no holder knows the labels of both
            return (-machine.open(machine.product(matmul, classes[:first], classes.T))).plus(1)
        own = self._context.of(owner, "judged_labels")
        apart = None if own is None else (own[:first, None] != own[None]).to(torch.int64)
        return machine.put(owner, apart, (first, classes.shape[0]), 0)


Part = tuple[Trial, Sequence[Wire]]  # a network, and its weights: W and U side by side, and V where it is deep


def mean_where(network: Network, better: Bit, earlier: Part, own: Part) -> list[Wire]:
    """Weights for ``network.trial``, which has the blocks and hidden layers of two networks, ``earlier`` and ``own``.

    Where ``better`` [1, 1] is set they are the mean of both, else those of ``own``; nobody learns which.
    """
    machine, classes = network.machine, network.context.sizes.classes
    mean = []
    for first, second in zip(_padded(network, earlier, 0), _padded(network, own, earlier[0].deep), strict=True):
        # Half of both, but for what goes into hidden layers, of which each has its own.
        halves, layers = (first - second)[:, :classes], first[:, classes:].times(2)
        everywhere = better.map(partial(torch.broadcast_to, size=second.shape))
        twice = machine.split(second).times(2) + machine.gate(everywhere, concatenate([halves, layers], 1))
        mean.append(machine.open(twice.halved(1), 1))
    return mean


def _padded(network: Network, part: Part, before: int) -> list[Wire]:
    """Pad a network's weights with zeros to ``network.shapes``; its hidden layers stand after ``before`` others."""
    (trial, weights), classes, hidden = part, network.context.sizes.classes, network.context.plan.hidden
    rows = torch.searchsorted(network.places(network.trial.blocks), network.places(trial.blocks))
    layers = torch.arange(before * hidden, (before + trial.deep) * hidden)
    outputs = torch.arange(classes)
    into = [(rows, torch.cat([outputs, classes + layers])), (layers, outputs)]

    def moved(weight: Wire, shape: tuple[int, int], places: tuple[Tensor, Tensor]) -> Wire:
        def move(values: Tensor) -> Tensor:
            found = values.new_zeros(shape)
            found[places[0][:, None], places[1]] = values
            return found

        return weight.map(move)

    none = network.machine.constant(torch.zeros((0, classes), dtype=torch.int64), weights[0].bits)
    given = [*weights, none][: len(network.shapes)]
    return [moved(*each) for each in zip(given, network.shapes, into, strict=False)]
