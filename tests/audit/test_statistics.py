"""The figures of an attack against slow counting and scikit-learn, their intervals, and when an attack is found."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm
from sklearn.metrics import roc_curve

from veilgraph.audit.statistics import Figure, intervals, measure, verdict

FIGURES: tuple[Figure, ...] = ("auc", "advantage", "tpr_at_0_1_percent", "tpr_at_1_percent")


def targets(positives, negatives):
    return np.repeat([True, False], [positives, negatives])


def normals(random, positives, negatives, shift):
    truth = targets(positives, negatives)
    return random.normal(size=len(truth)) + shift * truth, truth


def figures_of(scores, truth, threshold=None):
    found = intervals(scores, truth, seed=0, samples=100, threshold=threshold)
    return {figure: found[figure].value for figure in FIGURES}


@st.composite
def tied_targets(draw):
    truth = targets(draw(st.integers(10, 25)), draw(st.integers(10, 25)))
    scores = draw(st.lists(st.integers(-4, 4), min_size=len(truth), max_size=len(truth)))
    return np.array(scores) / 4, truth


@settings(max_examples=20)
@given(tied_targets())
def test_figures_are_those_of_counting(case):
    scores, truth = case
    members, others = scores[truth], scores[~truth]
    roc, figures = measure(scores, truth), figures_of(scores, truth)
    wins = sum((member > other) + 0.5 * (member == other) for member in members for other in others)
    assert roc.auc == figures["auc"] == wins / (len(members) * len(others))

    def rates(threshold):
        return (members >= threshold).mean(), (others >= threshold).mean()

    thresholds = [math.inf, *sorted(set(scores), reverse=True)]
    gains = [rates(threshold)[0] - rates(threshold)[1] for threshold in thresholds]
    assert figures["advantage"] == pytest.approx(max(gains), abs=1e-12)
    first = next(place for place, gain in enumerate(gains) if gain >= max(gains) - 1e-12)  # equal but for rounding
    assert roc.best_threshold() == thresholds[first]
    for figure, limit in (("tpr_at_0_1_percent", 0.001), ("tpr_at_1_percent", 0.01)):
        assert figures[figure] == max(tpr for tpr, fpr in map(rates, thresholds) if fpr <= limit)
    for threshold in (-math.inf, -0.6, 0.25, 2.0, math.inf):
        tpr, fpr = rates(threshold)
        balanced_accuracy = (tpr + 1 - fpr) / 2
        fixed = figures_of(scores, truth, threshold)
        assert fixed["advantage"] == pytest.approx(2 * (balanced_accuracy - 0.5), abs=1e-12)

    fpr, tpr, at = roc_curve(truth, scores, drop_intermediate=False)
    np.testing.assert_array_equal(roc.false_positive_rate, fpr)
    np.testing.assert_array_equal(roc.true_positive_rate, tpr)
    np.testing.assert_array_equal(roc.thresholds, at)


def test_low_false_positive_rates_are_counted_exactly():
    """Of 2,000 negatives 2 may be wrong at 0.1 % and 20 at 1 %; of 99, none."""
    truth = targets(100, 2000)
    negatives = np.arange(2000) / 2000
    positives = np.repeat([0.9987, 0.99025, 0.5], [7, 20, 73])  # above all but 2, all but 19, half of the negatives
    many = figures_of(np.concatenate([positives, negatives]), truth)
    assert (many["tpr_at_0_1_percent"], many["tpr_at_1_percent"]) == (0.07, 0.27)
    assert measure(negatives, np.arange(2000) < 20).tpr_at(1.0) == 1
    few = figures_of(np.concatenate([positives, negatives[-99:]]), targets(100, 99))
    assert (few["tpr_at_0_1_percent"], few["tpr_at_1_percent"]) == (0, 0)


def test_an_interval_holds_the_true_value_as_often_as_it_says():
    """Two unit normals one apart: AUC Φ(1/√2), and TPR − FPR = 2Φ(1/2) − 1 at the threshold between them."""
    random = np.random.default_rng(0)
    held: dict[Figure, int] = {"auc": 0, "advantage": 0}
    true: dict[Figure, float] = {"auc": norm.cdf(1 / math.sqrt(2)), "advantage": 2 * norm.cdf(0.5) - 1}
    repetitions = 80
    for seed in range(repetitions):
        found = intervals(*normals(random, 60, 90, 1.0), seed=seed, samples=150, confidence=0.6, threshold=0.5)
        for figure in held:
            held[figure] += found[figure].low <= true[figure] <= found[figure].high
    for count in held.values():
        assert binom.ppf(1e-3, repetitions, 0.57) <= count <= binom.ppf(1 - 1e-3, repetitions, 0.63)


def test_differences_are_paired():
    random = np.random.default_rng(2)
    shared, truth = normals(random, 80, 80, 1.0)
    better = shared + 0.3 * truth + 0.1 * random.normal(size=len(truth))
    paired = intervals(better, truth, seed=0, samples=300, baseline=shared)["auc"]
    assert paired.value == pytest.approx(measure(better, truth).auc - measure(shared, truth).auc)
    assert 0 < paired.low < paired.value < paired.high
    alone = intervals(better, truth, seed=0, samples=300)["auc"]
    assert paired.high - paired.low < (alone.high - alone.low) / 2
    same = intervals(shared, truth, seed=0, baseline=5 * shared)
    assert {(found.value, found.low, found.high) for found in same.values()} == {(0.0, 0.0, 0.0)}


def test_the_p_value_is_the_share_of_the_truths_that_do_as_well():
    """Ten positives above ten negatives but for one pair: U = 99, and P(U ≥ 99) = 2/C(20, 10)."""
    scores, truth = np.arange(20, 0, -1.0), targets(10, 10)
    scores[[9, 10]] = scores[[10, 9]]
    found = verdict(scores, truth, level=0.01, seed=0, permutations=999)
    assert (found.found, found.auc, found.against, found.p_value) == (True, 0.99, 0.5, 1 / 1000)
    # The middle of the distribution of U is at 50 of 100 pairs.
    middle = verdict(np.tile([1.0, 2.0], 10), truth, level=0.01, seed=0, permutations=400)
    assert middle.auc == 0.5
    assert not middle.found
    # Five or more of ten positives among the ten high scores: hypergeometric.
    law = [math.comb(10, count) ** 2 / math.comb(20, 10) for count in range(11)]
    assert middle.p_value == pytest.approx(sum(law[5:]), abs=4 * math.sqrt(0.25 / 400))


def no_view(random):
    """Without a leak: no baseline, one that guesses as well, one that is as well informed on another scale."""
    noise, truth = normals(random, 30, 60, 0.0)
    yield noise, None, truth
    yield np.round(noise), None, truth
    yield noise, random.normal(size=len(truth)), truth
    yield noise, np.zeros(len(truth)), truth
    informed = random.normal(size=(2, len(truth))) + truth
    yield informed[0], np.exp(informed[1]), truth
    yield noise, informed[1], truth


def test_where_nothing_leaks_false_alarms_are_as_rare_as_stated():
    random, repetitions, level = np.random.default_rng(5), 20, 0.05
    alarms = np.zeros(6)
    for seed in range(repetitions):
        for case, (scores, baseline, truth) in enumerate(no_view(random)):
            found = verdict(scores, truth, level=level, seed=seed, baseline=baseline, permutations=39)
            assert found.found == (found.p_value <= level)
            alarms[case] += found.found
    assert (alarms <= binom.ppf(0.999, repetitions, level)).all()
    assert alarms.sum() > 0  # the test is not one that never finds anything
