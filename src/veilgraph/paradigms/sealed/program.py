"""Training and inference of a sealed job as one program of ``mpc.sealed``: holders, dealer and twin all run it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import RunError
from veilgraph.core.memory import give_back_freed_memory
from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.functions import argmax
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Wire, concatenate
from veilgraph.paradigms.sealed.abreast import Reached, are_abreast, stretches_of
from veilgraph.paradigms.sealed.learners import Learners
from veilgraph.paradigms.sealed.networks.propagation import one_hot
from veilgraph.paradigms.sealed.plan import Context
from veilgraph.paradigms.sealed.steps import WEIGHT_BITS, BestBefore, Steps

TRIAL: Final = "weight.trial"  # name of the public numbers of the trials that the saved weights are a mean of
OUTSIDE: Final = "range.failed"  # name of the count of failed range tests in training, saved with the weights

# What a step changes, and another one or a prediction goes on from.
_STATE: Final = ("learned", "velocities", "taken", "outside", "_weights", "left", "_tests", "_untested")
_SURE: Final = 30.0  # the logit of a class that alone is known
_BEFORE: Final = "range.before"
_TRAINED: Final = "learned.trial"
_EARLIER: Final = "earlier"
_FAILED: Final = "earlier.failed"


class Program(ABC):
    """One party's part in a sealed job, in the order that ``roles`` calls it.

    Attributes:
        told: what the label holder learned beside the newest prediction; None: nothing.
    """

    def __init__(self) -> None:
        self.told: Tensor | None = None

    @abstractmethod
    def enter(self, *, trains: bool) -> None:
        """Put in what all holders have; once a session. ``trains``: also what only a training needs."""

    @abstractmethod
    def begin(self) -> None:
        """Compute what all steps need; once a training, before its steps."""

    @abstractmethod
    def step(self, number: int, best: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        """Make one step of training, counted from 0; ``best``: the ``shares`` of the best step so far."""

    def score(self, number: int) -> Tensor | None:
        """Judge step ``number``, from 1; what is told of it."""
        raise RunError("this job's steps are not judged")

    @abstractmethod
    def shares(self) -> dict[str, Tensor]:
        """This party's shares, by name, of weights and all that training resumes from."""

    @abstractmethod
    def check(self, saved: Mapping[str, Tensor], *, training: bool) -> None:
        """Refuse saved shares of another job: the ``RunError`` names what differs."""

    @abstractmethod
    def restore(self, saved: Mapping[str, Tensor], *, training: bool) -> None:
        """Open all parties' saved shares as wires under fresh masks; all parties call it together."""

    @abstractmethod
    def predict(self) -> Tensor | None:
        """Predict, and reveal to the label holder; None at all others."""

    def release(self) -> dict[PartyId, dict[str, Tensor]]:
        """Reveal weights to their holders: holder → name → weights."""
        raise RunError("this job releases no weights")


