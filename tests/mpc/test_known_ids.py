"""Alignments that go on from an earlier one: what was common then goes round no ring, nor does the server see more."""

from __future__ import annotations

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
from veilgraph.core.errors import DataError, ProtocolError
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.view import Message
from veilgraph.mpc import intersect
from veilgraph.mpc.intersect import align_holder, align_server

Ids = Mapping[PartyId, Sequence[str]]

KNOWN = [f"customer {number:02}" for number in range(40)]
NOW = {
    "C": [*KNOWN[1:], "new at C and A", "new at all", "old, C alone"],
    "A": ["new at all", "new at C and A", *reversed(KNOWN[:-1])],
    "B": [*KNOWN, "old, B alone", "new at all"],
}
COMMON = {*KNOWN[1:-1], "new at all"}


def programs(
    ids: Ids, known: Sequence[str], secrets: Mapping[PartyId, SecretSource] | None = None, *, grows: bool = True
) -> dict[PartyId, Callable[[Link], Any]]:
    def holder(link: Link) -> Any:
        own = system_secrets if secrets is None else secrets[link.party]
        return align_holder(link, list(ids), ids[link.party], own, known=known, grows=grows)

    return {**dict.fromkeys(ids, holder), SERVER: lambda link: align_server(link, list(ids))}


def order_of(results: Mapping[PartyId, Any], ids: Ids) -> list[str]:
    """The agreed order, checked to be the same everywhere."""
    orders = [[ids[holder][row] for row in results[holder].rows.tolist()] for holder in ids]
    assert all(order == orders[0] for order in orders)
    assert len({result.identity for result in results.values()}) == 1
    assert results[SERVER].common == len(orders[0])
    return orders[0]


def views(
    ids: Ids, known: Sequence[str], secrets: Mapping[PartyId, SecretSource] | None = None, *, grows: bool = True
) -> dict[PartyId, tuple[Message, ...]]:
    """What every party sent and received."""
    return simulate({party: recorded(each) for party, each in programs(ids, known, secrets, grows=grows).items()})


def rows_of(messages: Sequence[Message], kind: Kind, sender: PartyId) -> list[bytes]:
    found = [message.tensor for message in messages if message.tag.kind is kind and message.sender == sender]
    return [row.tobytes() for tensor in found for row in tensor.numpy()]


