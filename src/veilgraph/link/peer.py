"""One peer of a link that strangers can write to: who it is, what it sent, whether it is there. No input or output.

Whatever arrives in a peer's name goes through its channel first. What that does not open raises ``ProtocolError`` and
changes nothing; what it opens is the peer's own, and what is wrong with it then is the peer's failure.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from veilgraph.core.errors import LinkError, PeerFailed, ProtocolError
from veilgraph.core.printable import printable
from veilgraph.core.types import PartyId
from veilgraph.link.channel import Buffer, Channel, Disagreement, Frame, FrameKind
from veilgraph.link.mailbox import Mailbox
from veilgraph.link.pieces import Assembly

OnExtra = Callable[[PartyId, bytes], None]

LONGEST_REASON: Final = 200
"""Bytes that a stop notice may have."""

_LENGTH: Final = struct.Struct("<I")


class Peer:
    """What one party knows of another. Any number of threads may use it.

    Args:
        name: of the peer.
        channel: to it.
        mailbox: gets its messages, and its failure.
        max_message_bytes: limit of one message, header included.
        silence_s: longest time without a sign of life of a peer that was heard before, in seconds.
        connect_s: longest wait for the first sign of life, in seconds.
        on_extra: given what the peer tells with its confirmation, once.
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
        self._assembly = Assembly(partial(mailbox.put, name), max_message_bytes)
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
        """Takes the hello in a greeting.

        Returns:
            What came with it.

        Raises:
            ProtocolError: the hello is not the peer's.
        """
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
        """Takes a frame.

        Returns:
            The receipt for the peer.

        Raises:
            ProtocolError: the frame is not the peer's.
        """
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

    def fail_silent(self) -> None:
        """Records that it gave no sign of life."""
        limit, doubt = self._silence_s, ""
        if self._alive_at is None:
            limit = self._connect_s
            doubt = self._doubt and f"; a hello in its name was refused: {self._doubt}"
        self.fail(PeerFailed(f"{self.name} gave no sign of life for {limit:g} s{doubt}", code="silent"))

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
