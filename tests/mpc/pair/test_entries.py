"""Shares of sums of products entry by entry against numpy's modulo 2^64, and messages as counted beforehand."""

from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="the kernels are compiled by numba: veilgraph[nobody]")

from tests.mpc.pair.parties import both, linked
from veilgraph.core.secrets import system_secrets
from veilgraph.link.codec import encoded_size
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.pair.bits import setup_exchanges
from veilgraph.mpc.pair.entries import MOST_TERMS, NARROW_BITS, inner, narrow_prime, plan_of, plan_scale, scale, widths
from veilgraph.mpc.pair.exchange import Exchange, ProductCosts
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


SHAPES = [(1, 1), (2, 15), (1, 8192), (3, 8193), (2, 40_960), (32, 980), (64, 100), (MOST_TERMS, 3), (7, 5000)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bits", [64, NARROW_BITS + 1, NARROW_BITS, 20])
def test_sums_of_products(shape, bits):
    of_each = 64 if bits > NARROW_BITS else (bits - shape[0].bit_length()) // 2 + 1
    left, right, sent = draw(*shape, bits=of_each, seed=1), draw(*shape, bits=of_each, seed=2), []

    def keep(message):
        size = message.tensor.numel() * message.tensor.element_size()
        sent.append((size, 0) if message.sender == "A" else (0, size))

    one, other = added(left, right, bits, lambda link: RecordedLink(link, keep=keep) if link.party == "A" else link)
    assert one.shape == other.shape == shape[1:]
    assert one.dtype == torch.int64
    apart = one + other - (left * right).sum(0)
    assert not (apart if bits > NARROW_BITS else apart % narrow_prime()).any()
    terms, entries = shape
    plan = plan_of(terms, entries, bits)
    assert sent == [*((size, 0) for size in key_messages(plan.scheme)), *plan.messages()]


def test_sums_of_the_largest_numbers():
    edges = torch.tensor([LEAST, -1 - LEAST, -1, 0, 1, -(LEAST // 2)])
    left, right = torch.cartesian_prod(edges, edges).T
    one, other = added(left[None], right[None])
    assert torch.equal(one + other, left * right)
    full = torch.full((MOST_TERMS, DEGREE), LEAST)
    one, other = added(full, full)
    assert torch.equal(one + other, (full * full).sum(0))


@pytest.mark.parametrize("calls", [1, 2])
def test_narrow_sums_are_lifted_whoever_encrypts(calls):
    most = 1 << NARROW_BITS
    sums = torch.tensor([1 - most, -1, 0, 1, most - 1]).repeat(500)
    ones = torch.ones_like(sums)

    def part(link):
        together = Exchange(link, ("A", "B"), system_secrets)
        own = sums[None] if link.party == "A" else ones[None]
        return [together.inner(own, NARROW_BITS) for _ in range(calls)][-1]

    one, other = linked(part)
    assert torch.equal(one + other, sums)
    assert len(one.unique()) == len(one)
    spread = one.to(torch.float64) / 2.0**58  # uniform, but for sums at the edge, in −3/4 and 1/4 of the prime, or more
    assert spread.std() > 0.2


@pytest.mark.parametrize(
    ("shape", "bits"), [((140, 4299), 64), ((2, 4299), 64), ((65, 1), 64), ((1, 9000), 64), ((32, 980), NARROW_BITS)]
)
def test_sums_are_cut_where_slots_would_stay_empty_and_counted_to_the_byte(shape, bits):
    left, right = (draw(*shape, bits=64 if bits == 64 else 25, seed=seed) for seed in (1, 2))
    sent = {"A": 0, "B": 0}

    def count(message):
        sent[message.sender] += encoded_size(message.tensor)

    def part(link):
        recorded = RecordedLink(link, keep=lambda message: message.sender == link.party and count(message))
        together = Exchange(recorded, ("A", "B"), system_secrets)
        return together.inner(left if link.party == "A" else right, bits)

    one, other = linked(part)
    assert torch.equal(one + other, (left * right).sum(0))
    foreseen = [*setup_exchanges(), *ProductCosts().inner(shape[0], shape[1], bits)]
    assert [sent["A"], sent["B"]] == [sum(of) for of in zip(*foreseen, strict=True)]
    assert widths(140, 4299) == [4096, 203]
    assert widths(2, 4299) == [4299]


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
        assert sum(map(sum, plans[2].messages())) / (plans[2].rows * 1000) < 49
    assert [plan.parts for plan in found[2]] == [1, 3, 7]


@pytest.mark.parametrize(("rows", "sizes"), [(None, (2, 3)), (torch.ones(2, 3), (0, 3)), (torch.ones(2, 3), (2, 0))])
def test_what_cannot_be_scaled_is_refused(rows, sizes):
    with pytest.raises(ValueError, match=r"gives one of factors and rows|give one row or more"):
        both(
            lambda peer: scale(Keys(peer, system_secrets), None, rows, sizes),
            lambda peer: peer.hear((1,), torch.int64),
        )


def test_few_entries_lie_side_by_side():
    cases = [(32, 980, 53), (2, 379_120, 64), (64, 10_031, 64), (1, 1, 64), (64, 1, 64)]
    plans = [plan_of(terms, entries, bits) for terms, entries, bits in cases]
    assert [(plan.beside, plan.rows, plan.answers) for plan in plans] == [
        (8, 4, 1),
        (1, 2, 47),
        (1, 64, 2),
        (1, 1, 1),
        (64, 1, 1),
    ]
    sizes = [sum(map(sum, plan.messages())) for plan in plans[:2]]
    assert sizes[0] / (32 * 980) < 28
    assert sizes[1] / (2 * 379_120) < 90


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (MOST_TERMS + 1, 5)])
def test_no_terms_or_too_many_are_refused(shape):
    with pytest.raises(ValueError, match="give 1 to 64 terms"):
        plan_of(shape[0], shape[1], 64)


@pytest.mark.parametrize(("bits", "primes"), [(64, 3), (NARROW_BITS, 1)])
def test_what_is_decrypted_is_uniform_whatever_the_sum(bits, primes, monkeypatch):
    decrypted, slots, receive = [], Ring(DEGREE, primes_below(58, 6, DEGREE)[3 : 3 + primes]), Owner.receive_halves

    def spy(owner, *arguments):
        decrypted.append(receive(owner, *arguments))
        return decrypted[-1]

    monkeypatch.setattr(Owner, "receive_halves", spy)
    least = LEAST if primes == 3 else -(2**23)
    full = torch.full((MOST_TERMS, DEGREE), least)
    added(full, full, bits)
    residues = slots.transform(np.stack(decrypted, axis=1))[0]
    for row, prime in zip(residues, slots.primes, strict=True):
        fractions = row.astype(float) / prime
        assert abs(fractions.mean() - 0.5) < 6 / np.sqrt(12 * DEGREE)
        assert abs(((fractions - 0.5) ** 2).mean() * 12 - 1) < 6 * np.sqrt(4 / 5 / DEGREE)
    if primes == 3:
        assert MOST_TERMS * 2.0**126 / slots.modulus <= 2.0**-41.9  # the chance that a result is wrong
    else:
        assert slots.modulus // 4 > 2**NARROW_BITS


def test_what_is_decrypted_of_scaled_rows_is_uniform_and_shares_are(monkeypatch):
    decrypted, slots, receive = [], Ring(DEGREE, primes_below(58, 6, DEGREE)[3:6]), Owner.receive_halves

    def spy(owner, *arguments):
        decrypted.append(receive(owner, *arguments))
        return decrypted[-1]

    monkeypatch.setattr(Owner, "receive_halves", spy)
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
    shares = [added(zeros, ones), added(zeros, ones)]
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
        assert not set(form.ring.primes) & set(Ring(DEGREE, primes_below(58, 6, DEGREE)[3:]).primes)
