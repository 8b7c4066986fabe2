"""Where a party's received messages wait until a role asks for them by tag."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import Final

from torch import Tensor

from veilgraph.core.errors import LinkError, LinkTimeout, ProtocolError
from veilgraph.core.types import Kind, PartyId, Tag
from veilgraph.link.codec import MAX_MESSAGE_BYTES, encoded_size

REMEMBERED_TAGS: Final = 4096
"""How many used tags per sender and kind are remembered in order to refuse their second use."""
SLACK_BYTES: Final = 64 << 20
"""For small messages, beside what is counted."""
MAX_UNREAD_BYTES: Final = MAX_MESSAGE_BYTES + SLACK_BYTES
"""Default limit of one sender's unread messages, until a role knows what the job needs: one of the largest."""
BOOKKEEPING_BYTES: Final = 1 << 10
"""What an unread message costs besides its encoding, about: without it, empty messages could fill the memory."""


class Mailbox:
    """The messages for one party: put by the wire's threads, taken by the role's. Safe for any number of threads.

    A failure of a sender ends what it may still deliver; what it delivered before can still be taken. A wire takes
    nothing of a sender for whom there is no room: one that is faster than the reader waits.

    So much of one sender's may wait as ``max_unread_bytes`` says, each message counted as its encoded size and
    ``BOOKKEEPING_BYTES``. There is room until half of it waits. More than all of it is that sender's failure: what the
    reader waits for should have come before.
    """

    def __init__(self, owner: PartyId, senders: Iterable[PartyId], max_unread_bytes: int = MAX_UNREAD_BYTES) -> None:
        self._owner = owner
        self._changed = threading.Condition()
        self._max_unread_bytes = max_unread_bytes
        self._unread: dict[PartyId, dict[Tag, Tensor]] = {sender: {} for sender in senders}
        self._unread_bytes = dict.fromkeys(self._unread, 0)
        self._awaited: dict[PartyId, list[Tag]] = {sender: [] for sender in self._unread}
        self._used: dict[tuple[PartyId, Kind], OrderedDict[Tag, None]] = {}
        self._failures: dict[PartyId, LinkError] = {}
        self._closed = False

    def put(self, sender: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Delivers a message; raises ``ProtocolError`` for a stranger's.

        A tag that ``sender`` used before is its failure, and takes the unread message of that tag along: which of the
        two is meant cannot be known. So is a message beyond the limit of unread bytes, which is dropped, as are those
        after a failure, or after ``close``.
        """
        with self._changed:
            unread = self._unread_from(sender)
            if self._closed or sender in self._failures:
                return
            if tag in unread or not self._mark_used(sender, tag):
                if tag in unread:
                    self._remove(sender, tag)
                words = f"{sender} used the tag {tag} twice"
                self._failures[sender] = ProtocolError(words, code="tag-again", key=tag, party=sender)
            elif self._unread_bytes[sender] + _unread_cost(tensor) > self._max_unread_bytes:
                limit = self._max_unread_bytes
                words = f"with {tag}, {sender} has sent more than {limit} bytes that {self._owner} has not asked for"
                words += "; do both run the same release?"
                self._failures[sender] = ProtocolError(words, code="unread", value=limit, party=sender)
            else:
                unread[tag] = tensor
                self._unread_bytes[sender] += _unread_cost(tensor)
            self._changed.notify_all()

    def take(self, sender: PartyId, tag: Tag, timeout_s: float) -> Tensor:
        """Waits for a message and removes it.

        Raises ``LinkTimeout``: it did not come in time; ``PeerFailed``: ``sender`` failed before it delivered it;
        ``ProtocolError``: ``sender`` broke the protocol before, or is a stranger; ``LinkError``: the mailbox was
        closed.
        """
        with self._changed:
            unread = self._unread_from(sender)
            if not self._wait(sender, tag, timeout_s):
                words = f"{self._owner} waited {timeout_s:g} s for {tag} from {sender}; {_unread_tags(unread)} from it"
                raise LinkTimeout(words, key=tag, value=timeout_s, party=sender)
            if tag not in unread:
                self._raise_failure(sender, tag)
            return self._remove(sender, tag)

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        """Whether, within ``timeout_s``, a message can be taken or will never come; ``ProtocolError`` as ``put``."""
        with self._changed:
            return self._wait(sender, tag, timeout_s)

    def has_room(self, sender: PartyId) -> bool:
        """Whether a message of ``sender`` may come in now: little of it is unread, or the reader waits for it."""
        with self._changed:
            return (
                2 * self._unread_bytes[sender] <= self._max_unread_bytes
                or any(tag not in self._unread[sender] for tag in self._awaited[sender])
                or self._closed
                or sender in self._failures
            )

    def wait_for_room(self, sender: PartyId, timeout_s: float = threading.TIMEOUT_MAX) -> bool:
        """Wait up to ``timeout_s`` seconds for room for a message of ``sender``; return whether there is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.has_room(sender), min(timeout_s, threading.TIMEOUT_MAX))

    def expect(self, unread_bytes: int) -> None:
        """Changes the limit of unread bytes of each sender; what waits already may stay."""
        with self._changed:
            self._max_unread_bytes = unread_bytes

    def fail(self, sender: PartyId | None, error: LinkError) -> None:
        """Record why ``sender`` (None: all) delivers nothing more; the first cause stays. Wakes who waits for it."""
        with self._changed:
            if self._closed:
                return
            for name in self._unread if sender is None else (sender,):
                self._failures.setdefault(name, error)
            self._changed.notify_all()

    def close(self) -> None:
        """Drops every message and wakes whoever waits with a ``LinkError``."""
        with self._changed:
            self._closed = True
            for unread in self._unread.values():
                unread.clear()
            self._changed.notify_all()

    def _wait(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        """Wait as ``comes`` does; meanwhile there is room for all that ``sender`` sends."""
        unread = self._unread_from(sender)
        self._awaited[sender].append(tag)
        self._changed.notify_all()
        try:
            return self._changed.wait_for(
                lambda: tag in unread or self._closed or sender in self._failures, min(timeout_s, threading.TIMEOUT_MAX)
            )
        finally:
            self._awaited[sender].remove(tag)

    def _unread_from(self, sender: PartyId) -> dict[Tag, Tensor]:
        if sender not in self._unread:
            words = f"{self._owner} has no link with {sender!r}; it has with {', '.join(self._unread)}"
            raise ProtocolError(words, code="no-link", value=sender, party=sender)
        return self._unread[sender]

    def _remove(self, sender: PartyId, tag: Tag) -> Tensor:
        tensor = self._unread[sender].pop(tag)
        self._unread_bytes[sender] -= _unread_cost(tensor)
        return tensor

    def _mark_used(self, sender: PartyId, tag: Tag) -> bool:
        """Note that a sender used a tag, and forget the oldest beyond ``REMEMBERED_TAGS``; False if it was noted."""
        used = self._used.setdefault((sender, tag.kind), OrderedDict())
        if tag in used:
            return False
        used[tag] = None
        if len(used) > REMEMBERED_TAGS:
            used.popitem(last=False)
        return True

    def _raise_failure(self, sender: PartyId, tag: Tag) -> None:
        words = f"{self._owner} cannot receive {tag} from {sender}"
        if (failure := self._failures.get(sender)) is not None:
            # A new error for every waiter: threads must not share one traceback.
            raise failure.told(f"{words}: {failure}", sender) from failure
        if self._closed:
            raise LinkError(f"{words}: its own link is closed", code="closed", key=tag, party=sender)


class MailboxLink:
    """One party's end of a wire that puts what comes into a mailbox; a ``Link`` but for ``send`` and ``close``."""

    def __init__(self, party: PartyId, peers: Iterable[PartyId], timeout_s: float) -> None:
        self.party = party
        """Name of the party on this end."""
        self._timeout_s, self._link_peers = timeout_s, tuple(peers)
        self._mailbox = Mailbox(party, self._link_peers)

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Waits for a message; errors as ``Link.receive``, and ``LinkError`` when this end is closed."""
        return self._mailbox.take(sender, tag, self._timeout_s)

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        """Waits for a message, and takes nothing; see ``Link.comes``."""
        return self._mailbox.comes(sender, tag, timeout_s)

    def expect(self, unread_bytes: int) -> None:
        """Sets the limit of what one sender may have unread here; see ``Mailbox``."""
        self._mailbox.expect(unread_bytes)

    def _check_sends(self, to: PartyId, tag: Tag, *, closed: bool) -> None:
        """Raise ``ProtocolError`` where ``to`` is no peer, ``LinkError`` where this end is closed."""
        if to not in self._link_peers:
            words = f"{self.party} cannot send {tag} to {to!r}: it has a link with {', '.join(self._link_peers)}"
            raise ProtocolError(words, code="no-link", value=to, party=to)
        if closed:
            words = f"{self.party} cannot send {tag} to {to}: its own link is closed"
            raise LinkError(words, code="closed", key=tag, party=to)


def _unread_cost(tensor: Tensor) -> int:
    return encoded_size(tensor) + BOOKKEEPING_BYTES


def _unread_tags(unread: dict[Tag, Tensor]) -> str:
    if not unread:
        return "nothing is unread"
    named = ", ".join(str(tag) for tag in islice(unread, 3))
    return f"unread: {named}{', ...' if len(unread) > 3 else ''}"
