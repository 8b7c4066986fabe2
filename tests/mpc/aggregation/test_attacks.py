"""What a server and holders that collude with it can make of a round, and what the holders refuse."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from scipy.stats import chisquare
from torch import Tensor
from veilgraph_averaging.aggregation import shamir
from veilgraph_averaging.aggregation.keys import (
    KEY_BYTES,
    SEALED_BYTES,
    PairSecrets,
    Round,
    Sealing,
    Secrets,
    Signatures,
    mask_private,
    own_mask,
    pad_pair_key,
    pair_purpose,
    pairwise_mask,
)
from veilgraph_averaging.aggregation.rounds import HolderRound

from tests.errors import refused
from tests.mpc.aggregation.rounds import (
    NAMES,
    Played,
    add_over_links,
    begin,
    pair_secrets,
    play,
    ring_values,
    round_of,
    signers,
    source,
    until_masked,
)
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.errors import ProtocolError
from veilgraph.core.secrets import derive_key
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.factory import MemoryHub
from veilgraph.mpc.mask import ring_sum

SIZE = 3
ROUNDS = "veilgraph_averaging.aggregation.rounds"


# What the server can compute of one holder's masked values


def own_mask_of(played: Played, holder: PartyId, answers: Mapping[PartyId, Tensor]) -> Tensor:
    """From shares of the holder's own mask."""
    return own_mask(played.round, combined(played, holder, answers), played.sent[3][holder].numel())


def pairwise_of(played: Played, gone: PartyId, peer: PartyId, answers: Mapping[PartyId, Tensor]) -> Tensor:
    """What ``peer`` added for ``gone``, from shares of the mask key of ``gone``."""
    mask_key = combined(played, gone, answers)
    offer = played.sent[1][peer].numpy().tobytes()
    size = played.sent[3][peer].numel()
    padded = played.round.row(played.sent[2][gone], peer)[SEALED_BYTES:]
    pair_key = pad_pair_key(played.round, mask_key, peer, padded)
    public = offer[KEY_BYTES : 2 * KEY_BYTES]
    return -pairwise_mask(played.round, gone, mask_private(mask_key), peer, public, pair_key, size)


def combined(played: Played, holder: PartyId, answers: Mapping[PartyId, Tensor]) -> int:
    place = played.round.holders.index
    chosen = list(answers)[: played.round.threshold]
    return shamir.combine(
        {place(name) + 1: shamir.of_bytes(answers[name][place(holder)].numpy().tobytes()) for name in chosen}
    )


def survivors(round_: Round, gone: Sequence[PartyId] = ()) -> Tensor:
    return torch.tensor([name not in gone for name in round_.holders])


def rows(round_: Round, messages: Mapping[PartyId, Tensor]) -> Tensor:
    width = next(iter(messages.values())).numel()
    return torch.stack([messages.get(name, torch.zeros(width, dtype=torch.uint8)) for name in round_.holders])


def answers_to(played: Played, told: Mapping[PartyId, Tensor]) -> dict[PartyId, Tensor]:
    """What the holders reveal to a server that tells each whatever it likes, and passes all signatures on."""
    signed = {name: played.holders[name].confirm(told[name]) for name in told}
    passed = {
        name: {
            other: signed[other]
            for place, other in enumerate(played.round.holders)
            if told[name][place] and other in signed
        }
        for name in told
    }
    return {name: played.holders[name].reveal(rows(played.round, passed[name])) for name in told}


# Both secrets of one holder


def test_a_holder_that_answers_twice_gives_another_away_and_it_does_not():
    """With both secrets of one, its values come out: asked twice, all but it say that it survived, and that it has not.

    A second copy of a holder answers as one would that does not remember its answer.
    """
    round_, victim = round_of(4, 3), NAMES[1]
    values = ring_values(NAMES[:4], SIZE, 0)
    played, again = begin(round_, "same"), begin(round_, "same")
    others = [name for name in round_.holders if name != victim]
    for each in (played, again):
        until_masked(each, values)
    alive = answers_to(played, dict.fromkeys(round_.holders, survivors(round_)))
    dead = answers_to(again, dict.fromkeys(others, survivors(round_, [victim])))
    masks = [-pairwise_of(played, victim, peer, dead) for peer in others]
    found = played.sent[3][victim] - own_mask_of(played, victim, alive) - ring_sum(masks)
    assert torch.equal(found, values[victim])
    for name in others:
        with refused(ProtocolError, code="order", value=4):
            played.holders[name].confirm(survivors(round_, [victim]))
        with refused(ProtocolError, code="order", value=5):
            played.holders[name].reveal(torch.zeros(4, 64, dtype=torch.uint8))


