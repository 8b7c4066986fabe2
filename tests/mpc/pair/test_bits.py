"""Shares of two parties' functions of bits and signs add up to the plain results, and messages say nothing."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from tests.errors import refused
from tests.mpc.pair.parties import both
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.errors import ProtocolError
from veilgraph.link.codec import encoded_size
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.pair.bits import (
    Bits,
    and_exchanges,
    gate_exchanges,
    negative_exchanges,
    setup_exchanges,
    wraps_exchanges,
)

MOST, LEAST = 2**63 - 1, -(2**63)
EDGES = (0, 1, -1, 2, 7, 8, 15, 16, -16, 2**32, 2**62 - 1, 2**62, -(2**62), MOST - 1, MOST, LEAST, LEAST + 1)
LEAST_CHANCE = 1e-4
"""Of a uniform sample to be as uneven; secrets are fixed, so each test decides the same every time."""


def bits_of(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 2, shape, dtype=np.uint8)).bool()


def integers_of(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(LEAST, MOST, shape, endpoint=True))


def shares_of(values, seed=0):
    share = integers_of(*values.shape, seed=seed)
    return share, values - share


def played(function, inputs, seed=0):
    """Both shares of ``function(bits, *inputs of the party)``, and each party's messages after the setup's."""
    links = {}

    def recorded(link):
        links[link.party] = RecordedLink(link, keep_transcript=True)
        return links[link.party]

    def part(peer):
        return function(Bits(peer, fixed_secrets(seed, peer.leads)), *inputs[0 if peer.leads else 1])

    results = both(part, wrapped=recorded)
    sent = [
        [message.tensor for message in links[party].transcript() if message.sender == party][2:] for party in ("A", "B")
    ]
    return results, sent


def added(function, inputs):
    """Result that both shares of int64 add up to."""
    (first, second), _ = played(function, inputs)
    assert first.dtype == second.dtype == torch.int64
    assert first.shape == second.shape == inputs[0][0].shape
    return first + second


def xored(function, inputs):
    (first, second), _ = played(function, inputs)
    assert first.dtype == second.dtype == torch.bool
    assert first.shape == second.shape == inputs[0][0].shape
    return first ^ second


SHAPES = [(), (0,), (1,), (2,), (3, 0), (1, 1), (5, 13), (64,), (65,), (4, 3, 7)]


@pytest.mark.parametrize("shape", [*SHAPES, (100_000,)])
def test_functions_of_bits_equal_the_plain_ones(shape):
    inputs = [(bits_of(*shape, seed=at), bits_of(*shape, seed=at + 2), integers_of(*shape, seed=at)) for at in range(2)]
    (bit, right, value), (other_bit, other_right, other_value) = inputs
    both_bits = [(bit,), (other_bit,)]
    assert torch.equal(added(Bits.wraps, both_bits), (bit & other_bit).long())
    assert torch.equal(added(Bits.arithmetic, both_bits), (bit ^ other_bit).long())
    gated = added(Bits.gate, [(bit, value), (other_bit, other_value)])
    assert torch.equal(gated, (bit ^ other_bit).long() * (value + other_value))
    conjunction = xored(Bits.and_, [(bit, right), (other_bit, other_right)])
    assert torch.equal(conjunction, (bit ^ other_bit) & (right ^ other_right))


@pytest.mark.parametrize("shape", [*SHAPES, (100_000,)])
def test_signs_equal_the_plain_ones(shape):
    inputs = [(integers_of(*shape, seed=at),) for at in range(2)]
    assert torch.equal(xored(Bits.negative, inputs), inputs[0][0] + inputs[1][0] < 0)


def test_signs_are_exact_at_all_edges():
    pairs = torch.tensor(list(product(EDGES, EDGES)))
    sums = torch.tensor(EDGES).repeat(200)
    share, rest = shares_of(sums)
    first, second = torch.cat([pairs[:, 0], share]), torch.cat([pairs[:, 1], rest])
    assert torch.equal(xored(Bits.negative, [(first,), (second,)]), first + second < 0)
    assert torch.equal(xored(Bits.negative, [(first.flip(0),), (second.flip(0),)]), (first + second < 0).flip(0))


def test_signs_are_exact_where_one_bit_decides():
    powers = torch.tensor([1 << bit for bit in range(63)])
    share = integers_of(63)
    for near in (-1, 0, 1):
        for value in (powers, -powers, powers + LEAST, -powers + LEAST):
            inputs = [(share,), (value + near - share,)]
            assert torch.equal(xored(Bits.negative, inputs), value + near < 0)


def test_gates_are_exact_at_all_edges():
    cases = list(product((False, True), (False, True), EDGES, EDGES))
    bit, other_bit = (torch.tensor([case[at] for case in cases]) for at in (0, 1))
    value, other_value = (torch.tensor([case[at] for case in cases]) for at in (2, 3))
    gated = added(Bits.gate, [(bit, value), (other_bit, other_value)])
    assert torch.equal(gated, (bit ^ other_bit).long() * (value + other_value))


def test_views_of_tensors_that_are_not_contiguous_are_taken_as_they_are():
    first, second = integers_of(6, 10, seed=1).t(), integers_of(6, 10, seed=2).t()
    assert torch.equal(xored(Bits.negative, [(first,), (second,)]), first + second < 0)
    bit, other = bits_of(6, 10, seed=1).t(), bits_of(6, 10, seed=2).t()
    gated = added(Bits.gate, [(bit, first), (other, second)])
    assert torch.equal(gated, (bit ^ other).long() * (first + second))


def test_functions_may_follow_each_other_in_any_order():
    value = [integers_of(300, seed=at) for at in range(2)]

    def part(bits, own):
        sign = bits.negative(own)
        kept = bits.gate(~sign if bits_lead[bits] else sign, own)
        return bits.and_(sign, bits.negative(kept)), kept

    bits_lead = {}

    def noted(bits, own, leads):
        bits_lead[bits] = leads
        return part(bits, own)

    (first, second), _ = played(noted, [(value[0], True), (value[1], False)])
    assert torch.equal(first[1] + second[1], (value[0] + value[1]).clamp(min=0) * (value[0] + value[1] >= 0))
    assert not (first[0] ^ second[0]).any()


COSTS = {
    "wraps": (wraps_exchanges, lambda n, at: (bits_of(n, seed=at),)),
    "arithmetic": (wraps_exchanges, lambda n, at: (bits_of(n, seed=at),)),
    "gate": (gate_exchanges, lambda n, at: (bits_of(n, seed=at), integers_of(n, seed=at))),
    "and_": (and_exchanges, lambda n, at: (bits_of(n, seed=at), bits_of(n, seed=at + 2))),
    "negative": (negative_exchanges, lambda n, at: (integers_of(n, seed=at),)),
}


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("entries", [0, 1, 2, 63, 129, 4097])
def test_costs_are_foreseen_to_the_byte(name, entries):
    check_costs(name, entries)


@pytest.mark.parametrize(("name", "entries"), [("and_", (1 << 18) + 1), ("wraps", (1 << 19) + 1), ("negative", 8193)])
def test_costs_are_foreseen_where_messages_are_several(name, entries):
    check_costs(name, entries)


def check_costs(name, entries):
    cost, draw = COSTS[name]
    links = {}

    def recorded(link):
        links[link.party] = RecordedLink(link, keep_transcript=True)
        return links[link.party]

    def part(peer):
        return getattr(Bits(peer, fixed_secrets(peer.leads)), name)(*draw(entries, 0 if peer.leads else 1))

    both(part, wrapped=recorded)
    expected = setup_exchanges() + cost(entries)
    for at, party in enumerate(("A", "B")):
        sizes = [encoded_size(each.tensor) for each in links[party].transcript() if each.sender == party]
        assert sizes == [exchange[at] for exchange in expected]


def test_a_comparison_costs_at_most_448_bytes_of_both():
    assert sum(map(sum, negative_exchanges(1 << 18))) / (1 << 18) < 448
    assert sum(map(sum, wraps_exchanges(1 << 18))) / (1 << 18) < 12.01
    assert sum(map(sum, gate_exchanges(1 << 18))) / (1 << 18) < 24.01


def unevenness(octets):
    """How likely uniform bytes are as uneven as these."""
    return chisquare(np.bincount(octets, minlength=256)).pvalue


def octets_of(message):
    """A message's bytes; of a table for digits without the two bits of digit 0, which are zeros."""
    octets = message.contiguous().view(torch.uint8).numpy()
    if message.dtype == torch.uint8 and message.shape[0] == 4:
        assert not (octets[0] & 3).any()
        octets = octets[1:]
    return octets.reshape(-1)


