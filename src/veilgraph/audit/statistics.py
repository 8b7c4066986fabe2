"""How strong an attack is: what every attack reports, how sure that is, and when it counts as a finding.

An attack gives each target a score, higher where it believes the target to be positive (a member, a link). The
adversary says "positive" where the score is at least a threshold; tied scores get the same answer.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from veilgraph.core.errors import DataError

Counts: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Truth: TypeAlias = NDArray[np.bool_]

MIN_TARGETS = 10
"""The fewest positives, and the fewest negatives, that a figure is given for."""


@dataclass(frozen=True, eq=False)
class Rocs:
    """ROC curves of S samples of the same targets: all points from "nobody is positive" to "everybody is".

    Every sample has as many positives and negatives. ``thresholds`` [K + 1] fall from infinity; ``false_positives`` and
    ``true_positives`` [S, K + 1] count the negatives and positives whose score is at least that.
    """

    thresholds: Floats
    false_positives: Counts
    true_positives: Counts

    @property
    def aucs(self) -> Floats:
        """[S], probability that a positive has a higher score than a negative; a tie counts half."""
        pairs = self.true_positives[:, -1] * self.false_positives[:, -1]
        heights = self.true_positives[:, 1:] + self.true_positives[:, :-1]
        areas = np.einsum("sk,sk->s", np.diff(self.false_positives), heights)  # trapezoids, in whole numbers
        return np.asarray(areas / (2 * pairs))

    def advantage(self, threshold: float) -> Floats:
        """[S], true minus false positive rate at ``threshold``: 2(Acc − 0.5), both kinds weighed alike."""
        point = bisect_right(self.thresholds, -threshold, key=operator.neg) - 1
        return _rate_at(self.true_positives, point) - _rate_at(self.false_positives, point)

    def tpr_at(self, false_positive_rate: float) -> Floats:
        """[S], the highest true positive rate among the points with at most this false positive rate, as they are."""
        negatives = int(self.false_positives[0, -1])
        most = bisect_right(range(negatives + 1), false_positive_rate, key=lambda count: count / negatives) - 1
        points = [np.searchsorted(reached, most, side="right") - 1 for reached in self.false_positives]
        return _rate_at(self.true_positives, np.array(points))


class Roc(Rocs):
    """The ROC curve of all targets, each counted once: S = 1."""

    @property
    def false_positive_rate(self) -> Floats:
        """[K + 1], share of the negatives."""
        return np.asarray(self.false_positives[0] / self.false_positives[0, -1])

    @property
    def true_positive_rate(self) -> Floats:
        """[K + 1], share of the positives."""
        return np.asarray(self.true_positives[0] / self.true_positives[0, -1])

    @property
    def auc(self) -> float:
        """Probability that a positive has a higher score than a negative; a tie counts half."""
        return float(self.aucs[0])

    def best_threshold(self) -> float:
        """Where the advantage is greatest; of several such thresholds the highest, infinity if none beats a guess."""
        negatives, positives = self.false_positives[0, -1], self.true_positives[0, -1]
        return float(
            self.thresholds[np.argmax(self.true_positives[0] * negatives - self.false_positives[0] * positives)]
        )


class Ranked:
    """Targets by where their score stands among the distinct scores, counted from the highest.

    By hand: ``sklearn.metrics.roc_curve`` takes hundreds of times as long, and findings need thousands of samples.
    """

    def __init__(self, scores: Floats, positive: Truth) -> None:
        distinct, places = np.unique(-scores, return_inverse=True)
        self._thresholds = np.concatenate([[np.inf], -distinct])
        self.positives, self.negatives = places[positive], places[~positive]

    def roc(self) -> Roc:
        """The ROC curve of all targets."""
        return Roc(self._thresholds, self._cumulated(self.negatives[None]), self._cumulated(self.positives[None]))

    def rocs(self, positives: NDArray[np.intp], negatives: NDArray[np.intp]) -> Rocs:
        """ROC curves of S samples: indices [S, P] of positives and [S, N] of negatives, with repetition."""
        return Rocs(
            self._thresholds, self._cumulated(self.negatives[negatives]), self._cumulated(self.positives[positives])
        )

    def _cumulated(self, places: NDArray[np.intp]) -> Counts:
        """Counts [S, K + 1] of each sample's targets, by ``places`` [S, n], with at least each threshold as score."""
        reached = np.zeros((len(places), len(self._thresholds)), dtype=np.int64)
        for row, each in zip(reached, places, strict=True):
            row[1:] = np.bincount(each, minlength=len(row) - 1)
        return np.cumsum(reached, axis=1, out=reached)


