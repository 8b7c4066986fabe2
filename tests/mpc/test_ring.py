"""Fixed point and exact products, by int64 kernels and by limbs."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.errors import refused
from veilgraph.core.errors import ConfigError, RangeOverflow
from veilgraph.mpc import ring
from veilgraph.mpc.ring import (
    FLOAT64,
    GUARD_BITS,
    INT8,
    MAX_DETECTED_BITS,
    Limbs,
    decode,
    dense_operand,
    device_of,
    encode,
    fractional_bits,
    limb_operand,
    limbs_of,
    matmul,
    static_operand,
)

ROOM = 63 - GUARD_BITS
WHAT, REMEDY = "the number", "turn the knob"
MIN, MAX = -(2**63), 2**63 - 1
EXTREMES = (MIN, MIN + 1, -1, 0, 1, MAX - 1, MAX)

relaxed = settings(max_examples=60)
elements = st.one_of(st.sampled_from(EXTREMES), st.integers(MIN, MAX), st.just(0))
sizes = st.integers(1, 7)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def integers(*values):
    return torch.tensor(values, dtype=torch.int64)


def to_ring(value):
    """Any Python integer as the int64 of its residue mod 2^64."""
    return (value + 2**63) % 2**64 - 2**63


def slow_product(left, right):
    """By Python's own integers."""
    rows, inner, columns = len(left), len(right), len(right[0]) if right else 0
    return [[to_ring(sum(left[i][k] * right[k][j] for k in range(inner))) for j in range(columns)] for i in range(rows)]


@st.composite
def products(draw, cells=elements):
    rows, inner, columns = draw(sizes), draw(sizes), draw(sizes)
    left = draw(st.lists(st.lists(cells, min_size=inner, max_size=inner), min_size=rows, max_size=rows))
    right = draw(st.lists(st.lists(cells, min_size=columns, max_size=columns), min_size=inner, max_size=inner))
    return left, right


# Fixed point


@relaxed
@given(values=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=20), bits=st.integers(0, 44))
def test_a_round_trip_errs_by_half_a_unit_at_most(values, bits):
    real = double(*values)
    back = decode(encode(real, bits, WHAT, REMEDY), bits, torch.float64, WHAT, REMEDY)
    assert (back - real).abs().max() <= 2.0 ** -(bits + 1)


