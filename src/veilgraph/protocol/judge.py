"""A party that has labels: its loss, how well logits fit its labels, early stopping and the choice of the model."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from veilgraph.core.errors import DataError, RangeOverflow
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.calibration import Calibration, corrected_cross_entropy, fit_calibration
from veilgraph.protocol.figures import CLASS_MEASURES, LAST, Scores
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.role import Role


def bins_of(scores: Tensor, bins: int) -> Tensor:
    """The bin of each score s, by s/(1 + |s|), which keeps the order: Tensor[M] int64 in 0..bins−1, finest near 0."""
    s = scores.double()
    share = (s / (1 + s.abs()) + 1) / 2
    return (share * bins).long().clamp(0, bins - 1)


def histogram(scores: Tensor, bins: int) -> Tensor:
    """How many scores are in each bin, Tensor[bins] float64."""
    return torch.bincount(bins_of(scores, bins), minlength=bins).double()


def binned_auc(found: Tensor, others: Tensor) -> tuple[float, float] | None:
    """Area under the ROC curve of two histograms, and the most that it can be off; None where one is empty.

    ``found`` are the positives. Comparisons within a bin are unknown, and count half.
    """
    comparisons = float(found.sum() * others.sum())
    if not comparisons:
        return None
    below = others.cumsum(0) - others
    tied = float((found * others).sum()) / 2
    return (float((found * below).sum()) + tied) / comparisons, tied / comparisons


def binned_precision(found: Tensor, others: Tensor) -> tuple[float, float] | None:
    """Average precision of two histograms, ``found`` the positives, and how far off it can be; None without positives.

    It is the middle of those of the best and the worst order within bins.
    """
    positives = found.flip(0).round().long()
    total = int(positives.sum())
    if not total:
        return None
    negatives = others.flip(0)
    place = torch.repeat_interleave(torch.arange(len(positives)), positives)
    rank = torch.arange(1, total + 1).double()
    before = (negatives.cumsum(0) - negatives)[place]
    best, worst = (rank / (rank + above) for above in (before, before + negatives[place]))
    high, low = float(best.mean()), float(worst.mean())
    return (high + low) / 2, (high - low) / 2


log = logging.getLogger("veilgraph")

_LEAST: Final = 2  # classes that an AUC needs


def warn_of_one_class(graph: PartyGraph, settings: TrainSettings) -> None:
    """Log a warning where epochs are chosen by AUC and all validation nodes of a label holder are of one class."""
    labels, val = graph.labels, graph.val_mask
    if settings.select_by == "auc" and labels is not None and val is not None and _num_present(labels[val]) < _LEAST:
        log.warning(
            "party %r: train.select_by='auc' ranks common validation nodes of one class above others, and all are of "
            "one; epochs are chosen by the loss: move nodes of another class into val_mask (in tables: nodes.split)",
            graph.party,
        )


class Objective:
    """A label holder's loss and scores over the labelled nodes of a graph, in a federated job of the common ones.

    ``transition`` is Tensor[c, c], P(label of the graph = j | true label = i), where those of the training and
    validation nodes were perturbed: losses are corrected for it. Raises ``DataError`` where there are no labels or
    masks.

    Attributes:
        classes: C.
        weights: Tensor[C] of classes in the loss; None: all alike.
    """

    def __init__(
        self, graph: PartyGraph, settings: TrainSettings, dtype: torch.dtype, transition: Tensor | None = None
    ) -> None:
        labels, train, val = graph.labels, graph.train_mask, graph.val_mask
        if labels is None or train is None or val is None:
            raise DataError(
                f"party {graph.party!r}: the label holder lacks labels, or training and validation masks; give them "
                "(in tables: nodes.label and nodes.split)"
            )
        self._labels, self._train, self._val, self._test = labels, train, val, graph.test_mask
        self.classes = graph.num_classes or int(labels.max()) + 1
        self._transition = transition
        self._select_by = settings.select_by
        self.weights: Tensor | None = None
        if settings.class_weights == "balanced":
            self.weights = balanced_weights(labels[train], self.classes).to(dtype)

    def training_loss(self, logits: Tensor, rows: Tensor | None = None) -> Tensor:
        """Mean cross-entropy over the training nodes, weighted by class where the job says so.

        Logits are Tensor[N, C] of every node, or Tensor[B, C] of ``rows``, int64 [B]; 0 without a training node there.
        """
        chosen = self._train if rows is None else self._train[rows]
        labels = self._labels if rows is None else self._labels[rows]
        if rows is not None and not bool(chosen.any()):
            return logits.sum() * 0
        return self._entropy(logits[chosen], labels[chosen])

    def calibration(self, probabilities: Tensor) -> Calibration | None:
        """Fit the calibration of all nodes' probabilities [N, C] on validation nodes; None: see ``fit_calibration``."""
        return fit_calibration(probabilities[self._val], self._labels[self._val], self.weights, self._transition)

    @property
    def val_nodes(self) -> Tensor:
        """The validation nodes, Tensor[n] int64."""
        return self._val.nonzero().ravel()

    def validation(self, logits: Tensor) -> tuple[float, float]:
        """Score logits of the validation nodes, Tensor[n, C]: what epochs are chosen by, then minus the loss."""
        labels = self._labels[self._val]
        return self.selecting(logits, labels), -float(self._entropy(logits, labels))

    def selecting(self, logits: Tensor, labels: Tensor) -> float:
        """The score of logits [n, C] by which epochs are chosen, by default accuracy; −∞ where undefined."""
        if self._select_by == "loss":
            return -float(self._entropy(logits, labels))
        if self._select_by not in _METRICS:
            return float((logits.argmax(dim=1) == labels).to(torch.float64).mean())
        found = _METRICS[self._select_by][0](logits, labels)
        return -float("inf") if found is None else found

    def score(self, logits: Tensor, *, everything: bool = False) -> Scores:
        """Score logits, Tensor[N, C] of every node, on each split; ``everything`` adds AUC, average precision, F1."""
        correct = logits.argmax(dim=1) == self._labels
        test = self._test if self._test is not None and bool(self._test.any()) else None

        def accuracy(mask: Tensor | None) -> float | None:
            return None if mask is None else float(correct[mask].to(torch.float64).mean())

        values = {"train_accuracy": accuracy(self._train)}
        values |= {"val_accuracy": accuracy(self._val), "test_accuracy": accuracy(test)}
        for name in CLASS_MEASURES.on_demand if everything else {self._select_by} & _METRICS.keys():
            judging, metric = _METRICS[name]
            chosen = judging if name == self._select_by else metric
            values[f"val_{name}"] = chosen(logits[self._val], self._labels[self._val])
            values[f"test_{name}"] = None if test is None else metric(logits[test], self._labels[test])
        train_loss, val_loss = (float(self._entropy(logits[at], self._labels[at])) for at in (self._train, self._val))
        scores = Scores(CLASS_MEASURES, train_loss, val_loss, values)
        return scores if everything else scores.of_epoch(self._select_by)

    def _entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy, corrected for perturbed labels, else weighted by class; a scalar."""
        if self._transition is not None:
            return corrected_cross_entropy(logits, labels, self._transition)
        return functional.cross_entropy(logits, labels, weight=self.weights)


def calibration_at(
    graph: PartyGraph, probabilities: Tensor, transition: Tensor | None = None, weights: Tensor | None = None
) -> Calibration | None:
    """Fit the calibration of a holder's probabilities, Tensor[N, C], on its validation nodes; None where it has none.

    ``transition`` is as for ``Objective``; ``weights`` Tensor[C] are those of the classes in the training loss.
    """
    if graph.labels is None or graph.val_mask is None or not probabilities.shape[1]:
        return None
    return fit_calibration(probabilities[graph.val_mask], graph.labels[graph.val_mask], weights, transition)


def balanced_weights(labels: Tensor, classes: int) -> Tensor:
    """Weights by ``weights_of_counts`` of the labels of the training nodes, Tensor[n] int64, of C classes."""
    return weights_of_counts(torch.bincount(labels, minlength=classes))


def weights_of_counts(counts: Tensor) -> Tensor:
    """n/(C·n_c) for every class of Tensor[C] counts, float64; a class without nodes counts as if it had one."""
    return counts.sum().double() / (len(counts) * counts.clamp_min(1).double())


def _num_present(labels: Tensor) -> int:
    return int((labels.bincount() > 0).sum())


def area_under_curve(logits: Tensor, labels: Tensor, *, lacking: bool = False) -> float | None:
    """ROC AUC of logits Tensor[n, C]: of class 1 where C is 2, else one against the rest, all classes alike.

    None where a class has no nodes, or a logit is no finite number. ``lacking``: over the classes that have nodes, two
    at least: validation nodes may lack one, and still choose.
    """
    present, classes = labels.bincount().nonzero().ravel().tolist(), logits.shape[1]
    if len(present) < (_LEAST if lacking else classes) or not bool(torch.isfinite(logits).all()):
        return None
    probabilities = logits.double().softmax(dim=1)
    if classes == 2:
        return rank_auc(probabilities[:, 1], labels == 1)
    return fmean(rank_auc(probabilities[:, each], labels == each) for each in present)


def rank_auc(scores: Tensor, positive: Tensor) -> float:
    """ROC AUC of finite scores, Tensor[n], by ranks (Mann-Whitney U); ``positive``, bool [n], is neither all nor none.

    By hand, as every epoch asks for it: scikit-learn's takes 3 to 40 times as long, and a second to be imported.
    """
    _, group, sizes = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = sizes.cumsum(0).double() - (sizes - 1) / 2
    found = int(positive.sum())
    above = float(ranks[group[positive]].sum()) - found * (found + 1) / 2
    return above / (found * (len(positive) - found))


def average_precision(logits: Tensor, labels: Tensor) -> float | None:
    """Mean precision over the nodes of class 1 of two, the likeliest first; those of one score come together.

    None as ``area_under_curve``, and with more classes.
    """
    truth = labels == 1
    if logits.shape[1] != _LEAST or _num_present(labels) < _LEAST or not bool(torch.isfinite(logits).all()):
        return None
    score = logits.double().softmax(dim=1)[:, 1]
    _, group, sizes = torch.unique(-score, return_inverse=True, return_counts=True)
    found = group[truth].bincount(minlength=len(sizes)).double()
    return float((found * found.cumsum(0) / sizes.cumsum(0)).sum() / found.sum())


def macro_f1(logits: Tensor, labels: Tensor) -> float:
    """Mean of the F1 of every class that occurs among labels or predictions; logits Tensor[n, C]."""
    said, classes = logits.argmax(dim=1), logits.shape[1]
    right = labels[said == labels].bincount(minlength=classes)
    either = labels.bincount(minlength=classes) + said.bincount(minlength=classes)
    occurs = either > 0
    return float((2 * right[occurs] / either[occurs].double()).mean())


_Metric = Callable[[Tensor, Tensor], float | None]
# By what ``train.select_by`` calls them: of the validation nodes where it selects, and else.
_METRICS: Final[Mapping[str, tuple[_Metric, _Metric]]] = {
    "auc": (partial(area_under_curve, lacking=True), area_under_curve),
    "ap": (average_precision, average_precision),
    "f1": (macro_f1, macro_f1),
}


@dataclass(frozen=True)
class Judgement:
    """Early stopping: the best evaluation so far (a higher score is better) and how many have passed since."""

    best_epoch: int = 0
    best_score: float = -float("inf")
    best_loss: float = float("inf")
    since_best: int = 0

    def after(self, epoch: int, scores: Scores, select_by: str = "accuracy") -> Judgement:
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
    """What a judge predicts, row by row: Tensor[R, C] probabilities; C is 0 where no classes are predicted.

    Attributes:
        columns: name → Tensor[R], of what else is.
        nodes: Tensor[R] int64, of which nodes; None: of all common ones, or of no nodes.
        rows: Tensor[R, K] int64, K nodes that together name a row.
        names: R texts that name the rows, where nodes do not; of several words, as ``keys`` has them, with tabs.
        classes_alone: the job opens no probabilities; those here are 1 for the class that it opens.
        prepared: name of the session in which holders kept shares of all common nodes' predictions; "" where none did.
    """

    probabilities: Tensor
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    nodes: Tensor | None = None
    rows: Tensor | None = None
    names: tuple[str, ...] | None = None
    keys: tuple[str, ...] = ()
    classes_alone: bool = False
    prepared: str = ""


ANSWERED: Final = "answered"
"""Name in a party's keeper of what was opened: "nodes" int64 [k] and "probabilities" float64 [k, C], with the name of
the prediction, "prepared", among the facts."""


class Answers(Role, ABC):
    """A party in a session that opens kept predictions: each ``forward``, in one thread, opens what others ask for."""

    @abstractmethod
    def ask(self, prepared: str, nodes: Sequence[int], wait_s: float) -> Predicted:
        """Return a kept prediction of nodes in this order, opened by all holders where it is not yet; in any thread.

        Raises ``ConfigError``: one is no node; ``RunError``: code "used-up", more than may still be opened, of which
        none is then, "other-prediction", its name is not ``prepared``, or "ended", after ``fail``; ``LinkTimeout``:
        not all holders answered within ``wait_s`` seconds.
        """

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Tell all who ask, and ask later, that the session has ended by ``error``."""


