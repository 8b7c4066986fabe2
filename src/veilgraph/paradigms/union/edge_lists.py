"""Edges between nodes of two holders, as each lists them to the other: hashes under a salt of the session.

Only who guesses both ends' names can test a hash. Hashes are new in every session, so that lists of two sessions cannot
be tied together by them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.collectives import receive_as
from veilgraph.paradigms.horizontal.node_lists import HASH_BYTES, keyed_hashes

_AT_ONCE: Final = 1 << 16  # edges that are hashed at a time, so that what is computed on the way stays in the cache
Hashes: TypeAlias = NDArray[np.void]
_HASH: Final = np.dtype((np.void, HASH_BYTES))
_LIST: Final = Tag(Kind.NODE_LIST)


def node_names(graph: PartyGraph, ids: Sequence[str]) -> list[bytes]:
    """Name each node of a holder's graph ``holder/id``; ids of others' nodes are such names already."""
    own = graph.common
    return [f"{graph.party}/{text}".encode() for text in ids[:own]] + [text.encode() for text in ids[own:]]


def name_hashes(names: Sequence[bytes], session: str) -> Hashes:
    """Hash every name twice, as the source and as the target of an edge: [n, 2]."""
    return keyed_hashes(session.encode(), names, 2 * HASH_BYTES).numpy().view(_HASH)


@dataclass(frozen=True)
class ListedEdges:
    """A holder's edges to nodes of one other holder, sorted by their hashes."""

    ends: Tensor  # int64 [2, E], nodes of this holder's graph
    hashes: Hashes  # [E]
    own: Tensor  # int64 [E], the end that is this holder's node
    other: Tensor  # int64 [E], the end that is the other holder's node


def is_node_of(holder: PartyId, names: Sequence[bytes]) -> Tensor:
    """Whether each name, ``holder/id``, is of a node of ``holder``: bool [n]."""
    start = f"{holder}/".encode()
    return torch.tensor([name.startswith(start) for name in names], dtype=torch.bool)


def listed_edges(
    edges: Tensor, own: int, names: Sequence[bytes], nodes: Hashes, other: PartyId, session: str
) -> ListedEdges:
    """Select the edges with an end at another holder's node, and sort them by their hashes."""
    is_other = torch.cat([torch.zeros(own, dtype=torch.bool), is_node_of(other, names[own:])])
    ends = edges[:, is_other[edges].any(0)]
    hashes = edge_hashes(ends, nodes, session)
    order = np.argsort(hashes.view(">u8")[::2].astype(np.uint64))  # by the first halves: many times faster
    ends = ends[:, torch.from_numpy(order)]
    comes = is_other[ends[0]]
    return ListedEdges(ends, hashes[order], torch.where(comes, ends[1], ends[0]), torch.where(comes, ends[0], ends[1]))


def edge_hashes(ends: Tensor, nodes: Hashes, session: str) -> Hashes:
    """Return AES(x) XOR x of each directed edge, with x = S(source) XOR T(target): [E], of ``ends`` int64 [2, E].

    ``nodes`` are the hashes S and T of every name, [n, 2]. AES under a key that all parties know stands for a random
    permutation: only who guesses both names finds x. Were the hash x itself, two edges of one unknown node would show
    which other ends they have. Source: Guo, Katz, Wang, Yu, Efficient and Secure Multiparty Computation from Fixed-Key
    Block Ciphers, 2020 (MMO).
    """
    words, found = nodes.view(np.uint64).reshape(-1, 2, 2), np.empty((ends.shape[1], 2), np.uint64)
    cipher = Cipher(algorithms.AES256(hashlib.sha256(session.encode()).digest()), modes.ECB())  # noqa: S305
    permute = cipher.encryptor().update
    for at in range(0, len(found), _AT_ONCE):
        source, target = ends[:, at : at + _AT_ONCE].numpy()
        x = words[source, 0] ^ words[target, 1]
        found[at : at + _AT_ONCE] = np.frombuffer(permute(x.tobytes()), np.uint64).reshape(-1, 2) ^ x
    return found.view(_HASH)[:, 0]


def send_hashes(link: Link, peer: PartyId, hashes: Hashes, more: int, secrets: SecretSource) -> Tensor:
    """Send ``hashes`` [n] among ``more`` random ones, sorted; return that order of all, int64 [n + more]."""
    told = np.concatenate([hashes, np.frombuffer(secrets(HASH_BYTES * more), _HASH)])
    order = np.argsort(told, kind="stable")
    link.send(peer, _LIST, torch.from_numpy(told[order].view(np.uint8).reshape(-1, HASH_BYTES)))
    return torch.from_numpy(order)


def receive_hashes(link: Link, peer: PartyId) -> Hashes:
    """Receive what another holder sent by ``send_hashes``: [n]."""
    return hashes_of(receive_as(link, peer, _LIST, (None, HASH_BYTES), torch.uint8))


def hashes_of(listed: Tensor) -> Hashes:
    """Read the hashes in a list as it was sent, uint8 [n, 16]: [n]."""
    return np.asarray(listed.contiguous().numpy().view(_HASH)[:, 0])


def find_hashes(hashes: Hashes, listed: Hashes) -> NDArray[np.int64]:
    """Return the place of each of n hashes among ``listed`` ones, [n]; −1 where it is not listed."""
    if not len(listed):
        return np.full(len(hashes), -1)
    order = np.argsort(listed, kind="stable")
    place = order[np.searchsorted(listed[order], hashes).clip(max=len(listed) - 1)]
    return np.where(listed[place] == hashes, place, -1)
