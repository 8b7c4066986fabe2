"""The link between organisations: a mailbox over NVIDIA FLARE's cells.

FLARE connects every organisation to the server with mutual TLS; what holders send each other is relayed by the server,
so a ``SealedLink`` belongs on top of this one. FLARE's core cell is not part of its public interface: all that is used
of it is in this file, and its version is pinned.

A message travels as pieces of 4 MiB that are sent side by side and acknowledged one by one. Every piece starts with

    message   u64   counts the messages from this sender to this receiver
    piece     u32   index of the piece
    total     u64   bytes of the whole message: codec header and data

all little-endian. Repeated pieces are acknowledged and dropped, so a piece may be sent again when its
acknowledgement is lost.
"""

from __future__ import annotations

import queue
import struct
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import torch
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message as CellMessage
from torch import Tensor

from veilgraph.core.errors import LinkError, PeerFailed, ProtocolError
from veilgraph.core.types import PartyId, Tag
from veilgraph.link.codec import HEADER_BYTES, MAX_MESSAGE_BYTES, build_tensor, decode_header, encode
from veilgraph.link.mailbox import Mailbox

PIECE_BYTES: Final = 4 << 20
"""Data bytes of a piece; one frame of 87 MB takes four times as long as its pieces side by side."""

_CHANNEL: Final = "veilgraph"
_PIECE, _PING, _STOPPED = "piece", "ping", "stopped"
_HEADER: Final = struct.Struct("<QIQ")
_SIDE_BY_SIDE: Final = 4
_PING_EVERY_S: Final = 1.0
_REPLY_S: Final = 10.0
_FIRST_REPLY_S: Final = 2.0
_RETRY_S: Final = 0.2
_FLUSH_S: Final = 15.0
_TELL_S: Final = 2.0
_LONGEST_REASON: Final = 200
_ABORTED: Final = "the job was stopped"


@dataclass
class _Incoming:
    """What has arrived of the message that a peer is sending."""

    number: int = 0
    data: Tensor | None = None
    missing: set[int] = field(default_factory=set)


