"""The holder with labels in a sealed job: it learns predictions, and judges steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import RunError
from veilgraph.core.tensor_file import Kept
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.permutations import shuffled
from veilgraph.nn.calibration import Calibration
from veilgraph.paradigms.sealed.boosting import Examples
from veilgraph.paradigms.sealed.evidence import LabelKnowledge, with_votes
from veilgraph.paradigms.sealed.inputs import (
    examples_of,
    most_right,
    plan_of,
    with_labels,
    with_scores,
)
from veilgraph.paradigms.sealed.plan import BOOSTING, OwnData, Sizes, epsilon_of
from veilgraph.paradigms.sealed.program import certain_logits, logits_of
from veilgraph.paradigms.sealed.records.home import Home, check_classes_of_bits, with_residuals
from veilgraph.paradigms.sealed.roles import SealedHolder
from veilgraph.paradigms.sealed.stacking import Stacking, fit_best_stacking
from veilgraph.protocol.agreement import Hello, Point, Start
from veilgraph.protocol.figures import CLASS_MEASURES, Scores
from veilgraph.protocol.judge import Judge, Objective, Predicted
from veilgraph.protocol.role import RoleContext

_EXAMPLES = "boosting"
_STACKED = "stacking"
_TAKEN = "taken"


class _OneNumber(Scores):
    """Scores of a training step with one known number: the share of right validation nodes, or of ranked pairs."""

    @override
    def record(self) -> dict[str, float | None]:
        return dict(self.values)


class SealedLabelHolder(SealedHolder, Judge):
    """A holder with labels: learns predictions of all or named nodes, and judges steps."""

    _stacking: Stacking
    _taken: int = 0
    _opinions: Tensor | None = None

    def __init__(self, session: RoleContext, graph: PartyGraph) -> None:
        super().__init__(session, graph)
        self._examples: Examples | None = None
        self._objective = Objective(self.labelled().common_part(), session.settings.train, torch.float64)
        check_classes_of_bits(self._job, graph.party, self._objective.classes)
        if self._job.outcome.predicts_named:
            self.predicted = torch.empty(0, dtype=torch.int64) if session.asked is None else session.asked
            self.logits = torch.empty((0, self._objective.classes), dtype=torch.float64)

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        """Set up with labels for a training, or with the nodes to predict."""
        self._own = self.with_labels() if self._learns else replace(self._own, asked=self.predicted)
        return super().setup(held)

    def with_labels(self) -> OwnData:
        """What it puts in, with training and validation nodes and their labels."""
        common, classes = self.labelled().common_part(), self._objective.classes
        return with_labels(self._own, common, self._job, self.session.streams, classes)

    def labelled(self) -> PartyGraph:
        """Its graph with labels, in the form that trees, stacking and scores use."""
        return self.graph

    @override
    def data(self, sizes: Sizes, name: str) -> Mapping[PartyId, OwnData]:
        """Its data with the boosted trees' scores; a prediction fits trees to the examples that the training saved."""
        seen = self.labelled()
        if self._job.records is not None:
            return {self.session.link.party: self._with_residuals(sizes) if self._learns else self._own}
        if BOOSTING in plan_of(self._job).blocks:
            self._examples = examples_of(self._job, seen) if self._learns else self._kept_examples()
        if self._stacks and not self._learns:
            self._stacking = self._kept_stacking(sizes.classes)
        own = with_scores(self._own, seen, self._job, self._examples, sizes.classes)
        if self._job.online and not self._learns:
            numbers = torch.frombuffer(bytearray(self.session.secrets(8 * sizes.nodes)), dtype=torch.int64)
            self._order = shuffled(numbers)
            own = replace(own, asked=self._order)
        return {self.session.link.party: own}

    def _with_residuals(self, sizes: Sizes) -> OwnData:
        """What it puts in, with what its own model leaves of its training nodes' labels."""
        multiplier = plan_of(self._job, sizes).records
        assert multiplier is not None
        self._opinions = self._home.opinions()
        return with_residuals(self._own, self._opinions, self.labelled().common_part(), multiplier)

    @property
    def _home(self) -> Home:
        return Home(self.labelled().common_part(), self._classes)

    def _kept_examples(self) -> Examples:
        what = f"the training nodes that trees of the block {BOOSTING} were fitted to"
        return Examples(**self._kept(_EXAMPLES, what, lambda kept: set(kept) == {"rows", "labels"}).tensors)

    def _kept_stacking(self, classes: int) -> Stacking:
        names, what = set(Stacking.__dataclass_fields__), f"weights of its own edges, as of {classes} classes,"
        kept = self._kept(_STACKED, what, lambda k: set(k) == names and Stacking(**k).is_of(classes))
        self._taken = int(kept.facts.get(_TAKEN) == 1)
        return Stacking(**kept.tensors)

    def _kept(self, name: str, what: str, sound: Callable[[Mapping[str, Tensor]], bool]) -> Kept:
        """Load what the training saved under ``name``; ``RunError`` if missing or not ``sound``."""
        kept = self.session.keeper.get(name)
        if kept is None or not sound(kept.tensors):
            raise RunError(
                f"{self.session.keeper.place(name)}: {what} are not there; give the files of this party's own run, or "
                "train a new one, as after a run of an earlier release",
                code="lost",
                key=name,
                party=self.session.link.party,
            )
        return kept

    @override
    def keep(self) -> None:
        """Also save the trees' training examples, to which later predictions fit the same trees."""
        super().keep()
        if self._learns and self._examples is not None:
            self.session.keeper.put(_EXAMPLES, vars(self._examples), {})

    @override
    def declines(self) -> str:
        if (why := super().declines()) or self._learns or self.predicted is None or self._job.online:
            return why
        return self._naming.refusal(self.session.link.party, self.predicted.numel())

    @override
    def hello(self) -> Hello:
        own = self._own
        counts = {"training": own.rows, "validation": own.judged, "asked": own.asked}
        stated = {name: 0 if rows is None else rows.numel() for name, rows in counts.items()}
        return super().hello().model_copy(update=stated | {"classes": self._objective.classes})

    @override
    def learn(self, found: Tensor | None) -> None:
        """Keep logits of what was revealed, combined with noisy votes and stacked with own edges where the job does."""
        assert found is not None
        if self._job.records is not None:
            opinions = self._home.opinions() if self._opinions is None else self._opinions
            add = self._home.with_scores if self._job.bits is None else self._home.with_bits
            self.logits = add(opinions, found, self._objective.weights)
            return
        self.logits = self._opened_logits(found)
        said = [self.logits]
        if self._job.privacy is not None:
            said = [self._with_votes(self.logits), self.logits]
            alone = self._job.output == "classes"
            self.logits = certain_logits(said[0].argmax(1, keepdim=True), self._classes) if alone else said[0]
        if self._stacks:
            self.logits = self._stacked(said)

    @property
    def _stacks(self) -> bool:
        """Whether own edges are stacked on the logits: margins of all nodes are opened, of the job's network."""
        return self._job.output == "margins" and self.predicted is None and self._job.records is None

    def _stacked(self, said: Sequence[Tensor]) -> Tensor:
        """Add what this holder's own edges say to the best of several logits; in training choose, fit and save."""
        graph = self.labelled()
        if self._trains:
            self._taken, self._stacking = fit_best_stacking(said, graph, self._objective.weights)
            self.session.keeper.put(_STACKED, vars(self._stacking), {_TAKEN: self._taken})
        return self._stacking.logits(said[self._taken], graph)

    def _opened_logits(self, found: Tensor) -> Tensor:
        return logits_of(found) if self._job.output == "margins" else certain_logits(found, self._classes)

    def _with_votes(self, scores: Tensor) -> Tensor:
        """Combine the network's logits with the noisy votes that were opened with them."""
        votes, epsilon = self.program.told, epsilon_of(self._job)
        assert votes is not None
        assert epsilon is not None
        known = LabelKnowledge(self.labelled().common_part(), self._classes, self.predicted)
        return with_votes(scores, votes, epsilon, known, classes_alone=self._job.output == "classes")

    @override
    def predictions(self) -> Predicted:
        prepared = "" if self._order is None else self._start
        return replace(super().predictions(), classes_alone=self._job.output == "classes", prepared=prepared)

    @override
    def judge(self, found: Tensor | None) -> None:
        assert found is not None
        assert self._own.judged is not None
        assert self._own.judged_labels is not None
        self._right = int(found) / most_right(self._own.judged_labels, self._job.train.select_by)

    @override
    def calibration(self, probabilities: Tensor) -> Calibration | None:
        """Calibrate where margins are opened; None with ``output: classes``, which say nothing of confidence."""
        judges = self._job.output == "margins" and self._objective.classes
        return super().calibration(probabilities) if judges else None

    @override
    def scores(self, *, everything: bool = False) -> Scores:
        """Scores: in training the one number revealed; else by own labels, rankings only if margins are opened.

        All values are None where only named nodes are predicted, or there are no labels.
        """
        if self._learns:
            name = "val_auc" if self._job.train.select_by == "auc" else "val_accuracy"
            return _OneNumber(CLASS_MEASURES, math.nan, 0.0, {name: self._right})
        names = ["train_accuracy", "val_accuracy", "test_accuracy", "val_f1", "test_f1"] + ["stacked"] * self._stacks
        ranks = [f"{split}_{name}" for name in ("auc", "ap") for split in ("val", "test")]
        if self.predicted is not None or not self._objective.classes:  # named nodes alone, or no labels
            return Scores(CLASS_MEASURES, math.nan, math.nan, dict.fromkeys([*names, *ranks]))
        found = self._objective.score(self.logits.detach(), everything=everything)
        if self._stacks:
            found = replace(found, values={**found.values, "stacked": float(len(self._stacking.weights) > 0)})
        if self._job.output == "margins":
            return found
        return replace(found, values={**found.values, **dict.fromkeys(name for name in ranks if name in found.values)})