def _rate_at(reached: Counts, point: int | NDArray[np.intp]) -> Floats:
    return np.asarray(reached[np.arange(len(reached)), point] / reached[:, -1])


def checked_targets(scores: NDArray[Any], truth: NDArray[Any], name: str = "truth") -> tuple[Floats, Truth]:
    """Scores as float64 [T] and truth, called ``name``, as bool [T]; ``DataError`` as ``measure``."""
    values, positive = np.asarray(scores), np.asarray(truth)
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise DataError(f"scores: [{int(np.argmin(np.isfinite(values)))}] is not finite; clip or drop such targets")
    positive = positive.astype(np.bool_)
    count = int(positive.sum())
    if min(count, len(positive) - count) < MIN_TARGETS:
        raise DataError(
            f"{name}: has {count} positives and {len(positive) - count} negatives; an attack is measured on at least "
            f"{MIN_TARGETS} of each: audit a run of more nodes"
        )
    return values, positive


Places = NDArray[np.intp]
Figure = Literal["auc", "advantage", "tpr_at_0_1_percent", "tpr_at_1_percent"]
"""Area under the ROC, advantage at the adversary's threshold, and true positive rates at low false positive rates.

With fewer than 1,000 negatives (100 at 1 %), those rates are without any false positive.

Source: advantage: Yeom et al. 2018, Duddu et al. 2020; low false positive rates: Carlini et al. 2022.
"""

_BLOCK: Final = 1 << 14
"""Targets of the samples that are counted at once, so that what is computed on the way stays in the cache."""

_FIGURES: Final[dict[Figure, Callable[[Rocs, float], Floats]]] = {
    "auc": lambda rocs, threshold: rocs.aucs,
    "advantage": lambda rocs, threshold: rocs.advantage(threshold),
    "tpr_at_0_1_percent": lambda rocs, threshold: rocs.tpr_at(0.001),
    "tpr_at_1_percent": lambda rocs, threshold: rocs.tpr_at(0.01),
}

ALL_FIGURES: Final[tuple[Figure, ...]] = tuple(_FIGURES)


@dataclass(frozen=True)
class Interval:
    """A figure with its confidence interval [low, high]."""

    value: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Verdict:
    """Whether an attack's AUC exceeds the baseline adversary's, or 0.5, by a one-sided permutation test.

    ``level`` is how often ``found`` is True though there is nothing to be found.
    """

    found: bool
    auc: float
    against: float
    p_value: float
    level: float


def measure(scores: NDArray[Any], truth: NDArray[Any]) -> Roc:
    """The ROC of an attack on its targets, scores [T], higher = positive, and truth [T].

    Raises ``DataError``: a score is not finite, or fewer than ``MIN_TARGETS`` are positive, or negative.
    """
    return Ranked(*checked_targets(scores, truth)).roc()


