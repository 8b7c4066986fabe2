"""Where other holders' nodes are in a union, and which edges to these both ends' holders have.

Every holder draws new rows for its nodes in every session, in an order of its own. It sends another one, of each of its
edges with that one's nodes, a hash of both ends' ids and the row of its own end, in the order of the hashes and among
padding. The receiver knows the ids from edges of its own: what it learns is which of these the sender has as well, and
the rows. An edge that one of the two lacks is left out at the other.

Where one holder has all edges across and no nodes, it alone is told: of every node a hash of its id and its row, among
rows without a node. It learns which ends of its edges are nodes of the union, and leaves the other edges out.
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
from veilgraph.paradigms.union.inputs import NOWHERE, Places, across

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
    if not own:
        return _placed(link, session, graph, ids, blocks)
    drawn = draw_rows(block.size, block, secrets)
    rows = torch.cat([drawn[:own], torch.full((graph.num_nodes - own,), NOWHERE)])
    for other in others:
        if not blocks[other].size:
            hashes = [_hashed(f"{link.party}/{text}", session) for text in ids[:own]]
            _tell(link, other, hashes, rows[:own], drawn[own:], secrets)
            return Places(rows, block, own, torch.empty((2, 0), dtype=torch.int64))
    names = [*(f"{link.party}/{text}" for text in ids[:own]), *ids[own:]]
    edges, lost = edges_once(graph.edge_index), [torch.empty((2, 0), dtype=torch.int64)]
    shared = {other: _with(edges, own, names, other, session) for other in others}
    for other, mine in shared.items():
        more = padded(len(mine.hashes)) - len(mine.hashes)
        numbers = np.frombuffer(secrets(_WORD_BYTES * more), np.uint64) % np.uint64(block.size)
        padding = torch.from_numpy(block.rows.start + numbers.astype(np.int64))
        _tell(link, other, mine.hashes, rows[mine.own], padding, secrets)
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
    hashes = [_hashed("\n".join((names[source], names[target])), session) for source, target in ends.T.tolist()]
    comes = is_other[ends[0]]
    return _Edges(ends, hashes, torch.where(comes, ends[1], ends[0]), torch.where(comes, ends[0], ends[1]))


def _placed(link: Link, session: str, graph: PartyGraph, ids: Sequence[str], blocks: Mapping[PartyId, Block]) -> Places:
    """Where all holders' nodes are, as each tells the one that has the edges across."""
    told = dict[PartyId, dict[bytes, int]]()
    for holder, block in blocks.items():
        if block.size:
            told[holder] = _hear(link, holder, block)
            if sorted(told[holder].values()) != list(range(block.rows.start, block.rows.stop)):
                raise _no_rows(holder, block)
    found = (told.get(name.split("/", 1)[0], {}).get(_hashed(name, session), NOWHERE) for name in ids)
    rows, edges = torch.tensor(list(found)), edges_once(graph.edge_index)
    lost = edges[:, ~across(edges, rows, blocks)]
    if lost.shape[1]:
        unknown = int((rows[lost] == NOWHERE).any(0).sum())
        log.warning(
            "%s: %d of its %d edges do not join nodes of two holders of the job: left out; of these %d have an id that "
            "its holder does not have, and the others are within a holder",
            link.party,
            lost.shape[1],
            edges.shape[1],
            unknown,
        )
    return Places(rows, blocks[link.party], 0, lost)


def _hashed(text: str, session: str) -> bytes:
    return hashlib.blake2b(text.encode(), key=session.encode(), digest_size=HASH_BYTES).digest()


def _tell(
    link: Link, other: PartyId, hashes: Sequence[bytes], rows: Tensor, padding: Tensor, secrets: SecretSource
) -> None:
    """Hashes and their rows, and rows of padding under random hashes, in the order of the hashes."""
    at = torch.cat([rows, padding]).numpy()
    hashes = [*hashes, *(secrets(HASH_BYTES) for _ in padding)]
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
