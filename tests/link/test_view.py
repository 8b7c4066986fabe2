"""Views in files: what a link saw comes back, a torn end is left out, and rubbish is refused."""

from pathlib import Path

import torch

from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.core.types import Kind, Tag
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink, ViewFile, read_view


def _recorded(path: Path) -> None:
    hub = MemoryHub(["A", "B"], 1.0)
    file = ViewFile(path)
    one, other = RecordedLink(hub.link("A"), keep=file.append), hub.link("B")
    one.send("B", Tag(Kind.SHARE, 3, 1), torch.arange(6).reshape(2, 3))
    other.send("A", Tag(Kind.EMBEDDING, 4), torch.tensor([[0.5]]))
    one.receive("B", Tag(Kind.EMBEDDING, 4))
    file.close()


def test_a_view_is_what_crossed_the_link_in_its_order(tmp_path: Path) -> None:
    _recorded(tmp_path / "a")
    first, second = read_view(tmp_path / "a", session=7)
    assert (first.sender, first.receiver, first.tag, first.session) == ("A", "B", Tag(Kind.SHARE, 3, 1), 7)
    assert (second.sender, second.receiver, second.tag) == ("B", "A", Tag(Kind.EMBEDDING, 4))
    assert torch.equal(first.tensor(), torch.arange(6).reshape(2, 3))
    assert torch.equal(second.tensor(), torch.tensor([[0.5]]))


def test_a_view_that_was_cut_off_ends_with_its_last_whole_message(tmp_path: Path) -> None:
    _recorded(tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    counts = []
    for length in range(len(whole)):
        (tmp_path / "b").write_bytes(whole[:length])
        counts.append(len(read_view(tmp_path / "b")))
    assert counts == sorted(counts)
    assert set(counts) == {0, 1}


def test_rubbish_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1000))
    with refused(RunError, key=tmp_path / "a"):
        read_view(tmp_path / "a")


def test_a_view_is_never_written_over(tmp_path: Path) -> None:
    _recorded(tmp_path / "a")
    with refused(RunError, key=tmp_path / "a"):
        ViewFile(tmp_path / "a")


def test_a_short_view_has_the_first_of_each_series_and_the_newest(tmp_path: Path) -> None:
    hub = MemoryHub(["A", "B"], 1.0)
    file = ViewFile(tmp_path / "a", first=2)
    link = RecordedLink(hub.link("A"), keep=file.append)
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
