"""What a link notes besides: its view, in memory or in a file; counted bytes; spans of a trace."""

import json
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.errors import refused
from veilgraph.core.errors import ConfigError, LinkTimeout, ProtocolError, RunError
from veilgraph.core.trace import Event, Trace
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.codec import encoded_size
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink, ViewFile, read_view
from veilgraph.link.wrapper import TracedLink

TAG = Tag(Kind.SHARE, 4, 2)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    hub = MemoryHub(["A", "B"], 1.0)
    file = ViewFile(tmp_path / "a")
    one, other = RecordedLink(hub.link("A"), keep=file.append), hub.link("B")
    one.send("B", Tag(Kind.SHARE, 3, 1), torch.arange(6).reshape(2, 3))
    other.send("A", Tag(Kind.EMBEDDING, 4), torch.tensor([[0.5]]))
    one.receive("B", Tag(Kind.EMBEDDING, 4))
    file.close()
    return tmp_path / "a"


def test_a_view_is_what_crossed_the_link_in_its_order(recorded: Path) -> None:
    first, second = read_view(recorded, session=7)
    assert (first.sender, first.receiver, first.tag, first.session) == ("A", "B", Tag(Kind.SHARE, 3, 1), 7)
    assert (second.sender, second.receiver, second.tag) == ("B", "A", Tag(Kind.EMBEDDING, 4))
    assert torch.equal(first.tensor(), torch.arange(6).reshape(2, 3))
    assert torch.equal(second.tensor(), torch.tensor([[0.5]]))
    with refused(RunError, key=recorded):
        ViewFile(recorded)  # is never written over


def test_a_view_that_was_cut_off_ends_with_its_last_whole_message_and_rubbish_is_refused(recorded: Path) -> None:
    whole, counts = recorded.read_bytes(), list[int]()
    for length in range(len(whole)):
        recorded.write_bytes(whole[:length])
        counts.append(len(read_view(recorded)))
    assert counts == sorted(counts)
    assert set(counts) == {0, 1}
    recorded.write_bytes(bytes(1000))
    with refused(RunError, key=recorded):
        read_view(recorded)


def test_a_short_view_has_the_first_of_each_series_and_the_newest(tmp_path: Path) -> None:
    file = ViewFile(tmp_path / "a", first=2)
    link = RecordedLink(MemoryHub(["A", "B"], 1.0).link("A"), keep=file.append)
    for step in range(6):
        link.send("B", Tag(Kind.SHARE, step), torch.tensor([step]))
        link.send("B", Tag(Kind.SHARE, step, 1), torch.tensor([-step]))
    link.send("B", Tag(Kind.HELLO), torch.tensor([7]))
    file.close()
    kept = [(seen.tag.kind, seen.tag.round, int(seen.tensor())) for seen in read_view(tmp_path / "a")]
    share = Kind.SHARE
    firsts = [(share, 0, 0), (share, 1, 0), (share, 0, 1), (share, 1, -1), (Kind.HELLO, 0, 7)]
    assert kept == [*firsts, (share, 0, 5), (share, 1, -5)]


def test_a_large_view_goes_on_with_the_least_of_each_series(tmp_path: Path) -> None:
    file = ViewFile(tmp_path / "a", first=4, most_bytes=1500, least=1)
    link = RecordedLink(MemoryHub(["A", "B"], 1.0).link("A"), keep=file.append)
    for step in range(6):
        link.send("B", Tag(Kind.SHARE, step), torch.full((200,), step))
    link.send("B", Tag(Kind.SHARE, 0, 1), torch.full((200,), 9))
    file.close()
    kept = [(seen.tag.round, int(seen.tensor()[0])) for seen in read_view(tmp_path / "a")]
    assert kept == [(0, 0), (1, 9), (0, 5)], "1,600 bytes after the first"


def test_a_transcript_holds_what_crossed_as_it_was(tmp_path: Path) -> None:
    hub = MemoryHub(["A", "B"], 0.01)
    one, other = RecordedLink(hub.link("A"), keep_transcript=True), hub.link("B")
    sent = torch.zeros(2, requires_grad=True)
    one.send("B", Tag(Kind.SHARE), sent)
    other.send("A", Tag(Kind.SEED), torch.ones(3))
    received = one.receive("B", Tag(Kind.SEED))
    received += 1
    with torch.no_grad():
        sent += 1
    with pytest.raises(ProtocolError):
        one.send("C", Tag(Kind.SHARE), torch.ones(1))
    with pytest.raises(LinkTimeout):
        one.receive("B", Tag(Kind.SHARE))
    view = one.transcript()
    assert [(m.sender, m.receiver, m.tag) for m in view] == [("A", "B", Tag(Kind.SHARE)), ("B", "A", Tag(Kind.SEED))]
    assert [m.tensor.tolist() for m in view] == [[0, 0], [1, 1, 1]]
    assert not view[0].tensor.requires_grad
    assert [each.messages for each in one.traffic()] == [1, 1]
    with refused(ConfigError, key="keep_transcript", value="False"):
        RecordedLink(hub.link("A")).transcript()


# Traces


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
    hub, asked = MemoryHub(["A", "B"], 5.0), threading.Event()
    slow, waiting = Trace("A", 1), Trace("B", 2)
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
    assert [send["name"], send["cat"]] == ["send share to B", "send"]
    assert [wait["name"], wait["cat"]] == ["wait for share from A", "wait"]
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
