"""A broker that hands on, keeps, loses and invents messages, and a link over it for every party of a job."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

from tests.link.brokers import Kits
from tests.link.certificates import Project
from tests.link.hostile_broker import HostileBroker
from veilgraph.core.types import SERVER, PartyId
from veilgraph.link.channel import ChannelContext
from veilgraph.link.identity import Identity
from veilgraph.link.nats import NatsLink

PARTIES = ("A", "B", "C", SERVER)
HOST = "host.example.org"
PROJECT = Project()
HELLO: Final = b"\x01"
FRAME: Final = b"\x02"
RECEIPT: Final = b"\x03"
"""First bytes of a message."""


def identity(name: str, role: str | None = None) -> Identity:
    """Of one participant of the project, whose server has the name of its host."""
    made = PROJECT.identity(HOST if name == SERVER else name, role=role)
    return Identity(made.certificate, made.key, made.roots, HOST)


IDENTITIES = {name: identity(name) for name in PARTIES}


@dataclass(frozen=True)
class Relayed:
    """A message as the broker has it, without its first byte."""

    origin: PartyId
    to: PartyId
    topic: bytes
    payload: bytes


class Network:
    """The broker, what came to it, and the parties' links."""

    def __init__(self) -> None:
        self.came: list[Relayed] = []
        self.drop: Callable[[Relayed], bool] = lambda message: False
        """Which messages are lost on the way."""
        self.links: list[NatsLink] = []
        self._jobs, self._job = count(), ""
        kits = Kits()
        for name, each in IDENTITIES.items():
            kits.put(name, each)
        self._broker = HostileBroker(kits, self._hand)

    def session(self, *parties: PartyId, settings: str = "") -> ChannelContext:
        """Of a job that no test had before."""
        self.came.clear()
        self._job = f"job-{next(self._jobs)}"
        return ChannelContext(self._job, parties, settings)

    def link(self, party: PartyId, session: ChannelContext, timeout_s: float = 20.0) -> NatsLink:
        """The party's link to all others of the job, which the broker can reach."""
        peers = {peer: peer for peer in session.parties if peer != party}
        link = NatsLink(party, self._broker.brokers(party), peers, IDENTITIES[party], session, timeout_s)
        self.links.append(link)
        await_that(lambda: f"vg.{party}.*.{session.job}" in self._broker.subscribed)
        return link

    def close(self) -> None:
        """Ends all links."""
        self.drop = lambda message: False
        if self.links:
            with ThreadPoolExecutor(len(self.links)) as pool:
                list(pool.map(NatsLink.close, self.links))
            self.links.clear()

    def end(self) -> None:
        """Closes the broker."""
        self._broker.close()

    def forge(self, to: PartyId, topic: bytes, payload: bytes, origin: str) -> None:
        """The broker sends ``to`` what ``origin`` did not send."""
        self._broker.tell(f"vg.{to}.{origin.replace('.', '~') or '-'}.{self._job}", topic + payload)

    def frames(self, origin: PartyId, to: PartyId, topic: bytes = FRAME) -> list[bytes]:
        """What ``origin`` really sent ``to``."""
        return [each.payload for each in list(self.came) if (each.origin, each.to, each.topic) == (origin, to, topic)]

    def _hand(self, subject: str, payload: bytes) -> list[bytes]:
        _, to, origin, _ = subject.split(".")
        message = Relayed(origin, to, payload[:1], payload[1:])
        if self.drop(message):
            return []
        self.came.append(message)
        return [payload]


def await_that(holds: Callable[[], object], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def network() -> Iterator[Network]:
    """The broker, while the block lasts."""
    made = Network()
    try:
        yield made
    finally:
        made.close()
        made.end()
