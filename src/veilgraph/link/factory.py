"""What joins the parties of a job that all run on one machine: threads by memory, processes by sockets.

``LINKS`` finds a wire by its name. A package adds its own, an instance of a subclass of ``LinkFactory``, by an entry
point of the group ``veilgraph.links``; ``veilgraph_testing.link`` holds it to what all links promise. Across
organisations it is always ``NatsLink``, which the process of a party's part makes.
"""

from __future__ import annotations

import resource
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Final

from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError, LinkError, LinkTimeout, PeerFailed, ProtocolError
from veilgraph.core.settings import Registry
from veilgraph.core.types import Link, PartyId, Tag
from veilgraph.link.codec import MAX_MESSAGE_BYTES, encode, read_message, sendable
from veilgraph.link.mailbox import MailboxLink

_ONE_WRITE_BYTES: Final = 64 << 10
_LONGEST_SOCKET_TIMEOUT_S: Final = 7 * 86400.0
_OTHER_FILES: Final = 1024  # beside the sockets: what the process has open, and three a party


class Network:
    """All ends of one wire, in one process."""

    def __init__(self, links: Mapping[PartyId, Link]) -> None:
        self._links = links

    def link(self, party: PartyId) -> Link:
        """The end of a party, the same at every call."""
        return self._links[party]

    def fail(self, party: PartyId, error: BaseException) -> None:
        """Ends the job for everyone because a party failed: the others' receives raise ``PeerFailed``."""
        with suppress(LinkError):
            self.link(party).close()


@dataclass(frozen=True)
class _Invitation:
    """What a party's process needs to join: arguments, and what it inherits, which this process then closes."""

    arguments: Sequence[str]
    inherited: Sequence[socket.socket] = ()


