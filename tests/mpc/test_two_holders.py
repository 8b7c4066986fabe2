"""Alignments of two holders: the one with more ids has the only key, and neither sees more than the result."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.errors import refused
from tests.mpc.sessions import fixed_secrets, recorded, simulate
from veilgraph.core.errors import DataError, ProtocolError, RunError
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.view import Message, RecordedLink
from veilgraph.mpc import intersect
from veilgraph.mpc.curve25519 import draw_inverses, hash_and_multiply
from veilgraph.mpc.hash_to_curve import hash_processes
from veilgraph.mpc.intersect import align_holder, align_server

Ids = Mapping[PartyId, Sequence[str]]
Change = Callable[[Tensor], Tensor]

IDS = {"A": ["2", "3", "5", "7", "11"], "B": [str(number) for number in range(12)]}
"""B has more ids, so it has the key; 2, 3, 5, 7 and 11 are common, and A has none alone."""
APART = {"A": ["2", "3", "a", "b", "c", "d"], "B": [str(number) for number in range(12)]}


def programs(ids: Ids, known: Sequence[str] = (), wrap: Callable[[Link], Link] = lambda link: link) -> dict[str, Any]:
    stated = {holder: len(own) for holder, own in ids.items()}

    def holder(link: Link) -> Any:
        secrets = fixed_secrets("two", link.party)
        return align_holder(wrap(link), list(ids), ids[link.party], secrets, stated, known=known)

    return {**dict.fromkeys(ids, holder), SERVER: lambda link: align_server(link, list(ids))}


def views(ids: Ids, known: Sequence[str] = ()) -> dict[PartyId, tuple[Message, ...]]:
    """What every party sent and received."""
    return simulate({party: recorded(program) for party, program in programs(ids, known).items()})


def rows_of(messages: Sequence[Message], kind: Kind, sender: PartyId, receiver: PartyId) -> list[bytes]:
    found = [
        each.tensor for each in messages if (each.tag.kind, each.sender, each.receiver) == (kind, sender, receiver)
    ]
    return [row.tobytes() for tensor in found for row in tensor.numpy()]


def tokens_under(key: bytes, names: Sequence[str]) -> dict[str, bytes]:
    points = hash_and_multiply(key, [name.encode() for name in names])
    return {name: hashlib.sha256(point.tobytes()).digest()[:16] for name, point in zip(names, points, strict=True)}


def key_of(holder: PartyId) -> bytes:
    return draw_inverses(fixed_secrets("two", holder))[0]


@settings(max_examples=40)
@given(
    sets=st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), min_size=2, max_size=2),
    known=st.sets(st.sampled_from("abcdefgh")),
    piece_rows=st.integers(1, 5),
)
def test_they_find_the_plain_intersection_whoever_has_more(sets, known, piece_rows):
    ids = {name: sorted(own) for name, own in zip("BA", sets, strict=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intersect, "PIECE_ROWS", piece_rows)
        if not set.intersection(*sets):
            with refused(DataError, code="no-common-id", key="ids"):
                simulate(programs(ids, sorted(known)))
            return
        results = simulate(programs(ids, sorted(known)))
    orders = [[ids[holder][row] for row in results[holder].rows.tolist()] for holder in ids]
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == sorted(set.intersection(*sets))
    assert len({result.identity for result in results.values()}) == 1
    sizes = {holder: len(set(own) - known) for holder, own in ids.items()}
    assert results["A"].set_sizes == results["B"].set_sizes == sizes
    assert results[SERVER].set_sizes == {holder: len(own) for holder, own in ids.items()}


@pytest.mark.parametrize("ids", [IDS, APART])
def test_the_holder_without_the_key_sees_random_tokens_but_for_common_ids(ids):
    """What a simulator makes of the result and of the other set's size: for each id that is not common a random row."""
    seen, tokens = views(ids), tokens_under(key_of("B"), ids["B"])
    theirs = rows_of(seen["A"], Kind.ID_TOKENS, "B", "A")
    assert theirs == sorted(tokens.values())
    guesses = {
        token
        for key in (key_of("A"), draw_inverses(fixed_secrets("two", "A"))[1])
        for token in tokens_under(key, ids["B"]).values()
    }
    assert not guesses & set(theirs), "its own scalars test no guess"
    answers = rows_of(seen["A"], Kind.BLINDED_IDS, "B", "A")
    assert len(answers) == len(set(answers)) == len(ids["A"])
    assert {message.tag.kind for message in seen["A"]} == {Kind.BLINDED_IDS, Kind.ID_TOKENS, Kind.COMMON_IDS}


