"""The link over a broker: what every link promises, and what becomes of a broker that fails, restarts or is hostile."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count

import pytest
import torch
from veilgraph_testing.link import PARTIES, LinksConformance

from tests import nightly
from tests.errors import refused
from tests.link.brokers import Broker, Kits, free_port, needs_broker, wait_until
from tests.link.hostile_broker import Cut, Hand, HostileBroker
from veilgraph.core.errors import LinkError, LinkTimeout, PeerFailed
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.deploy.broker import Cluster
from veilgraph.link.channel import HEAD_BYTES, ChannelContext, FrameKind
from veilgraph.link.nats import WINDOW_BYTES, NatsLink
from veilgraph.link.nats_client import BrokerAddress, Brokers
from veilgraph.link.sealed import Peer

pytestmark = needs_broker
JOBS = (f"job-{number}" for number in count())


@cache
def broker() -> Broker:
    made = Broker(Kits(*PARTIES))
    made.configure()
    made.start()
    return made


@pytest.fixture(scope="module", autouse=True)
def stop_broker() -> Iterator[None]:
    yield
    if broker.cache_info().currsize:
        broker().kill()
        broker.cache_clear()


def joined(timeout_s: float = 20.0, at: Broker | HostileBroker | None = None, **options) -> dict[PartyId, NatsLink]:
    at = at or broker()
    session = ChannelContext(next(JOBS), PARTIES)
    names = {party: {peer: peer for peer in PARTIES if peer != party} for party in PARTIES}
    return {
        party: NatsLink(
            party, at.brokers(party), names[party], at.kits.identities[party], session, timeout_s, **options
        )
        for party in PARTIES
    }


class TestNats(LinksConformance):
    def links(self, timeout_s: float, limit: int) -> Mapping[PartyId, Link]:
        return joined(timeout_s, max_message_bytes=limit)


TAG = Tag(Kind.SHARE)
BIG = torch.arange(3_000_000)


def exchanged(
    links: Mapping[PartyId, NatsLink],
    messages: int = 12,
    between: Callable[[int], None] = lambda _: None,
    big: torch.Tensor = BIG,
):
    """``A`` sends ``B`` big messages and messages of a few bytes in turn; all come, as they were, in any case."""
    with ThreadPoolExecutor(2) as pool:

        def send() -> None:
            for step in range(messages):
                between(step)
                links["A"].send("B", Tag(Kind.SHARE, step), big + step if step % 3 == 0 else torch.tensor(step))

        sending = pool.submit(send)
        for step in range(messages):
            came = links["B"].receive("A", Tag(Kind.SHARE, step))
            assert torch.equal(came, big + step if step % 3 == 0 else torch.tensor(step)), step
        sending.result(timeout=30)


def closed(links: Mapping[PartyId, NatsLink]) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(NatsLink.close, links.values()))


def test_a_broker_that_is_killed_again_and_again_loses_nothing() -> None:
    own = Broker(broker().kits)
    own.configure()
    own.start()
    links = joined(60.0, own)

    def kill(step: int) -> None:
        if step in (2, 5, 9):
            own.kill()
            own.start()

    exchanged(links, between=kill)
    closed(links)
    own.kill()


@nightly
def test_a_consumer_that_takes_nothing_holds_back_who_sends_and_gets_it_all() -> None:
    flows = threading.Event()
    there = HostileBroker(broker().kits, lambda _, each: [each] if flows.is_set() or len(each) < 100_000 else [])
    links = joined(30.0, there)
    links["B"].expect(1 << 30)
    with ThreadPoolExecutor(1) as pool:

        def send() -> None:
            for step in range(8):
                links["A"].send("B", Tag(Kind.SHARE, step), BIG)

        sending = pool.submit(send)
        time.sleep(1.0)
        assert not sending.done(), "192 MB were taken in, though nothing of it went out"
        assert sum(map(len, there.seen)) < 2 * WINDOW_BYTES
        flows.set()
        for step in range(8):
            assert torch.equal(links["B"].receive("A", Tag(Kind.SHARE, step)), BIG)
        sending.result(timeout=30)
    closed(links)
    there.close()


def test_who_may_not_send_in_time_is_told() -> None:
    there = HostileBroker(broker().kits, lambda _, each: [each] if len(each) < 100_000 else [])
    links = joined(0.5, there)
    with refused(LinkTimeout, code="not-taken", party="B"):
        for step in range(8):
            links["A"].send("B", Tag(Kind.SHARE, step), BIG)
    for link in links.values():
        link.abort("over")
    there.close()


def hostile(hand: Hand) -> Iterator[dict[PartyId, NatsLink]]:
    there = HostileBroker(broker().kits, hand)
    links = joined(60.0, there, silence_s=30.0)
    yield links
    closed(links)
    there.close()


def dropping(rate: float) -> Hand:
    draw = random.Random(5)
    return lambda _, payload: [] if draw.random() < rate else [payload]


def doubling(_: str, payload: bytes) -> list[bytes]:
    return [payload, payload]


def reordering() -> Hand:
    draw, held = random.Random(6), dict[str, list[bytes]]()

    def hand(subject: str, payload: bytes) -> list[bytes]:
        waiting = held.setdefault(subject, [])
        waiting.append(payload)
        if draw.random() < 0.4:
            return []
        out, held[subject] = waiting, []
        draw.shuffle(out)
        return out

    return hand


def changing() -> Hand:
    draw = random.Random(7)

    def hand(_: str, payload: bytes) -> list[bytes]:
        if draw.random() > 0.1:
            return [payload]
        changed = bytearray(payload)
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        return [bytes(changed)]

    return hand


def cutting() -> Hand:
    draw = random.Random(8)

    def hand(_: str, payload: bytes) -> list[bytes]:
        if draw.random() < 0.1:
            raise Cut
        return [payload]

    return hand


@pytest.mark.parametrize(
    "hand",
    [dropping(0.0), dropping(0.2), doubling, reordering(), changing(), cutting()],
    ids=["control", "drops", "doubles", "reorders", "changes", "cuts"],
)
def test_a_hostile_broker_can_delay_and_no_more(hand: Hand) -> None:
    for links in hostile(hand):
        exchanged(links, 6, big=BIG[:1_000_000])


@nightly
def test_after_a_lost_connection_everything_is_sent_again_without_a_receipt() -> None:
    """A probe alone would send the oldest piece, and wait for its receipt before all others."""
    before, again = list[bytes](), list[bytes]()

    def hand(subject: str, payload: bytes) -> list[bytes]:
        if payload[:1] == b"\x02" and len(payload) > 1000:
            if len(set(before)) < 3:
                before.append(payload)
                if len(set(before)) == 3:
                    raise Cut
            else:
                again.append(payload)
        # From the first piece on nobody hears of any, until all three were sent again.
        return [payload] if payload[:1] == b"\x01" or not before or len(set(again)) == 3 else []

    there = HostileBroker(broker().kits, hand)
    links = joined(30.0, there)
    links["A"].send("B", TAG, BIG[:300_000])  # three pieces
    assert torch.equal(links["B"].receive("A", TAG), BIG[:300_000])
    closed(links)
    there.close()
    assert again[:3] == list(dict.fromkeys(before))


@nightly
def test_messages_without_data_fill_the_window_and_of_many_peers_each_has_less() -> None:
    """Else a peer that takes nothing has a sender keep messages without end; and 64 peers 1 GiB on their way to one."""
    flows, parties = threading.Event(), (*PARTIES, *(f"peer-{number}" for number in range(62)))
    kits, seen = broker().kits, set[bytes]()

    def hand(subject: str, payload: bytes) -> list[bytes]:
        if payload[:1] == b"\x02" and payload[1] == FrameKind.PIECE:
            seen.add(payload[1 : 1 + HEAD_BYTES])
            return [payload] if flows.is_set() else []
        return [payload]

    there, session = HostileBroker(kits, hand), ChannelContext(next(JOBS), parties)
    sender = NatsLink(
        "A", there.brokers("A"), {each: each for each in parties if each != "A"}, kits.identities["A"], session, 30.0
    )
    receiver = NatsLink("B", there.brokers("B"), {"A": "A"}, kits.identities["B"], session, 30.0)
    for step in range(1500):
        sender.send("B", Tag(Kind.SHARE, step), torch.empty(0))
    time.sleep(1.0)
    assert 900 < len(seen) < 1100, "2 MiB of 128, less a piece's, at 1 KiB each"
    flows.set()
    for step in range(1500):
        receiver.receive("A", Tag(Kind.SHARE, step))
    sender.abort("over")
    receiver.abort("over")
    there.close()


def test_a_broker_reads_nothing() -> None:
    there = HostileBroker(broker().kits)
    links = joined(10.0, there)
    marked = torch.full((1000,), 0x5EA1ED_C0FFEE)
    links["A"].send("B", TAG, marked)
    links["B"].receive("A", TAG)
    closed(links)
    there.close()
    assert sum(map(len, there.seen)) > 8000
    assert not any(marked[:2].numpy().tobytes() in each for each in there.seen)


def failure(link: NatsLink, of: PartyId, tag: Tag = TAG) -> LinkError:
    with pytest.raises(LinkError) as caught:
        link.receive(of, tag)
    return caught.value


def test_a_party_that_stops_says_why_and_one_that_is_stopped_ends_at_once() -> None:
    links = joined(10.0)
    links["A"].send("B", TAG, torch.ones(1))
    links["A"].stop("DataError")
    assert links["B"].receive("A", TAG).item() == 1
    lost = failure(links["B"], "A", Tag(Kind.SEED))
    assert isinstance(lost, PeerFailed)
    assert "DataError" in str(lost)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(failure, links["B"], "server")
        time.sleep(0.1)
        links["B"].abort("an administrator stopped it")
        stopped = waiting.result(timeout=5)
        assert "administrator" in str(stopped)
        assert (stopped.party, lost.party) == ("B", "A"), "who was stopped itself has lost nobody"
    assert "the job was stopped" in str(failure(links["server"], "B"))
    with refused(PeerFailed, party="B"):
        links["B"].send("server", TAG, torch.ones(1))
    links["server"].close()


@nightly
def test_a_silent_party_has_failed_and_what_is_repeated_in_its_name_is_no_sign_of_life() -> None:
    muted, recorded = threading.Event(), list[tuple[str, bytes]]()

    def hand(subject: str, payload: bytes) -> list[bytes]:
        if subject.split(".")[2] == "A":
            if muted.is_set():
                return []
            recorded.append((subject, payload))
        return [payload]

    there = HostileBroker(broker().kits, hand)
    links = joined(20.0, there, silence_s=1.5)
    for step in range(3):
        links["A"].send("B", Tag(Kind.SHARE, step), torch.ones(step))
        links["B"].receive("A", Tag(Kind.SHARE, step))
    links["B"].send("A", TAG, torch.ones(1))
    links["A"].receive("B", TAG)
    time.sleep(0.3)
    muted.set()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(failure, links["B"], "A", Tag(Kind.SEED))
        while not waiting.done():
            for subject, payload in recorded:
                there.tell(subject, payload)
            time.sleep(0.1)
        assert waiting.result().code == "silent"
    for link in links.values():
        link.abort("over")
    there.close()


def test_who_ends_sends_the_receipt_that_its_peer_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both end at once, and one's notice is lost: else the other waits for seconds at the end of a job."""
    sent, take = list[tuple[str, bytes]](), Peer.take

    def hand(subject: str, payload: bytes) -> list[bytes]:
        sent.append((subject, payload))
        return [] if ending and subject.startswith("vg.B.A.") and payload[:1] == b"\x01" else [payload]

    def takes_slowly(self: Peer, sealed: bytes | bytearray | memoryview) -> bytes:
        receipt = take(self, sealed)
        if self.name == "B" and self.failure is not None:
            time.sleep(0.5)
        return receipt

    ending, there = False, HostileBroker(broker().kits, hand)
    links = joined(10.0, there)
    links["A"].send("B", TAG, torch.ones(1))
    links["B"].receive("A", TAG)
    links["server"].close()
    monkeypatch.setattr(Peer, "take", takes_slowly)
    ending = True
    closed(links)
    there.close()
    assert any(
        subject.startswith("vg.B.A.") and payload[:1] == b"\x03" and payload[1] == FrameKind.STOPPED
        for subject, payload in sent
    )


