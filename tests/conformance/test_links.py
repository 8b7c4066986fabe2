"""What every link promises, over memory and over sockets, bare, recorded and sealed, and over the engine's cells."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import count

import pytest
import torch
from torch import Tensor

pytest.importorskip("nvflare", reason="the extra veilgraph[deploy] is not installed")

from nvflare.fuel.f3.cellnet.core_cell import CoreCell

from tests.link.certificates import Project
from tests.link.own_cells import end
from veilgraph.core.errors import LinkError, LinkTimeout, PeerFailed, ProtocolError
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.deploy.demo import free_ports
from veilgraph.link.channel import MAX_HELLO_BYTES, Session
from veilgraph.link.codec import DTYPES, encode
from veilgraph.link.collectives import exchange
from veilgraph.link.flare import FlareLink
from veilgraph.link.memory import MemoryHub
from veilgraph.link.recorded import RecordedLink
from veilgraph.link.sealed import SealedLink
from veilgraph.link.sockets import SocketLink, socket_mesh

PARTIES = ("A", "B", "server")
TAG = Tag(Kind.SHARE, 3, 1)
Network = dict[PartyId, Link]
Connect = Callable[..., Network]


def over_memory(parties: tuple[PartyId, ...], timeout_s: float, limit: int) -> Network:
    hub = MemoryHub(parties, timeout_s, limit)
    return {party: hub.link(party) for party in parties}


def over_sockets(parties: tuple[PartyId, ...], timeout_s: float, limit: int) -> Network:
    return {party: SocketLink(party, ends, timeout_s, limit) for party, ends in socket_mesh(parties).items()}


@cache
def cells() -> dict[PartyId, CoreCell]:
    """The engine's cells, all in this process, where it hands messages over without a wire (tests/link has one)."""
    port, _ = free_ports()
    made = {party: CoreCell(party, f"grpc://localhost:{port}", False, {}) for party in ("server", "A", "B")}
    for cell in made.values():
        cell.start()
    return made


@pytest.fixture(scope="module", autouse=True)
def stop_cells() -> Iterator[None]:
    """The engine's threads would keep the process, and its cells would take what others mean for theirs."""
    yield
    if cells.cache_info().currsize:
        end(cells())
        cells.cache_clear()


PROJECT = Project()
IDENTITIES = {party: PROJECT.identity(party) for party in PARTIES}
JOBS = (f"job {number}" for number in count())


def over_flare(parties: tuple[PartyId, ...], timeout_s: float, limit: int) -> Network:
    peers = {party: {peer: peer for peer in parties if peer != party} for party in parties}
    session = Session(next(JOBS), parties)
    return {
        party: FlareLink(
            party, cells()[party], peers[party], IDENTITIES[party], session, timeout_s, max_message_bytes=limit
        )
        for party in parties
    }


WIRES = {"memory": over_memory, "sockets": over_sockets, "flare": over_flare}


def sealed(wire: str, timeout_s: float, limit: int) -> Network:
    """All seal what they send each other."""
    network = WIRES[wire](PARTIES, timeout_s, limit + MAX_HELLO_BYTES)
    session = Session("job", PARTIES)
    peers = {name: [peer for peer in PARTIES if peer != name] for name in PARTIES}
    links = [
        SealedLink(network[name], IDENTITIES[name], peers[name], session, max_message_bytes=limit) for name in PARTIES
    ]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(SealedLink.establish, links))
    return {link.party: link for link in links}


