"""Where other holders' nodes are in a union, and which edges to these both ends' holders have.

Every holder draws new rows for its nodes in every session, in an order of its own. It sends another one, of each of its
edges with that one's nodes, a hash of both ends' ids and the row of its own end, in the order of the hashes and among
padding. The receiver knows the ids from edges of its own: what it learns is which of these the sender has as well, and
the rows. An edge that one of the two lacks is left out at the other.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.collectives import receive_as
from veilgraph.mpc.sealed.hops import shuffled
from veilgraph.paradigms.sealed.inputs import edges_once, padded
from veilgraph.paradigms.sealed.plan import Block
from veilgraph.paradigms.union.inputs import NOWHERE, Places

HASH_BYTES: Final = 16
_WORD_BYTES: Final = 8
_EDGES, _ROWS = Tag(Kind.NODE_LIST), Tag(Kind.NODE_PLACES)

log = logging.getLogger("veilgraph")


def draw_rows(nodes: int, block: Block, secrets: SecretSource) -> Tensor:
    """Different rows of a block for so many nodes, at random: int64 [nodes]."""
    numbers = torch.frombuffer(bytearray(secrets(_WORD_BYTES * block.size)), dtype=torch.int64)
    drawn: Tensor = block.rows.start + shuffled(numbers)[:nodes]
    return drawn


@dataclass(frozen=True)
class _Edges:
    """A holder's edges with another one's nodes: int64 [2, E] of its graph, hashes, and which end is its own, [E]."""

    ends: Tensor
    hashes: Sequence[bytes]
    own: Tensor
    other: Tensor


def exchange_rows(
    link: Link,
    session: str,
    graph: PartyGraph,
    ids: Sequence[str],
    blocks: Mapping[PartyId, Block],
    secrets: SecretSource,
) -> Places:
    """One holder's part in it; ``ids`` are of the rows of its graph, the others' as ``holder/id``.

    Raises ``ProtocolError``: what another sent are no rows of its own, one for each node.
    """
    own, block, others = graph.common, blocks[link.party], [holder for holder in blocks if holder != link.party]
    rows = torch.cat([draw_rows(own, block, secrets), torch.full((graph.num_nodes - own,), NOWHERE)])
    names = [*(f"{link.party}/{text}" for text in ids[:own]), *ids[own:]]
    edges, lost = edges_once(graph.edge_index), [torch.empty((2, 0), dtype=torch.int64)]
    shared = {other: _with(edges, own, names, other, session) for other in others}
    for other, mine in shared.items():
        _tell(link, other, mine, rows, block, secrets)
    for other, mine in shared.items():
        told = _hear(link, other, blocks[other])
        at = torch.tensor([told.get(each, NOWHERE) for each in mine.hashes], dtype=torch.int64)
        known = at != NOWHERE
        rows[mine.other[known]] = at[known]
        if not torch.equal(rows[mine.other[known]], at[known]):
            raise _no_rows(other, blocks[other])
        lost.append(mine.ends[:, ~known])
        if missing := int((~known).sum()):
            log.warning(
                "%s: %s lacks %d of the %d edges between their nodes: left out", link.party, other, missing, len(at)
            )
    return Places(rows, block, own, torch.cat(lost, 1))


def _with(edges: Tensor, own: int, names: Sequence[str], other: PartyId, session: str) -> _Edges:
    whose = torch.tensor([name.split("/", 1)[0] == other for name in names[own:]], dtype=torch.bool)
    is_other = torch.cat([torch.zeros(own, dtype=torch.bool), whose])
    ends = edges[:, is_other[edges].any(0)]
    key = session.encode()
    texts = ("\n".join((names[source], names[target])) for source, target in ends.T.tolist())
    hashes = [hashlib.blake2b(text.encode(), key=key, digest_size=HASH_BYTES).digest() for text in texts]
    comes = is_other[ends[0]]
    return _Edges(ends, hashes, torch.where(comes, ends[1], ends[0]), torch.where(comes, ends[0], ends[1]))


def _tell(link: Link, other: PartyId, mine: _Edges, rows: Tensor, block: Block, secrets: SecretSource) -> None:
    more = padded(len(mine.hashes)) - len(mine.hashes)
    drawn = np.frombuffer(secrets(_WORD_BYTES * more), np.uint64) % np.uint64(block.size)
    at = np.concatenate([rows[mine.own].numpy(), block.rows.start + drawn.astype(np.int64)])
    hashes = [*mine.hashes, *(secrets(HASH_BYTES) for _ in range(more))]
    order = sorted(range(len(hashes)), key=hashes.__getitem__)
    told = np.frombuffer(b"".join(hashes[place] for place in order), np.uint8).reshape(-1, HASH_BYTES)
    link.send(other, _EDGES, torch.from_numpy(told.copy()))
    link.send(other, _ROWS, torch.from_numpy(at[order]))


def _hear(link: Link, other: PartyId, block: Block) -> dict[bytes, int]:
    told = receive_as(link, other, _EDGES, (None, HASH_BYTES), torch.uint8)
    at = receive_as(link, other, _ROWS, (len(told),), torch.int64)
    if bool(((at < block.rows.start) | (at >= block.rows.stop)).any()):
        raise _no_rows(other, block)
    return dict(zip((row.tobytes() for row in told.numpy()), at.tolist(), strict=True))


def _no_rows(other: PartyId, block: Block) -> ProtocolError:
    return ProtocolError(
        f"{other} told rows of its nodes that are not one each of its own {block.size}; ask {other} what it runs",
        code="rows",
        key=_ROWS,
        party=other,
    )
