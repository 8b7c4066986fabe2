"""Sockets between processes, and memory between threads, beyond what every link promises (tests/conformance)."""

import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError, LinkError, LinkTimeout, PeerFailed, ProtocolError
from veilgraph.core.types import Kind, Tag
from veilgraph.link.codec import encode
from veilgraph.link.factory import SOCKETS, MemoryHub, SocketLink, socket_mesh

TAG = Tag(Kind.SHARE)


@pytest.fixture
def raw() -> Iterator[tuple[SocketLink, socket.socket]]:
    """B's link, and the bare other end that A would have."""
    ends = socket_mesh(["A", "B"])
    link = SocketLink("B", ends["B"], timeout_s=5.0)
    yield link, ends["A"]["B"]
    link.close()
    ends["A"]["B"].close()


def test_malformed_bytes_drop_the_connection(raw: tuple[SocketLink, socket.socket]) -> None:
    link, peer = raw
    header, data = encode(TAG, torch.ones(2))
    peer.sendall(header + data + b"\x80\x04" * 40)
    assert torch.equal(link.receive("A", TAG), torch.ones(2))
    with refused(ProtocolError, code="not-a-message", party="A"):
        link.receive("A", Tag(Kind.SHARE, 1))
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        peer.sendall(b"more")
    with refused(PeerFailed, code="closed", key="share/step 0/round 0", party="A"):
        link.send("A", TAG, torch.ones(1))


@pytest.mark.parametrize("cut", [10, 60, 65])
def test_a_message_cut_short_is_a_failed_peer(raw: tuple[SocketLink, socket.socket], cut: int) -> None:
    link, peer = raw
    header, data = encode(TAG, torch.ones(2))
    peer.sendall((header + data)[:cut])
    peer.close()
    with refused(PeerFailed, code="closed", party="A"):
        link.receive("A", TAG)


def test_bytes_may_arrive_one_by_one(raw: tuple[SocketLink, socket.socket]) -> None:
    link, peer = raw
    header, data = encode(TAG, torch.tensor([[4, 5]]))
    for byte in header + data:
        peer.sendall(bytes([byte]))
    assert torch.equal(link.receive("A", TAG), torch.tensor([[4, 5]]))


def test_a_peer_that_reads_nothing_times_out_the_sender() -> None:
    ends = socket_mesh(["A", "B"])
    link = SocketLink("B", ends["B"], timeout_s=0.2)
    with refused(LinkTimeout, code="not-taken", key="share/step 0/round 0", value=20000000, party="A"):
        link.send("A", TAG, torch.zeros(20_000_000, dtype=torch.uint8))
    with refused(PeerFailed, code="closed", party="A"):
        link.receive("A", TAG)
    link.close()
    ends["A"]["B"].close()


def test_idle_longer_than_the_timeout_keeps_the_connection() -> None:
    ends = socket_mesh(["A", "B"])
    links = {name: SocketLink(name, sockets, timeout_s=0.05) for name, sockets in ends.items()}
    with pytest.raises(LinkTimeout):
        links["B"].receive("A", TAG)
    with pytest.raises(LinkTimeout):
        links["B"].receive("A", TAG)
    links["A"].send("B", TAG, torch.ones(1))
    assert links["B"].comes("A", TAG, 30.0)
    assert links["B"].receive("A", TAG).item() == 1
    for link in links.values():
        link.close()


@pytest.mark.parametrize(("soft", "hard"), [(100, 2000), (100, resource.RLIM_INFINITY)])
def test_as_many_files_may_be_open_as_the_parties_need(soft: int, hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 parties: 380 ends of sockets."""
    asked = list[tuple[int, int]]()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    invited = SOCKETS.invitations([str(number) for number in range(20)])
    for each in invited.values():
        for end in each.inherited:
            end.close()
    ((now, still),) = asked
    assert 380 < now <= 2000
    assert still == hard
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 1100))
    with refused(ConfigError, key="processes", value=20):
        SOCKETS.invitations([str(number) for number in range(20)])


def test_a_failed_party_in_memory_ends_every_wait_of_the_others_and_tells_no_secret() -> None:
    hub = MemoryHub(["A", "B", "C"], 10.0)
    hub.link("C").send("B", Tag(Kind.SEED), torch.ones(1))
    cause = DataError("an own secret")
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(hub.link("B").receive, sender, TAG) for sender in ("A", "C")]
        time.sleep(0.05)
        hub.fail("A", cause)
        for wait in waits:
            with refused(PeerFailed, party="A") as caught:
                wait.result(timeout=30)
            assert "secret" not in str(caught.value)
            assert caught.value.__cause__ is not None
            assert caught.value.__cause__.__cause__ is cause
    assert hub.link("B").receive("C", Tag(Kind.SEED)).item() == 1
    with refused(PeerFailed, code="closed", key="share/step 0/round 0", party="A"):
        hub.link("B").send("A", TAG, torch.ones(1))
    with refused(LinkError, code="closed", key="share/step 0/round 0", party="B"):
        hub.link("A").send("B", TAG, torch.ones(1))
