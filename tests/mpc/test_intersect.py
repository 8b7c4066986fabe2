import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.errors import refused
from tests.mpc.sessions import fixed_secrets, recorded, simulate
from veilgraph.core.errors import DataError, PeerFailed, ProtocolError, VeilgraphError
from veilgraph.core.randomness import expand
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import Message, RecordedLink
from veilgraph.mpc import intersect
from veilgraph.mpc.curve25519 import draw_inverses, draw_scalars, hash_and_multiply
from veilgraph.mpc.hash_to_curve import POINT_BYTES
from veilgraph.mpc.intersect import align_holder, align_server
from veilgraph.mpc.x25519 import fast_multiply, multiply_by_openssl

PRIME = 2**255 - 19
Ids = Mapping[PartyId, Sequence[str]]
Change = Callable[[PartyId, Tag, Tensor], list[Tensor]]
"""(receiver, tag, tensor) → what a cheater sends in its place, message by message."""

SETS = {"A": ["1", "2", "3", "4", "5"], "B": ["7", "5", "2", "3"], "C": ["3", "8", "2", "1", "9", "7"]}
"""In common: 2 and 3. A and B alone have 5, B and C 7, A and C 1."""


def programs(ids: Ids) -> dict[PartyId, Callable[[Link], Any]]:
    holders = list(ids)
    return {
        **{holder: lambda link: align_holder(link, holders, ids[link.party]) for holder in holders},
        SERVER: lambda link: align_server(link, holders),
    }


def aligned(ids: Ids) -> tuple[list[str], dict[PartyId, Any]]:
    """The agreed order, checked to be the same everywhere, and all results."""
    results = simulate(programs(ids))
    orders = [[ids[holder][row] for row in results[holder].rows.tolist()] for holder in ids]
    assert all(order == orders[0] for order in orders)
    sizes = {holder: len(own) for holder, own in ids.items()}
    assert all(list(result.set_sizes.items()) == list(sizes.items()) for result in results.values())
    assert len({result.identity for result in results.values()}) == 1
    assert results[SERVER].common == len(orders[0])
    return orders[0], results


def common_ids(ids: Ids) -> set[str]:
    """The plaintext twin."""
    return set.intersection(*map(set, ids.values()))


def views(ids: Ids) -> dict[PartyId, tuple[Message, ...]]:
    """What every party sent and received."""
    return simulate({party: recorded(program) for party, program in programs(ids).items()})


def rows_of(messages: Sequence[Message], *kinds: Kind) -> list[bytes]:
    return [row.tobytes() for message in messages if message.tag.kind in kinds for row in message.tensor.numpy()]


def token(point: bytes) -> bytes:
    return hashlib.sha256(point).digest()[:16]


class Cheat:
    """A link whose owner sends something else than the protocol's message."""

    def __init__(self, link: Link, change: Change) -> None:
        self._link, self._change = link, change
        self.party, self.receive, self.comes = link.party, link.receive, link.comes
        self.expect, self.close = link.expect, link.close

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        for sent in self._change(to, tag, tensor):
            self._link.send(to, tag, sent)


def with_cheat(cheater: PartyId, change: Change, ids: Ids = SETS) -> dict[PartyId, Any]:
    honest = programs(ids)
    return simulate({**honest, cheater: lambda link: honest[cheater](Cheat(link, change))})


def on(kind: Kind, change: Callable[[Tensor], Tensor | list[Tensor]], round_: int | None = None) -> Change:
    def apply(to: PartyId, tag: Tag, tensor: Tensor) -> list[Tensor]:
        if tag.kind is not kind or round_ not in (None, tag.round):
            return [tensor]
        changed = change(tensor)
        return changed if isinstance(changed, list) else [changed]

    return apply


@settings(max_examples=15)
@given(
    sets=st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True), min_size=2, max_size=4),
    piece_rows=st.integers(1, 5),
)
def test_holders_agree_on_the_plain_intersection(sets, piece_rows):
    ids = {name: [f"id {letter}" for letter in own] for name, own in zip("CABD", sets, strict=False)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intersect, "PIECE_ROWS", piece_rows)
        if common_ids(ids):
            order, _ = aligned(ids)
            assert set(order) == common_ids(ids)
            assert len(order) == len(common_ids(ids))
        else:
            with refused(DataError, code="no-common-id", key="ids"):
                simulate(programs(ids))


