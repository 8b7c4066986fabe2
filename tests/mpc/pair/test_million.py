"""A million random cases of each function of two parties, against Python's integers.

Half of the numbers are uniform. The others are where mistakes show: at powers of two, at both ends, around zero.
"""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

pytest.importorskip("numba", reason="the kernels are compiled by numba: veilgraph[nobody]")

from tests import nightly
from tests.mpc.pair.parties import both, linked
from tests.mpc.sessions import fixed_secrets
from veilgraph.mpc.pair.exchange import Exchange
from veilgraph.mpc.pair.transfers import Transfers
from veilgraph.mpc.sealed.pair import PairMachine
from veilgraph.mpc.sealed.wire import Summands

pytestmark = nightly
CASES = 1_000_000
WORD, HALF = 1 << 64, 1 << 63
TIMEOUT_S = 900
ENDS = [0, 1, -1, HALF - 1, -HALF, 1 - HALF, HALF // 2, -HALF // 2, HALF // 2 - 1, -HALF // 2 - 1]


def numbers(count, seed):
    """int64 [count]."""
    rng = np.random.default_rng(seed)
    uniform = rng.integers(-HALF, HALF, count)
    powers = (1 << rng.integers(0, 63, count)) * rng.choice([-1, 1], count) + rng.integers(-1, 2, count)
    ends, small = rng.choice(ENDS, count), rng.integers(-300, 301, count)
    return np.choose(rng.choice(8, count) // 2 * (rng.random(count) < 0.6), [uniform, powers, ends, small])


def bits(count, seed):
    return np.random.default_rng(seed).random(count) < 0.5


def whole(values):
    """As Python's integers."""
    return values.astype(object)


def wrapped(values):
    """Python's integers modulo 2^64, with a sign."""
    return (values + HALF) % WORD - HALF


def together(part, seed=0):
    """What ``part(exchange, machine, leads)`` gives both parties."""

    def one(link):
        exchange = Exchange(link, ("A", "B"), fixed_secrets(seed, link.party))
        machine = PairMachine(link, ("A", "B"), exchange, fixed_secrets(seed, link.party, "machine"))
        return part(exchange, machine, link.party == "A")

    return linked(one, TIMEOUT_S)


def sums(first, second):
    """Python's integers that two shares stand for."""
    assert first.dtype == second.dtype == torch.int64
    return wrapped(whole(first.numpy()) + whole(second.numpy()))


def given(leads, first, second):
    return torch.from_numpy(first if leads else second)


def test_comparisons():
    # numbers as the two shares, whose sums may wrap around, and numbers as the sums
    value, own, other = (numbers(CASES, seed) for seed in range(3))
    half = slice(CASES // 2)
    other[half] = wrapped(whole(value[half]) - whole(own[half])).astype(np.int64)
    first, second = together(lambda exchange, machine, leads: exchange.negative(given(leads, own, other)))
    assert np.array_equal((first ^ second).numpy(), wrapped(whole(own) + whole(other)) < 0)


def test_gates_and_functions_of_bits():
    bit, other_bit, right, other_right = (bits(CASES, seed) for seed in range(4))
    value, other_value = numbers(CASES, 4), numbers(CASES, 5)

    def part(exchange, machine, leads):
        own = given(leads, bit, other_bit)
        return (
            exchange.gate(own, given(leads, value, other_value)),
            exchange.arithmetic(own),
            exchange.wraps(own),
            exchange.wraps(own, torch.int32).to(torch.int64),
            exchange.and_(own, given(leads, right, other_right)),
        )

    first, second = together(part)
    is_one = whole(bit).astype(int) ^ whole(other_bit).astype(int)
    assert np.array_equal(sums(first[0], second[0]), wrapped(is_one * (whole(value) + whole(other_value))))
    assert np.array_equal(sums(first[1], second[1]), is_one)
    product = [int(one) * int(other) for one, other in zip(bit, other_bit, strict=True)]
    assert sums(first[2], second[2]).tolist() == product
    narrow = (whole(first[3].numpy()) + whole(second[3].numpy())) % (1 << 32)
    assert narrow.tolist() == product
    both_are = [(a ^ b) and (c ^ d) for a, b, c, d in zip(bit, other_bit, right, other_right, strict=True)]
    assert (first[4] ^ second[4]).tolist() == both_are


@pytest.mark.parametrize(("shift", "ring"), [(1, 64), (18, 64), (33, 64), (45, 32), (20, 32)])
def test_cuts_are_a_unit_off_at_most_and_right_on_average(shift, ring):
    limit = 1 << min(62, ring + shift - 1)
    value = np.clip(numbers(CASES, 1) >> 1, 1 - limit, limit - 1 - (1 << shift))
    own = numbers(CASES, 2)
    other = wrapped(whole(value) - whole(own)).astype(np.int64)

    def part(exchange, machine, leads):
        cut = machine.open(Summands(given(leads, own, other), 2 * shift), shift, ring)
        return machine.share(cut).to(torch.int64)

    first, second = together(part)
    size = 1 << ring
    found = (whole(first.numpy()) + whole(second.numpy()) + size // 2) % size - size // 2
    above = found - (whole(value) >> shift)
    assert set(above.tolist()) == {0, 1}
    fraction = (whole(value) % (1 << shift)).astype(float) / 2.0**shift
    off = above.astype(float) - fraction
    assert abs(off.mean()) < 5 * np.sqrt((fraction * (1 - fraction)).mean() / CASES) + 2.0**-40


def test_lifts_from_32_bits():
    limit = 1 << 30
    value = np.clip(numbers(CASES, 1), 1 - limit, limit - 1)
    own = numbers(CASES, 2).astype(np.int32)
    other = (value - own).astype(np.int32)
    first, second = together(
        lambda exchange, machine, leads: machine.share(machine.open(Summands(given(leads, own, other), 5), 0, 64))
    )
    assert np.array_equal(sums(first, second), whole(value))


@pytest.mark.parametrize(("terms", "width"), [(1, 64), (2, 64), (5, 64), (256, 64), (4, 55), (64, 55)])
def test_sums_of_products(terms, width):
    entries = CASES if terms <= 2 else CASES // terms
    left, right = (numbers(terms * entries, seed).reshape(terms, entries) for seed in range(2))
    if width < 64:  # sums are then below 2^width
        own = (width - terms.bit_length() + 1) // 2
        left, right = (values >> 63 - own for values in (left, right))
    first, second = together(lambda exchange, machine, leads: exchange.inner(given(leads, left, right), width))
    assert np.array_equal(sums(first, second), wrapped((whole(left) * whole(right)).sum(0)))


@pytest.mark.parametrize("sizes", [(1000, 60, 1000), (20_000, 7, 50), (50, 200, 20_000)])
@pytest.mark.parametrize("multiplies", ["left", "right", None])
def test_matrix_products(sizes, multiplies):
    n, k, m = sizes
    left, right = numbers(n * k, 1).reshape(n, k), numbers(k * m, 2).reshape(k, m)

    def part(exchange, machine, leads):
        matrices = [torch.from_numpy(left), None] if leads else [None, torch.from_numpy(right)]
        return exchange.matmul(*matrices, sizes, multiplies)

    first, second = together(part)
    assert np.array_equal(sums(first, second), wrapped(whole(left) @ whole(right)))


@pytest.mark.parametrize("ring", [32, 64])
@pytest.mark.parametrize(("nodes", "columns"), [(5000, 200), (20_000, 50)])
def test_hops(nodes, columns, ring):
    rng, edges = np.random.default_rng(1), 6 * nodes
    targets, sources, weights = (
        rng.integers(0, nodes, edges),
        rng.integers(0, nodes, edges),
        rng.integers(-9, 10, edges),
    )
    matrix = sp.coo_array((weights, (targets, sources)), shape=(nodes, nodes)).tocsr()
    rows = numbers(nodes * columns, 2).reshape(nodes, columns)
    if ring == 32:
        rows = rows.astype(np.int32)

    def part(exchange, machine, leads):
        own = (matrix, None) if leads else (None, torch.from_numpy(rows))
        return exchange.hop(*own, (nodes, nodes), columns, ring, 16)

    first, second = together(part)
    expected = np.zeros((nodes, columns), object)
    for target, source, weight in zip(targets, sources, weights.tolist(), strict=True):
        expected[target] += weight * whole(rows[source])
    found = whole(first.numpy()) + whole(second.numpy())
    assert not ((found - expected) % (1 << ring)).any()


@pytest.mark.parametrize("width", [1, 4])
def test_transfers(width):
    digits = [np.random.default_rng(seed).integers(0, 1 << width, CASES, dtype=np.uint8) for seed in range(2)]
    at_once = (1 << 18) // width

    def part(peer):
        ends, own, chosen, offered = Transfers(peer, fixed_secrets(width, peer.leads)), digits[not peer.leads], [], []
        for start in range(0, CASES, at_once):
            chosen.append(ends.choose(own[start : start + at_once], width, np.uint64))
            offered.append(ends.offer(len(chosen[-1]), width, np.uint64))
        return np.concatenate(chosen), np.concatenate(offered, axis=1)

    (first, first_offers), (second, second_offers) = both(part)
    for pads, offers, own in ((first, second_offers, digits[0]), (second, first_offers, digits[1])):
        for digit in range(1 << width):
            assert np.array_equal(pads == offers[digit], own == digit)
