"""Which nodes the holders of a horizontal job know: the server learns keyed hashes alone (SAPGNN 4.1).

The first holder draws a key and gives it to the other holders, with the seed from which all start with equal weights.
The server, which does not have the key, can neither read a hash nor test an id, but sees which holders share a node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.errors import DataError, ProtocolError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.collectives import broadcast, receive_as

HASH_BYTES: Final = 16
SHARED: Final = "holders"  # name of the learning streams that all holders share

_SEED_BYTES: Final = 40
_WORD_BYTES: Final = 8
_NODES, _EDGES = 0, 1


def share_secrets(
    link: Link, holders: Sequence[PartyId], streams: LearningStreams, secrets: SecretSource
) -> tuple[bytes, LearningStreams]:
    """Agree on the hashes' key and the streams of shared weights: the first holder draws both, and sends the others."""
    first, *others = holders
    tag = Tag(Kind.NODE_KEY)
    if link.party == first:
        drawn = secrets(SEED_BYTES) + streams.to_share().to_bytes(_SEED_BYTES, "big")
        broadcast(link, others, tag, torch.frombuffer(bytearray(drawn), dtype=torch.uint8))
    else:
        received = receive_as(link, first, tag, (SEED_BYTES + _SEED_BYTES,), torch.uint8)
        drawn = received.numpy().tobytes()
    return drawn[:SEED_BYTES], LearningStreams(int.from_bytes(drawn[SEED_BYTES:], "big"), SHARED)


def node_hashes(key: bytes, ids: Sequence[str]) -> Tensor:
    """Keyed BLAKE2b of every node id: Tensor[N_p, 16] uint8."""
    return keyed_hashes(key, (text.encode("utf-8", "surrogatepass") for text in ids))


def edge_hashes(key: bytes, nodes: Tensor, edge_index: Tensor) -> Tensor:
    """Keyed BLAKE2b of every directed edge [2, E_p], over its ends' hashes ``nodes``: Tensor[E_p, 16] uint8."""
    source, target = (nodes[ends].numpy() for ends in edge_index)
    return keyed_hashes(key, map(bytes, np.concatenate([source, target], axis=1)))


@dataclass(frozen=True)
class Places:
    """Where the holders' rows stand among all nodes."""

    num_nodes: int  # N, nodes that any holder knows
    rows: Mapping[PartyId, Tensor]  # holder → Tensor[N_p] int64, distinct


def send_nodes(link: Link, hashes: Tensor) -> None:
    """Send the server a holder's node hashes, Tensor[N_p, 16] uint8."""
    link.send(SERVER, Tag(Kind.NODE_LIST, 0, _NODES), hashes)


def receive_nodes(link: Link, holders: Sequence[PartyId]) -> Places:
    """At the server: receive all holders' node hashes; equal hashes are one node, numbered by its first listing.

    The key is new in every session; an order that came of the hashes would change what dropout draws for a node. Raises
    ``DataError``: a holder lists a node twice.
    """
    keys, sizes = _receive_lists(link, holders, _NODES)
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = torch.from_numpy(first).argsort().argsort()
    rows = dict(zip(holders, torch.split(rank[torch.from_numpy(inverse.reshape(-1))], sizes), strict=True))
    for holder, places in rows.items():
        if len(torch.unique(places)) < len(places):
            raise DataError(
                f"{holder} lists a node twice; ids are unique: name every node once", code="node-twice", party=holder
            )
    return Places(len(unique), rows)


def send_edges(link: Link, hashes: Tensor) -> Tensor:
    """Send the server a holder's edge hashes, and receive which of its edges count, in its order: Tensor[E_p] bool.

    They are sent sorted by hash: edges are often sorted by node, and their own order would tell which.
    """
    order = torch.from_numpy(_as_bytes(hashes).argsort())
    link.send(SERVER, Tag(Kind.NODE_LIST, 0, _EDGES), hashes[order])
    counts = torch.empty(len(hashes), dtype=torch.bool)
    counts[order] = receive_as(link, SERVER, Tag(Kind.NODE_PLACES, 0, _EDGES), (len(hashes),), torch.bool)
    return counts


