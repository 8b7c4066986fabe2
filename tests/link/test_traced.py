import json
import threading
import time
from pathlib import Path

import pytest
import torch

from veilgraph.core.errors import LinkTimeout, ProtocolError
from veilgraph.core.trace import Event, Trace
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.codec import encoded_size
from veilgraph.link.factory import MemoryHub
from veilgraph.link.wrapper import TracedLink

TAG = Tag(Kind.SHARE, 4, 2)


def events(trace: Trace, folder: Path) -> list[Event]:
    trace.write(folder / "trace.json")
    found = json.loads((folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    return [event for event in found if event["ph"] != "M"]


class Asking:
    """Tells that a message is asked for."""

    def __init__(self, link: Link, asked: threading.Event) -> None:
        self._link, self._asked, self.party, self.expect = link, asked, link.party, link.expect
        self.send, self.close, self.comes = link.send, link.close, link.comes

    def receive(self, sender: PartyId, tag: Tag) -> torch.Tensor:
        self._asked.set()
        return self._link.receive(sender, tag)


def test_a_wait_is_as_long_as_the_sender_is_slow_and_an_arrow_leads_to_it(tmp_path: Path) -> None:
    hub = MemoryHub(["A", "B"], 5.0)
    slow, waiting = Trace("A", 1), Trace("B", 2)
    asked = threading.Event()
    sender, receiver = TracedLink(hub.link("A"), slow), TracedLink(Asking(hub.link("B"), asked), waiting)
    tensor = torch.full((3, 5), 12345.0)

    def send_late() -> None:
        asked.wait(5.0)
        time.sleep(0.1)
        sender.send("B", TAG, tensor)

    thread = threading.Thread(target=send_late)
    thread.start()
    assert torch.equal(receiver.receive("A", TAG), tensor)
    thread.join()
    tail, send = events(slow, tmp_path)
    head, wait = events(waiting, tmp_path)
    assert (send["name"], send["cat"], wait["name"], wait["cat"]) == (
        "send share to B",
        "send",
        "wait for share from A",
        "wait",
    )
    assert send["args"] == wait["args"] == {"tag": "share/step 4/round 2", "bytes": encoded_size(tensor)}
    assert wait["dur"] >= 100e3
    assert send["ts"] - wait["ts"] > 99e3, "what it does before it sends is no part of its sending"
    assert (tail["ph"], head["ph"], head["bp"]) == ("s", "f", "e")
    assert all(tail[key] == head[key] for key in ("id", "name", "cat"))
    assert send["ts"] <= tail["ts"] <= send["ts"] + send["dur"]
    assert wait["ts"] <= head["ts"] <= wait["ts"] + wait["dur"]
    assert tail["ts"] <= head["ts"]


def test_what_fails_is_a_span_that_no_arrow_enters(tmp_path: Path) -> None:
    trace = Trace("A", 1)
    link = TracedLink(MemoryHub(["A", "B"], 0.01).link("A"), trace)
    with pytest.raises(LinkTimeout):
        link.receive("B", TAG)
    with pytest.raises(ProtocolError):
        link.send("C", TAG, torch.ones(1))
    wait, tail, send = events(trace, tmp_path)
    assert (wait["ph"], wait["args"]) == ("X", {"tag": str(TAG)})
    assert wait["dur"] >= 8e3
    assert (tail["ph"], send["cat"]) == ("s", "send")
