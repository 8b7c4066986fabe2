"""A sealed link over any other: how tests and benchmarks seal without a broker, and attack the channel's handshake.

The wrapped link's messages come from who they say. Handshake, once per pair, over ``Kind.SEAL``. Each side sends in
each round, and waits for the other's:

    round 0   the hello of the pair's channel, in the clear
    round 1   its confirmation, sealed

Whoever refuses says so in its next round, in the clear, so that both ends stop with the reason. A message travels under
its own tag as one uint8 vector: its pieces, of up to 1 GiB, one after the other.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, LinkError, ProtocolError
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.channel import (
    FRAME_BYTES,
    MAX_HELLO_BYTES,
    Channel,
    ChannelContext,
    FrameKind,
    stated_head,
)
from veilgraph.link.codec import HEADER_BYTES, MAX_MESSAGE_BYTES, encode
from veilgraph.link.identity import Identity
from veilgraph.link.sealed import Assembly, Outgoing, piece_count
from veilgraph.link.wrapper import Wrapper

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


def frame_sizes(total: int, piece_bytes: int) -> Iterator[int]:
    """Bytes of each frame of a message of ``total`` bytes."""
    for index in range(piece_count(total, piece_bytes)):
        data_bytes = min(total - HEADER_BYTES, (index + 1) * piece_bytes) - index * piece_bytes
        yield data_bytes + FRAME_BYTES + (0 if index else HEADER_BYTES)


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
