"""What scores of two classes are worth to whoever looks at the highest: curves, lift, calibration, a threshold.

Everything is of one array of scores [T] in [0, 1], and of as many truths: whether a node is of class 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.metrics import brier_score_loss, precision_recall_curve

Floats = NDArray[np.float64]
Truths = NDArray[np.bool_]
Curve = list[tuple[float, float]]

SHARES: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Of the nodes, those with the highest scores, that somebody looks at."""
_POINTS: Final = 200
"""Of a curve: more cannot be told apart on a page."""
_BINS: Final = 10


@dataclass(frozen=True)
class Share:
    """A share of some nodes, with its 95 % interval by Wilson's method.

    Attributes:
        count: of them.
        of: of how many.
        value: NaN of none.
        low: end of the interval.
        high: likewise.
    """

    count: int
    of: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Looked:
    """What is found by looking at the nodes with the highest scores.

    Attributes:
        share: of all nodes.
        nodes: how many that is.
        found: of class 1 among them; where scores tie, as many as would be on average.
        precision: ``found`` over ``nodes``.
        recall: ``found`` over all of class 1.
        lift: how many times as many as among as many nodes at random.
    """

    share: float
    nodes: int
    found: float
    precision: float
    recall: float
    lift: float


@dataclass(frozen=True)
class Bin:
    """Nodes of similar scores: their mean score, and which share of them is of class 1."""

    said: float
    true: Share


@dataclass(frozen=True)
class Alarms:
    """What comes of raising an alarm where a score is at least a threshold."""

    true_alarms: int
    false_alarms: int
    missed: int
    passed: int

    @property
    def raised(self) -> Share:
        """Alarms among all nodes."""
        nodes = self.true_alarms + self.false_alarms + self.missed + self.passed
        return share(self.true_alarms + self.false_alarms, nodes)

    @property
    def precision(self) -> Share:
        """Right alarms among all alarms."""
        return share(self.true_alarms, self.true_alarms + self.false_alarms)

    @property
    def recall(self) -> Share:
        """Right alarms among all nodes of class 1."""
        return share(self.true_alarms, self.true_alarms + self.missed)


def share(count: int, of: int) -> Share:
    """``count`` of ``of`` with its interval, which is everything where there is nothing to count."""
    if of == 0:
        return Share(0, 0, float("nan"), 0.0, 1.0)
    between = binomtest(count, of).proportion_ci(method="wilson")
    return Share(count, of, count / of, float(between.low), float(between.high))


def interval_of(one: Share) -> str:
    """The interval of a share, as percentages."""
    return f"{100 * one.low:.1f} to {100 * one.high:.1f} %"


def precision_over_recall(truth: Truths, score: Floats) -> Curve:
    """(Recall, precision) from the highest threshold to the lowest; empty without class 1."""
    if not truth.any():
        return []
    precision, recall, _ = precision_recall_curve(truth, score)
    return _thinned(recall[::-1][1:], precision[::-1][1:])  # the first is of no alarm at all


def found_over_looked(truth: Truths, score: Floats) -> Curve:
    """(Share of the nodes looked at, share of class 1 that is found), from none to all; empty without class 1."""
    if not truth.any():
        return []
    found = np.concatenate([[0.0], _expected(truth, score)])
    return _thinned(np.arange(len(found)) / (len(found) - 1), found / truth.sum())


def looked_at(truth: Truths, score: Floats, shares: Sequence[float] = SHARES) -> list[Looked]:
    """What each share of the nodes finds; shares of less than one node are left out.

    Args:
        truth: with at least one of class 1.
        score: of the same nodes.
        shares: in (0, 1].
    """
    total, positives, found = len(truth), int(truth.sum()), _expected(truth, score)
    rows = []
    for each in shares:
        nodes = round(each * total)
        if nodes:
            hits = float(found[nodes - 1])
            rows.append(Looked(each, nodes, hits, hits / nodes, hits / positives, hits / nodes / (positives / total)))
    return rows


def reliability(truth: Truths, score: Floats) -> list[Bin]:
    """At most ten bins of as many nodes each, by their scores; equal scores are in one bin."""
    edges = np.unique(np.quantile(score, np.arange(1, _BINS) / _BINS))
    place = np.digitize(score, edges, right=True)
    return [
        Bin(float(score[place == each].mean()), share(int(truth[place == each].sum()), int((place == each).sum())))
        for each in np.unique(place)
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """How far scores are from the truth in a bin, on average over the nodes (Naeini et al. 2015)."""
    nodes = sum(each.true.of for each in bins)
    return sum(each.true.of * abs(each.said - each.true.value) for each in bins) / nodes


def brier(truth: Truths, score: Floats) -> float:
    """Mean square of what a score is away from the truth: 0 is certain and right."""
    return float(brier_score_loss(truth, score))


def best_threshold(truth: Truths, score: Floats) -> float | None:
    """The score from which on alarms have the highest F1; of several the highest. None without class 1."""
    if not truth.any():
        return None
    precision, recall, thresholds = precision_recall_curve(truth, score)
    both = precision[:-1] + recall[:-1]
    f1 = np.divide(2 * precision[:-1] * recall[:-1], both, out=np.zeros_like(both), where=both > 0)
    return float(thresholds[len(f1) - 1 - f1[::-1].argmax()])


def alarms(truth: Truths, score: Floats, threshold: float) -> Alarms:
    """What comes of a threshold."""
    raised = score >= threshold
    return Alarms(
        int((raised & truth).sum()), int((raised & ~truth).sum()), int((~raised & truth).sum()),
        int((~raised & ~truth).sum()),
    )  # fmt: skip


def _expected(truth: Truths, score: Floats) -> Floats:
    """How many of class 1 are among the k highest scores, for k from 1 to T; within a tie as many as on average."""
    order = np.argsort(-score, kind="stable")
    _, place, count = np.unique(-score[order], return_inverse=True, return_counts=True)
    hits, last = np.bincount(place, weights=truth[order]), np.cumsum(count)
    within = (np.arange(1, len(score) + 1) - (last - count)[place]) / count[place]
    return np.asarray((np.cumsum(hits) - hits)[place] + within * hits[place])


def _thinned(x: Floats, y: Floats) -> Curve:
    """At most so many points as a page shows, the first and the last among them."""
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), _POINTS)).round().astype(int))
    return [(float(x[each]), float(y[each])) for each in chosen]
