"""What predictions of test nodes are worth, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Floats = NDArray[np.float64]
Classes = NDArray[np.int64]

DRAWS: Final = 200
"""Bootstrap samples: their 2.5 % and 97.5 % quantiles are moved by few thousandths from one set to another."""
_MOST: Final = 10**7  # probabilities of samples that are in memory at once


@dataclass(frozen=True)
class Scored:
    """Labels [T] of one seed's test nodes, and predicted probabilities [T, C]."""

    labels: Classes
    likely: Floats


@dataclass(frozen=True)
class Estimate:
    """A figure's mean over seeds, its 95 % interval, and its means over ``DRAWS`` samples, alike in one study."""

    value: float
    low: float
    high: float
    draws: Floats

    def above(self, other: Estimate) -> Estimate:
        """The difference from another on the same nodes, with an interval from paired samples."""
        return _with_interval(self.value - other.value, self.draws - other.draws)


def figures(found: Scored, alarms: float) -> dict[str, float]:
    """AUC, F1, accuracy; of two classes PR-AUC, and recall in the share ``alarms`` of top scores. NaN: undefined."""
    return {name: float(one[0]) for name, one in _figures(found.labels[None], found.likely[None], alarms).items()}


def estimates(found: Sequence[Scored], alarms: float, seed: int = 0, draws: int = DRAWS) -> Mapping[str, Estimate]:
    """Means over seeds, with intervals by a bootstrap of seeds and, within each, of its test nodes.

    Two ways are compared on the same samples if they are of the same nodes, seed by seed.
    """
    each = [figures(one, alarms) for one in found]
    generator = np.random.default_rng(seed)
    chosen = generator.integers(len(found), size=(draws, len(found)))
    drawn = [{name: np.zeros(0) for name in each[0]} for _ in found]
    for place, one in enumerate(found):
        wanted, most = int((chosen == place).sum()), max(1, _MOST // one.likely.size)
        for start in range(0, wanted, most):
            count = min(most, wanted - start)
            rows = generator.integers(len(one.labels), size=(count, len(one.labels)))
            told = _figures(one.labels[rows], one.likely[rows], alarms)
            drawn[place] = {name: np.append(drawn[place][name], values) for name, values in told.items()}
    means = {name: np.zeros(draws) for name in each[0]}
    for name, mean in means.items():
        for place, values in enumerate(drawn):
            np.add.at(mean, np.nonzero(chosen == place)[0], values[name] / len(found))
    return {name: _with_interval(float(np.mean([one[name] for one in each])), mean) for name, mean in means.items()}


def _figures(labels: Classes, likely: Floats, alarms: float) -> dict[str, Floats]:
    """``figures`` [B] of B samples at once, as scikit-learn has them: labels [B, T], probabilities [B, T, C]."""
    classes, predicted = likely.shape[2], likely.argmax(axis=2)
    f1 = np.mean([_f1(labels == each, predicted == each) for each in range(classes)], axis=0)
    if classes > 2:
        auc = np.mean([_auc(labels == each, likely[:, :, each]) for each in range(classes)], axis=0)
        return {"auc": auc, "f1": f1, "accuracy": (predicted == labels).mean(axis=1)}
    score, positive = likely[:, :, 1], labels == 1
    order = np.argsort(-score, axis=1, kind="stable")
    ranked, count = np.take_along_axis(positive, order, axis=1), positive.sum(axis=1)
    found = ranked.cumsum(axis=1)
    looked_at = max(1, round(alarms * labels.shape[1]))
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "auc": _auc(positive, score),
            "pr_auc": _average_precision(np.take_along_axis(score, order, axis=1), found) / count,
            "recall": found[:, looked_at - 1] / count,
            "f1": f1,
            "accuracy": (predicted == labels).mean(axis=1),
        }


def _auc(positive: NDArray[np.bool_], score: Floats) -> Floats:
    """AUC [B] by Mann and Whitney's ranks, of B samples [B, T]; NaN where a class is missing."""
    count, total = positive.sum(axis=1), positive.shape[1]
    above = (rankdata(score, axis=1) * positive).sum(axis=1) - count * (count + 1) / 2
    with np.errstate(invalid="ignore"):
        return np.asarray(above / (count * (total - count)))


def _average_precision(score: Floats, found: Classes) -> Floats:
    """Precision summed over positives, [B]: of scores [B, T], falling, and ``found`` [B, T], counts of positives."""
    total = score.shape[1]
    ends = np.where(np.diff(score, axis=1, append=-np.inf) != 0, np.arange(total), total)
    end = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]  # the last of those that have the same score
    precision = np.take_along_axis(found, end, axis=1) / (end + 1)
    return np.asarray((precision * np.diff(found, axis=1, prepend=0)).sum(axis=1))


def _f1(true: NDArray[np.bool_], taken: NDArray[np.bool_]) -> Floats:
    both, either = (true & taken).sum(axis=1), true.sum(axis=1) + taken.sum(axis=1)
    return np.asarray(2 * both / np.maximum(either, 1))


def _with_interval(value: float, draws: Floats) -> Estimate:
    """An estimate with the 2.5 % and 97.5 % quantiles of its samples; NaN where all of these are."""
    known = draws[~np.isnan(draws)]
    low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (np.nan, np.nan)
    return Estimate(value, float(low), float(high), draws)