class LinkFactory(ABC):
    """A wire between parties on one machine: threads of a process or, where it says so, processes."""

    @abstractmethod
    def network(
        self, parties: Sequence[PartyId], timeout_s: float, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> Network:
        """Joins parties that are threads; no receive waits longer than ``timeout_s`` seconds."""

    def invitations(self, parties: Sequence[PartyId]) -> dict[PartyId, _Invitation]:
        """Return what each party joins with in a process of its own; ``ConfigError``: this wire joins threads alone."""
        joins = (name for name, each in LINKS.items() if type(each).invitations is not LinkFactory.invitations)
        raise ConfigError(f"link: {type(self).__name__} joins no processes; choose one of {', '.join(joins)}")

    def join(self, party: PartyId, arguments: Sequence[str], timeout_s: float) -> Link:
        """Return a party's end, in its own process, from the arguments of its invitation."""
        raise NotImplementedError


LINKS: Final[Registry[LinkFactory]] = Registry(
    "veilgraph.links",
    {"memory": "veilgraph.link.factory:MEMORY", "sockets": "veilgraph.link.factory:SOCKETS"},
    kind="veilgraph.link.factory:LinkFactory",
)
"""The wires by name."""
IN_THREADS: Final = "memory"
IN_PROCESSES: Final = "sockets"


# Threads: tensors pass by reference


class MemoryHub(Network):
    """Connects all parties of a job; raises ``ConfigError`` where a name occurs twice."""

    def __init__(
        self, parties: Iterable[PartyId], timeout_s: float, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        names = tuple(parties)
        if len(set(names)) < len(names):
            raise ConfigError(f"parties: {', '.join(names)}: every party needs a name of its own")
        self._ends = {name: MemoryLink(self, name, names, timeout_s) for name in names}
        super().__init__(self._ends)
        self._gone: dict[PartyId, PeerFailed] = {}
        self._lock = threading.Lock()
        self._max_message_bytes, self._timeout_s = max_message_bytes, timeout_s

    @override
    def link(self, party: PartyId) -> Link:
        """Return a party's end, the same at every call; ``ProtocolError``: there is no such party."""
        self._check_known(party)
        return self._ends[party]

    @override
    def fail(self, party: PartyId, error: BaseException) -> None:
        """Ends the job for everyone because ``party`` failed; the text of ``error``, the cause, stays with it.

        The others' receives raise ``PeerFailed`` that names it, whomever they wait for, once they took what was
        delivered. Raises ``ProtocolError``: no such party.
        """
        self._check_known(party)
        failure = PeerFailed(f"{party} failed with {type(error).__name__}", party=party)
        failure.__cause__ = error
        self._leave(party, failure, None)

    def leave(self, party: PartyId) -> None:
        """Takes ``party`` off the hub; what it sent before can still be received."""
        self._leave(party, PeerFailed(f"{party} closed its link", code="closed", party=party), party)

    def _leave(self, party: PartyId, failure: PeerFailed, of: PartyId | None) -> None:
        """Take a party off the hub: the others' receives from ``of``, None for everyone, fail with ``failure``."""
        with self._lock:
            self._gone.setdefault(party, failure)
        for name, end in self._ends.items():
            if name != party:
                end.fail(of, failure)

    def deliver(self, sender: PartyId, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Put a message into the mailbox of ``to``, once it has room; errors are those of ``MemoryLink.send``."""
        tensor = sendable(tag, tensor, self._max_message_bytes)
        with self._lock:
            own, failure = self._gone.get(sender), self._gone.get(to)
        if own is not None:
            raise LinkError(f"{sender} cannot send {tag} to {to}: {own}", code="closed", key=tag, party=to)
        if failure is not None:
            words = f"{sender} cannot send {tag} to {to}: {failure}"
            raise PeerFailed(words, code="closed", key=tag, party=to) from failure
        if not self._ends[to].wait_for_room(sender, self._timeout_s):
            words = f"{sender} cannot send {tag} to {to}: it took nothing for {self._timeout_s:g} s"
            raise LinkTimeout(words, code="not-taken", key=tag, value=tensor.nbytes, party=to)
        self._ends[to].put(sender, tag, tensor)

    def _check_known(self, party: PartyId) -> None:
        if party not in self._ends:
            words = f"there is no party {party!r}; the hub has {', '.join(self._ends)}"
            raise ProtocolError(words, code="no-link", value=party, party=party)


class MemoryLink(MailboxLink):
    """One party's end of a ``MemoryHub``. A received tensor is the sender's own memory: change a clone of it."""

    def __init__(self, hub: MemoryHub, party: PartyId, parties: Iterable[PartyId], timeout_s: float) -> None:
        super().__init__(party, [other for other in parties if other != party], timeout_s)
        self._hub = hub
        self.put, self.fail, self.wait_for_room = self._mailbox.put, self._mailbox.fail, self._mailbox.wait_for_room

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Hands over a detached ``tensor``; blocks while much is unread. Nobody changes it afterwards.

        Raises ``PeerFailed``: the receiver is gone; ``LinkTimeout``: it did not make room in time; ``ProtocolError``:
        it is unknown, or the message has no encoding; ``LinkError``: this end is closed.
        """
        self._check_sends(to, tag, closed=False)  # the hub knows who is gone
        self._hub.deliver(self.party, to, tag, tensor)

    def close(self) -> None:
        """Leaves the hub: the others' further receives from this party raise ``PeerFailed``."""
        self._hub.leave(self.party)
        self._mailbox.close()


class _MemoryFactory(LinkFactory):
    @override
    def network(
        self, parties: Sequence[PartyId], timeout_s: float, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> Network:
        return MemoryHub(parties, timeout_s, max_message_bytes)


MEMORY = _MemoryFactory()


# Processes: one connected stream socket per pair of parties


def socket_mesh(parties: Iterable[PartyId]) -> dict[PartyId, dict[PartyId, socket.socket]]:
    """Connects every pair of parties on this machine: ``mesh[party][peer]`` is the party's end.

    A process that keeps one party's sockets must close all others it holds: a peer that is killed is noticed only when
    the last copy of its end is closed.
    """
    names = tuple(parties)
    mesh: dict[PartyId, dict[PartyId, socket.socket]] = {name: {} for name in names}
    for one, other in combinations(names, 2):
        mesh[one][other], mesh[other][one] = socket.socketpair()
    return mesh


class SocketLink(MailboxLink):
    """One party's end of the connections with all its peers, by stream sockets, which the link owns from now on.

    A thread per peer reads as long as there is room, so two parties that send each other large messages at once do not
    block each other, and one that is faster than its receiver waits. Make it in the process that uses it: threads do
    not survive a fork. ``timeout_s`` is the longest wait of a receive, and for a peer to take what is sent.
    """

    def __init__(
        self,
        party: PartyId,
        sockets: Mapping[PartyId, socket.socket],
        timeout_s: float,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        super().__init__(party, sockets, timeout_s)
        self._max_message_bytes, self._sockets = max_message_bytes, dict(sockets)
        self._sending = {peer: threading.Lock() for peer in self._sockets}
        self._closing = threading.Lock()
        self._closed = False
        for connection in self._sockets.values():
            connection.settimeout(min(timeout_s, _LONGEST_SOCKET_TIMEOUT_S))
        self._readers = [
            threading.Thread(target=self._read, args=(peer,), name=f"{party} reads {peer}", daemon=True)
            for peer in self._sockets
        ]
        for reader in self._readers:
            reader.start()

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Writes the message to the peer's socket; blocks while the peer's buffers are full.

        Errors are those of ``MemoryLink.send``; after a ``LinkTimeout`` the connection is dropped.
        """
        self._check_sends(to, tag, closed=False)
        header, data = encode(tag, tensor, self._max_message_bytes)
        connection, words = self._sockets[to], f"{self.party} cannot send {tag} to {to}"
        with self._sending[to]:
            self._check_sends(to, tag, closed=self._closed)
            try:
                if data.nbytes <= _ONE_WRITE_BYTES:
                    connection.sendall(header + data)
                else:
                    connection.sendall(header)
                    connection.sendall(data)
            except TimeoutError as error:
                _drop(connection)  # part of the message may be written: nothing can follow it
                words += f": it did not take {data.nbytes} bytes of data in {self._timeout_s:g} s"
                raise LinkTimeout(words, code="not-taken", key=tag, value=data.nbytes, party=to) from error
            except OSError as error:
                raise PeerFailed(f"{words}: it is gone ({error})", code="closed", key=tag, party=to) from error

    def close(self) -> None:
        """Ends every connection, the readers and the sockets; what was sent before still reaches the peers."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._mailbox.close()
            for connection in self._sockets.values():
                _drop(connection)
            for reader in self._readers:
                reader.join()
            for peer, connection in self._sockets.items():
                with self._sending[peer]:  # a sender notices the drop; its descriptor must not be reused before
                    connection.close()

    def _read(self, peer: PartyId) -> None:
        """Put a peer's messages into the mailbox until the connection ends, and record why it did."""
        connection = self._sockets[peer]
        fill = partial(_fill, connection, peer)
        failure: LinkError = PeerFailed(f"the reader of {peer} stopped")
        try:
            while self._mailbox.wait_for_room(peer):
                self._mailbox.put(peer, *read_message(fill, self._max_message_bytes))
        except ProtocolError as error:
            failure = error.told(f"{peer} sent what cannot be decoded: {error}", peer)
        except LinkError as error:
            failure = error
        except OSError as error:
            failure = PeerFailed(f"the connection with {peer} broke ({error})", code="closed")
        finally:
            _drop(connection)
            self._mailbox.fail(peer, failure)


class SocketFactory(LinkFactory):
    """Of parties that are processes, or threads: every two have a pair of connected sockets."""

    @override
    def network(
        self, parties: Sequence[PartyId], timeout_s: float, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> Network:
        mesh = socket_mesh(parties)
        return Network({name: SocketLink(name, ends, timeout_s, max_message_bytes) for name, ends in mesh.items()})

    @override
    def invitations(self, parties: Sequence[PartyId]) -> dict[PartyId, _Invitation]:
        _raise_file_limit(len(parties))
        return {
            party: _Invitation([f"{peer}={end.fileno()}" for peer, end in ends.items()], list(ends.values()))
            for party, ends in socket_mesh(parties).items()
        }

    @override
    def join(self, party: PartyId, arguments: Sequence[str], timeout_s: float) -> Link:
        ends = dict(each.rsplit("=", 1) for each in arguments)
        sockets = {peer: socket.socket(fileno=int(number)) for peer, number in ends.items()}
        return SocketLink(party, sockets, timeout_s)


SOCKETS = SocketFactory()


def _raise_file_limit(parties: int) -> None:
    """Let this process open as many files as a mesh of so many parties needs; ``ConfigError``: it may not."""
    needed = parties * (parties - 1) + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= needed:
        return
    if hard != unlimited and hard < needed:
        raise ConfigError(
            f"processes: {parties} parties are joined by {parties * (parties - 1)} ends of sockets, and this account "
            f"may have {hard} files open; raise that (ulimit -Hn), or run the parties in threads",
            key="processes",
            value=parties,
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _fill(connection: socket.socket, peer: PartyId, view: memoryview) -> None:
    """Receive exactly ``len(view)`` bytes, however long it takes; ``PeerFailed``: the peer closed the connection."""
    arrived = 0
    while arrived < len(view):
        try:
            count = connection.recv_into(view[arrived:])
        except TimeoutError:
            continue
        if count == 0:
            where = f"after {arrived} of {len(view)} expected bytes" if arrived else "between two reads"
            raise PeerFailed(f"{peer} closed the connection {where}", code="closed")
        arrived += count


def _drop(connection: socket.socket) -> None:
    """Shut both directions down, which wakes our reader and tells the peer."""
    with suppress(OSError):  # the peer may have done it first
        connection.shutdown(socket.SHUT_RDWR)
