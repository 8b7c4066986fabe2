"""The bound from one run: against closed forms, exact tails, and simulated runs of known privacy."""

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from veilgraph.audit.canaries import least_probability, one_run_epsilon, p_value
from veilgraph.audit.statistics import Truth
from veilgraph.privacy.accountant import gaussian_epsilon
from veilgraph.protocol.trade_offs import GaussianClaims
from veilgraph.protocol.view import Floats

DELTA = 1e-4
LEVEL = GaussianClaims().level


def gaussian_run(m: int, mu: float, seed: int) -> tuple[Floats, Truth]:
    random = np.random.default_rng(seed)
    coins = random.random(m) < 0.5
    return mu * coins + random.standard_normal(m), coins


# The two p-values


def test_p_value_is_theorem_5_2():
    m, r, v, epsilon, delta = 40, 30, 25, 0.7, 0.003
    q = math.exp(epsilon) / (1 + math.exp(epsilon))

    def f(least):
        return sum(math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(max(0, least), r + 1))

    expected = f(v) + 2 * m * delta * max((f(v - i) - f(v)) / i for i in range(1, m + 1))
    assert p_value(m, r, v, epsilon, delta) == pytest.approx(expected, rel=1e-9)
    assert p_value(m, r, 0, epsilon, delta) == 1


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(("m", "r"), [(1, 1), (2, 2), (30, 30), (200, 200)])
def test_what_independent_gaussian_canaries_do_is_not_called_impossible(m, r, mu):
    for correct in range(r + 1):
        tail = binom.sf(correct - 1, r, ndtr(mu / 2))
        assert least_probability(m, r, correct, LEVEL(mu), tail) <= 1 + 1e-9


def test_the_recursion_finds_the_largest_tail_of_all_distributions_that_keep_to_the_inequalities():
    """m = r = 2 and v = 2, where a fine grid over (p_0, p_1, p_2) can be searched."""
    mu = 0.8
    grid = np.linspace(0, 1, 401)
    p1, p2 = (values.ravel() for values in np.meshgrid(grid, grid))
    p0 = 1 - p1 - p2
    h1, h0 = p1 / 2, p1 / 2 + p0
    fits = (p0 >= 0) & (p2 <= power(h1, mu) + 1e-12) & (p2 + p1 / 2 <= power(h0, mu) + 1e-12)
    most = p2[fits].max()
    assert least_probability(2, 2, 2, LEVEL(mu), most) <= 1 + 1e-9
    assert least_probability(2, 2, 2, LEVEL(mu), most + 0.005) > 1


def power(level, mu):
    return ndtr(ndtri(np.clip(level, 0, 1)) + mu)


# Runs of known privacy


@pytest.mark.cases(1)
@pytest.mark.parametrize("claims", [None, GaussianClaims()])
@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_the_bound_is_below_the_truth_in_95_percent_of_runs(mu, claims):
    truth = gaussian_epsilon(mu, DELTA)
    runs = [one_run_epsilon(*gaussian_run(150, mu, seed), DELTA, claims=claims) for seed in range(60)]
    assert sum(run.epsilon <= truth for run in runs) >= 57


def test_randomised_response_with_a_failure_is_bounded_in_95_percent_of_runs():
    """The worst (ε, δ)-private run: a coin shows with probability δ, else it comes out right with e^ε/(1 + e^ε)."""
    epsilon, m = 1.0, 300
    for delta, guesses in ((0.0, m), (0.01, m), (0.01, 10)):
        bounds = []
        for seed in range(100):
            random = np.random.default_rng(seed)
            coins, shown = random.random(m) < 0.5, random.random(m) < delta
            right = shown | (random.random(m) < 1 / (1 + math.exp(-epsilon)))
            scores = np.where(coins == right, 1.0, -1.0) * (1.0 + shown)
            bounds.append(one_run_epsilon(scores, coins, delta, guesses=[guesses]).epsilon)
        assert sum(bound <= epsilon for bound in bounds) >= 95
        if delta == 0:
            assert np.median(bounds) > 0.6 * epsilon


def test_half_of_the_noise_is_more_than_was_claimed():
    claim = gaussian_epsilon(1.0, DELTA)
    assert one_run_epsilon(*gaussian_run(4000, 1.0, 1), DELTA, claims=GaussianClaims()).epsilon < claim
    assert one_run_epsilon(*gaussian_run(4000, 2.0, 1), DELTA, claims=GaussianClaims()).epsilon > claim
