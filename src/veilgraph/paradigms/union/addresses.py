"""Where other holders' nodes are in a union, and which edges to these both ends' holders have.

Every holder draws new rows for its nodes in every session. For each of its edges to another holder's nodes it sends
that holder a hash of both ends' ids and the row of its own end, sorted by hash and mixed with padding. The receiver
learns which of its own edges the sender has as well, and their rows. An edge that only one of the two has is left out.

Where one holder has all edges across and no nodes, it alone is told: of every node a hash of its id and its row, among
rows without a node. It learns which ends of its edges are nodes of the union, and leaves the other edges out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.collectives import receive_as
from veilgraph.mpc.sealed.permutations import shuffled
from veilgraph.paradigms.horizontal.node_lists import HASH_BYTES
from veilgraph.paradigms.sealed.inputs import edges_once, padded
from veilgraph.paradigms.sealed.plan import Block
from veilgraph.paradigms.union.edge_lists import (
    Hashes,
    find_hashes,
    is_node_of,
    listed_edges,
    name_hashes,
    node_names,
    receive_hashes,
    send_hashes,
)
from veilgraph.paradigms.union.inputs import NOWHERE, Places, joins_holders

_WORD_BYTES: Final = 8
LISTED_BYTES: Final = HASH_BYTES + _WORD_BYTES  # of an edge, or of a row, in what two holders send each other
_ROWS: Final = Tag(Kind.NODE_PLACES)

log = logging.getLogger("veilgraph")


def draw_rows(nodes: int, block: Block, secrets: SecretSource) -> Tensor:
    """Draw distinct rows of a block, of at least ``nodes`` rows: int64 [nodes], numbered in the whole union."""
    numbers = torch.frombuffer(bytearray(secrets(_WORD_BYTES * block.size)), dtype=torch.int64)
    drawn: Tensor = block.rows.start + shuffled(numbers)[:nodes]
    return drawn


def exchange_rows(
    link: Link,
    session: str,
    graph: PartyGraph,
    ids: Sequence[str],
    blocks: Mapping[PartyId, Block],
    secrets: SecretSource,
) -> Places:
    """Run one holder's side of the address exchange: draw rows of its own nodes, and get those of others' nodes.

    ``ids`` name the nodes of its graph: its own first, then others' as ``holder/id``. Holders send each other hashes of
    their common edges with their own ends' rows; with a holder of the edges across, they list their nodes to it alone.
    Raises ``ProtocolError``: another sent a row outside its block, or two different rows for one node.
    """
    own, block, others = graph.common, blocks[link.party], [holder for holder in blocks if holder != link.party]
    names = node_names(graph, ids)
    nodes = name_hashes(names, session)
    if not own:
        return _network_places(link, graph, names, nodes[:, 0], blocks)
    drawn = draw_rows(block.size, block, secrets)
    rows = torch.cat([drawn[:own], torch.full((graph.num_nodes - own,), NOWHERE)])
    for other in others:
        if not blocks[other].size:
            _send_rows(link, other, nodes[:own, 0], rows[:own], drawn[own:], secrets)
            return Places(rows, block, own, torch.empty((2, 0), dtype=torch.int64))
    edges, lost = edges_once(graph.edge_index), [torch.empty((2, 0), dtype=torch.int64)]
    shared = {other: listed_edges(edges, own, names, nodes, other, session) for other in others}
    for other, mine in shared.items():
        more = padded(len(mine.hashes)) - len(mine.hashes)
        numbers = np.frombuffer(secrets(_WORD_BYTES * more), np.uint64) % np.uint64(block.size)
        padding = torch.from_numpy(block.rows.start + numbers.astype(np.int64))
        _send_rows(link, other, mine.hashes, rows[mine.own], padding, secrets)
    for other, mine in shared.items():
        at = _rows_of(mine.hashes, *_receive_rows(link, other, blocks[other]))
        known = at != NOWHERE
        rows[mine.other[known]] = at[known]
        if not torch.equal(rows[mine.other[known]], at[known]):
            raise _invalid_rows(other, blocks[other])
        lost.append(mine.ends[:, ~known])
        if missing := int((~known).sum()):
            log.warning(
                "%s: %s lacks %d of the %d edges between their nodes: left out", link.party, other, missing, len(at)
            )
    return Places(rows, block, own, torch.cat(lost, 1))


def _network_places(
    link: Link, graph: PartyGraph, names: Sequence[bytes], hashes: Hashes, blocks: Mapping[PartyId, Block]
) -> Places:
    """At the holder of the edges across: look up rows of ``hashes``, those of ``names``, in what all holders send."""
    rows = torch.full((len(names),), NOWHERE)
    for holder, block in blocks.items():
        if block.size:
            told, at = _receive_rows(link, holder, block)
            if not torch.equal(at.sort().values, torch.arange(block.rows.start, block.rows.stop)):
                raise _invalid_rows(holder, block)
            theirs = is_node_of(holder, names)
            rows[theirs] = _rows_of(hashes[theirs.numpy()], told, at)
    edges = edges_once(graph.edge_index)
    lost = edges[:, ~joins_holders(edges, rows, blocks)]
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


def _rows_of(hashes: Hashes, listed: Hashes, rows: Tensor) -> Tensor:
    """Find each of n hashes among ``listed`` hashes with their ``rows``: int64 [n], ``NOWHERE`` if not listed."""
    place = torch.from_numpy(find_hashes(hashes, listed))
    return torch.where(place >= 0, torch.cat([rows, rows.new_tensor([NOWHERE])])[place], NOWHERE)


def _send_rows(link: Link, peer: PartyId, hashes: Hashes, rows: Tensor, padding: Tensor, secrets: SecretSource) -> None:
    """Send hashes and their rows to another holder, mixed with padding rows under random hashes, sorted by hash."""
    order = send_hashes(link, peer, hashes, len(padding), secrets)
    link.send(peer, _ROWS, torch.cat([rows, padding])[order])


def _receive_rows(link: Link, other: PartyId, block: Block) -> tuple[Hashes, Tensor]:
    """Receive another holder's hashes and rows, [n] each; ``ProtocolError`` where a row is outside its block."""
    told = receive_hashes(link, other)
    at = receive_as(link, other, _ROWS, (len(told),), torch.int64)
    if bool(((at < block.rows.start) | (at >= block.rows.stop)).any()):
        raise _invalid_rows(other, block)
    return told, at


def _invalid_rows(other: PartyId, block: Block) -> ProtocolError:
    return ProtocolError(
        f"{other} told rows of its nodes that are not one each of its own {block.size}; ask {other} what it runs",
        code="rows",
        key=_ROWS,
        party=other,
    )
