"""What every link promises, over memory and over sockets, bare, recorded and sealed; tests/link has a broker."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from veilgraph_testing.link import PARTIES, LinkConformance
from veilgraph_testing.sealed_link import SealedLink

from tests.link.certificates import Project
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.channel import MAX_HELLO_BYTES, ChannelContext
from veilgraph.link.codec import encode
from veilgraph.link.factory import LINKS
from veilgraph.link.view import RecordedLink

Links = Mapping[PartyId, Link]


class TestMemory(LinkConformance):
    factory = LINKS["memory"]


class TestSockets(LinkConformance):
    factory = LINKS["sockets"]


class TestRecorded(LinkConformance):
    factory = LINKS["memory"]

    def links(self, timeout_s: float, limit: int) -> Links:
        network = super().links(timeout_s, limit)
        return {party: RecordedLink(link, keep_transcript=True) for party, link in network.items()}


PROJECT = Project()
IDENTITIES = {party: PROJECT.identity(party) for party in PARTIES}


class TestSealed(LinkConformance):
    """All seal what they send each other."""

    factory = LINKS["sockets"]

    def links(self, timeout_s: float, limit: int) -> Links:
        network, session = super().links(timeout_s, limit + MAX_HELLO_BYTES), ChannelContext("job", PARTIES)
        peers = {name: [peer for peer in PARTIES if peer != name] for name in PARTIES}
        links = [
            SealedLink(network[name], IDENTITIES[name], peers[name], session, max_message_bytes=limit)
            for name in PARTIES
        ]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(SealedLink.establish, links))
        return {link.party: link for link in links}


def test_counted_bytes_are_the_codecs_on_every_wire() -> None:
    messages = [
        (Tag(Kind.SEED), torch.zeros(32, dtype=torch.uint8)),
        (Tag(Kind.SHARE, 1), torch.zeros(7, 3, dtype=torch.int64)),
        (Tag(Kind.SHARE, 2), torch.zeros(0, 3)),
    ]
    sizes = [len(header) + data.nbytes for header, data in (encode(tag, tensor) for tag, tensor in messages)]
    for wire in LINKS.values():
        network = wire.network(PARTIES, 10.0, 1 << 20)
        links = {name: RecordedLink(network.link(name)) for name in PARTIES}
        for tag, tensor in messages:
            links["A"].send("B", tag, tensor)
        for tag, _ in messages:
            links["B"].receive("A", tag)
        for link, peer, direction in ((links["A"], "B", "sent"), (links["B"], "A", "received")):
            assert [(e.party, e.peer, e.direction, e.kind, e.messages, e.bytes) for e in link.traffic()] == [
                (link.party, peer, direction, Kind.SEED, 1, sizes[0]),
                (link.party, peer, direction, Kind.SHARE, 2, sizes[1] + sizes[2]),
            ]
        assert links["server"].traffic() == []
        for link in links.values():
            link.close()