GONE: Mapping[PartyId, Sequence[PartyId]] = dict(zip(NAMES, ("AD", "ED", "EA", "EA", "D"), strict=False))
"""What each of five holders is told: of E, A and D three holders each believe that they have dropped out."""


def sum_of_two() -> tuple[Tensor, Tensor]:
    """Whom the server has cut off the sum, to the two that it is after: what it finds, and what is so."""
    round_ = round_of(5, 3)
    values = ring_values(NAMES[:5], SIZE, 1)
    played = begin(round_)
    until_masked(played, values)
    answers = answers_to(played, {name: survivors(round_, gone) for name, gone in GONE.items()})
    left = [name for name in round_.holders if not any(name in gone for gone in GONE.values())]
    total = ring_sum(played.sent[3][name] for name in left)
    for name in left:
        total -= own_mask_of(played, name, answers)
        for gone in "EAD":
            believing = {teller: answers[teller] for teller in answers if gone in GONE[teller]}
            total -= pairwise_of(played, gone, name, believing)
    assert len(left) < round_.threshold
    return total, ring_sum(values[name] for name in left)


def test_different_survivors_for_each_would_leave_a_sum_of_fewer_than_the_threshold(monkeypatch):
    with monkeypatch.context() as unchecked:
        unchecked.setattr(Signatures, "check", lambda *_: None)
        found, wanted = sum_of_two()
    assert torch.equal(found, wanted), "the attack works without the check"
    with refused(ProtocolError, code="bad-signature"):
        sum_of_two()


def test_who_saw_the_same_survivors_are_fewer_than_the_threshold_where_they_differ():
    """Nor does it help the server to pass on those signatures alone that fit."""
    round_ = round_of(5, 3)
    played = begin(round_)
    until_masked(played, ring_values(NAMES[:5], SIZE, 1))
    signed = {name: played.holders[name].confirm(survivors(round_, gone)) for name, gone in GONE.items()}
    for name in round_.holders:
        alike = {other: signed[other] for other in round_.holders if GONE[other] == GONE[name]}
        with refused(ProtocolError, code="too-few"):
            played.holders[name].reveal(rows(round_, alike))


def opened_twice(threshold: int) -> tuple[Tensor, Tensor]:
    """A server and one holder confirm two sets of survivors, and others one each; what one adds, and what is found.

    The one that colludes answers twice, and so gives the missing share of either secret of the one that they are after.
    """
    round_ = round_of(5, threshold)
    first, victim, second, third, friend = round_.holders
    values = ring_values(round_.holders, SIZE, 4)
    played, copy = begin(round_, "same"), begin(round_, "same")
    for each in (played, copy):
        until_masked(each, values)

    def answers(told: Tensor, of: Mapping[PartyId, HolderRound]) -> dict[PartyId, Tensor]:
        signed = {name: holder.confirm(told) for name, holder in of.items()}
        return {name: holder.reveal(rows(round_, signed)) for name, holder in of.items()}

    alive = answers(survivors(round_), {name: played.holders[name] for name in (first, victim, friend)})
    others = {name: played.holders[name] for name in (second, third)}
    dead = answers(survivors(round_, [victim]), {**others, friend: copy.holders[friend]})
    masks = [-pairwise_of(played, victim, peer, dead) for peer in round_.holders if peer != victim]
    return played.sent[3][victim] - own_mask_of(played, victim, alive) - ring_sum(masks), values[victim]


def test_with_a_threshold_of_half_and_one_that_answers_twice_a_holders_values_come_out():
    found, wanted = opened_twice(3)
    assert torch.equal(found, wanted), "the attack works where 2·threshold is no more than all and those that collude"
    with refused(ProtocolError, code="too-few"):
        opened_twice(4)


# What a server that changes messages gets


def offers_of(played: Played) -> Tensor:
    return rows(played.round, {name: played.holders[name].offer() for name in played.round.holders})