@settings(max_examples=20)
@given(st.sets(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), min_size=1, max_size=12))
def test_any_text_can_be_an_id(texts):
    ids = {"A": sorted(texts), "B": [*sorted(texts, reverse=True), "another id than all of these"]}
    order, _ = aligned(ids)
    assert set(order) == texts


@pytest.mark.parametrize("count", [1, 300])
def test_identical_sets_come_in_an_order_that_is_not_theirs(count):
    own = [f"customer {number:03}" for number in range(count)]
    order, results = aligned({"A": own, "B": own})
    assert sorted(order) == own
    assert results["A"].rows.dtype == torch.int64
    assert (order == own) is (count == 1)


def test_every_alignment_has_its_own_order_and_identity():
    own = [f"customer {number}" for number in range(100)]
    first, again = aligned({"A": own, "B": own}), aligned({"A": own, "B": own})
    assert first[0] != again[0]
    assert first[1]["A"].identity != again[1]["A"].identity


def test_the_source_of_secrets_decides_the_order_and_nothing_else():
    ids = {"A": [str(number) for number in range(50)], "B": [str(number) for number in range(20, 70)]}

    def run(seed: int) -> list[str]:
        def holder(link: Link) -> Any:
            return align_holder(link, list(ids), ids[link.party], fixed_secrets(seed, link.party))

        results = simulate({"A": holder, "B": holder, SERVER: lambda link: align_server(link, list(ids))})
        return [ids["A"][row] for row in results["A"].rows.tolist()]

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert set(run(1)) == set(run(2)) == common_ids(ids)


def test_nothing_in_common_is_a_data_error_at_every_party():
    ids = {"A": ["1", "2"], "B": ["2", "3"], "C": ["3", "1"]}

    def stopped(program: Callable[[Link], Any]) -> Callable[[Link], str]:
        def run(link: Link) -> str:
            with pytest.raises(DataError) as caught:
                program(link)
            return str(caught.value)

        return run

    messages = simulate({party: stopped(program) for party, program in programs(ids).items()})
    assert len(messages) == 4
    assert set(messages.values()) == {messages["A"]}
    assert messages["A"].startswith("no id is common to A, B, C: ids are compared as text")


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ([], {"code": "count-of-ids", "key": "ids", "value": 0, "party": "A"}),
        (["x", "y", "z", "y"], {"code": "id-twice", "key": "ids", "value": 3, "party": "A"}),
        (["x", ""], {"code": "empty-id", "key": "ids", "value": 1, "party": "A"}),
        (["x", 7], {"code": "empty-id", "key": "ids", "value": 1, "party": "A"}),
        (["x", "\ud800"], {"code": "not-unicode", "key": "ids", "value": 1, "party": "A"}),
    ],
)
def test_ids_that_cannot_be_aligned_are_refused_before_anything_is_sent(own, message):
    link = RecordedLink(MemoryHub(["A", "B", SERVER], timeout_s=1).link("A"))
    with refused(DataError, **message):
        align_holder(link, ["A", "B"], own)
    assert link.traffic() == []


def test_too_many_ids_are_refused_by_their_owner_and_by_relays(monkeypatch):
    monkeypatch.setattr(intersect, "MAX_IDS", 5)
    with refused(DataError, code="count-of-ids", key="ids", value=6, party="C"):
        simulate(programs(SETS))
    monkeypatch.setattr(intersect, "check_ids", lambda party, ids: None)
    with refused(ProtocolError, code="too-many-ids", key="C", value=6, party="C"):
        simulate(programs(SETS))


