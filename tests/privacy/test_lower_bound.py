"""The lower bound on ε against the binomial law."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from veilgraph_testing.lower_bound import epsilon_lower_bound


def share_limit(positives, trials, tail, upper):
    """Clopper and Pearson's limit from the binomial law, by halving."""
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        counts = range(positives + 1) if upper else range(positives, trials + 1)
        reached = math.fsum(math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in counts)
        low, high = (p, high) if (reached > tail) == upper else (low, p)
    return (low + high) / 2


@settings(max_examples=60)
@given(st.integers(1, 60), st.data(), st.sampled_from([0.0, 1e-3, 0.1]), st.sampled_from([0.5, 0.95, 1 - 1e-6]))
def test_the_bound_is_that_of_the_binomial_law(trials, data, delta, confidence):
    true, false = (data.draw(st.integers(0, trials)) for _ in range(2))
    tail = (1 - confidence) / 2
    p, q = share_limit(true, trials, tail, upper=False), share_limit(false, trials, tail, upper=True)
    ratios = [(p - delta, q), (1 - q - delta, 1 - p)]
    wanted = max(math.log(max(above, 1e-300) / below) for above, below in ratios)
    bound = epsilon_lower_bound(true, false, trials, delta, confidence)
    assert bound == pytest.approx(max(0.0, wanted), rel=1e-6, abs=1e-9)
    assert bound == pytest.approx(epsilon_lower_bound(trials - false, trials - true, trials, delta, confidence))


def test_a_test_that_never_errs_proves_what_its_trials_allow():
    # No success in n trials: the upper limit u has (1 - u)^n = tail.
    upper = 1 - 0.025 ** (1 / 1000)
    assert epsilon_lower_bound(1000, 0, 1000, 0.01, 0.95) == pytest.approx(math.log((1 - upper - 0.01) / upper))
    assert epsilon_lower_bound(0, 1000, 1000, 0.0, 0.95) == 0
    assert epsilon_lower_bound(500, 500, 1000, 0.0, 0.95) == 0


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_randomised_response_is_overrated_as_seldom_as_promised(confidence):
    """All outcomes of 25 trials, with their exact probabilities; a coin that says the truth with e^ε/(1 + e^ε)."""
    trials, epsilon = 25, 1.0
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    law = [math.comb(trials, k) * truth**k * (1 - truth) ** (trials - k) for k in range(trials + 1)]
    overrated = math.fsum(
        law[true] * law[trials - false]
        for true in range(trials + 1)
        for false in range(trials + 1)
        if epsilon_lower_bound(true, false, trials, 0.0, confidence) > epsilon
    )
    assert 0 < overrated <= 1 - confidence
