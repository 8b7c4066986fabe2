from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from veilgraph.mpc import ring
from veilgraph.mpc.ring import FLOAT64, INT8, LimbOperand

MIN, MAX = -(2**63), 2**63 - 1
CPU = torch.device("cpu")
DEVICES = [
    CPU,
    pytest.param(
        torch.device("cuda"), marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
    ),
]
KINDS = [INT8, FLOAT64]
EDGES = torch.tensor(
    [MIN, MIN + 1, -1, 0, 1, MAX - 1, MAX]
    + [sign * (2**bit + step) for sign in (1, -1) for bit in (7, 8, 21, 22, 43, 44, 55, 56) for step in (-1, 0, 1)]
)

relaxed = settings(max_examples=40)
dimensions = st.integers(0, 40)


def uniform(generator, *shape):
    """Elements of the whole ring, a third of them where carries begin and end."""
    elements = torch.randint(MIN, MAX, shape, generator=generator)
    edges = EDGES[torch.randint(len(EDGES), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 1 / 3, edges, elements)


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("limbs", KINDS, ids=["int8", "float64"])
@relaxed
@given(rows=dimensions, inner=dimensions, columns=dimensions, piece=st.sampled_from([16, 32, None]), seed=st.integers())
def test_limbs_give_the_product_of_the_ring(device, limbs, rows, inner, columns, piece, seed):
    generator = torch.Generator().manual_seed(seed % 2**32)
    left, right = uniform(generator, rows, inner), uniform(generator, inner, columns)
    limbs = limbs if piece is None else replace(limbs, inner=piece)
    product = LimbOperand(left, device, limbs).times(right)
    assert product.is_contiguous()
    assert torch.equal(product, ring.matmul(left, right))


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize(("limbs", "inner"), [(INT8, INT8.inner + 5), (FLOAT64, 2 * FLOAT64.inner + 1)])
@pytest.mark.parametrize("fill", ["lowest limbs", "high limbs", "uniform"])
def test_a_long_inner_dimension_stays_exact(device, limbs, inner, fill):
    generator = torch.Generator().manual_seed(7)
    if fill == "uniform":
        left, right = uniform(generator, 3, inner), uniform(generator, inner, 2)
    else:
        left, right = (of_large_limbs(generator, limbs, shape, fill) for shape in ((3, inner), (inner, 2)))
    product = LimbOperand(left, device, limbs).times(right)
    assert torch.equal(product, ring.matmul(left, right))


def of_large_limbs(generator, limbs, shape, fill):
    """Elements whose limbs are all −2^(b−1), or all random in the highest eighth, so that their products add up."""
    half = 1 << (limbs.bits - 1)
    elements = torch.zeros(shape, dtype=torch.int64)
    for place in range(limbs.count):
        lowest = torch.full(shape, -half)
        digits = lowest if fill == "lowest limbs" else torch.randint(half * 3 // 4, half, shape, generator=generator)
        elements += digits << (limbs.bits * place)
    return elements


@pytest.mark.parametrize("limbs", KINDS, ids=["int8", "float64"])
def test_limbs_are_balanced_digits_of_the_element(limbs):
    elements = torch.cat([EDGES, torch.randint(MIN, MAX, (200,), generator=torch.Generator().manual_seed(1))])
    digits = [digit.tolist() for digit in ring._digits(elements[None], limbs)]
    half = 1 << (limbs.bits - 1)
    for element, *own in zip(elements.tolist(), *(digit[0] for digit in digits), strict=True):
        assert len(own) == limbs.count
        assert all(-half <= digit < half for digit in own)
        assert (sum(digit << (limbs.bits * place) for place, digit in enumerate(own)) - element) % 2**64 == 0


def test_no_sum_of_limb_products_can_leave_the_exact_integers():
    for limbs, exact in ((INT8, 2**31 - 1), (FLOAT64, 2**53)):
        top = 64 - limbs.bits * (limbs.count - 1)
        size = [1 << (limbs.bits - 1)] * (limbs.count - 1) + [1 << (top - 1)]
        for place in range(limbs.count):
            assert limbs.inner * sum(size[i] * size[place - i] for i in range(place + 1)) <= exact
        assert limbs.inner % 16 == 0


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("limbs", [*KINDS, None], ids=["int8", "float64", "default"])
@pytest.mark.parametrize("shape", [(1, 1), (37, 21), (21, 37), (4, 0)])
def test_a_static_operand_of_limbs_is_the_dense_one(device, limbs, shape):
    generator = torch.Generator().manual_seed(3)
    matrix = uniform(generator, *shape)
    operand: ring.StaticOperand = LimbOperand(matrix, device, limbs)
    plain = ring.DenseOperand(matrix)
    for columns in (1, 5):
        right, tall = uniform(generator, shape[1], columns), uniform(generator, columns, shape[0]).t()
        for product, expected in (
            (operand.times(right), plain.times(right)),
            (operand.transposed_times(tall), plain.transposed_times(tall)),
        ):
            assert product.device == CPU
            assert torch.equal(product, expected)