def other_round(played: Played) -> Tensor:
    return offers_of(begin(round_of(4, 3, number=9)))


def keys_of_the_server(offers: Tensor, played: Played) -> Tensor:
    offers[2, : 3 * KEY_BYTES] = torch.frombuffer(
        bytearray(Secrets(source(played.round, "x")).offer()), dtype=torch.uint8
    )
    return offers


def swapped(offers: Tensor, played: Played) -> Tensor:
    return offers[[0, 2, 1, 3]]


def replayed(offers: Tensor, played: Played) -> Tensor:
    offers[2] = other_round(played)[2]
    return offers


def of_another_session(offers: Tensor, played: Played) -> Tensor:
    offers[2] = offers_of(begin(round_of(4, 3, session="other")))[2]
    return offers


@pytest.mark.parametrize("change", [keys_of_the_server, swapped, replayed, of_another_session])
def test_keys_that_their_holder_has_not_signed_for_this_round_are_refused(change):
    played = begin(round_of(4, 3))
    offers = change(offers_of(played), played)
    with refused(ProtocolError, code="bad-signature"):
        played.holders[NAMES[0]].share(offers)


@pytest.mark.parametrize(("place", "of"), [(2, NAMES[1]), (0, "else")], ids=["two alike", "its own changed"])
def test_keys_of_two_that_are_alike_and_own_ones_that_came_back_changed_are_refused(place, of):
    played = begin(round_of(4, 3))
    name, offers = NAMES[place], offers_of(played)
    one = HolderRound(
        played.round, name, signers(NAMES[:4])[name], pair_secrets(NAMES[:4])[name], source(played.round, of)
    )
    offers[place] = one.offer()
    with refused(ProtocolError, code="keys-again"):
        played.holders[NAMES[0]].share(offers)


def test_a_public_key_that_gives_everyone_the_same_secret_is_refused():
    played, name = begin(round_of(4, 3)), NAMES[1]
    offers, content = offers_of(played), bytes(32) + bytes(offers_of(begin(round_of(4, 3)))[1, 32:96].tolist())
    signature = signers(NAMES[:4])[name].sign("keys of test/round 0", content)
    offers[1] = torch.frombuffer(bytearray(content + signature), dtype=torch.uint8)
    with refused(ProtocolError, code="bad-public-key", party=name):
        played.holders[NAMES[0]].share(offers)


def bit_flipped(sealed: Tensor, played: Played) -> Tensor:
    sealed[1, 7] ^= 1
    return sealed


def of_other_senders(sealed: Tensor, played: Played) -> Tensor:
    return sealed[[0, 2, 1, 3]]


def for_another_receiver(sealed: Tensor, played: Played) -> Tensor:
    return played.told[2][NAMES[1]]


def its_own_sent_back(sealed: Tensor, played: Played) -> Tensor:
    """Both directions of a pair would have one key, and no nonce, if its name were not of the direction too."""
    sealed[1] = played.sent[2][NAMES[0]][1, :SEALED_BYTES]
    return sealed


@pytest.mark.parametrize("change", [bit_flipped, of_other_senders, for_another_receiver, its_own_sent_back])
def test_shares_that_are_not_what_their_holder_sealed_for_this_one_are_refused(change):
    round_ = round_of(4, 3)
    played = begin(round_)
    until_masked(played, ring_values(NAMES[:4], SIZE, 0))
    offers = played.server.offers(played.sent[1])
    again = begin(round_).holders[NAMES[0]]
    again.offer()
    again.share(offers)
    sealed = change(played.told[2][NAMES[0]].clone(), played)
    with refused(ProtocolError, code="bad-shares"):
        again.mask(sealed, torch.zeros(SIZE, dtype=torch.int64))


