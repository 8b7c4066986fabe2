"""Parties agree or refuse together, before anything but hellos has been sent."""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.errors import About, refused
from veilgraph.core.errors import ConfigError, DataError, LinkTimeout, ProtocolError, VeilgraphError
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.link.collectives import text_tensor
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink
from veilgraph.protocol import agreement
from veilgraph.protocol.agreement import MAX_HELLO_BYTES, PROTOCOL_VERSION, Hello, agree, agree_with_people
from veilgraph.protocol.limits import REASON_CHARACTERS

HOLDERS = ("A", "B", "C")
JOB = "ab" * 32


def hello(**changes: Any) -> Hello:
    return Hello(**{"job": JOB, "nodes": 7, "alignment": "cd" * 32, **changes})


def meet(hellos: Mapping[PartyId, Hello]) -> tuple[dict[PartyId, Any], dict[PartyId, RecordedLink]]:
    """What ``agree`` gives or raises at every party; parties not in ``hellos`` state the usual."""
    hub = MemoryHub((*HOLDERS, SERVER), 5)
    links = {party: RecordedLink(hub.link(party)) for party in (*HOLDERS, SERVER)}
    usual = {**dict.fromkeys(HOLDERS, hello()), SERVER: hello(nodes=0, alignment="")}

    def program(party: PartyId) -> object:
        try:
            return agree(links[party], HOLDERS, {**usual, **hellos}[party])
        except VeilgraphError as error:
            return error

    with ThreadPoolExecutor(len(links)) as pool:
        return dict(zip(links, pool.map(program, links), strict=True)), links


def test_all_agree_and_know_all_hellos() -> None:
    results, _ = meet({"B": hello(features=4, checkpoints=[(1, 2, "a"), (1, 4, "a")])})
    for result in results.values():
        assert tuple(result) == (*HOLDERS, SERVER)
        assert result["B"] == hello(features=4, checkpoints=[(1, 2, "a"), (1, 4, "a")])
        assert result == results["A"]


def test_everyone_learns_all_refusals_and_nothing_else_was_sent() -> None:
    results, links = meet({"B": hello(refuses="too many rounds"), SERVER: hello(nodes=0, refuses="no ε")})
    for result in results.values():
        assert isinstance(result, ConfigError)
        assert str(result) == "B refuses the job: too many rounds; server refuses the job: no ε"
    for link in links.values():
        assert {(entry.kind, entry.messages) for entry in link.traffic()} == {(Kind.HELLO, 1)}


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"alignment": "ef" * 32}, DataError, {"code": "other-alignment", "key": "alignment"}),
        ({"alignment": ""}, DataError, {"code": "other-alignment", "key": "alignment"}),
        ({"nodes": 8}, DataError, {"key": "holders"}),
        ({"job": "0" * 64}, ConfigError, {"code": "other-job"}),
    ],
)
def test_what_differs_is_refused_by_everyone(changes: dict[str, Any], error: type[VeilgraphError], says: About) -> None:
    for result in meet({"B": hello(**changes)})[0].values():
        with refused(error, **says):
            raise result


def test_a_server_that_knows_the_alignment_is_held_to_it() -> None:
    assert all(isinstance(result, dict) for result in meet({SERVER: hello(nodes=0)})[0].values())
    for result in meet({SERVER: hello(nodes=0, alignment="ef")})[0].values():
        with refused(DataError, code="other-alignment"):
            raise result


def test_the_first_of_several_reasons_is_said() -> None:
    later: dict[str, Any] = {"alignment": "ef", "nodes": 9}
    for result in meet({"B": hello(**later, refuses="no")})[0].values():
        assert str(result) == "B refuses the job: no"
    for result in meet({"B": hello(**later, refuses="no", job="0")})[0].values():
        assert "runs job" in str(result)
    for result in meet({"B": hello(**later)})[0].values():
        assert "not of one alignment" in str(result)


# A stranger's hello


def answer(sent: Tensor) -> dict[PartyId, Hello]:
    """What A makes of it when B sends this as its hello."""
    hub = MemoryHub(("A", "B", SERVER), 5)
    hub.link("B").send("A", Tag(Kind.HELLO), sent)
    hub.link(SERVER).send("A", Tag(Kind.HELLO), text_tensor(hello(nodes=0).model_dump_json()))
    return agree(hub.link("A"), ("A", "B"), hello())


def stated(**changes: Any) -> Tensor:
    return text_tensor(json.dumps({**hello().model_dump(), **changes}))


