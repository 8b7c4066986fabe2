"""Tasks of holders of the same columns, classification and regression: their loss, and scores made of summed tallies.

Each holder adds up its own nodes' losses and counts, and only the sums over the holders are opened.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from statistics import fmean
from typing import ClassVar, Final, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.settings import Settings
from veilgraph.core.types import MASKS
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.calibration import corrected_losses
from veilgraph.nn.layers import FactNetwork
from veilgraph.protocol.figures import CLASS_MEASURES, Figure, Measures, Scores
from veilgraph.protocol.judge import Predicted, binned_auc, binned_precision, histogram, weights_of_counts

VALUE_MEASURES: Final = Measures(
    "mean squared error of standardised values",
    (
        Figure("rmse", "RMSE", "root of the mean squared error, in the target's unit", rises=False),
        Figure("mae", "MAE", "mean absolute error, in the target's unit", rises=False),
        Figure("r2", "R²", "share of the variance that is explained; 0 is answering with the mean"),
    ),
)
VALUE_WORDS: Final = "a number of each node"
_PER_SPLIT: Final = 5  # sums of a split: n, Σz, Σz², Σ|e|, Σe², of standardised targets z and errors e
_LEAST: Final = 1e-3  # mean of |y| below which sums with 20 fractional bits are too coarse to standardise by
_RANKED: Final = MASKS[1:]  # splits whose nodes are ranked
_MOST_BINS, _FEWEST_BINS = 200, 50  # of a histogram with two classes, and of each class's with many


class TargetBounds(Settings):
    """What is known of numbers to predict before anything is sent."""

    low: float | None = Field(None, allow_inf_nan=False)
    """public minimum of targets"""
    high: float | None = Field(None, allow_inf_nan=False)
    """public maximum; without both, targets are standardised over all holders' training nodes, whose sums all learn
    """

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"low={self.low} and high={self.high} are the bounds together; give both or none")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low={self.low} must be less than high={self.high}; raise high")
        return self

    @property
    def sums_before(self) -> tuple[int, ...]:
        """Lengths of the sums over holders by which targets are standardised, before round 1; none with bounds."""
        return () if self.low is not None else (3, 1)

    def check_targets(self, graph: PartyGraph) -> None:
        """Refuse a graph with targets outside the bounds: the ``DataError`` names the first such node."""
        targets = graph.targets
        if targets is None or self.low is None or self.high is None:
            return
        outside = (targets < self.low) | (targets > self.high)
        if bool(outside.any()):
            node = int(outside.nonzero()[0])
            raise DataError(
                f"party {graph.party!r}: targets: {float(targets[node]):g} of node {node} lies outside the task's "
                f"low={self.low:g} to high={self.high:g}; mend it or widen the bounds",
                key="targets",
            )

    def describe(self) -> list[str]:
        """Describe, for a report, what is predicted and how targets are standardised."""
        if self.low is not None:
            return [f"They learn to predict a number of each node, from {self.low:g} to {self.high:g}."]
        return [
            "They learn to predict a number of each node, standardised by mean and deviation over all training nodes, "
            "whose sums are opened before the first round."
        ]


class LearntSettings(TargetBounds):
    """What is learnt of the nodes."""

    name: Literal["classes", "values"] = "classes"
    """classes: a class per node, cross-entropy; values: a number per node, squared error (eq. 15)"""

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        if self.low is not None and not self.is_values:
            raise ValueError(f"low={self.low:g} is for name=values; set name to values, or leave low and high out")
        return self

    @property
    @override
    def sums_before(self) -> tuple[int, ...]:
        return super().sums_before if self.is_values else ()

    @property
    def is_values(self) -> bool:
        """Whether numbers are predicted (regression), not classes."""
        return self.name == "values"

    @property
    def answers(self) -> str:
        """Name of the ``PartyGraph`` attribute with the known answers: "targets" or "labels"."""
        return "targets" if self.is_values else "labels"

    def outputs(self, graph: PartyGraph) -> int:
        """Width of the output layer by a holder's own answers: its C classes, or 1 for numbers; 0 without answers."""
        if getattr(graph, self.answers) is None:
            return 0
        return 1 if self.is_values else graph.num_classes or 0


