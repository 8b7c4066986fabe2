"""A chooser gets the pads of its digits and no others, and the sender learns nothing of the digits."""

import hashlib
from collections import Counter
from threading import Event

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from nacl import bindings
from scipy.stats import chisquare

from tests.errors import refused
from tests.mpc.pair.parties import both
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.errors import ProtocolError
from veilgraph.link.codec import encoded_size
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.pair import transfers
from veilgraph.mpc.pair.base_transfers import KEY_BYTES, POINT_BYTES, TRANSFERS, transfer_keys
from veilgraph.mpc.pair.transfers import (
    SETUP_MESSAGE_BYTES,
    Transfers,
    choice_message_bytes,
    hash_rows,
)

LEAST_CHANCE = 1e-4
"""Of a uniform sample to be as uneven; secrets are fixed, so each test decides the same every time."""


def digits_of(count, bits, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << bits, count, dtype=np.uint8)


def uniform(octets):
    """How likely uniform bytes are as uneven as these."""
    return chisquare(np.bincount(np.asarray(octets).reshape(-1), minlength=256)).pvalue


def transcripts(part):
    """What both return, and what each sent, in order."""
    links = {}

    def recorded(link):
        links[link.party] = RecordedLink(link, keep_transcript=True)
        return links[link.party]

    results = both(part, wrapped=recorded)
    sent = {
        party: [message.tensor for message in link.transcript() if message.sender == party]
        for party, link in links.items()
    }
    return results, sent["A"], sent["B"]


def one_way(digits, bits, seed=0, calls=1, dtype=np.uint64):
    """A chooses and B offers: A's pads, B's, and A's messages after the setup's."""

    def part(peer):
        ends = Transfers(peer, fixed_secrets(seed, peer.leads))
        if peer.leads:
            return [ends.choose(digits, bits, dtype) for _ in range(calls)]
        return [ends.offer(len(digits), bits, dtype) for _ in range(calls)]

    (pads, offers), sent, _ = transcripts(part)
    return pads, offers, [message.numpy() for message in sent[2:]]


def test_each_party_gets_the_key_of_every_pair_that_it_chooses():
    choices = {leads: (digits_of(TRANSFERS, 1, leads) == 1).tolist() for leads in (True, False)}

    def part(peer):
        return transfer_keys(peer, choices[peer.leads], fixed_secrets(peer.leads))

    (pairs, chosen), (other_pairs, other_chosen) = both(part)
    assert chosen == [pair[choice] for pair, choice in zip(other_pairs, choices[True], strict=True)]
    assert other_chosen == [pair[choice] for pair, choice in zip(pairs, choices[False], strict=True)]
    every = [key for pair in (*pairs, *other_pairs) for key in pair]
    assert len(set(every)) == 4 * TRANSFERS
    assert {len(key) for key in every} == {KEY_BYTES}


@pytest.mark.parametrize("choice", [False, True])
def test_a_base_choice_is_a_uniform_point(choice):
    def part(peer):
        return transfer_keys(peer, [choice] * TRANSFERS, fixed_secrets(choice, peer.leads))

    _, (points,), _ = transcripts(part)
    assert uniform(points[1:]) > LEAST_CHANCE
    assert all(bindings.crypto_core_ed25519_is_valid_point(point.numpy().tobytes()) for point in points)


def of_order_q(count):
    return [bindings.crypto_core_ed25519_from_uniform(hashlib.sha256(bytes([n])).digest()) for n in range(count)]


ORDER_4 = bytes(POINT_BYTES)  # y = 0
BAD_POINTS = {
    "off the curve": bytes([2]) + bytes(31),
    "neutral": bytes([1]) + bytes(31),
    "of order 4": ORDER_4,
    "with a part of order 4": bindings.crypto_core_ed25519_add(of_order_q(1)[0], ORDER_4),
    "y beyond the field": (2**255 - 19 + 4).to_bytes(POINT_BYTES, "little"),
    "the point that leaves 0": bindings.crypto_core_ed25519_from_uniform(
        hashlib.sha256(b"veilgraph base transfer/C").digest()
    ),
}


@pytest.mark.parametrize("row", [0, 1, TRANSFERS])
@pytest.mark.parametrize("name", BAD_POINTS)
def test_bytes_that_are_no_point_are_refused(name, row):
    points = np.array([list(point) for point in of_order_q(1 + TRANSFERS)], np.uint8)
    points[row] = list(BAD_POINTS[name])

    def hostile(peer):
        peer.tell(torch.from_numpy(points))

    def honest(peer):
        transfer_keys(peer, [False] * TRANSFERS, fixed_secrets(0))

    if row == 0 and "leaves 0" in name:
        both(honest, hostile)  # as the sender's A it is a point like others
    else:
        with refused(ProtocolError, code="no-point", party="B"):
            both(honest, hostile)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_message_of_another_shape_is_refused(at):
    def honest(peer):
        Transfers(peer, fixed_secrets(0)).offer(1, 1, np.uint64)

    def hostile(peer):
        tell, told = peer.tell, []

        def short(message):
            told.append(message)
            tell(message[:-1] if len(told) == at + 1 else message)

        peer.tell = short
        Transfers(peer, fixed_secrets(1)).choose(digits_of(1, 1), 1, np.uint64)

    with refused(ProtocolError, code="shape", party="B"):
        both(honest, hostile)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("counts", [(0, 1), (1, 0), (63, 64), (65, 300), (20000, 9000)])
