"""Traces of runs with holders A and B, and what holds for each of them."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from veilgraph.core.trace import Event
from veilgraph.core.types import SERVER

PARTIES = ("A", "B", SERVER)


def trace_of(path: Path) -> list[Event]:
    trace = json.loads((path / "trace.json").read_text(encoding="utf-8"))
    assert trace["otherData"] == {"dropped": {}}
    found: list[Event] = trace["traceEvents"]
    return found


def spans(events: list[Event]) -> list[Event]:
    return [event for event in events if event["ph"] == "X"]


def party_of(events: list[Event]) -> Mapping[int, str]:
    return {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}


def check_format(events: list[Event]) -> None:
    assert tuple(party_of(events).values()) == PARTIES
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    for event in events:
        assert {"ph", "name", "pid", "tid", "args"} <= event.keys()
        if event["ph"] != "M":
            assert isinstance(event["ts"], float)
            assert (event["pid"], event["tid"]) in named
    assert {event["ph"] for event in events} == {"M", "X", "s", "f"}
    assert all(event["dur"] >= 0 for event in spans(events))


def check_arrows(events: list[Event]) -> None:
    """Every send has its receive, of the same bytes, and each arrow leads from inside the one into the other."""
    tails, heads = ({event["id"]: event for event in events if event["ph"] == phase} for phase in "sf")
    assert tails.keys() == heads.keys()
    assert all(tails[name]["ts"] <= heads[name]["ts"] for name in tails)
    assert len(tails) == sum(event["ph"] == "s" for event in events)
    names, sent, received = party_of(events), Counter[Any](), Counter[Any]()
    for span in spans(events):
        mine, facts = names[span["pid"]], span["args"]
        if span["cat"] == "send":
            sent[mine, span["name"].split()[-1], facts["tag"], facts["bytes"]] += 1
        elif span["cat"] == "wait":
            received[span["name"].split()[-1], mine, facts["tag"], facts["bytes"]] += 1
    assert sent == received
    assert set(tails) == {f"{sender} to {receiver}: {tag}" for sender, receiver, tag, _ in sent}