@pytest.mark.parametrize("bits", [0, 12, 28, 40, 52])
@pytest.mark.parametrize("headroom", [0, 1, 3])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_legal_value_is_the_last_one_accepted(bits, headroom, sign):
    limit = 2.0 ** (ROOM - headroom - bits)
    inside = sign * math.nextafter(limit, 0.0)
    assert encode(double(inside), bits, WHAT, REMEDY, headroom).tolist() == [int(math.ldexp(inside, bits))]
    with pytest.raises(RangeOverflow) as caught:
        encode(double(0.0, sign * limit), bits, WHAT, REMEDY, headroom)
    assert str(caught.value) == (
        f"the number does not fit the ring: with {bits} fractional bits its values must be finite and stay below "
        f"2^{ROOM - headroom - bits} in magnitude; turn the knob"
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(value):
    with refused(RangeOverflow, key="the number", value=61):
        encode(double(0.0, value, 1.0), 12, WHAT, REMEDY)


def test_decoding_refuses_the_guard_bits():
    limit = 2**ROOM
    legal = integers(limit - 1, -limit)
    assert decode(legal, ROOM, torch.float64, WHAT, REMEDY).tolist() == [1.0, -1.0]
    for element in (limit, -limit - 1, MAX, MIN):
        with refused(RangeOverflow, key="the number"):
            decode(integers(0, element), 12, torch.float64, WHAT, REMEDY)


@pytest.mark.parametrize(
    ("values", "bits"),
    [
        ([0.0, 0.0], 0),
        ([-3.0, 1e6], 0),
        ([0.25, -0.5], 2),
        ([2.0**-11], 11),
        ([2.0**-12], MAX_DETECTED_BITS),
        ([math.sqrt(2)], MAX_DETECTED_BITS),
    ],
)
def test_fractional_bits_are_as_many_as_the_values_need(values, bits):
    matrix = double(*values).reshape(-1, 1)
    assert fractional_bits(matrix) == bits
    assert fractional_bits(matrix.to_sparse_csr()) == bits
    assert fractional_bits(matrix, most=1) == min(bits, 1)


# Exact products


@relaxed
@given(operands=products())
@example(operands=([[MIN, MAX]], [[MIN], [MAX]]))
@example(operands=([[MIN], [MAX]], [[MIN, MAX]]))
@example(operands=([[MAX] * 7] * 7, [[MIN] * 7] * 7))
@example(operands=([[0]], [[MAX]]))
def test_every_layout_and_kernel_is_the_slow_product(operands):
    left, right = operands
    expected = slow_product(left, right)
    matrix, operand = integers(*left), integers(*right)
    for layout in (matrix, matrix.to_sparse_csr()):
        flipped = static_operand(layout.to_dense().t().contiguous(), torch.clone)
        for times in (static_operand(layout, torch.clone).times, flipped.transposed_times):
            assert times(operand).tolist() == expected
    transposed = matrix.t().contiguous()
    for kept in (True, False):
        assert dense_operand(matrix, twice=kept).times(operand).tolist() == expected
        assert dense_operand(transposed, twice=kept).transposed_times(operand).tolist() == expected
    assert matmul(matrix, operand).tolist() == expected
    for kernel in (ring._direct_product, ring._negated_product):
        out = torch.empty(len(left), operand.shape[1], dtype=torch.int64)
        kernel(matrix, operand, out)
        assert out.tolist() == expected


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("density", [0.0, 0.0004, 0.02, 0.5, 1.0])
def test_rows_divided_over_threads_give_the_whole_product(monkeypatch, threads, density):
    monkeypatch.setattr(ring, "available_cores", lambda: threads)
    generator = torch.Generator().manual_seed(5)
    filled = torch.rand(1300, 3, generator=generator) < density
    matrix = torch.where(filled, torch.randint(MIN, MAX, (1300, 3), generator=generator), 0)
    right = torch.randint(MIN, MAX, (3, 2), generator=generator)
    tall = torch.randint(MIN, MAX, (1300, 2), generator=generator)
    for layout in (matrix, matrix.to_sparse_csr()):
        operand = static_operand(layout, torch.clone)
        assert (getattr(operand.times, "func", None) is matmul) == (density > 0.2)
        assert operand.times(right).tolist() == slow_product(matrix.tolist(), right.tolist())
        assert operand.transposed_times(tall).tolist() == slow_product(matrix.t().tolist(), tall.tolist())


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("density", [0.1, 1.0])
@pytest.mark.parametrize("twice", [True, False])
def test_a_large_product_is_that_of_torch_however_it_is_divided(monkeypatch, threads, density, twice):
    """Both layouts have several slices, the sparse one several blocks in each, and the inner dimension has pieces."""
    monkeypatch.setattr(ring, "available_cores", lambda: threads)
    generator = torch.Generator().manual_seed(5)
    filled = torch.rand(4603, 301, generator=generator) < density
    matrix = torch.where(filled, torch.randint(MIN, MAX, (4603, 301), generator=generator), 0)
    right = torch.randint(MIN, MAX, (301, 64), generator=generator)
    tall = torch.randint(MIN, MAX, (4603, 64), generator=generator)
    operand = static_operand(matrix, torch.clone, twice=twice)
    assert torch.equal(operand.times(right), matrix @ right)
    assert torch.equal(operand.transposed_times(tall), matrix.t() @ tall)


def test_a_sparse_product_of_numbers_adds_them_up_in_the_order_of_columns():
    """So results are the same in every layout: (0.1 + 0.2) + 0.3 is not 0.1 + (0.2 + 0.3)."""
    matrix = torch.zeros(1500, 40, dtype=torch.float64)
    matrix[::7, [3, 17, 31]] = double(0.1, 0.2, 0.3)
    expected = torch.zeros(1500, dtype=torch.float64)
    expected[::7] = 0.1 + 0.2 + 0.3
    assert torch.equal(static_operand(matrix, torch.clone).times(torch.ones(40, 1).double()).ravel(), expected)


def test_both_kernels_agree_on_a_large_product():
    generator = torch.Generator().manual_seed(3)
    left = torch.randint(MIN, MAX, (300, 130), generator=generator)
    right = torch.randint(MIN, MAX, (130, 17), generator=generator)
    one, other = torch.empty(300, 17, dtype=torch.int64), torch.empty(300, 17, dtype=torch.int64)
    ring._direct_product(left, right, one)
    ring._negated_product(left, right, other)
    assert torch.equal(one, other)
    assert one[:2].tolist() == slow_product(left[:2].tolist(), right.tolist())


# Masks known by their seed


CPU = torch.device("cpu")
DEVICES = [
    CPU,
    pytest.param(
        torch.device("cuda"),
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    ),
]
KINDS = [INT8, FLOAT64]
EDGES = torch.tensor(
    [MIN, MIN + 1, -1, 0, 1, MAX - 1, MAX]
    + [sign * (2**bit + step) for sign in (1, -1) for bit in (7, 8, 21, 22, 43, 44, 55, 56) for step in (-1, 0, 1)]
)

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
    product = limb_operand(left, device, limbs).times(right)
    assert product.is_contiguous()
    assert torch.equal(product, ring.matmul(left, right))


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
    operand = limb_operand(matrix, device, limbs)
    plain = dense_operand(matrix)
    for columns in (1, 5):
        right, tall = uniform(generator, shape[1], columns), uniform(generator, columns, shape[0]).t()
        for product, expected in (
            (operand.times(right), plain.times(right)),
            (operand.transposed_times(tall), plain.transposed_times(tall)),
        ):
            assert product.device == CPU
            assert torch.equal(product, expected)


@pytest.mark.parametrize(
    ("device", "toolkit", "capability", "limbs"),
    [
        ("cpu", None, (9, 0), FLOAT64),
        ("cuda", "12.8", (7, 0), FLOAT64),
        ("cuda", "12.8", (7, 5), INT8),
        ("cuda", "12.8", (9, 0), INT8),
        ("cuda", None, (9, 0), FLOAT64),
    ],
)
def test_the_limbs_suit_the_device(monkeypatch, device, toolkit, capability, limbs: Limbs):
    monkeypatch.setattr(torch.version, "cuda", toolkit)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert limbs_of(torch.device(device)) is limbs


@pytest.mark.parametrize(("available", "auto"), [(True, "cuda"), (False, "cpu")])
def test_auto_is_the_gpu_where_there_is_one(monkeypatch, available, auto):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert device_of("auto").type == auto
    assert device_of("cpu").type == "cpu"
    if available:
        assert device_of("cuda").type == "cuda"
    else:
        with refused(ConfigError, key="device", value="cuda"):
            device_of("cuda")
