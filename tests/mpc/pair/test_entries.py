"""Shares of sums of products entry by entry against numpy's modulo 2^64, and messages as counted beforehand."""

from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="the kernels are compiled by numba: veilgraph[nobody]")

from tests.mpc.pair.parties import both
from veilgraph.core.secrets import system_secrets
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.pair.entries import MOST_TERMS, inner, plan_of, plan_scale, scale
from veilgraph.mpc.pair.lattice import DEGREE, Keys, Owner, key_messages
from veilgraph.mpc.pair.polynomials import Ring, primes_below

LEAST = -(2**63)


def draw(*shape, bits=64, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), shape, dtype=np.int64))


def share(own, bits, encrypts, peer):
    return inner(Keys(peer, system_secrets), own, bits, encrypts=encrypts)


def added(left, right, bits=64, wrap=lambda link: link):
    """Shares of the sums over rows of left·right; A has the left numbers, and encrypts."""
    return both(partial(share, left, bits, True), partial(share, right, bits, False), wrap)


SHAPES = [(1, 1), (2, 15), (1, 8192), (3, 8193), (2, 40_960), (32, 980), (140, 100), (MOST_TERMS, 3), (7, 5000)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bits", [64, 32, 31, 33])
def test_sums_of_products(shape, bits):
    left, right, sent = draw(*shape, bits=bits, seed=1), draw(*shape, bits=bits, seed=2), []

    def keep(message):
        size = message.tensor.numel() * message.tensor.element_size()
        sent.append((size, 0) if message.sender == "A" else (0, size))

    one, other = added(left, right, bits, lambda link: RecordedLink(link, keep=keep) if link.party == "A" else link)
    assert one.shape == other.shape == shape[1:]
    assert one.dtype == torch.int64
    assert torch.equal(one + other, (left * right).sum(0))
    terms, entries = shape
    plan = plan_of(terms, entries, bits)
    assert sent == [*((size, 0) for size in key_messages(plan.scheme)), *plan.messages()]


@pytest.mark.parametrize("bits", [64, 32])
def test_sums_of_the_largest_numbers(bits):
    least = -(2 ** (bits - 1))
    edges = torch.tensor([least, -1 - least, -1, 0, 1, -least // 2])
    left, right = torch.cartesian_prod(edges, edges).T
    one, other = added(left[None], right[None], bits)
    assert torch.equal(one + other, left * right)


def scaled(factors, rows, wrap=lambda link: link):
    """Shares of rows each times its factor; A has the factors, and encrypts."""
    sizes = tuple(rows.shape)
    return both(
        lambda peer: scale(Keys(peer, system_secrets), factors, None, sizes),
        lambda peer: scale(Keys(peer, system_secrets), None, rows, sizes),
        wrap,
    )


SCALED = [(1, 1), (1, 8193), (5, 2), (8192, 2), (8193, 2), (2708, 23), (4100, 7), (16_000, 1), (140, 700)]


@pytest.mark.parametrize("shape", SCALED)
def test_rows_times_factors(shape):
    factors, rows, sent = draw(shape[0], seed=1), draw(*shape, seed=2), []

    def keep(message):
        size = message.tensor.numel() * message.tensor.element_size()
        sent.append((size, 0) if message.sender == "A" else (0, size))

    one, other = scaled(factors, rows, lambda link: RecordedLink(link, keep=keep) if link.party == "A" else link)
    assert one.dtype == other.dtype == torch.int64
    assert torch.equal(one + other, factors[:, None] * rows)
    plan = plan_scale(*shape)
    assert sent == [*((size, 0) for size in key_messages(plan.scheme)), *plan.messages()]


def test_rows_that_lie_across_and_the_largest_numbers():
    edges = torch.tensor([LEAST, 2**63 - 1, -1, 0, 1, 2**62])
    factors, rows = edges, edges.expand(4, 6).T
    assert not rows.is_contiguous()
    one, other = scaled(factors, rows)
    assert torch.equal(one + other, factors[:, None] * rows)
    one, other = scaled(draw(12)[::2], draw(9, 12).T[::2, ::3])
    assert torch.equal(one + other, draw(12)[::2, None] * draw(9, 12).T[::2, ::3])


def test_factors_are_encrypted_once_for_all_columns_and_few_slots_are_empty():
    found = [[plan_scale(rows, columns) for columns in (1, 100, 1000)] for rows in (140, 2708, 5732, 9000)]
    for plan in (plan for plans in found for plan in plans):
        fresh = sum(size for size, _ in plan.messages())
        assert fresh == 3 * plan.parts * 8 * plan.scheme.fresh_words(1)
    for plans in found:
        assert sum(map(sum, plans[2].messages())) / (plans[2].rows * 1000) < 62
    assert [plan.parts for plan in found[2]] == [1, 3, 7]


@pytest.mark.parametrize(("rows", "sizes"), [(None, (2, 3)), (torch.ones(2, 3), (0, 3)), (torch.ones(2, 3), (2, 0))])
def test_what_cannot_be_scaled_is_refused(rows, sizes):
    with pytest.raises(ValueError, match=r"gives one of factors and rows|give one row or more"):
        both(
            lambda peer: scale(Keys(peer, system_secrets), None, rows, sizes),
            lambda peer: peer.hear((1,), torch.int64),
        )


def test_few_entries_lie_side_by_side():
    cases = [(32, 980, 32), (2, 379_120, 64), (140, 10_031, 64), (1, 1, 64), (256, 1, 64)]
    plans = [plan_of(terms, entries, bits) for terms, entries, bits in cases]
    assert [(plan.beside, plan.rows, plan.answers) for plan in plans] == [
        (8, 4, 1),
        (1, 2, 47),
        (1, 140, 2),
        (1, 1, 1),
        (256, 1, 1),
    ]
    sizes = [sum(map(sum, plan.messages())) for plan in plans[:2]]
    assert sizes[0] / (32 * 980) < 70
    assert sizes[1] / (2 * 379_120) < 130


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (MOST_TERMS + 1, 5)])
def test_no_terms_or_too_many_are_refused(shape):
    with pytest.raises(ValueError, match="give 1 to 256 terms"):
        plan_of(shape[0], shape[1], 64)


@pytest.mark.parametrize(("bits", "primes"), [(64, 3), (32, 2)])
def test_what_is_decrypted_of_the_largest_sum_is_uniform(bits, primes, monkeypatch):
    decrypted, slots, receive = [], Ring(DEGREE, primes_below(60, 6, DEGREE)[3 : 3 + primes]), Owner.receive

    def spy(owner, *arguments):
        decrypted.append(receive(owner, *arguments))
        return decrypted[-1]

    monkeypatch.setattr(Owner, "receive", spy)
    full = torch.full((MOST_TERMS, DEGREE), -(2 ** (bits - 1)))
    one, other = added(full, full, bits)  # each sum is 2^8·2^(2·bits − 2)
    assert torch.equal(one + other, (full * full).sum(0))
    residues = slots.transform(np.stack(decrypted, axis=1))[0]
    for row, prime in zip(residues, slots.primes, strict=True):
        fractions = row.astype(float) / prime
        assert abs(fractions.mean() - 0.5) < 6 / np.sqrt(12 * DEGREE)
        assert abs(((fractions - 0.5) ** 2).mean() * 12 - 1) < 6 * np.sqrt(4 / 5 / DEGREE)
    assert 2.0 ** (8 + 2 * bits - 2) / (slots.modulus / 2) <= 2.0**-44.9  # the chance that a result is wrong


def test_what_is_decrypted_of_scaled_rows_is_uniform_and_shares_are(monkeypatch):
    decrypted, slots, receive = [], Ring(DEGREE, primes_below(60, 6, DEGREE)[3:6]), Owner.receive

    def spy(owner, *arguments):
        decrypted.append(receive(owner, *arguments))
        return decrypted[-1]

    monkeypatch.setattr(Owner, "receive", spy)
    shares = scaled(torch.full((DEGREE,), LEAST), torch.full((DEGREE, 2), LEAST))
    residues = slots.transform(np.stack(decrypted, axis=1))
    for number in range(2):
        for row, prime in zip(residues[number], slots.primes, strict=True):
            assert abs((row.astype(float) / prime).mean() - 0.5) < 6 / np.sqrt(12 * DEGREE)
    assert not (residues[0] == residues[1]).any()
    for values in shares:
        octets = values.contiguous().view(torch.uint8).reshape(-1, 8)
        for place in range(8):
            counts = torch.bincount(octets[:, place].to(torch.int64), minlength=256)
            assert (
                abs(float(((counts - len(octets) / 256) ** 2 / (len(octets) / 256)).sum()) - 255) < 6 * (2 * 255) ** 0.5
            )


def test_shares_are_uniform_and_do_not_repeat():
    zeros, ones = torch.zeros(2, 5120, dtype=torch.int64), torch.ones(2, 5120, dtype=torch.int64)
    shares = [added(zeros, ones), added(zeros, ones), added(zeros, ones, 32)]
    for one, other in shares:
        assert not (one + other).any()
        for values in (one, other):
            octets = values.view(torch.uint8).reshape(-1, 8)
            for place in range(8):
                counts = torch.bincount(octets[:, place].to(torch.int64), minlength=256)
                assert abs(float(((counts - 20.0) ** 2 / 20).sum()) - 255) < 6 * (2 * 255) ** 0.5
    assert not (shares[0][0] == shares[1][0]).any()


def test_schemes_are_within_the_standard():
    for rows in range(MOST_TERMS.bit_length()):
        form = plan_of(1 << rows, DEGREE, 64).scheme
        assert form.degree == DEGREE
        assert form.primes * form.prime_bits <= 218
        assert not set(form.ring.primes) & set(Ring(DEGREE, primes_below(60, 6, DEGREE)[3:]).primes)
