"""Pairs of nodes whose link an adversary knows, or is asked about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilgraph.core.errors import ConfigError, DataError

Pairs = NDArray[np.int64]
"""Two nodes a row, [M, 2]."""


@dataclass(frozen=True, eq=False)
class KnownPairs:
    """Pairs of nodes and whether they are linked.

    Attributes:
        pairs: [M, 2] int64 node numbers.
        truth: [M] bool, True = linked.

    Raises:
        DataError: the two do not fit each other.
    """

    pairs: Pairs
    truth: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if self.truth.dtype != np.bool_ or self.truth.shape != (len(self.pairs),):
            raise DataError(
                f"truth: {self.truth.dtype} {self.truth.shape} for {len(self.pairs)} pairs; give one bool per pair"
            )

    def split(self, share: float, seed: int) -> tuple[KnownPairs, KnownPairs]:
        """The part that an adversary knows, and the rest: ``share`` of the links and of the others, at random.

        Raises:
            ConfigError: ``share`` is not strictly between 0 and 1.
        """
        if not 0 < share < 1:
            raise ConfigError(f"share={share!r} must lie strictly between 0 and 1; He et al. take 0.1 to 0.9")
        random = np.random.default_rng(seed)
        known = np.zeros(len(self.truth), dtype=np.bool_)
        for value in (True, False):
            places = np.flatnonzero(self.truth == value)
            known[random.choice(places, size=round(share * len(places)), replace=False)] = True
        return KnownPairs(self.pairs[known], self.truth[known]), KnownPairs(self.pairs[~known], self.truth[~known])


def check_pairs(pairs: Pairs, num_nodes: int) -> Pairs:
    """Pairs [M, 2] of nodes, as int64.

    Raises:
        DataError: there are none, or they are no pairs of two different nodes of the graph.
    """
    found = np.asarray(pairs)
    if found.ndim != 2 or found.shape[1] != 2 or not len(found) or not np.issubdtype(found.dtype, np.integer):
        raise DataError(f"pairs: have the shape {found.shape} and type {found.dtype}; give two node numbers a row")
    if found.min() < 0 or found.max() >= num_nodes:
        raise DataError(f"pairs: name nodes {found.min()} to {found.max()}; the graph has 0 to {num_nodes - 1}")
    if (found[:, 0] == found[:, 1]).any():
        raise DataError("pairs: hold a node and itself; leave such pairs out")
    return found.astype(np.int64)


def sample_pairs(
    edge_index: NDArray[np.int64],
    num_nodes: int,
    *,
    seed: int,
    links: int | None = None,
    left_out: NDArray[np.int64] | None = None,
) -> KnownPairs:
    """As many linked as unlinked pairs, all different, each pair once, in random order.

    Args:
        edge_index: [2, E] int64; direction, repetition and loops do not count.
        num_nodes: N.
        seed: fixes the draw.
        links: how many linked pairs; None takes all.
        left_out: [2, E'] int64 as ``edge_index``; these pairs are not drawn as unlinked ones.

    Raises:
        DataError: the graph has too few links, or too few pairs that are not linked.
    """
    edges = np.sort(edge_index.T[edge_index[0] != edge_index[1]], axis=1)
    if not len(edges):
        raise DataError("edge_index: has no link between two different nodes; there is nothing to attack")
    linked = np.unique(_codes(check_pairs(edges, num_nodes), num_nodes))
    count = len(linked) if links is None else links
    excluded = linked
    if left_out is not None and left_out.shape[1]:
        excluded = np.union1d(linked, _codes(np.sort(left_out.T[left_out[0] != left_out[1]], axis=1), num_nodes))
    unlinked = num_nodes * (num_nodes - 1) // 2 - len(excluded)
    if not 1 <= count <= min(len(linked), unlinked):
        raise DataError(
            f"links={count} linked and as many other pairs are asked of a graph with {len(linked)} linked and "
            f"{unlinked} other pairs; ask for 1 to {min(len(linked), unlinked)}"
        )
    random = np.random.default_rng(seed)
    chosen = random.choice(linked, size=count, replace=False)
    others = _unlinked(excluded, num_nodes, count, random)
    codes, order = np.concatenate([chosen, others]), random.permutation(2 * count)
    pairs = np.stack(np.divmod(codes, num_nodes), axis=1)
    return KnownPairs(pairs[order], order < count)


def _unlinked(linked: NDArray[np.int64], num_nodes: int, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Codes of ``count`` different pairs that are not linked."""
    found = np.empty(0, dtype=np.int64)
    while len(found) < count:
        drawn = np.sort(random_pairs(num_nodes, 2 * count, random), axis=1)
        codes = _codes(drawn, num_nodes)
        found = np.union1d(found, codes[~np.isin(codes, linked)])
    return random.choice(found, size=count, replace=False)


def random_pairs(num_nodes: int, count: int, random: np.random.Generator) -> Pairs:
    """[count, 2] node numbers, the two of each pair different; num_nodes ≥ 2."""
    first = random.integers(num_nodes, size=count)
    return np.stack([first, (first + random.integers(1, num_nodes, size=count)) % num_nodes], axis=1)


def _codes(pairs: Pairs, num_nodes: int) -> NDArray[np.int64]:
    return pairs[:, 0] * num_nodes + pairs[:, 1]