SAME = {
    "zeros": lambda n, at: (torch.zeros(n).bool(), torch.zeros(n).bool(), torch.zeros(n, dtype=torch.int64)),
    "ones": lambda n, at: (torch.ones(n).bool(), torch.ones(n).bool(), torch.full((n,), -1)),
    "one party's ones": lambda n, at: (
        torch.full((n,), at == 0),
        torch.full((n,), at == 1),
        torch.full((n,), MOST if at else LEAST),
    ),
}
INPUTS = {"wraps": [0], "gate": [0, 2], "and_": [0, 1], "negative": [2]}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("data", SAME)
def test_messages_and_shares_are_uniform_whatever_the_data_are(name, data):
    entries = 4096
    inputs = [[SAME[data](entries, at)[which] for which in INPUTS[name]] for at in range(2)]
    (first, second), sent = played(getattr(Bits, name), inputs, seed=(name, data))
    for messages in sent:
        for message in messages:
            assert unevenness(octets_of(message)) > LEAST_CHANCE
    for share in (first, second):
        octets = np.packbits(share.numpy()) if share.dtype == torch.bool else share.view(torch.uint8).numpy()
        assert unevenness(octets) > LEAST_CHANCE


@pytest.mark.parametrize("at", range(2, 12))
def test_a_message_that_is_cut_is_refused(at):
    value = integers_of(64)

    def hostile(peer):
        tell, told = peer.tell, []

        def short(message):
            told.append(message)
            tell(message[..., :-1] if len(told) == at + 1 else message)

        peer.tell = short
        Bits(peer, fixed_secrets(1)).negative(value)

    with refused(ProtocolError, code="shape", party="B"):
        both(lambda peer: Bits(peer, fixed_secrets(0)).negative(value), hostile)