class FlareLink:
    """One party's end of a FLARE job's cell network.

    Sends are queued and go out in the background, one message at a time per receiver. Every second each peer is asked
    for a sign of life: one that gave none for ``silence_s`` has failed, as has one that says that it stopped.

    Args:
        party: name of the party on this end.
        cell: of this party's job process.
        addresses: peer → name of its job process's cell.
        timeout_s: longest wait of a receive, in seconds.
        silence_s: longest time without a sign of life of a peer that was heard before, in seconds.
        connect_s: longest wait for the first sign of life, in seconds.
        max_message_bytes: limit of one message, header included.
    """

    def __init__(
        self,
        party: PartyId,
        cell: CoreCell,
        addresses: Mapping[PartyId, str],
        timeout_s: float,
        *,
        silence_s: float = 20.0,
        connect_s: float = 120.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._party, self._cell, self._addresses = party, cell, dict(addresses)
        self._timeout_s, self._silence_s, self._connect_s = timeout_s, silence_s, connect_s
        self._max_message_bytes = max_message_bytes
        self._peers = {address: peer for peer, address in self._addresses.items()}
        self._mailbox = Mailbox(party, self._addresses)
        self._incoming = {peer: _Incoming() for peer in self._addresses}
        self._receiving = {peer: threading.Lock() for peer in self._addresses}
        self._heard: dict[PartyId, float] = {}
        self._started = time.monotonic()
        self._broken: dict[PartyId, LinkError] = {}
        self._outgoing: dict[PartyId, queue.SimpleQueue[tuple[bytes, memoryview] | None]]
        self._outgoing = {peer: queue.SimpleQueue() for peer in self._addresses}
        self._closed, self._ending = threading.Event(), threading.Lock()
        self._pieces = ThreadPoolExecutor(_SIDE_BY_SIDE * len(self._addresses), thread_name_prefix=f"{party} pieces")
        cell.register_request_cb(_CHANNEL, _PIECE, self._on_piece)
        cell.register_request_cb(_CHANNEL, _PING, self._on_ping)
        cell.register_request_cb(_CHANNEL, _STOPPED, self._on_stopped)
        self._senders = [self._thread(self._send_all, peer) for peer in self._addresses]
        self._watchers = [self._thread(self._watch, peer) for peer in self._addresses]

    @property
    def party(self) -> PartyId:
        """Name of the party on this end."""
        return self._party

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Queues the message.

        Raises:
            PeerFailed: the receiver is gone.
            ProtocolError: the receiver is unknown, or the message has no encoding.
            LinkError: this end is closed.
        """
        if to not in self._outgoing:
            raise ProtocolError(
                f"{self._party} cannot send {tag} to {to!r}: it has a link with {', '.join(self._outgoing)}"
            )
        if self._closed.is_set():
            raise LinkError(f"{self._party} cannot send {tag} to {to}: its own link is closed")
        if to in self._broken:
            raise PeerFailed(f"{self._party} cannot send {tag} to {to}: {self._broken[to]}") from self._broken[to]
        self._outgoing[to].put(encode(tag, tensor, self._max_message_bytes))

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Waits for a message; errors as ``Link.receive``, and ``LinkError`` when this end is closed."""
        return self._mailbox.take(sender, tag, self._timeout_s)

    def expect(self, unread_bytes: int) -> None:
        """Sets the limit of what one sender may have unread here; see ``Mailbox``."""
        self._mailbox.expect(unread_bytes)

    def close(self) -> None:
        """Sends what is queued, tells the peers, then ends; messages not yet received are dropped."""
        self._end(None, "")

    def stop(self, reason: str) -> None:
        """Ends because this party failed, and tells the peers so: what is queued is sent if that takes no long time.

        Args:
            reason: told to every peer, so it holds no private value: the kind of the error, not its text.
        """
        self._end(_FLUSH_S, reason)

    def abort(self, why: str) -> None:
        """Ends at once because the job was stopped from outside: whoever uses this end gets ``PeerFailed(why)``."""
        for peer in self._addresses:
            self._fail(peer, PeerFailed(why))
        self._end(0.0, _ABORTED)

    def _end(self, flush_s: float | None, reason: str) -> None:
        with self._ending:
            if self._closed.is_set():
                return
            self._mailbox.close()
            deadline = None if flush_s is None else time.monotonic() + flush_s
            for outgoing in self._outgoing.values():
                outgoing.put(None)
            for sender in self._senders:
                sender.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            self._closed.set()
            payload = reason.encode()[:_LONGEST_REASON]
            tells = [self._thread(self._request, peer, _STOPPED, payload, _TELL_S) for peer in self._addresses]
            for tell in tells:
                tell.join(_TELL_S)  # a peer that cannot be told finds out by itself
            for watcher in self._watchers:
                watcher.join(_REPLY_S)
            self._pieces.shutdown(wait=False, cancel_futures=True)

    def _thread(self, target: Callable[..., object], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, name=f"{self._party} {arguments[0]}", daemon=True)
        thread.start()
        return thread

    # Sending

    def _send_all(self, peer: PartyId) -> None:
        """Body of the thread that sends what is queued for ``peer``."""
        number = 0
        while (message := self._outgoing[peer].get()) is not None:
            header, data = message
            number += 1
            try:
                self._send_message(peer, number, header, data)
            except LinkError as error:
                self._broken[peer] = error
                self._mailbox.fail(peer, error)
                return

    def _send_message(self, peer: PartyId, number: int, header: bytes, data: memoryview) -> None:
        total = len(header) + data.nbytes
        count = max(1, -(-data.nbytes // PIECE_BYTES))

        def piece(index: int) -> bytes:
            part = data[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]
            return b"".join((_HEADER.pack(number, index, total), header if index == 0 else b"", part))

        if count == 1:
            self._deliver(peer, piece(0))
        else:
            futures = [self._pieces.submit(lambda index: self._deliver(peer, piece(index)), i) for i in range(count)]
            for future in futures:
                future.result()

    def _deliver(self, peer: PartyId, piece: bytes) -> None:
        """Sends a piece until it is acknowledged or the peer has failed."""
        while True:
            code = self._request(peer, _PIECE, piece, _REPLY_S if peer in self._heard else _FIRST_REPLY_S)
            if code == ReturnCode.OK:
                return
            if code == ReturnCode.INVALID_REQUEST:
                raise ProtocolError(f"{peer} refused a message of {self._party}: it could not be decoded")
            if self._closed.is_set() or self._silent(peer):
                raise PeerFailed(f"{peer} cannot be reached ({code})")
            time.sleep(_RETRY_S)

    def _request(self, peer: PartyId, topic: str, payload: bytes, reply_s: float) -> str:
        try:
            reply = self._cell.send_request(
                _CHANNEL, topic, self._addresses[peer], CellMessage({}, payload), timeout=reply_s, optional=True
            )
        except Exception as error:  # noqa: BLE001  (FLARE raises what its drivers raise; all mean: not delivered)
            return f"{type(error).__name__}: {error}"
        code = str(reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK))
        if code == ReturnCode.OK:
            self._heard[peer] = time.monotonic()
        return code

    # Receiving: called by the cell's threads

    def _on_piece(self, message: CellMessage) -> CellMessage:
        peer = self._origin(message)
        if peer is None:
            return make_reply(ReturnCode.INVALID_REQUEST)
        try:
            self._take_piece(peer, message.payload)
        except ProtocolError as error:
            self._mailbox.fail(peer, ProtocolError(f"{peer} sent what cannot be decoded: {error}"))
            return make_reply(ReturnCode.INVALID_REQUEST)
        return make_reply(ReturnCode.OK)

    def _take_piece(self, peer: PartyId, payload: object) -> None:
        if not isinstance(payload, bytes | bytearray | memoryview) or len(payload) < _HEADER.size:
            raise ProtocolError("a piece of a message without its header")
        number, index, total = _HEADER.unpack_from(payload)
        body = memoryview(payload)[_HEADER.size :]
        with self._receiving[peer]:
            incoming = self._incoming[peer]
            if number < incoming.number or (number == incoming.number and index not in incoming.missing):
                return  # was here before
            if number > incoming.number:
                if incoming.missing or number != incoming.number + 1:
                    raise ProtocolError(f"message {number} before the end of message {incoming.number}")
                incoming.data, incoming.missing = self._room(total), set(range(_count(total)))
                incoming.number = number
            if incoming.data is None or incoming.data.numel() != total or index not in incoming.missing:
                raise ProtocolError(f"piece {index} does not belong to message {number}")
            start = 0 if index == 0 else HEADER_BYTES + index * PIECE_BYTES
            end = min(total, HEADER_BYTES + (index + 1) * PIECE_BYTES)
            if body.nbytes != end - start:
                raise ProtocolError(f"piece {index} of message {number} has {body.nbytes} bytes, not {end - start}")
            incoming.data.numpy().data[start:end] = body
            incoming.missing.discard(index)
            if incoming.missing:
                return
            whole, incoming.data = incoming.data, None
        header = decode_header(whole[:HEADER_BYTES].numpy().tobytes(), self._max_message_bytes)
        # Data behind a header of 60 bytes would not be aligned for 8-byte elements.
        self._mailbox.put(peer, header.tag, build_tensor(header, whole[HEADER_BYTES:].clone()))

    def _room(self, total: int) -> Tensor:
        if not HEADER_BYTES <= total <= self._max_message_bytes:
            raise ProtocolError(f"a message of {total} bytes came, the limit is {self._max_message_bytes}")
        return torch.empty(total, dtype=torch.uint8)

    def _on_ping(self, message: CellMessage) -> CellMessage:
        peer = self._origin(message)
        return make_reply(ReturnCode.INVALID_REQUEST if peer is None else ReturnCode.OK)

    def _on_stopped(self, message: CellMessage) -> CellMessage:
        peer = self._origin(message)
        if peer is None or not isinstance(message.payload, bytes | bytearray | memoryview):
            return make_reply(ReturnCode.INVALID_REQUEST)
        reason = bytes(message.payload[:_LONGEST_REASON]).decode(errors="replace")
        printable = "".join(letter if letter.isprintable() else " " for letter in reason)
        why = f"stopped ({printable}); its own log says why" if printable else "closed its link"
        self._fail(peer, PeerFailed(f"{peer} {why}"))
        return make_reply(ReturnCode.OK)

    def _origin(self, message: CellMessage) -> PartyId | None:
        peer = self._peers.get(str(message.get_header(MessageHeaderKey.ORIGIN, "")))
        if peer is not None:
            self._heard[peer] = time.monotonic()
        return peer

    # Signs of life

    def _watch(self, peer: PartyId) -> None:
        """Body of the thread that asks ``peer`` for signs of life."""
        while not self._closed.wait(_PING_EVERY_S):
            self._request(peer, _PING, b"", min(_REPLY_S, self._silence_s / 2))
            if self._silent(peer) and not self._closed.is_set():
                limit = self._silence_s if peer in self._heard else self._connect_s
                self._fail(peer, PeerFailed(f"{peer} gave no sign of life for {limit:g} s"))
                return

    def _silent(self, peer: PartyId) -> bool:
        heard = self._heard.get(peer)
        if heard is None:
            return time.monotonic() - self._started > self._connect_s
        return peer in self._broken or time.monotonic() - heard > self._silence_s

    def _fail(self, peer: PartyId, error: LinkError) -> None:
        self._broken.setdefault(peer, error)
        self._mailbox.fail(peer, error)


def _count(total: int) -> int:
    return max(1, -(-(total - HEADER_BYTES) // PIECE_BYTES))
