"""A link that seals what parties send each other, so that whoever carries it can neither read nor change it.

A message is sealed in pieces, each a frame of a channel by itself: what is not the peer's never reaches a message. The
first piece begins with the codec's header; all but the last have the same number of data bytes. Their frames carry the
message's number, the piece's index and the bytes of the whole message, all sealed with it.

``Peer`` is for a link that strangers can write to, as ``NatsLink``: whatever arrives in a peer's name goes through its
channel first. ``SealedLink`` wraps any link whose messages always come from who they say.

Handshake, once per pair, over ``Kind.SEAL``. Each side sends in each round, and waits for the other's:

    round 0   the hello of the pair's channel, in the clear
    round 1   its confirmation, sealed

Whoever refuses says so in its next round, in the clear, so that both ends stop with the reason. A message travels under
its own tag as one uint8 vector: its pieces, of up to 1 GiB, one after the other.
"""

from __future__ import annotations

import struct
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, LinkError, PeerFailed, ProtocolError
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.core.text import printable
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.channel import (
    FRAME_BYTES,
    MAX_HELLO_BYTES,
    Buffer,
    Channel,
    ChannelContext,
    Disagreement,
    Frame,
    FrameKind,
    stated_head,
)
from veilgraph.link.codec import HEADER_BYTES, MAX_MESSAGE_BYTES, build_tensor, decode_header, encode
from veilgraph.link.identity import Identity
from veilgraph.link.mailbox import Mailbox
from veilgraph.link.wrapper import Wrapper

PIECE_BYTES: Final = 4 << 20
"""Data bytes of a piece, where nothing carries less at once."""


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
        self.count = piece_count(self._total, piece_bytes)
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

    Args:
        name: of the peer.
        channel: to it.
        mailbox: gets its messages, and its failure.
        max_message_bytes: limit of one message, header included.
        silence_s: longest time without a sign of life of a peer that was heard before, in seconds.
        connect_s: longest wait for the first sign of life, in seconds.
        on_extra: given what the peer tells with its confirmation, once.
        piece_bytes: data bytes of a piece of its messages.
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


