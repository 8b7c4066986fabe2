"""Messages that must say nothing, and orders: tests that are exact, and find what they are for."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from veilgraph.audit.sealing import noise_scores, orders_p_value, uniformity_p_value
from veilgraph.audit.statistics import measure
from veilgraph.protocol.evidence import Ciphertext, Order

Random = np.random.Generator
SIZE, WIDTH = 120, 4


def uniform(random: Random, dtype: str = "u8", size: int = SIZE) -> NDArray[np.unsignedinteger]:
    return random.integers(2 ** (8 * np.dtype(dtype).itemsize), size=size, dtype=dtype)


def of(*words: NDArray[np.unsignedinteger], width: int = WIDTH, bitwise: bool = False) -> list[Ciphertext]:
    return [Ciphertext(each, width, bitwise) for each in words]


@pytest.mark.parametrize("dtype", ["u4", "u8"])
def test_noise_is_hardly_ever_taken_for_anything_else(dtype: str) -> None:
    random = np.random.default_rng(0)
    found = [uniformity_p_value(of(*(uniform(random, dtype) for _ in range(4)))) for _ in range(200)]
    orders = [
        orders_p_value([Order(random.permutation(40), 40), Order(random.permutation(40)[:15], 40)]) for _ in range(200)
    ]
    for level in (0.05, 0.2):
        assert np.mean(np.array(found) <= level) <= level
        assert np.mean(np.array(orders) <= level) <= level


def test_noise_of_many_messages_is_noise_together() -> None:
    random = np.random.default_rng(4)
    assert uniformity_p_value(of(*(uniform(random, size=4096) for _ in range(40)))) > 1e-3


def small(random: Random) -> NDArray[np.uint64]:
    return random.integers(-1000, 1000, size=SIZE).view(np.uint64)


def masked_alike(random: Random) -> list[Ciphertext]:
    mask = uniform(random)
    return of(mask + small(random), mask + small(random))


def masked_alike_by_xor(random: Random) -> list[Ciphertext]:
    mask, *values = (uniform(random, size=512) for _ in range(5))
    return of(mask ^ values[0] & values[1], mask ^ values[2] & values[3], bitwise=True)


def low_bits_alike(random: Random) -> list[Ciphertext]:
    low = uniform(random) & np.uint64(255)
    return of(*(uniform(random) << np.uint64(8) | low for _ in range(2)))


def equal_in_a_few(random: Random) -> list[Ciphertext]:
    """Other values under the same low bits, of which a few are equal: where a node has no edge."""
    low, high = uniform(random) & np.uint64(0xFFFF_FFFF), np.uint64(32)
    values = [random.integers(1 << 30, size=SIZE, dtype="u8") for _ in range(2)]
    values[1][7 :: SIZE // 5] = values[0][7 :: SIZE // 5]
    return of(*((uniform(random) << high) + low + each for each in values))


def one_of_many(random: Random) -> list[Ciphertext]:
    """Embeddings in fixed point of 40 bits."""
    values = np.rint(random.normal(size=SIZE) * 2.0**40).astype(np.int64).view(np.uint64)
    return of(*(uniform(random) for _ in range(30)), values)


def a_word_in_fifty(random: Random) -> list[Ciphertext]:
    """Too few to show in any message by itself."""
    messages = [uniform(random, size=1000) for _ in range(30)]
    for each in messages:
        each[::50] = random.integers(1000, size=20, dtype="u8")
    return of(*messages)


def far_apart(random: Random) -> list[Ciphertext]:
    """One mask for the first and the last of many."""
    first, last = masked_alike(random)
    return [first, *of(*(uniform(random) for _ in range(30))), last]


LEAKS: dict[str, Callable[[Random], list[Ciphertext]]] = {
    "small numbers of both signs": lambda random: of(uniform(random), small(random)),
    "low bits left out": lambda random: of(uniform(random) << np.uint64(16)),
    "one word for all": lambda random: of(np.repeat(uniform(random)[:1], SIZE) + small(random)),
    "rows of one mask": lambda random: of(np.tile(uniform(random)[:60], 2) + small(random), width=60),
    "one mask for two": masked_alike,
    "one mask for two, by XOR": masked_alike_by_xor,
    "one mask for the first and the last": far_apart,
    "one message of many without a mask": one_of_many,
    "one word of fifty without a mask": a_word_in_fifty,
    "the same low bits": low_bits_alike,
    "low bits of a few equal values": equal_in_a_few,
}


@pytest.mark.parametrize("name", LEAKS)
def test_words_that_say_something_are_told_from_noise(name: str) -> None:
    assert uniformity_p_value(LEAKS[name](np.random.default_rng(1))) < 1e-8


def test_an_attacker_who_knows_half_of_the_words_tells_values_from_noise_and_not_noise() -> None:
    random = np.random.default_rng(2)
    values = np.rint(random.normal(size=8000) * 2.0**40).astype(np.int64).view(np.uint64)
    assert measure(*noise_scores(of(values), seed=0)).auc > 0.95
    for dtype in ("u4", "u8"):
        assert abs(measure(*noise_scores(of(uniform(random, dtype, 20_000)), seed=1)).auc - 0.5) < 0.02


def steps(random: Random) -> NDArray[np.int64]:
    """As the owner of edges has them: two runs that rise, one within the other."""
    heads, found = np.sort(random.choice(SIZE, SIZE // 3, replace=False)), np.empty(SIZE, dtype=np.int64)
    found[heads] = np.arange(len(heads))
    found[np.setdiff1d(np.arange(SIZE), heads)] = np.arange(len(heads), SIZE)
    return found


def used_twice(random: Random, before: bool) -> list[Order]:
    order, one, two = random.permutation(SIZE), steps(random), steps(random)
    return [Order(order[each] if before else each[order], SIZE) for each in (one, two)]


def a_true_one(random: Random) -> list[Order]:
    places = random.permutation(SIZE)
    return [Order(places, SIZE), Order(places, SIZE, told=False)]


def true_rows(random: Random) -> list[Order]:
    rows = random.permutation(SIZE)[:30]
    return [Order(rows, SIZE), Order(np.sort(rows), SIZE, told=False, in_order=False)]


def rows_again(random: Random) -> list[Order]:
    rows = random.permutation(SIZE)[:30]
    return [Order(rows, SIZE), Order(random.permutation(rows), SIZE)]


def other_rows(random: Random) -> list[Order]:
    places = random.permutation(SIZE)
    return [Order(places[:60], SIZE), Order(places[60:], SIZE)]


ORDERS: dict[str, Callable[[Random], list[Order]]] = {
    "steps as they are": lambda random: [Order(steps(random), SIZE)],
    "one order used before two steps": lambda random: used_twice(random, before=True),
    "one order used after two steps": lambda random: used_twice(random, before=False),
    "a true order": a_true_one,
    "rows as they are": true_rows,
    "the same rows again, in another order": rows_again,
    "never the same rows": other_rows,
    "a place twice": lambda random: [Order(np.repeat(random.permutation(SIZE), 2)[:SIZE], SIZE)],
}


@pytest.mark.parametrize("name", ORDERS)
def test_orders_that_say_something_are_told_from_random_ones(name: str) -> None:
    assert orders_p_value(ORDERS[name](np.random.default_rng(3))) < 1e-3
