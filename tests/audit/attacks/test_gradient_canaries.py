"""Scores of canaries in a private training: log-likelihood ratios, as they are by brute force."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import binom, multivariate_normal
from veilgraph_averaging.audit_canaries import Part, Round, gradient_scores

from veilgraph.protocol.view import Floats

Coins = NDArray[np.bool_]
RATE, NOISE, WIDTH = 0.3, 0.8, 9
WORLDS = {
    "absent": [(1, True), (2, True), (2, False)],
    "replaced": [(1, True), (1, False)],
    "by itself": [(1, True)],
    "neighbours alone": [(3, True), (3, False)],
}
"""Of each part how many terms a canary has in it, and whether they are there where it is in."""


def parts_of(world: str, canaries: int, random: np.random.Generator, width: int = WIDTH) -> list[Part]:
    found = []
    for count, inside in WORLDS[world]:
        rows = random.normal(size=(canaries, width))
        found.append(Part(rows / np.linalg.norm(rows, axis=1, keepdims=True), count, inside))
    return found


def a_sum(parts: Sequence[Part], coins: Coins, random: np.random.Generator, noise: float = NOISE) -> Floats:
    """Of an honest training."""
    width = parts[0].rows.shape[1]
    total: Floats = np.asarray(noise * random.normal(size=width))
    for part in parts:
        drawn = random.binomial(part.count, RATE, size=len(coins)) * (coins == part.inside)
        total = total + drawn @ part.rows
    return total


def brute(each: Round, canary: int) -> float:
    """In against out, where all other canaries' terms are Gaussian with the mean and spread that they have."""
    covariance, mean = each.deviation**2 * np.eye(len(each.rest)), np.zeros(len(each.rest))
    for part in each.parts:
        spread = part.count * RATE * (1 - RATE) / 2 + (part.count * RATE) ** 2 / 4
        for other, row in enumerate(part.rows):
            if other != canary:
                covariance, mean = covariance + spread * np.outer(row, row), mean + RATE * part.count / 2 * row
    sides = []
    for inside in (True, False):
        there = [part for part in each.parts if part.inside == inside]
        sides.append(
            logsumexp(
                [
                    sum(binom.logpmf(count, part.count, RATE) for count, part in zip(counts, there, strict=True))
                    + multivariate_normal.logpdf(
                        each.rest,
                        mean + sum(count * part.rows[canary] for count, part in zip(counts, there, strict=True)),
                        covariance,
                    )
                    for counts in product(*(range(part.count + 1) for part in there))
                ]
            )
        )
    return float(sides[0] - sides[1])


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("canaries", [1, 4])
def test_a_score_is_the_log_likelihood_ratio(world: str, canaries: int) -> None:
    random = np.random.default_rng(canaries)
    rounds = []
    for _ in range(3):
        parts = parts_of(world, canaries, random)
        rounds.append(Round(a_sum(parts, np.arange(canaries) % 2 == 0, random), NOISE, parts))
    for each in rounds:
        known = [brute(each, canary) for canary in range(canaries)]
        assert gradient_scores([each], RATE) == pytest.approx(known, abs=1e-9)
    together = np.sum([gradient_scores([each], RATE) for each in rounds], axis=0)
    assert gradient_scores(rounds, RATE) == pytest.approx(together, abs=1e-12)


@pytest.mark.parametrize("along", [2.0, 6.0])
def test_terms_are_as_long_as_a_sum_says_where_noise_does_not_explain_it(along: float) -> None:
    """Of one canary with one term: twice the clip may be noise, six times is not."""
    row = np.eye(WIDTH)[:1]
    spread, mean = RATE * (1 - RATE) / 2 + RATE**2 / 4, RATE / 2
    length = 1.0 if along < 5 else float(np.sqrt(((along - mean) ** 2 - NOISE**2) / spread))
    found = gradient_scores([Round(along * row[0], NOISE, [Part(row, 1, True)])], RATE)
    known = brute(Round(along * row[0], NOISE, [Part(length * row, 1, True)]), 0)
    assert found == pytest.approx([known], abs=1e-9)
