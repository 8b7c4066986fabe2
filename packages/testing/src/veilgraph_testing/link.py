"""What every link promises: order, tags, sizes, closing and failures."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, LinkError, LinkTimeout, PeerFailed, ProtocolError
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.codec import DTYPES
from veilgraph.link.collectives import exchange
from veilgraph.link.factory import LinkFactory

PARTIES = ("A", "B", "server")
TAG = Tag(Kind.SHARE, 3, 1)
Network = Mapping[PartyId, Link]
Connect = Callable[..., Network]


class LinksConformance(ABC):
    """Of the ends of one network, however they are made: inherit it and say how."""

    @abstractmethod
    def links(self, timeout_s: float, limit: int) -> Network:
        """Joined ends of ``PARTIES``, with the longest wait of a receive in seconds and the limit of one encoded
        message in bytes.
        """

    @pytest.fixture
    def connect(self) -> Iterator[Connect]:
        """Makes networks and closes them after the test."""
        made: list[Link] = []

        def make(timeout_s: float = 10.0, limit: int = 1 << 30) -> Network:
            network = self.links(timeout_s, limit)
            made.extend(network.values())
            return network

        yield make
        for link in made:
            link.close()

    @pytest.fixture
    def network(self, connect: Connect) -> Network:
        """The ends of a network whose receives wait for ten seconds."""
        return connect()

    @pytest.fixture
    def later(self) -> Iterator[ThreadPoolExecutor]:
        """Other threads."""
        with ThreadPoolExecutor(4) as pool:
            yield pool

    def test_a_party_knows_its_name(self, connect: Connect) -> None:
        assert {party: link.party for party, link in connect().items()} == {party: party for party in PARTIES}

    def test_every_pair_is_connected_in_both_directions(self, network: Network) -> None:
        pairs = [(one, other) for one in PARTIES for other in PARTIES if one != other]
        for number, (one, other) in enumerate(pairs):
            network[one].send(other, TAG, torch.tensor([number]))
        for number, (one, other) in enumerate(pairs):
            assert _same(network[other].receive(one, TAG), torch.tensor([number]))

    def test_tags_not_arrival_decide_the_order(self, network: Network) -> None:
        tags = [Tag(kind, step, round_) for kind in (Kind.SHARE, Kind.SEED) for step in (0, 7) for round_ in (0, 1)]
        for number, tag in enumerate(tags):
            network["A"].send("B", tag, torch.tensor(number))
        for number, tag in reversed(list(enumerate(tags))):
            assert network["B"].receive("A", tag).item() == number

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
    def test_dtype_shape_and_values_survive(self, network: Network, dtype: torch.dtype) -> None:
        shapes: list[tuple[int, ...]] = [(), (1,), (0,), (0, 5), (3, 0), (4, 1), (5, 7), (2, 3, 4), (2, 1, 2, 3)]
        sent = [(torch.randint(-(2**40), 2**40, shape) % 251).to(dtype) for shape in shapes]
        for step, tensor in enumerate(sent):
            network["A"].send("B", Tag(Kind.SHARE, step), tensor)
        for step, tensor in enumerate(sent):
            received = network["B"].receive("A", Tag(Kind.SHARE, step))
            assert received.shape == tensor.shape
            assert _same(received, tensor)

    def test_extreme_values_survive(self, network: Network) -> None:
        ring = torch.tensor([-(2**63), 2**63 - 1, -1, 0])
        floats = torch.tensor([float("inf"), float("-inf"), float("nan"), 5e-324, -0.0], dtype=torch.float64)
        network["A"].send("B", Tag(Kind.SHARE), ring)
        network["A"].send("B", Tag(Kind.GRADIENT, 2**64 - 1, 2**32 - 1), floats)
        assert _same(network["B"].receive("A", Tag(Kind.SHARE)), ring)
        received = network["B"].receive("A", Tag(Kind.GRADIENT, 2**64 - 1, 2**32 - 1))
        assert _same(received.view(torch.int64), floats.view(torch.int64))

    def test_noncontiguous_tensors_arrive_contiguous(self, network: Network) -> None:
        tensor = torch.arange(12.0).reshape(3, 4).t()[::2]
        network["A"].send("B", TAG, tensor)
        received = network["B"].receive("A", TAG)
        assert received.is_contiguous()
        assert _same(received, tensor)

    def test_no_autograd_graph_crosses(self, network: Network) -> None:
        network["A"].send("B", TAG, torch.ones(3, requires_grad=True) * 2)
        received = network["B"].receive("A", TAG)
        assert not received.requires_grad
        assert received.grad_fn is None

    def test_large_messages_both_ways_at_once(self, network: Network, later: ThreadPoolExecutor) -> None:
        big = {party: torch.full((20_000_000 // 8,), number) for number, party in enumerate(PARTIES)}
        peers = {party: [other for other in PARTIES if other != party] for party in PARTIES}
        jobs = {party: later.submit(exchange, network[party], peers[party], TAG, big[party]) for party in PARTIES}
        for party, job in jobs.items():
            for peer, tensor in job.result(timeout=30).items():
                assert _same(tensor, big[peer]), (party, peer)

    def test_threads_may_share_a_link(self, network: Network, later: ThreadPoolExecutor) -> None:

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
            assert all(_same(t, torch.full((n * 100,), n)) for n, t in enumerate(answers.result(timeout=30)))

    def test_a_tag_used_again_is_refused(self, network: Network) -> None:
        network["A"].send("B", TAG, torch.zeros(1))
        network["B"].receive("A", TAG)
        network["A"].send("B", TAG, torch.zeros(1))
        with pytest.raises(ProtocolError, match="twice"):
            network["B"].receive("A", TAG)

    def test_a_tag_used_twice_while_unread_is_refused(self, network: Network) -> None:
        before = Tag(Kind.SHARE, 2)
        network["A"].send("B", before, torch.tensor([5]))
        network["A"].send("B", TAG, torch.zeros(1))
        network["A"].send("B", TAG, torch.ones(1))
        with pytest.raises(ProtocolError, match="A"):
            network["B"].receive("A", Tag(Kind.SHARE, 4))
        with pytest.raises(ProtocolError, match="A"):
            network["B"].receive("A", TAG)
        assert network["B"].receive("A", before).item() == 5

    def test_the_same_tag_of_two_senders_is_two_messages(self, network: Network) -> None:
        network["A"].send("B", TAG, torch.tensor(1))
        network["server"].send("B", TAG, torch.tensor(2))
        assert network["B"].receive("server", TAG).item() == 2
        assert network["B"].receive("A", TAG).item() == 1

    def test_a_missing_message_times_out_and_names_what_came(self, connect: Connect) -> None:
        network = connect(timeout_s=0.3)
        network["A"].send("B", Tag(Kind.SEED), torch.zeros(1))
        assert network["B"].comes("A", Tag(Kind.SEED), 30.0)
        with pytest.raises(LinkTimeout, match="seed/step 0"):
            network["B"].receive("A", TAG)
        with pytest.raises(LinkTimeout, match="server"):
            network["B"].receive("server", TAG)
        network["A"].send("B", TAG, torch.ones(1))
        assert network["B"].comes("A", TAG, 30.0)
        assert network["B"].receive("A", TAG).item() == 1

    def test_whether_a_message_comes_is_known_without_taking_it(
        self, network: Network, later: ThreadPoolExecutor
    ) -> None:
        assert not network["B"].comes("A", TAG, 0.01)
        waiting = later.submit(network["B"].comes, "A", TAG, 30.0)
        network["A"].send("B", Tag(Kind.SHARE, 4), torch.zeros(1))
        network["A"].send("B", TAG, torch.ones(1))
        assert waiting.result(timeout=30)
        assert network["B"].comes("A", TAG, 0.0)
        assert network["B"].receive("A", TAG).item() == 1
        assert not network["B"].comes("A", TAG, 0.0)

    def test_that_nothing_more_comes_is_known_at_once(self, network: Network, later: ThreadPoolExecutor) -> None:
        waiting = later.submit(network["B"].comes, "A", TAG, 30.0)
        network["A"].close()
        assert waiting.result(timeout=20)
        with pytest.raises(PeerFailed, match="A"):
            network["B"].receive("A", TAG)

    def test_a_peer_that_leaves_wakes_who_waits_for_it(self, network: Network, later: ThreadPoolExecutor) -> None:
        waiting: list[Future[Tensor]] = [later.submit(network[name].receive, "A", TAG) for name in ("B", "server")]
        time.sleep(0.05)
        network["A"].close()
        for job in waiting:
            with pytest.raises(PeerFailed, match="A"):
                job.result(timeout=30)

    def test_what_a_peer_sent_before_it_left_can_be_taken(self, network: Network) -> None:
        big = torch.arange(1_000_000)
        network["A"].send("B", TAG, big)
        network["A"].close()
        assert _same(network["B"].receive("A", TAG), big)
        with pytest.raises(PeerFailed, match="A"):
            network["B"].receive("A", Tag(Kind.SHARE, 4))

    def test_others_go_on_after_a_peer_left_and_cannot_send_to_it(self, network: Network) -> None:
        network["A"].close()
        network["B"].send("server", TAG, torch.ones(2))
        assert _same(network["server"].receive("B", TAG), torch.ones(2))
        with pytest.raises(PeerFailed, match="A"):
            network["B"].send("A", TAG, torch.ones(1))

    def test_a_closed_link_does_nothing_more(self, network: Network, later: ThreadPoolExecutor) -> None:
        waiting = later.submit(network["A"].receive, "B", TAG)
        time.sleep(0.05)
        network["A"].close()
        network["A"].close()
        with pytest.raises(LinkError):
            waiting.result(timeout=30)
        with pytest.raises(LinkError):
            network["A"].send("B", TAG, torch.ones(1))

    @pytest.mark.parametrize("stranger", ["C", "A"])
    def test_unknown_parties_are_refused(self, network: Network, stranger: PartyId) -> None:
        with pytest.raises(ProtocolError, match=stranger):
            network["A"].send(stranger, TAG, torch.ones(1))
        with pytest.raises(ProtocolError, match=stranger):
            network["A"].receive(stranger, TAG)
        with pytest.raises(ProtocolError, match=stranger):
            network["A"].comes(stranger, TAG, 0.0)

    @pytest.mark.parametrize(
        ("tag", "tensor"),
        [
            (TAG, torch.zeros(2, dtype=torch.float16)),
            (TAG, torch.eye(2).to_sparse()),
            (TAG, torch.zeros(2, device="meta")),
            (TAG, torch.zeros(1, 1, 1, 1, 1)),
            (TAG, torch.zeros(1000, dtype=torch.uint8)),
            (Tag(Kind.SHARE, -1), torch.zeros(1)),
            (Tag(Kind.SHARE, 2**64), torch.zeros(1)),
            (Tag(Kind.SHARE, 0, 2**32), torch.zeros(1)),
        ],
    )
    def test_the_sender_refuses_what_has_no_encoding(self, connect: Connect, tag: Tag, tensor: Tensor) -> None:
        network = connect(limit=1000)
        with pytest.raises(ProtocolError):
            network["A"].send("B", tag, tensor)
        network["A"].send("B", TAG, torch.ones(1))
        assert _same(network["B"].receive("A", TAG), torch.ones(1))

    def test_a_message_of_another_kind_is_not_what_is_waited_for(self, connect: Connect) -> None:
        network = connect(timeout_s=0.3)
        network["A"].send("B", Tag(Kind.SEED, TAG.step, TAG.round), torch.zeros(1))
        with pytest.raises(LinkTimeout, match="share"):
            network["B"].receive("A", TAG)
        assert network["B"].comes("A", Tag(Kind.SEED, TAG.step, TAG.round), 30.0)
        assert network["B"].receive("A", Tag(Kind.SEED, TAG.step, TAG.round)).item() == 0

    def test_whoever_sends_more_than_is_expected_has_failed(self, network: Network) -> None:
        network["B"].expect(4096)
        for step in range(3):
            network["A"].send("B", Tag(Kind.SHARE, step), torch.zeros(4096, dtype=torch.uint8))
        with pytest.raises(ProtocolError, match="A"):
            network["B"].receive("A", TAG)

    def test_who_is_faster_than_its_receiver_waits_and_loses_nothing(
        self, connect: Connect, later: ThreadPoolExecutor
    ) -> None:
        network, data = connect(timeout_s=60.0), torch.zeros(4 << 20, dtype=torch.uint8)
        network["B"].expect(64 << 20)
        begun = 0

        def send(count: int) -> None:
            nonlocal begun
            for begun in range(count):
                network["A"].send("B", Tag(Kind.SHARE, begun), data)

        network["A"].send("B", Tag(Kind.SEED), data)
        network["B"].receive("A", Tag(Kind.SEED))
        sent, before = later.submit(send, 32), -1  # twice what may be unread
        while begun != before:  # until it waits
            before = begun
            time.sleep(0.3)
        network["server"].send("B", TAG, torch.ones(1))
        assert _same(network["B"].receive("server", TAG), torch.ones(1))
        for step in range(32):
            assert _same(network["B"].receive("A", Tag(Kind.SHARE, step)), data)
        sent.result(60.0)

    def test_no_thread_stays_after_close(self, connect: Connect) -> None:
        before = {thread.ident for thread in threading.enumerate() if thread.is_alive()}
        for link in connect().values():
            link.close()
        deadline = time.monotonic() + 10
        while (left := self._left(before)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left

    @staticmethod
    def _left(before: Collection[int | None]) -> list[str]:
        """Threads that were not there; those of pools that others share may stay."""
        return [each.name for each in threading.enumerate() if each.ident not in before and not each.daemon]


class LinkConformance(LinksConformance):
    """Of a wire that joins parties on one machine; ``factory`` makes it."""

    factory: ClassVar[LinkFactory]

    def links(self, timeout_s: float, limit: int) -> Network:
        """See ``LinksConformance.links``."""
        network = self.factory.network(PARTIES, timeout_s, limit)
        return {party: network.link(party) for party in PARTIES}

    def test_an_end_is_the_same_at_every_call(self) -> None:
        network = self.factory.network(PARTIES, 10.0)
        ends = [network.link(party) for party in PARTIES]
        assert [network.link(party) is end for party, end in zip(PARTIES, ends, strict=True)] == [True] * len(PARTIES)
        for end in ends:
            end.close()

    def test_a_failed_party_ends_the_waits_of_the_others(self, later: ThreadPoolExecutor) -> None:
        network = self.factory.network(PARTIES, 10.0)
        waits = [later.submit(network.link(name).receive, "A", TAG) for name in ("B", "server")]
        network.fail("A", ValueError("a secret of its own"))
        for wait in waits:
            with pytest.raises(PeerFailed, match="A") as caught:
                wait.result(timeout=30)
            assert "secret" not in str(caught.value)
        for party in PARTIES:
            network.link(party).close()

    def test_processes_are_invited_one_by_one_or_not_at_all(self) -> None:
        if type(self.factory).invitations is LinkFactory.invitations:
            with pytest.raises(ConfigError, match="sockets"):
                self.factory.invitations(PARTIES)
            return
        invited = self.factory.invitations(PARTIES)
        assert set(invited) == set(PARTIES)
        for each in (each for invitation in invited.values() for each in invitation.inherited):
            getattr(each, "detach", each.fileno)()  # another process would have the number alone
        links = {name: self.factory.join(name, each.arguments, 10.0) for name, each in invited.items()}
        links["A"].send("server", TAG, torch.ones(2))
        assert links["server"].receive("A", TAG).tolist() == [1, 1]
        for link in links.values():
            link.close()


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)