def test_holders_are_held_to_what_they_stated(monkeypatch):
    monkeypatch.setattr(intersect, "PIECE_ROWS", 2)
    stated = {holder: len(own) for holder, own in SETS.items()}

    def program(link):
        return align_holder(link, list(SETS), SETS[link.party], stated=stated)

    programs_ = {**dict.fromkeys(SETS, program), SERVER: lambda link: align_server(link, list(SETS))}
    assert simulate(programs_)[SERVER].common == 2
    for owner in SETS:
        stated = {holder: len(own) - (holder == owner) for holder, own in SETS.items()}
        with refused(ProtocolError, code="too-many-ids", key=owner, party=owner):
            simulate(programs_)


ONE = (2**254).to_bytes(POINT_BYTES, "little")
"""A scalar that everybody knows."""


def points_of(names: Sequence[str], scalar: bytes = ONE) -> list[bytes]:
    return [row.tobytes() for row in hash_and_multiply(scalar, [name.encode() for name in names])]


def hashed(name: str) -> bytes:
    """H(id) by its definition: the first hash that is a u of the curve."""
    for count in range(256):
        digest = hashlib.sha256(b"veilgraph alignment/" + bytes([count]) + name.encode()).digest()
        u = int.from_bytes(digest, "little") % 2**255
        if u < PRIME and pow(u**3 + 486662 * u**2 + u, (PRIME - 1) // 2, PRIME) == 1:
            return u.to_bytes(POINT_BYTES, "little")
    raise AssertionError(name)


def test_no_message_holds_what_a_party_without_keys_can_compute():
    bare = [point for own in SETS.values() for point in (*map(hashed, own), *points_of(own))]
    guesses = {guess for own in SETS.values() for text in own for guess in (hashlib.sha256(text.encode()).digest(),)}
    guesses |= {*bare, *map(token, bare)}
    probes = {probe for guess in guesses for probe in (guess, guess[1:], guess[:16], token(guess))}
    for messages in views(SETS).values():
        for row in rows_of(messages, Kind.BLINDED_IDS, Kind.ID_TOKENS, Kind.COMMON_IDS):
            assert not any(probe in row or row in probe for probe in probes)


def test_two_alignments_of_the_same_ids_have_no_row_in_common():
    first, again = views(SETS), views(SETS)
    for party in first:
        kinds = (Kind.BLINDED_IDS, Kind.ID_TOKENS, Kind.COMMON_IDS)
        rows, others = rows_of(first[party], *kinds), rows_of(again[party], *kinds)
        assert len(rows) == len(others) > 0
        assert not set(rows) & set(others)


def test_the_server_sees_tokens_alone_and_in_an_order_of_no_meaning():
    messages = views(SETS)[SERVER]
    assert {message.tag.kind for message in messages} == {Kind.ID_TOKENS, Kind.COMMON_IDS}
    for message in messages:
        rows = rows_of([message], message.tag.kind)
        assert rows == sorted(set(rows))


def test_no_holder_can_compute_another_holders_tokens_of_ids_that_are_not_common():
    """Otherwise it would learn which of its own ids one other holder has, common to all or not."""
    seen = views(SETS)
    common = set(rows_of([m for m in seen[SERVER] if m.receiver == "A"], Kind.COMMON_IDS))
    assert len(common) == 2
    for holder in SETS:
        others = [message for message in seen[SERVER] if message.sender not in (holder, SERVER)]
        private = set(rows_of(others, Kind.ID_TOKENS)) - common
        points = rows_of(seen[holder], Kind.BLINDED_IDS)
        assert len(points) == 2 * sum(map(len, SETS.values()))
        assert len(private) >= 4
        assert not private & set(map(token, points))


def test_a_holder_meets_no_point_of_one_list_in_another():
    for holder, messages in views(SETS).items():
        points = rows_of(messages, Kind.BLINDED_IDS)
        assert len(set(points)) == len(points), holder


def test_ids_leave_in_an_order_of_their_own(monkeypatch):
    """Under scalars that are known the points can be told: they come as the secrets say, not as the ids were given."""
    monkeypatch.setattr(intersect, "draw_scalars", lambda secrets: (ONE, ONE, ONE))
    own = [str(number) for number in range(100)]
    secrets = fixed_secrets("order")
    hub = MemoryHub(["A", "B", "C", SERVER], timeout_s=0)
    with pytest.raises(VeilgraphError):
        align_holder(hub.link("A"), ["A", "B", "C"], own, secrets)
    piece = hub.link("B").receive("A", Tag(Kind.BLINDED_IDS))
    order = expand(fixed_secrets("order")(32), "order", (100,)).argsort().tolist()
    plain = points_of([own[row] for row in order])
    assert rows_of([Message("A", "B", Tag(Kind.BLINDED_IDS), piece)], Kind.BLINDED_IDS) == plain
    assert order != sorted(order)


@pytest.mark.parametrize("passed", [0, 1, 2])
def test_bytes_that_are_no_point_are_refused_in_the_senders_name(passed):
    bad = on(Kind.BLINDED_IDS, lambda points: torch.cat([points[:-1], torch.zeros(1, POINT_BYTES).byte()]), passed)
    with refused(ProtocolError, code="no-point", party="B"):
        with_cheat("B", bad)


@pytest.mark.parametrize(
    "point",
    [
        bytes(32),
        b"\1" + bytes(31),
        bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        PRIME.to_bytes(32, "little"),
        (PRIME + 9).to_bytes(32, "little"),
        b"\x09" + bytes(30) + b"\x80",
    ],
    ids=["order 2", "order 4", "order 8", "the field's 0", "a second form", "the highest bit"],
)
def test_every_kind_of_false_point_is_refused(point):
    row = torch.frombuffer(bytearray(point), dtype=torch.uint8)
    with refused(ProtocolError, code="no-point", party="A"):
        with_cheat("A", on(Kind.BLINDED_IDS, lambda points: torch.cat([row[None], points[1:]]), 0))


@pytest.mark.skipif(fast_multiply() is None, reason="needs the extra alignment, and AVX-512 IFMA")
@pytest.mark.parametrize("holders", [["A", "B"], ["A", "B", "C"]])
def test_a_holder_that_crafts_points_reads_no_bit_of_a_relays_key(holders):
    """By itself crypto_mb would answer u = p − 2 wrongly where bit 253 of B's key is 0."""
    crafted = torch.frombuffer(bytearray((PRIME - 2).to_bytes(POINT_BYTES, "little")), dtype=torch.uint8)[None]
    seen = set()
    for seed in range(40):
        hub, secrets = MemoryHub([*holders, SERVER], timeout_s=0), fixed_secrets(seed)
        key = draw_scalars(secrets)[2] if len(holders) > 2 else draw_inverses(secrets)[0]
        hub.link("A").send("B", Tag(Kind.BLINDED_IDS), crafted)
        with pytest.raises(VeilgraphError):
            align_holder(hub.link("B"), holders, ["x"], fixed_secrets(seed), {"A": 1, "B": 2})
        answer = hub.link(holders[-1] if len(holders) > 2 else "A").receive("B", Tag(Kind.BLINDED_IDS, 0, 1)).numpy()
        wrong = bool((answer != multiply_by_openssl(key, crafted.numpy())).any())
        seen.add((key[-1] >> 5 & 1, wrong))
    assert seen in ({(0, False), (0, True), (1, False), (1, True)}, {(0, False), (1, False)})


@pytest.mark.parametrize("passed", [1, 2])
@pytest.mark.parametrize("change", [lambda points: points[1:], lambda points: torch.cat([points, points[:1]])])
def test_a_relay_that_drops_or_adds_a_point_is_found_by_the_lists_owner(passed, change):
    with refused(ProtocolError, code="shape", key="blinded_ids/step 0/round 2"):
        with_cheat("B", on(Kind.BLINDED_IDS, change, passed))


def test_a_relay_that_ends_a_list_early_is_found_by_its_owner(monkeypatch):
    monkeypatch.setattr(intersect, "PIECE_ROWS", 2)
    with refused(ProtocolError, code="shape", key="blinded_ids/step 0/round 2", value="[1, 32] torch.uint8", party="C"):
        with_cheat("B", on(Kind.BLINDED_IDS, lambda points: points[:1], 1))


def test_a_relay_that_sends_more_at_once_than_a_piece_is_found(monkeypatch):
    monkeypatch.setattr(intersect, "PIECE_ROWS", 2)
    with refused(ProtocolError, code="too-many-ids", key="A", value=4, party="A"):
        with_cheat("A", on(Kind.BLINDED_IDS, lambda points: points.repeat(2, 1), 0))


def test_a_relay_that_doubles_a_point_in_place_of_another_is_found():
    double = on(Kind.BLINDED_IDS, lambda points: torch.cat([points[:-1], points[:1]]), 2)
    with refused(ProtocolError, code="points-twice", party="B"):
        with_cheat("B", double)


def test_a_relay_that_puts_other_points_in_place_takes_the_ids_out_of_the_intersection():
    def strangers(points: Tensor) -> Tensor:
        other = b"".join(points_of([str(row) for row in range(len(points))]))
        return torch.frombuffer(bytearray(other), dtype=torch.uint8).reshape(points.shape)

    with refused(DataError, code="no-common-id", key="ids", value=["A", "B", "C"]):
        with_cheat("B", on(Kind.BLINDED_IDS, strangers, 1))


@pytest.mark.parametrize("kind", [Kind.BLINDED_IDS, Kind.ID_TOKENS])
@pytest.mark.parametrize("change", [lambda rows: rows.float(), lambda rows: rows[:, :-1], lambda rows: rows[None]])
def test_messages_of_another_form_are_refused(kind, change):
    with refused(ProtocolError, code="shape", party="B"):
        with_cheat("B", on(kind, change))


@pytest.mark.parametrize("change", [lambda rows: rows.flip(0), lambda rows: torch.cat([rows[:1], rows])])
def test_tokens_out_of_order_or_twice_are_refused(change):
    with refused(ProtocolError, code="order", key="id_tokens/step 0/round 0", party="B"):
        with_cheat("B", on(Kind.ID_TOKENS, change))
    with refused(ProtocolError, code="order", key="common_ids/step 0/round 0", party="server"):
        with_cheat(SERVER, on(Kind.COMMON_IDS, change))


@pytest.mark.parametrize("last", [0, 255])
def test_common_ids_that_the_holder_does_not_have_are_refused(last):
    stranger = torch.full((1, 16), last, dtype=torch.uint8)
    with refused(ProtocolError, code="foreign-ids", party="server"):
        with_cheat(SERVER, on(Kind.COMMON_IDS, lambda rows: stranger))


def test_a_server_that_tells_holders_different_things_gives_them_different_identities():
    def shorter_for_a(to: PartyId, tag: Tag, tensor: Tensor) -> list[Tensor]:
        return [tensor[:1] if to == "A" else tensor]

    results = with_cheat(SERVER, shorter_for_a)
    assert results["A"].identity != results["B"].identity == results["C"].identity


@pytest.mark.parametrize("cheater", ["A", "B"])
def test_a_message_sent_twice_is_refused(cheater):
    with refused(ProtocolError, code="tag-again", key="blinded_ids/step 0/round 0", party=cheater):
        with_cheat(cheater, on(Kind.BLINDED_IDS, lambda points: [points, points], 0))


def test_an_alignment_is_made_once_per_link():
    ids = {"A": ["x"], "B": ["x"]}
    once = programs(ids)

    def twice(link: Link) -> None:
        once[link.party](link)
        once[link.party](link)

    with refused((ProtocolError, PeerFailed), code="tag-again", key="blinded_ids/step 0/round 0", party="B"):
        simulate(dict.fromkeys(once, twice))


def test_ids_are_compared_exactly():
    forms = ["7", "07", " 7", "7 ", "٧", "é", "e\u0301", "É", "a\0", "a", "日本", "🙂"]
    order, _ = aligned({"A": forms, "B": forms[::-1], "C": forms[1:]})
    assert sorted(order) == sorted(forms[1:])
    with refused(DataError, code="no-common-id", key="ids", value=["A", "B"]):
        simulate(programs({"A": forms[::2], "B": forms[1::2]}))
