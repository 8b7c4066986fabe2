"""Bounds on a node's neighbours, and on δ, for releases with an ε of nodes or edges."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.event import Unit, check_whole
from veilgraph.privacy.settings import PrivacySettings

MOST_NODES: Final = 1 << 31  # two node numbers must fit one int64


@torch.no_grad()
def bound_degrees(edge_index: Tensor, num_nodes: int, bound: int) -> Tensor:
    """Which edges of int64 [2, E], E bool, stay, so that no node has more than D neighbours and one edge changes few.

    A *pair* is everything that is recorded between two different nodes, of N ≤ 2^31. All pairs have one public order
    that depends on their two node numbers alone, and a pair is kept iff it is among the first D pairs at both its
    nodes. So at most three pairs differ where one is added or removed: docs/explanation/proofs.md#edges-that-stay.
    """
    check_whole("degree_bound", bound, 1)
    if num_nodes > MOST_NODES:
        raise DataError(f"num_nodes={num_nodes} is above {MOST_NODES}, the most for a degree bound; split the graph")
    keep = edge_index[0] == edge_index[1]
    between = ~keep
    low, high = edge_index[:, between].aminmax(dim=0)
    order, pair = torch.unique(_order(low, high), return_inverse=True)
    pairs = torch.empty(len(order), 2, dtype=torch.int64)
    pairs[pair, 0], pairs[pair, 1] = low, high
    keep[between] = (_ranks(pairs.flatten(), num_nodes).view(-1, 2) < bound).all(dim=1)[pair]
    return keep


def _order(low: Tensor, high: Tensor) -> Tensor:
    """A pair's place in the public order, by the finaliser of splitmix64 (Steele, Lea & Flood 2014), a bijection."""
    z: NDArray[np.uint64] = (low << 32 | high).numpy().view(np.uint64)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return torch.from_numpy(z.view(np.int64))


def _ranks(nodes: Tensor, num_nodes: int) -> Tensor:
    """How often each entry's node occurs before it: Tensor[M] to Tensor[M] int64."""
    counts = torch.bincount(nodes, minlength=num_nodes)
    by_node = torch.argsort(nodes, stable=True)
    ranks = torch.empty_like(nodes)
    ranks[by_node] = torch.arange(len(nodes)) - (counts.cumsum(0) - counts)[nodes[by_node]]
    return ranks


def too_many_units(privacy: PrivacySettings | None, graph: PartyGraph) -> str:
    """Return why a job's δ protects none of a holder's units among the common nodes; else empty."""
    if privacy is None:
        return ""
    return delta_of_too_many(privacy.delta_of(graph.common), privacy.unit, graph.common_part(), "privacy.delta")


def delta_of_too_many(delta: float, unit: Unit, graph: PartyGraph, key: str) -> str:
    """Return why δ, of the setting ``key``, protects none of a holder's units: fewer than 1/δ of them; else empty.

    Edges are pairs of nodes. Jobs of one δ after another would find their number to the last edge: it is counted in
    powers of two. Nodes that are not common count: releases depend on their features.
    """
    most = 2 * graph.num_edges if unit == "edge" else graph.num_nodes
    if unit == "edge" and delta * most >= 1:
        low, high = graph.edge_index.aminmax(dim=0)
        most = rounded_pairs(len(torch.unique(low << 32 | high)))
    return delta_of_so_many(delta, unit, most, key)


def delta_of_so_many(delta: float, unit: Unit, most: int, key: str) -> str:
    """``delta_of_too_many`` where the number of units is known."""
    if delta * most < 1:
        return ""
    what = "pairs of nodes with an edge" if unit == "edge" else "nodes (those that are not common count too)"
    return (
        f"{key}={delta:g} is too much for a table of so many {what}: where δ is 1 over their number, one can "
        f"be published as it is within any ε; set {key} well below that"
    )


def rounded_pairs(pairs: int) -> int:
    """A number of pairs of nodes rounded up to a power of two, so that refusals do not tell it to the last edge."""
    return 1 << (pairs - 1).bit_length() if pairs else 0


def too_many_neighbours(rule: tuple[str, int | None] | None, graph: PartyGraph) -> str:
    """Return why a graph breaks the ``rule``, of ``InputRules.degree_rules``, of an ε of nodes with edges; or ""."""
    if rule is None or rule[1] is None or most_neighbours(graph.edge_index, graph.num_nodes) <= rule[1]:
        return ""
    return (
        f"a node of its graph has more than {rule[0]}={rule[1]} neighbours, and no edge can be left out without "
        "touching other nodes: raise degree_bound, or have the edges exported with fewer at a node, a choice that no ε "
        "covers"
    )


def most_neighbours(edge_index: Tensor, num_nodes: int) -> int:
    """The most nodes that any node has an edge with, to it or from it, itself not counted."""
    between = edge_index[:, edge_index[0] != edge_index[1]]
    low, high = between.aminmax(dim=0)
    pairs = torch.unique(torch.stack([low, high]), dim=1)
    return int(torch.bincount(pairs.flatten(), minlength=max(1, num_nodes)).max())