def test_who_was_not_there_before_cannot_be_there_now_and_who_is_left_out_does_not_go_on():
    def told(
        offered: Sequence[PartyId] = NAMES[:4],
        shared: Sequence[PartyId] = NAMES[:4],
        survived: Sequence[PartyId] = NAMES[:4],
        confirmed: Sequence[PartyId] = NAMES[:4],
    ) -> None:
        played, one = begin(round_of(4, 3)), NAMES[0]
        offers = offers_of(played)
        sealed = {name: played.holders[name].share(offers)[0, :SEALED_BYTES] for name in NAMES[1:4]}
        first = begin(round_of(4, 3)).holders[one]
        first.offer()
        mine = first.share(rows(played.round, {name: offers[NAMES.index(name)] for name in offered}))
        sealed[one] = mine[0, :SEALED_BYTES]
        first.mask(rows(played.round, {name: sealed[name] for name in shared}), torch.zeros(1, dtype=torch.int64))
        first.confirm(torch.tensor([name in survived for name in NAMES[:4]]))
        words = "\n".join(name for name in NAMES[:4] if name in survived).encode()
        signed = {name: signers(NAMES[:4])[name].sign("survivors of test/round 0", words) for name in confirmed}
        first.reveal(
            rows(
                played.round, {name: torch.frombuffer(bytearray(it), dtype=torch.uint8) for name, it in signed.items()}
            )
        )

    told()
    for code, wrong in (
        ("keys-again", {"offered": NAMES[1:4]}),
        ("who", {"offered": NAMES[:3]}),
        ("who", {"shared": NAMES[:3]}),
        ("who", {"survived": NAMES[:3]}),
        ("left-out", {"shared": NAMES[1:4]}),
        ("left-out", {"survived": NAMES[1:4]}),
        ("too-few", {"offered": NAMES[:2]}),
        ("too-few", {"shared": NAMES[:2]}),
        ("too-few", {"survived": NAMES[:2]}),
        ("too-few", {"confirmed": NAMES[:2]}),
    ):
        with refused(ProtocolError, code=code):
            told(**wrong)


def test_what_is_signed_is_not_also_something_else():
    one, other = (signers(("A", "AB"))[name] for name in ("A", "AB"))
    signature = one.sign("x", b"By")
    other.check("A", "x", b"By", signature)
    for party, what, content in (("AB", "x", b"y"), ("A", "xA", b"By"), ("A", "x", b"By "), ("A", "", b"xABy")):
        with refused(ProtocolError, code="bad-signature", party=party):
            other.check(party, what, content, signature)
    shared = Signatures("A", *pair_of_one_key())
    with refused(ProtocolError, code="bad-signature"):
        shared.check("AB", "x", b"y", shared.sign("x", b"By"))


