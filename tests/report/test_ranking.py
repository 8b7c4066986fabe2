"""Lift, calibration and thresholds of two classes, against slow obvious computations."""

import itertools

import numpy as np
import pytest

from veilgraph.report.ranking import (
    Alarms,
    alarms,
    best_threshold,
    found_over_looked,
    looked_at,
    precision_over_recall,
    reliability,
    share,
)

RANKED = np.array([True, False, True, False, False, False, False, False, False, True])
SCORE = np.linspace(1.0, 0.1, 10)


def many(count: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Scores in hundredths, many of which tie, and truths that are as likely as these say."""
    generator = np.random.default_rng(0)
    score = generator.beta(0.5, 5, count).round(2)
    return generator.random(count) < score, score


def test_looking_at_a_share_finds_what_is_there() -> None:
    (row,) = looked_at(RANKED, SCORE, [0.3])
    assert (row.nodes, row.found) == (3, 2)
    assert (row.precision, row.recall) == pytest.approx((2 / 3, 2 / 3))
    assert row.lift == pytest.approx((2 / 3) / 0.3)
    assert looked_at(RANKED, SCORE, [0.01]) == []  # a tenth of a node
    (everybody,) = looked_at(RANKED, SCORE, [1.0])
    assert (everybody.recall, everybody.lift) == (1, 1)
    assert looked_at(np.zeros(10, dtype=bool), SCORE) == [], "none is of class 1"


def test_curves_end_where_everybody_is_looked_at() -> None:
    truth, score = many()
    found, precision = found_over_looked(truth, score), precision_over_recall(truth, score)
    assert (found[0], found[-1]) == ((0, 0), (1, 1))
    assert precision[-1] == pytest.approx((1, truth.mean()))
    top = score == score.max()
    assert precision[0] == pytest.approx((truth[top].sum() / truth.sum(), truth[top].mean()))
    assert len(found) == 200
    assert all(a <= b and x <= y for (a, x), (b, y) in itertools.pairwise(found))
    nothing = np.zeros(5, dtype=bool)
    assert found_over_looked(nothing, score[:5]) == precision_over_recall(nothing, score[:5]) == []


def test_probabilities_that_are_true_are_reliable() -> None:
    truth, score = many()
    bins = reliability(truth, score)
    assert sum(each.true.of for each in bins) == len(score)
    assert sum(each.true.count for each in bins) == truth.sum()
    assert sum(not each.true.low <= each.said <= each.true.high for each in bins) <= 2
    assert [each.said for each in bins] == sorted(each.said for each in bins)
    wrong = reliability(truth, score**0.25)
    assert sum(not each.true.low <= each.said <= each.true.high for each in wrong) >= 8
    assert len(reliability(truth, np.full(len(truth), 0.5))) == 1


def test_the_threshold_has_the_highest_f1() -> None:
    truth, score = many()
    chosen = best_threshold(truth, score)
    assert chosen is not None

    def f1(at: Alarms) -> float:
        return 2 * at.true_alarms / (2 * at.true_alarms + at.false_alarms + at.missed)

    every = {threshold: f1(alarms(truth, score, threshold)) for threshold in np.unique(score)}
    assert every[chosen] == max(every.values())
    assert chosen == max(threshold for threshold, value in every.items() if value == every[chosen])
    assert best_threshold(np.zeros(3, dtype=bool), score[:3]) is None
    one_or_all = np.array([True, False, False, True])  # an F1 of 2/3 either way
    assert best_threshold(one_or_all, np.array([0.9, 0.8, 0.7, 0.6])) == 0.9


def test_the_interval_of_a_share_is_wilsons() -> None:
    one = share(8, 10)
    centre, half = (0.8 + 1.96**2 / 20) / (1 + 1.96**2 / 10), 1.96 / (1 + 1.96**2 / 10) * (0.016 + 1.96**2 / 400) ** 0.5
    assert (one.low, one.high) == pytest.approx((centre - half, centre + half), abs=1e-4)
    nothing = share(0, 0)
    assert np.isnan(nothing.value)
    assert (nothing.low, nothing.high) == (0, 1)
