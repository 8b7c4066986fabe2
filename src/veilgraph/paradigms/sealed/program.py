"""Training and inference of a sealed job as one program of ``mpc.sealed``: holders, dealer and twin all run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import RangeOverflow, RunError
from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.functions import ERROR_BITS, largest, largest_place, range_tests, softmax, times
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Summands, Wire, joined
from veilgraph.paradigms.sealed.networks import network_of
from veilgraph.paradigms.sealed.networks.network import one_hot
from veilgraph.paradigms.sealed.plan import MOST_OPENED, Context
from veilgraph.paradigms.sealed.settings import exact_rates

WEIGHT_BITS: Final = 24
_LEAST_BITS: Final = 8
"""Of what sums over rows are multiplied by: velocities and weights are multiplied by as many or more."""
MOST_WEIGHT: Final = 1 << 11
"""A sum of products with a row of L1 norm up to 2^9 then keeps below 2^20, which the ring holds."""
OUTSIDE: Final = "range.failed"
"""Name of the number of range tests that have failed in training, kept with the weights."""


class SealedProgram:
    """One party's part in training and inference.

    Args:
        machine: of the party.
        context: of the job, and what the party puts in.
    """

    def __init__(self, machine: Machine, context: Context) -> None:
        self._machine, self._context = machine, context
        self.network = network_of(context.plan)(machine, context)
        self.shapes = self.network.shapes
        suits, stated = self.network.suits, context.plan.weight_decay
        total = context.sizes.training
        rows = min(context.plan.batch or total, total)
        self._scale = max(rows, 1).bit_length() - 1
        """Gradients are sums over rows divided by 2^scale; what is left of the division is in rates and decay."""
        rest = max(rows, 1) / 2**self._scale
        self._weight_decay = rest * (suits.decay(total) if stated is None else stated)
        self._rates, self._halvings = exact_rates([rate / rest for rate in context.plan.learning_rates])
        self.weights: list[Wire] = []
        self.velocities: list[Wire | None] = []
        self._begin_anew()
        self._judged: Wire | None = None
        self._targets: tuple[Wire, Wire | None] | None = None

    @property
    def _velocity_bits(self) -> int:
        """A learning rate n/2^k is a multiplication by n and k more fractional bits."""
        return WEIGHT_BITS - self._halvings

    def _begin_anew(self) -> None:
        initial = self.network.initial(WEIGHT_BITS)
        self.weights = [self._machine.constant(weight, WEIGHT_BITS) for weight in initial]
        self.velocities = [None] * len(self.weights)
        self.outside = self._machine.constant(torch.zeros(1, dtype=torch.int64))

    def enter(self, *, trains: bool) -> None:
        """Every holder puts its columns and its edges in; once a session."""
        self._machine.at("enter")
        self.network.enter(trains=trains)

    def begin(self) -> None:
        """What is computed once in a training, before its steps."""
        self.network.prepare()

    def _enter_targets(self) -> tuple[Wire, Wire | None]:
        """Classes of the training rows, one-hot, and their weights in the loss; once a session that trains."""
        machine, context = self._machine, self._context
        sizes, owner = context.sizes, context.label_party
        labels, weights = context.of(owner, "labels"), context.of(owner, "weights")
        classes = None if labels is None else one_hot(labels, sizes.classes)
        targets = machine.put(owner, classes, (sizes.training, sizes.classes), ERROR_BITS)
        if not context.plan.weighted:
            return targets, None
        column = None if weights is None else weights[:, None]
        return targets, machine.put(owner, column, (sizes.training, 1), ERROR_BITS)

    def shares(self) -> dict[str, Tensor]:
        """This party's summand of every weight, and of what training goes on from, by name: int64."""
        named: dict[str, Wire | None] = {f"weight.{place}": weight for place, weight in enumerate(self.weights)}
        named |= {f"velocity.{place}": velocity for place, velocity in enumerate(self.velocities)}
        named |= {OUTSIDE: self.outside, **{name: kept.wire for name, kept in self.network.kept().items()}}
        return {name: self._machine.share(wire) for name, wire in named.items() if wire is not None}

    def check(self, saved: Mapping[str, Tensor]) -> None:
        """Refuses shares that are of another network or release.

        Raises:
            RunError: names what differs.
        """
        if OUTSIDE not in saved:
            raise RunError(
                f"{OUTSIDE}: the saved shares have none, so they are of a release whose weights have other fractional "
                "bits; train anew, or predict with that release",
                code="other-release",
                key=OUTSIDE,
            )
        for place, shape in enumerate(self.shapes):
            found = saved.get(f"weight.{place}")
            if found is None or tuple(found.shape) != shape:
                has = "nothing" if found is None else str(list(found.shape))
                raise RunError(
                    f"weight.{place}: the saved shares are {has}, and the network needs {list(shape)} with the columns "
                    "and classes that there are now; give the files of this party's own run and the columns and "
                    "classes that it was trained on, or train anew",
                    code="other-network",
                    key=f"weight.{place}",
                    value=has,
                )

    def restore(self, saved: Mapping[str, Tensor], *, training: bool) -> None:
        """Shares of all parties become wires again, under fresh masks; at all of them together.

        Args:
            saved: this party's, none at the dealer.
            training: whether training goes on; else weights alone are needed.
        """
        for place, shape in enumerate(self.shapes):
            self.weights[place] = self._restored(saved, f"weight.{place}", shape, WEIGHT_BITS)
            if training:
                self.velocities[place] = self._restored(saved, f"velocity.{place}", shape, self._velocity_bits)
        self.outside = self._restored(saved, OUTSIDE, (1,), 0)
        for name, kept in self.network.kept().items():
            if training or kept.predicts:
                setattr(kept.owner, kept.attribute, self._restored(saved, name, kept.shape, kept.bits))
        if training:
            self.network.resume()

    def _restored(self, saved: Mapping[str, Tensor], name: str, shape: tuple[int, ...], bits: int) -> Wire:
        return self._machine.open(self._machine.summands(saved.get(name), shape, 0), bits=bits)

    def step(self, number: int) -> None:
        """One step of SGD with momentum.

        Args:
            number: counts all steps of the job from 0.
        """
        machine = self._machine
        if self._targets is None:
            self._targets = self._enter_targets()
        self.network.arrive(number, self.weights)
        machine.at(f"step {number}")
        if number % self._steps_of_a_rate == 0:
            self._begin_anew()
        wanted = self._wanted(number)
        targets, row_weights = self._targets
        passed = self.network.forward(self.weights, wanted)
        error = softmax(machine, passed.logits) - targets[wanted]
        if row_weights is not None:
            error = times(machine, error, row_weights[wanted])
        rate = self._rates[number // self._steps_of_a_rate]
        bits = max(self._scale, _LEAST_BITS)
        for place, gradient in enumerate(self.network.backward(self.weights, passed, error)):
            self._update(place, gradient.scaled(2.0**-self._scale, bits), rate)
        self.outside = machine.open(self._outside(updated=True))

    @property
    def _steps_of_a_rate(self) -> int:
        return self._context.plan.steps // len(self._context.plan.learning_rates)

    def _wanted(self, number: int) -> slice:
        """The training rows of a step; their order is a secret of the label holder's."""
        total = self._context.sizes.training
        rows = min(self._context.plan.batch or total, total)
        start = min(number * rows % total, total - rows)
        return slice(start, start + rows)

    def _update(self, place: int, gradient: Summands, rate: int) -> None:
        """SGD: v ← μ·v + gradient + decay·W, opened; W ← W − rate·v, which is linear."""
        machine, plan = self._machine, self._context.plan
        velocity, weight, bits = self.velocities[place], self.weights[place], gradient.bits
        if velocity is not None:
            gradient = gradient + machine.split(velocity).scaled(plan.momentum, bits - velocity.bits)
        if self._weight_decay:
            decayed = machine.split(weight).scaled(self._weight_decay, bits - weight.bits)
            gradient = gradient + decayed
        velocity = machine.open(gradient, bits - self._velocity_bits)
        self.velocities[place] = velocity
        self.weights[place] = weight - velocity.halved(self._halvings).times(rate)

    def _outside(self, *, updated: bool = False) -> Summands:
        """How many range tests have failed: [1].

        Args:
            updated: whether weights and velocities are new, and tested as well.
        """
        machine, watched = self._machine, self.network.watched
        tests = [range_tests(wire, MOST_OPENED) for wire in watched]
        watched.clear()
        if updated:
            # What is multiplied by this many bits and 38 more is 2^22 at most: a quarter of what the ring holds.
            most = 1 << min(12, 22 - max(self._scale, _LEAST_BITS))
            tests += [range_tests(velocity, most) for velocity in self.velocities if velocity is not None]
            tests += [range_tests(weight, MOST_WEIGHT) for weight in self.weights]
        failed = machine.value(~machine.negative(joined(tests)))
        return failed.map(lambda part: part.sum(0, keepdim=True)) + machine.split(self.outside)

    def check_range(self, outside: Wire) -> None:
        """Open one bit to every holder: whether any range test has failed.

        Args:
            outside: how many have, [1].

        Raises:
            RangeOverflow: some have.
        """
        machine = self._machine
        bit = machine.open(machine.value(machine.negative(-outside)))
        told = [machine.reveal(bit, holder) for holder in machine.holders]  # all learn it before any of them ends
        if any(float(each) > 0 for each in told if each is not None):
            rates = ", ".join(f"{rate:g}" for rate in self._context.plan.learning_rates)
            raise RangeOverflow(
                f"train.learning_rate={rates}: training or prediction has left the range of the ring, so nothing is "
                "predicted. Lower train.learning_rate, set model.unit_rows to true, or scale the columns "
                "(data.feature_scaling: standard), and train anew",
                code="left-range",
                key="train.learning_rate",
                value=rates,
            )

    def score(self, number: int) -> Tensor | None:
        """How many validation nodes are classified rightly, [1, 1] at the label holder; None at all others.

        A node is right where no logit is above that of its class. Nothing else is opened: neither which nodes these
        are, nor which of them are right, nor what the others are taken for.

        Args:
            number: counts all steps of the job from 1.
        """
        machine, context = self._machine, self._context
        sizes, owner = context.sizes, context.label_party
        self.network.normalise()
        machine.at(f"score {number}")
        if self._judged is None:
            labels = context.of(owner, "judged_labels")
            classes = None if labels is None else one_hot(labels, sizes.classes).to(torch.int64)
            self._judged = machine.put(owner, classes, (sizes.validation, sizes.classes), 0)
        logits = self.network.predict(self.weights)
        logits = machine.open(machine.pick(owner, context.of(owner, "judged"), sizes.validation, logits))
        own = machine.product(torch.mul, logits, self._judged).map(lambda part: part.sum(1, keepdim=True))
        right = ~machine.negative(machine.open(own) - largest(machine, logits))
        count = machine.open(machine.value(right).map(lambda part: part.sum(0, keepdim=True)))
        # A step that has left the range counts as none right, or its number could make it the best one.
        inside = ~machine.negative(-machine.open(self._outside())[:, None])
        return machine.reveal(machine.open(machine.gate(inside, count)), owner)

    def predict(self) -> Tensor | None:
        """What the label holder learns: classes [N, 1] or probabilities [N, C]; None at all others.

        Of R named nodes [R, 1] or [R, C] in their order: they are picked out of the logits of all nodes, by an order
        that nobody else learns, and nothing is computed of the others beyond these.
        """
        machine, context = self._machine, self._context
        asked, owner = context.sizes.asked, context.label_party
        self.network.normalise()
        machine.at("predict")
        values = self.network.predict(self.weights)
        if asked is not None:
            values = machine.open(machine.pick(owner, context.of(owner, "asked"), asked, values))
        found = largest_place(machine, values) if context.plan.output == "classes" else softmax(machine, values)
        self.check_range(machine.open(self._outside()))
        return machine.reveal(found, owner)

    def release(self) -> dict[PartyId, dict[str, Tensor]]:
        """Weights of the first layer that multiply a holder's own columns: holder → name → float64 [F_i, d].

        A holder has its own alone, the dealer none. They are opened under a fresh mask first, which nothing else is
        under.
        """
        machine, found = self._machine, dict[PartyId, dict[str, Tensor]]()
        machine.at("range")
        self.check_range(self.outside)
        machine.at("release")
        for holder in self._context.sizes.columns:
            parts = self.network.parts(holder)
            blocks = [self.weights[0][rows, columns] for rows, columns in parts.values()]
            told = machine.reveal(machine.open(machine.split(joined(blocks))), holder)
            if told is not None:
                sizes = [block.shape[0] for block in blocks]
                found[holder] = dict(zip(parts, torch.split(told, sizes), strict=True))
        return found
