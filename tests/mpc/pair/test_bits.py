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


def played(function, inputs, seed=0, *, setup=False):
    """Both shares of ``function(bits, *inputs of the party)``, and each party's messages: the setup's too, if asked."""
    links = {}

    def recorded(link):
        links[link.party] = RecordedLink(link, keep_transcript=True)
        return links[link.party]

    def part(peer):
        return function(Bits(peer, fixed_secrets(seed, peer.leads)), *inputs[0 if peer.leads else 1])

    results = both(part, wrapped=recorded)
    sent = [
        [message.tensor for message in links[party].transcript() if message.sender == party][0 if setup else 2 :]
        for party in ("A", "B")
    ]
    return results, sent


def added(function, inputs):
    """What both shares of int64 add up to."""
    (first, second), _ = played(function, inputs)
    assert first.dtype == second.dtype == torch.int64
    return first + second


def xored(function, inputs):
    (first, second), _ = played(function, inputs)
    assert first.dtype == second.dtype == torch.bool
    return first ^ second


SHAPES = [(), (0,), (1,), (2,), (3, 0), (1, 1), (5, 13), (64,), (65,), (4, 3, 7), (100_000,)]


@pytest.mark.parametrize("shapes", [SHAPES[:-1], SHAPES[-1:]], ids=["many shapes", "many entries"])
def test_functions_equal_the_plain_ones(shapes):
    def every(bits, *operands):
        return [
            [
                bits.wraps(bit),
                bits.wraps(bit, torch.int32),
                bits.arithmetic(bit),
                bits.gate(bit, value),
                bits.and_(bit, right),
                bits.negative(value),
            ]
            for bit, right, value in operands
        ]

    inputs = [
        [(bits_of(*shape, seed=at), bits_of(*shape, seed=at + 2), integers_of(*shape, seed=at)) for shape in shapes]
        for at in range(2)
    ]
    results, _ = played(every, inputs)
    for (bit, right, value), (other_bit, other_right, other_value), first, second in zip(
        *inputs, *results, strict=True
    ):
        plain = [
            (bit & other_bit).long(),
            (bit & other_bit).int(),
            (bit ^ other_bit).long(),
            (bit ^ other_bit).long() * (value + other_value),
            (bit ^ other_bit) & (right ^ other_right),
            value + other_value < 0,
        ]
        for expected, share, rest in zip(plain, first, second, strict=True):
            assert share.dtype == rest.dtype == expected.dtype
            assert torch.equal(share ^ rest if expected.dtype == torch.bool else share + rest, expected)


def test_signs_are_exact_at_all_edges():
    pairs = torch.tensor(list(product(EDGES, EDGES)))
    sums = torch.tensor(EDGES).repeat(200)
    share, rest = shares_of(sums)
    first, second = torch.cat([pairs[:, 0], share]), torch.cat([pairs[:, 1], rest])
    for order in ((0,), ()):  # backwards: with the other party's half of the entries
        inputs = [(first.flip(order),), (second.flip(order),)]
        assert torch.equal(xored(Bits.negative, inputs), (first + second < 0).flip(order))


def test_signs_are_exact_where_one_bit_decides():
    powers = torch.tensor([1 << bit for bit in range(63)])
    values = torch.cat([sign * powers + base + near for sign in (1, -1) for base in (0, LEAST) for near in (-1, 0, 1)])
    for seed in range(2):
        share, rest = shares_of(values, seed)
        assert torch.equal(xored(Bits.negative, [(share,), (rest,)]), values < 0)


