"""Steps of a sealed training, over one trial or several, and how well they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from veilgraph.core.errors import RangeOverflow
from veilgraph.mpc.sealed.comparison import SHORT_BITS
from veilgraph.mpc.sealed.functions import ERROR_BITS, class_probabilities, range_tests
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire, apart, concatenate, in_a_row
from veilgraph.paradigms.sealed.judging import Validation, mean_where
from veilgraph.paradigms.sealed.learners import Learners
from veilgraph.paradigms.sealed.networks import network_of
from veilgraph.paradigms.sealed.networks.propagation import one_hot
from veilgraph.paradigms.sealed.plan import Context
from veilgraph.paradigms.sealed.settings import exact_rates

WEIGHT_BITS: Final = 24
MOST_WEIGHT: Final = 1 << 11  # products with a row of L1 norm up to 2^9 then stay below 2^20, which the ring holds
_LEAST_BITS: Final = 8  # of factors of sums over rows: velocities and weights are multiplied by as many or more
_VELOCITY_BITS: Final = 12  # above the point, unless their sums' bits leave fewer
_FEW: Final = 140  # training rows on which decays were chosen


@dataclass(frozen=True)
class BestBefore:
    """The best network when a trial began: the trials it is the mean of, its weights, and its failed range tests."""

    members: tuple[int, ...]
    weights: list[Wire]
    outside: Wire


class Steps:
    """A network and what steps change of it: weights, velocities, and the count of failed range tests."""

    def __init__(self, machine: Machine, context: Context) -> None:
        self._machine, self._context = machine, context
        self.network = network_of(context.plan)(machine, context)
        self._step_rows = rows = context.plan.rows_of_step(context.sizes.training)
        self._scale = max(rows, 1).bit_length() - 1
        """Gradients are sums over rows divided by 2^scale; what is left of the division is in rates and decay."""
        self._rest: float = max(rows, 1) / 2.0**self._scale
        self._rates, self._halvings = exact_rates([trial.learning_rate / self._rest for trial in context.plan.trials])
        self.trial = 0
        self.outside = self.before = machine.constant(torch.zeros(1, dtype=torch.int64))
        """How many range tests have failed: in all, and before the first step."""
        self.learned: list[Wire] = []
        """What steps change: the weights, or what each training row counts in the first ones."""
        self.taken: tuple[tuple[int, ...], list[Wire]] | None = None
        """Trials and the weights that are their mean, as they were last judged; None: those of the trial by itself."""
        self.earlier: BestBefore | None = None
        self._beside: tuple[Wire, Bit] | None = None
        self._weights: list[Wire] | None = None
        self._untested: list[Wire] = []
        self._tests: list[Wire] = []
        self.left = 1.0
        self.velocities: list[Wire | None] = []
        self._most: list[int] = []
        """Bounds that the newest velocities are tested by."""
        self.begin_anew()
        self.validation = Validation(machine, context)
        self._targets: tuple[Wire, Wire | None] | None = None

    @property
    def _velocity_bits(self) -> int:
        """Fractional bits of velocities: a learning rate n/2^k is a multiplication by n and k more bits."""
        return WEIGHT_BITS - self._halvings

    @property
    def _weight_decay(self) -> float:
        """Weight decay for summed gradients; on rows of length 1 it shrinks with the number of training rows."""
        plan, found = self._context.plan, self.network.trial.weight_decay
        if plan.is_of_unit_rows(self.network.trial):
            found *= min(1, _FEW / max(self._context.sizes.training, 1))
        decay = found if plan.weight_decay is None else plan.weight_decay
        return self._rest * decay

    @property
    def weights(self) -> list[Wire]:
        """The trial's weights, W and U side by side, and V; asked by all parties together, for they may be computed."""
        if self._weights is None:
            summed, *more = self.learned
            _, counts = self.enter_targets()
            self._weights = [self.network.first(summed, self.left, counts), *more]
            self._untested.append(self._weights[0])
        return self._weights

    def switch_to(self, *members: int) -> None:
        """Make the network that of another trial or, for several ``members``, of their mean."""
        self.trial, self.network.trial = members[-1], self._context.plan.mean_of(members)

    def begin_anew(self) -> None:
        """Reset weights, velocities and failed range tests to the start of the trial."""
        constant = partial(self._machine.constant, bits=WEIGHT_BITS)
        self.learned = self._weights = [constant(weight) for weight in self.network.initial(WEIGHT_BITS)]
        if self.network.sums_rows:
            counts = torch.zeros(self.network.learned_shapes[0], dtype=torch.int64)
            self.learned = [constant(counts), *self._weights[1:]]
        self.velocities = [None] * len(self.learned)
        self.outside, self.taken, self._beside = self.before, None, None
        self._tests.clear()  # of steps after which nothing was kept

    def enter_targets(self) -> tuple[Wire, Wire | None]:
        """Put in the training rows' one-hot classes [T, C] and, if weighted, loss weights [T, 1]; once a session."""
        if self._targets is None:
            put, classes = Learners(self._machine, self._context).put, self._context.sizes.classes
            targets, counts = put("labels", partial(one_hot, size=classes), "training", classes, ERROR_BITS), None
            if self._context.plan.weighted:
                counts = put("weights", lambda weights: weights[:, None], "training", 1, WEIGHT_BITS)
            self._targets = targets, counts
        return self._targets

    def begins_trial(self, number: int) -> bool:
        """Whether step ``number``, from 0, is the first of a trial."""
        plan = self._context.plan
        return not number or plan.trial_of(number) != plan.trial_of(number - 1)

    def make_step(self, number: int) -> None:
        """Make one step of SGD with momentum; ``number`` counts from 0 over all trials. ``close_step`` tests it."""
        machine, plan = self._machine, self._context.plan
        targets, row_weights = self.enter_targets()
        self.network.arrive(number)
        machine.at(f"step {number}")
        if self.begins_trial(number):
            self.switch_to(plan.trial_of(number))
            self.begin_anew()
        wanted, taken = self._wanted(number), plan.place_of(number)
        passed = self.network.forward(self.learned, wanted, self._left_after(taken), row_weights)
        error = class_probabilities(machine, passed.logits) - machine.split(targets[wanted])
        if row_weights is not None and wanted != slice(0, row_weights.shape[0]):
            row_weights = row_weights[wanted]  # else the same wire at every step, as products by it are made ahead
        self._update(self.network.backward(self.learned, passed, error, row_weights))
        self._weights, self.left = None if self.network.sums_rows else self.learned, self._left_after(taken + 1)
        self.taken = None
        self._test_ranges(updated=True)

    def close_step(self, number: int) -> None:
        """Make the weights, and the range tests, where they are due after a step that was made."""
        self._machine.at(f"step {number}")
        if self._context.plan.is_kept(number + 1):
            _ = self.weights  # made now, for whoever keeps them sends nothing
        if self._context.plan.is_tested(number + 1):
            self.outside = self._machine.open(self.failed_tests())

    def _left_after(self, taken: int) -> float:
        """The factor c of the initial weights that weight decay leaves after ``taken`` steps of a trial."""
        left, velocity = 1.0, 0.0
        for _ in range(taken):
            velocity = self._context.plan.momentum * velocity + self._weight_decay * left
            left -= self._rates[self.trial] * 2.0**-self._halvings * velocity
        return left

    def _wanted(self, number: int) -> slice:
        """The training rows of a step: a batch, in turn; their order is the label holder's secret."""
        total = self._context.sizes.training
        rows = self._step_rows
        start = min(number * rows % total, total - rows)
        return slice(start, start + rows)

    def _update(self, gradients: Sequence[Summands]) -> None:
        """SGD step: v ← μ·v + gradient + decay·W, opened; W ← W − rate·2^−k·v, which is linear.

        ``gradients`` are summed over rows, of every weight. Velocities of as many bits are opened together.
        """
        machine, plan, rate = self._machine, self._context.plan, self._rates[self.trial]
        moved = []
        for gradient, velocity, weight in zip(gradients, self.velocities, self.learned, strict=True):
            found = gradient.scaled(2.0**-self._scale, max(self._scale, _LEAST_BITS))
            if velocity is not None:
                found += machine.split(velocity).scaled(plan.momentum, found.bits - velocity.bits)
            if self._weight_decay:
                found += machine.split(weight).scaled(self._weight_decay, found.bits - weight.bits)
            moved.append(found)
        # What is multiplied by the bits of these is 2^60 at most: a quarter of what the ring holds.
        self._most = [1 << min(_VELOCITY_BITS, 60 - part.bits) for part in moved]
        groups = [[part for part in moved if part.bits == bits] for bits in dict.fromkeys(part.bits for part in moved)]
        opens = [partial(self._opened_velocities, group) for group in groups]
        opened = {of[0].bits: iter(wires) for of, wires in zip(groups, machine.abreast(opens), strict=True)}
        velocities = [next(opened[part.bits]) for part in moved]
        moves = [velocity.halved(self._halvings).times(rate) for velocity in velocities]
        self.learned = [weight - move for weight, move in zip(self.learned, moves, strict=True)]
        self.velocities = [*velocities]

    def _opened_velocities(self, moved: Sequence[Summands]) -> list[Wire]:
        opened = self._machine.open(in_a_row(moved), moved[0].bits - self._velocity_bits)
        return apart(opened, [part.shape for part in moved])

    def _test_ranges(self, *, updated: bool = False) -> None:
        """Note range tests of what was opened since the last call, and if ``updated`` of weights and velocities."""
        tests = [*self.network.tests]
        tests += [range_tests(weight, MOST_WEIGHT) for weight in self._untested]
        self.network.tests.clear()
        self._untested.clear()
        if updated:
            newest = zip(self.velocities, self._most, strict=True)
            tests += [range_tests(velocity, most) for velocity, most in newest if velocity is not None]
            tests += [range_tests(weight, MOST_WEIGHT) for weight in self.learned]
        self._tests += tests

    def failed_tests(self) -> Summands:
        """Make all tests that were noted, and return the count of all that failed so far: [1]."""
        self._test_ranges()
        machine = self._machine
        fine = min(test.bits for test in self._tests)
        tests = concatenate([test.halved(fine - test.bits) for test in self._tests])  # signs do not depend on units
        failed = machine.value(~machine.negative(tests, fine_bits=0))
        self._tests.clear()
        return failed.map(lambda part: part.sum(0, keepdim=True)) + machine.split(self.outside)

    def check_range(self, outside: Wire) -> None:
        """Open one bit to every holder, whether the count ``outside`` [1] is above 0; if so raise ``RangeOverflow``."""
        machine = self._machine
        bit = machine.open(machine.value(machine.negative(-outside, SHORT_BITS)))
        # All learn it before any of them ends.
        told = machine.abreast([partial(machine.reveal, bit, holder) for holder in machine.holders])
        if any(float(each) > 0 for each in told if each is not None):
            rate = self.network.trial.learning_rate
            raise RangeOverflow(
                f"train.learning_rate={rate:g}: training or prediction has left the range of the ring, so nothing is "
                "predicted. Set train.learning_rate to less, or scale the columns (data.feature_scaling: standard), "
                "and train anew",
                code="left-range",
                key="train.learning_rate",
                value=rate,
            )

    def judge(self, number: int) -> Wire:
        """Compute what ``score`` reveals of step ``number``, from 1: [1, 1]."""
        machine, trial = self._machine, self.trial
        machine.at(f"score {number}")
        beside = None if self.earlier is None else self._beside or self._judged_beside(self.earlier)
        logits = self.network.judged(self.weights, self.learned, self.left, self.enter_targets()[1])
        right, inside = machine.both(
            lambda: machine.open(self.validation.right(logits)),
            # A step that has left the range counts as none right, or its number could make it the best one.
            lambda: self._is_in_range(machine.open(self.failed_tests())),
        )
        if self.earlier is not None and beside is not None:
            mean = machine.open(machine.gate(beside[1], machine.open(self.validation.right(logits + beside[0]))))
            better = machine.negative(right - mean, SHORT_BITS)
            right = machine.open(machine.split(right) + machine.gate(better, mean - right))
            members, plan = (*self.earlier.members, trial), self._context.plan
            both = (plan.mean_of(self.earlier.members), self.earlier.weights), (self.network.trial, self.weights)
            self.switch_to(*members)
            self.taken = members, mean_where(self.network, better, *both)
            self.switch_to(trial)
        return machine.open(machine.gate(inside, right))

    def _is_in_range(self, outside: Wire) -> Bit:
        return ~self._machine.negative(-outside[:, None], SHORT_BITS)

    def _judged_beside(self, earlier: BestBefore) -> tuple[Wire, Bit]:
        """Logits [V, C] of the earlier network, and whether all its range tests passed; once a trial."""
        trial, outside = self.trial, self.outside
        self.switch_to(*earlier.members)
        self.outside = earlier.outside
        logits = self.network.judged(earlier.weights)
        self._beside = logits, self._is_in_range(self._machine.open(self.failed_tests()))
        self.switch_to(trial)
        self.outside = outside
        return self._beside
