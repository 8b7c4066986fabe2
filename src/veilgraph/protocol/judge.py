"""A party that has labels: it judges how well all are doing, stops early and chooses the model."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import RangeOverflow
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.calibration import Calibration
from veilgraph.protocol.figures import LAST, Judged
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.role import Role
from veilgraph.protocol.scores import Objective


@dataclass(frozen=True)
class Judgement:
    """Early stopping: the best evaluation so far and how many have passed since.

    ``best_score`` is what the best epoch is chosen by, higher is better.
    """

    best_epoch: int = 0
    best_score: float = -float("inf")
    best_loss: float = float("inf")
    since_best: int = 0

    def after(self, epoch: int, scores: Judged, select_by: str = "accuracy") -> Judgement:
        """The judgement with one more evaluation: the higher score wins, then the lower validation loss."""
        if select_by == LAST:
            return Judgement(epoch, 0.0, scores.val_loss)
        score = scores.selection(select_by)
        if (score, -scores.val_loss) > (self.best_score, -self.best_loss):
            return Judgement(epoch, score, scores.val_loss)
        return replace(self, since_best=self.since_best + 1)

    def stops(self, settings: TrainSettings) -> bool:
        """Whether patience is used up."""
        return settings.patience is not None and self.since_best >= settings.patience


@dataclass(frozen=True, eq=False)
class Predicted:
    """What a judge predicts, row by row.

    Attributes:
        probabilities: Tensor[R, C]; C is 0 where no classes are predicted.
        columns: name → Tensor[R], of what else is.
        nodes: Tensor[R] int64, of which nodes; None: of all common ones, or of no nodes.
        rows: Tensor[R, K] int64, K nodes that together name a row: of a pair of nodes two.
        names: R texts that name the rows, where nodes do not; of several words, as ``keys`` has them, with tabs.
        keys: what the words of a name are, as a table's head; empty where nodes name the rows.
        classes_alone: the job opens no probabilities; those here are 1 for the class that it opens.
    """

    probabilities: Tensor
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    nodes: Tensor | None = None
    rows: Tensor | None = None
    names: tuple[str, ...] | None = None
    keys: tuple[str, ...] = ()
    classes_alone: bool = False


class Judge(Role, ABC):
    """The label holder of any schedule.

    Attributes:
        graph: its own data.
        logits: Tensor[C, classes] of the last forward pass, of the nodes ``predicted``.
        predicted: Tensor[R] int64, of which nodes; None: of all common ones.
        loss: of the last training pass.
    """

    graph: PartyGraph
    logits: Tensor
    predicted: Tensor | None = None
    loss: float | None = None
    _objective: Objective
    _alone: Tensor | None = None
    """Log probabilities [C, classes] without what others, or its own edges, released; None without such a release."""

    @property
    def reports(self) -> bool:
        """Whether this party writes the metrics and the result down."""
        return True

    def audience(self) -> list[PartyId]:
        """Who has to be told of every judgement: nobody, where the others are done before it learns."""
        if self.session.settings.passes.learns_alone:
            return []
        return [party for party in (*self.session.holders, SERVER) if party != self.session.link.party]

    def training_loss(self, rates: str) -> Tensor:
        """The loss of the logits just computed; kept as ``loss``.

        Raises:
            RangeOverflow: it is infinite or no number; names ``rates``, the settings to lower.
        """
        loss = self._current_loss()
        self.loss = found = float(loss.detach())
        if not math.isfinite(found):
            raise RangeOverflow(
                f"the training loss is {found}: training has diverged; lower {rates}",
                code="diverged",
                key=rates,
                value=found,
            )
        return loss

    def _current_loss(self) -> Tensor:
        return self._objective.training_loss(self.logits)

    def probabilities(self) -> Tensor:
        """As the logits of the last forward pass have it."""
        return self.logits.detach().softmax(dim=1)

    def predictions(self) -> Predicted:
        """What the last forward pass says."""
        return Predicted(self.probabilities(), nodes=self.predicted)

    def calibration(self, probabilities: Tensor) -> Calibration | None:
        """What makes probabilities that it predicts true, from labels that it judges by; None where it has none."""
        return self._objective.calibration(probabilities) if self.predicted is None else None

    def without_releases(self) -> dict[str, float | int | None] | None:
        """How it would do without releases, as with an ε close to 0; None where this training does not say."""
        if self._alone is None:
            return None
        scores, changed = self._objective.score(self._alone), self._alone.argmax(dim=1) != self.logits.argmax(dim=1)
        return {
            "val_accuracy": scores.val_accuracy,
            "test_accuracy": scores.test_accuracy,
            "changed": int(changed.sum()),
        }

    def alone(self) -> Record | None:
        """What this holder's own nodes are worth to it, ``together`` and ``alone``: figures by name.

        It trains the job's network once more, on its own data alone, and tells nobody. None where that says nothing:
        of common nodes, and where noise or perturbed labels make the two trainings no alternatives.
        """
        return None

    def scores(self, *, everything: bool = False) -> Judged:
        """How the logits of the last forward pass do on each split; AUC and F1 as ``Objective.score`` says."""
        return self._objective.score(self.logits.detach(), everything=everything)


class SharedJudge(Judge, ABC):
    """One of several holders that judge alike; one of them reports, and tells the server."""

    @property
    @override
    def reports(self) -> bool:
        return self.session.link.party == self.session.settings.data.label_party

    @override
    def audience(self) -> list[PartyId]:
        return [SERVER] if self.reports else []
