"""Security of the parameters, noise at its edge, and what answers show to the key's owner."""

from dataclasses import replace
from functools import partial
from math import e, exp, log2, pi, prod, sqrt

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="the kernels are compiled by numba: veilgraph[nobody]")

from tests.errors import refused
from tests.mpc.pair.parties import both
from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.randomness import Keystream
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.pair.entries import plan_of, plan_scale
from veilgraph.mpc.pair.lattice import (
    DEGREE,
    FLOOD_BITS,
    MISS_BITS,
    MODULUS_BITS,
    TAIL,
    Owner,
    Responder,
    scheme,
)
from veilgraph.mpc.pair.packing import pack, packed_words, unpack
from veilgraph.mpc.pair.polynomials import words
from veilgraph.mpc.pair.products import plan_hop, plan_matmul

WORD = 1 << 64
PLACES = np.arange(DEGREE, dtype=np.uint64)
SCHEMES = [
    plan_matmul((140, 2708, 716), 17)[1].scheme,
    plan_matmul((140, 1434, 32), 64)[1].scheme,
    scheme(1 << 32, 2.0**16, 4.0**16),
    plan_hop((2708, 2708, 7), 64).scheme,
]
HALVED = [plan_hop((2708, 2708, 140), 32).scheme, plan_hop((2708, 2708, 1120), 32, 14).scheme]
HALVES = [plan_scale(2708, 1000).scheme, plan_of(4, 8192, 53).scheme, plan_of(64, 8192, 64).scheme]


class Secrets:
    """A fixed source of secret bytes."""

    def __init__(self, seed):
        self.stream = Keystream(bytes([seed]) * 32, "tests")

    def __call__(self, length):
        return bytes(self.stream.take(length).numpy())


def ternary_key(form, seed):
    """The key that an owner with the fixed source draws: coefficients."""
    source = Secrets(seed)
    source(32)
    return form.ring.ternary(Keystream(source(32), "veilgraph/pair/lattice/owner"), 1)