def test_the_pads_of_chosen_digits_are_the_senders_and_all_others_differ(bits, counts):
    digits = [digits_of(count, bits, count) for count in counts]

    def part(peer):
        own, theirs = digits if peer.leads else digits[::-1]
        ends = Transfers(peer, fixed_secrets(bits, peer.leads))
        return [(ends.choose(own, bits, np.uint64), ends.offer(len(theirs), bits, np.uint64)) for _ in range(2)]

    (first, second), sent, other_sent = transcripts(part)
    seen = []
    for (chosen, offers), (other_chosen, other_offers) in zip(first, second, strict=True):
        for pads, own, offered in ((chosen, digits[0], other_offers), (other_chosen, digits[1], offers)):
            assert offered.shape == (1 << bits, len(own))
            assert np.array_equal(pads, offered[own, np.arange(len(own))])
            seen.append(offered.reshape(-1))
    every = np.concatenate(seen)
    assert len(np.unique(every)) == len(every), "of 64 bits: no two are alike but by chance"
    sizes = [*SETUP_MESSAGE_BYTES], [*SETUP_MESSAGE_BYTES]
    assert [encoded_size(each) for each in sent] == [*sizes[0], *[choice_message_bytes(counts[0], bits)] * 2]
    assert [encoded_size(each) for each in other_sent] == [*sizes[1], *[choice_message_bytes(counts[1], bits)] * 2]


@pytest.mark.parametrize("bits", [1, 4])
def test_pads_are_uniform_those_of_one_digit_and_sums_of_two(bits):
    _, (offers,), _ = one_way(digits_of(4096, bits), bits)
    for digit in range(1 << bits):
        assert uniform(offers[digit].view(np.uint8)) > LEAST_CHANCE
        assert digit == 0 or uniform((offers[0] ^ offers[digit]).view(np.uint8)) > LEAST_CHANCE


def test_pads_are_cut_to_the_integers_that_are_asked_for():
    digits = digits_of(100, 1)
    (wide,), _, _ = one_way(digits, 1)
    (narrow,), (offers,), _ = one_way(digits, 1, dtype=np.uint8)
    assert narrow.dtype == offers.dtype == np.uint8
    assert np.array_equal(narrow, wide.astype(np.uint8))


@pytest.mark.parametrize("bits", [1, 4])
def test_the_senders_view_of_choices_is_uniform_whatever_they_are(bits):
    messages = [
        one_way(digits, bits, seed)[2][0]
        for seed, digits in enumerate(
            (np.zeros(1024, np.uint8), np.full(1024, (1 << bits) - 1, np.uint8), digits_of(1024, bits))
        )
    ]
    for message in messages:
        assert uniform(message.view(np.uint8)) > LEAST_CHANCE
        places = message.reshape(32, -1)
        for other in range(1, 32):
            assert uniform((places[0] ^ places[other]).view(np.uint8)) > LEAST_CHANCE / 31


def test_a_second_choice_is_masked_by_other_bits():
    digits = digits_of(4096, 1)
    first, second = one_way(digits, 1, calls=2)[2]
    assert uniform((first ^ second).view(np.uint8)) > LEAST_CHANCE


def test_two_jobs_with_one_partys_secrets_show_where_choices_differ_and_with_fresh_ones_nothing():
    """The attack over pairs of jobs: the sum of two messages under the same masks is the sum of the choices."""
    digits, others = digits_of(1024, 1, 1), digits_of(1024, 1, 2)
    differ = int((digits ^ others).sum())

    def ones(seed, other_seed):
        first, second = (one_way(each, 1, at)[2][0] for each, at in ((digits, seed), (others, other_seed)))
        return np.unpackbits((first ^ second)[0].view(np.uint8)).sum()

    assert ones(1, 1) == differ
    assert abs(ones(1, 2) - 512) < 5 * 16
    assert ones(1, 2) != differ


def test_the_hash_is_its_formula():
    rows = np.random.default_rng(0).integers(0, 1 << 63, (5, 2)).astype(np.uint64)
    aes = Cipher(algorithms.AES128(hashlib.sha256(b"veilgraph transfers").digest()[:16]), modes.ECB()).encryptor()
    for number, row in enumerate(rows, 1 << 33):
        once = aes.update(row.tobytes())
        tweaked = int.from_bytes(once, "little") ^ number
        twice = aes.update(tweaked.to_bytes(16, "little"))
        expected = int.from_bytes(once, "little") ^ int.from_bytes(twice, "little")
        assert int(hash_rows(row[None], number)[0]) == expected & (1 << 64) - 1