class TallyTask(ABC):
    """A task, classification or regression: its loss, and scores computed from tallies summed over the holders."""

    tally_bits: ClassVar[int]  # fractional bits of a tally that is added up
    tally_size: int  # numbers in a tally
    sums_before: tuple[int, ...] = ()  # sizes of the sums before the first round

    @abstractmethod
    def gathered(self, graph: PartyGraph, facts: Tensor) -> Tensor:
        """A holder's summand, float64, of the next of ``sums_before``; ``facts`` [K] are the sums already opened."""

    @abstractmethod
    def examples(self, graph: PartyGraph) -> int:
        """Count a holder's training nodes with an answer."""

    @abstractmethod
    def loss(self, graph: PartyGraph, output: Tensor) -> Tensor:
        """Sum the losses of a holder's training nodes, at least one (eq. 15), of logits [N, C] or values [N, 1]."""

    @abstractmethod
    def tally(self, graph: PartyGraph, output: Tensor) -> Tensor:
        """A holder's summand of what scores are made of: Tensor[tally_size] float64. Arguments as for ``loss``."""

    @abstractmethod
    def scores(self, total: Tensor) -> Scores:
        """Compute the scores over all holders from the sum of their tallies, Tensor[tally_size] float64."""

    @abstractmethod
    def predictions(self, output: Tensor) -> Predicted:
        """Turn the network's output for n nodes, as for ``loss``, into probabilities or values."""

    def weights(self) -> Tensor | None:
        """Class weights in the loss, Tensor[C] float64; None where all weigh alike."""
        return None


class Regression(TallyTask):
    """Squared error of standardised targets z = (y − centre)/scale; MAE, RMSE and R² of sums over the holders.

    Centre and scale are (low + high)/2 and (high − low)/2 where the job states bounds. Else they are mean and standard
    deviation of all holders' training targets, of two sums: n, Σy, Σ|y|; then Σ((y − mean)/a)² with a = Σ|y|/n, which
    keeps the second in range whatever y is measured in.
    """

    tally_bits: ClassVar[int] = 32
    tally_size = len(MASKS) * _PER_SPLIT

    def __init__(self, bounds: TargetBounds, network: FactNetwork | None = None) -> None:
        self._bounds, self._network = bounds, network
        self.sums_before = bounds.sums_before

    @override
    def gathered(self, graph: PartyGraph, facts: Tensor) -> Tensor:
        y = _targets_of(graph, "train_mask")
        if not len(facts):
            return torch.stack([torch.tensor(float(len(y))).double(), y.sum(), y.abs().sum()])
        mean, size = _mean_and_magnitude(facts)
        return ((y - mean) / size).square().sum().reshape(1)

    def _centre_and_scale(self) -> tuple[float, float]:
        low, high = self._bounds.low, self._bounds.high
        if low is not None and high is not None:
            return (low + high) / 2, (high - low) / 2
        assert self._network is not None
        facts = self._network.facts
        mean, size = _mean_and_magnitude(facts)
        deviation = size * math.sqrt(max(float(facts[3]), 0.0) / max(float(facts[0]), 1.0))
        return mean, deviation if deviation > _LEAST * size else size  # all alike: nothing to scale by

    def _standardised_targets(self, graph: PartyGraph, mask: str) -> Tensor:
        centre, scale = self._centre_and_scale()
        return (_targets_of(graph, mask) - centre) / scale

    @override
    def examples(self, graph: PartyGraph) -> int:
        return len(_targets_of(graph, "train_mask"))

    @override
    def loss(self, graph: PartyGraph, output: Tensor) -> Tensor:
        z = self._standardised_targets(graph, "train_mask")
        return functional.mse_loss(output[graph.train_mask, 0], z.to(output.dtype), reduction="sum")

    @override
    def tally(self, graph: PartyGraph, output: Tensor) -> Tensor:
        rows = []
        for name in MASKS:
            z, mask = self._standardised_targets(graph, name), getattr(graph, name)
            error = output[mask, 0].double() - z if len(z) else z
            count = torch.tensor(float(len(z))).double()
            rows.append(torch.stack([count, z.sum(), z.square().sum(), error.abs().sum(), error.square().sum()]))
        return torch.cat(rows)

    @override
    def scores(self, total: Tensor) -> Scores:
        scale = self._centre_and_scale()[1]
        values: dict[str, float | None] = {}
        losses = []
        splits = zip(MASKS, total.view(len(MASKS), _PER_SPLIT).tolist(), strict=True)
        for mask, (count, z, square, absolute, error) in splits:
            n, split = round(count), mask.removesuffix("_mask")
            losses.append(error / n if n else math.nan)
            varies = square - z**2 / n if n else 0.0
            values[f"{split}_rmse"] = scale * math.sqrt(max(error, 0.0) / n) if n else None
            values[f"{split}_mae"] = scale * absolute / n if n else None
            values[f"{split}_r2"] = 1 - error / varies if n and varies > _LEAST else None
        return Scores(VALUE_MEASURES, losses[0], losses[1], values)

    @override
    def predictions(self, output: Tensor) -> Predicted:
        """Values float64 [n] in the targets' unit, and no probabilities."""
        centre, scale = self._centre_and_scale()
        return Predicted(output.new_empty(len(output), 0), {"value": output[:, 0].double() * scale + centre})


