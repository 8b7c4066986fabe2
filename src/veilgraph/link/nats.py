"""The link between organisations: a mailbox over a NATS broker, sealed end to end.

The broker hands a message of ``A`` for ``B`` on under the subject ``vg.B.A.JOB`` (``deploy.broker`` says who may use
which). It is trusted with availability alone: what its subjects say only chooses the ``Channel`` that must open the
message. What that refuses changes nothing. A message of the broker is a byte and

    1   hello     a greeting: the sender's hello and, once it has keys, a sealed frame (``sealed.Peer``)
    2   frame     a sealed frame
    3   receipt   the fields in the clear of a frame that was taken, and the channel's receipt for them

NATS loses messages: when a broker ends, when a connection does, when a consumer is slow. So a piece is kept until the
peer's receipt for it, or for a later one, has come; pieces of ``WINDOW_BYTES`` at most are on their way to a peer.
Pieces are taken in their one order: message for message, piece for piece, as their sealed heads say. A receiver that
sees a later piece repeats its newest receipt, as does one whose connection was made anew, and the sender then sends
again all that is not acknowledged. Where nothing comes back, it sends its oldest piece again, as a probe. A receipt
waits for more pieces for 50 ms, or for a quarter of the window: it is for all pieces before it. Who has no room for
more of a peer's keeps its receipts back until there is some.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from torch import Tensor

from veilgraph.core.errors import LinkTimeout, PeerFailed, ProtocolError
from veilgraph.core.types import PartyId, Tag
from veilgraph.link.channel import (
    HEAD_BYTES,
    RECEIPT_BYTES,
    Channel,
    ChannelContext,
    FrameKind,
    claimed_kind,
    stated_head,
)
from veilgraph.link.codec import MAX_MESSAGE_BYTES, encode
from veilgraph.link.identity import Identity
from veilgraph.link.mailbox import MailboxLink
from veilgraph.link.nats_client import IN_FLIGHT_BYTES, Brokers, Subscription, token
from veilgraph.link.refusals import RefusalLog
from veilgraph.link.sealed import LONGEST_REASON, PIECE_BYTES, OnExtra, Outgoing, Peer

WINDOW_BYTES: Final = 16 << 20
"""Most that is on its way to one peer, of up to ``IN_FLIGHT_BYTES / WINDOW_BYTES``; of more peers each has less."""
QUEUE_BYTES: Final = 64 << 20
"""Most that waits to be sent to one peer; who sends more waits."""

_HELLO, _FRAME, _RECEIPT = b"\x01", b"\x02", b"\x03"
_BOOKKEEPING_BYTES: Final = 1 << 10
"""What a piece costs beside its bytes: else a window of empty messages would have no end."""
_RETRY_S: Final = 0.2
_SHORT_BYTES: Final = 64 << 10
"""Longest message that its sender's own thread may send: waking another would take longer."""
_RECEIPT_S: Final = 0.05
"""How long a receipt for pieces may wait for later pieces, which it acknowledges as well."""
_PING_EVERY_S: Final = 1.0
_ROOM_S: Final = 0.01
"""How often a peer that waits for room is looked after: room comes when the role receives, which wakes nobody here."""
_PROBE_S: Final = 1.0
_LONGEST_PROBE_S: Final = 8.0
_FLUSH_S: Final = 15.0
_TELL_S: Final = 2.0
_JOIN_S: Final = 10.0
_ABORTED: Final = "the job was stopped"

log = logging.getLogger("veilgraph")