def intervals(
    scores: NDArray[Any],
    truth: NDArray[Any],
    *,
    seed: int,
    samples: int = 1000,
    confidence: float = 0.95,
    threshold: float | None = None,
    figures: Sequence[Figure] = ALL_FIGURES,
    baseline: NDArray[Any] | None = None,
) -> dict[Figure, Interval]:
    """Every figure of ``measure`` with a stratified percentile bootstrap interval; Efron & Tibshirani 1993, chapter 13.

    Each sample draws as many positives and as many negatives as there are, with replacement; the threshold stays the
    same. An attack that never errs has an interval of no width, and those of the rates at low false positive rates,
    which hang on a few negatives, are rough. By hand: ``scipy.stats.bootstrap`` gives the same in many times the time.

    With fewer than 100 ``samples`` the interval says nothing. The ``threshold`` of the advantage was fixed on other
    data; None takes the best on these targets, which is more than who does not know the truth would have. With a
    ``baseline``, another adversary's scores [T] of the same targets on any scale, figures are by how much the attack
    exceeds it, each at its best threshold, on the same samples.
    """
    sides = [Ranked(*checked_targets(each, truth)) for each in (scores, baseline) if each is not None]
    used = [each.roc().best_threshold() if threshold is None else threshold for each in sides]

    def values(rocs: Sequence[Rocs]) -> Floats:
        """Figures [S, F] of S samples, less those of the baseline if there is one."""
        first, *others = (
            np.stack([_FIGURES[figure](roc, at) for figure in figures], axis=1)
            for roc, at in zip(rocs, used, strict=True)
        )
        return np.asarray(first - others[0] if others else first)

    drawn = [values([side.rocs(*block) for side in sides]) for block in _bootstrap_draws(sides[0], seed, samples)]
    low, high = np.quantile(np.concatenate(drawn), [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    ends = zip(values([side.roc() for side in sides])[0].tolist(), low.tolist(), high.tolist(), strict=True)
    return {figure: Interval(*found, confidence) for figure, found in zip(figures, ends, strict=True)}


def verdict(
    scores: NDArray[Any],
    truth: NDArray[Any],
    *,
    level: float,
    seed: int,
    baseline: NDArray[Any] | None = None,
    permutations: int = 1000,
) -> Verdict:
    """Whether the AUC exceeds 0.5, or a baseline adversary's: one-sided permutation test.

    Against chance the truth is permuted: where scores do not depend on the truth, ``found`` comes with a probability of
    at most ``level``, exactly. Against a baseline each target's ranks under the two adversaries are swapped or not by a
    fair coin: exact where the two are exchangeable, close where only their AUCs are equal, and rarer still where the
    baseline's is higher. By hand: ``scipy.stats.permutation_test`` takes up to twice as long and is no shorter.

    ``level`` is the false-alarm rate, in (0, 1); ``baseline`` [T] has the other adversary's scores of the same targets,
    None for chance; ``permutations`` are at least 1/level − 1, so that a finding is possible.

    Source: Phipson & Smyth 2010 (p-value); Venkatraman & Begg 1996, Bandos et al. 2005 (swaps).
    """
    values, positive = checked_targets(scores, truth)
    random = np.random.default_rng(seed)
    ranks = rankdata(values)
    auc, against = _rank_auc(ranks, positive), 0.5
    if baseline is None:
        gains = [_rank_auc(ranks, random.permutation(positive)) - against for _ in range(permutations)]
    else:
        others = rankdata(checked_targets(baseline, truth)[0])
        against = _rank_auc(others, positive)
        gains = [_gain_after_swaps(ranks, others, positive, random) for _ in range(permutations)]
    at_least = sum(gain >= auc - against - 1e-12 for gain in gains)  # equal sums may differ in their rounding
    p_value = (1 + at_least) / (1 + permutations)
    return Verdict(p_value <= level, auc, against, p_value, level)


def _bootstrap_draws(ranked: Ranked, seed: int, samples: int) -> Iterator[tuple[Places, Places]]:
    """Yield blocks of samples: indices of positives [S, P] and of negatives [S, N], drawn with replacement."""
    random = np.random.default_rng(seed)
    counts = len(ranked.positives), len(ranked.negatives)
    at_once = max(1, _BLOCK // sum(counts))
    for start in range(0, samples, at_once):
        drawn = [
            [random.integers(count, size=count, dtype=np.intp) for count in counts]
            for _ in range(min(at_once, samples - start))
        ]
        positives, negatives = (np.stack(kind) for kind in zip(*drawn, strict=True))
        yield positives, negatives


def _rank_auc(ranks: Floats, positive: Truth) -> float:
    """AUC from ranks (ties share their mean): Mann and Whitney's U over the number of pairs."""
    count = int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(ranks) - count)))


def _gain_after_swaps(ranks: Floats, others: Floats, positive: Truth, random: np.random.Generator) -> float:
    """Difference of the AUCs of two rankings after each target's ranks are swapped with probability 1/2."""
    swap = random.random(len(ranks)) < 0.5
    first, second = np.where(swap, others, ranks), np.where(swap, ranks, others)
    return _rank_auc(_ranks_again(first), positive) - _rank_auc(_ranks_again(second), positive)


def _ranks_again(mixed: Floats) -> Floats:
    """``rankdata`` of numbers that are ranks already: halves of whole numbers, which need no sorting."""
    doubled = (2 * mixed).astype(np.int64)
    counts = np.bincount(doubled)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[doubled])
