"""How terms of sums are drawn: honest draws are what the p-values say, and every other way to draw is found."""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray
from veilgraph_averaging.audit_draws import sampling

from tests.errors import refused
from veilgraph.core.errors import DataError

Drawn = NDArray[np.uint8]
ROUNDS, TERMS, RATE = 20, 120, 0.3
SIZE = int(TERMS * RATE)


def honest(random: Generator, rate: float = RATE, rounds: int = ROUNDS, terms: int = TERMS) -> Drawn:
    return (random.random((rounds, terms)) < rate).astype(np.uint8)


def chosen(places: list[NDArray[np.int64]]) -> Drawn:
    found = np.zeros((len(places), TERMS), dtype=np.uint8)
    for row, each in zip(found, places, strict=True):
        row[each] = 1
    return found


@pytest.mark.cases(1)
@pytest.mark.parametrize(("rounds", "terms", "rate"), [(2, 4, 0.3), (3, 3, 0.4), (4, 2, 0.5), (1, 6, 0.2), (5, 2, 0.9)])
def test_no_honest_draw_is_odder_than_its_p_value_says(rounds: int, terms: int, rate: float) -> None:
    """Over all that can be drawn, with the probability of each: P(p ≤ t) ≤ t for every t."""
    found = []
    for bits in product((0, 1), repeat=rounds * terms):
        sums = np.array(bits, dtype=np.uint8).reshape(rounds, terms)
        chance = rate ** sums.sum() * (1 - rate) ** (sums.size - sums.sum())
        found.append((sampling(list(sums), rate).p_value, chance))
    found.sort()
    values, sofar = np.array([value for value, _ in found]), np.cumsum([chance for _, chance in found])
    assert sofar[-1] == pytest.approx(1.0)
    assert all(sofar[values.searchsorted(value, side="right") - 1] <= value + 1e-9 for value in np.unique(values))


def shuffled(random: Generator) -> Drawn:
    """The next part of a list that is shuffled when it ends."""
    parts: list[NDArray[np.int64]] = []
    while len(parts) < ROUNDS:
        parts.extend(np.split(random.permutation(TERMS)[: 3 * SIZE], 3))
    return chosen(parts[:ROUNDS])


def by_tens(random: Generator) -> Drawn:
    return honest(random, terms=TERMS // 10).repeat(10, axis=1)


def with_replacement(random: Generator) -> Drawn:
    return np.stack([np.bincount(random.integers(TERMS, size=SIZE), minlength=TERMS) for _ in range(ROUNDS)]).astype(
        np.uint8
    )


def one_always(random: Generator) -> Drawn:
    found = honest(random)
    found[:, 7] = 1
    return found


def one_twice(random: Generator) -> Drawn:
    found = honest(random)
    found[3, int(found[3].argmax())] = 2
    return found


def again(random: Generator) -> Drawn:
    """One sample twice, far apart; all else is as it should be."""
    found = honest(random)
    found[-1] = found[0]
    return found


FAULTS: Mapping[str, Callable[[Generator], Drawn]] = {
    "twice as often": lambda random: honest(random, 2 * RATE),
    "half as often": lambda random: honest(random, RATE / 2),
    "a fifth more often": lambda random: honest(random, 1.2 * RATE, rounds=60),
    "nearly all in one sum": lambda random: np.concatenate([honest(random), honest(random, 3 * RATE, rounds=1)]),
    "twice as often and never in turn": lambda random: np.stack(
        [row * (number % 2) for number, row in enumerate(honest(random, 2 * RATE))]
    ),
    "the same sample": lambda random: honest(random, rounds=1).repeat(ROUNDS, axis=0),
    "one sample twice": again,
    "of a fixed size": lambda random: chosen(
        [random.permutation(TERMS)[:SIZE].astype(np.int64) for _ in range(ROUNDS)]
    ),
    "of another fixed size": lambda random: chosen(
        [random.permutation(TERMS)[: SIZE + 2].astype(np.int64) for _ in range(ROUNDS)]
    ),
    "nearly of a fixed size": lambda random: chosen(
        [random.permutation(TERMS)[: SIZE + number % 2].astype(np.int64) for number in range(2 * ROUNDS)]
    ),
    "parts of a shuffled list": shuffled,
    "by tens": by_tens,
    "with replacement": with_replacement,
    "one term always": one_always,
    "one term twice in one sum": one_twice,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_other_way_to_draw_is_found(fault: str) -> None:
    """At the level of an audit of ten such tests."""
    for seed in range(10):
        found = sampling(list(FAULTS[fault](np.random.default_rng(seed))), RATE)
        assert found.p_value < 1e-3, (fault, seed, found)


def test_sums_over_other_numbers_of_terms_are_tested_by_themselves() -> None:
    random = np.random.default_rng(5)
    some: list[Any] = [*honest(random), *honest(random, terms=50)]
    assert sampling(some, RATE).p_value > 0.01
    assert sampling([*some, *honest(random, 2 * RATE, terms=50)], RATE).p_value < 1e-3
    with refused(DataError, key="sums"):
        sampling([], RATE)
    with refused(DataError, key="sums"):
        sampling([np.zeros(0, dtype=np.uint8)], RATE)
