from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.errors import refused
from veilgraph.core.errors import PeerFailed, ProtocolError
from veilgraph.core.types import Kind, Tag
from veilgraph.link.mailbox import BOOKKEEPING_BYTES, REMEMBERED_TAGS, Mailbox

ONE = torch.ones(1)


def test_only_the_latest_used_tags_are_remembered() -> None:
    box = Mailbox("B", ["A"])
    for step in range(REMEMBERED_TAGS + 1):
        box.put("A", Tag(Kind.SHARE, step), ONE)
        box.take("A", Tag(Kind.SHARE, step), 0)
    box.put("A", Tag(Kind.SHARE, 0), ONE)
    box.take("A", Tag(Kind.SHARE, 0), 0)
    box.put("A", Tag(Kind.SHARE, REMEMBERED_TAGS), ONE)
    with refused(ProtocolError, code="tag-again", key="share/step 4096/round 0", party="A"):
        box.take("A", Tag(Kind.SHARE, REMEMBERED_TAGS), 0)


def test_many_tags_of_one_kind_do_not_push_out_another() -> None:
    box = Mailbox("B", ["A"])
    box.put("A", Tag(Kind.SEED), ONE)
    for step in range(REMEMBERED_TAGS + 1):
        box.put("A", Tag(Kind.SHARE, step), ONE)
    box.take("A", Tag(Kind.SEED), 0)
    box.put("A", Tag(Kind.SEED), ONE)
    with refused(ProtocolError, code="tag-again", key="seed/step 0/round 0", party="A"):
        box.take("A", Tag(Kind.SEED), 0)


def test_an_unread_tag_is_never_forgotten() -> None:
    box = Mailbox("B", ["A"])
    for step in range(REMEMBERED_TAGS + 1):
        box.put("A", Tag(Kind.SHARE, step), ONE)
    box.put("A", Tag(Kind.SHARE, 0), ONE)
    with refused(ProtocolError, code="tag-again", key="share/step 0/round 0", party="A"):
        box.take("A", Tag(Kind.SHARE, 0), 0)


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


def test_unread_bytes_are_bounded_by_sender() -> None:
    cost = 60 + 100 + BOOKKEEPING_BYTES
    box = Mailbox("B", ["A", "C"], max_unread_bytes=3 * cost)
    data = torch.zeros(100, dtype=torch.uint8)
    for step in range(9):  # what was taken does not count
        box.put("A", Tag(Kind.SHARE, step), data)
        box.take("A", Tag(Kind.SHARE, step), 0)
    for step in range(10, 13):
        box.put("A", Tag(Kind.SHARE, step), data)
        box.put("C", Tag(Kind.SHARE, step), data)
    box.put("A", Tag(Kind.SHARE, 13), data[:0])
    with refused(ProtocolError, code="unread", value=3552, party="A"):
        box.take("A", Tag(Kind.SHARE, 13), 0)
    assert box.take("A", Tag(Kind.SHARE, 12), 0) is data
    assert box.take("C", Tag(Kind.SHARE, 10), 0) is data
    box.put("C", Tag(Kind.SHARE, 13), data)
    assert box.take("C", Tag(Kind.SHARE, 13), 0) is data


def test_empty_messages_are_bounded_too() -> None:
    box = Mailbox("B", ["A"], max_unread_bytes=1 << 20)
    for step in range(1 << 10):
        box.put("A", Tag(Kind.SHARE, step), torch.empty(0))
    with refused(ProtocolError, code="unread", value=1048576, party="A"):
        box.take("A", Tag(Kind.SHARE, 1023), 0)


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


def test_a_limit_of_one_message() -> None:
    box = Mailbox("B", ["A"], max_unread_bytes=2000)
    box.put("A", Tag(Kind.SHARE, 0), torch.zeros(2000, dtype=torch.uint8))
    with refused(ProtocolError, code="unread", value=2000, party="A"):
        box.take("A", Tag(Kind.SHARE, 0), 0)


def test_an_endless_timeout_is_allowed() -> None:
    box = Mailbox("B", ["A"])
    box.fail("A", PeerFailed("gone"))
    with pytest.raises(PeerFailed):
        box.take("A", Tag(Kind.SHARE), float("inf"))


def test_a_role_says_how_much_it_expects() -> None:
    cost = 60 + 100 + BOOKKEEPING_BYTES
    box = Mailbox("B", ["A", "C"], max_unread_bytes=3 * cost)
    data = torch.zeros(100, dtype=torch.uint8)
    for step in range(3):
        box.put("A", Tag(Kind.SHARE, step), data)
    box.expect(cost)
    for step in range(3):  # what has come may stay
        assert box.take("A", Tag(Kind.SHARE, step), 0) is data
    box.put("A", Tag(Kind.SHARE, 3), data)
    box.put("A", Tag(Kind.SHARE, 4), data)
    with refused(ProtocolError, code="unread", value=1184, party="A"):
        box.take("A", Tag(Kind.SHARE, 4), 0)
    box.expect(2 * cost)
    for step in range(2):
        box.put("C", Tag(Kind.SHARE, step), data)
        assert box.take("C", Tag(Kind.SHARE, step), 0) is data
