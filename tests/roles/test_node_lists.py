"""Lists of nodes and edges: what the server makes of keyed hashes, and what neither it nor a holder can tell."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.errors import refused
from veilgraph.core.errors import DataError, ProtocolError
from veilgraph.core.randomness import PUBLIC_SEEDS, LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink
from veilgraph.paradigms.horizontal.node_lists import (
    HASH_BYTES,
    Places,
    edge_hashes,
    node_hashes,
    receive_nodes,
    receive_places,
    send_edges,
    send_nodes,
    send_places,
    settle_edges,
    share_secrets,
)
from veilgraph.runtime.launch.processes import run_threads

KEY = bytes(range(32))


def session(holders: Mapping[PartyId, Callable[[Link], Any]], server: Callable[[Link], Any]) -> dict[PartyId, Any]:
    return run_threads({**holders, SERVER: server}, 20, lambda: None)


def listed(ids: Mapping[PartyId, Sequence[str]], key: bytes = KEY) -> Places:
    def holder(link: Link) -> None:
        send_nodes(link, node_hashes(key, ids[link.party]))

    found = session(dict.fromkeys(ids, holder), lambda link: receive_nodes(link, tuple(ids)))[SERVER]
    assert isinstance(found, Places)
    return found


def test_the_order_does_not_depend_on_the_key() -> None:
    """Or a resumed session, with its new key, would drop out other elements."""
    ids = {"A": [str(node) for node in range(40)], "B": [str(node) for node in range(30, 70)]}
    one, other = listed(ids), listed(ids, KEY[::-1])
    assert all(torch.equal(one.rows[holder], other.rows[holder]) for holder in ids)


def test_an_id_twice_is_refused() -> None:
    with refused(DataError, code="node-twice", party="B"):
        listed({"A": ["a"], "B": ["x", "a", "x"]})


@given(st.lists(st.text(), min_size=1, max_size=8, unique=True))
def test_hashes_tell_ids_apart_and_depend_on_the_key(ids: list[str]) -> None:
    hashes = node_hashes(KEY, ids)
    assert (hashes.dtype, hashes.shape) == (torch.uint8, (len(ids), HASH_BYTES))
    assert len({bytes(row) for row in hashes.numpy()}) == len(ids)
    assert torch.equal(hashes, node_hashes(KEY, ids))
    assert not (hashes == node_hashes(bytes(32), ids)).all(dim=1).any()


def test_hashes_of_edges_have_a_direction_and_are_of_nodes_not_rows() -> None:
    nodes = node_hashes(KEY, ["a", "b", "c"])
    hashes = edge_hashes(KEY, nodes, torch.tensor([[0, 1, 0], [1, 0, 1]]))
    assert torch.equal(hashes[0], hashes[2])
    assert not torch.equal(hashes[0], hashes[1])
    elsewhere = edge_hashes(KEY, nodes[[2, 1, 0]], torch.tensor([[2], [1]]))
    assert torch.equal(elsewhere[0], hashes[0])


def settled(ids: Sequence[Sequence[str]], edges: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Which edges count, and the lists as they went to the server."""
    names = [f"holder{index}" for index in range(len(ids))]
    sent: dict[PartyId, Tensor] = {}

    def holder(link: Link) -> Tensor:
        index, recorded = names.index(link.party), RecordedLink(link, keep_transcript=True)
        counts = send_edges(recorded, edge_hashes(KEY, node_hashes(KEY, ids[index]), edges[index]))
        sent[link.party] = recorded.transcript()[0].tensor
        return counts

    found = session(dict.fromkeys(names, holder), lambda link: settle_edges(link, names))
    return [found[name] for name in names], [sent[name] for name in names]


def test_the_order_of_edges_does_not_reach_the_server() -> None:
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(9, (2, 30), generator=generator)
    shuffled = edges[:, torch.randperm(30, generator=generator)]
    ids = [str(node) for node in range(9)]
    (_, _), (one, other) = settled([ids, ids], [edges, shuffled])
    assert torch.equal(one, other)


def test_places_are_new_random_ones_and_tell_a_holder_only_how_many_nodes_there_are() -> None:
    places = Places(50, {"A": torch.arange(30), "B": torch.arange(20, 50)})

    def holder(link: Link) -> tuple[Tensor, int]:
        return receive_places(link, 30, 1000)

    drawn = []
    for _ in range(2):
        found = session({"A": holder, "B": holder}, lambda link: send_places(link, places, system_secrets))
        order = found[SERVER]
        drawn.append(order)
        assert torch.equal(order.sort().values, torch.arange(50))
        for party in ("A", "B"):
            rows, count = found[party]
            assert count == 50
            assert torch.equal(rows, order[places.rows[party]])
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], torch.arange(50))


@pytest.mark.parametrize("seed", [3, PUBLIC_SEEDS + 3])
def test_all_holders_get_the_first_ones_key_and_streams(seed: int) -> None:
    def holder(link: Link) -> tuple[bytes, int]:
        own = LearningStreams(seed + ord(link.party), link.party)
        key, streams = share_secrets(link, "ABC", own, system_secrets)
        return key, streams.seed("local")

    found = [session(dict.fromkeys("ABC", holder), lambda link: None) for _ in range(2)]
    for one in found:
        assert one["A"] == one["B"] == one["C"]
        assert len(one["A"][0]) == 32
    (first, weights), (second, again) = (one["A"] for one in found)
    assert first != second, "a key is of one session"
    assert weights == again, "a resumed session starts from the same weights"


@pytest.mark.parametrize(
    "told",
    [[0, 0, 5], [0, 5, 5], [-1, 1, 5], [0, 1, 1], [0, 1, -5], [0, 1, 11], [0, 2**62, 2**63 - 1], [0, 1, 0]],
)
def test_places_that_are_none_are_refused(told: list[int]) -> None:
    hub = MemoryHub(["A", SERVER], 1)
    hub.link(SERVER).send("A", Tag(Kind.NODE_PLACES, 0, 0), torch.tensor(told))
    with refused(ProtocolError, code="places", key="node_places/step 0/round 0", party="server"):
        receive_places(hub.link("A"), 2, 10)