def test_the_holder_with_the_key_sees_points_under_a_blind_alone():
    seen = views(APART)
    points = rows_of(seen["B"], Kind.BLINDED_IDS, "A", "B")
    assert len(points) == len(APART["A"])
    received = {message.tag.kind for message in seen["B"] if message.receiver == "B"}
    assert received == {Kind.BLINDED_IDS, Kind.COMMON_IDS}
    bare = {
        row.tobytes()
        for key in (key_of("B"), (2**254).to_bytes(32, "little"))
        for row in hash_and_multiply(key, [name.encode() for name in APART["A"]])
    }
    assert not bare & set(points)


def test_the_server_and_the_holder_with_the_key_test_no_guess_of_what_is_not_common():
    """The attack: F of guesses beside the other holder's tokens. Were these all F of its ids, it would find each."""
    guesses = tokens_under(key_of("B"), [*APART["A"], *map(str, range(20))])
    plain = tokens_under(key_of("B"), APART["A"]).values()
    assert {guess for guess, token in guesses.items() if token in plain} == set(APART["A"])
    seen = views(APART)
    sent = rows_of(seen[SERVER], Kind.ID_TOKENS, "A", SERVER)
    assert {guess for guess, token in guesses.items() if token in sent} == {"2", "3"}
    assert len(sent) == len(set(sent)) == len(APART["A"])
    assert sent == sorted(sent)


def test_known_ids_go_to_the_server_alone():
    """A has lost "9", which was common: whether B still has it the result does not say."""
    known = ["2", "9"]
    seen = views(APART, known)
    assert len(rows_of(seen["A"], Kind.ID_TOKENS, "B", "A")) == 10
    assert len(rows_of(seen[SERVER], Kind.ID_TOKENS, "B", SERVER)) == 12
    less = views({**APART, "B": [each for each in APART["B"] if each != "9"]}, known)

    def shapes(messages: Sequence[Message]) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(each.sender, str(each.tag), tuple(each.tensor.shape)) for each in messages]

    assert shapes(seen["A"]) == shapes(less["A"])


def test_two_alignments_share_no_row():
    def again(seed: int) -> dict[PartyId, tuple[Message, ...]]:
        def recorded(link: Link) -> tuple[Message, ...]:
            wrapper = RecordedLink(link, keep_transcript=True)
            align_holder(wrapper, list(APART), APART[link.party], stated={"A": 6, "B": 12})
            return wrapper.transcript()

        return simulate({**dict.fromkeys(APART, recorded), SERVER: lambda link: align_server(link, list(APART))})

    rows = [{row.tobytes() for each in again(seed)["A"] for row in each.tensor.numpy()} for seed in range(2)]
    assert not rows[0] & rows[1]


class Cheat:
    """A link whose owner changes what it sends to one party under one tag."""

    def __init__(self, link: Link, to: PartyId, tag: Tag, change: Change) -> None:
        self._link, self._to, self._tag, self._change = link, to, tag, change
        self.party, self.receive, self.comes = link.party, link.receive, link.comes
        self.expect, self.close = link.expect, link.close

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        self._link.send(to, tag, self._change(tensor) if (to, tag) == (self._to, self._tag) else tensor)


