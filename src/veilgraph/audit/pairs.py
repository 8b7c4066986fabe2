"""Pairs of nodes, and what two nodes' rows say about a link between them: distances, pairwise operations, entropies.

Pure functions on arrays. Rows are taken in blocks, so that memory does not grow with the number of pairs.

Functions on arrays raise ``DataError`` where arrays do not fit each other or are not finite, and ``ConfigError`` where
another argument is out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, softmax

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.protocol.view import Floats

Numbers = NDArray[np.floating | np.integer]
Pairs = NDArray[np.int64]
"""Two nodes a row, [M, 2]."""
RowFunction = Callable[[Floats, Floats], Floats]
"""Two arrays [M, W] to one [M] or [M, W], row by row."""

BLOCK = 1 << 20
_PAIRS_A_TIME = 10_000
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class KnownPairs:
    """Pairs of nodes and whether they are linked.

    Attributes:
        pairs: [M, 2] int64 node numbers.
        truth: [M] bool, True = linked.
    """

    pairs: Pairs
    truth: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if self.truth.dtype != np.bool_ or self.truth.shape != (len(self.pairs),):
            raise DataError(
                f"truth: {self.truth.dtype} {self.truth.shape} for {len(self.pairs)} pairs; give one bool per pair"
            )

    def split(self, share: float, seed: int) -> tuple[KnownPairs, KnownPairs]:
        """The part that an adversary knows, and the rest: ``share`` of the links and of the others, at random."""
        if not 0 < share < 1:
            raise ConfigError(f"share={share!r} must lie strictly between 0 and 1; He et al. take 0.1 to 0.9")
        random = np.random.default_rng(seed)
        known = np.zeros(len(self.truth), dtype=np.bool_)
        for value in (True, False):
            places = np.flatnonzero(self.truth == value)
            known[random.choice(places, size=round(share * len(places)), replace=False)] = True
        return KnownPairs(self.pairs[known], self.truth[known]), KnownPairs(self.pairs[~known], self.truth[~known])


def check_pairs(pairs: Pairs, num_nodes: int) -> Pairs:
    """Pairs [M, 2] of nodes, as int64."""
    found = np.asarray(pairs)
    if found.ndim != 2 or found.shape[1] != 2 or not len(found) or not np.issubdtype(found.dtype, np.integer):
        raise DataError(f"pairs: have the shape {found.shape} and type {found.dtype}; give two node numbers a row")
    if found.min() < 0 or found.max() >= num_nodes:
        raise DataError(f"pairs: name nodes {found.min()} to {found.max()}; the graph has 0 to {num_nodes - 1}")
    if (found[:, 0] == found[:, 1]).any():
        raise DataError("pairs: hold a node and itself; leave such pairs out")
    return found.astype(np.int64)


def check_rows(name: str, rows: Numbers, count: int) -> Numbers:
    """An array [count, W] of finite numbers, as it is.

    Raises:
        DataError: it is something else.
    """
    found = np.asarray(rows)
    if found.ndim != 2 or not found.size:
        raise DataError(f"{name}: has the shape {found.shape}; give one row per node and at least one column")
    if len(found) != count:
        raise DataError(f"{name}: has {len(found)} rows for {count} nodes; give one row per node")
    if not np.isfinite(found).all():
        raise DataError(f"{name}: has values that are not finite; leave out the nodes they belong to")
    return found


def unit_columns(rows: Numbers) -> Floats:
    """Columns of mean 0 and standard deviation 1 over all nodes; constant ones become zero."""
    values = rows.astype(np.float64)
    spread = values.std(axis=0)
    spread[spread == 0] = 1
    return np.asarray((values - values.mean(axis=0)) / spread)


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

    def codes(some: Pairs) -> NDArray[np.int64]:
        return some[:, 0] * num_nodes + some[:, 1]

    linked = np.unique(codes(check_pairs(edges, num_nodes)))
    count = len(linked) if links is None else links
    excluded = linked
    if left_out is not None and left_out.shape[1]:
        excluded = np.union1d(linked, codes(np.sort(left_out.T[left_out[0] != left_out[1]], axis=1)))
    unlinked = num_nodes * (num_nodes - 1) // 2 - len(excluded)
    if not 1 <= count <= min(len(linked), unlinked):
        raise DataError(
            f"links={count} linked and as many other pairs are asked of a graph with {len(linked)} linked and "
            f"{unlinked} other pairs; ask for 1 to {min(len(linked), unlinked)}"
        )
    random = np.random.default_rng(seed)
    chosen = random.choice(linked, size=count, replace=False)
    others = np.empty(0, dtype=np.int64)
    while len(others) < count:
        drawn = codes(np.sort(random_pairs(num_nodes, 2 * count, random), axis=1))
        others = np.union1d(others, drawn[~np.isin(drawn, excluded)])
    both = np.concatenate([chosen, random.choice(others, size=count, replace=False)])
    order = random.permutation(2 * count)
    return KnownPairs(np.stack(np.divmod(both, num_nodes), axis=1)[order], order < count)


def random_pairs(num_nodes: int, count: int, random: np.random.Generator) -> Pairs:
    """[count, 2] node numbers, the two of each pair different; num_nodes ≥ 2."""
    first = random.integers(num_nodes, size=count)
    return np.stack([first, (first + random.integers(1, num_nodes, size=count)) % num_nodes], axis=1)


def alike_pairs(features: Numbers, count: int, *, share: float = 0.01, seed: int) -> KnownPairs:
    """``count`` random pairs of rows of ``features`` [N, F]; True are those whose inner product is among the largest.

    ``share`` of the pairs are True, or fewer where products are equal.
    """
    if count < 1 or not 0 < share < 1:
        raise ConfigError(
            f"share={share!r} must lie strictly between 0 and 1, and count={count!r} be at least 1; take 0.05"
        )
    rows = check_rows("features", features, len(features)).astype(np.float64)
    if len(rows) < 2:
        raise DataError("features: has a single row; a pair needs two")
    pairs = random_pairs(len(rows), count, np.random.default_rng(seed))
    products = pair_products(rows, pairs)
    return KnownPairs(pairs, products > np.quantile(products, 1 - share))


def pair_products(rows: Numbers, pairs: Pairs) -> Floats:
    """Inner products of the rows [N, F] of each pair, [M] float64."""
    parts = np.array_split(pairs, 1 + len(pairs) // _PAIRS_A_TIME)
    return np.concatenate([(rows[part[:, 0]].astype(np.float64) * rows[part[:, 1]]).sum(axis=1) for part in parts])


@dataclass(frozen=True, eq=False)
class NodeRows:
    """What an adversary has of one graph's nodes.

    Attributes:
        outputs: [N, C], what the model gives out: posteriors, or logits or embeddings.
        attributes: [N, F], the nodes' own attributes (knowledge F of He et al.).
        reference: [N, C'], what a model that saw no edges gives out on the attributes.
    """

    outputs: Numbers
    attributes: Numbers | None = None
    reference: Numbers | None = None

    def __post_init__(self) -> None:
        for name in ("outputs", "attributes", "reference"):
            rows = getattr(self, name)
            if rows is not None:
                object.__setattr__(self, name, check_rows(name, rows, len(self.outputs)))

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.outputs)


def _unit(rows: Floats) -> Floats:
    length: Floats = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)


def _centred(rows: Floats) -> Floats:
    """Less their mean; exactly zero where all values of a row are equal up to rounding."""
    less: Floats = rows - rows.mean(axis=1, keepdims=True)
    constant = np.abs(less).max(axis=1) <= _ROUNDING * np.abs(rows).max(axis=1)
    less[constant] = 0
    return less


def _cosine(first: Floats, second: Floats) -> Floats:
    # as half the squared distance of unit vectors: 1 - a·b loses all digits where rows are almost parallel
    return 0.5 * _squared_euclidean(_unit(first), _unit(second))


def _squared_euclidean(first: Floats, second: Floats) -> Floats:
    return np.asarray(np.square(first - second).sum(axis=1))


def _manhattan(first: Floats, second: Floats) -> Floats:
    return np.asarray(np.abs(first - second).sum(axis=1))


def _quotient(above: Floats, below: Floats) -> Floats:
    """0 where both are 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _canberra(first: Floats, second: Floats) -> Floats:
    return np.asarray(_quotient(np.abs(first - second), np.abs(first) + np.abs(second)).sum(axis=1))


DISTANCES: dict[str, RowFunction] = {
    "cosine": _cosine,
    "euclidean": lambda first, second: np.sqrt(_squared_euclidean(first, second)),
    "correlation": lambda first, second: _cosine(_centred(first), _centred(second)),
    "chebyshev": lambda first, second: np.asarray(np.abs(first - second).max(axis=1)),
    "bray-curtis": lambda first, second: _quotient(_manhattan(first, second), np.abs(first + second).sum(axis=1)),
    "canberra": _canberra,
    "manhattan": _manhattan,
    "squared-euclidean": _squared_euclidean,
}
"""The eight distances of He et al. 2021.

Where they are undefined: a zero row (for correlation, a constant one) is at 0 from another such row and at 1/2 from
any other in ``cosine`` and ``correlation``; 0/0 counts as 0 in ``bray-curtis`` and ``canberra``.
"""

OPERATIONS: dict[str, RowFunction] = {
    "average": lambda first, second: (first + second) / 2,
    "hadamard": lambda first, second: first * second,
    "weighted-l1": lambda first, second: np.abs(first - second),
    "weighted-l2": lambda first, second: np.square(first - second),
}
"""The four pairwise vector operations of He et al. 2021, element by element."""


def _gather(rows: Numbers, pairs: Pairs, functions: list[RowFunction]) -> Floats:
    """Results side by side, [M, sum of their widths]."""
    pieces, step = [], max(1, BLOCK // rows.shape[1])
    for start in range(0, len(pairs), step):
        first, second = (rows[pairs[start : start + step, end]].astype(np.float64) for end in (0, 1))
        pieces.append(np.column_stack([function(first, second) for function in functions]))
    return np.concatenate(pieces)


def pair_distances(rows: Numbers, pairs: Pairs, distance: str) -> Floats:
    """Distances between two nodes' rows [N, W], by name in ``DISTANCES``: [M] float64, at least 0."""
    if distance not in DISTANCES:
        raise ConfigError(f"distance={distance!r} is unknown; choose one of {', '.join(DISTANCES)}")
    return _gather(rows, pairs, [DISTANCES[distance]])[:, 0]


def entropies(rows: Numbers) -> Floats:
    """Shannon entropy of each row, in nats, [N, 1].

    Rows that are not probabilities (some value below 0, or a sum that is not 1) are taken as logits: the entropy is
    that of their softmax.
    """
    values = rows.astype(np.float64)
    if values.min() < 0 or np.abs(values.sum(axis=1) - 1).max() > 1e-3:
        values = softmax(values, axis=1)
    return np.asarray(entr(values).sum(axis=1, keepdims=True))


def pair_features(nodes: NodeRows, pairs: Pairs, *, same_width: bool) -> Floats:
    """The features of pairs for a supervised attack (He et al. 2021, section 4).

    Of the outputs and of the reference: eight distances, and four operations on the entropies. Of the attributes:
    eight distances. With ``same_width`` also four operations on the outputs and the reference themselves, whose number
    depends on the number of classes, so that they cannot be carried over from another graph.

    Returns:
        [M, K] float64; K = 12, 20 with attributes, 32 with a reference as well, and 4 (C + C') more with
        ``same_width``.
    """
    distances, operations = list(DISTANCES.values()), list(OPERATIONS.values())
    parts = []
    for rows in (nodes.outputs, nodes.reference):
        if rows is not None:
            parts.append(_gather(rows, pairs, distances + operations if same_width else distances))
            parts.append(_gather(entropies(rows), pairs, operations))
    if nodes.attributes is not None:
        parts.append(_gather(nodes.attributes, pairs, distances))
    return np.concatenate(parts, axis=1)
