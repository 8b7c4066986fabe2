"""Two parties' functions beside CHEETAH, an implementation by others, which runs under SPU in processes of its own."""

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="the kernels are compiled by numba: veilgraph[nobody]")

from benchmarks.cheetah import BITS, NAMES, OPERATIONS, Party, by_spu
from research.secure_gnn_spu import spu_python
from tests import nightly
from tests.mpc.pair.parties import linked
from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import system_secrets
from veilgraph.mpc.pair.exchange import Exchange
from veilgraph.mpc.sealed.pair import PairMachine

CASES = 250_000
TIMES = range(4)
"""Of a million cases: CHEETAH takes 5 GiB for as many comparisons at once."""
HALF = 1 << 63
ENDS = np.array(
    [0, 1, -1, HALF - 1, -HALF, 1 - HALF, *(1 << bit for bit in range(63)), *(-1 << bit for bit in range(63))]
)


def has_no_spu():
    try:
        spu_python()
    except ConfigError:
        return True
    return False


pytestmark = [nightly, pytest.mark.skipif(has_no_spu(), reason="SPU is not installed: make spu")]


def numbers(*shape, seed):
    """Whole numbers of 64 bits, an eighth of them powers of two or ends."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < 1 / 8, rng.choice(ENDS, shape), rng.integers(-HALF, HALF, shape))


def fixed(count, bits, seed):
    """Multiples of SPU's smallest number, below 2^bits of these: powers of two among them."""
    return np.clip(numbers(count, seed=seed) >> (63 - bits), 1 - (1 << bits), (1 << bits) - 1) * 2.0**-BITS


def by_us(operation, values):
    """What our two parties' shares add up to."""

    def part(link):
        exchange = Exchange(link, NAMES, system_secrets)
        return OPERATIONS[operation](Party(link.party == "A", values, exchange, PairMachine(link, NAMES, exchange)))

    first, second = linked(part, 900)
    return (first ^ second if first.dtype == torch.bool else first + second).numpy()


EXACT: dict[str, dict[str, tuple[int, ...]]] = {
    "matmul": {"left0": (500, 60), "right1": (60, 500)},
    "inner": {"left0": (2, CASES), "right1": (2, CASES)},
    "negative": {"value": (CASES,)},
    "gate": {"value": (CASES,), "other": (CASES,)},
}


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("operation", EXACT)
def test_whole_numbers_are_the_same(operation, time):
    shapes = EXACT[operation].items()
    values = {name: numbers(*shape, seed=(time, at)) for at, (name, shape) in enumerate(shapes)}
    _, theirs = by_spu(operation, values)
    ours = by_us(operation, values)
    assert ours.dtype == theirs.dtype
    assert ours.size == CASES
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("time", TIMES)
def test_products_that_are_cut_are_a_unit_off_at_most(time):
    values = {"left": fixed(CASES, 36, seed=(time, 0)), "right": fixed(CASES, 22, seed=(time, 1))}
    exact = np.array([int(a * 2**BITS) * int(b * 2**BITS) >> BITS for a, b in zip(*values.values(), strict=True)])
    _, found = by_spu("product", values)
    ours, theirs = by_us("product", values) - exact, (found * 2**BITS).astype(np.int64) - exact
    assert set(ours) <= {0, 1}
    assert set(theirs) <= {-1, 0, 1}
