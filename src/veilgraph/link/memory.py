"""The link between parties that are threads of one process: tensors pass by reference."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError, LinkError, PeerFailed, ProtocolError
from veilgraph.core.types import Link, PartyId, Tag
from veilgraph.link.codec import MAX_MESSAGE_BYTES, sendable
from veilgraph.link.factory import LinkFactory, Network
from veilgraph.link.mailbox import Mailbox


class MemoryHub(Network):
    """Connects all parties of a job.

    Args:
        parties: names, each once.
        timeout_s: longest wait of a receive, in seconds.
        max_message_bytes: limit of one message as it would be encoded.

    Raises:
        ConfigError: a name occurs twice.
    """

    def __init__(
        self, parties: Iterable[PartyId], timeout_s: float, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        names = tuple(parties)
        if len(set(names)) < len(names):
            raise ConfigError(f"parties: {', '.join(names)}: every party needs a name of its own")
        self._mailboxes = {name: Mailbox(name, [other for other in names if other != name]) for name in names}
        super().__init__({name: MemoryLink(self, name, timeout_s) for name in names})
        self._gone: dict[PartyId, PeerFailed] = {}
        self._lock = threading.Lock()
        self._max_message_bytes = max_message_bytes

    @override
    def link(self, party: PartyId) -> Link:
        """The end of ``party``, the same at every call.

        Raises:
            ProtocolError: no such party.
        """
        self._check_known(party)
        return self._links[party]

    @override
    def fail(self, party: PartyId, error: BaseException) -> None:
        """Ends the job for everyone because ``party`` failed.

        The others' receives raise ``PeerFailed`` that names it, whomever they wait for: what was delivered before can
        still be taken, but nothing more will come of the job. ``error`` is the cause; its text stays with it.

        Raises:
            ProtocolError: no such party.
        """
        self._check_known(party)
        failure = PeerFailed(f"{party} failed with {type(error).__name__}", party=party)
        failure.__cause__ = error
        with self._lock:
            self._gone.setdefault(party, failure)
        for name, mailbox in self._mailboxes.items():
            if name != party:
                mailbox.fail(None, failure)

    def leave(self, party: PartyId) -> None:
        """Takes ``party`` off the hub; what it sent before can still be received."""
        failure = PeerFailed(f"{party} closed its link", code="closed", party=party)
        with self._lock:
            self._gone.setdefault(party, failure)
        for name, mailbox in self._mailboxes.items():
            if name == party:
                mailbox.close()
            else:
                mailbox.fail(party, failure)

    def deliver(self, sender: PartyId, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Puts a message into the mailbox of ``to``; see ``Link.send``."""
        self._check_known(to)
        if to == sender:
            raise ProtocolError(f"{sender} cannot send {tag} to itself", code="no-link", value=to, party=to)
        tensor = sendable(tag, tensor, self._max_message_bytes)
        with self._lock:
            own, failure = self._gone.get(sender), self._gone.get(to)
        if own is not None:
            raise LinkError(f"{sender} cannot send {tag} to {to}: {own}", code="closed", key=tag, party=to)
        if failure is not None:
            raise PeerFailed(
                f"{sender} cannot send {tag} to {to}: {failure}", code="closed", key=tag, party=to
            ) from failure
        self._mailboxes[to].put(sender, tag, tensor)

    def take(self, party: PartyId, sender: PartyId, tag: Tag, timeout_s: float) -> Tensor:
        """Takes a message from the mailbox of ``party``; see ``Link.receive``."""
        return self._mailboxes[party].take(sender, tag, timeout_s)

    def comes(self, party: PartyId, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        """Waits for a message to the mailbox of ``party``; see ``Link.comes``."""
        return self._mailboxes[party].comes(sender, tag, timeout_s)

    def expect(self, party: PartyId, unread_bytes: int) -> None:
        """Sets the limit of the mailbox of ``party``; see ``Link.expect``."""
        self._mailboxes[party].expect(unread_bytes)

    def _check_known(self, party: PartyId) -> None:
        if party not in self._mailboxes:
            raise ProtocolError(
                f"there is no party {party!r}; the hub has {', '.join(self._mailboxes)}",
                code="no-link",
                value=party,
                party=party,
            )


class MemoryLink:
    """One party's end of a ``MemoryHub``. A received tensor is the sender's own memory: change a clone of it."""

    def __init__(self, hub: MemoryHub, party: PartyId, timeout_s: float) -> None:
        self._hub = hub
        self._party = party
        self._timeout_s = timeout_s

    @property
    def party(self) -> PartyId:
        """Name of the party on this end."""
        return self._party

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Hands over a detached ``tensor``; never blocks. Nobody changes it afterwards.

        Raises:
            PeerFailed: the receiver is gone.
            ProtocolError: the receiver is unknown, or the message has no encoding.
            LinkError: this end is closed.
        """
        self._hub.deliver(self._party, to, tag, tensor)

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Waits for a message; errors as ``Link.receive``, and ``LinkError`` when this end is closed."""
        return self._hub.take(self._party, sender, tag, self._timeout_s)

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        """Waits for a message, and takes nothing; see ``Link.comes``."""
        return self._hub.comes(self._party, sender, tag, timeout_s)

    def expect(self, unread_bytes: int) -> None:
        """Sets the limit of what one sender may have unread here; see ``Mailbox``."""
        self._hub.expect(self._party, unread_bytes)

    def close(self) -> None:
        """Leaves the hub: the others' further receives from this party raise ``PeerFailed``."""
        self._hub.leave(self._party)


class MemoryFactory(LinkFactory):
    """Of parties that are threads."""

    @override
    def network(
        self, parties: Sequence[PartyId], timeout_s: float, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> Network:
        return MemoryHub(parties, timeout_s, max_message_bytes)


MEMORY = MemoryFactory()
