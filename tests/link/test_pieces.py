from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from veilgraph_testing.sealed_link import frame_sizes

from tests.errors import About, refused
from tests.link.channels import pair
from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import Kind, Tag
from veilgraph.link.channel import Frame, FrameKind
from veilgraph.link.codec import HEADER_BYTES, encode
from veilgraph.link.sealed import Assembly, Outgoing

TAG = Tag(Kind.SHARE, 3, 1)
PIECE = 100


class Sent(NamedTuple):
    """A message with the frames that carry it, opened, and what they were as sealed."""

    tensor: Tensor
    frames: list[Frame]
    sizes: list[int]


def messages(*sizes: int) -> list[Sent]:
    bank, shop = pair()
    sent = []
    for step, size in enumerate(sizes):
        tensor = torch.arange(size)
        message = Outgoing(bank, *encode(Tag(Kind.SHARE, step), tensor), PIECE)
        pieces = [message.piece(index) for index in range(message.count)]
        assert pieces == [message.piece(index) for index in range(message.count)], "the same whenever it is asked for"
        sent.append(Sent(tensor, [shop.open(piece) for piece in pieces], [len(piece) for piece in pieces]))
    return sent


@pytest.mark.parametrize("size", [0, 1, 12, 13, 25, 100])
def test_pieces_in_their_order_and_repeated_are_the_message(size: int) -> None:
    (sent,) = messages(size)
    assert sent.sizes == list(frame_sizes(HEADER_BYTES + 8 * size, PIECE))
    got: list[tuple[Tag, Tensor]] = []
    assembly = Assembly(lambda *message: got.append(message), 10_000, PIECE)
    for place, frame in enumerate(sent.frames):
        for later in sent.frames[place + 1 :]:
            with refused(ProtocolError, code="order", value=1):
                assembly.take(later)
        assert assembly.take(frame)
        for earlier in sent.frames[: place + 1]:
            assert not assembly.take(earlier)
    ((tag, tensor),) = got
    assert tag == Tag(Kind.SHARE, 0)
    assert torch.equal(tensor, sent.tensor)


def test_messages_come_one_after_the_other() -> None:
    first, second, third = messages(30, 0, 20)
    got: list[Tag] = []
    assembly = Assembly(lambda tag, tensor: got.append(tag), 10_000, PIECE)
    for frame in first.frames[:-1]:
        assembly.take(frame)
    with refused(ProtocolError, code="order", value=2):
        assembly.take(second.frames[0])
    assembly.take(first.frames[-1])
    with refused(ProtocolError, code="order", value=3):
        assembly.take(third.frames[0])
    for frame in (*second.frames, *third.frames):
        assembly.take(frame)
    assert [tag.step for tag in got] == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"index": 3}, {"code": "order", "value": 1}),
        ({"total": 9_000}, {"code": "piece-size", "value": 1}),
        ({"content": bytes(PIECE - 1)}, {"code": "piece-size", "value": 1}),
        ({"content": bytes(PIECE + 1)}, {"code": "piece-size", "value": 1}),
    ],
)
def test_a_piece_that_does_not_fit(changes: dict[str, object], rule: About) -> None:
    (sent,) = messages(30)
    assembly = Assembly(lambda *_: None, 10_000, PIECE)
    assembly.take(sent.frames[0])
    good = sent.frames[1]
    fields = {name: getattr(good, name) for name in ("kind", "number", "index", "total", "content")}
    with refused(ProtocolError, **rule):
        assembly.take(Frame(**(fields | changes)))
    assert assembly.take(good)


@pytest.mark.parametrize("total", [0, HEADER_BYTES - 1, 10_001, (1 << 64) - 1])
def test_a_message_beyond_the_limit_takes_no_memory(total: int) -> None:
    assembly = Assembly(lambda *_: None, 10_000, PIECE)
    with refused(ProtocolError, code="too-large", value=total):
        assembly.take(Frame(FrameKind.PIECE, 1, 0, total, bytes(60)))
    assert assembly._data is None


def test_a_header_of_another_message_is_refused() -> None:
    header, data = encode(TAG, torch.arange(4))
    assembly = Assembly(lambda *_: None, 10_000, PIECE)
    with refused(ProtocolError, code="data-size", key="share/step 3/round 1", value=24):
        assembly.take(Frame(FrameKind.PIECE, 1, 0, len(header) + 24, header + bytes(data)[:24]))