def _targets_of(graph: PartyGraph, mask: str) -> Tensor:
    chosen, targets = getattr(graph, mask), graph.targets
    return torch.empty(0).double() if chosen is None or targets is None else targets[chosen].double()


def _mean_and_magnitude(facts: Tensor) -> tuple[float, float]:
    """Mean of all training targets, and of their absolute values (1 if that is 0), from the sums n, Σy, Σ|y|."""
    count = round(float(facts[0]))
    size = float(facts[2]) / count if count else 0.0
    if not count:
        raise DataError("targets: no holder that was there in time has a training node with one", key="targets")
    if size and size < _LEAST:
        raise DataError(
            f"targets: their mean size is {size:g}, too small to add up with 20 fractional bits; give the task's low "
            "and high, or another unit",
            key="targets",
        )
    return float(facts[1]) / count, size or 1.0


class Classification(TallyTask):
    """Cross-entropy of C classes; scores of summed losses, class counts and score histograms.

    A tally, Tensor[3 + 3·C² + 4·K·B] float64, has the summed losses of training, validation and test nodes, the counts
    of true by predicted class in each split, and histograms. For each of K classes, in validation and in test, these
    count the class's nodes, and the others, by log-odds of the class in B bins. Of two classes K is 1, for the second;
    of more it is C.

    ``transition`` is Tensor[C, C], P(label = j | true label = i); ``network`` keeps the training nodes of each class as
    its facts, by which a balanced loss is weighed.
    """

    tally_bits: ClassVar[int] = 20

    def __init__(self, classes: int, transition: Tensor | None = None, network: FactNetwork | None = None) -> None:
        self._classes, self._transition, self._network = classes, transition, network
        self._ranked = (1,) if classes == 2 else tuple(range(classes))
        self._bins = max(_FEWEST_BINS, _MOST_BINS // max(len(self._ranked), 1))
        self.tally_size = len(MASKS) * (1 + classes**2) + len(_RANKED) * len(self._ranked) * 2 * self._bins
        self.sums_before = () if network is None else (classes,)

    @override
    def gathered(self, graph: PartyGraph, facts: Tensor) -> Tensor:
        """Count a holder's training nodes of each class: Tensor[C] float64."""
        if graph.labels is None or graph.train_mask is None:
            return torch.zeros(self._classes, dtype=torch.float64)
        return graph.labels[graph.train_mask].bincount(minlength=self._classes).double()

    @override
    def weights(self) -> Tensor | None:
        """n/(C·n_c) of every class over all holders' training nodes."""
        return None if self._network is None else weights_of_counts(self._network.facts)

    @override
    def examples(self, graph: PartyGraph) -> int:
        return 0 if graph.labels is None or graph.train_mask is None else int(graph.train_mask.sum())

    @override
    def loss(self, graph: PartyGraph, output: Tensor) -> Tensor:
        assert graph.labels is not None  # there are training nodes
        return self._loss(output[graph.train_mask], graph.labels[graph.train_mask])

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self._transition is not None:
            return corrected_losses(logits, labels, self._transition).sum()
        weights = self.weights()
        weights = None if weights is None else weights.to(logits.dtype)
        return functional.cross_entropy(logits, labels, weight=weights, reduction="sum")

    @override
    def tally(self, graph: PartyGraph, output: Tensor) -> Tensor:
        """A holder's tally, as the class describes it; zeros without labels."""
        losses = torch.zeros(len(MASKS), dtype=torch.float64)
        counts = torch.zeros(len(MASKS), self._classes**2, dtype=torch.float64)
        histograms = []
        for index, name in enumerate(MASKS):
            mask: Tensor | None = getattr(graph, name)
            labels, logits = torch.empty(0, dtype=torch.int64), output[:0].double()
            if graph.labels is not None and mask is not None:
                labels, logits = graph.labels[mask], output[mask].double()
            if len(labels):
                losses[index] = self._loss(logits, labels)
                pairs = labels * self._classes + logits.argmax(dim=1)
                counts[index] = torch.bincount(pairs, minlength=self._classes**2)
            for label in self._ranked if name in _RANKED else ():
                odds, is_of = _log_odds(logits, label), labels == label
                histograms += [histogram(odds[is_of], self._bins), histogram(odds[~is_of], self._bins)]
        return torch.cat([losses, counts.reshape(-1), *histograms])

    def confusion(self, total: Tensor) -> Tensor:
        """Confusion matrices in a sum of tallies, by split, true and predicted class: Tensor[3, C, C]."""
        start, classes = len(MASKS), self._classes
        return total[start : start + start * classes**2].view(start, classes, classes)

    @override
    def scores(self, total: Tensor) -> Scores:
        """Scores of a sum of tallies; AUC and average precision are computed from its histograms."""
        train, val, test = self.confusion(total)
        counts = total[len(MASKS) * (1 + self._classes**2) :].round()
        val_ranks, test_ranks = counts.view(len(_RANKED), len(self._ranked), 2, self._bins)
        weights = self.weights()
        has_test = bool(test.any())
        values = {
            "train_accuracy": _per_node(train.diagonal().sum(), train),
            "val_accuracy": _per_node(val.diagonal().sum(), val),
            "test_accuracy": _per_node(test.diagonal().sum(), test) if has_test else None,
            "val_auc": _auc(val_ranks, present=True),
            "test_auc": _auc(test_ranks, present=False),
            "val_ap": _average_precision(val_ranks),
            "test_ap": _average_precision(test_ranks),
            "val_f1": _macro_f1(val),
            "test_f1": _macro_f1(test) if has_test else None,
        }
        return Scores(CLASS_MEASURES, _per_node(total[0], train, weights), _per_node(total[1], val, weights), values)

    @override
    def predictions(self, output: Tensor) -> Predicted:
        return Predicted(output.detach().softmax(dim=1))


def build_task(
    task: LearntSettings,
    network: FactNetwork,
    outputs: int,
    transition: Tensor | None = None,
    *,
    balanced: bool = False,
) -> TallyTask:
    """Build a job's task, and reserve facts in ``network`` for its ``sums_before``; ``balanced`` weighs classes."""
    found: TallyTask = Classification(outputs, transition, network if balanced else None)
    if task.is_values:
        found = Regression(task, network)
    network.keep_facts(sum(found.sums_before))
    return found


def _per_node(total: Tensor, confusion: Tensor, weights: Tensor | None = None) -> float:
    """``total`` divided by the number of nodes in a confusion matrix, weighed by true class; NaN without nodes."""
    of_class = confusion.sum(dim=-1)
    count = float((of_class if weights is None else of_class * weights).sum())
    return float(total) / count if count else math.nan


def _log_odds(logits: Tensor, label: int) -> Tensor:
    """Log-odds of class ``label``, its logit less the logsumexp of the others': Tensor[n]."""
    others = torch.cat([logits[:, :label], logits[:, label + 1 :]], dim=1)
    return logits[:, label] - others.logsumexp(dim=1)


def _auc(ranks: Tensor, *, present: bool) -> float | None:
    """Mean AUC over classes (``present``: those that occur, else None unless all do), of histograms [K, 2, B]."""
    found = [binned_auc(*each) for each in ranks]
    known = [one[0] for one in found if one is not None]
    return fmean(known) if known and (present or len(known) == len(found)) else None


def _average_precision(ranks: Tensor) -> float | None:
    """Average precision of class 1 of two, of histograms [1, 2, B]; None with more, or where a class has no nodes."""
    found = binned_precision(*ranks[0]) if len(ranks) == 1 and bool(ranks[0, 1].any()) else None
    return None if found is None else found[0]


def _macro_f1(confusion: Tensor) -> float:
    """Mean of the F1 of every class that occurs among labels or predictions."""
    both = confusion.sum(dim=0) + confusion.sum(dim=1)
    occurs = both > 0
    return float((2 * confusion.diagonal()[occurs] / both[occurs]).mean()) if bool(occurs.any()) else math.nan
