"""What is sealed between two parties, so that whoever carries it can neither read nor change it.

A message is sealed in pieces, each a frame of a channel by itself: what is not the peer's never reaches a message. The
first piece begins with the codec's header; all but the last have the same number of data bytes. Their frames carry the
message's number, the piece's index and the bytes of the whole message, all sealed with it.

``Peer`` is for a link that strangers can write to, as ``NatsLink``: whatever arrives in a peer's name goes through its
channel first.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import LinkError, PeerFailed, ProtocolError
from veilgraph.core.text import printable
from veilgraph.core.types import PartyId, Tag
from veilgraph.link.channel import FRAME_BYTES, Buffer, Channel, Disagreement, Frame, FrameKind
from veilgraph.link.codec import HEADER_BYTES, build_tensor, decode_header
from veilgraph.link.mailbox import Mailbox

PIECE_BYTES: Final = 4 << 20
"""Data bytes of a piece, where nothing carries less at once."""


class Outgoing:
    """A message on its way, sealed by ``channel`` in pieces; its data do not change as long as these are made."""

    def __init__(self, channel: Channel, header: bytes, data: memoryview, piece_bytes: int = PIECE_BYTES) -> None:
        self._channel, self._header, self._data, self._piece_bytes = channel, header, data, piece_bytes
        self._number = channel.next_message()
        self._total = len(header) + data.nbytes
        self.count = piece_count(self._total, piece_bytes)
        """Number of pieces."""

    def piece(self, index: int) -> bytearray:
        """The sealed piece; the same whenever it is asked for."""
        part = self._data[index * self._piece_bytes : (index + 1) * self._piece_bytes]
        content = part if index else b"".join((self._header, part))
        return self._channel.seal_piece(self._number, index, self._total, content)


class Assembly:
    """The messages of one sender, put together from opened pieces. Any number of threads may use it.

    ``deliver`` is given every whole message, once, from number ``first`` on.
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
        """Adds a piece and delivers a message that is whole; False for one sent again. Raises ``ProtocolError``."""
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
            words = f"a message of {frame.total} bytes came, the limit is {self._max_message_bytes}"
            raise ProtocolError(words, code="too-large", value=frame.total)
        self._data = torch.empty(frame.total - HEADER_BYTES, dtype=torch.uint8)
        self._missing = set(range(piece_count(frame.total, self._piece_bytes)))
        self._number, self._total = frame.number, frame.total

    def _fill(self, frame: Frame) -> None:
        self._check_place(frame)
        start, end = _bounds(frame.index, self._total, self._piece_bytes)
        content = memoryview(frame.content)
        if frame.index == 0:
            self._header, content = bytes(content[:HEADER_BYTES]), content[HEADER_BYTES:]
        if content.nbytes != end - start or self._data is None:
            words = f"piece {frame.index} of message {frame.number} has not the bytes of its place"
            raise ProtocolError(words, code="piece-size", value=frame.index)
        self._data.numpy().data[start:end] = content
        self._missing.discard(frame.index)

    def _check_place(self, frame: Frame) -> None:
        same = frame.total == self._total or frame.number < self._number
        if not same or frame.index >= piece_count(frame.total, self._piece_bytes):
            raise ProtocolError(
                f"piece {frame.index} does not belong to message {frame.number}", code="piece", value=frame.index
            )


def frame_sizes(total: int, piece_bytes: int) -> Iterator[int]:
    """Bytes of each frame of a message of ``total`` bytes."""
    for index in range(piece_count(total, piece_bytes)):
        start, end = _bounds(index, total, piece_bytes)
        yield end - start + FRAME_BYTES + (0 if index else HEADER_BYTES)