class Judge(Role, ABC):
    """A party with labels: it computes the loss, scores the model and predicts, by the last pass.

    ``logits`` are Tensor[C, classes] of the last pass, of the nodes ``predicted``, Tensor[R] int64 or None for all
    common ones; ``loss`` is of the last training pass.
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
        """The parties that are sent every judgement: all others, or none where the others are done before it learns."""
        if self.session.settings.passes.learns_alone:
            return []
        return [party for party in (*self.session.holders, SERVER) if party != self.session.link.party]

    def training_loss(self, rates: str) -> Tensor:
        """The loss of the logits just computed; kept as ``loss``.

        Raises ``RangeOverflow`` where it is not finite; it names ``rates``, the settings to lower.
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
        """Class probabilities of the last forward pass, Tensor[R, C]."""
        return self.logits.detach().softmax(dim=1)

    def predictions(self) -> Predicted:
        """The predictions of the last forward pass."""
        return Predicted(self.probabilities(), nodes=self.predicted)

    def calibration(self, probabilities: Tensor) -> Calibration | None:
        """Fit the calibration of predicted probabilities on its labels; None where only some nodes are predicted."""
        return self._objective.calibration(probabilities) if self.predicted is None else None

    def without_releases(self) -> dict[str, float | int | None] | None:
        """Accuracies without others' releases, as at ε near 0, and how many predictions differ; None if unknown."""
        if self._alone is None:
            return None
        scores, changed = self._objective.score(self._alone), self._alone.argmax(dim=1) != self.logits.argmax(dim=1)
        return {
            "val_accuracy": scores.values["val_accuracy"],
            "test_accuracy": scores.values["test_accuracy"],
            "changed": int(changed.sum()),
        }

    def alone(self) -> Record | None:
        """Compare the joint model with one of this holder's data alone, ``together`` and ``alone``: figures by name.

        The latter is trained here; nobody is told. None where that says nothing: of common nodes, under noise.
        """
        return None

    def scores(self, *, everything: bool = False) -> Scores:
        """Score the last forward pass's logits on each split; ``everything`` is as for ``Objective.score``."""
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
