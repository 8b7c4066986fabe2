"""Tests of what a run claims: rare alarms where it holds, for whatever data, and sure ones where it does not."""

import numpy as np
import pytest
from veilgraph_node_dp.audit import split_p_value

from tests.errors import refused
from veilgraph.audit.claims import low_bits_p_value, noise_level, order_p_value
from veilgraph.core.errors import DataError
from veilgraph.protocol.evidence import Noisy
from veilgraph.protocol.view import Floats

LEVEL, REPEATS = 0.05, 400
MOST = LEVEL * REPEATS + 4 * (LEVEL * (1 - LEVEL) * REPEATS) ** 0.5
N, WIDTH, CLIP, DEVIATION = 60, 4, 1.0, 2.0


def rows_of(random: np.random.Generator, length: float) -> Floats:
    rows = random.normal(size=(N, WIDTH))
    return np.asarray(length * CLIP * rows / np.linalg.norm(rows, axis=1, keepdims=True))


def noise_of(random: np.random.Generator, share: float = 1.0) -> Floats:
    return share * DEVIATION * random.normal(size=(N, WIDTH))


def level_of(releases: list[Floats]) -> float:
    return noise_level([Noisy(each, DEVIATION, CLIP) for each in releases]).p_value


@pytest.mark.cases(1)
@pytest.mark.parametrize("length", [0.0, 1.0])
def test_noise_that_is_there_is_rarely_called_small(length: float) -> None:
    random = np.random.default_rng(0)
    data = rows_of(random, length)
    alarms = sum(level_of([data + noise_of(random) for _ in range(4)]) <= LEVEL for _ in range(REPEATS))
    assert alarms <= MOST


def test_noise_that_is_missing_comes_twice_or_is_shared_is_found() -> None:
    random = np.random.default_rng(1)
    first, second, once = rows_of(random, 1.0), rows_of(random, 1.0), noise_of(random)
    assert level_of([first + noise_of(random, 0.7)]) < 1e-4
    assert level_of([first + once, second + noise_of(random), second + once]) < 1e-4
    by_pairs = np.repeat(noise_of(random)[::2], 2, axis=0)
    assert level_of([first + by_pairs]) < 1e-4
    missing = noise_level([Noisy(first, DEVIATION, CLIP)])
    assert missing.share < 0.5


def test_a_row_that_is_too_long_is_found_in_the_mean_of_releases() -> None:
    random = np.random.default_rng(2)
    data = rows_of(random, 1.0)
    data[7] *= 6
    assert level_of([data + noise_of(random)]) > LEVEL
    found = noise_level([Noisy(data + noise_of(random), DEVIATION, CLIP) for _ in range(40)])
    assert found.p_value < 1e-4
    assert 1 < found.excess < 6


def test_low_bits_of_rounded_sums_are_uniform_and_others_are_not() -> None:
    random = np.random.default_rng(3)
    bits, alarms = 32, 0
    values = random.normal(size=(2, 2000)).astype(np.float32)
    exact = (values.astype(np.float64) * 2.0**bits).astype(np.int64)
    assert low_bits_p_value([exact.sum(axis=0)], bits=bits, summands=2)[0] < 1e-9
    for _ in range(REPEATS):
        width = 2.0 ** (bits + np.floor(np.log2(np.abs(values))) - 23 + 4)
        moved = exact + np.round((random.random(values.shape) - 0.5) * width).astype(np.int64)
        alarms += low_bits_p_value([moved.sum(axis=0)], bits=bits, summands=2)[0] <= LEVEL
    assert alarms <= MOST
    again = [np.repeat(moved.sum(axis=0)[:1], 5000)]
    with refused(DataError, key="sums"):
        low_bits_p_value(again, bits=bits, summands=2)


@pytest.mark.cases(1)
@pytest.mark.parametrize(("classes", "most"), [(2, 0.05), (5, 0.001)])
def test_a_split_by_classes_is_too_even_and_one_by_numbers_too_uneven(classes: int, most: float) -> None:
    """Of two classes, a split that is even may well be chance."""
    random = np.random.default_rng(4)
    labels = random.choice(classes, size=400, p=np.arange(1, classes + 1) / np.arange(1, classes + 1).sum())
    alarms = sum(split_p_value(random.integers(3, size=400), labels, seed=n)[0] <= LEVEL for n in range(40))
    assert alarms <= 8
    even = np.empty(400, dtype=np.int64)
    for each in range(classes):
        even[labels == each] = np.arange((labels == each).sum()) % 3
    assert split_p_value(even, labels, seed=0)[0] < most
    some = np.zeros(400, dtype=np.int64)
    for each in range(classes):
        some[np.flatnonzero(labels == each)[:20]] = 1
    assert split_p_value(some, labels, seed=0)[0] < 0.01
    with refused(DataError, key="classes"):
        split_p_value(even, np.zeros(400), seed=0)


def test_an_order_by_degree_or_by_class_is_found_and_a_random_one_rarely() -> None:
    random = np.random.default_rng(5)
    degrees, labels = random.poisson(4, size=200), random.integers(4, size=200)
    alarms = sum(order_p_value(random.permutation(degrees), labels)[0] <= LEVEL for _ in range(REPEATS))
    assert alarms <= MOST
    assert order_p_value(np.zeros(len(degrees)), None)[0] == 1.0  # nothing that an order could tell
    assert order_p_value(np.sort(degrees), None)[0] < 1e-9
    assert order_p_value(degrees, np.sort(labels))[0] < 1e-9
    assert order_p_value(degrees, np.sort(labels))[1] > 0.9
    with refused(DataError, key="degrees"):
        order_p_value(degrees[:20], labels[:20])
