"""Messages as sealed pieces, each a frame of a channel by itself: what is not the peer's never reaches a message.

The first piece begins with the codec's header; all but the last have the same number of data bytes. Their frames carry
the message's number, the piece's index and the bytes of the whole message, all sealed with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import Tag
from veilgraph.link.channel import FRAME_BYTES, Channel, Frame
from veilgraph.link.codec import HEADER_BYTES, build_tensor, decode_header

PIECE_BYTES: Final = 4 << 20
"""Data bytes of a piece; over FLARE one frame of 87 MB takes four times as long as its pieces side by side."""


class Outgoing:
    """A message on its way.

    Args:
        channel: seals it.
        header: of the codec.
        data: of the message; not changed as long as pieces are made.
        piece_bytes: data bytes of a piece; the receiver's must be the same.
    """

    def __init__(self, channel: Channel, header: bytes, data: memoryview, piece_bytes: int = PIECE_BYTES) -> None:
        self._channel, self._header, self._data, self._piece_bytes = channel, header, data, piece_bytes
        self._number = channel.next_message()
        self._total = len(header) + data.nbytes
        self.count = _count(self._total, piece_bytes)
        """Number of pieces."""

    def piece(self, index: int) -> bytearray:
        """The sealed piece; the same whenever it is asked for."""
        part = self._data[index * self._piece_bytes : (index + 1) * self._piece_bytes]
        content = part if index else b"".join((self._header, part))
        return self._channel.seal_piece(self._number, index, self._total, content)


class Assembly:
    """The messages of one sender, put together from opened pieces. Any number of threads may use it.

    Args:
        deliver: is given every whole message, once.
        max_message_bytes: limit of one message, header included.
        piece_bytes: as at the sender.
        first: number of the first message.
    """

    def __init__(
        self,
        deliver: Callable[[Tag, Tensor], None],
        max_message_bytes: int,
        piece_bytes: int = PIECE_BYTES,
        first: int = 1,
    ) -> None:
        self._deliver, self._max_message_bytes, self._piece_bytes = deliver, max_message_bytes, piece_bytes
        self._lock = threading.Lock()
        self._number = first - 1
        self._total = 0
        self._header = b""
        self._data: Tensor | None = None
        self._missing: set[int] = set()

    def take(self, frame: Frame) -> bool:
        """Adds a piece; a message that is whole is delivered.

        Args:
            frame: opened by the channel with the sender.

        Returns:
            Whether it is new: a piece may be sent again when its receipt is lost.

        Raises:
            ProtocolError: the sender broke the protocol.
        """
        with self._lock:
            if frame.number < self._number or (frame.number == self._number and frame.index not in self._missing):
                self._check_place(frame)
                return False
            if frame.number > self._number:
                self._begin(frame)
            self._fill(frame)
            if self._missing or self._data is None:
                return True
            header, data, self._data = self._header, self._data, None
        decoded = decode_header(header, self._max_message_bytes)
        self._deliver(decoded.tag, build_tensor(decoded, data))
        return True

    def _begin(self, frame: Frame) -> None:
        if self._missing or frame.number != self._number + 1:
            raise ProtocolError(
                f"message {frame.number} before the end of message {self._number}", code="order", value=frame.number
            )
        if not HEADER_BYTES <= frame.total <= self._max_message_bytes:
            raise ProtocolError(
                f"a message of {frame.total} bytes came, the limit is {self._max_message_bytes}",
                code="too-large",
                value=frame.total,
            )
        self._data = torch.empty(frame.total - HEADER_BYTES, dtype=torch.uint8)
        self._missing = set(range(_count(frame.total, self._piece_bytes)))
        self._number, self._total = frame.number, frame.total

    def _fill(self, frame: Frame) -> None:
        self._check_place(frame)
        start, end = _bounds(frame.index, self._total, self._piece_bytes)
        content = memoryview(frame.content)
        if frame.index == 0:
            self._header, content = bytes(content[:HEADER_BYTES]), content[HEADER_BYTES:]
        if content.nbytes != end - start or self._data is None:
            raise ProtocolError(
                f"piece {frame.index} of message {frame.number} has not the bytes of its place",
                code="piece-size",
                value=frame.index,
            )
        self._data.numpy().data[start:end] = content
        self._missing.discard(frame.index)

    def _check_place(self, frame: Frame) -> None:
        same = frame.total == self._total or frame.number < self._number
        if not same or frame.index >= _count(frame.total, self._piece_bytes):
            raise ProtocolError(
                f"piece {frame.index} does not belong to message {frame.number}", code="piece", value=frame.index
            )


def frame_sizes(total: int, piece_bytes: int) -> Iterator[int]:
    """Bytes of each frame of a message of ``total`` bytes."""
    for index in range(_count(total, piece_bytes)):
        start, end = _bounds(index, total, piece_bytes)
        yield end - start + FRAME_BYTES + (0 if index else HEADER_BYTES)


def _count(total: int, piece_bytes: int) -> int:
    return max(1, -(-(total - HEADER_BYTES) // piece_bytes))


def _bounds(index: int, total: int, piece_bytes: int) -> tuple[int, int]:
    """Where a piece's data are among those of its message."""
    return index * piece_bytes, min(total - HEADER_BYTES, (index + 1) * piece_bytes)