class SealedProgram(Steps, Program):
    """One party's part in training and inference of a sealed job; ``context.data`` has what the party puts in."""

    def __init__(self, machine: Machine, context: Context) -> None:
        Program.__init__(self)
        Steps.__init__(self, machine, context)
        self._lanes: list[Iterator[dict[int, Reached]]] = []
        """Each trial's steps, where trials are made side by side; empty where they are made in turn."""
        self._reached: dict[int, Reached] = {}
        """What steps have reached that were made side by side, and that the job has not come to."""
        self._met = 0
        """The last step before which each party waited for all others."""
        self._told: Wire | None = None
        self._newest = 0
        """The step that was made last, where it is tested beside later ones."""

    @override
    def enter(self, *, trains: bool, let_go: Callable[[], None] = lambda: None) -> None:
        """Put in all holders' columns and edges; once a session. ``trains``: also what only a training needs.

        ``let_go`` is called between the two: from then on nothing asks for this party's columns.
        """
        self._machine.at("enter")
        self.network.enter_columns()
        let_go()
        give_back_freed_memory()
        self.network.enter(trains=trains)

    @override
    def begin(self) -> None:
        """Compute the training rows and run the first range tests; once a training, before its steps."""
        self.network.prepare()
        self.before = self._machine.open(self.failed_tests())
        give_back_freed_memory()  # of slices, beside which those of steps are small

    @override
    def shares(self) -> dict[str, Tensor]:
        """This party's int64 shares, by name, of weights and all that training resumes from, with public trials."""
        members, weights = self.taken or ((self.trial,), self._weights or [])
        named: dict[str, Wire | None] = {f"weight.{place}": weight for place, weight in enumerate(weights)}
        named |= {f"learned.{place}": learned for place, learned in enumerate(self.learned)}
        named |= {f"velocity.{place}": velocity for place, velocity in enumerate(self.velocities)}
        public = {TRIAL: members, _TRAINED: (self.trial,)}
        if self.earlier is not None:
            named |= {f"{_EARLIER}.{place}": weight for place, weight in enumerate(self.earlier.weights)}
            named[_FAILED] = self.earlier.outside
            public[f"{_EARLIER}.trial"] = self.earlier.members
        named |= {
            OUTSIDE: self.outside,
            _BEFORE: self.before,
            **{name: kept.wire for name, kept in self.network.kept().items()},
        }
        shares = {name: self._machine.share(wire) for name, wire in named.items() if wire is not None}
        return shares | {name: torch.tensor(trials) for name, trials in public.items()}

    @override
    def check(self, saved: Mapping[str, Tensor], *, training: bool) -> None:
        """Refuse saved shares of another network or release: the ``RunError`` names what differs.

        ``training``: check what training resumes from, else the weights that predict.
        """
        if (mark := _TRAINED if training else OUTSIDE) not in saved:
            raise RunError(
                f"{mark}: the saved shares have none, so another release saved them; train anew, or use that release",
                code="other-release",
                key=mark,
            )
        self._take_saved(saved, _TRAINED if training else TRIAL)
        kind, shapes = ("learned", self.network.learned_shapes) if training else ("weight", self.network.shapes)
        for name, shape in ((f"{kind}.{place}", shape) for place, shape in enumerate(shapes)):
            found = saved.get(name)
            if found is None or tuple(found.shape) != shape:
                has = "nothing" if found is None else str(list(found.shape))
                raise RunError(
                    f"{name}: the saved shares are {has}, and the network needs {list(shape)} with the columns "
                    "and classes that there are now; give the files of this party's own run and the columns and "
                    "classes that it was trained on, or train anew",
                    code="other-network",
                    key=name,
                    value=has,
                )

    @override
    def restore(self, saved: Mapping[str, Tensor], *, training: bool) -> None:
        """Open all parties' saved shares as wires under fresh masks; all parties call it together.

        ``training``: to resume training, else weights alone. The dealer has no shares saved.
        """
        self._beside, self.earlier = None, None
        self._lanes.clear()
        self._reached.clear()
        if training and f"{_EARLIER}.trial" in saved:
            self.earlier = self._restore_earlier(saved, _EARLIER)
        members = self._take_saved(saved, _TRAINED if training else TRIAL)
        if training:
            self.learned = self._restore_all(saved, "learned", self.network.learned_shapes, WEIGHT_BITS)
            self.velocities = [*self._restore_all(saved, "velocity", self.network.learned_shapes, self._velocity_bits)]
            self._weights, self.taken = None if self.network.sums_rows else self.learned, None
            self.before = self._restore_wire(saved, _BEFORE, (1,), 0)
        else:
            self.network.leave_rows()
            self._weights = self._restore_all(saved, "weight", self.network.shapes, WEIGHT_BITS)
            self.taken = members, self._weights
        self.outside = self._restore_wire(saved, OUTSIDE, (1,), 0)
        for name, kept in self.network.kept().items():
            if training or kept.predicts:
                setattr(kept.owner, kept.attribute, self._restore_wire(saved, name, kept.shape, kept.bits))
        if training:
            self.network.resume()

    def _take_saved(self, saved: Mapping[str, Tensor], name: str) -> tuple[int, ...]:
        """Switch the network to the trials whose weights were saved, 0 if none; ``RunError``: the job has them not."""
        members = tuple(saved[name].reshape(-1).tolist()) if name in saved else (0,)
        trials = range(len(self._context.plan.trials))
        if not members or any(member not in trials for member in members):
            raise RunError(
                f"{name}: the saved shares are of trials {list(members)}, and the job has {len(trials)}; "
                "give the files of this party's own run",
                code="other-network",
                key=name,
            )
        self.switch_to(*members)
        return members

    def _restore_earlier(self, saved: Mapping[str, Tensor], kind: str) -> BestBefore:
        """Restore shares with names that begin with ``kind`` as the best network so far; it becomes the network's."""
        members = self._take_saved(saved, f"{kind}.trial")
        weights = self._restore_all(saved, kind, self.network.shapes, WEIGHT_BITS)
        return BestBefore(
            members, weights, self._restore_wire(saved, OUTSIDE if kind == "weight" else _FAILED, (1,), 0)
        )

    def _restore_all(
        self, saved: Mapping[str, Tensor], kind: str, shapes: Sequence[tuple[int, int]], bits: int
    ) -> list[Wire]:
        return [self._restore_wire(saved, f"{kind}.{place}", shape, bits) for place, shape in enumerate(shapes)]

    def _restore_wire(self, saved: Mapping[str, Tensor], name: str, shape: tuple[int, ...], bits: int) -> Wire:
        return self._machine.open(self._machine.summands(saved.get(name), shape, 0), bits=bits)

    @override
    def step(self, number: int, best: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        """Make one step of SGD with momentum; ``number`` counts from 0 over all trials.

        ``best`` are the ``shares`` of the best step so far. Where columns are standardised, a new trial's steps are
        judged beside it. Else steps of all trials may be made side by side: those of later ones are ready when the job
        comes to them.
        """
        plan, machine = self._context.plan, self._machine
        if not number and are_abreast(self._context):
            self._set_up_lanes()
        self._told = None
        if self._lanes:
            self._take_reached(number)
        else:
            machine.at(f"step {number}")
            if self.begins_trial(number):
                beside = number and best and plan.standard  # of words no mean was ever better: Cora, CiteSeer, PubMed
                self.earlier = self._restore_earlier(best, "weight") if beside else None
            self.make_step(number)
            self.close_step(number)
        if number + 1 == plan.steps:
            self.network.finish(self.weights)
            if self.network.tests:
                self.outside = machine.open(self.failed_tests())

    def _set_up_lanes(self) -> None:
        """Compute what all trials need, and give each a program of its own, at its start."""
        self.enter_targets()
        self.validation.enter()
        self.network.scale()
        self._lanes = [self._lane(trial)._stretches() for trial in range(len(self._context.plan.trials))]

    def _lane(self, trial: int) -> SealedProgram:
        """Return a program of one trial alone, at its start, on the same rows."""
        lane = copy(self)
        lane.network, lane._untested, lane._tests = self.network.anew(), [], []
        lane.switch_to(trial)
        lane.begin_anew()
        return lane

    def _stretches(self) -> Iterator[dict[int, Reached]]:
        """Make a stretch of this lane's steps at a time, and beside it test and judge the step before.

        No step depends on how earlier ones did. Yields number → what a step reached, of those that need no more tests.
        """
        plan = self._context.plan
        ended: SealedProgram | None = None
        for stretch in [*stretches_of(plan, self.trial), []]:
            make, reached = partial(self._make_stretch, stretch), dict[int, Reached]()
            if ended is None:
                made = make()
            else:
                made, reached[ended._newest] = self._machine.both(make, ended._close)
                self.outside = ended.outside
            ended = self._apart(stretch[-1], ended) if stretch and plan.is_tested(stretch[-1] + 1) else None
            if ended is not None:
                del made[ended._newest]
            yield reached | {
                number: Reached({**state, "outside": self.outside}, None) for number, state in made.items()
            }

    def _make_stretch(self, numbers: Sequence[int]) -> dict[int, dict[str, object]]:
        """Make steps that are not tested yet; returns this program's state after each."""
        found = {}
        for number in numbers:
            self.make_step(number)
            found[number] = self._state()
        return found

    def _state(self) -> dict[str, object]:
        found = {name: getattr(self, name) for name in _STATE}
        return {name: list(value) if isinstance(value, list) else value for name, value in found.items()}

    def _apart(self, number: int, before: SealedProgram | None) -> SealedProgram:
        """Return a program that tests and judges step ``number`` while this one goes on; ``before``: the last one."""
        found = copy(self)
        found._newest = number
        found.network = self.network.aside() if before is None else before.network
        found._untested, found._tests, self._tests = [], self._tests, []
        return found

    def _close(self) -> Reached:
        """Test the newest step, and judge it where that is due."""
        number = self._newest
        self.close_step(number)
        is_judged = self._context.sizes.validation and self._context.plan.is_kept(number + 1)
        told = self.judge(number + 1) if is_judged else None
        return Reached(self._state(), told)

    def _take_reached(self, number: int) -> None:
        """Take the state after step ``number``; unless it is there, make the next steps of all trials."""
        plan = self._context.plan
        if number not in self._reached:
            self._met = number
        elif number - self._met >= plan.saved_every:
            self._await_all()  # or whoever still runs would go on, and drop the last checkpoint that all have
            self._met = number
        while number not in self._reached:
            for reached in self._machine.abreast([partial(next, lane, {}) for lane in self._lanes]):
                self._reached |= reached
        reached_now = self._reached.pop(number)
        self.switch_to(plan.trial_of(number))
        self._told = reached_now.told
        for name, value in reached_now.state.items():
            setattr(self, name, value)

    def _await_all(self) -> None:
        """Open zeros, for which each party waits for all others."""
        machine = self._machine
        nothing = machine.open(machine.split(machine.constant(torch.zeros(1, dtype=torch.int64))))
        machine.abreast([partial(machine.reveal, nothing, holder) for holder in machine.computing])

    @override
    def score(self, number: int) -> Tensor | None:
        """Open how many validation nodes, or ranked pairs, are right after step ``number``, from 1.

        Returns [1, 1] at holders with labels, None at others. Where several have labels and pairs are ranked, the
        number of pairs stands beside it: [1, 2]. The count is of the step's network, or of its mean with the best one
        when its trial began, whichever has more right; that one is then ``taken``. Nothing else is opened: neither
        which of the two it is, nor which nodes are judged or right.
        """
        machine, learners = self._machine, self._context.learners
        machine.at(f"score {number}")
        told = self.judge(number) if self._told is None else self._told
        if self._context.plan.ranks and len(learners) > 1:
            told = concatenate([told, self.validation.pairs], 1)
        found = [machine.reveal(told, holder) for holder in learners]
        return next((each for each in found if each is not None), None)

    @override
    def predict(self) -> Tensor | None:
        """Predict, and reveal to the label holder: classes [N, 1] or margins [N, C − 1]; None at all others.

        For R named nodes it is [R, 1] or [R, C − 1] in their order: they are picked secretly out of all nodes' logits.
        Where rows are holders' own, each holder learns those of its own nodes. ``told`` has noisy votes of the same
        nodes. Raises ``RangeOverflow`` at every holder if a range test has failed.
        """
        return Learners(self._machine, self._context).reveal(self.output())

    def output(self) -> Wire:
        """Compute what ``predict`` reveals, under masks that nothing else is under, and leave it closed."""
        machine, context = self._machine, self._context
        learners, asked = Learners(machine, context), context.sizes.asked is not None
        self.network.normalise()
        give_back_freed_memory()  # of checkpoints
        machine.at("predict")
        values = self.network.predict(self.weights)
        give_back_freed_memory()  # of slices
        if asked:
            values = machine.open(learners.pick("asked", "asked", values))
        found, _ = machine.both(
            partial(argmax, machine, values)
            if context.plan.output == "classes"
            # Under a fresh mask: that of the logits is in other values as well.
            else lambda: machine.open(machine.split(values[:, 1:] - values[:, :1])),
            lambda: self.check_range(machine.open(self.failed_tests())),
        )
        if (beside := self.network.told()) is not None:
            beside = machine.open(learners.pick("asked", "asked", beside) if asked else machine.split(beside))
            self.told = machine.reveal(beside, context.label_party)
        return found

    def kept_output(self) -> tuple[Tensor, int]:
        """Return this party's share of ``output``, int64 of its shape, and its fractional bits; nothing is opened."""
        found = self.output()
        return self._machine.share(found), found.bits

    @override
    def release(self) -> dict[PartyId, dict[str, Tensor]]:
        """Reveal to each holder the first layer's weights of its own columns: holder → block → float64 [F_i, d].

        A holder gets its own only, the dealer none. Raises ``RangeOverflow`` if a range test has failed.
        """
        machine, found = self._machine, dict[PartyId, dict[str, Tensor]]()
        machine.at("range")
        self.check_range(self.outside)
        machine.at("release")
        first = self.network.effective(self.weights[0])
        for holder in self._context.sizes.columns:
            parts = self.network.parts(holder)
            if not parts:  # blocks of the label holder alone
                continue
            blocks = [first[rows] for rows in parts.values()]
            told = machine.reveal(machine.open(machine.split(concatenate(blocks))), holder)
            if told is not None:
                sizes = [block.shape[0] for block in blocks]
                found[holder] = dict(zip(parts, torch.split(told, sizes), strict=True))
        return found


def public_trials(shares: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select, of a program's ``shares``, the public numbers of the trials that they are of."""
    return {name: trials for name, trials in shares.items() if name.endswith(".trial")}


def certain_logits(found: Tensor, classes: int) -> Tensor:
    """Turn opened classes [R, 1] of so many into logits, float64 [R, C], by which each is certain.

    ``RunError``: there is another number among them, so a party computed or saved something else.
    """
    if len(found) and not 0 <= float(found.min()) <= float(found.max()) <= classes - 1:
        raise RunError(
            f"the shares of predicted classes add up to numbers that are none of {classes} classes: a party has "
            "computed or saved something else; ask what each runs, and train anew",
            code="no-class",
        )
    return _SURE * one_hot(found[:, 0].round().long(), classes)


def logits_of(found: Tensor) -> Tensor:
    """Put a column of zeros, the first class, before margins [R, C − 1]: logits, float64 [R, C]."""
    return torch.cat([torch.zeros((len(found), 1), dtype=found.dtype), found], 1)
