"""The link between organisations: a mailbox over NVIDIA FLARE's cells, sealed end to end.

FLARE connects every organisation to the server with mutual TLS. What holders send each other is relayed by the server,
and any participant may write any origin on what it sends. So nothing that FLARE says of a message is believed: every
pair of parties has a ``Channel``, whose frames nobody else can make. What it does not open raises ``ProtocolError`` and
changes nothing; what it opens is the peer's own, and what is wrong with it then is the peer's failure.

FLARE's core cell is not part of its public interface: all that is used of it is in this file, and its version is
pinned. On its channel ``veilgraph`` there are two topics:

    hello   u32 length of the sender's hello, the hello, and, once the sender has keys, a sealed frame;
            the answer is made likewise, with a receipt in place of the frame
    frame   a sealed frame; the answer is its receipt

A message travels as pieces of 4 MiB that are sent side by side, each again until its receipt comes.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message as CellMessage
from torch import Tensor

from veilgraph.core.errors import LinkError, PeerFailed, ProtocolError
from veilgraph.core.text import printable
from veilgraph.core.types import SERVER, PartyId, Tag
from veilgraph.link.channel import (
    CHANNEL,
    FRAME,
    FROM_HEADER,
    HELLO,
    Buffer,
    Channel,
    ChannelContext,
    FrameKind,
    claimed_kind,
)
from veilgraph.link.codec import MAX_MESSAGE_BYTES, encode
from veilgraph.link.identity import Identity
from veilgraph.link.mailbox import MailboxLink
from veilgraph.link.refusals import RefusalLog
from veilgraph.link.sealed import LONGEST_REASON, OnExtra, Outgoing, Peer

_SIDE_BY_SIDE: Final = 4
_PING_EVERY_S: Final = 1.0
_REPLY_S: Final = 10.0
_FIRST_REPLY_S: Final = 2.0
RETRY_S: Final = 0.2
_FLUSH_S: Final = 15.0
TELL_S: Final = 2.0
_ABORTED: Final = "the job was stopped"
_LONGEST_NAME: Final = 64

log = logging.getLogger("veilgraph")


class FlareLink(MailboxLink):
    """One party's end of a FLARE job's cell network.

    Sends are queued and go out in the background, one message at a time per receiver, once the two have authenticated
    each other. A peer that gave no sign of life for ``silence_s`` has failed, as has one that says that it stopped.

    Args:
        party: name of the party on this end.
        cell: of this party's job process.
        addresses: peer → name of its job process's cell.
        identity: of this party.
        session: of the job; the same at all parties.
        timeout_s: longest wait of a receive, in seconds.
        silence_s: longest time without a sign of life of a peer that was heard before, in seconds.
        connect_s: longest wait for the first sign of life, in seconds.
        max_message_bytes: limit of one message, header included.
        extra: told to every peer, sealed, before anything else.
        on_extra: given a peer and its ``extra``, once, before anything else of it; a ``LinkError`` ends the session
            with that peer.
    """

    def __init__(
        self,
        party: PartyId,
        cell: CoreCell,
        addresses: Mapping[PartyId, str],
        identity: Identity,
        session: ChannelContext,
        timeout_s: float,
        *,
        silence_s: float = 20.0,
        connect_s: float = 120.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        extra: bytes = b"",
        on_extra: OnExtra | None = None,
    ) -> None:
        super().__init__(party, addresses, timeout_s)
        self._cell, self._addresses = cell, dict(addresses)
        self._silence_s, self._max_message_bytes = silence_s, max_message_bytes
        self._peers = {
            name: Peer(
                name,
                Channel(identity, party, name, session, extra=extra),
                self._mailbox,
                max_message_bytes=max_message_bytes,
                silence_s=silence_s,
                connect_s=connect_s,
                on_extra=on_extra,
            )
            for name in self._addresses
        }
        self._origins = {address: self._peers[name] for name, address in self._addresses.items()}
        self._refusals = RefusalLog(lambda _, words: log.warning("%s refused %s", party, words))
        self._outgoing: dict[PartyId, queue.SimpleQueue[tuple[bytes, memoryview] | None]]
        self._outgoing = {name: queue.SimpleQueue() for name in self._addresses}
        self._closed, self._ending = threading.Event(), threading.Lock()
        self._pieces = ThreadPoolExecutor(_SIDE_BY_SIDE * len(self._addresses), thread_name_prefix=f"{party} pieces")
        cell.register_request_cb(CHANNEL, HELLO, self._on_hello)
        cell.register_request_cb(CHANNEL, FRAME, self._on_frame)
        self._senders = [self._thread(self._send_all, peer) for peer in self._peers.values()]
        self._watchers = [self._thread(self._watch, peer) for peer in self._peers.values()]

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Queues the message.

        Raises:
            PeerFailed: the receiver is gone.
            ProtocolError: the receiver is unknown, or the message has no encoding.
            LinkError: this end is closed.
        """
        self._check_sends(to, tag, closed=self._closed.is_set())
        if (failure := self._peers[to].failure) is not None:
            raise PeerFailed(f"{self._party} cannot send {tag} to {to}: {failure}", key=tag, party=to) from failure
        self._outgoing[to].put(encode(tag, tensor, self._max_message_bytes))

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
        for peer in self._peers.values():
            peer.fail(PeerFailed(why))
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
            content = reason.encode()[:LONGEST_REASON]
            tells = [self._thread(self._tell, peer, content) for peer in self._peers.values()]
            for tell in tells:
                tell.join(TELL_S)  # a peer that cannot be told finds out by itself
            for watcher in self._watchers:
                watcher.join(_REPLY_S)
            self._pieces.shutdown(wait=False, cancel_futures=True)
            self._refusals.close()

    def _thread(self, target: Callable[..., object], peer: Peer, *arguments: object) -> threading.Thread:
        name = f"{self._party} {peer.name}"
        thread = threading.Thread(target=target, args=(peer, *arguments), name=name, daemon=True)
        thread.start()
        return thread

    # Sending

    def _send_all(self, peer: Peer) -> None:
        """Body of the thread that sends what is queued for ``peer``."""
        while (message := self._outgoing[peer.name].get()) is not None:
            try:
                while not peer.ready.wait(RETRY_S):
                    self._give_up_on_silence(peer, "its handshake is not done")
                self._send_message(peer, Outgoing(peer.channel, *message))
            except LinkError as error:
                peer.fail(error)
                return

    def _send_message(self, peer: Peer, message: Outgoing) -> None:
        if message.count == 1:
            self._deliver(peer, message, 0)
            return
        futures = [self._pieces.submit(self._deliver, peer, message, index) for index in range(message.count)]
        for future in futures:
            future.result()

    def _deliver(self, peer: Peer, message: Outgoing, index: int) -> None:
        """Sends a piece until the peer has it or has failed."""
        piece = message.piece(index)
        while why := self._hand_over(peer, piece, _REPLY_S):
            self._give_up_on_silence(peer, why)
            time.sleep(RETRY_S)

    def _give_up_on_silence(self, peer: Peer, why: str) -> None:
        if self._closed.is_set() or peer.silent():
            raise PeerFailed(f"{peer.name} cannot be reached ({why})")

    def _hand_over(self, peer: Peer, frame: Buffer, reply_s: float) -> str:
        """Sends a frame once; empty if the peer says that it has it, else what FLARE says of it."""
        said, receipt = self.ask_peer(peer, FRAME, frame, reply_s)
        return "" if peer.has(frame, receipt) else said

    def ask_peer(self, peer: Peer, topic: str, payload: Buffer, reply_s: float) -> tuple[str, Buffer]:
        """What FLARE says of a request, and the answer: nobody's until it is verified."""
        message = CellMessage(self._headers(), payload)
        try:
            reply = self._cell.send_request(
                CHANNEL, topic, self._addresses[peer.name], message, timeout=reply_s, optional=True
            )
        except Exception as error:  # noqa: BLE001  (FLARE raises what its drivers raise; all mean: not delivered)
            return f"{type(error).__name__}: {error}", b""
        said = reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK)
        return f"FLARE says {said}", reply.payload if isinstance(reply.payload, Buffer) else b""

    def _headers(self) -> dict[str, bool]:
        """The server's relay takes the bearer token of the server's job off messages that are marked as in transit;
        FLARE itself marks only those from holder to holder. A holder that has it can pass for the server.
        """
        return {MessageHeaderKey.SERVER_TRANSIT_REQUIRED: True} if self._party == SERVER else {}

    # Receiving: called by the cell's threads

    def _on_hello(self, message: CellMessage) -> CellMessage:
        try:
            peer = self._taking_part(message)
            frame = peer.hear(message.payload)
        except ProtocolError as error:
            return self._refuse(message, HELLO, error)
        receipt = self._on_frame(CellMessage(message.headers, frame)).payload if len(frame) else b""
        return self._answer(peer.greeting(receipt or b""))

    def _on_frame(self, message: CellMessage) -> CellMessage:
        try:
            return self._answer(self._taking_part(message).take(message.payload))
        except ProtocolError as error:
            return self._refuse(message, claimed_kind(message.payload), error)

    def _claimed(self, message: CellMessage) -> Peer | None:
        """Whose a message says it is: that says which channel may open it, and no more."""
        return self._origins.get(str(message.get_header(MessageHeaderKey.ORIGIN, "")))

    def _taking_part(self, message: CellMessage) -> Peer:
        if (peer := self._claimed(message)) is None:
            raise ProtocolError("its origin has no part in this job")
        return peer

    def _refuse(self, message: CellMessage, kind: str, error: ProtocolError) -> CellMessage:
        peer = self._claimed(message)
        claimed, through = "nobody in this job" if peer is None else peer.name, message.get_header(FROM_HEADER)
        name = printable(through, _LONGEST_NAME) if through else claimed
        words = f"a forged {kind} that claims to be of {claimed}, through the connection of {name}: {error}"
        self._refusals.add((name,), (claimed, kind), words)
        return CellMessage({**self._headers(), MessageHeaderKey.RETURN_CODE: ReturnCode.INVALID_REQUEST})

    def _answer(self, payload: bytes) -> CellMessage:
        return CellMessage({**self._headers(), MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, payload)

    # Handshake, signs of life, farewell

    def _watch(self, peer: Peer) -> None:
        """Body of the thread that makes the handshake with ``peer`` and then asks it for signs of life."""
        pause_s = 0.0
        while not self._closed.wait(pause_s):
            if peer.ready.is_set():
                pause_s = _PING_EVERY_S
                self._hand_over(peer, peer.channel.seal(FrameKind.PING), min(_REPLY_S, self._silence_s / 2))
            else:
                pause_s = self._shake_hands(peer)
            if peer.silent() and not self._closed.is_set():
                peer.fail_silent()
                return

    def _shake_hands(self, peer: Peer) -> float:
        """Goes one step on; returns the seconds to wait before the next."""
        agreed = peer.channel.agreed
        if self._greet(peer, peer.channel.confirmation() if agreed else b"", _FIRST_REPLY_S):
            peer.ready.set()
        return RETRY_S if peer.channel.agreed == agreed else 0.0

    def _greet(self, peer: Peer, frame: bytes, reply_s: float) -> bool:
        """Sends hello and a frame once; whether the peer says that it has the frame."""
        _, answer = self.ask_peer(peer, HELLO, peer.greeting(frame), reply_s)
        if not len(answer):
            return False
        try:
            receipt = peer.hear(answer)
        except ProtocolError as error:
            self._refusals.add((peer.name,), "answer", f"a forged answer that claims to be of {peer.name}: {error}")
            return False
        return bool(frame) and peer.has(frame, receipt)

    def _tell(self, peer: Peer, reason: bytes) -> None:
        """Says that this end has stopped; with its hello, in case the peer has not heard it yet."""
        deadline = time.monotonic() + TELL_S
        frame = b""
        while time.monotonic() < deadline:
            if not frame and peer.channel.agreed:
                frame = peer.channel.seal(FrameKind.STOPPED, reason)
            if self._greet(peer, frame, TELL_S):
                return
            time.sleep(0.0 if peer.channel.agreed and not frame else RETRY_S)