def test_equal_rows_have_other_pads_under_other_numbers():
    rows = np.ones((1000, 2), np.uint64)
    assert len(np.unique(hash_rows(rows, 0))) == 1000
    assert not np.intersect1d(hash_rows(rows, 0), hash_rows(rows, 1000)).size


def test_no_number_is_hashed_twice_as_one_calls_after_the_other(monkeypatch):
    ranges, plain = Counter[int](), hash_rows

    def counted(rows, first):
        ranges.update(range(first, first + len(rows)))
        return plain(rows, first)

    monkeypatch.setattr(transfers, "hash_rows", counted)
    one_way(digits_of(9000, 1), 1, calls=3)  # more than are hashed at a time
    assert len(ranges) == 27000
    assert set(ranges.values()) == {3}, "once by the chooser, and by the sender for either digit"


def choosers_guess(digits, pads, told):
    """Sender's bits b as a chooser would read them from k_0 + b − k_1, were k_0 ⊕ k_1 the same in every transfer.

    With k_c known, each b gives a candidate for the constant; the right ones agree.
    """
    candidates = []
    for bit in range(2):
        other = np.where(digits == 1, told - bit + pads, pads + bit - told)
        candidates.append(other ^ pads)
    constant, _ = Counter(np.concatenate(candidates).tolist()).most_common(1)[0]
    return (candidates[1] == constant).astype(np.int64)


def test_sums_of_a_tree_are_under_keys_of_the_base_transfers():
    """Without them the other half of each level would come too, and with it the seed that hides the choices."""

    def setup_of_a(others_seed):
        def part(peer):
            Transfers(peer, fixed_secrets(1) if peer.leads else fixed_secrets(2, others_seed))

        _, (_, sums), _ = transcripts(part)
        return sums.numpy()

    first, second = setup_of_a(1), setup_of_a(2)  # the same trees, and other keys
    assert uniform(first ^ second) > LEAST_CHANCE
    assert (first != second).any(axis=-1).all()


def rows_of_all_digits(monkeypatch, bits, seed):
    """The rows that the sender hashes for each digit of the first transfer, in elements of F_16: [2^bits, 32]."""
    hashed, chosen = [], Event()

    def kept(rows, first):
        hashed.append(rows[0])
        return hash_rows(rows, first)

    def part(peer):
        ends = Transfers(peer, fixed_secrets(seed, peer.leads))
        if peer.leads:
            ends.choose(np.zeros(1, np.uint8), bits, np.uint64)
            chosen.set()
        else:
            assert chosen.wait(20)
            ends.offer(1, bits, np.uint64)

    with monkeypatch.context() as patch:
        patch.setattr(transfers, "hash_rows", kept)
        both(part)
    octets = np.array(hashed[-(1 << bits) :]).view(np.uint8)  # the chooser's is the first of all
    return np.stack([octets & 15, octets >> 4], -1).reshape(len(octets), -1)


def test_the_difference_of_two_digits_rows_has_128_random_bits(monkeypatch):
    deltas = [np.bitwise_xor.reduce(rows_of_all_digits(monkeypatch, 1, seed)) for seed in range(16)]
    assert chisquare(np.bincount(np.concatenate(deltas), minlength=16)).pvalue > LEAST_CHANCE
    assert all(0 < ones < 16 for bit in range(4) for ones in (np.array(deltas) >> bit & 1).sum(0))


def test_digits_rows_differ_by_multiples_in_a_field(monkeypatch):
    """So no two digits' rows are nearer to each other than Δ is to zeros."""
    rows = rows_of_all_digits(monkeypatch, 4, 0)
    for place, delta in zip(rows.T, rows[0] ^ rows[1], strict=True):
        assert len(set(place)) == (16 if delta else 1)


@pytest.mark.parametrize("hashed", [True, False])
def test_without_the_hash_a_chooser_reads_the_senders_bits_and_with_it_guesses(hashed, monkeypatch):
    if not hashed:
        monkeypatch.setattr(transfers, "hash_rows", lambda rows, first: rows[:, 0])
    digits, secret = digits_of(2000, 1, 1), digits_of(2000, 1, 2).astype(np.int64)

    def sender(peer):
        zero, one = Transfers(peer, fixed_secrets(1)).offer(len(secret), 1, np.int64)
        peer.tell(torch.from_numpy(zero + secret - one))

    def chooser(peer):
        pads = Transfers(peer, fixed_secrets(2)).choose(digits, 1, np.int64)
        return choosers_guess(digits, pads, peer.hear((len(digits),), torch.int64).numpy())

    _, guess = both(sender, chooser)
    right = int((guess == secret).sum())
    assert right == 2000 if not hashed else abs(right - 1000) < 5 * 23
