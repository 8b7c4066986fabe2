"""What two nodes' rows say about a link between them: distances, pairwise operations, entropies.

Pure functions on arrays. Rows are taken in blocks, so that memory does not grow with the number of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, softmax

from veilgraph.audit.attacks.pairs import Pairs
from veilgraph.core.errors import ConfigError, DataError

Floats = NDArray[np.float64]
Numbers = NDArray[np.floating | np.integer]
RowFunction = Callable[[Floats, Floats], Floats]
"""Two arrays [M, W] to one [M] or [M, W], row by row."""

BLOCK = 1 << 20
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class NodeRows:
    """What an adversary has of one graph's nodes.

    Attributes:
        outputs: [N, C], what the model gives out: posteriors, or logits or embeddings.
        attributes: [N, F], the nodes' own attributes (knowledge F of He et al.).
        reference: [N, C'], what a model that saw no edges gives out on the attributes.

    Raises:
        DataError: an array is no matrix, has no rows or columns, values that are not finite, or other rows.
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


def _correlation(first: Floats, second: Floats) -> Floats:
    return _cosine(_centred(first), _centred(second))


def _squared_euclidean(first: Floats, second: Floats) -> Floats:
    return np.asarray(np.square(first - second).sum(axis=1))


def _euclidean(first: Floats, second: Floats) -> Floats:
    return np.sqrt(_squared_euclidean(first, second))


def _chebyshev(first: Floats, second: Floats) -> Floats:
    return np.asarray(np.abs(first - second).max(axis=1))


def _manhattan(first: Floats, second: Floats) -> Floats:
    return np.asarray(np.abs(first - second).sum(axis=1))


def _quotient(above: Floats, below: Floats) -> Floats:
    """0 where both are 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _bray_curtis(first: Floats, second: Floats) -> Floats:
    return _quotient(_manhattan(first, second), np.abs(first + second).sum(axis=1))


def _canberra(first: Floats, second: Floats) -> Floats:
    return np.asarray(_quotient(np.abs(first - second), np.abs(first) + np.abs(second)).sum(axis=1))


DISTANCES: dict[str, RowFunction] = {
    "cosine": _cosine,
    "euclidean": _euclidean,
    "correlation": _correlation,
    "chebyshev": _chebyshev,
    "bray-curtis": _bray_curtis,
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


def _blocks(count: int, width: int) -> Iterator[slice]:
    step = max(1, BLOCK // width)
    return (slice(start, start + step) for start in range(0, count, step))


def _gather(rows: Numbers, pairs: Pairs, functions: list[RowFunction]) -> Floats:
    """Results side by side, [M, sum of their widths]."""
    pieces = []
    for block in _blocks(len(pairs), rows.shape[1]):
        first, second = (rows[pairs[block, end]].astype(np.float64) for end in (0, 1))
        columns = [function(first, second) for function in functions]
        pieces.append(np.column_stack(columns))
    return np.concatenate(pieces)


def pair_distances(rows: Numbers, pairs: Pairs, distance: str) -> Floats:
    """Distances between two nodes' rows.

    Args:
        rows: [N, W].
        pairs: [M, 2] node numbers.
        distance: of ``DISTANCES``.

    Returns:
        [M] float64, at least 0.

    Raises:
        ConfigError: an unknown distance.
    """
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

    Args:
        nodes: of the pairs' graph.
        pairs: [M, 2] node numbers.
        same_width: True where training pairs and attacked pairs are of one graph.

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
