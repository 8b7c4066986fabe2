"""The kernels against Python's integers and schoolbook products."""

import numpy as np
import pytest

pytest.importorskip("numba", reason="the kernels are compiled by numba: veilgraph[nobody]")

from veilgraph.core.randomness import Keystream
from veilgraph.mpc.pair import ntt
from veilgraph.mpc.pair.packing import pack, packed_words, unpack
from veilgraph.mpc.pair.polynomials import Ring, is_prime, primes_below, ring, words

RINGS = [(16, 61, 3), (64, 45, 3), (32, 48, 2), (16, 30, 1)]


@pytest.fixture
def stream():
    return Keystream(bytes(32), "tests")


def integers(ring, residues):
    """Residues [L, n] → integers modulo q."""
    q = ring.modulus
    parts = [(q // p) * pow(q // p, -1, p) for p in ring.primes]
    return [sum(int(x) * part for x, part in zip(column, parts, strict=True)) % q for column in residues.T]


def schoolbook(left, right, q):
    n = len(left)
    out = [0] * n
    for i, x in enumerate(left):
        for j, y in enumerate(right):
            out[(i + j) % n] += x * y if i + j < n else -x * y
    return [value % q for value in out]


def around_zero(value, q):
    return value - q if value > q // 2 else value


def extremes(ring, count):
    """Polynomials whose residues are the largest there are."""
    column = np.array(ring.primes, np.uint64) - np.uint64(1)
    return np.broadcast_to(column[None, :, None], (count, len(ring.primes), ring.degree)).copy()


@pytest.mark.parametrize("sizes", RINGS)
@pytest.mark.parametrize("largest", [False, True])
def test_products_are_those_of_the_schoolbook(sizes, largest, stream):
    r = ring(*sizes[:2], sizes[2])
    left, right = (extremes(r, 2), extremes(r, 1)) if largest else (r.uniform(stream, 2), r.uniform(stream, 1))
    got = r.untransform(r.multiply(r.transform(left.copy()), r.transform(right.copy())))
    for i in range(2):
        want = schoolbook(integers(r, left[i]), integers(r, right[0]), r.modulus)
        assert integers(r, got[i]) == want


@pytest.mark.parametrize("span", [1, 2, 8, 16])
def test_a_transform_of_few_coefficients_is_that_of_all(span, stream):
    r = ring(16, 61, 3)
    long = r.uniform(stream, 2)
    short = long.copy()
    short[:, :, span:] = 0
    assert np.array_equal(r.transform(long, span), r.transform(short))


@pytest.mark.parametrize("sizes", RINGS)
def test_sums_and_differences(sizes, stream):
    r = ring(*sizes)
    q = r.modulus
    for left, right in ((r.uniform(stream, 1), r.uniform(stream, 1)), (extremes(r, 1), extremes(r, 1))):
        a, b = integers(r, left[0]), integers(r, right[0])
        assert integers(r, r.add(left.copy(), right)[0]) == [(x + y) % q for x, y in zip(a, b, strict=True)]
        assert integers(r, r.subtract(left.copy(), right)[0]) == [(x - y) % q for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("sizes", RINGS)
def test_words_become_residues(sizes, stream):
    r = ring(*sizes)
    hi, lo = words(stream, 1, r.degree), words(stream, 1, r.degree)
    for edge, value in enumerate((0, 1, 2**63 - 1, 2**63, 2**64 - 1)):
        hi[0, edge] = lo[0, -edge - 1] = value
    signed = [int(x) - (int(x) >> 63 << 64) for x in hi[0]]
    assert integers(r, r.residues(hi)[0]) == [x % r.modulus for x in signed]
    for is_signed, upper in ((True, signed), (False, [int(x) for x in hi[0]])):
        want = [((x << 64) + int(y)) % r.modulus for x, y in zip(upper, lo[0], strict=True)]
        assert integers(r, r.wide_residues(hi, lo, signed=is_signed)[0]) == want


@pytest.mark.parametrize("sizes", RINGS)
@pytest.mark.parametrize("modulus", [1 << 64, 1 << 32, primes_below(57, 1, 64)[0], primes_below(20, 1, 64)[0]])
def test_scaling_rounds_to_the_next_integer(sizes, modulus, stream):
    r = ring(*sizes)
    messages = words(stream, 1, r.degree) % np.uint64(modulus) if modulus < 1 << 64 else words(stream, 1, r.degree)
    messages[0, :4] = [0, 1, modulus // 2, modulus - 1]
    before = messages.copy()
    want = [(2 * r.modulus * int(m) + modulus) // (2 * modulus) % r.modulus for m in messages[0]]
    assert integers(r, r.scaled(messages, modulus)[0]) == want
    assert np.array_equal(messages, before)


@pytest.mark.parametrize("sizes", RINGS)
@pytest.mark.parametrize("bits", [1, 20, 44, 63, 64, 65, 76, 100])
def test_switching_rounds_to_the_next_multiple(sizes, bits, stream):
    r, q = ring(*sizes), ring(*sizes).modulus
    for values in (r.uniform(stream, 1), extremes(r, 1), np.zeros_like(extremes(r, 1))):
        hi, lo = r.switched(values, bits)
        got = [int(x) << 64 | int(y) for x, y in zip(hi[0], lo[0], strict=True)]
        want = [((x << (bits + 1)) + q) // (2 * q) % (1 << bits) for x in integers(r, values[0])]
        assert got == want


@pytest.mark.parametrize("sizes", RINGS)
def test_integers_lie_around_zero(sizes, stream):
    r = ring(*sizes)
    near = np.stack(
        [r.residues(words(stream, 1, r.degree))[0], r.residues(np.full((1, r.degree), 2**64 - 1, np.uint64))[0]]
    )
    values = np.concatenate([r.uniform(stream, 1), extremes(r, 1), np.zeros_like(extremes(r, 1)), near])
    hi, lo = r.integers(values)
    for row, uppers, lowers in zip(values, hi, lo, strict=True):
        want = [around_zero(x, r.modulus) % (1 << 128) for x in integers(r, row)]
        assert [int(x) << 64 | int(y) for x, y in zip(uppers, lowers, strict=True)] == want


def test_messages_are_rounded_sums(stream):
    for bits, modulus in ((76, 1 << 64), (44, 1 << 32), (69, primes_below(57, 1, 64)[0]), (64, 1 << 32), (65, 1 << 32)):
        first, second = (words(stream, 1, 300) for _ in range(2)), (words(stream, 1, 300) for _ in range(2))
        (h0, l0), (h1, l1) = first, second
        h0[0, 0], l0[0, 0], h1[0, 0], l1[0, 0] = 2**64 - 1, 2**64 - 1, 0, 0  # rounds up to t, which is 0
        sums = [
            ((int(a) + int(c) << 64) + int(b) + int(d)) % (1 << bits)
            for a, b, c, d in zip(h0[0], l0[0], h1[0], l1[0], strict=True)
        ]
        want = [((2 * x * modulus + (1 << bits)) >> (bits + 1)) % modulus for x in sums]
        got = ntt.messages(h0, l0, h1, l1, bits, np.uint64(modulus % (1 << 64)))
        assert got[0].tolist() == want
        assert want[0] == 0


@pytest.mark.parametrize("terms", [1, 3, ntt.TERMS])
@pytest.mark.parametrize("largest", [False, True])
def test_products_are_accumulated(terms, largest, stream):
    r = ring(256, 61, 2)
    draw = (lambda count: extremes(r, count)) if largest else (lambda count: r.uniform(stream, count))
    left, right = draw(2 * terms).reshape(2, terms, 2, -1), draw(3 * terms).reshape(3, terms, 2, -1)
    sums = draw(6).reshape(3, 2, 2, -1)
    primes = np.array(r.primes, object)[:, None]
    products = np.einsum("iklp,jklp->jilp", left.astype(object), right.astype(object))
    want = (sums.astype(object) + products) % primes
    ntt.accumulate(sums, left, right, r.constants)
    assert np.array_equal(sums, want)


def test_shifts_are_products_by_powers(stream):
    r = ring(16, 61, 2)
    first, second = r.uniform(stream, 6).reshape(2, 3, 2, 16), r.uniform(stream, 6).reshape(2, 3, 2, 16)
    blocks, shifts = np.array([0, 2, 2, 1, 0], np.uint64), np.array([0, 15, 3, 7, 7], np.uint64)
    values = np.array([1, 1, -1, 5, -(2**63)])
    places = np.array([0, 5, 15, 8], np.uint64)
    got, got_first = np.zeros((2, 2, 16), np.uint64), np.zeros((2, 2, 4), np.uint64)
    factors = r.factors(values.view(np.uint64))
    ntt.add_shifted(got_first, got, (first, second), places, (blocks, shifts), factors, r.constants)
    for i in range(2):
        for of, found, at in ((second, got, range(16)), (first, got_first, places.tolist())):
            want = [0] * 16
            for block, shift, value in zip(blocks, shifts, values, strict=True):
                power = [int(place == shift) * int(value) for place in range(16)]
                product = schoolbook(integers(r, of[i, int(block)]), power, r.modulus)
                want = [(x + y) % r.modulus for x, y in zip(want, product, strict=True)]
            assert integers(r, found[i]) == [want[place] for place in at]


def test_noise_and_keys_have_their_distributions(stream):
    r = ring(4096, 48, 2)
    for drawn, largest, want in ((r.noise(stream, 4), 21, 10.5), (r.ternary(stream, 4), 1, 2 / 3)):
        values = [
            [around_zero(int(x), p) for x in row] for poly in drawn for row, p in zip(poly, r.primes, strict=True)
        ]
        assert values[::2] == values[1::2]  # the same integer modulo each prime
        numbers = np.array(values[::2]).reshape(-1)
        assert abs(numbers).max() <= largest
        assert abs((numbers**2).mean() - want) < 6 * want * np.sqrt(2 / numbers.size)
        assert abs(numbers.mean()) < 6 * np.sqrt(want / numbers.size)
    assert set(np.unique(numbers)) == {-1, 0, 1}


def test_uniform_residues_are_drawn_again_until_they_are_below_the_prime():
    r = Ring(16, (97,))  # of 128 words of 7 bits, 31 are too large
    count = 400
    drawn = r.uniform(Keystream(bytes(32), "tests"), count)
    counts = np.bincount(drawn.reshape(-1).astype(np.int64), minlength=97)
    assert counts.size == 97
    expected = count * 16 / 97
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - 96) < 6 * np.sqrt(2 * 96)


@pytest.mark.parametrize("bits", [1, 33, 45, 63, 64])
def test_packing_is_undone(bits, stream):
    values = words(stream, 101) >> np.uint64(64 - bits)
    packed = pack(values, bits)
    assert packed.size == packed_words(101, bits) == -(-101 * bits // 64)
    assert np.array_equal(unpack(packed, bits, 101), values)
    text = sum(int(word) << 64 * place for place, word in enumerate(packed))
    assert text == sum(int(value) << bits * place for place, value in enumerate(values))


def test_kernels_are_compiled_where_nothing_can_be_kept(monkeypatch):
    numba = pytest.importorskip("numba")

    def refusing(**options):
        if options.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return numba.njit(**options)

    monkeypatch.setattr("veilgraph.mpc.pair.ntt.njit", refusing)
    assert ntt.kernel(lambda number: number + 1)(4) == 5


def test_primes():
    assert [number for number in range(41, 400, 2) if is_prime(number)] == [
        number for number in range(41, 400, 2) if all(number % divisor for divisor in range(2, 20))
    ]
    assert not is_prime(3215031751)  # a strong pseudoprime to the bases 2, 3, 5 and 7
    found = primes_below(20, 3, 64)
    assert found == tuple(sorted(found, reverse=True))
    for p in found:
        assert p % 128 == 1
        assert all(p % divisor for divisor in range(2, 1024))