def piece_count(total: int, piece_bytes: int) -> int:
    """Pieces of a message of ``total`` bytes."""
    return max(1, -(-(total - HEADER_BYTES) // piece_bytes))


def _bounds(index: int, total: int, piece_bytes: int) -> tuple[int, int]:
    """Where a piece's data are among those of its message."""
    return index * piece_bytes, min(total - HEADER_BYTES, (index + 1) * piece_bytes)


OnExtra = Callable[[PartyId, bytes], None]

LONGEST_REASON: Final = 200
"""Bytes that a stop notice may have."""

_LENGTH: Final = struct.Struct("<I")


class Peer:
    """What one party knows of another. Any number of threads may use it.

    The ``mailbox`` gets its messages, and its failure; ``on_extra``, once, what it tells with its confirmation. A peer
    that was heard may be silent for ``silence_s`` seconds; the first sign may take ``connect_s``.
    """

    def __init__(
        self,
        name: PartyId,
        channel: Channel,
        mailbox: Mailbox,
        *,
        max_message_bytes: int,
        silence_s: float,
        connect_s: float,
        on_extra: OnExtra | None,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self.name, self.channel = name, channel
        self.ready = threading.Event()
        """Set when the peer has said that it has the keys as well: messages may be sent."""
        self.failure: LinkError | None = None
        self._mailbox = mailbox
        self._assembly = Assembly(partial(mailbox.put, name), max_message_bytes, piece_bytes)
        self._silence_s, self._connect_s, self._on_extra = silence_s, connect_s, on_extra
        self._confirming = threading.Lock()
        self._confirmed = False
        self._started = time.monotonic()
        self._alive_at: float | None = None
        self._doubt = ""

    def greeting(self, frame: Buffer = b"") -> bytes:
        """This end's hello, and a frame or a receipt, as they travel together."""
        return b"".join((_LENGTH.pack(len(self.channel.hello)), self.channel.hello, frame))

    def hear(self, greeting: object) -> Buffer:
        """Takes the hello in a greeting, and gives what came with it; ``ProtocolError`` where it is not the peer's."""
        hello, rest = _unpacked(greeting)
        try:
            new = self.channel.hear(hello)
        except Disagreement as error:
            self.fail(error)
            raise
        except ProtocolError as error:
            self._doubt = str(error)[:300]
            raise
        if new:
            self._is_alive()
        return rest

    def take(self, sealed: object) -> bytes:
        """Takes a frame, and gives the receipt for the peer; ``ProtocolError`` where it is not the peer's."""
        if not isinstance(sealed, Buffer):
            raise ProtocolError(f"{type(sealed).__name__} came, a sealed frame was expected")
        frame = self.channel.open(sealed)
        try:
            new = self._use(frame)
        except LinkError as error:
            self.fail(ProtocolError(f"{self.name} sent what cannot be used: {error}", code=error.code, party=self.name))
        else:
            if new:
                self._is_alive()
        return self.channel.receipt(frame)

    def has(self, frame: Buffer, receipt: Buffer) -> bool:
        """Whether the peer itself says that it has a frame of this end."""
        if not self.channel.agreed or not self.channel.received(frame, receipt):
            return False
        self._is_alive()
        return True

    def silent(self) -> bool:
        """Whether the peer has failed, or gave no sign of life for too long; what others repeat of it is none."""
        if self.failure is not None:
            return True
        if self._alive_at is None:
            return time.monotonic() - self._started > self._connect_s
        return time.monotonic() - self._alive_at > self._silence_s

    def fail_silent(self, besides: str = "") -> None:
        """Records that it gave no sign of life; ``besides`` is what else is known of why."""
        limit = self._silence_s
        if self._alive_at is None:
            limit = self._connect_s
            besides = f"a hello in its name was refused: {self._doubt}" if self._doubt else besides
        words = f"{self.name} gave no sign of life for {limit:g} s"
        self.fail(PeerFailed(f"{words}; {besides}" if besides else words, code="silent"))

    def fail(self, error: LinkError) -> None:
        """Ends the session with the peer; its first failure is kept."""
        self.failure = self.failure or error
        self._mailbox.fail(self.name, error)

    def _is_alive(self) -> None:
        self._alive_at = time.monotonic()

    def _use(self, frame: Frame) -> bool:
        """Does what a frame asks for; False if it was here before."""
        match frame.kind:
            case FrameKind.CONFIRMATION:
                return self._confirm(frame.content)
            case FrameKind.PIECE:
                if not self._confirmed:
                    raise ProtocolError("a message before the confirmation of its keys")
                return self._assembly.take(frame)
            case FrameKind.PING:
                return self.channel.renews(frame)
            case FrameKind.STOPPED:
                self.fail(PeerFailed(f"{self.name} {_farewell(frame.content)}", code="stopped"))
                return True

    def _confirm(self, extra: bytes) -> bool:
        with self._confirming:
            if self._confirmed:
                return False
            if self._on_extra is not None:
                self._on_extra(self.name, extra)
            self._confirmed = True
            return True


def _unpacked(greeting: object) -> tuple[Buffer, Buffer]:
    """A hello, and what came with it."""
    if not isinstance(greeting, Buffer) or len(greeting) < _LENGTH.size:
        raise ProtocolError("a greeting without a hello", code="hello-size", value=0)
    (size,) = _LENGTH.unpack_from(greeting)
    view = memoryview(greeting)[_LENGTH.size :]
    if size > len(view):
        raise ProtocolError(f"a hello of {size} bytes, of which {len(view)} came", code="hello-size", value=size)
    return view[:size], view[size:]


def _farewell(content: bytes) -> str:
    reason = printable(content[:LONGEST_REASON].decode(errors="replace"))
    return f"stopped ({reason}); its own log says why" if reason else "closed its link"
