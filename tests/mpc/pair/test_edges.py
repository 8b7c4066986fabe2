"""Results are right up to the edge of what the bounds allow, and wrong beyond it where the formulas say so."""

from collections import deque
from math import exp, log, log2, prod, sinh, sqrt

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import binom

pytest.importorskip("numba", reason="the kernels are compiled by numba: veilgraph[nobody]")

from tests.mpc.pair.parties import both, linked
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.secrets import system_secrets
from veilgraph.mpc.pair.entries import MOST_TERMS, NARROW_BITS, inner, plan_of
from veilgraph.mpc.pair.exchange import Exchange
from veilgraph.mpc.pair.lattice import DEGREE, FLOOD_BITS, TAIL, VARIANCE, Keys, Owner, Responder, scheme
from veilgraph.mpc.pair.packing import pack
from veilgraph.mpc.pair.polynomials import Ring, primes_below
from veilgraph.mpc.pair.products import plan_hop, plan_matmul
from veilgraph.mpc.ring import matmul
from veilgraph.mpc.sealed.pair import PairMachine
from veilgraph.mpc.sealed.wire import Summands

WORD = 1 << 64
MOST_NOISE = 21
"""Of a coefficient: the binomial distribution of 42 bits around its mean has no more."""
FORMS = {
    "matmul of narrow numbers": plan_matmul((140, 2708, 716), 17)[1].scheme,
    "matmul": plan_matmul((140, 1434, 32), 64)[1].scheme,
    "hop, 32": scheme(1 << 32, 2.0**16, 4.0**16),
    "hop, 64": plan_hop((2708, 2708, 7), 64).scheme,
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
PLACES = np.arange(DEGREE, dtype=np.uint64)


def message_of(form, second, first):
    """An answer as it is sent, of Python's integers modulo 2^b [N] and [places]."""
    parts = []
    for values in (second, first):
        low = np.array([value % WORD for value in values], np.uint64)
        parts.append(pack(low, min(form.answer_bits, 64)))
        if form.answer_bits > 64:
            parts.append(pack(np.array([value >> 64 for value in values], np.uint64), form.answer_bits - 64))
    return torch.from_numpy(np.concatenate(parts).view(np.int64))


def decrypted(form, answers, places=PLACES):
    """What an owner with a fixed key reads of each of these answers, [(second, first)]: Python's integers."""

    def own(peer):
        owner = Owner(form, fixed_secrets("owner"))
        return [owner.receive(peer, 1, places)[0].astype(object) for _ in answers]

    def respond(peer):
        for answer in answers:
            peer.tell(message_of(form, *answer))

    return both(own, respond)[0]


def key_of(form):
    """The owner's key: what it reads of t/4 times a key's coefficients is 0, t/4 or −t/4."""
    quarter = [1 << (form.answer_bits - 2)] + [0] * (DEGREE - 1)
    (found,) = decrypted(form, [(quarter, [0] * DEGREE)])
    quarters = [round(4 * int(value) / form.modulus) % 4 for value in found]
    assert set(quarters) == {0, 1, 3}
    return [value - 4 * (value == 3) for value in quarters]


@forms
def test_an_answer_is_read_right_up_to_half_a_message(form):
    t, size = form.modulus, 1 << form.answer_bits
    key = key_of(form)
    rng = np.random.default_rng(0)
    patterns = [[0] * DEGREE, [size - 1] * DEGREE, [size // 2] * DEGREE, [size // 2 - 1] * DEGREE]
    # as far from zero as products with the key reach, at the last place
    patterns.append([(size - 1) * (value > 0) for value in reversed(key)])
    patterns.append([int(value) % size for value in rng.integers(0, 1 << 62, DEGREE).astype(object) << 40])
    messages = [0, 1, t - 1, t // 2, t // 2 + 1, t // 3]
    places, answers, expected = [0, 1, 4095, 8191], [], []
    for second in patterns:
        products = [
            sum(s * (1 if j <= i else -1) * second[(i - j) % DEGREE] for j, s in enumerate(key)) for i in places
        ]
        for message in messages:
            # the last and the first that are nearer to the message than to the next one, those beyond, and the nearest
            last = ((2 * message + 1) * size - 1) // (2 * t)
            first = -((1 - 2 * message) * size // (2 * t))
            nearest = message * size // t
            phases = [(last, 0), (last + 1, 1), (first, 0), (first - 1, -1), (nearest, 0), (nearest + 1, 0)]
            for phase, step in phases:
                answers.append((second, [(phase - product) % size for product in products]))
                expected.append((message + step) % t)
    found = decrypted(form, answers, np.array(places, np.uint64))
    assert [set(each.tolist()) for each in found] == [{each} for each in expected]


def residues_of(form, value, places=DEGREE):
    """One integer in every coefficient: [1, L, places]."""
    return np.array([[value % prime] * places for prime in form.ring.primes], np.uint64)[None]


def answered(form, added, monkeypatch, flood):
    """Errors of answers to the largest messages, to whose first part ``added`` comes, with a flood at its end.

    ``flood``: 1 or −1, which end.
    """
    message = np.full((1, DEGREE), form.modulus - 1, np.uint64)
    shares = np.array([[form.modulus - 1, 0] * (DEGREE // 2)], np.uint64)
    upper, lower = ((1 << 63) - 1, WORD - 1) if flood > 0 else (1 << 63, 0)

    def drawn(responder, *shape):
        words = np.full(shape, lower, np.uint64)
        words[0] = upper
        return words

    def own(peer):
        owner = Owner(form, system_secrets)
        owner.begin(peer)
        owner.send(peer, owner.encrypt(message))
        return owner.receive(peer, 1, PLACES)

    def respond(peer):
        responder = Responder(form, system_secrets, peer)
        first, second = responder.receive(peer, 1)
        form.ring.add(first, form.ring.transform(residues_of(form, added)))
        peer.tell(responder.answer((first, second), PLACES, shares))

    with monkeypatch.context() as patch:
        patch.setattr(Responder, "draw", drawn)
        found, _ = both(own, respond)
    wanted = (message.astype(object) - shares) % form.modulus
    off = (found.astype(object) - wanted) % form.modulus
    return np.where(off > form.modulus // 2, off - form.modulus, off)


@forms
@pytest.mark.parametrize("sign", [1, -1])
def test_floods_and_noise_at_their_ends_move_no_result(form, sign, monkeypatch):
    step = form.ring.modulus // form.modulus
    bound = 2.0 ** (form.flood_bits - FLOOD_BITS)
    # the bound, and more than all noise together where each coefficient is at its end: 21·Σ|w| ≤ 21·√(n·Σw²)
    for noise in (int(bound), int(bound * MOST_NOISE * sqrt(DEGREE * MOST_TERMS))):
        assert noise < step / 1e6
        assert not answered(form, sign * noise, monkeypatch, sign).any()
    # flood ≤ 1/4 and rounding ≤ 2/9 of a step leave 1/36
    assert not answered(form, sign * (step // 36), monkeypatch, sign).any()
    # and three quarters more are nearer to the next result
    assert set(answered(form, sign * (3 * step // 4), monkeypatch, sign).reshape(-1).tolist()) == {sign}


def chance(count, log_mgf, limit):
    """log2 of Chernoff's bound that a sum of ``count`` independent numbers is beyond ±``limit``."""
    best = minimize_scalar(lambda x: count * log_mgf(exp(x)) - exp(x) * limit, bounds=(-20, 6), method="bounded")
    return 1 + best.fun / log(2)


def rounding(x):
    """log of E exp(x·s·ε), s ternary and ε uniform in ±1/2."""
    return log(1 / 3 + 2 / 3 * sinh(x / 2) / (x / 2))


@forms
def test_the_chance_of_a_wrong_result_is_below_what_is_claimed(form):
    units = 2.0**form.answer_bits / form.modulus
    left = (0.5 - 2.0**form.flood_bits * form.modulus / form.ring.modulus * (1 + 2.0**-FLOOD_BITS)) * units - 1
    # Hoeffding's bound, as in ``lattice``, where all that is known of a summand is that it is within ±1/2
    assert 1 - 2 * left**2 / DEGREE / log(2) < -71
    # and what the law of the summands gives
    assert chance(DEGREE, rounding, left) < -250
    # which at nine deviations is above the claim
    assert chance(DEGREE, rounding, 9 * sqrt(DEGREE / 18)) > -71


@pytest.mark.parametrize("summands", [100, DEGREE, 2 * DEGREE, 256 * DEGREE])
def test_ten_deviations_of_noise_are_exceeded_as_rarely_as_claimed(summands):
    # centred binomial numbers add up to one of 42·n bits, whose tail is known
    limit = TAIL * sqrt(VARIANCE * summands)
    assert 1 + binom.logsf(21 * summands + limit - 1, 42 * summands, 0.5) / log(2) < -71
    assert 1 + binom.logsf(21 * summands + 0.9 * limit, 42 * summands, 0.5) / log(2) > -71


SLOTS = primes_below(58, 6, DEGREE)[3:6]
MODULUS = prod(SLOTS)
"""T, of the slots of sums of products."""


def wrap_chance(terms):
    """log2 of the chance that a sum V of so many products is wrong, of the largest numbers.

    V − Z is beyond an end for |V| shares Z of T. Z and V − Z are rounded to integers around zero by fractions of 64
    bits, of which each prime's may be two units off: that moves an end by T·2^-61, for either of the two.
    """
    return log2(terms * 2.0**126 / MODULUS + 2 * 2.0**-61)


def test_the_chance_that_a_sum_of_products_is_wrong():
    assert wrap_chance(MOST_TERMS) < -41.9
    assert wrap_chance(2) < -46.9
    assert wrap_chance(4 * MOST_TERMS) > -41.9


def test_a_sum_of_products_is_wrong_where_a_share_is_within_it_of_an_end_and_nowhere_else(monkeypatch):
    end, near, least = MODULUS // 2, MODULUS >> 61, -(1 << 63)
    left = torch.linspace(-1, 1, DEGREE, dtype=torch.float64).mul(-least).clamp(max=-least - 1024).to(torch.int64)
    right = torch.full((DEGREE,), least)
    largest = left.numpy().astype(object) * least
    halve, receive, moved = Responder.halve, Owner.receive_halves, deque[NDArray[np.object_]]()
    for share in (end - 2 * near, 2 * near - end, end + (1 << 125), -end - (1 << 125), 0):

        def halved(responder, sums, places, modulus, share=share):
            told, found = halve(responder, sums, places, modulus=modulus)
            wanted = np.zeros_like(found)
            wanted[:, 0] = share % modulus  # the same in every slot
            moved.append((found.astype(object) - wanted.astype(object)) % modulus)
            return told, wanted

        def received(owner, peer, count, places, modulus):
            found = receive(owner, peer, count, places, modulus).astype(object)
            return ((found + moved.popleft()) % modulus).astype(np.uint64)

        monkeypatch.setattr(Responder, "halve", halved)
        monkeypatch.setattr(Owner, "receive_halves", received)
        first, second = both(
            lambda peer: inner(Keys(peer, system_secrets), left[None], 64, encrypts=True),
            lambda peer: inner(Keys(peer, system_secrets), right[None], 64, encrypts=False),
        )
        off = ((first + second).numpy().astype(object) - largest) % WORD
        own = (share + end) % MODULUS - end
        decided = abs(abs(largest - own) - end) > near
        assert decided.mean() > 0.8
        assert np.array_equal((off != 0)[decided], (abs(largest - own) > end)[decided])
        assert set(off.tolist()) == ({0, MODULUS % WORD} if own > 0 else {0, -MODULUS % WORD} if own else {0})


@pytest.mark.parametrize("bits", [64, NARROW_BITS])
def test_weights_of_a_sum_of_products_are_around_zero_as_the_bound_on_their_noise_takes_them_to_be(bits, monkeypatch):
    form, largest, residues = plan_of(2, DEGREE, bits).scheme, [0], Ring.residues

    def noted(ring, values):
        if ring is form.ring:
            largest.append(int(abs(values.view(np.int64)).max()))
        return residues(ring, values)

    def summed(peer):
        return inner(Keys(peer, system_secrets), own, bits, encrypts=peer.leads)

    own = torch.from_numpy(np.random.default_rng(1).integers(-(1 << 26), 1 << 26, (2, DEGREE)))
    monkeypatch.setattr(Ring, "residues", noted)
    both(summed)
    assert form.modulus // 4 < max(largest) <= form.modulus // 2


def machines(part):
    def one(link):
        exchange = Exchange(link, ("A", "B"), system_secrets)
        return part(PairMachine(link, ("A", "B"), exchange), link.party == "A")

    return linked(one)


@pytest.mark.parametrize("name", ["product", "hop", "pick"])
def test_results_are_exact(name):
    """What a unit would be off hung on keys and noise, and who learns a result would learn of them."""
    rng, size, bits = np.random.default_rng(0), 90, 20
    own, other = (torch.from_numpy(rng.integers(-(1 << 40), 1 << 40, (size, size))) for _ in range(2))
    edges = torch.from_numpy(rng.integers(0, size, (2, 300)))
    order = torch.from_numpy(rng.permutation(size))

    def part(machine, leads):
        wire = machine.open(Summands(own if leads else other, bits))  # what both have shares of
        if name == "product":
            whole = machine.open(Summands(other if leads else own, 0))
            found = machine.product(matmul, wire, whole)
        elif name == "hop":
            found = machine.hop([machine.hidden_graph("A", edges if leads else None, size, 300)], wire)
        else:
            found = machine.pick("A", order if leads else None, size, wire)
        return found.part

    first, second = machines(part)
    total = (own + other).numpy()
    graph = np.eye(size, dtype=np.int64)
    np.add.at(graph, (edges[1].numpy(), edges[0].numpy()), 1)
    want = {"product": total @ total, "hop": graph @ total, "pick": total[order.numpy()]}[name]
    assert ((first + second).numpy() == want).all()


def cut(values, shift, ring, bits=64):
    """Values cut or lifted by both, under random shares: Python's integers."""
    dtype = {32: torch.int32, 64: torch.int64}[bits]
    total = torch.tensor([value % WORD - WORD * (value % WORD >= WORD // 2) for value in values])
    own = torch.from_numpy(np.random.default_rng(1).integers(-WORD // 2, WORD // 2, len(values)))

    def part(machine, leads):
        share = (own if leads else total - own).to(dtype)
        return machine.share(machine.open(Summands(share, shift), shift, ring)).numpy().astype(object)

    first, second = machines(part)
    size = 1 << ring
    return (first + second + size // 2) % size - size // 2


@pytest.mark.parametrize("shift", [1, 18, 40, 61])
def test_cuts_are_right_up_to_a_quarter_of_the_ring_and_wrong_beyond(shift):
    quarter = 1 << 62
    values = [0, 1, -1, *(sign * (1 << k) + near for k in range(62) for sign in (1, -1) for near in (-1, 0, 1))]
    values += [quarter - 1, 1 - quarter, quarter - 2, 2 - quarter]
    found = cut(values * 50, shift, 64)
    assert set(found - [value >> shift for value in values * 50]) <= {0, 1}
    beyond = [quarter + (1 << 60), -quarter - (1 << 60)] * 100
    assert abs(cut(beyond, shift, 64) - [value >> shift for value in beyond]).max() > 1


def test_lifts_are_right_up_to_a_quarter_of_the_ring_and_wrong_beyond():
    quarter = 1 << 30
    values = [0, 1, -1, quarter - 1, 1 - quarter, *(sign << k for k in range(30) for sign in (1, -1))] * 50
    assert cut(values, 0, 64, 32).tolist() == values
    beyond = [quarter + (1 << 28), -quarter - (1 << 28)] * 100
    assert cut(beyond, 0, 64, 32).tolist() != beyond


@pytest.mark.parametrize(
    ("shift", "ring", "dtype"), [(32, 64, torch.int32), (33, 64, torch.int64), (45, 32, torch.int32)]
)
def test_shares_of_what_wraps_around_are_as_wide_as_the_bits_that_count(shift, ring, dtype, monkeypatch):
    """Narrower ones are wrong with a chance of 2^-32 alone: too rare for random cases."""
    asked, wraps = [], Exchange.wraps

    def noted(exchange, bit, dtype):
        asked.append(dtype)
        return wraps(exchange, bit, dtype)

    monkeypatch.setattr(Exchange, "wraps", noted)
    cut([0], shift, ring)
    assert set(asked) == {dtype}
