"""Thresholds on the probability grid, uniform integers, and sets of columns drawn without replacement."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.privacy.chance import exp_between, fixed
from veilgraph.core.secrets import SEED_BYTES
from veilgraph.privacy.randomised_response import GRID, least_cells, random_columns, uniform

SEED = fixed("sets")(SEED_BYTES)


@settings(max_examples=30)
@given(st.floats(1e-8, 20), st.integers(1, 6000), st.integers(1, 50))
def test_the_least_threshold_is_the_exact_quotient_rounded_up(epsilon, parts, others):
    cells = least_cells(epsilon, parts, others)
    lower, upper = exp_between(Fraction(epsilon) / parts)
    assert Fraction(GRID) <= cells * (lower + others)
    assert (cells - 1) * (upper + others) < GRID


@pytest.mark.parametrize("epsilon", [65.0, 1e6, 1e308])
def test_more_epsilon_than_the_grid_can_spend_leaves_one_cell(epsilon):
    assert least_cells(epsilon) == 1


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