def test_a_party_that_cannot_reach_a_broker_says_so() -> None:
    session = ChannelContext(next(JOBS), PARTIES)
    kits = broker().kits
    nowhere = Brokers([BrokerAddress("localhost", free_port())], kits.tls("A"))
    link = NatsLink("A", nowhere, {"B": "B"}, kits.identities["A"], session, 20.0, connect_s=0.5)
    assert "no broker can be reached" in str(failure(link, "B"))
    link.close()


def test_two_brokers_each_killed_in_turn() -> None:
    kits = broker().kits
    meet = [BrokerAddress("localhost", free_port()) for _ in range(2)]
    pair = [
        Broker(kits, f"member-{me}", Cluster(BrokerAddress("127.0.0.1", meet[me].port), [meet[1 - me]]))
        for me in range(2)
    ]
    for each in pair:
        each.configure()
        each.start()
    for each in pair:
        wait_until(lambda each=each: "Route connection created" in each.said(), each.said)
    session = ChannelContext(next(JOBS), PARTIES)
    order = {"A": pair, "B": pair[::-1], "server": pair}
    links = {
        party: NatsLink(
            party,
            Brokers([each.address for each in order[party]], kits.tls(party)),
            {peer: peer for peer in PARTIES if peer != party},
            kits.identities[party],
            session,
            60.0,
        )
        for party in PARTIES
    }

    def kill(step: int) -> None:
        if step == 2:
            pair[0].kill()
        if step == 7:
            pair[0].start()
            wait_until(lambda: pair[0].said().count("Route connection created") > 1, pair[0].said)
            pair[1].kill()

    exchanged(links, between=kill)
    closed(links)
    for each in pair:
        each.kill()
