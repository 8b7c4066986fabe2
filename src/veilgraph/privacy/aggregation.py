"""Edges and neighbours of private releases: bounds on a node's neighbours, and sums over them with noise in every hop.

``NoisySums`` are sums of neighbours' rows of length 1, each with Gaussian noise of its own (GAP).

What that costs is said in ``plan``; here it is made exact. Rows, and what each gives to a sum, are multiples of
the noise's grid, so that two sums which differ in one term differ by exactly that term:
docs/proofs.md#sums-that-are-exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.secrets import SecretSource
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.event import Unit, check_whole
from veilgraph.privacy.mechanism import Mechanism, clip_to_grid
from veilgraph.privacy.settings import PrivacySettings

MOST_NODES: Final = 1 << 31  # two node numbers must fit one int64


@torch.no_grad()
def bound_degrees(edge_index: Tensor, num_nodes: int, bound: int) -> Tensor:
    """Which edges of int64 [2, E], E bool, stay, so that no node has more than D neighbours and one edge changes few.

    A *pair* is everything that is recorded between two different nodes, of N ≤ 2^31. All pairs have one public order
    that depends on their two node numbers alone, and a pair is kept iff it is among the first D pairs at both its
    nodes. So at most three pairs differ where one is added or removed: docs/proofs.md#edges-that-stay.
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
    """Return why a job's δ protects none of the units of a holder; rows are for ``limits.delta_too_large``."""
    if privacy is None or privacy.unit == "row" or privacy.noise_multiplier == 0:
        return ""
    return delta_of_too_many(privacy.delta_of(graph.common), privacy.unit, graph, "privacy.delta")


def delta_of_too_many(delta: float, unit: Unit, graph: PartyGraph, key: str) -> str:
    """Return why δ, of the setting ``key``, protects none of a holder's units: fewer than 1/δ of them; else empty.

    Edges are pairs of nodes. Jobs of one δ after another would find their number to the last edge: it is counted in
    powers of two. Nodes that are not common count: releases depend on their features.
    """
    most = 2 * graph.num_edges if unit == "edge" else graph.num_nodes
    if unit == "edge" and delta * most >= 1:
        low, high = graph.edge_index.aminmax(dim=0)
        pairs = len(torch.unique(low << 32 | high))
        most = 1 << (pairs - 1).bit_length() if pairs else 0
    if delta * most < 1:
        return ""
    what = "pairs of nodes with an edge" if unit == "edge" else "nodes, with those that are not common,"
    return (
        f"{key}={delta:g} is too much for a table of so many {what}: where δ is 1 over their number, one can "
        f"be published as it is within any ε; set {key} well below that"
    )


def too_many_neighbours(rule: tuple[str, int | None] | None, graph: PartyGraph) -> str:
    """Return why a graph breaks the ``rule``, of ``InputRules.degree_rules``, of an ε of nodes with edges; or ""."""
    if rule is None or rule[1] is None or most_neighbours(graph.edge_index, graph.num_nodes) <= rule[1]:
        return ""
    return (
        f"a node of its graph has more than {rule[0]}={rule[1]} neighbours, and no edge can be left out without "
        "touching other nodes: raise degree_bound, or have the edges exported with fewer at a node, a choice that no ε "
        "covers"
    )


# Rows of the next hop, Tensor[N, d], of the sums that were released before, Tensor[N, k·d], and of nothing else that
# is private.
Then = Callable[[Tensor], Tensor]

_COPIES: Final = 2.0**32  # of the weight of one copy of a pair, a 1 is so many
_LARGEST_WHOLE: Final = 2.0**52
_FREE_CELL: Final = 2.0**-40  # of rows in a release without noise, which protects nothing