def settle_edges(link: Link, holders: Sequence[PartyId]) -> None:
    """At the server: receive edge hashes, and send holders which count: an edge does at the first that lists it."""
    keys, sizes = _receive_lists(link, holders, _EDGES)
    _, inverse = np.unique(keys, return_inverse=True)
    ids = torch.from_numpy(inverse.reshape(-1).astype(np.int64))
    owner = torch.repeat_interleave(torch.arange(len(holders)), torch.tensor(sizes))
    first = torch.full((int(ids.max()) + 1 if len(ids) else 0,), len(holders))
    first = first.scatter_reduce(0, ids, owner, "amin")
    for holder, counts in zip(holders, torch.split(first[ids] == owner, sizes), strict=True):
        link.send(holder, Tag(Kind.NODE_PLACES, 0, _EDGES), counts.contiguous())


def send_places(link: Link, places: Places, secrets: SecretSource) -> Tensor:
    """At the server: send every holder its nodes' places in a fresh random order, then N: Tensor[N_p + 1] int64.

    In an order of ids or hashes a holder could tell which other nodes there are. Returns node → place, [N] int64.
    """
    drawn = np.frombuffer(secrets(_WORD_BYTES * places.num_nodes), dtype=np.int64)
    order = torch.from_numpy(drawn.argsort())
    for holder, rows in places.rows.items():
        told = torch.cat([order[rows], torch.tensor([places.num_nodes])])
        link.send(holder, Tag(Kind.NODE_PLACES, 0, _NODES), told)
    return order


def receive_places(link: Link, nodes: int, most: int) -> tuple[Tensor, int]:
    """Receive the places of this holder's ``nodes`` among all, Tensor[N_p] int64, and N from the server.

    Raises ``ProtocolError``: two nodes have one place, one is not below N, or N is above ``most``.
    """
    tag = Tag(Kind.NODE_PLACES, 0, _NODES)
    received = receive_as(link, SERVER, tag, (nodes + 1,), torch.int64)
    rows, total = received[:-1], int(received[-1])
    inside = not nodes or (int(rows.min()) >= 0 and int(rows.max()) < total)
    if not (inside and nodes <= total <= most and not bool((rows.sort().values.diff() == 0).any())):
        words = (
            f"{link.party} got {tag} from {SERVER} with places that are not {nodes} different ones of {total} nodes, "
            f"at most {most}; ask {SERVER} what it runs"
        )
        raise ProtocolError(words, code="places", key=tag, party=SERVER)
    return rows, total


def _receive_lists(link: Link, holders: Sequence[PartyId], which: int) -> tuple[np.ndarray, list[int]]:
    """Receive all holders' hashes of nodes or edges (``which``): one after the other, and how many each has."""
    lists = [
        receive_as(link, holder, Tag(Kind.NODE_LIST, 0, which), (None, HASH_BYTES), torch.uint8) for holder in holders
    ]
    return _as_bytes(torch.cat(lists)), [len(one) for one in lists]


def keyed_hashes(key: bytes, texts: Iterable[bytes], size: int = HASH_BYTES) -> Tensor:
    """Keyed BLAKE2b of every text, with digests of ``size`` bytes: Tensor[n, size] uint8."""
    digests = b"".join(hashlib.blake2b(text, key=key, digest_size=size).digest() for text in texts)
    return torch.from_numpy(np.frombuffer(digests, dtype=np.uint8).copy()).view(-1, size)


def _as_bytes(hashes: Tensor) -> np.ndarray:
    return np.ascontiguousarray(hashes.numpy()).view(np.dtype((np.void, HASH_BYTES))).reshape(-1)
