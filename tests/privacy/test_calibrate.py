"""Calibration: independent values, and never less noise than the wanted ε needs."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.privacy.accountant import (
    analytic_multiplier,
    classical_multiplier,
    gaussian_delta,
    multiplier_for_total,
    per_step,
    total,
)
from veilgraph.privacy.event import GaussianEvent

EPSILONS = st.floats(0.01, 200)
DELTAS = st.floats(1e-10, 0.01)


def test_pinned_multipliers():
    # sqrt(2·ln(1.25e5)) by hand: ln 125000 = 11.736069, times 2 is 23.472138, its root 4.844805.
    assert classical_multiplier(0.5, 1e-5) == pytest.approx(2 * 4.844805, rel=1e-6)
    # Balle & Wang's curve with 50-digit arithmetic.
    assert analytic_multiplier(1.0, 1e-5) == pytest.approx(3.730632, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-4), (1.0, 1e-5), (4.0, 1e-4), (32.0, 1e-6)])
def test_analytic_multiplier_agrees_with_the_library(epsilon, delta):
    assert analytic_multiplier(epsilon, delta) == pytest.approx(
        dp_accounting.get_sigma_gaussian(epsilon, delta), rel=1e-6
    )


@settings(max_examples=100)
@given(EPSILONS, DELTAS)
def test_analytic_noise_is_enough_and_hardly_more(epsilon, delta):
    multiplier = analytic_multiplier(epsilon, delta)
    assert gaussian_delta(epsilon, 1 / multiplier) <= delta
    assert gaussian_delta(epsilon, 1.00001 / multiplier) > delta


@settings(max_examples=100)
@given(EPSILONS, DELTAS, st.integers(1, 10_000), st.sampled_from(["zero-out", "replacement"]))
def test_the_plan_costs_no_more_than_the_budget(epsilon, delta, releases, neighbours):
    event = GaussianEvent(multiplier_for_total(epsilon, delta, releases, neighbours), neighbours)
    assert epsilon * (1 - 1e-5) <= total({event: releases}, delta) <= epsilon


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 0.99])
def test_where_the_classical_formula_holds_the_analytic_one_needs_less(epsilon):
    assert analytic_multiplier(epsilon, 1e-4) < classical_multiplier(epsilon, 1e-4)


def test_the_classical_formula_is_refused_where_it_is_not_proven():
    with refused(ConfigError, key="epsilon", value=1.0):
        classical_multiplier(1.0, 1e-4)
    paper = classical_multiplier(32.0, 1e-4, as_in_the_paper=True)
    assert paper == pytest.approx(math.sqrt(2 * math.log(12_500)) / 32)
    # And it is not true there: the release costs more than it says.
    assert per_step(GaussianEvent(paper), 1e-4) > 32


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_epsilon_must_be_finite_and_positive(epsilon):
    for calibrate in (
        lambda: classical_multiplier(epsilon, 1e-4),
        lambda: analytic_multiplier(epsilon, 1e-4),
        lambda: multiplier_for_total(epsilon, 1e-4, 1, "zero-out"),
    ):
        with refused(ConfigError, key="epsilon"):
            calibrate()


def test_delta_and_releases_are_checked():
    with refused(ConfigError, key="delta", value=0.0):
        classical_multiplier(0.5, 0.0)
    with refused(ConfigError, key="delta", value=1.0):
        analytic_multiplier(0.5, 1.0)
    with refused(ConfigError, key="releases", value=0):
        multiplier_for_total(1.0, 1e-4, 0, "zero-out")
