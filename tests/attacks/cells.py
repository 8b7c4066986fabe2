"""The engine's cells in one process, a link over them for every party, and somebody who writes what it likes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, MessageType
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message

from tests.link.certificates import Project
from tests.link.own_cells import end
from veilgraph.core.types import SERVER, PartyId
from veilgraph.deploy.demo import free_ports
from veilgraph.link.channel import CHANNEL, FRAME, FROM_HEADER, HELLO, ChannelContext
from veilgraph.link.flare import FlareLink
from veilgraph.link.identity import Identity

PARTIES = ("A", "B", "C", SERVER)
HOST = "host.example.org"
PROJECT = Project()

Drop = Callable[[Message], bool]


def identity(name: str, role: str | None = None) -> Identity:
    """Of one participant of the project, whose server has the name of its host."""
    made = PROJECT.identity(HOST if name == SERVER else name, role=role)
    return Identity(made.certificate, made.key, made.roots, HOST)


IDENTITIES = {name: identity(name) for name in PARTIES}


class Network:
    """All cells, what came to each of them, and C, which may write to any of them whatever it likes."""

    def __init__(self, cells: Mapping[PartyId, CoreCell]) -> None:
        self.cells = cells
        self.came: list[Message] = []
        """Requests of this module's channel, as they came to their destination."""
        self.drop: Drop = lambda message: False
        """Which messages are lost on the way."""
        self.links: list[FlareLink] = []
        self._jobs = count()
        for cell in cells.values():
            cell.process_message = self._tapped(cell.process_message)

    def session(self, *parties: PartyId, settings: str = "") -> ChannelContext:
        """Of a job that no test had before."""
        self.came.clear()
        return ChannelContext(f"job {next(self._jobs)}", parties, settings)

    def link(self, party: PartyId, session: ChannelContext, timeout_s: float = 20.0) -> FlareLink:
        """The party's link to all others of the job."""
        addresses = {peer: peer for peer in session.parties if peer != party}
        link = FlareLink(party, self.cells[party], addresses, IDENTITIES[party], session, timeout_s)
        self.links.append(link)
        return link

    def close(self) -> None:
        """Ends all links."""
        self.drop = lambda message: False
        while self.links:
            self.links.pop().close()

    def forge(self, to: PartyId, topic: str, payload: object, origin: str, **headers: object) -> None:
        """C sends ``to`` a request that says it is of ``origin``."""
        message = Message(
            {
                MessageHeaderKey.MSG_TYPE: MessageType.REQ,
                MessageHeaderKey.ORIGIN: origin,
                MessageHeaderKey.FROM_CELL: SERVER,
                MessageHeaderKey.DESTINATION: to,
                MessageHeaderKey.CHANNEL: CHANNEL,
                MessageHeaderKey.TOPIC: topic,
                MessageHeaderKey.REQ_ID: "of C",
                MessageHeaderKey.REPLY_EXPECTED: False,
                MessageHeaderKey.PAYLOAD_ENCODING: Encoding.BYTES,
                FROM_HEADER: "C",
                **headers,
            },
            payload,
        )
        CoreCell.process_message(self.cells[to], Endpoint("C"), None, CoreCell.APP_ID, message)

    def frames(self, origin: PartyId, to: PartyId, topic: str = FRAME) -> list[bytes]:
        """What ``origin`` really sent ``to``."""
        wanted = {MessageHeaderKey.ORIGIN: origin, MessageHeaderKey.DESTINATION: to, MessageHeaderKey.TOPIC: topic}
        return [
            bytes(message.payload)
            for message in list(self.came)
            if all(message.get_header(key) == value for key, value in wanted.items())
        ]

    def _tapped(self, process: Callable[..., None]) -> Callable[..., None]:
        def tapped(endpoint: Endpoint, connection: object, app_id: int, message: Message) -> None:
            if message.get_header(MessageHeaderKey.CHANNEL) == CHANNEL:
                if self.drop(message):
                    return
                if message.get_header(MessageHeaderKey.MSG_TYPE) == MessageType.REQ:
                    self.came.append(Message(dict(message.headers), message.payload))
            process(endpoint, connection, app_id, message)

        return tapped


@contextmanager
def network() -> Iterator[Network]:
    """Cells of all parties; the engine's threads, and its cells, end with the context."""
    port, _ = free_ports()
    names = (SERVER, *(name for name in PARTIES if name != SERVER))
    cells = {name: CoreCell(name, f"grpc://localhost:{port}", False, {}) for name in names}
    for cell in cells.values():
        cell.start()
    try:
        yield Network(cells)
    finally:
        end(cells)


__all__ = ["FRAME", "HELLO", "HOST", "IDENTITIES", "PARTIES", "PROJECT", "Network", "identity", "network"]