@pytest.mark.parametrize("bits", [2, 5, 6, 36, 37, 38, 63])
def test_signs_of_fewer_bits_are_exact_whatever_is_above_them(bits):
    half = 1 << (bits - 1)
    near = [power + sign for power in (0, half // 2, half) for sign in (-2, -1, 0, 1)]
    values = torch.tensor([value for value in {*near, *(-each for each in near)} if -half <= value < half]).repeat(40)
    share, rest = shares_of(values)

    def negative(exchange, own):
        return exchange.negative(own, bits)

    assert torch.equal(xored(negative, [(share,), (rest,)]), values < 0)


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


def test_functions_may_follow_each_other_on_the_same_transfers():
    def positive_part(bits, value, flip):
        return bits.gate(bits.negative(value) ^ flip, value)

    first, second = integers_of(300, seed=1), integers_of(300, seed=2)
    total = first + second
    assert torch.equal(added(positive_part, [(first, True), (second, False)]), total.clamp(min=0))


def narrow_wraps(bits, own):
    return bits.wraps(own, torch.int32)


def cost_of_narrow_wraps(entries):
    return wraps_exchanges(entries, torch.int32)


def short_negative(bits, value):
    return bits.negative(value, 37)


def cost_of_short_negative(entries):
    return negative_exchanges(entries, 37)


COSTS = {
    "wraps": (Bits.wraps, wraps_exchanges, lambda n: [bits_of(n)]),
    "narrow wraps": (narrow_wraps, cost_of_narrow_wraps, lambda n: [bits_of(n)]),
    "arithmetic": (Bits.arithmetic, wraps_exchanges, lambda n: [bits_of(n)]),
    "gate": (Bits.gate, gate_exchanges, lambda n: [bits_of(n), integers_of(n)]),
    "and_": (Bits.and_, and_exchanges, lambda n: [bits_of(n), bits_of(n)]),
    "negative": (Bits.negative, negative_exchanges, lambda n: [integers_of(n)]),
    "short negative": (short_negative, cost_of_short_negative, lambda n: [integers_of(n)]),
}


SEVERAL = [("and_", (1 << 18) + 1), ("wraps", (1 << 20) + 1), ("gate", (1 << 18) + 1), ("negative", 20_000)]
"""Entries whose transfers take several blocks."""


def check_costs(function, costs, *inputs):
    """``costs``: what is foreseen for every call of ``function``, which a party makes with each of its inputs."""

    def every(bits, *own):
        for each in own:
            function(bits, *each)

    _, sent = played(every, inputs, setup=True)
    foreseen = [exchange for exchanges in [setup_exchanges(), *costs] for exchange in exchanges]
    for at in range(2):
        assert [encoded_size(message) for message in sent[at]] == [exchange[at] for exchange in foreseen]


@pytest.mark.parametrize("name", COSTS)
def test_costs_are_foreseen_to_the_byte(name):
    function, cost, draw = COSTS[name]
    counts = (0, 1, 2, 63, 129, 4097)
    check_costs(function, [cost(count) for count in counts], *[[draw(count) for count in counts]] * 2)


@pytest.mark.parametrize(("name", "entries"), SEVERAL)
def test_costs_are_foreseen_of_several_blocks(name, entries):
    function, cost, draw = COSTS[name]
    check_costs(function, [cost(entries)], *[[draw(entries)]] * 2)


def test_bytes_of_both_an_entry():
    def bytes_of(cost):
        return sum(map(sum, cost(1 << 18))) / (1 << 18)

    assert bytes_of(negative_exchanges) == pytest.approx(458.75, abs=0.05)
    assert bytes_of(cost_of_short_negative) == pytest.approx(254, abs=0.05)
    assert bytes_of(wraps_exchanges) == pytest.approx(12, abs=0.01)
    assert bytes_of(cost_of_narrow_wraps) == pytest.approx(8, abs=0.01)
    assert bytes_of(gate_exchanges) == pytest.approx(24, abs=0.01)
    assert bytes_of(and_exchanges) == pytest.approx(8.25, abs=0.01)


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


@pytest.mark.parametrize("data", SAME)
def test_what_the_tree_opens_is_uniform_whatever_the_data_are(data):
    """A share says nothing in any case, so what counts is the sum of what both parties send.

    It stays uniform if an earlier level's is added, or what made the triples.
    """
    inputs = [[SAME[data](4096, at)[2]] for at in range(2)]
    _, sent = played(Bits.negative, inputs, seed=data)
    *_, triples, one, two, three, four = ((first ^ second).numpy() for first, second in zip(*sent, strict=True))
    levels, used = [one, two, three, four], 0
    assert [level.shape for level in levels] == [(3, nodes * 512) for nodes in (8, 4, 2, 1)]
    for at, level in enumerate(levels):
        size = level.shape[1]
        others = [np.zeros_like(level), *(earlier[:, :size] for earlier in levels[:at])]
        for planes in (*(level ^ other for other in others), level[1:] ^ triples[:, used : used + size]):
            for plane in planes:
                assert unevenness(plane) > LEAST_CHANCE
        used += size


def test_every_comparison_draws_secrets_of_its_own():
    drawn = []

    def part(peer):
        plain = fixed_secrets(peer.leads)

        def counted(length):
            drawn.append(length)
            return plain(length)

        bits = Bits(peer, counted)
        before = len(drawn)
        if peer.leads:
            bits.negative(integers_of(5))
            bits.negative(integers_of(5))
        return before

    def other(peer):
        bits = Bits(peer, fixed_secrets(0))
        bits.negative(integers_of(5))
        bits.negative(integers_of(5))
        return 0

    before, _ = both(part, other)
    assert drawn[before:] == [32, 32]


@pytest.mark.parametrize("at", range(10))
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