@settings(max_examples=25)
@given(
    before=st.lists(st.sets(st.sampled_from("abcdefgh")), min_size=2, max_size=4),
    now=st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), min_size=4, max_size=4),
    piece_rows=st.integers(1, 5),
)
def test_it_finds_what_a_full_alignment_finds(before: list[set[str]], now: list[set[str]], piece_rows: int) -> None:
    """Ids come and go anywhere; where nobody has one that it had not before, none goes round."""
    ids = {name: sorted(own) for name, own in zip("CABD", now, strict=False)}
    ids = dict(list(ids.items())[: len(before)])
    known = sorted(set.intersection(*before))
    grows = any(set(own) - then for own, then in zip(ids.values(), before, strict=True))
    twin = set.intersection(*map(set, ids.values()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intersect, "PIECE_ROWS", piece_rows)
        if twin:
            order = order_of(simulate(programs(ids, known, grows=grows)), ids)
            assert set(order) == twin
            assert len(order) == len(twin)
        else:
            with refused(DataError, code="no-common-id", key="ids"):
                simulate(programs(ids, known, grows=grows))


def test_only_other_ids_go_round_and_all_tokens_go_to_the_server_in_one_list() -> None:
    assert set(order_of(simulate(programs(NOW, KNOWN)), NOW)) == COMMON
    seen = views(NOW, KNOWN)
    points = [len(message.tensor) for message in seen["A"] if message.tag.kind is Kind.BLINDED_IDS]
    others = {"C": 3, "A": 2, "B": 2}
    assert sum(points) == 2 * sum(others.values())
    for holder, own in NOW.items():
        tokens = rows_of(seen[SERVER], Kind.ID_TOKENS, holder)
        assert len(tokens) == len(own)
        assert tokens == sorted(set(tokens)), "which of them went round, their order does not say"


def test_without_new_ids_nothing_goes_round() -> None:
    less = {holder: [f"old, {holder} alone", *(text for text in own if text in KNOWN)] for holder, own in NOW.items()}
    for messages in views(less, KNOWN, grows=False).values():
        assert Kind.BLINDED_IDS not in {message.tag.kind for message in messages}
    results = simulate(programs(less, KNOWN, grows=False))
    assert set(order_of(results, less)) == set(KNOWN[1:-1])
    assert results["A"].set_sizes == {}


def num_shared(first: Sequence[Message], again: Sequence[Message]) -> int:
    """How many tokens of C the server sees in both."""
    return len({*rows_of(first, Kind.ID_TOKENS, "C")} & {*rows_of(again, Kind.ID_TOKENS, "C")})


def test_the_server_links_no_id_of_two_alignments_unless_the_key_stays() -> None:
    """The attack, with the same secrets twice, sees each id again; with those of the system it sees none."""
    once = {holder: fixed_secrets("stays", holder) for holder in NOW}
    same = {holder: fixed_secrets("stays", holder) for holder in NOW}
    assert num_shared(views(NOW, KNOWN, once)[SERVER], views(NOW, KNOWN, same)[SERVER]) == len(NOW["C"])
    first, again = (views(NOW, KNOWN)[SERVER] for _ in range(2))
    assert num_shared(first, again) == 0
    orders = [order_of(simulate(programs(NOW, KNOWN)), NOW) for _ in range(2)]
    assert orders[0] != orders[1]


def test_the_key_is_the_first_holders_and_does_not_reach_the_server() -> None:
    seen = views(NOW, KNOWN)
    keys = {message.tensor.numpy().tobytes() for each in seen.values() for message in each if message.tag == KEY}
    (key,) = keys
    assert len(key) == 32
    senders = {(message.sender, message.receiver) for each in seen.values() for message in each if message.tag == KEY}
    assert senders == {("C", "A"), ("C", "B")}
    assert {message.tag.kind for message in seen[SERVER]} == {Kind.ID_TOKENS, Kind.COMMON_IDS}
    tokens = rows_of(seen[SERVER], Kind.ID_TOKENS, "B")
    assert hashlib.blake2b(KNOWN[0].encode(), key=key, digest_size=16).digest() in tokens
    guesses = [hashlib.blake2b(text.encode(), key=wrong, digest_size=16).digest() for text in KNOWN for wrong in WRONG]
    assert not {*guesses} & {*tokens}, "without the key no id can be tested"


KEY = Tag(Kind.ROW_ORDER, 0, 1)
WRONG = (b"", bytes(32))


def test_who_lost_an_id_others_do_not_see() -> None:
    """Whether A or B has lost one, C is sent the same but for what is random."""
    without = {"A": {**ALL, "A": KNOWN[1:]}, "B": {**ALL, "B": KNOWN[1:]}}

    def shapes(ids: Ids) -> list[tuple[str, str, tuple[int, ...]]]:
        found = views(ids, KNOWN, grows=False)["C"]
        return [(each.sender, str(each.tag), tuple(each.tensor.shape)) for each in found]

    assert shapes(without["A"]) == shapes(without["B"]) != shapes(ALL)


ALL = dict.fromkeys("CAB", KNOWN)


class Cheat:
    """A link whose owner sends something else under one tag."""

    def __init__(self, link: Link, tag: Tag, change: Callable[[Tensor], Tensor]) -> None:
        self._link, self._tag, self._change = link, tag, change
        self.party, self.receive, self.comes = link.party, link.receive, link.comes
        self.expect, self.close = link.expect, link.close

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        self._link.send(to, tag, self._change(tensor) if tag == self._tag else tensor)


@pytest.mark.parametrize(
    ("cheater", "tag", "change", "code"),
    [
        ("C", KEY, lambda key: key[:-1], "shape"),
        ("C", KEY, lambda key: key.long(), "shape"),
        (SERVER, Tag(Kind.COMMON_IDS), lambda rows: torch.zeros(1, 16, dtype=torch.uint8), "foreign-ids"),
    ],
    ids=["short key", "key of another type", "an id of nobody"],
)
def test_what_breaks_the_protocol_is_refused(
    cheater: PartyId, tag: Tag, change: Callable[[Tensor], Tensor], code: str
) -> None:
    honest = programs(ALL, KNOWN, grows=False)
    with refused(ProtocolError, code=code, party=cheater):
        simulate({**honest, cheater: lambda link: honest[cheater](Cheat(link, tag, change))})


def test_a_holder_that_has_lost_all_is_sent_none() -> None:
    gone = {**ALL, "B": ["another"]}
    with refused(DataError, code="no-common-id", key="ids"):
        simulate(programs(gone, KNOWN, grows=False))
    honest, tag = programs(gone, KNOWN, grows=False), Tag(Kind.COMMON_IDS)

    def server(link: Link) -> Any:
        return honest[SERVER](Cheat(link, tag, lambda _: torch.zeros(1, 16, dtype=torch.uint8)))

    with refused(ProtocolError, code="foreign-ids", party=SERVER):
        simulate({**honest, SERVER: server})
