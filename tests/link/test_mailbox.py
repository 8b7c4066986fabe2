from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.errors import refused
from veilgraph.core.errors import PeerFailed, ProtocolError
from veilgraph.core.types import Kind, Tag
from veilgraph.link.mailbox import BOOKKEEPING_BYTES, REMEMBERED_TAGS, Mailbox

ONE = torch.ones(1)


def put(box: Mailbox, *steps: int, sender: str = "A", data: torch.Tensor = ONE) -> None:
    for step in steps:
        box.put(sender, Tag(Kind.SHARE, step), data)


def is_used(box: Mailbox, tag: Tag, code: str = "tag-again") -> None:
    with refused(ProtocolError, code=code, key=str(tag), party="A"):
        box.take("A", tag, 0)


def test_only_the_latest_used_tags_of_a_kind_are_remembered() -> None:
    box = Mailbox("B", ["A"])
    box.put("A", Tag(Kind.SEED), ONE)
    box.take("A", Tag(Kind.SEED), 0)
    for step in range(REMEMBERED_TAGS + 1):
        put(box, step)
        box.take("A", Tag(Kind.SHARE, step), 0)
    put(box, 0)
    assert box.take("A", Tag(Kind.SHARE, 0), 0) is ONE, "forgotten"
    put(box, REMEMBERED_TAGS)
    is_used(box, Tag(Kind.SHARE, REMEMBERED_TAGS))
    other = Mailbox("B", ["A"])
    other.put("A", Tag(Kind.SEED), ONE)
    put(other, *range(REMEMBERED_TAGS + 1))
    other.take("A", Tag(Kind.SEED), 0)
    other.put("A", Tag(Kind.SEED), ONE)
    is_used(other, Tag(Kind.SEED))


def test_an_unread_tag_is_never_forgotten() -> None:
    box = Mailbox("B", ["A"])
    put(box, *range(REMEMBERED_TAGS + 1), 0)
    is_used(box, Tag(Kind.SHARE, 0))


def test_the_first_failure_is_kept_and_ends_delivery() -> None:
    box = Mailbox("B", ["A", "C"])
    box.put("A", Tag(Kind.SHARE, 0), ONE)
    box.fail("A", ProtocolError("the cause"))
    box.fail(None, PeerFailed("a consequence"))
    box.put("A", Tag(Kind.SHARE, 1), ONE)
    assert box.take("A", Tag(Kind.SHARE, 0), 0) is ONE
    with refused(ProtocolError, party="A"):
        box.take("A", Tag(Kind.SHARE, 1), 0)
    with refused(PeerFailed, party="C"):
        box.take("C", Tag(Kind.SHARE, 1), 0)


def test_unread_bytes_are_bounded_by_sender_and_a_role_says_how_many_it_expects() -> None:
    cost = 60 + 100 + BOOKKEEPING_BYTES
    box = Mailbox("B", ["A", "C"], max_unread_bytes=3 * cost)
    data = torch.zeros(100, dtype=torch.uint8)
    for step in range(9):  # what was taken does not count
        put(box, step, data=data)
        box.take("A", Tag(Kind.SHARE, step), 0)
    put(box, 10, 11, 12, data=data)
    put(box, 10, 11, 12, sender="C", data=data)
    put(box, 13, data=data[:0])
    with refused(ProtocolError, code="unread", value=3 * cost, party="A"):
        box.take("A", Tag(Kind.SHARE, 13), 0)
    box.expect(cost)  # what has come may stay
    assert box.take("A", Tag(Kind.SHARE, 12), 0) is data
    assert [box.take("C", Tag(Kind.SHARE, step), 0) is data for step in (10, 11, 12)] == [True] * 3
    put(box, 13, 14, sender="C", data=data)
    with refused(ProtocolError, code="unread", value=cost, party="C"):
        box.take("C", Tag(Kind.SHARE, 14), 0)


@pytest.mark.parametrize(("limit", "messages", "size"), [(1 << 20, 1 << 10, 0), (2000, 1, 2000)])
def test_what_a_message_costs_besides_counts(limit: int, messages: int, size: int) -> None:
    box = Mailbox("B", ["A"], max_unread_bytes=limit)
    put(box, *range(messages), data=torch.zeros(size, dtype=torch.uint8))
    with refused(ProtocolError, code="unread", value=limit, party="A"):
        box.take("A", Tag(Kind.SHARE, messages - 1), float("inf"))


def test_there_is_room_until_half_is_unread_and_where_something_is_waited_for() -> None:
    cost = 60 + 100 + BOOKKEEPING_BYTES
    box, data = Mailbox("B", ["A", "C"], max_unread_bytes=4 * cost), torch.zeros(100, dtype=torch.uint8)
    for step in range(3):
        assert box.wait_for_room("A", 0)
        box.put("A", Tag(Kind.SHARE, step), data)
    assert not box.wait_for_room("A", 0.05)
    assert box.has_room("C")
    with ThreadPoolExecutor(1) as later:
        waits = later.submit(box.take, "A", Tag(Kind.SHARE, 3), 10)
        assert box.wait_for_room("A", 10)
        box.put("A", Tag(Kind.SHARE, 3), data)
        assert waits.result(10) is data
    assert not box.has_room("A")
    with ThreadPoolExecutor(1) as later:
        waiter = later.submit(box.wait_for_room, "A", 10)
        box.take("A", Tag(Kind.SHARE, 1), 0)
        assert waiter.result(10)
    box.put("A", Tag(Kind.SHARE, 4), data)
    assert not box.has_room("A")
    box.fail("A", PeerFailed("gone"))
    assert box.has_room("A"), "whoever fills the box must see that nothing more is wanted"
