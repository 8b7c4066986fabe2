"""What two holders tell each other of their edges across: which both have, and a symbol for each.

Every holder lists hashes of its edges with the other's nodes, each pair of nodes once. Both then know which of these
both have, in the same order, and send one byte for each: the symbol of the end that is the sender's node.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.graph.party import PartyGraph, pairs_once
from veilgraph.link.collectives import receive_as
from veilgraph.paradigms.sealed.inputs import padded
from veilgraph.paradigms.union.edge_lists import (
    Hashes,
    ListedEdges,
    find_hashes,
    is_node_of,
    listed_edges,
    name_hashes,
    node_names,
    receive_hashes,
    send_hashes,
)

SYMBOLS: Final = Tag(Kind.PERTURBED_LABELS)
NONE: Final = 255
"""The byte of a node that releases no symbol."""
MOST_CLASSES: Final = NONE

log = logging.getLogger("veilgraph")


@dataclass(frozen=True)
class Confirmed:
    """Edges with one other holder's nodes that both have, in the order of their hashes: nodes of the own graph."""

    own: Tensor  # int64 [E], the end that is this holder's node
    other: Tensor  # int64 [E], the end that is the other holder's


def pairs_across(graph: PartyGraph, ids: Sequence[str], holders: Sequence[PartyId]) -> Mapping[PartyId, Tensor]:
    """Other holder → pairs of an own node and one of that holder's, each once: int64 [2, E] of ``graph``.

    The first row is the end at the holder whose name comes first, the same at both.
    """
    own, names = graph.common, node_names(graph, ids)
    edges = graph.edge_index[:, (graph.edge_index < own).sum(0) == 1]
    pairs = torch.stack([edges.min(0).values, edges.max(0).values])  # own nodes come first
    pairs, _ = pairs_once(pairs)
    found = {}
    for other in holders:
        if other == graph.party:
            continue
        theirs = torch.cat([torch.zeros(own, dtype=torch.bool), is_node_of(other, names[own:])])
        kept = pairs[:, theirs[pairs[1]]]
        found[other] = kept if graph.party < other else kept.flip(0)
    return found


def confirm_edges(
    link: Link,
    session: str,
    graph: PartyGraph,
    ids: Sequence[str],
    holders: Sequence[PartyId],
    most: Mapping[PartyId, int],
    secrets: SecretSource,
) -> dict[PartyId, Confirmed]:
    """Run one holder's side of the comparison of edges; other holder → the edges that both have.

    ``session`` is the salt of hashes, ``most`` the longest list that each other holder may send. Raises
    ``ProtocolError``: a longer one.
    """
    mine = list_pairs(graph, ids, holders, session)
    for other, own in mine.items():
        send_hashes(link, other, own.hashes, padded(len(own.hashes)) - len(own.hashes), secrets)
    found = {}
    for other, own in mine.items():
        listed = receive_hashes(link, other)
        if len(listed) > most[other]:
            raise ProtocolError(
                f"{other} listed {len(listed):,} edges, and stated {most[other]:,} in its hello; ask {other} what it "
                "runs",
                code="edges",
                value=len(listed),
                party=other,
            )
        found[other] = confirmed_of(own, listed)
        if missing := len(own.own) - len(found[other].own):
            log.warning(
                "%s: %s lacks %d of the %d pairs of accounts between them: left out",
                link.party,
                other,
                missing,
                len(own.own),
            )
    return found


def list_pairs(
    graph: PartyGraph, ids: Sequence[str], holders: Sequence[PartyId], session: str
) -> dict[PartyId, ListedEdges]:
    """Other holder → what this one lists to it of ``pairs_across``, in a session of that name."""
    names = node_names(graph, ids)
    nodes = name_hashes(names, session)
    return {
        other: listed_edges(pairs, graph.common, names, nodes, other, session)
        for other, pairs in pairs_across(graph, ids, holders).items()
    }


def confirmed_of(own: ListedEdges, listed: Hashes) -> Confirmed:
    """Return a holder's ``own`` edges that the other listed as well, hashes [n]."""
    kept = torch.from_numpy(find_hashes(own.hashes, listed) >= 0)
    return Confirmed(own.own[kept], own.other[kept])


def most_listed(pairs: Mapping[PartyId, Tensor]) -> int:
    """Return the most entries that a holder lists to one other, as it states them in its hello."""
    return max((padded(each.shape[1]) for each in pairs.values()), default=0)


def exchange_symbols(
    link: Link, confirmed: Mapping[PartyId, Confirmed], symbols: Tensor, classes: int, *, all_answer: bool
) -> Tensor:
    """Send a byte for each confirmed edge, and count the others': float64 [n, C], of n own nodes.

    ``symbols`` are uint8 [n], ``NONE`` of a node that releases none. Raises ``ProtocolError``: another sent a byte that
    is no symbol, two different ones for one node, or not one for each edge.
    """
    for other, edges in confirmed.items():
        link.send(other, SYMBOLS, symbols[edges.own])
    counts = torch.zeros((len(symbols), classes), dtype=torch.float64)
    for other, edges in confirmed.items():
        told = receive_as(link, other, SYMBOLS, (len(edges.own),), torch.uint8)
        check_symbols_of(other, told, edges.other, classes, all_answer=all_answer)
        counts += counted(told, edges.own, len(symbols), classes)
    return counts


def counted(told: Tensor, own: Tensor, nodes: int, classes: int) -> Tensor:
    """Count symbols, uint8 [E], at the nodes ``own``, int64 [E]: float64 [nodes, classes]; ``NONE`` counts nowhere."""
    known = told != NONE
    places = own[known] * classes + told[known].long()
    return torch.bincount(places, minlength=nodes * classes).double().reshape(nodes, classes)


def check_symbols_of(other: PartyId, told: Tensor, nodes: Tensor, classes: int, *, all_answer: bool) -> None:
    """Hold another holder's symbols, uint8 [E] of its ``nodes``, to what a job allows, or raise ``ProtocolError``."""
    is_symbol = told < classes
    if not all_answer:
        is_symbol |= told == NONE
    if not bool(is_symbol.all()):
        wrong = int(told[~is_symbol][0])
        raise _invalid(other, f"the byte {wrong} as a symbol of {classes} classes", wrong)
    order = torch.argsort(nodes, stable=True)
    same = nodes[order][1:] == nodes[order][:-1]
    if bool((same & (told[order][1:] != told[order][:-1])).any()):
        raise _invalid(other, "two different symbols of one node, and a node has one", None)


def _invalid(other: PartyId, what: str, value: int | None) -> ProtocolError:
    return ProtocolError(
        f"{other} sent {what}; ask {other} what it runs", code="symbols", key=SYMBOLS, value=value, party=other
    )