@pytest.mark.parametrize(
    ("cheater", "to", "tag", "change", "code"),
    [
        ("B", "A", Tag(Kind.ID_TOKENS), lambda rows: rows.flip(0), "order"),
        ("B", "A", Tag(Kind.ID_TOKENS), lambda rows: rows[:, :-1], "shape"),
        (
            "B",
            "A",
            Tag(Kind.ID_TOKENS),
            lambda rows: torch.cat([rows, torch.full((1, 16), 255).byte()]),
            "too-many-ids",
        ),
        ("B", "A", Tag(Kind.BLINDED_IDS, 0, 1), lambda rows: rows[1:], "shape"),
        ("B", "A", Tag(Kind.BLINDED_IDS, 0, 1), lambda rows: torch.cat([rows[:-1], rows[:1]]), "points-twice"),
        ("B", "A", Tag(Kind.BLINDED_IDS, 0, 1), lambda rows: 0 * rows, "no-point"),
        ("A", "B", Tag(Kind.BLINDED_IDS), lambda rows: 0 * rows, "no-point"),
        ("A", "B", Tag(Kind.BLINDED_IDS), lambda rows: rows.repeat(2, 1), "too-many-ids"),
    ],
)
def test_what_breaks_the_protocol_is_refused(cheater, to, tag, change, code):
    honest = programs(APART)
    with refused(ProtocolError, code=code, party=cheater):
        simulate({**honest, cheater: lambda link: honest[cheater](Cheat(link, to, tag, change))})


def test_bytes_are_those_of_the_formula(monkeypatch):
    """docs/explanation/alignment.md, H = 60; A brings 6 ids in pieces of 2, B 12."""
    monkeypatch.setattr(intersect, "PIECE_ROWS", 2)
    for holder, more in (("A", 0), ("B", 16 * 12 + 60)):
        sent = [each.tensor.nbytes + 60 for each in views(APART)[holder] if each.sender == holder]
        assert sum(sent) == 32 * 6 + 60 * 4 + 16 * len(APART[holder]) + 60 + more


def test_a_large_set_is_hashed_in_processes_and_comes_to_the_same(monkeypatch):
    """16 pieces for each process; one more or less of them, and a piece that is not full."""
    started = []

    def counted(count):
        started.append(count)
        return hash_processes(count)

    monkeypatch.setattr(intersect, "PIECE_ROWS", 2)
    monkeypatch.setattr(intersect, "hash_processes", counted)
    for count in (30, 31, 33):
        ids = {"A": ["1", "5", "a"], "B": list(map(str, range(count)))}
        results = simulate(programs(ids))
        assert {ids["A"][row] for row in results["A"].rows.tolist()} == {"1", "5"}
        assert {ids["B"][row] for row in results["B"].rows.tolist()} == {"1", "5"}
    assert started == [1, 1]


def test_a_process_that_ends_in_the_middle_ends_the_alignment(monkeypatch):
    monkeypatch.setattr(intersect, "PIECE_ROWS", 2)
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    with refused(RunError, code="hash-process"):
        simulate(programs({"A": ["1", "5", "a"], "B": list(map(str, range(100)))}))


def test_the_holder_without_the_key_calls_no_more_ids_common_than_it_brings():
    """The attack: it sends the server the tokens that it got, in place of its own."""
    got: list[Tensor] = []

    class Claims(Cheat):
        def __init__(self, link, most):
            super().__init__(link, SERVER, Tag(Kind.ID_TOKENS), lambda rows: got[0][: most or len(rows)])
            self.receive = self._keep

        def _keep(self, sender, tag):
            tensor = self._link.receive(sender, tag)
            if tag.kind is Kind.ID_TOKENS:
                got.append(tensor)
            return tensor

    def run(most):
        got.clear()
        honest = programs(APART)
        cheat = programs(APART, wrap=lambda link: Claims(link, most))["A"]

        def claims(link):
            with contextlib.suppress(ProtocolError):  # it has not the ids that it claims
                cheat(link)

        return simulate({**honest, "A": claims})

    assert len(run(6)["B"].rows) == 6
    with refused(ProtocolError, code="too-many-ids", key="A", value=7, party="A"):
        run(7)


def test_tokens_whose_first_eight_bytes_are_alike_are_ordered_by_the_others(monkeypatch):
    class Hashing:
        blake2b = hashlib.blake2b

        @staticmethod
        def sha256(content):
            return Alike(content)

    class Alike:
        def __init__(self, content):
            self.hexdigest = hashlib.sha256(content).hexdigest
            self.digest = lambda: bytes(8) + hashlib.sha256(content).digest()[:24]

    monkeypatch.setattr(intersect, "hashlib", Hashing)
    results = simulate(programs(APART))
    assert {APART["A"][row] for row in results["A"].rows.tolist()} == {"2", "3"}