def security(degree, log_q):
    """log2 of the primal attack's steps on ring-LWE with a ternary key, as one sample of LWE a coefficient.

    Kannan's embedding with the key scaled to the errors' width, the smallest BKZ block that finds it, and sieving in
    2^(0.292·block + 16.4) for each of 8·dimension calls, the model of the standard's table.
    """
    sigma = sqrt(10.5)
    scale = sigma / sqrt(2 / 3)
    for block in range(60, 2000, 2):
        root = ((pi * block) ** (1 / block) * block / (2 * pi * e)) ** (1 / (2 * (block - 1)))
        for samples in range(degree // 4, 2 * degree + 1, degree // 64):
            dim = samples + degree + 1
            volume = (samples * log_q + degree * log2(scale)) / dim
            if log2(sigma * sqrt(block)) <= (2 * block - dim - 1) * log2(root) + volume:
                return 0.292 * block + 16.4 + log2(8 * dim)
    raise AssertionError(degree)


def test_moduli_are_those_of_the_standard():
    # Homomorphic Encryption Standard (2018), table 1: ternary keys, 128 bits, classical
    assert (DEGREE, MODULUS_BITS[DEGREE]) == (8192, 218)
    assert 127 <= security(DEGREE, MODULUS_BITS[DEGREE]) <= 130
    assert security(DEGREE, 1.1 * MODULUS_BITS[DEGREE]) < 120
    assert 127 <= security(4096, MODULUS_BITS[4096]) <= 131
    assert MODULUS_BITS[4096] == 109


@pytest.mark.parametrize("form", SCHEMES)
def test_schemes_are_secure_and_large_enough(form):
    assert form.prime_bits * form.primes <= MODULUS_BITS[DEGREE]
    assert form.ring.modulus.bit_length() <= MODULUS_BITS[DEGREE]
    assert security(form.degree, log2(form.ring.modulus)) >= 128
    rounding = (TAIL * sqrt(form.degree / 4) + 1) * form.modulus / 2**form.answer_bits
    assert rounding < 2 / 9
    flood = 2.0**form.flood_bits * form.modulus / form.ring.modulus
    assert flood * (1 + 2.0**-FLOOD_BITS) + rounding < 1 / 2
    assert prod(form.small_ring.primes) > 2 ** (form.answer_bits + 1) * form.degree


@pytest.mark.parametrize("form", HALVES)
def test_schemes_of_halves_are_secure_and_large_enough(form):
    rows = {HALVES[0]: 1, HALVES[1]: 4, HALVES[2]: 64}[form]
    assert form.flood_bits == 0
    assert form.ring.modulus.bit_length() <= MODULUS_BITS[DEGREE]
    assert security(form.degree, log2(form.ring.modulus)) >= 128
    count, largest = rows * form.degree, form.modulus / 2
    noise = TAIL * sqrt(10.5) * (sqrt(count * largest**2) + 2 * sqrt(form.degree)) + count * largest / 2
    rounding = sqrt(form.degree * 2 / 3 / 12) * sqrt(2 / pi)  # E|Σ of N rounding errors, two thirds of which count|
    assert noise * form.modulus / form.ring.modulus <= 2.0 ** -(MISS_BITS - 0.01)
    assert rounding * form.modulus / 2.0**form.answer_bits <= 2.0**-MISS_BITS
    assert prod(form.small_ring.primes) > 2 ** (form.answer_bits + 1) * form.degree
    assert 2 ** (form.answer_bits + 1) * form.degree < 2**127  # which ``integers`` hold


@pytest.mark.parametrize("form", HALVED)
def test_halves_of_products_are_secure(form):
    assert (form.miss_bits, form.degree) == (MISS_BITS, DEGREE // 2)
    assert form.ring.modulus.bit_length() <= MODULUS_BITS[form.degree]
    assert security(form.degree, log2(form.ring.modulus)) >= 128
    rounding = sqrt(form.degree * 2 / 3 / 12) * sqrt(2 / pi)
    assert rounding * form.modulus / 2.0**form.answer_bits <= 2.0**-MISS_BITS
    assert prod(form.small_ring.primes) > 2 ** (form.answer_bits + 1) * form.degree


PRODUCTS = [(1, 1, 8192), (1, 2000, 3000), (140, 2708, 716), (9, 1, 9000), (3, 40_000, 2)]


@pytest.mark.parametrize("sizes", PRODUCTS)
@pytest.mark.parametrize("bits", [64, 17, None])
def test_plans_have_room_for_the_noise_of_all_columns_of_a_block(sizes, bits):
    # each coefficient of an error meets each weight of the polynomials that one answer sums up
    n, k, m = sizes
    if bits is None:
        plan, weight, squares = plan_hop((m, k, n), 32), 2.0**16, 4.0**16
    else:
        left, plan = plan_matmul(sizes, bits)
        largest = min(63, bits if left else 63)
        weight, squares = k * 2.0**largest, k * 4.0**largest
    (a, b, c), form = plan.block, plan.scheme
    assert a * b * c <= form.degree
    assert form.prime_bits * form.primes <= MODULUS_BITS[form.degree]
    noise = TAIL * sqrt(10.5) * (sqrt(c * squares) + 2 * sqrt(form.degree)) + c * weight / 2
    if form.miss_bits:
        assert noise * form.modulus / form.ring.modulus <= 2.0 ** -(MISS_BITS - 0.01)
    else:
        assert form.flood_bits >= FLOOD_BITS + log2(noise) - 1


def test_a_product_that_needs_a_larger_modulus_is_refused():
    with refused(ConfigError, code="modulus"):
        scheme(WORD, 2.0**120, 2.0**240)
    for bits in range(1, 110):
        try:
            form = scheme(1 << 32, 2.0**bits, 2.0**bits)
        except ConfigError:
            assert bits > 100
        else:
            assert form.prime_bits * form.primes <= MODULUS_BITS[DEGREE]


EDGES = [(WORD, 63, 3, 1), (WORD, 17, 3, 1), (1 << 32, 8, 4, 256), (WORD, 8, 4, 256)]


@pytest.mark.parametrize(("modulus", "bits", "count", "terms"), EDGES)
def test_noise_stays_below_its_bound_with_the_largest_inputs(modulus, bits, count, terms):
    # weights: ``terms`` coefficients of 2^bits in each of ``count`` polynomials; nothing is rounded or flooded
    form = scheme(modulus, count * terms * 2.0**bits, count * terms * 4.0**bits)
    r, q = form.ring, form.ring.modulus
    owner, stream = Owner(form, Secrets(1)), Keystream(bytes(32), "messages")
    messages = words(stream, count, form.degree)
    messages[0] = modulus - 1
    messages &= np.uint64(modulus - 1)
    first = owner.encrypt(messages)
    seed = Secrets(1)(32)
    second = r.uniform(Keystream(seed, "veilgraph/pair/lattice/public"), count)
    weights = np.zeros((count, form.degree), np.uint64)
    weights[:, :terms] = 1 << bits
    plain = r.transform(r.residues(weights))
    key = r.transform(ternary_key(form, 1))
    phase = r.add(r.multiply(first, plain), r.multiply(r.multiply(second, plain), key))
    wanted = r.multiply(r.transform(r.scaled(messages, modulus)), plain)
    total = np.zeros_like(phase[:1])
    for part, message in zip(phase, wanted, strict=True):
        r.add(total, r.subtract(part[None].copy(), message[None]))
    hi, lo = r.integers(r.untransform(total))
    noise = np.array([(int(x) - (int(x) >> 63 << 64) << 64) + int(y) for x, y in zip(hi[0], lo[0], strict=True)], float)
    weight, squares = count * terms * 2.0**bits, count * terms * 4.0**bits
    bound = TAIL * sqrt(10.5) * (sqrt(squares) + 2 * sqrt(form.degree)) + weight / 2
    assert abs(noise).max() <= TAIL * sqrt(10.5 * squares)
    assert abs(sqrt((noise**2).mean()) / sqrt(10.5 * squares) - 1) < (0.1 if terms == 1 else 0.5)
    assert 2**form.flood_bits >= 2**FLOOD_BITS * bound
    assert q > 4 * modulus * 2**form.flood_bits * 0.999


def exchange(form, *, quiet=False, times=1, transformed=True):
    """Answers to one encryption times 3·x^2, as the owner hears them: [times, 2, N] integers modulo 2^b, and more."""
    places = np.arange(form.degree, dtype=np.uint64)
    heard = []
    message = words(Keystream(bytes(32), "messages"), 1, form.degree) & np.uint64(form.modulus - 1)
    shares = words(Keystream(bytes(32), "shares"), 1, form.degree) & np.uint64(form.modulus - 1)

    def own(peer):
        owner = Owner(form, Secrets(1))
        owner.begin(peer)
        owner.send(peer, owner.encrypt(message, transformed=transformed))
        return [owner.receive(peer, 1, places) for _ in range(times)]

    def respond(peer):
        responder = Responder(form, Secrets(2), peer)
        first, second = responder.receive(peer, 1)
        weight = np.zeros((1, form.degree), np.uint64)
        weight[0, 2] = 3
        plain = form.ring.transform(form.ring.residues(weight))
        for _ in range(times):
            parts = []
            for part in (first, second):
                given = part.copy() if transformed else form.ring.transform(part.copy())
                product = form.ring.multiply(given, plain)
                parts.append(product if transformed else form.ring.untransform(product))
            peer.tell(responder.answer((parts[0], parts[1]), places, shares, transformed=transformed))
        return form.ring.untransform(form.ring.multiply(second if transformed else form.ring.transform(second), plain))

    def keep(message):
        if message.sender == "B":
            heard.append(message.tensor.numpy().view(np.uint64))

    got, second = both(own, respond, lambda link: RecordedLink(link, keep=keep) if link.party == "A" else link)
    low = packed_words(form.degree, min(form.answer_bits, 64))
    size = low + packed_words(form.degree, max(form.answer_bits - 64, 0))
    integers = []
    for text in heard:
        parts = []
        for part in (text[size:], text[:size]):
            lower = unpack(part, min(form.answer_bits, 64), form.degree).astype(object)
            above = unpack(part[low:], form.answer_bits - 64, form.degree) if form.answer_bits > 64 else 0
            parts.append(lower + (np.asarray(above, object) << 64))
        integers.append(parts)
    return got, integers, message[0].astype(object), shares[0].astype(object), second


@pytest.mark.parametrize("form", SCHEMES)
@pytest.mark.parametrize("transformed", [False, True])
def test_answers_decrypt_and_their_noise_is_the_flood(form, transformed):
    got, integers, message, shares, _ = exchange(form, times=2, transformed=transformed)
    want = (3 * np.concatenate([-message[-2:], message[:-2]]) - shares) % form.modulus
    noises = []
    key = ternary_key(form, 1)
    unit = 2.0**form.flood_bits * 2.0**form.answer_bits / form.ring.modulus  # the flood's largest, in units of 2^-b
    for result, (first, masked) in zip(got, integers, strict=True):
        assert np.array_equal(result[0].astype(object), want)
        small = form.small_ring
        hi, lo = (np.array([[int(x) >> s & 2**64 - 1 for x in masked]], np.uint64) for s in (64, 0))
        product = small.transform(small.wide_residues(hi, lo, signed=False))
        own = small.transform(key[:, : len(small.primes)].copy())
        upper, lower = small.integers(small.untransform(small.multiply(product, own)))
        phase = first + (upper[0].astype(object) << 64) + lower[0].astype(object)
        noise = (phase - want * 2**form.answer_bits // form.modulus) % 2**form.answer_bits
        noise = np.where(noise > 2 ** (form.answer_bits - 1), noise - 2**form.answer_bits, noise).astype(float) / unit
        assert abs(noise).max() < 1 + (TAIL * sqrt(form.degree / 4) + 1) / unit
        spread = (1 + 3 * form.degree / 18 / unit**2) / 3  # uniform in ±1, and rounding of N·2/3 coefficients
        assert abs((noise**2).mean() / spread - 1) < 0.1
        noises.append(noise)
    assert abs(np.corrcoef(*noises)[0, 1]) < 6 / sqrt(form.degree)  # drawn anew for the same question


def agreement(form, sent, second):
    """Correlation of a second part, as sent, with what its owner computes from the weights: the attack on w."""
    hi, lo = form.ring.switched(second, form.answer_bits)
    guess = (hi[0].astype(object) << 64) + lo[0].astype(object)
    apart = np.array((sent - guess) % 2**form.answer_bits, float) / 2.0**form.answer_bits
    return abs(np.exp(2j * pi * apart).mean())


@pytest.mark.parametrize("transformed", [False, True])
def test_the_second_part_does_not_show_the_weights(transformed, monkeypatch):
    form = SCHEMES[2]
    _, integers, *_, second = exchange(form, transformed=transformed)
    assert agreement(form, integers[0][1], second) < 6 / sqrt(form.degree)
    # without an encryption of zero beside them, the owner, who knows c1, checks a guess of the weights
    monkeypatch.setattr(
        type(form.ring), "ternary", lambda ring, stream, count: ring.residues(np.zeros((count, ring.degree), np.uint64))
    )
    _, integers, *_, second = exchange(form, transformed=transformed)
    assert agreement(form, integers[0][1], second) > 0.99


@pytest.mark.parametrize("transformed", [False, True])
def test_the_second_part_has_noise_of_its_own(transformed, monkeypatch):
    form = replace(SCHEMES[0], prime_bits=37, primes=2, flood_bits=1)  # so small that rounding does not hide the noise
    nothing = np.zeros((1, form.primes, form.degree), np.uint64)
    monkeypatch.setattr(type(form.ring), "ternary", lambda ring, stream, count: nothing.copy())

    def own(peer):
        Owner(form, Secrets(1)).begin(peer)
        heard = peer.hear((form.answer_words(1, 1),), torch.int64).numpy().view(np.uint64)
        return unpack(heard, 64, form.degree).view(np.int64)

    def respond(peer):
        first = nothing[:, :, :1] if not transformed else nothing
        responder = Responder(form, Secrets(2), peer)
        place = np.zeros(1, np.uint64)
        peer.tell(responder.answer((first.copy(), nothing.copy()), place, place[:, None], transformed=transformed))

    noise = both(own, respond)[0] * 2.0 ** (74 - form.answer_bits)
    assert abs((noise**2).mean() / 10.5 - 1) < 0.2


def wide(text, form):
    """The integers modulo 2^b in a half as it is sent: Python's, [N]."""
    low, above = min(form.answer_bits, 64), form.answer_bits - 64
    found = unpack(text, low, form.degree).astype(object)
    if above <= 0:
        return found
    return found + (unpack(text[packed_words(form.degree, 64) :], above, form.degree).astype(object) << 64)


def halved(form, times=1, *, transformed=True):
    """Shares of 3·x^2 times one encryption, of both: [times, N]; what was meant, what was sent, and 3·x^2·c1."""
    message = words(Keystream(bytes(32), "messages"), 1, form.degree)
    message = message % np.uint64(form.modulus) if form.modulus < WORD else message
    heard, places = [], PLACES[: form.degree]

    def own(peer):
        owner = Owner(form, Secrets(1))
        owner.begin(peer)
        owner.send(peer, owner.encrypt(message, transformed=transformed))
        return np.concatenate([owner.receive_halves(peer, 1, places) for _ in range(times)])

    def respond(peer):
        responder, r = Responder(form, Secrets(2), peer), form.ring
        first, second = responder.receive(peer, 1)
        weight = np.zeros((1, form.degree), np.uint64)
        weight[0, 2] = 3
        plain, shares = r.transform(r.residues(weight)), []
        if not transformed:
            first, second = r.transform(first.copy()), r.transform(second.copy())
        for _ in range(times):
            products = [r.multiply(part, plain) for part in (first, second)]
            sums = products if transformed else [r.untransform(part) for part in products]
            told, share = responder.halve((sums[0], sums[1]), places, transformed=transformed)
            peer.tell(told)
            shares.append(share)
        return np.concatenate(shares), r.untransform(r.multiply(second, plain))

    def keep(message):
        if message.sender == "B":
            heard.append(message.tensor.numpy().view(np.uint64))

    got, (shares, second) = both(
        own, respond, lambda link: RecordedLink(link, keep=keep) if link.party == "A" else link
    )
    sent = [wide(text, form) for text in heard]
    wanted = 3 * np.concatenate([-message[0, -2:].astype(object), message[0, :-2].astype(object)]) % form.modulus
    return got, shares, wanted, sent, second


@pytest.mark.parametrize("form", [*HALVES, *HALVED])
@pytest.mark.parametrize("transformed", [False, True])
def test_halves_add_up_and_are_uniform(form, transformed):
    got, shares, wanted, sent, _ = halved(form, times=2, transformed=transformed)
    for one, other, text in zip(got, shares, sent, strict=True):
        assert not ((one.astype(object) + other.astype(object) - wanted) % form.modulus).any()
        for values, most in ((one, form.modulus), (other, form.modulus), (text, 1 << form.answer_bits)):
            counts = np.bincount((values.astype(object) * 64 // most).astype(np.int64), minlength=64)
            expected = form.degree / 64
            assert abs(((counts - expected) ** 2 / expected).sum() - 63) < 6 * sqrt(2 * 63)
    assert abs(np.corrcoef((shares / form.modulus).astype(float))[0, 1]) < 6 / sqrt(form.degree)  # another each time


def test_halves_are_wrong_as_rarely_as_the_scheme_says(monkeypatch):
    form = replace(HALVES[0], miss_bits=(miss := 5))
    modulus = form.modulus
    got, shares, wanted, *_ = halved(form, times=8)
    apart = (got.astype(object) + shares.astype(object) - wanted) % modulus
    wrong = apart != 0
    assert set(apart[wrong]) <= {1, modulus - 1}
    rounding = sqrt(form.degree / 18) * sqrt(2 / pi) * modulus / 2.0**form.answer_bits
    assert abs(wrong.mean() / rounding - 1) < 0.1
    assert rounding < 2.0**-miss


@pytest.mark.parametrize("form", [HALVES[0], *HALVED])
@pytest.mark.parametrize("transformed", [False, True])
def test_a_half_does_not_show_the_weights(form, transformed, monkeypatch):
    *_, sent, second = halved(form, transformed=transformed)
    assert agreement(form, sent[0], second) < 6 / sqrt(form.degree)
    # without an encryption of zero beside them, the owner, who knows c1, checks a guess of the weights
    monkeypatch.setattr(
        type(form.ring), "ternary", lambda ring, stream, count: ring.residues(np.zeros((count, ring.degree), np.uint64))
    )
    *_, sent, second = halved(form, transformed=transformed)
    assert agreement(form, sent[0], second) > 0.99


@pytest.mark.parametrize("transformed", [False, True])
def test_a_half_has_noise_of_its_own(transformed, monkeypatch):
    form = replace(HALVES[0], prime_bits=50, primes=2)  # so small that rounding does not hide the noise
    nothing = np.zeros((1, form.primes, form.degree), np.uint64)
    monkeypatch.setattr(type(form.ring), "ternary", lambda ring, stream, count: nothing.copy())

    def own(peer):
        Owner(form, Secrets(1)).begin(peer)
        heard = peer.hear((form.answer_words(1, 0),), torch.int64).numpy().view(np.uint64)
        return wide(heard, form)

    def respond(peer):
        responder = Responder(form, Secrets(2), peer)
        peer.tell(responder.halve((nothing.copy(), nothing.copy()), PLACES, transformed=transformed)[0])

    sent = both(own, respond)[0]
    around_zero = np.where(sent > 1 << form.answer_bits - 1, sent - (1 << form.answer_bits), sent)
    noise = (around_zero * form.ring.modulus // (1 << form.answer_bits)).astype(float)
    assert abs((noise**2).mean() / 10.5 - 1) < 0.2


@pytest.mark.parametrize("which", [0, 2])
def test_what_is_sent_is_uniform(which):
    form = SCHEMES[which]
    sent: dict[str, list[torch.Tensor]] = {"A": [], "B": []}
    messages = np.zeros((4, form.degree), np.uint64)

    def own(peer):
        owner = Owner(form, Secrets(3))
        owner.begin(peer)
        owner.send(peer, owner.encrypt(messages))
        return owner.receive(peer, 4, np.arange(form.degree, dtype=np.uint64))

    def respond(peer):
        responder = Responder(form, Secrets(4), peer)
        first, second = responder.receive(peer, 4)
        zeros = np.zeros_like(first), np.zeros_like(second)
        shares = responder.draw(4, form.degree) & np.uint64(form.modulus - 1)
        peer.tell(responder.answer(zeros, np.arange(form.degree, dtype=np.uint64), shares))
        return shares

    def keep(message):
        sent[message.sender].append(message.tensor)

    got, shares = both(own, respond, lambda link: RecordedLink(link, keep=keep) if link.party == "A" else link)
    assert not ((got + shares) & np.uint64(form.modulus - 1)).any()
    for text in (*sent["A"][1:], *sent["B"]):
        counts = torch.bincount(text.view(torch.uint8).to(torch.int64), minlength=256)
        expected = text.numel() * 8 / 256
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert abs(chi_square - 255) < 6 * sqrt(2 * 255)


def test_residues_that_are_not_below_their_prime_are_refused():
    form = SCHEMES[2]
    seed = torch.zeros(32, dtype=torch.uint8)

    def cheat(large, peer):
        peer.tell(seed)
        residues = np.zeros((form.primes, form.degree), np.uint64)
        residues[1, 7] = form.ring.primes[1] - 1 + large
        peer.tell(torch.from_numpy(pack(residues, form.prime_bits).view(np.int64)))

    both(partial(cheat, 0), lambda peer: Responder(form, Secrets(1), peer))
    with refused(ProtocolError, code="residues", party="A"):
        both(partial(cheat, 1), lambda peer: Responder(form, Secrets(1), peer))


def test_the_scheme_follows_the_weights():
    assert FLOOD_BITS == 66
    assert 2 * exp(-(TAIL**2) / 2) < 2.0**-71
    few, many = scheme(1 << 32, 2.0**4, 2.0**8), scheme(1 << 32, 2.0**16, 2.0**32)
    assert few.prime_bits < many.prime_bits
    assert scheme(WORD, 2.0**16, 2.0**32).degree == 8192
    assert replace(many, flood_bits=1).answer_bits == many.answer_bits
