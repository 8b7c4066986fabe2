"""Scores and truth of an attack's targets, and their receiver operating characteristic."""

from __future__ import annotations

import operator
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veilgraph.core.errors import DataError

Counts: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Truth: TypeAlias = NDArray[np.bool_]

MIN_TARGETS = 10
"""The fewest positives, and the fewest negatives, that a figure is given for."""


@dataclass(frozen=True, eq=False)
class Roc:
    """All points that the adversary can choose from by its threshold, from "nobody" to "everybody".

    Attributes:
        thresholds: [K + 1], falling: infinity, then each distinct score.
        false_positives: [K + 1], how many negatives have a score of at least the threshold.
        true_positives: [K + 1], how many positives have.
    """

    thresholds: Floats
    false_positives: Counts
    true_positives: Counts

    @property
    def false_positive_rate(self) -> Floats:
        """[K + 1], share of the negatives."""
        rates: Floats = self.false_positives / self.false_positives[-1]
        return rates

    @property
    def true_positive_rate(self) -> Floats:
        """[K + 1], share of the positives."""
        rates: Floats = self.true_positives / self.true_positives[-1]
        return rates

    @property
    def auc(self) -> float:
        """See ``Rocs``."""
        return float(self._alone.auc[0])

    def advantage(self, threshold: float) -> float:
        """See ``Rocs``."""
        return float(self._alone.advantage(threshold)[0])

    def tpr_at(self, false_positive_rate: float) -> float:
        """See ``Rocs``."""
        return float(self._alone.tpr_at(false_positive_rate)[0])

    @property
    def _alone(self) -> Rocs:
        return Rocs(self.thresholds, self.false_positives[None], self.true_positives[None])

    def best_threshold(self) -> float:
        """Where the advantage is greatest; of several such thresholds the highest, infinity if none beats a guess."""
        negatives, positives = self.false_positives[-1], self.true_positives[-1]
        return float(self.thresholds[np.argmax(self.true_positives * negatives - self.false_positives * positives)])


@dataclass(frozen=True, eq=False)
class Rocs:
    """Those of S samples of the same targets, with as many positives and as many negatives in each.

    Attributes:
        thresholds: [K + 1], as of ``Roc``.
        false_positives: [S, K + 1].
        true_positives: [S, K + 1].
    """

    thresholds: Floats
    false_positives: Counts
    true_positives: Counts

    @property
    def auc(self) -> Floats:
        """[S], probability that a positive has a higher score than a negative; a tie counts half."""
        pairs = self.true_positives[:, -1] * self.false_positives[:, -1]
        heights = self.true_positives[:, 1:] + self.true_positives[:, :-1]
        areas = np.einsum("sk,sk->s", np.diff(self.false_positives), heights)  # trapezoids, in whole numbers
        found: Floats = areas / (2 * pairs)
        return found

    def advantage(self, threshold: float) -> Floats:
        """[S], true minus false positive rate at ``threshold``, in [−1, 1].

        It is 2(Acc − 0.5) with positives and negatives of equal weight however many there are.
        """
        point = bisect_right(self.thresholds, -threshold, key=operator.neg) - 1
        return _share(self.true_positives, point) - _share(self.false_positives, point)

    def tpr_at(self, false_positive_rate: float) -> Floats:
        """[S], the highest true positive rate among the points with at most this false positive rate, as they are."""
        negatives = int(self.false_positives[0, -1])
        most = bisect_right(range(negatives + 1), false_positive_rate, key=lambda count: count / negatives) - 1
        points = [np.searchsorted(reached, most, side="right") - 1 for reached in self.false_positives]
        return _share(self.true_positives, np.array(points))


class Ranked:
    """Targets by where their score stands among the distinct scores, counted from the highest.

    By hand: ``sklearn.metrics.roc_curve`` gives the same points in hundreds of times the time, and every finding has
    thousands of bootstrap samples.
    """

    def __init__(self, scores: Floats, positive: Truth) -> None:
        distinct, places = np.unique(-scores, return_inverse=True)
        self._thresholds = np.concatenate([[np.inf], -distinct])
        self.positives, self.negatives = places[positive], places[~positive]

    def roc(self) -> Roc:
        """Of all targets."""
        return Roc(self._thresholds, self._reached(self.negatives[None])[0], self._reached(self.positives[None])[0])

    def rocs(self, positives: NDArray[np.intp], negatives: NDArray[np.intp]) -> Rocs:
        """Of S samples, [S, P] and [S, N]: indices of positives and of negatives, repeated or left out at will."""
        return Rocs(
            self._thresholds, self._reached(self.negatives[negatives]), self._reached(self.positives[positives])
        )

    def _reached(self, places: NDArray[np.intp]) -> Counts:
        reached = np.zeros((len(places), len(self._thresholds)), dtype=np.int64)
        for row, each in zip(reached, places, strict=True):
            row[1:] = np.bincount(each, minlength=len(row) - 1)
        return np.cumsum(reached, axis=1, out=reached)


def _share(reached: Counts, point: int | NDArray[np.intp]) -> Floats:
    rates: Floats = reached[np.arange(len(reached)), point] / reached[:, -1]
    return rates


def checked_targets(scores: NDArray[Any], truth: NDArray[Any], name: str = "truth") -> tuple[Floats, Truth]:
    """Scores as float64 [T] and truth, called ``name`` in messages, as bool [T].

    Raises:
        DataError: the arrays do not fit each other, a score is not finite, truth is not 0 and 1, or there are fewer
            than ``MIN_TARGETS`` positives or negatives.
    """
    values, positive = np.asarray(scores), np.asarray(truth)
    if values.ndim != 1 or values.shape != positive.shape:
        raise DataError(
            f"scores: {values.shape} and {name} {positive.shape} must both be [targets]; give one per target"
        )
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise DataError(f"scores: [{int(np.argmin(np.isfinite(values)))}] is not finite; clip or drop such targets")
    if positive.dtype != np.bool_ and not np.isin(positive, (0, 1)).all():
        raise DataError(f"{name}: has values other than 0 and 1; give True for positives and False for the others")
    positive = positive.astype(np.bool_)
    count = int(positive.sum())
    if min(count, len(positive) - count) < MIN_TARGETS:
        raise DataError(
            f"{name}: has {count} positives and {len(positive) - count} negatives; an attack is measured on at least "
            f"{MIN_TARGETS} of each: audit a run of more nodes"
        )
    return values, positive
