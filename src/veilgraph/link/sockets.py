"""The link between parties that are processes: one connected stream socket per pair of parties."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Final

from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError, LinkError, LinkTimeout, PeerFailed, ProtocolError
from veilgraph.core.types import Link, PartyId, Tag
from veilgraph.link.codec import MAX_MESSAGE_BYTES, encode
from veilgraph.link.factory import Invitation, LinkFactory, Network
from veilgraph.link.mailbox import Mailbox
from veilgraph.link.stream import read_message

_ONE_WRITE_BYTES: Final = 64 << 10
_LONGEST_SOCKET_TIMEOUT_S: Final = 7 * 86400.0
_OTHER_FILES: Final = 1024
"""Beside the sockets: what the process has open, and three a party."""


def socket_mesh(parties: Iterable[PartyId]) -> dict[PartyId, dict[PartyId, socket.socket]]:
    """Connects every pair of parties on this machine.

    A process that keeps one party's sockets must close all others it holds: a peer that is killed is noticed only
    when the last copy of its end is closed.

    Returns:
        ``mesh[party][peer]``: the party's end of the connection with the peer.
    """
    names = tuple(parties)
    mesh: dict[PartyId, dict[PartyId, socket.socket]] = {name: {} for name in names}
    for one, other in combinations(names, 2):
        mesh[one][other], mesh[other][one] = socket.socketpair()
    return mesh


class SocketLink:
    """One party's end of the connections with all its peers.

    A thread per peer reads all the time, so two parties that send each other large messages at once never block each
    other. The link owns the sockets from now on. Make it in the process that uses it: threads do not survive a fork.

    Args:
        party: name of the party on this end.
        sockets: peer → connected stream socket.
        timeout_s: longest wait of a receive, and longest wait for a peer to take what is sent, in seconds.
        max_message_bytes: limit of one message, header included.
    """

    def __init__(
        self,
        party: PartyId,
        sockets: Mapping[PartyId, socket.socket],
        timeout_s: float,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._party = party
        self._timeout_s = timeout_s
        self._max_message_bytes = max_message_bytes
        self._sockets = dict(sockets)
        self._mailbox = Mailbox(party, self._sockets)
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

    @property
    def party(self) -> PartyId:
        """Name of the party on this end."""
        return self._party

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Writes the message to the peer's socket; blocks while the peer's buffers are full.

        Raises:
            PeerFailed: the receiver is gone.
            LinkTimeout: the receiver did not take the message in time; the connection is dropped.
            ProtocolError: the receiver is unknown, or the message has no encoding.
            LinkError: this end is closed.
        """
        if to not in self._sockets:
            raise ProtocolError(
                f"{self._party} cannot send {tag} to {to!r}: it has a link with {', '.join(self._sockets)}",
                code="no-link",
                value=to,
                party=to,
            )
        header, data = encode(tag, tensor, self._max_message_bytes)
        connection = self._sockets[to]
        with self._sending[to]:
            if self._closed:
                raise LinkError(
                    f"{self._party} cannot send {tag} to {to}: its own link is closed", code="closed", key=tag, party=to
                )
            try:
                if data.nbytes <= _ONE_WRITE_BYTES:
                    connection.sendall(header + data)
                else:
                    connection.sendall(header)
                    connection.sendall(data)
            except TimeoutError as error:
                _drop(connection)  # part of the message may be written: nothing can follow it
                raise LinkTimeout(
                    f"{self._party} cannot send {tag} to {to}: it did not take {data.nbytes} bytes of data "
                    f"in {self._timeout_s:g} s",
                    code="not-taken",
                    key=tag,
                    value=data.nbytes,
                    party=to,
                ) from error
            except OSError as error:
                raise PeerFailed(
                    f"{self._party} cannot send {tag} to {to}: it is gone ({error})", code="closed", key=tag, party=to
                ) from error

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Waits for a message; errors as ``Link.receive``, and ``LinkError`` when this end is closed."""
        return self._mailbox.take(sender, tag, self._timeout_s)

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        """Waits for a message, and takes nothing; see ``Link.comes``."""
        return self._mailbox.comes(sender, tag, timeout_s)

    def expect(self, unread_bytes: int) -> None:
        """Sets the limit of what one sender may have unread here; see ``Mailbox``."""
        self._mailbox.expect(unread_bytes)

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
        """Body of the thread that moves what ``peer`` sends into the mailbox."""
        connection = self._sockets[peer]
        fill = partial(_fill, connection, peer)
        failure: LinkError = PeerFailed(f"the reader of {peer} stopped")
        try:
            while True:
                tag, tensor = read_message(fill, self._max_message_bytes)
                self._mailbox.put(peer, tag, tensor)
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
    def invitations(self, parties: Sequence[PartyId]) -> dict[PartyId, Invitation]:
        _make_room(len(parties))
        return {
            party: Invitation([f"{peer}={end.fileno()}" for peer, end in ends.items()], list(ends.values()))
            for party, ends in socket_mesh(parties).items()
        }

    @override
    def join(self, party: PartyId, arguments: Sequence[str], timeout_s: float) -> Link:
        ends = dict(each.rsplit("=", 1) for each in arguments)
        sockets = {peer: socket.socket(fileno=int(number)) for peer, number in ends.items()}
        return SocketLink(party, sockets, timeout_s)


def _make_room(parties: int) -> None:
    """Lets this process have as many files open as a mesh of so many parties needs.

    Raises:
        ConfigError: the account may not.
    """
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


SOCKETS = SocketFactory()


def _fill(connection: socket.socket, peer: PartyId, view: memoryview) -> None:
    """Receives exactly ``len(view)`` bytes; waits as long as it takes (a receive has its own timeout)."""
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
    """Ends both directions: wakes our reader and tells the peer."""
    with suppress(OSError):  # the peer may have done it first
        connection.shutdown(socket.SHUT_RDWR)