@pytest.fixture(
    params=[
        "memory",
        "sockets",
        "memory recorded",
        "sockets recorded",
        "memory sealed",
        "sockets sealed",
        "sockets sealed recorded",
        "flare",
        "flare recorded",
    ]
)
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes networks of one implementation and closes them after the test."""
    wire, *wrappers = request.param.split()
    made: list[Link] = []

    def make(timeout_s: float = 10.0, limit: int = 1 << 30) -> Network:
        network = sealed(wire, timeout_s, limit) if "sealed" in wrappers else WIRES[wire](PARTIES, timeout_s, limit)
        if "recorded" in wrappers:
            network = {party: RecordedLink(link, keep_transcript=True) for party, link in network.items()}
        made.extend(network.values())
        return network

    yield make
    for link in made:
        link.close()


@pytest.fixture
def later() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def test_a_party_knows_its_name(connect: Connect) -> None:
    assert {party: link.party for party, link in connect().items()} == {party: party for party in PARTIES}


def test_every_pair_is_connected_in_both_directions(connect: Connect) -> None:
    network = connect()
    pairs = [(one, other) for one in PARTIES for other in PARTIES if one != other]
    for number, (one, other) in enumerate(pairs):
        network[one].send(other, TAG, torch.tensor([number]))
    for number, (one, other) in enumerate(pairs):
        assert same(network[other].receive(one, TAG), torch.tensor([number]))


def test_tags_not_arrival_decide_the_order(connect: Connect) -> None:
    network = connect()
    tags = [Tag(kind, step, round_) for kind in (Kind.SHARE, Kind.SEED) for step in (0, 7) for round_ in (0, 1)]
    for number, tag in enumerate(tags):
        network["A"].send("B", tag, torch.tensor(number))
    for number, tag in reversed(list(enumerate(tags))):
        assert network["B"].receive("A", tag).item() == number


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 5), (3, 0), (4, 1), (5, 7), (2, 3, 4), (2, 1, 2, 3)], ids=str)
def test_dtype_shape_and_values_survive(connect: Connect, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    network = connect()
    tensor = (torch.randint(-(2**40), 2**40, shape) % 251).to(dtype)
    network["A"].send("B", TAG, tensor)
    received = network["B"].receive("A", TAG)
    assert received.shape == shape
    assert same(received, tensor)


def test_extreme_values_survive(connect: Connect) -> None:
    network = connect()
    ring = torch.tensor([-(2**63), 2**63 - 1, -1, 0])
    floats = torch.tensor([float("inf"), float("-inf"), float("nan"), 5e-324, -0.0], dtype=torch.float64)
    network["A"].send("B", Tag(Kind.SHARE), ring)
    network["A"].send("B", Tag(Kind.GRADIENT, 2**64 - 1, 2**32 - 1), floats)
    assert same(network["B"].receive("A", Tag(Kind.SHARE)), ring)
    received = network["B"].receive("A", Tag(Kind.GRADIENT, 2**64 - 1, 2**32 - 1))
    assert same(received.view(torch.int64), floats.view(torch.int64))


def test_noncontiguous_tensors_arrive_contiguous(connect: Connect) -> None:
    network = connect()
    tensor = torch.arange(12.0).reshape(3, 4).t()[::2]
    network["A"].send("B", TAG, tensor)
    received = network["B"].receive("A", TAG)
    assert received.is_contiguous()
    assert same(received, tensor)


def test_no_autograd_graph_crosses(connect: Connect) -> None:
    network = connect()
    network["A"].send("B", TAG, torch.ones(3, requires_grad=True) * 2)
    received = network["B"].receive("A", TAG)
    assert not received.requires_grad
    assert received.grad_fn is None


def test_large_messages_both_ways_at_once(connect: Connect, later: ThreadPoolExecutor) -> None:
    network = connect()
    big = {party: torch.full((20_000_000 // 8,), number) for number, party in enumerate(PARTIES)}
    peers = {party: [other for other in PARTIES if other != party] for party in PARTIES}
    jobs = {party: later.submit(exchange, network[party], peers[party], TAG, big[party]) for party in PARTIES}
    for party, job in jobs.items():
        for peer, tensor in job.result(timeout=30).items():
            assert same(tensor, big[peer]), (party, peer)


def test_threads_may_share_a_link(connect: Connect, later: ThreadPoolExecutor) -> None:
    network = connect()

    def send_all(kind: Kind) -> None:
        for step in range(50):
            network["A"].send("B", Tag(kind, step), torch.full((step * 100,), step))

    def receive_all(kind: Kind) -> list[Tensor]:
        return [network["B"].receive("A", Tag(kind, step)) for step in range(50)]

    received = [later.submit(receive_all, kind) for kind in (Kind.SHARE, Kind.SEED)]
    sent = [later.submit(send_all, kind) for kind in (Kind.SHARE, Kind.SEED)]
    for job in sent:
        job.result(timeout=30)
    for answers in received:
        assert all(same(t, torch.full((n * 100,), n)) for n, t in enumerate(answers.result(timeout=30)))


def test_a_tag_used_again_is_refused(connect: Connect) -> None:
    network = connect()
    network["A"].send("B", TAG, torch.zeros(1))
    network["B"].receive("A", TAG)
    network["A"].send("B", TAG, torch.zeros(1))
    with pytest.raises(ProtocolError, match=r"B cannot receive share/step 3/round 1 from A: A used the tag .* twice"):
        network["B"].receive("A", TAG)


def test_a_tag_used_twice_while_unread_is_refused(connect: Connect) -> None:
    network = connect()
    before = Tag(Kind.SHARE, 2)
    network["A"].send("B", before, torch.tensor([5]))
    network["A"].send("B", TAG, torch.zeros(1))
    network["A"].send("B", TAG, torch.ones(1))
    with pytest.raises(ProtocolError, match="A used the tag"):
        network["B"].receive("A", Tag(Kind.SHARE, 4))
    with pytest.raises(ProtocolError, match="A used the tag"):
        network["B"].receive("A", TAG)
    assert network["B"].receive("A", before).item() == 5


def test_the_same_tag_of_two_senders_is_two_messages(connect: Connect) -> None:
    network = connect()
    network["A"].send("B", TAG, torch.tensor(1))
    network["server"].send("B", TAG, torch.tensor(2))
    assert network["B"].receive("server", TAG).item() == 2
    assert network["B"].receive("A", TAG).item() == 1


def test_a_missing_message_times_out_and_names_what_came(connect: Connect) -> None:
    network = connect(timeout_s=0.3)
    network["A"].send("B", Tag(Kind.SEED), torch.zeros(1))
    with pytest.raises(
        LinkTimeout, match=r"B waited 0.3 s for share/step 3/round 1 from A; unread: seed/step 0/round 0"
    ):
        network["B"].receive("A", TAG)
    with pytest.raises(LinkTimeout, match="nothing is unread"):
        network["B"].receive("server", TAG)
    network["A"].send("B", TAG, torch.ones(1))
    assert network["B"].receive("A", TAG).item() == 1


def test_a_peer_that_leaves_wakes_who_waits_for_it(connect: Connect, later: ThreadPoolExecutor) -> None:
    network = connect()
    waiting: list[Future[Tensor]] = [later.submit(network[name].receive, "A", TAG) for name in ("B", "server")]
    time.sleep(0.05)
    network["A"].close()
    for job in waiting:
        with pytest.raises(PeerFailed, match="from A: A closed"):
            job.result(timeout=30)


def test_what_a_peer_sent_before_it_left_can_be_taken(connect: Connect) -> None:
    network = connect()
    big = torch.arange(1_000_000)
    network["A"].send("B", TAG, big)
    network["A"].close()
    assert same(network["B"].receive("A", TAG), big)
    with pytest.raises(PeerFailed, match="from A"):
        network["B"].receive("A", Tag(Kind.SHARE, 4))


def test_others_go_on_after_a_peer_left(connect: Connect) -> None:
    network = connect()
    network["A"].close()
    network["B"].send("server", TAG, torch.ones(2))
    assert same(network["server"].receive("B", TAG), torch.ones(2))


def test_sending_to_a_peer_that_left(connect: Connect) -> None:
    network = connect()
    network["A"].close()
    with pytest.raises(PeerFailed, match="B cannot send share/step 3/round 1 to A"):
        network["B"].send("A", TAG, torch.ones(1))


def test_a_closed_link_does_nothing_more(connect: Connect, later: ThreadPoolExecutor) -> None:
    network = connect()
    waiting = later.submit(network["A"].receive, "B", TAG)
    time.sleep(0.05)
    network["A"].close()
    network["A"].close()
    with pytest.raises(LinkError, match="its own link is closed"):
        waiting.result(timeout=30)
    with pytest.raises(LinkError, match="A cannot send"):
        network["A"].send("B", TAG, torch.ones(1))


@pytest.mark.parametrize("stranger", ["C", "A"])
def test_unknown_parties_are_refused(connect: Connect, stranger: PartyId) -> None:
    network = connect()
    with pytest.raises(ProtocolError, match=stranger):
        network["A"].send(stranger, TAG, torch.ones(1))
    with pytest.raises(ProtocolError, match=f"A has no link with '{stranger}'; it has with B, server"):
        network["A"].receive(stranger, TAG)


@pytest.mark.parametrize(
    ("tag", "tensor", "rule"),
    [
        (TAG, torch.zeros(2, dtype=torch.float16), "torch.float16; convert it to one of torch.float32"),
        (TAG, torch.eye(2).to_sparse(), "dense tensor on the CPU"),
        (TAG, torch.zeros(2, device="meta"), "dense tensor on the CPU"),
        (TAG, torch.zeros(1, 1, 1, 1, 1), "5 dimensions, 4 are allowed"),
        (TAG, torch.zeros(1000, dtype=torch.uint8), "1060 bytes, the limit is 1000"),
        (Tag(Kind.SHARE, -1), torch.zeros(1), "step must lie in"),
        (Tag(Kind.SHARE, 2**64), torch.zeros(1), "step must lie in"),
        (Tag(Kind.SHARE, 0, 2**32), torch.zeros(1), "round in"),
    ],
)
def test_the_sender_refuses_what_has_no_encoding(connect: Connect, tag: Tag, tensor: Tensor, rule: str) -> None:
    network = connect(limit=1000)
    with pytest.raises(ProtocolError, match=rule):
        network["A"].send("B", tag, tensor)
    network["A"].send("B", TAG, torch.ones(1))
    assert same(network["B"].receive("A", TAG), torch.ones(1))


def test_counted_bytes_are_the_codecs_on_every_wire() -> None:
    messages = [
        (Tag(Kind.SEED), torch.zeros(32, dtype=torch.uint8)),
        (Tag(Kind.SHARE, 1), torch.zeros(7, 3, dtype=torch.int64)),
        (Tag(Kind.SHARE, 2), torch.zeros(0, 3)),
    ]
    sizes = [len(header) + data.nbytes for header, data in (encode(tag, tensor) for tag, tensor in messages)]
    for make in (over_memory, over_sockets):
        links = {name: RecordedLink(link) for name, link in make(PARTIES, 10.0, 1 << 20).items()}
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


def test_no_thread_stays_after_close(connect: Connect) -> None:
    for link in connect().values():
        link.close()
    assert not [thread.name for thread in threading.enumerate() if " reads " in thread.name]
