"""Leaves edges out until no node has more than D neighbours, so that one edge more or less changes few.

A *pair* is everything that is recorded between two different nodes: both directions, and parallel entries. All pairs
have one public order that depends on their two node numbers alone. **A pair is kept iff it is among the first D pairs
at both its nodes**, counted over all pairs of the graph, kept or not.

So every node keeps at most D neighbours, and nothing is left out where no node has more. Since a pair's rank does not
depend on which others are kept, there is no cascade. If the pair {a, b} is added, then

- ranks change at a and b only, by one, and only of pairs later in the order: at each of the two at most one pair
  falls from the D-th place to the next, {a, c} and {b, d} say, and may be dropped;
- every other pair is kept as before.

At most three pairs are kept in one graph and not in the other: {a, b}, {a, c} and {b, d}. If {a, b} is not kept, for
it is too late in the order at b, nothing falls at b, so at most one other pair changes. Where {a, b} is in both graphs
and only what is recorded about it differs, no rank changes.

An edge from a node to itself is nobody's neighbour: it is always kept and displaces nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.aggregation import most_neighbours
from veilgraph.privacy.settings import PrivacySettings
from veilgraph.privacy.units import Unit

MOST_NODES: Final = 1 << 31
"""Two node numbers must fit one int64."""


@torch.no_grad()
def bound_degrees(edge_index: Tensor, num_nodes: int, bound: int) -> Tensor:
    """Which edges stay, so that no node has more than ``bound`` neighbours.

    The order of the edges does not matter: the mask is permuted with them. O(E log E) time, O(E) memory.

    Args:
        edge_index: Tensor[2, E] int64, node numbers below ``num_nodes``.
        num_nodes: N, at most 2^31.
        bound: D ≥ 1, most distinct neighbours of a node, whatever the directions.

    Returns:
        Tensor[E] bool: True for edges that are kept. All edges of a pair have the same value.

    Raises:
        ConfigError: ``bound`` is not a whole number of at least 1.
        DataError: too many nodes.
    """
    if not isinstance(bound, int) or isinstance(bound, bool) or bound < 1:
        raise ConfigError(f"degree_bound={bound!r} must be a whole number >= 1: the most neighbours that a node keeps")
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
    """A pair's place in the public order: an int64, different for different pairs.

    The finaliser of splitmix64 (Steele, Lea & Flood 2014), a bijection that treats no node's pairs better than
    another's, as an order by node number would.
    """
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
    """Return why a job's δ protects none of the units of a holder; rows are for ``limits.delta_too_large``."""
    if privacy is None or privacy.unit == "row" or privacy.noise_multiplier == 0:
        return ""
    return delta_of_too_many(privacy.delta_of(graph.common), privacy.unit, graph, "privacy.delta")


def delta_of_too_many(delta: float, unit: Unit, graph: PartyGraph, key: str) -> str:
    """Return why δ protects none of the units of a holder's ε; empty where it has fewer than 1/δ of them.

    Edges are pairs of nodes. Their number is known to nobody else, and jobs of one δ after another would find it, to
    the last edge: pairs are counted in powers of two.

    Args:
        delta: δ.
        unit: of the ε.
        graph: of a holder that releases; nodes that are not common count, since releases depend on their features.
        key: the setting of δ.
    """
    most = 2 * graph.num_edges if unit == "edge" else graph.num_nodes
    if delta * most < 1 or (unit == "edge" and delta * _in_powers_of_two(graph.edge_index) < 1):
        return ""
    what = "pairs of nodes with an edge" if unit == "edge" else "nodes, with those that are not common,"
    return (
        f"{key}={delta:g} is too much for a table of so many {what}: where δ is 1 over their number, one can "
        f"be published as it is within any ε; set {key} well below that"
    )


def _in_powers_of_two(edge_index: Tensor) -> int:
    """The least power of two that is no less than the number of pairs with an edge."""
    low, high = edge_index.aminmax(dim=0)
    pairs = len(torch.unique(low << 32 | high))
    return 1 << (pairs - 1).bit_length() if pairs else 0


def too_many_neighbours(rule: tuple[str, int] | None, graph: PartyGraph) -> str:
    """Return why a holder's graph breaks the rule that an ε of nodes with their edges rests on; empty if it does not.

    Args:
        rule: of the job, for the holder (``JobSettings.degree_rule``).
        graph: of a holder that releases.
    """
    if rule is None or most_neighbours(graph.edge_index, graph.num_nodes) <= rule[1]:
        return ""
    return (
        f"a node of its graph has more than {rule[0]}={rule[1]} neighbours, and no edge can be left out without "
        "touching other nodes: raise degree_bound, or have the edges exported with fewer at a node, a choice that no ε "
        "covers"
    )