class NatsLink(MailboxLink):
    """One party's end of a job, on a connection of its own with a broker.

    Sends are queued, and all but short ones go out in the background, one message at a time per receiver, once the two
    have authenticated each other. A peer that gave no sign of life for ``silence_s`` has failed, as has one that says
    that it stopped.

    Args:
        names: peer → the name in its certificate; ``own_name`` is that in this party's, by default ``party``.
        session: of the job; the same at all parties. Its id is a token of the subjects.
        timeout_s: longest wait of a receive, and for room to send, in seconds.
        connect_s: longest wait for the first sign of life, in seconds.
        extra: told to every peer, sealed, before anything else.
        on_extra: given a peer and its ``extra``, once, before anything else of it; a ``LinkError`` ends the session
        with that peer.
    """

    def __init__(
        self,
        party: PartyId,
        brokers: Brokers,
        names: Mapping[PartyId, str],
        identity: Identity,
        session: ChannelContext,
        timeout_s: float,
        *,
        own_name: str | None = None,
        silence_s: float = 20.0,
        connect_s: float = 120.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        extra: bytes = b"",
        on_extra: OnExtra | None = None,
    ) -> None:
        super().__init__(party, names, timeout_s)
        self._max_message_bytes = max_message_bytes
        me, job = token(own_name or party), token(session.job)
        self._subscription = Subscription(brokers, f"vg.{me}.*.{job}", self._take, self._changed)
        self._routes: dict[PartyId, _Route] = {}
        self._by_subject: dict[str, _Route] = {}
        for name, certified in names.items():
            channel = Channel(identity, party, name, session, extra=extra)
            peer = Peer(
                name,
                channel,
                self._mailbox,
                max_message_bytes=max_message_bytes,
                silence_s=silence_s,
                connect_s=connect_s,
                on_extra=on_extra,
            )
            window = min(WINDOW_BYTES, IN_FLIGHT_BYTES // len(names))
            self._routes[name] = route = _Route(peer, f"vg.{token(certified)}.{me}.{job}", window)
            self._by_subject[f"vg.{me}.{token(certified)}.{job}"] = route
        self._refusals = RefusalLog(lambda _, words: log.warning("%s %s", party, words))
        self._aborted: PeerFailed | None = None
        self._trouble = ""
        self._closing, self._closed, self._ending = threading.Event(), self._subscription.closed, threading.Lock()
        self._threads = [threading.Thread(target=self._subscription.run, name=f"{party} reads", daemon=True)]
        self._threads += [
            threading.Thread(target=self._serve, args=(route,), name=f"{party} {name}", daemon=True)
            for name, route in self._routes.items()
        ]
        for thread in self._threads:
            thread.start()

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Queues the message; waits while ``QUEUE_BYTES`` wait already. Errors are those of ``MemoryLink.send``."""
        self._check_sends(to, tag, closed=False)
        route, (header, data) = self._routes[to], encode(tag, tensor, self._max_message_bytes)
        size = data.nbytes + _BOOKKEEPING_BYTES

        def goes_on() -> bool:
            full = bool(route.queue) and route.queued_bytes + size > QUEUE_BYTES
            return not full or route.peer.failure is not None or self._closing.is_set()

        with route.changed:
            if not route.changed.wait_for(goes_on, self._timeout_s):
                words = f"{self.party} cannot send {tag} to {to}: it took nothing for {self._timeout_s:g} s"
                raise LinkTimeout(words, code="not-taken", key=tag, value=data.nbytes, party=to)
            if (failure := self._aborted or route.peer.failure) is not None:
                words = f"{self.party} cannot send {tag} to {to}: {failure}"
                raise PeerFailed(words, key=tag, party=failure.party or to) from failure
            self._check_sends(to, tag, closed=self._closing.is_set())
            route.queue.append((header, data))
            route.queued_bytes += size
        if data.nbytes > _SHORT_BYTES or not route.serving.acquire(blocking=False):
            route.wake.set()
            return
        try:
            if route.peer.ready.is_set() and (piece := route.next_piece(time.monotonic())) is not None:
                self._publish(route, _FRAME, piece)
        finally:
            route.serving.release()
        if route.queue:
            route.wake.set()

    def close(self) -> None:
        """Sends what is queued, tells the peers, then ends; messages not yet received are dropped."""
        self._end(None, "")

    def stop(self, reason: str) -> None:
        """End because this party failed, and tell all peers ``reason``, the kind of the error: its text may be private.

        What is queued is sent if that takes no long time.
        """
        self._end(_FLUSH_S, reason)

    def abort(self, why: str) -> None:
        """Ends at once because the job was stopped from outside: whoever uses this end gets ``PeerFailed(why)``."""
        self._aborted = PeerFailed(why, party=self.party)  # which others lost, and which lost nobody
        self._mailbox.fail(None, self._aborted)
        self._end(0.0, _ABORTED)

    def _end(self, flush_s: float | None, reason: str) -> None:
        """Flush for ``flush_s`` seconds at most (None: no limit), tell all peers ``reason``, and close."""
        with self._ending:
            if self._closed.is_set():
                return
            self._mailbox.close()
            self._closing.set()
            deadline = None if flush_s is None else time.monotonic() + flush_s
            for route in self._routes.values():
                with route.changed:
                    route.changed.notify_all()
                    left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                    route.changed.wait_for(route.is_idle, left_s)
                    route.farewell, route.greet_at = reason.encode()[:LONGEST_REASON], 0.0
                route.wake.set()
            deadline = time.monotonic() + _TELL_S  # a peer that cannot be told finds out by itself
            for route in self._routes.values():
                with route.changed:
                    route.changed.wait_for(route.is_told, max(0.0, deadline - time.monotonic()))
                if route.serving.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    route.serving.release()  # what was being sent is sent
            self._subscription.close()
            for route in self._routes.values():
                route.wake.set()
            for thread in self._threads:
                thread.join(_JOIN_S)
            self._refusals.close()

    # Sending: a thread per peer

    def _serve(self, route: _Route) -> None:
        """Tend one peer until the link has ended: the loop of its thread."""
        pause_s = 0.0
        while not self._closed.is_set():
            if not pause_s or route.wake.wait(pause_s):
                route.wake.clear()
            with route.serving:
                pause_s = self._tend(route)

    def _tend(self, route: _Route) -> float:
        """Does what is due for a peer; returns the seconds until something may be due again."""
        now, peer, has_room = time.monotonic(), route.peer, self._mailbox.has_room(route.peer.name)
        for receipt in route.due_receipts(now, of_pieces=has_room):
            self._publish(route, _RECEIPT, receipt)
        if peer.failure is None and peer.silent():
            peer.fail_silent(self._trouble)
        if peer.failure is not None:
            route.give_up()
        if route.farewell is not None:
            if not route.is_told() and now >= route.greet_at:
                route.greet_at = now + _RETRY_S
                self._publish(route, _HELLO, peer.greeting(route.last_frame()))
            return _RETRY_S
        if peer.failure is not None:
            return _PING_EVERY_S
        if not peer.ready.is_set():
            if now >= route.greet_at:
                route.greet_at = now + _RETRY_S
                self._publish(route, _HELLO, peer.greeting(peer.channel.confirmation() if peer.channel.agreed else b""))
            return _RETRY_S
        if now >= route.ping_at:
            route.ping_at = now + _PING_EVERY_S
            self._publish(route, _FRAME, peer.channel.seal(FrameKind.PING))
        for frame in route.lost(now):
            self._publish(route, _FRAME, frame)
        if (piece := route.next_piece(now)) is None:
            soon_s = _RETRY_S if route.kept else _PING_EVERY_S
            return min(route.ping_at - now, soon_s if has_room else _ROOM_S, _RECEIPT_S)
        self._publish(route, _FRAME, piece)
        return 0.0

    def _publish(self, route: _Route, kind: bytes, content: bytes | bytearray) -> None:
        self._subscription.publish(route.subject, kind, content)

    # Receiving: one thread

    def _changed(self, trouble: str) -> None:
        """Note why the broker was lost; where ``trouble`` is empty, send again what may be lost."""
        self._trouble = trouble
        if not trouble:
            for route in self._routes.values():
                route.reconnected()
        elif not self._closing.is_set():
            self._refusals.add(("broker",), trouble, f"lost the broker: {trouble}")

    def _take(self, subject: str, payload: memoryview) -> None:
        """Handle a message of the broker as its peer's hello, frame or receipt; a forged one is logged."""
        route, kind, content = self._by_subject.get(subject), bytes(payload[:1]), payload[1:]
        if route is None:
            self._refusals.add(("stranger",), subject, f"refused a message under {subject}")
            return
        try:
            if kind == _HELLO:
                agreed, frame = route.peer.channel.agreed, route.peer.hear(content)
                if not agreed:
                    route.greet_at = 0.0
                if len(frame):
                    self._take_frame(route, frame)
            elif kind == _FRAME:
                self._take_frame(route, content)
            elif kind == _RECEIPT:
                route.take_receipt(content)
            else:
                raise ProtocolError("it is no kind of message", code="frame-kind")
        except ProtocolError as error:
            name, said = route.peer.name, {_HELLO: "hello", _RECEIPT: "receipt"}.get(kind) or claimed_kind(content)
            words = f"refused a forged {said} that claims to be of {name}: {error}"
            self._refusals.add((name,), said, words)
        if kind != _FRAME:
            route.wake.set()

    def _take_frame(self, route: _Route, frame: bytes | bytearray | memoryview) -> None:
        """Open a peer's frame and queue its receipt; a piece out of order has the newest receipt repeated."""
        kind, number, index, _ = stated_head(frame)
        if kind == FrameKind.PIECE and (number, index) != route.peer.assembly.expected:
            route.queue_newest_receipt()
            return
        receipt = bytes(frame[:HEAD_BYTES]) + route.peer.take(frame)
        if kind != FrameKind.PING:
            route.queue_receipt(kind, receipt, len(frame))


class _Route:
    """What is on its way to and from one peer. The thread that serves it sends; the reader takes what comes."""

    def __init__(self, peer: Peer, subject: str, window: int) -> None:
        self.peer, self.subject, self._window = peer, subject, window
        self.changed, self.wake, self.serving = threading.Condition(), threading.Event(), threading.Lock()
        self.queue: deque[tuple[bytes, memoryview]] = deque()
        self.queued_bytes = 0
        self.kept: dict[bytes, bytearray] = {}
        """Head → piece, of those that were sent and are not acknowledged, in their order."""
        self.farewell: bytes | None = None
        self.greet_at = self.ping_at = 0.0
        self._message: Outgoing | None = None
        self._index = self._kept_bytes = 0
        self._acknowledged = self._probed = b""
        self._repeats = self._wanted = False
        self._quiet_since, self._probe_s = 0.0, _PROBE_S
        self._owed: dict[int, bytes] = {}
        self._owed_bytes, self._due_at = 0, 0.0
        self._newest = b""
        self._last = b""
        self._told = False

    # Of what this end sends

    def next_piece(self, now: float) -> bytearray | None:
        """Seal the next piece and keep it until its receipt; None where there is none, or the window has no room."""
        with self.changed:
            if self._message is None:
                if not self.queue:
                    return None
                header, data = self.queue[0]
                self._message, self._index = Outgoing(self.peer.channel, header, data), 0
            if self.kept and self._kept_bytes + PIECE_BYTES > self._window:
                return None
            message, index = self._message, self._index
        piece = message.piece(index)
        with self.changed:
            if not self.kept:
                self._quiet_since = now
            self.kept[bytes(piece[:HEAD_BYTES])] = piece
            self._kept_bytes += len(piece) + _BOOKKEEPING_BYTES
            self._index += 1
            if self._index == message.count:
                _, data = self.queue.popleft()
                self.queued_bytes -= data.nbytes + _BOOKKEEPING_BYTES
                self._message = None
                self.changed.notify_all()
        return piece

    def lost(self, now: float) -> Sequence[bytearray]:
        """Return what to send again now: all unacknowledged pieces, the oldest as a probe, or nothing."""
        with self.changed:
            if not self.kept:
                self._repeats = self._wanted = False
                return ()
            waited_s = now - self._quiet_since
            if self._repeats or (self._wanted and waited_s > _RETRY_S):
                self._repeats = self._wanted = False
                self._quiet_since = now
                return tuple(self.kept.values())
            if waited_s > self._probe_s:
                self._quiet_since, self._probe_s = now, min(_LONGEST_PROBE_S, 2 * self._probe_s)
                self._probed, piece = next(iter(self.kept.items()))
                return (piece,)
            return ()

    def reconnected(self) -> None:
        """Have all unacknowledged pieces, a greeting and the newest receipt sent again: they may be lost."""
        with self.changed:
            self._repeats, self.greet_at = True, 0.0
        self.wake.set()
        self.queue_newest_receipt()

    def take_receipt(self, content: memoryview) -> None:
        """Forget the pieces that a receipt acknowledges; ``ProtocolError`` where it is not the peer's receipt."""
        head, receipt = bytes(content[:HEAD_BYTES]), content[HEAD_BYTES:]
        if len(content) != HEAD_BYTES + RECEIPT_BYTES or not self.peer.channel.agreed:
            raise ProtocolError(f"{len(content)} bytes are no receipt", code="receipt")
        if not self.peer.channel.received(head, receipt):
            raise ProtocolError("the peer did not make it", code="receipt")
        with self.changed:
            if head in self.kept:
                self._forget(head)
                self.peer.is_alive()  # nobody could repeat a receipt of what was still kept
            elif head == self._acknowledged:
                self._wanted = True
            elif head == self._last[:HEAD_BYTES]:
                self._told = True
            elif not self.peer.ready.is_set() and head == self.peer.channel.confirmation()[:HEAD_BYTES]:
                self.peer.is_alive()
                self._acknowledged = head
                self.peer.ready.set()
            self.changed.notify_all()

    def _forget(self, head: bytes) -> None:
        """Forget all kept pieces up to this one: the peer takes them in their order."""
        while (first := next(iter(self.kept))) != head:
            self._kept_bytes -= len(self.kept.pop(first)) + _BOOKKEEPING_BYTES
        self._kept_bytes -= len(self.kept.pop(head)) + _BOOKKEEPING_BYTES
        self._acknowledged = head
        self._quiet_since, self._probe_s, self._wanted = time.monotonic(), _PROBE_S, False
        # Only the probe came through: what was sent after it is lost as well.
        self._repeats |= head == self._probed

    def last_frame(self) -> bytes:
        """Return the sealed notice that this end has stopped; empty before there are keys."""
        if not self._last and self.peer.channel.agreed:
            self._last = self.peer.channel.seal(FrameKind.STOPPED, self.farewell or b"")
        return self._last

    def is_idle(self) -> bool:
        """Whether the peer has acknowledged all that was sent, or has failed."""
        return self.peer.failure is not None or not (self.queue or self.kept)

    def is_told(self) -> bool:
        """Whether the peer knows that this end has stopped, has a receipt for its own such notice, or is silent."""
        return self._told or (self.peer.failure is not None and self.peer.failure.code == "silent")

    def give_up(self) -> None:
        """Drop all that is queued and kept for a peer that has failed."""
        with self.changed:
            self.queue.clear()
            self.kept.clear()
            self.queued_bytes = self._kept_bytes = 0
            self._message = None
            self.changed.notify_all()

    # Of what this end takes

    def queue_receipt(self, kind: int, receipt: bytes, size: int) -> None:
        """Have a receipt sent: at once, for a piece after ``_RECEIPT_S``, or once a quarter of the window came."""
        with self.changed:
            if FrameKind.PIECE not in self._owed:
                self._due_at, self._owed_bytes = time.monotonic() + _RECEIPT_S, 0
            self._owed[kind] = receipt
            self._owed_bytes += size + _BOOKKEEPING_BYTES
            if kind != FrameKind.PIECE or self._owed_bytes >= self._window // 4:
                self._due_at = 0.0
                self.wake.set()
            if kind == FrameKind.PIECE or (kind == FrameKind.CONFIRMATION and not self._newest):
                self._newest = receipt

    def queue_newest_receipt(self) -> None:
        """Have the newest receipt sent again: the peer then knows what it must send again."""
        with self.changed:
            if self._newest:
                self._owed.setdefault(FrameKind.PIECE, self._newest)
                self._due_at = 0.0
                self.wake.set()

    def due_receipts(self, now: float, *, of_pieces: bool) -> Sequence[bytes]:
        """Take out the receipts due now, those of pieces only where ``of_pieces``: else the peer sends no more."""
        with self.changed:
            of_pieces &= now >= self._due_at
            due = [kind for kind in self._owed if of_pieces or kind != FrameKind.PIECE]
            self._told |= FrameKind.STOPPED in due
            return [self._owed.pop(kind) for kind in due]