SEGMENT_BYTES: Final = 1 << 30
"""Data sealed by one call; AES-GCM of ``cryptography`` takes less than 2 GiB."""
SEALING_BYTES: Final = HEADER_BYTES + FRAME_BYTES * (1 + MAX_MESSAGE_BYTES // SEGMENT_BYTES)
"""The most that sealing adds to a message on the wire."""

_REFUSAL: Final = b"refused: "
_HELLO_ROUND, _CONFIRMATION_ROUND = range(2)


class SealedLink(Wrapper):
    """A ``Link`` whose messages with its peers only they can read or change.

    The handshake is made by ``establish``, or by the first send or receive with anyone: so every party makes it before
    it waits for anything else, and it needs nobody but the peers. Messages with others pass unchanged.

    Args:
        link: carries the messages; it must allow messages longer by ``SEALING_BYTES``. Owned from now on.
        identity: of this party.
        peers: each with a ``SealedLink`` of its own to this party.
        session: of the job; the same at all parties.
        secrets: gives the ephemeral keys.
        max_message_bytes: limit of one message before it is sealed, header included.

    Raises:
        ConfigError: a peer is this party itself, no party of the job, or named twice.
    """

    def __init__(
        self,
        link: Link,
        identity: Identity,
        peers: Sequence[PartyId],
        session: ChannelContext,
        secrets: SecretSource = system_secrets,
        max_message_bytes: int = MAX_MESSAGE_BYTES - SEALING_BYTES,
    ) -> None:
        if len({link.party, *peers}) < 1 + len(peers):
            raise ConfigError(f"peers: {', '.join(peers)} of {link.party}: name every other party once")
        super().__init__(link)
        self._channels = {peer: Channel(identity, link.party, peer, session, secrets=secrets) for peer in peers}
        self._max_message_bytes = max_message_bytes
        self._establishing = threading.Lock()
        self._failure: LinkError | None = None
        self._established = False
        self._rounds_sent = dict.fromkeys(peers, 0)
        self._opened = {peer: _Numbers() for peer in peers}
        self._opening = threading.Lock()

    def establish(self) -> None:
        """Agrees on keys with every peer, once; later calls do nothing, or fail as the first did.

        Raises:
            ProtocolError: a peer is not who it must be, runs another job, or refused this party; says which.
            LinkError: as ``Link.send`` and ``Link.receive``.
        """
        if self._established:
            return
        with self._establishing:
            if self._failure is not None:
                raise self._failure.told(str(self._failure)) from self._failure
            if self._established:
                return
            try:
                self._shake_hands()
            except LinkError as error:
                self._failure = error
                self._refuse(error)
                raise
            self._established = True

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Seals, if ``to`` is a peer, and sends. Errors as the wrapped link's and as ``establish``."""
        self.establish()
        channel = self._channels.get(to)
        self._link.send(to, tag, tensor if channel is None else self._seal(channel, tag, tensor))

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Receives and, if ``sender`` is a peer, opens. Errors as the wrapped link's and as ``establish``.

        Raises:
            ProtocolError: what came is not what the peer sealed under this tag.
        """
        self.establish()
        frame = self._link.receive(sender, tag)
        if sender not in self._channels:
            return frame
        try:
            return self._open(sender, tag, frame)
        except ProtocolError as error:
            raise error.told(f"{self.party} cannot open {tag} from {sender}: {error}", sender) from error

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        """As the wrapped link, once there are keys. Errors as ``establish``."""
        self.establish()
        return self._link.comes(sender, tag, timeout_s)

    def _seal(self, channel: Channel, tag: Tag, tensor: Tensor) -> Tensor:
        message = Outgoing(channel, *encode(tag, tensor, self._max_message_bytes), SEGMENT_BYTES)
        frames = [_bytes_tensor(message.piece(index)) for index in range(message.count)]
        return frames[0] if len(frames) == 1 else torch.cat(frames)

    def _open(self, sender: PartyId, tag: Tag, sealed: Tensor) -> Tensor:
        """Opens one message; nothing of it is returned, or remembered, unless all of it is as it was sealed."""
        if sealed.dtype != torch.uint8 or sealed.ndim != 1 or sealed.numel() < FRAME_BYTES:
            raise ProtocolError(
                f"{sealed.dtype} {list(sealed.shape)} came, a sealed message was expected", code="unsealed"
            )
        opened: list[tuple[Tag, Tensor]] = []
        assembly: Assembly | None = None
        number = 0
        for index, part in enumerate(_frames(memoryview(sealed.contiguous().numpy().data))):
            frame = self._channels[sender].open(part)
            if assembly is None:
                number = frame.number
                assembly = Assembly(lambda *it: opened.append(it), self._max_message_bytes, SEGMENT_BYTES, number)
            if frame.kind != FrameKind.PIECE or frame.index != index or not assembly.take(frame):
                raise ProtocolError(
                    f"a sealed {frame.kind.name.lower()} came that is no part of this message", code="piece"
                )
        if not opened or opened[0][0] != tag:
            raise ProtocolError(f"it holds {opened[0][0] if opened else 'only a part of a message'}", code="other-tag")
        with self._opening:
            if not self._opened[sender].add(number):
                raise ProtocolError(f"message number {number} came again", code="replay", value=number)
        return opened[0][1]

    def _shake_hands(self) -> None:
        for peer, channel in self._channels.items():
            self._tell(peer, channel.hello)
        for peer, channel in self._channels.items():
            channel.hear(self._hear(peer, _HELLO_ROUND))
        for peer, channel in self._channels.items():
            self._tell(peer, channel.confirmation())
        for peer, channel in self._channels.items():
            try:
                frame = channel.open(self._hear(peer, _CONFIRMATION_ROUND))
            except ProtocolError as error:
                raise error.told(f"{self.party} cannot open {peer}'s confirmation: {error}", peer) from error
            if frame.kind != FrameKind.CONFIRMATION:
                raise ProtocolError(
                    f"{peer} sent a sealed {frame.kind.name.lower()}, expected its confirmation", code="unconfirmed"
                )

    def _tell(self, peer: PartyId, frame: bytes) -> None:
        """Sends the next round of the handshake."""
        self._link.send(peer, _tag(self._rounds_sent[peer]), _bytes_tensor(frame))
        self._rounds_sent[peer] += 1

    def _hear(self, peer: PartyId, round_: int) -> bytes:
        """Receives a round of the handshake, unless ``peer`` refuses in it."""
        frame = self._link.receive(peer, _tag(round_))
        if frame.dtype != torch.uint8 or frame.ndim != 1 or frame.numel() > MAX_HELLO_BYTES:
            raise ProtocolError(
                f"{peer} sent {frame.dtype} {list(frame.shape)} as round {round_} of the handshake, "
                f"expected at most {MAX_HELLO_BYTES} bytes",
                code="hello-size",
            )
        content = frame.numpy().tobytes()
        if content.startswith(_REFUSAL):
            # Nobody vouches for this text: shown as quoted, and short.
            words = f"{peer} refused {self.party}'s handshake: {content[len(_REFUSAL) :][:300]!r}"
            raise ProtocolError(words, code="refused", party=peer)
        return content

    def _refuse(self, error: LinkError) -> None:
        """Tells every peer that still waits why there will be no keys."""
        for peer, sent in self._rounds_sent.items():
            if sent <= _CONFIRMATION_ROUND:
                with suppress(LinkError):  # a peer that is gone need not be told
                    self._tell(peer, _REFUSAL + str(error).encode()[:300])


class _Numbers:
    """A set of numbers, kept as the bounds of its runs: small as long as few are missing in between."""

    def __init__(self) -> None:
        self._bounds: list[int] = []  # first, last + 1, first, last + 1, ...

    def add(self, number: int) -> bool:
        """Adds ``number``; False if it was there."""
        bounds = self._bounds
        at = bisect_right(bounds, number)
        if at % 2:
            return False
        # A run that touches the number loses the bound between them.
        after = at < len(bounds) and bounds[at] == number + 1
        before = at > 0 and bounds[at - 1] == number
        bounds[at - before : at + after] = [number] * (not before) + [number + 1] * (not after)
        return True


def _frames(sealed: memoryview) -> Iterator[memoryview]:
    """The frames of a message, as the size that the first one states divides it; each is still to be opened."""
    start = 0
    for size in frame_sizes(stated_head(sealed)[3], SEGMENT_BYTES):
        yield sealed[start : start + size]
        start += size
    if start < len(sealed):
        yield sealed[start:]


def _tag(round_: int) -> Tag:
    return Tag(Kind.SEAL, 0, round_)


def _bytes_tensor(content: bytes | bytearray) -> Tensor:
    return torch.frombuffer(content if isinstance(content, bytearray) else bytearray(content), dtype=torch.uint8)
