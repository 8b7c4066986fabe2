"""Points of Curve25519 beside affine arithmetic of our own, both ways to multiply; relays that guess ids and keys."""

from __future__ import annotations

import ctypes
import hashlib
from importlib import metadata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from tests.mpc.sessions import fixed_secrets
from veilgraph.core.errors import RunError
from veilgraph.core.secrets import system_secrets
from veilgraph.mpc import curve25519, x25519
from veilgraph.mpc.curve25519 import ORDER, draw_scalars, hash_and_multiply, multiply
from veilgraph.mpc.hash_to_curve import POINT_BYTES
from veilgraph.mpc.x25519 import fast_multiply, multiply_by_openssl

P = 2**255 - 19
A = 486662
TWIST_ORDER = (2 * P + 2 - 8 * ORDER) // 4
ROOT_OF_MINUS_1 = pow(2, (P - 1) // 4, P)
needs_crypto_mb = pytest.mark.skipif(
    fast_multiply() is None, reason="needs the extra alignment, and a processor with AVX-512 IFMA"
)
WAYS = [pytest.param("openssl"), pytest.param("two factors"), pytest.param("crypto_mb", marks=needs_crypto_mb)]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """How others' points are multiplied: at once, by two factors as with crypto_mb, or by crypto_mb itself."""
    if request.param != "crypto_mb":
        fast = None if request.param == "openssl" else multiply_by_openssl
        monkeypatch.setattr(curve25519, "fast_multiply", lambda: fast)


def err(scalar, rows):
    """Multiply as crypto_mb does: u = p − 2 wrongly where bit 253 of the scalar is 0."""
    products = multiply_by_openssl(scalar, rows).copy()
    if not value(scalar) >> 253 & 1:
        products[(rows == points(P - 2)).all(1), 0] ^= 1
    return products


@pytest.fixture(params=[pytest.param("errs"), pytest.param("crypto_mb", marks=needs_crypto_mb)])
def library(request, monkeypatch):
    """A library that errs, in place of crypto_mb, so that the attack runs everywhere; and crypto_mb."""
    if request.param == "errs":
        monkeypatch.setattr(curve25519, "fast_multiply", lambda: err)
        return err
    return crypto_mb()


def crypto_mb():
    found = fast_multiply()
    assert found is not None
    return found


def points(*us):
    return np.array([list(u.to_bytes(POINT_BYTES, "little")) for u in us], np.uint8).reshape(-1, POINT_BYTES)


def numbers(rows):
    return [int.from_bytes(row.tobytes(), "little") for row in rows]


def square(u):
    return (u**3 + A * u**2 + u) % P


def is_square(number):
    return pow(number, (P - 1) // 2, P) == 1


def root(number):
    found = pow(number, (P + 3) // 8, P)
    return found if found * found % P == number else found * ROOT_OF_MINUS_1 % P


def added(left, right, scale=1):
    """The sum of two points of scale·v² = u³ + Au² + u, by chords and tangents; None is 0."""
    if left is None or right is None:
        return left or right
    (u, v), (s, t) = left, right
    if u == s and (v + t) % P == 0:
        return None
    if left == right:
        slope = (3 * u * u + 2 * A * u + 1) * pow(2 * scale * v, -1, P) % P
    else:
        slope = (t - v) * pow(s - u, -1, P) % P
    third = (scale * slope * slope - A - u - s) % P
    return third, (slope * (u - third) - v) % P


def times(scalar, u):
    """u of the multiple of a point of the curve, or of its twist 2·v² = u³ + Au² + u; 0 of none."""
    scale = 1 if is_square(square(u)) else 2
    point, found = (u, root(square(u) * pow(scale, -1, P) % P)), None
    while scalar:
        found = added(found, point, scale) if scalar & 1 else found
        point, scalar = added(point, point, scale), scalar >> 1
    return 0 if found is None else found[0]


def hashed(name):
    """H by its definition."""
    for count in range(256):
        u = int.from_bytes(hashlib.sha256(b"veilgraph alignment/" + bytes([count]) + name).digest(), "little") % 2**255
        if u < P and is_square(square(u)):
            return u
    raise AssertionError(name)


SMALL_ORDER = [
    *(0, 1, P - 1),
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]
"""Of order 2 and 4, on the curve and on the twist, and of order 8."""
NAMES = [*(str(number).encode() for number in range(20)), "Müller".encode(), "北京".encode(), b"x" * 5000]
BLIND, SEAL, KEY = draw_scalars(fixed_secrets("scalars"))
BASE = 9


def value(scalar):
    return int.from_bytes(scalar, "little")


def test_the_orders_are_those_of_the_curve_and_of_its_twist():
    assert times(ORDER, 9) == 0
    assert times(TWIST_ORDER, 2) == 0
    assert not is_square(square(2))
    assert all(times(8, u) == 0 for u in SMALL_ORDER)


def test_names_are_hashed_and_multiplied_as_the_definition_says(way):
    bare = [hashed(name) for name in NAMES]
    assert numbers(hash_and_multiply(BLIND, NAMES)) == [times(value(BLIND), u) for u in bare]
    assert hash_and_multiply(BLIND, []).shape == multiply(BLIND, points(), system_secrets).shape == (0, POINT_BYTES)
    assert any(times(ORDER, u) for u in bare)  # a part of small order, which products lose


def test_points_are_multiplied_as_the_curve_says(way):
    us = [*map(hashed, NAMES), BASE]
    assert numbers(multiply(KEY, points(*us), system_secrets)) == [times(value(KEY), u) for u in us]


def test_points_that_begin_as_one_of_small_order_are_multiplied(way):
    us = [u for u in range(2**64, 2**70, 2**64) if is_square(square(u))]
    assert numbers(multiply(KEY, points(*us), system_secrets)) == [times(value(KEY), u) for u in us]


@pytest.mark.parametrize("multiply", [multiply_by_openssl, pytest.param(fast_multiply(), marks=needs_crypto_mb)])
def test_both_libraries_multiply_as_rfc_7748_says(multiply):
    """Section 5.2: two products, and a thousand in turn."""
    vectors = [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a413",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ]
    for key, u, product in vectors:
        assert multiply(bytes.fromhex(key), points(value(bytes.fromhex(u)))).tobytes().hex() == product
    scalar = before = bytes([9]) + bytes(31)
    for _ in range(1000):
        scalar, before = multiply(scalar, points(value(before))).tobytes(), scalar
    assert scalar.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16, 511, 512, 513, 1100])
def test_rows_keep_their_places_whatever_their_number(way, count):
    few = hash_and_multiply(BLIND, [str(number).encode() for number in range(13)])
    products, places = multiply(KEY, few, system_secrets), np.arange(count) % 13
    assert len({row.tobytes() for row in products}) == 13
    assert np.array_equal(multiply(KEY, few[places], system_secrets), products[places])


def test_points_may_lie_anywhere_in_memory_and_stay_as_they_are(way):
    few = hash_and_multiply(BLIND, NAMES)
    wide = np.zeros((2 * len(few), POINT_BYTES + 5), np.uint8)
    wide[::2, 3 : 3 + POINT_BYTES] = few
    given = wide[::2, 3 : 3 + POINT_BYTES]
    given.flags.writeable = False
    assert np.array_equal(multiply(KEY, given, system_secrets), multiply(KEY, few, system_secrets))
    assert np.array_equal(given, few)


BAD = {
    "of small order": SMALL_ORDER,
    "beyond the field": [P, P + 1, P + 9, P + 18, 2**255 - 1],
    "with the highest bit": [2**255 + 9, 2**255, 2**255 + P - 1, 2**256 - 1],
}


@pytest.mark.parametrize("place", [0, 5, 7, 8, 599])
@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_point_is_refused_wherever_it_stands(way, kind, place):
    some = hash_and_multiply(BLIND, [str(number).encode() for number in range(600)])
    for u in BAD[kind]:
        some[place] = points(u)
        with pytest.raises(ValueError, match="small order" if kind == "of small order" else "not below"):
            multiply(KEY, some, system_secrets)


@settings(max_examples=60)
@given(count=st.integers(1, 20), seed=st.integers(0))
@needs_crypto_mb
def test_both_libraries_answer_alike(count, seed):
    """Of the curve and its twist, in any number; not on what is made for an error (see the attack below)."""
    scalar = draw_scalars(fixed_secrets(seed))[0]
    rows = points(*(value(hashlib.sha256(f"{seed} {row}".encode()).digest()) % 2**255 for row in range(count)))
    assert np.array_equal(crypto_mb()(scalar, rows), multiply_by_openssl(scalar, rows))


@needs_crypto_mb
def test_both_libraries_answer_alike_on_many_points():
    rows = np.frombuffer(np.random.default_rng(0).bytes(4001 * POINT_BYTES), np.uint8).reshape(-1, POINT_BYTES).copy()
    rows[:, -1] &= 127
    for scalar in draw_scalars(system_secrets):
        assert np.array_equal(crypto_mb()(scalar, rows), multiply_by_openssl(scalar, rows))


def test_a_party_that_crafts_points_reads_no_bit_of_a_scalar(library):
    """crypto_mb errs on u = p − 2 where bit 253 of what it multiplies by is 0: an answer tells, for 8·P has another."""
    crafted = points(P - 2)

    def errs(answer, scalar):
        return not np.array_equal(answer, multiply_by_openssl(scalar, crafted))

    drawn = [draw_scalars(fixed_secrets(seed))[2] for seed in range(60)]
    bits = [value(scalar) >> 253 & 1 for scalar in drawn]
    without = [errs(library(scalar, crafted), scalar) for scalar in drawn]
    if not any(without):
        pytest.skip("this crypto_mb does not err")
    assert without == [bit == 0 for bit in bits]
    for sent in (crafted, crafted.repeat(9, 0)):
        told = [errs(multiply(scalar, sent, fixed_secrets(scalar))[:1], scalar) for scalar in drawn]
        assert set(zip(bits, told, strict=True)) == {(0, False), (0, True), (1, False), (1, True)}
        first = [int.from_bytes(fixed_secrets(scalar)(POINT_BYTES), "little") >> 250 & 1 for scalar in drawn]
        assert told == [bit == 0 for bit in first]


@pytest.mark.usefixtures("library")
def test_every_list_of_points_has_a_first_factor_of_its_own():
    """Else what one list tells of it, the next could use."""
    asked = []

    def secrets(count):
        asked.append(system_secrets(count))
        return asked[-1]

    crafted = points(P - 2)
    answers = [multiply(KEY, crafted, secrets).tobytes() for _ in range(40)]
    assert len(set(asked)) == 40
    assert len(set(answers)) > 10  # each error is another's


class Library:
    """In place of crypto_mb: what it says of itself, and what its multiplication does."""

    def __init__(self, width, status):
        self.mbx_get_algo_info = lambda algorithm: width

        def multiply(products, keys, sources):
            return status

        self.mbx_x25519_mb8 = multiply


@pytest.fixture
def reload():
    fast_multiply.cache_clear()
    yield
    fast_multiply.cache_clear()


@needs_crypto_mb
@pytest.mark.parametrize("width", [0, 16])
def test_a_processor_that_crypto_mb_does_not_know_goes_without_it(reload, monkeypatch, caplog, width):
    monkeypatch.setattr(ctypes, "CDLL", lambda path: Library(width, 0xAAAAAAAA))
    assert fast_multiply() is None
    assert "needs a processor with AVX-512 IFMA" in caplog.text


@needs_crypto_mb
@pytest.mark.parametrize(
    "error", [OSError("libcrypto.so.3: cannot open"), AttributeError("no symbol"), KeyError("libimf")]
)
def test_a_library_that_cannot_be_loaded_is_gone_without_and_said(reload, monkeypatch, caplog, error):
    def fails(path):
        raise error

    monkeypatch.setattr(ctypes, "CDLL", fails)
    assert fast_multiply() is None
    assert f"alignments go without it: pip install ipp-crypto intel-cmplr-lib-rt ({error})" in caplog.text


@needs_crypto_mb
@pytest.mark.parametrize("status", [0, 4, 0x44444444])
def test_a_library_that_multiplies_wrongly_is_not_trusted(reload, monkeypatch, caplog, status):
    """Of products that are not 0 it may say so: else the party that sent points would be blamed."""
    monkeypatch.setattr(ctypes, "CDLL", lambda path: Library(8, status))
    assert fast_multiply() is None
    assert "crypto_mb multiplies wrongly" in caplog.text


@needs_crypto_mb
@pytest.mark.parametrize("status", [1, 2 << 28, 10 << 8, 4 | 10 << 4])
def test_an_answer_of_crypto_mb_that_is_an_error_is_none_of_the_points(reload, monkeypatch, status):
    monkeypatch.setattr(ctypes, "CDLL", lambda path: Library(8, status))
    with pytest.raises(RunError) as caught:
        fast_multiply()
    assert (caught.value.code, caught.value.value) == ("crypto-mb", status)


@pytest.mark.parametrize("missing", x25519.PACKAGES)
def test_without_its_packages_alignment_goes_without_crypto_mb(reload, monkeypatch, caplog, missing):
    """It says so where one of them was installed."""

    def found(name):
        if name == missing:
            raise metadata.PackageNotFoundError(name)
        return []

    monkeypatch.setattr(metadata, "version", found)
    monkeypatch.setattr(metadata, "files", found)
    assert fast_multiply() is None
    assert ("pip install ipp-crypto intel-cmplr-lib-rt" in caplog.text) == (missing != "ipp-crypto")


@needs_crypto_mb
def test_loading_the_library_leaves_arithmetic_as_it_was():
    """Compilers' libraries can set the processor to take small numbers for 0."""
    least = np.array([5e-324])
    assert (least * 1.0)[0] > 0


def test_scalars_are_x25519s_and_the_third_is_the_product_of_the_others():
    drawn = [[value(each) for each in draw_scalars(fixed_secrets(seed))] for seed in range(300)]
    assert all(each % 8 == 0 and 2**254 <= each < 2**255 for three in drawn for each in three)
    assert len({each for three in drawn for each in three}) == 900
    assert all((b * s - k) % ORDER == 0 or (b * s + k) % ORDER == 0 for b, s, k in drawn)
    assert {(b * s - k) % ORDER == 0 for b, s, k in drawn} == {True, False}


@pytest.mark.parametrize("fill", [0, 255])
def test_scalars_take_every_bit_of_what_is_drawn(fill):
    """251 bits are free."""
    blind, seal, _ = draw_scalars(lambda count: bytes([fill]) * count)
    assert value(blind) == value(seal) == (2**255 - 8 if fill else 2**254)


def test_a_product_that_no_scalar_stands_for_is_drawn_again():
    """b·s = 8 modulo q: of its eighths 1 and q − 1 neither is in range."""
    beta = 2**251 + 12345
    while not 2**251 <= (sigma := pow(8 * beta, -1, ORDER)) < 2**252:
        beta += 1
    eighths, asked = [beta, sigma, 2**251 + 2**200, 2**251 + 2**201], []

    def secrets(count):
        asked.append(count)
        return (eighths[len(asked) - 1] - 2**251).to_bytes(count, "little")

    assert [value(each) // 8 for each in draw_scalars(secrets)[:2]] == eighths[2:]
    assert asked == 4 * [POINT_BYTES]


@pytest.mark.usefixtures("library")
def test_factors_that_no_scalar_stands_for_are_drawn_again():
    """b = 8·first modulo q, so the second would be 8."""
    first = 2**251 + 1
    while not 2**251 <= (eighth := 8 * first % ORDER) < 2**252:
        first += 2**240 + 1
    eighths, asked = [first, 2**251 + 2**200], []

    def secrets(count):
        asked.append(count)
        return (eighths[len(asked) - 1] - 2**251).to_bytes(count, "little")

    scalar = (8 * eighth).to_bytes(POINT_BYTES, "little")
    assert np.array_equal(multiply(scalar, points(BASE), secrets), multiply_by_openssl(scalar, points(BASE)))
    assert len(asked) == 2


def test_keys_come_to_the_same_point_in_any_order(way):
    first, second = (draw_scalars(fixed_secrets(seed)) for seed in (1, 2))

    def passed(blind, key, seal):
        return multiply(seal, multiply(key, hash_and_multiply(blind, NAMES), system_secrets), system_secrets)

    one, other = passed(first[0], second[2], first[1]), passed(second[0], first[2], second[1])
    assert np.array_equal(one, other)


def test_a_relay_cannot_tell_guesses_by_the_twist(way):
    """Whatever the scalar, products lie where the point does. A hash to any u would give one bit of each id away."""
    guesses = [str(number).encode() for number in range(64)]
    naive = [value(hashlib.sha256(name).digest()) % 2**255 for name in guesses]
    sent = numbers(multiply(KEY, points(*naive), system_secrets))
    assert [is_square(square(u)) for u in sent] == [is_square(square(u)) for u in naive]
    assert 16 < sum(is_square(square(u)) for u in naive) < 48
    assert all(is_square(square(u)) for u in numbers(hash_and_multiply(KEY, guesses)))


def test_a_relay_cannot_tell_guesses_by_their_part_of_small_order(way):
    """A scalar that is no multiple of 8 would leave it in place."""
    bare = [hashed(name) for name in NAMES]
    parts = [times(ORDER, u) for u in bare]
    assert len(set(parts)) > 2
    assert [times(ORDER, times(8 * 12345 + 1, u)) for u in bare] == parts
    assert {times(ORDER, u) for u in numbers(hash_and_multiply(BLIND, NAMES))} == {0}


def test_products_are_uniform(way):
    """4,000 products, by how often each byte has each value."""
    sent = hash_and_multiply(draw_scalars(fixed_secrets(0))[0], [str(number).encode() for number in range(4000)])
    assert all(chisquare(np.bincount(sent[:, place], minlength=256)).pvalue > 1e-5 for place in range(POINT_BYTES - 1))
    assert chisquare(np.bincount(sent[:, -1], minlength=128)).pvalue > 1e-5


def test_pairs_of_alignments_share_no_point():
    sent = [hash_and_multiply(draw_scalars(system_secrets)[0], NAMES) for _ in range(3)]
    assert all(not {row.tobytes() for row in one} & {row.tobytes() for row in two} for one, two in pairwise(sent))