def pair_of_one_key() -> tuple[Ed25519PrivateKey, Mapping[PartyId, Ed25519PublicKey]]:
    """Two names of one key, so that nothing but the words tells their messages apart."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    return key, dict.fromkeys(("A", "AB"), key.public_key())


# Holders that break the protocol


def test_a_wrong_share_is_noticed():
    """Of an own mask or of a mask key: what comes out is held to what its holder offered."""
    for gone in ({}, {NAMES[3]: 3}):
        played = play(round_of(4, 3), ring_values(NAMES[:4], SIZE, 0), gone)
        answer = played.sent[5][NAMES[1]].clone()
        answer[3 if gone else 2, 0] ^= 1
        with refused(ProtocolError, code="bad-share", party=NAMES[3 if gone else 2]):
            played.server.unmask({**played.sent[5], NAMES[1]: answer})


def test_who_shares_with_others_than_all_is_named():
    played = begin(round_of(4, 3))
    offers = played.server.offers({name: played.holders[name].offer() for name in NAMES[:4]})
    shared = {name: played.holders[name].share(offers) for name in NAMES[:4]}
    shared[NAMES[1]][2] = 0
    with refused(ProtocolError, code="shared-with-others", party=NAMES[1]):
        played.server.shares(shared)


# What the server and all holders but two see

ROWS = 4000


def p_value(values: Tensor) -> float:
    counted = torch.bincount(values.contiguous().view(torch.uint8).flatten().long(), minlength=256)
    return float(chisquare(counted.numpy()).pvalue)


def seen_of_two(outside: Sequence[PartyId], zeros: Mapping[PartyId, Tensor]) -> dict[PartyId, Tensor]:
    """What the server and three of five holders are left with of the two others, every mask taken off that they know.

    They know their own keys, so their masks with the two, and the own masks of all survivors, which the round opens.
    """
    round_ = round_of(5, 4)
    played = play(round_, zeros)
    left = {}
    for name in outside:
        rest = played.sent[3][name] - own_mask_of(played, name, played.sent[5])
        public = played.sent[1][name].numpy().tobytes()[KEY_BYTES : 2 * KEY_BYTES]
        for ally in set(round_.holders) - set(outside):
            key = mask_private(Secrets(source(round_, ally)).mask_key)
            pair_key = pair_secrets(round_.holders)[ally].key(name, pair_purpose(round_, ally, name))
            rest += pairwise_mask(round_, ally, key, name, public, pair_key, ROWS)
        left[name] = rest
    return left


@pytest.mark.parametrize("outside", [NAMES[:2], NAMES[3:5]])
def test_the_server_and_all_holders_but_two_learn_the_sum_of_the_two_alone(outside, monkeypatch):
    zeros = {name: torch.zeros(ROWS, dtype=torch.int64) for name in NAMES[:5]}
    first, second = outside
    values = {**zeros, first: torch.full((ROWS,), 7), second: torch.arange(ROWS)}
    left = seen_of_two(outside, values)
    assert torch.equal(left[first] + left[second], values[first] + values[second])
    for name in outside:
        assert p_value(left[name]) > 1e-6, f"{name}'s values are not uniform to the others"
        assert p_value(left[name] - values[name]) > 1e-6
    unmasked = "veilgraph_averaging.aggregation.rounds.pairwise_mask"
    pair = sorted(outside)
    monkeypatch.setattr(
        unmasked,
        lambda round_, holder, private, peer, public, pair_key, size: (
            torch.zeros(size, dtype=torch.int64)
            if sorted([holder, peer]) == pair
            else pairwise_mask(round_, holder, private, peer, public, pair_key, size)
        ),
    )
    found = seen_of_two(outside, values)
    assert all(torch.equal(found[name], values[name]) for name in outside), "the test sees a mask that is left out"


def test_what_each_holder_sends_is_uniform_and_holds_no_share():
    round_ = round_of(5, 4)
    played = play(round_, {name: torch.zeros(ROWS, dtype=torch.int64) for name in NAMES[:5]})
    for name in NAMES[:5]:
        assert p_value(played.sent[3][name]) > 1e-6
        for revealed in played.sent[5].values():
            share = revealed[NAMES.index(name)].numpy().tobytes()
            sealed = b"".join(rows_.numpy().tobytes() for rows_ in played.sent[2].values())
            assert share not in sealed


def test_as_many_holders_as_the_threshold_could_open_what_fewer_cannot():
    """Why the threshold is above the holders that may collude: t − 1 shares fit every secret (test_shamir)."""
    round_, victim = round_of(5, 4), NAMES[4]
    played = begin(round_)
    until_masked(played, ring_values(NAMES[:5], SIZE, 0))
    public = played.sent[1][victim].numpy().tobytes()[:KEY_BYTES]
    pairs = {}
    for place, ally in enumerate(NAMES[:4], start=1):
        sealing = Sealing(round_, ally, Secrets(source(round_, ally)).sealing, pair_secrets(round_.holders)[ally])
        row = played.told[2][ally][NAMES.index(victim)].numpy().tobytes()
        pairs[place] = sealing.open(victim, public, row)
    wanted = Secrets(source(round_, victim))
    for secret, half in ((wanted.mask_key, slice(0, 32)), (wanted.own_mask, slice(32, 64))):
        shares = {place: shamir.of_bytes(pair[half]) for place, pair in pairs.items()}
        assert shamir.combine(shares) == secret
        assert shamir.combine(dict(list(shares.items())[:3])) != secret


def test_values_that_come_after_their_holder_was_given_up_stay_hidden(monkeypatch):
    """Its pairwise masks come off with its mask key, which the others reveal; its own mask does not (Bonawitz 4.2)."""
    round_, late = round_of(4, 3), NAMES[2]
    values = {name: torch.zeros(ROWS, dtype=torch.int64) for name in NAMES[:4]}

    def left() -> Tensor:
        played = begin(round_)
        until_masked(played, values)  # its values are on the way, and nobody waits for them
        told = dict.fromkeys([name for name in round_.holders if name != late], survivors(round_, [late]))
        answers = answers_to(played, told)
        return played.sent[3][late] - ring_sum(-pairwise_of(played, late, peer, answers) for peer in told)

    assert p_value(left()) > 1e-6
    monkeypatch.setattr(
        "veilgraph_averaging.aggregation.rounds.own_mask", lambda *_: torch.zeros(ROWS, dtype=torch.int64)
    )
    assert torch.equal(left(), values[late]), "the test sees an own mask that is left out"


# A server that keeps what it passed on, and breaks X25519 later


def opened_later(known: str) -> dict[PartyId, Tensor]:
    """What is left of each holder's values under all masks that a server can compute that knows one of two secrets.

    ``known`` is the X25519 keys of all holders, as a break of their offers gives them, or what all pairs share, as a
    break of their channels gives it. For the other the server takes what it has: a key of its own; or the keys of pairs
    as they came, under their pads, with ``X25519, unpadded`` less a pad that X25519 keys would give.
    """
    round_ = round_of(4, 3)
    played = play(round_, {name: torch.full((ROWS,), 7) for name in round_.holders})
    left = {}
    for name in round_.holders:
        rest = played.sent[3][name] - own_mask_of(played, name, played.sent[5])
        private = mask_private(Secrets(source(round_, "the server" if known == "pairs" else name)).mask_key)
        for peer in set(round_.holders) - {name}:
            pair_key = round_.row(played.sent[2][name], peer)[SEALED_BYTES:]
            if known == "X25519, unpadded":
                pad = derive_key(private.private_bytes_raw(), f"pad/{round_.name}/{peer}")
                pair_key = bytes(one ^ other for one, other in zip(pad, pair_key, strict=True))
            if known == "pairs":
                pair_key = pair_secrets(round_.holders)[name].key(peer, pair_purpose(round_, name, peer))
            public = played.sent[1][peer].numpy().tobytes()[KEY_BYTES : 2 * KEY_BYTES]
            rest -= pairwise_mask(round_, name, private, peer, public, pair_key, ROWS)
        left[name] = rest
    return left


@pytest.mark.parametrize("known", ["X25519", "X25519, unpadded", "pairs"])
def test_who_breaks_one_of_two_secrets_later_opens_no_holders_values(known):
    for name, left in opened_later(known).items():
        assert p_value(left) > 1e-6, f"{name}'s values are not uniform"


def test_with_x25519_alone_who_breaks_it_later_opens_every_holders_values(monkeypatch):
    """The control: pairs share nothing past the server, as up to protocol version 14."""
    monkeypatch.setattr(PairSecrets, "key", lambda *_: bytes(KEY_BYTES))
    monkeypatch.setattr(f"{ROUNDS}.pad_pair_key", lambda *_: bytes(KEY_BYTES))
    assert all(bool((left == 7).all()) for left in opened_later("X25519").values())


def read_shares(round_: Round, pairs: Mapping[PartyId, PairSecrets]) -> int:
    """The mask key of one that is counted, from what it sealed for the others, by a server with their X25519 keys."""
    victim = NAMES[3]
    played = begin(round_)
    until_masked(played, ring_values(round_.holders, SIZE, 0))
    public = played.sent[1][victim].numpy().tobytes()[:KEY_BYTES]
    found = {}
    for place, ally in enumerate(NAMES[:3], start=1):
        sealing = Sealing(round_, ally, Secrets(source(round_, ally)).sealing, pairs[ally])
        row = round_.row(played.told[2][ally], victim)
        found[place] = shamir.of_bytes(sealing.open(victim, public, row)[:32])
    return shamir.combine(found)


def test_who_breaks_x25519_later_reads_no_share(monkeypatch):
    round_ = round_of(4, 3)
    with refused(ProtocolError, code="bad-shares", party=NAMES[3]):
        read_shares(round_, pair_secrets(round_.holders, "a guess"))
    monkeypatch.setattr(PairSecrets, "key", lambda *_: bytes(KEY_BYTES))
    found = read_shares(round_, pair_secrets(round_.holders, "a guess"))
    assert found == Secrets(source(round_, NAMES[3])).mask_key, "the control: without what pairs share it reads them"


def test_pairs_share_what_nobody_else_has_and_the_server_passes_none_of_it_on():
    links = add_over_links({name: [torch.zeros(2)] for name in "ABC"}, 2).links
    halves = [
        (each.sender, each.receiver, each.tensor.numpy().tobytes())
        for each in links["A"].transcript()
        if (each.tag.kind, each.tag.round) == (Kind.KEY, 4)
    ]
    assert sorted((sender, receiver) for sender, receiver, _ in halves) == [
        ("A", "B"), ("A", "C"), ("B", "A"), ("C", "A"),
    ]  # fmt: skip
    assert len({half for _, _, half in halves}) == 4
    to_server = [each.tensor.numpy().tobytes() for each in links[SERVER].transcript()]
    assert not any(half in each for _, _, half in halves for each in to_server)
    secrets = pair_secrets(NAMES[:3])
    one, other, third = (secrets[name] for name in NAMES[:3])
    assert one.key(NAMES[1], "x") == other.key(NAMES[0], "x") != one.key(NAMES[1], "y")
    assert one.key(NAMES[1], "x") not in (third.key(NAMES[0], "x"), third.key(NAMES[1], "x"), one.key(NAMES[0], "x"))


def agreed(**seeds: object) -> bytes:
    """What A and B share for a purpose, where each draws its half from a seed."""
    hub = MemoryHub(list(seeds), 5.0)

    def agree(name: PartyId) -> PairSecrets:
        return PairSecrets.agree(hub.link(name), list(seeds), fixed_secrets(seeds[name]), round_=3)

    with ThreadPoolExecutor(len(seeds)) as pool:
        one, other = pool.map(agree, seeds)
    assert one.key("B", "x") == other.key("A", "x")
    return one.key("B", "x")


def test_either_half_of_a_pairs_secret_decides_all_of_it():
    found = [agreed(A=1, B=2), agreed(A=1, B=3), agreed(A=4, B=2), agreed(A=2, B=1)]
    assert len(set(found)) == len(found)


def test_a_pad_is_of_one_pair_and_one_round():
    rounds = [round_of(3, 2, number, session) for number, session in ((0, "a"), (1, "a"), (0, "b"))]
    keys = [Secrets(source(rounds[0], name)).mask_key for name in "AB"]
    pads = [
        pad_pair_key(round_, key, peer, bytes(KEY_BYTES))
        for round_, key, peer in product(rounds, keys, ("C", "D"))
    ]  # fmt: skip
    assert len(set(pads)) == len(pads) == 12


# Rounds


def test_no_round_and_no_session_has_the_masks_of_another_even_of_the_same_keys():
    """Keys are new in every round; were a source of secrets to repeat itself, the masks would still be others."""
    zeros = {name: torch.zeros(50, dtype=torch.int64) for name in NAMES[:3]}
    rounds = [
        round_of(3, 2, number, session) for number, session in ((0, "a"), (1, "a"), (10, "a"), (0, "b"), (0, "a/1"))
    ]
    played = [play(round_, zeros, begun=begin(round_, "same")) for round_ in rounds]
    for one, other in pairwise(played):
        assert all(torch.equal(one.sent[1][name][:96], other.sent[1][name][:96]) for name in zeros)
    for name in zeros:
        elements = [int(element) for each in played for element in each.sent[3][name]]
        assert len(set(elements)) == len(elements)
    sealed = [rows_.numpy().tobytes() for each in played for rows_ in each.sent[2].values()]
    assert len(set(sealed)) == len(sealed)


def test_each_mask_by_itself_is_of_its_round():
    seeds = Secrets(source(round_of(3, 2), "A"))
    public = mask_private(seeds.mask_key + 1).public_key().public_bytes_raw()
    rounds = [round_of(3, 2, number, session) for number, session in ((0, "a"), (1, "a"), (0, "b"))]
    masks = [own_mask(round_, seeds.own_mask, 20) for round_ in rounds]
    masks += [
        pairwise_mask(round_, "A", mask_private(seeds.mask_key), peer, public, bytes(32), 20)
        for round_ in rounds
        for peer in "BC"
    ]
    assert len({int(element) for mask in masks for element in mask}) == 20 * len(masks)


def test_keys_are_new_in_every_sum_of_a_session():
    summed = add_over_links({name: [torch.zeros(4)] * 3 for name in "ABC"}, 2)
    read = [each for each in summed.links[SERVER].transcript() if each.receiver == SERVER]
    offers = [each.tensor.numpy().tobytes() for each in read if each.tag.kind == Kind.KEY]
    parts = [offer[start : start + 32] for offer in offers for start in (0, 32, 64)]
    assert len(parts) == 27
    assert len(set(parts)) == len(parts)
    masked = [int(element) for each in read if each.tag.kind == Kind.MASKED for element in each.tensor]
    assert len(set(masked)) == len(masked)
