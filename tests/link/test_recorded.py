import pytest
import torch

from tests.errors import refused
from veilgraph.core.errors import ConfigError, LinkTimeout, ProtocolError
from veilgraph.core.types import Kind, Tag
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink


def test_the_transcript_is_the_view_in_order() -> None:
    hub = MemoryHub(["A", "B"], 1.0)
    one, other = RecordedLink(hub.link("A"), keep_transcript=True), hub.link("B")
    sent = torch.zeros(2, requires_grad=True)
    one.send("B", Tag(Kind.SHARE), sent)
    other.send("A", Tag(Kind.SEED), torch.ones(3))
    received = one.receive("B", Tag(Kind.SEED))
    received += 1
    with torch.no_grad():
        sent += 1
    view = one.transcript()
    assert [(m.sender, m.receiver, m.tag) for m in view] == [("A", "B", Tag(Kind.SHARE)), ("B", "A", Tag(Kind.SEED))]
    assert [m.tensor.tolist() for m in view] == [[0, 0], [1, 1, 1]]
    assert not view[0].tensor.requires_grad


def test_only_what_crossed_is_counted() -> None:
    link = RecordedLink(MemoryHub(["A", "B"], 0.01).link("A"), keep_transcript=True)
    with pytest.raises(ProtocolError):
        link.send("C", Tag(Kind.SHARE), torch.ones(1))
    with pytest.raises(LinkTimeout):
        link.receive("B", Tag(Kind.SHARE))
    assert link.traffic() == []
    assert link.transcript() == ()


def test_a_view_that_was_not_kept_is_not_an_empty_view() -> None:
    link = RecordedLink(MemoryHub(["A", "B"], 1.0).link("A"))
    with refused(ConfigError, key="keep_transcript", value="False"):
        link.transcript()