def pair_matrix(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> sp.csr_array:
    """A of ``plan``, [N, N] CSR float64: what is recorded from one node to another, as one weight of at most 1.

    Entry (target, source) sums copies of an edge, each to 2^-32, by ``edge_weight`` ≥ 0 or 1. Self-loops are left out.
    """
    source, target = edge_index.numpy()
    weight = np.ones(len(source)) if edge_weight is None else edge_weight.double().numpy()
    weight = np.floor(np.minimum(weight, 1.0) * _COPIES) / _COPIES
    between = source != target
    matrix = sp.coo_array((weight[between], (target[between], source[between])), (num_nodes, num_nodes)).tocsr()
    matrix.data = np.minimum(matrix.data, 1.0)
    return matrix


def most_neighbours(edge_index: Tensor, num_nodes: int) -> int:
    """The most nodes that any node has an edge with, to it or from it, itself not counted."""
    between = edge_index[:, edge_index[0] != edge_index[1]]
    low, high = between.aminmax(dim=0)
    pairs = torch.unique(torch.stack([low, high]), dim=1)
    return int(torch.bincount(pairs.flatten(), minlength=max(1, num_nodes)).max())


class NoisySums:
    """A holder's release with noise in every hop, over ``pairs`` of ``pair_matrix``, [N, N].

    ``mechanism``: Gaussian noise over a clip of 1; None for none. ``sum_clip``: B; None: sums are as long as they are.
    ``own_length``: λ of ``plan``; 0: own rows are not released. Raises ``ConfigError`` where there is so little noise
    that sums of N rows on its grid are not exact.
    """

    def __init__(
        self,
        pairs: sp.csr_array,
        hops: int,
        mechanism: Mechanism | None,
        sum_clip: float | None,
        own_length: float = 1.0,
    ) -> None:
        self._own_length = own_length
        self._hops, self._mechanism, self._sum_clip = hops, mechanism, sum_clip
        entries = pairs.tocoo()
        whole = entries.data == 1.0
        places = entries.row[whole], entries.col[whole]
        self._whole = sp.coo_array((entries.data[whole], places), pairs.shape).tocsr()
        self._target, self._source, self._weight = entries.row[~whole], entries.col[~whole], entries.data[~whole]
        self._cell = _FREE_CELL if mechanism is None else mechanism.cell
        if mechanism is not None and pairs.shape[0] / self._cell > _LARGEST_WHOLE:
            deviation = math.sqrt(mechanism.variance)
            raise ConfigError(
                f"privacy.noise_multiplier={deviation:.3g}: too little noise for sums of up to {pairs.shape[0]} rows "
                f"to be exact; take at least {2 * pairs.shape[0] / _LARGEST_WHOLE * 2**20:.3g}, or a smaller ε"
            )

    def release(self, rows: Tensor, source: SecretSource, then: Then | None = None) -> Tensor:
        """Y_0, or where own rows are not released Y_1, …, Y_K side by side: float64, multiples of the noise's grid.

        ``rows`` are Tensor[N, d], each made of one node's features; ``then`` makes X_k of Y_1, …, Y_k, else it is Y_k.
        Raises ``RangeOverflow`` where an entry is not finite.
        """
        released = [self._noised(self._scaled(rows, self._own_length), source)] if self._own_length else []
        own = len(released)
        for hop in range(self._hops):
            before = self._of_length_1(rows) if hop == 0 else self._next(released[own:], then)
            released.append(self._noised(self._summed(before), source))
        return torch.cat(released, dim=1)

    def clean(self, rows: Tensor, released: Tensor, then: Then | None = None) -> Tensor:
        """What the noise was added to: Tensor[C, w] float64, right at nodes without neighbours beyond the first C.

        ``released`` is Tensor[C, w], as ``release`` gave them; with ``then`` of all nodes, C = N.
        """
        count, width = len(released), rows.shape[1]
        first = self._of_length_1(rows)
        found, before = [self._scaled(rows, self._own_length)[:count]] if self._own_length else [], first
        blocks, own = torch.split(released, width, dim=1), len(found)
        for hop in range(own, len(blocks)):
            found.append(self._summed(before)[:count])
            before = torch.zeros_like(first)
            before[:count] = self._next(blocks[own : hop + 1], then)
        return torch.cat(found, dim=1)

    def _next(self, released: Sequence[Tensor], then: Then | None) -> Tensor:
        made = released[-1] if then is None else then(torch.cat(list(released), dim=1))
        return self._of_length_1(made)

    def _noised(self, values: Tensor, source: SecretSource) -> Tensor:
        return values if self._mechanism is None else values + self._mechanism.draw(tuple(values.shape), source)

    def _of_length_1(self, rows: Tensor) -> Tensor:
        """Rows scaled to length 1, less the slack s where sums are shortened, on the grid; zero rows stay zero."""
        slack = 0.0
        if self._sum_clip is not None:
            slack = 2 * math.sqrt(rows.shape[1]) * self._cell + math.ldexp(self._sum_clip, -30)
        return self._scaled(rows, max(0.0, 1.0 - slack))

    def _scaled(self, rows: Tensor, length: float) -> Tensor:
        rows = rows.double()
        if length == 0:
            return torch.zeros_like(rows)
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        scaled = torch.where(lengths == 0, 0.0, 2 * length * rows / lengths)  # longer than the clip, which shortens it
        return clip_to_grid(scaled, length, 2, self._cell)

    def _summed(self, rows: Tensor) -> Tensor:
        values = rows.numpy()
        sums = self._whole @ values
        for column in range(values.shape[1] if len(self._weight) else 0):
            given = np.trunc(self._weight * values[self._source, column] / self._cell) * self._cell
            sums[:, column] += np.bincount(self._target, given, len(sums))
        found = torch.from_numpy(sums)
        return found if self._sum_clip is None else clip_to_grid(found, self._sum_clip, 2, self._cell)