@pytest.mark.parametrize("version", [1, PROTOCOL_VERSION + 1])
def test_another_version_is_named_whatever_else_it_says(version: int) -> None:
    for sent in (stated(version=version, invention=3), text_tensor(json.dumps({"version": version, "job": "?"}))):
        with refused(ConfigError, code="version", value=version, party="B"):
            answer(sent)


@pytest.mark.parametrize(
    "changes",
    [
        {"refuses": "x" * (REASON_CHARACTERS + 1)},
        {"refuses": "two\nlines"},
        {"refuses": "\x1b[2Jclear"},
        {"refuses": "\u202etxt.exe"},
        {"nodes": -1},
        {"nodes": 2**33},
        {"nodes": "7"},
        {"nodes": 10**50},
        {"features": -1},
        {"feature_bits": 65},
        {"checkpoints": [[1, -1, "a"]]},
        {"checkpoints": [[1, 1, "a"]] * 101},
        {"job": "x" * 129},
        {"job": "\n"},
        {"alignment": "É"},
        {"version": "2"},
        {"\x1b[2Jfield": 1},
    ],
)
def test_a_hello_out_of_bounds_is_not_understood(changes: dict[str, Any]) -> None:
    with refused(ProtocolError, code="not-understood", party="B") as caught:
        answer(stated(**changes))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_the_longest_reason_passes() -> None:
    reason = "ε" * REASON_CHARACTERS
    with refused(ConfigError, code="refused", party="B") as caught:
        answer(stated(refuses=reason))
    assert str(caught.value) == f"B refuses the job: {reason}"


def test_a_hello_is_not_read_when_it_is_too_large() -> None:
    padded = json.dumps(hello().model_dump()).encode()
    for size, error in ((MAX_HELLO_BYTES, None), (MAX_HELLO_BYTES + 1, ProtocolError)):
        sent = torch.full((size,), ord(" "), dtype=torch.uint8)
        sent[: len(padded)] = torch.tensor(list(padded), dtype=torch.uint8)
        if error is None:
            assert answer(sent)["B"] == hello()
        else:
            with refused(error, code="hello-size", value=65537, party="B"):
                answer(sent)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=25)
@given(
    st.binary()
    | st.builds(
        lambda value: json.dumps(value).encode(),
        JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(Hello.model_fields, JSON)),
    )
)
def test_nothing_received_breaks_a_party(content: bytes) -> None:
    with pytest.raises((ProtocolError, ConfigError)) as caught:
        answer(torch.tensor(list(content), dtype=torch.uint8))
    assert len(str(caught.value)) < 1000


def ask(
    answers: Mapping[PartyId, list[str | None]], timeout_s: float = 5
) -> tuple[dict[PartyId, Any], dict[PartyId, list[float]]]:
    """What ``agree_with_people`` gives or raises where persons answer so, one answer at a time; for how long each."""
    hub = MemoryHub((*HOLDERS, SERVER), timeout_s)
    waits: dict[PartyId, list[float]] = {party: [] for party in (*HOLDERS, SERVER)}

    def program(party: PartyId) -> object:
        left = list(answers.get(party, []))

        def answer(wait_s: float) -> str | None:
            waits[party].append(wait_s)
            return left.pop(0)

        mine = hello(waits=bool(left)) if party != SERVER else hello(nodes=0)
        try:
            return agree_with_people(hub.link(party), HOLDERS, mine, answer, timeout_s=8)
        except VeilgraphError as error:
            return error

    with ThreadPoolExecutor(len(waits)) as pool:
        return dict(zip(waits, pool.map(program, waits), strict=True)), waits


def test_all_wait_for_every_person_and_nobody_for_long_in_silence() -> None:
    results, waits = ask({"A": [None, None, None, ""], "C": [None, ""]})
    assert all(not any(hello.waits for hello in result.values()) for result in results.values())
    assert waits == {"A": [2.0] * 4, "B": [], "C": [2.0] * 2, SERVER: []}, "more often than the timeout of 8 s"


def test_a_person_who_refuses_ends_it_for_all_whoever_still_waits() -> None:
    results, waits = ask({"A": [None] * 9, "C": [None, "no"]})
    assert {str(result) for result in results.values()} == {"C refuses the job: no"}
    assert len(waits["A"]) == 2


def test_a_party_that_waits_for_ever_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count()
    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: next(clock) * 86400.0))
    results, _ = ask({"A": [None] * 99}, timeout_s=1)
    assert all(isinstance(result, LinkTimeout) for result in results.values())
