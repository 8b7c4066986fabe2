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
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import LinkError, PeerFailed, ProtocolError
from veilgraph.core.text import printable
from veilgraph.core.types import PartyId, Tag
from veilgraph.link.channel import Buffer, Channel, Disagreement, Frame, FrameKind
from veilgraph.link.codec import HEADER_BYTES, build_tensor, decode_header
from veilgraph.link.mailbox import Mailbox

PIECE_BYTES: Final = 1 << 20
"""Data bytes of a piece; with its seal it is shorter than ``nats_client.MAX_PAYLOAD_BYTES``."""


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
    """Puts one sender's messages together from pieces in order, from message ``first`` on; ``deliver`` gets each."""

    def __init__(
        self,
        deliver: Callable[[Tag, Tensor], None],
        max_message_bytes: int,
        piece_bytes: int = PIECE_BYTES,
        first: int = 1,
    ) -> None:
        self._deliver, self._max_message_bytes, self._piece_bytes = deliver, max_message_bytes, piece_bytes
        self.expected = (first, 0)
        """Number and index of the piece that is taken next."""
        self._total = 0
        self._header = b""
        self._data: Tensor | None = None

    def take(self, frame: Frame) -> bool:
        """Adds a piece and delivers a message that is whole; False for one sent again. Raises ``ProtocolError``."""
        place = frame.number, frame.index
        if place < self.expected:
            return False
        if place != self.expected:
            words = f"piece {frame.index} of message {frame.number} came before piece {self.expected}"
            raise ProtocolError(words, code="order", value=frame.number)
        data = self._allocate(frame) if self._data is None else self._data
        start = frame.index * self._piece_bytes
        end = min(self._total - HEADER_BYTES, start + self._piece_bytes)
        content = memoryview(frame.content)
        header = bytes(content[:HEADER_BYTES]) if frame.index == 0 else self._header
        if frame.index == 0:
            content = content[HEADER_BYTES:]
        if frame.total != self._total or content.nbytes != end - start:
            words = f"piece {frame.index} of message {frame.number} has not the bytes of its place"
            raise ProtocolError(words, code="piece-size", value=frame.index)
        data.numpy().data[start:end] = content
        if frame.index + 1 < piece_count(self._total, self._piece_bytes):
            self.expected, self._header, self._data = (frame.number, frame.index + 1), header, data
            return True
        self.expected, self._data = (frame.number + 1, 0), None
        decoded = decode_header(header, self._max_message_bytes)
        self._deliver(decoded.tag, build_tensor(decoded, data))
        return True

    def _allocate(self, frame: Frame) -> Tensor:
        if not HEADER_BYTES <= frame.total <= self._max_message_bytes:
            words = f"a message of {frame.total} bytes came, the limit is {self._max_message_bytes}"
            raise ProtocolError(words, code="too-large", value=frame.total)
        self._total = frame.total
        return torch.empty(frame.total - HEADER_BYTES, dtype=torch.uint8)


def piece_count(total: int, piece_bytes: int) -> int:
    """Pieces of a message of ``total`` bytes."""
    return max(1, -(-(total - HEADER_BYTES) // piece_bytes))


OnExtra = Callable[[PartyId, bytes], None]

LONGEST_REASON: Final = 200
"""Bytes that a stop notice may have."""

_LENGTH: Final = struct.Struct("<I")


class Peer:
    """What one party knows of another. One thread hears it; any may ask after it.

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
    ) -> None:
        self.name, self.channel = name, channel
        self.ready = threading.Event()
        """Set when the peer has said that it has the keys as well: messages may be sent."""
        self.failure: LinkError | None = None
        self._mailbox = mailbox
        self.assembly = Assembly(partial(mailbox.put, name), max_message_bytes)
        self._silence_s, self._connect_s, self._on_extra = silence_s, connect_s, on_extra
        self._confirmed = False
        self._started = time.monotonic()
        self._alive_at: float | None = None
        self._doubt = ""

    def greeting(self, frame: Buffer = b"") -> bytes:
        """Pack this end's hello, and a frame that goes with it, into one greeting."""
        return b"".join((_LENGTH.pack(len(self.channel.hello)), self.channel.hello, frame))

    def hear(self, greeting: Buffer) -> Buffer:
        """Takes the hello in a greeting, and gives what came with it; ``ProtocolError`` where it is not the peer's."""
        hello, rest = _split_greeting(greeting)
        try:
            new = self.channel.hear(hello)
        except Disagreement as error:
            self.fail(error)
            raise
        except ProtocolError as error:
            self._doubt = str(error)[:300]
            raise
        if new:
            self.is_alive()
        return rest

    def take(self, sealed: Buffer) -> bytes:
        """Takes a frame, and gives the receipt for the peer; ``ProtocolError`` where it is not the peer's."""
        frame = self.channel.open(sealed)
        try:
            new = self._use(frame)
        except LinkError as error:
            self.fail(ProtocolError(f"{self.name} sent what cannot be used: {error}", code=error.code, party=self.name))
        else:
            if new:
                self.is_alive()
        return self.channel.receipt(frame)

    def silent(self) -> bool:
        """Whether the peer has failed, or gave no sign of life for too long; a repeated frame is none."""
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

    def is_alive(self) -> None:
        """Notes a sign of life that the peer itself gave, now."""
        self._alive_at = time.monotonic()

    def _use(self, frame: Frame) -> bool:
        """Handle an opened frame by its kind; False if it came before."""
        match frame.kind:
            case FrameKind.CONFIRMATION:
                return self._confirm(frame.content)
            case FrameKind.PIECE:
                if not self._confirmed:
                    raise ProtocolError("a message before the confirmation of its keys")
                return self.assembly.take(frame)
            case FrameKind.PING:
                return self.channel.renews(frame)
            case FrameKind.STOPPED:
                self.fail(PeerFailed(f"{self.name} {_describe_stop(frame.content)}", code="stopped"))
                return True

    def _confirm(self, extra: bytes) -> bool:
        """Give the peer's ``extra`` to ``on_extra``, the first time alone; return whether it is."""
        if self._confirmed:
            return False
        if self._on_extra is not None:
            self._on_extra(self.name, extra)
        self._confirmed = True
        return True


def _split_greeting(greeting: Buffer) -> tuple[Buffer, Buffer]:
    """Split a greeting into the hello and what came with it; ``ProtocolError``: it is too short."""
    if len(greeting) < _LENGTH.size:
        raise ProtocolError("a greeting without a hello", code="hello-size", value=0)
    (size,) = _LENGTH.unpack_from(greeting)
    view = memoryview(greeting)[_LENGTH.size :]
    if size > len(view):
        raise ProtocolError(f"a hello of {size} bytes, of which {len(view)} came", code="hello-size", value=size)
    return view[:size], view[size:]


def _describe_stop(content: bytes) -> str:
    reason = printable(content[:LONGEST_REASON].decode(errors="replace"))
    return f"stopped ({reason}); its own log says why" if reason else "closed its link"
