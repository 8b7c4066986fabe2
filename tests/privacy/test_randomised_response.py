"""Random choices of exact probabilities, and labels under randomised response."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from veilgraph_node_dp.mechanisms import random_columns

from tests.errors import refused
from tests.privacy.chance import exp_between, fixed
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.secrets import SEED_BYTES, system_secrets
from veilgraph.privacy import randomised_response
from veilgraph.privacy.randomised_response import GRID, LabelResponse, least_cells, uniform

SEED = fixed("sets")(SEED_BYTES)


@settings(max_examples=30)
@given(st.floats(1e-8, 20), st.integers(1, 6000), st.integers(1, 50))
def test_the_least_threshold_is_the_exact_quotient_rounded_up(epsilon, parts, others):
    cells = least_cells(epsilon, parts, others)
    lower, upper = exp_between(Fraction(epsilon) / parts)
    assert Fraction(GRID) <= cells * (lower + others)
    assert (cells - 1) * (upper + others) < GRID


def test_uniform_integers_fill_the_grid_evenly():
    values = uniform(SEED, "even", (100_000,))
    assert int(values.min()) >= 0
    assert int(values.max()) < GRID
    assert stats.kstest(values.numpy() / GRID, "uniform").pvalue > 1e-3
    assert stats.chisquare(torch.bincount(values % 64).numpy()).pvalue > 1e-3  # the low bits, too
    assert not torch.equal(values, uniform(SEED, "other", (100_000,)))


@pytest.mark.parametrize(("columns", "count"), [(1, 1), (5, 1), (5, 2), (5, 3), (5, 4), (6, 3), (7, 7)])
def test_every_set_is_equally_likely(columns, count):
    rows = 20_000
    chosen = random_columns(SEED, f"{columns}/{count}", rows, columns, count)
    assert chosen.shape == (rows, count)
    seen = Counter(tuple(row) for row in chosen.tolist())
    every = list(itertools.combinations(range(columns), count))
    assert set(seen) == set(every)  # ascending, in range, and never a column twice
    assert len(every) == 1 or stats.chisquare([seen[one] for one in every]).pvalue > 1e-3


@pytest.mark.parametrize(("columns", "count"), [(300, 40), (300, 200), (3000, 1)])
def test_every_column_is_equally_likely_in_larger_sets(columns, count):
    rows = 30_000 // count
    chosen = random_columns(SEED, f"{columns}/{count}", rows, columns, count)
    assert bool((chosen.diff(dim=1) > 0).all())
    seen = torch.bincount(chosen.view(-1), minlength=columns).double()
    # A column is in a row or not: Pearson's sum, with the variance of a draw without replacement.
    share = count / columns
    statistic = float(((seen - rows * share) ** 2).sum() / (rows * share * (1 - share))) * (columns - 1) / columns
    assert 1e-3 < stats.chi2.cdf(statistic, columns - 1) < 1 - 1e-3


def test_rows_are_independent():
    chosen = random_columns(SEED, "pairs", 40_000, 4, 1).view(-1, 2)
    table = torch.bincount(chosen[:, 0] * 4 + chosen[:, 1], minlength=16).view(4, 4)
    assert stats.chi2_contingency(table.numpy()).pvalue > 1e-3


def cells_of(response: LabelResponse) -> list[list[Fraction]]:
    """The transition matrix's exact entries: multiples of 2^-53 are exact in float64."""
    return [[Fraction(float(entry)) * GRID for entry in row] for row in response.transition()]


@settings(max_examples=30)
@given(st.floats(1e-3, 9.9), st.integers(2, 40))
def test_local_differential_privacy_holds_exactly_and_is_used_up(epsilon, classes):
    cells = cells_of(LabelResponse(epsilon, classes))
    lower, upper = exp_between(Fraction(epsilon))
    assert all(sum(row) == GRID for row in cells)
    for column in zip(*cells, strict=True):
        assert max(column) <= lower * min(column)
        assert max(column) >= upper * min(column) * (1 - Fraction(1, 10**9))


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_every_class_gets_exactly_its_cells(monkeypatch, classes):
    response = LabelResponse(1.3, classes)
    other = least_cells(1.3, others=classes - 1)
    ends = [(k * other, (k + 1) * other - 1) for k in range(classes - 1)] + [((classes - 1) * other, GRID - 1)]
    cells = torch.tensor(ends).view(-1)
    monkeypatch.setattr(randomised_response, "uniform", lambda seed, purpose, shape: cells.clone())
    for label in range(classes):
        released = response.release(torch.full((2 * classes,), label), system_secrets).view(classes, 2)
        assert torch.equal(released[:, 0], released[:, 1])
        assert released[:, 0].tolist() == [*(k for k in range(classes) if k != label), label]


def test_released_labels_follow_the_transition_matrix(monkeypatch):
    monkeypatch.setattr(randomised_response, "PIECE", 10_000)
    response = LabelResponse(1.0, 4)
    labels = torch.arange(4).repeat(25_000)
    released = response.release(labels, fixed("labels"))
    assert torch.equal(labels, torch.arange(4).repeat(25_000))
    for label, row in enumerate(response.transition()):
        seen = torch.bincount(released[labels == label], minlength=4)
        assert stats.chisquare(seen.numpy(), 25_000 * row.numpy()).pvalue > 1e-3


@given(st.floats(0.1, 9.9), st.integers(2, 40), st.floats(0, 1))
def test_what_accuracy_against_true_labels_is_to_be_expected(epsilon, classes, accuracy):
    """A right guess is right of the released label with what is kept, a wrong one with what another class gets."""
    response = LabelResponse(epsilon, classes)
    right, wrong = (float(response.transition()[0, place]) for place in (0, 1))
    seen = accuracy * right + (1 - accuracy) * wrong
    assert response.expected_accuracy(seen) == pytest.approx(accuracy, abs=1e-6)
    assert response.expected_accuracy(0.0) == 0.0
    assert response.expected_accuracy(1.0) == 1.0


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        (torch.tensor([0, 3]), {"key": "labels"}),
        (torch.tensor([-1, 0]), {"key": "labels"}),
        (torch.tensor([[0, 1]]), {"key": "labels"}),
        (torch.tensor([0.0, 1.0]), {"key": "labels"}),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, named):
    with refused(DataError, **named):
        LabelResponse(1.0, 3).release(labels, system_secrets)


@pytest.mark.parametrize(
    ("epsilon", "classes", "named"),
    [
        (0.0, 3, {"key": "epsilon", "value": 0.0}),
        (math.nan, 3, {"key": "epsilon", "value": math.nan}),
        (1.0, 1, {"key": "classes", "value": 1}),
        (1e-12, 3, {"key": "epsilon", "value": 1e-12}),
    ],
)
def test_parameters_out_of_range_are_refused(epsilon, classes, named):
    with refused(ConfigError, **named):
        LabelResponse(epsilon, classes)
