"""Pairs of nodes, and what rows of two nodes say about a link between them: distances, operations, a classifier.

By He et al. 2021, "Stealing Links from Graph Neural Networks" (USENIX Security): an adversary has what a model gives
out for every node and wants to know which nodes are linked. The eight combinations of what it may know besides are in
``research.link_stealing``; an audit compares rows (their attack 0) or knows some pairs (3 and, with attributes, 6).

Rows are taken in blocks, so that memory does not grow with the number of pairs. Rows that are not finite, or too few,
are a ``DataError``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.sparse import csr_matrix
from scipy.special import entr, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from veilgraph.core.errors import DataError
from veilgraph.protocol.view import Floats

Numbers = NDArray[np.floating | np.integer]
Pairs = NDArray[np.int64]
"""Two nodes a row, [M, 2]."""
RowFunction = Callable[[Floats, Floats], Floats]
"""Two arrays [M, W] to one [M] or [M, W], row by row."""

_BLOCK: Final = 1 << 20
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class KnownPairs:
    """Pairs of nodes [M, 2] int64, and whether they are linked, [M] bool."""

    pairs: Pairs
    truth: NDArray[np.bool_]

    def split(self, share: float, seed: int) -> tuple[KnownPairs, KnownPairs]:
        """The part that an adversary knows, and the rest: ``share`` of the links and of the others, at random."""
        random = np.random.default_rng(seed)
        known = np.zeros(len(self.truth), dtype=np.bool_)
        for value in (True, False):
            places = np.flatnonzero(self.truth == value)
            known[random.choice(places, size=round(share * len(places)), replace=False)] = True
        return KnownPairs(self.pairs[known], self.truth[known]), KnownPairs(self.pairs[~known], self.truth[~known])


def check_rows(name: str, rows: Numbers, count: int) -> Numbers:
    """Return ``rows`` as they are; ``DataError`` unless they are [count, W], W ≥ 1, and finite."""
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

    Of ``edge_index`` [2, E] int64, direction, repetition and loops do not count; of ``left_out`` none is drawn as
    unlinked. ``links`` linked pairs, or all. Raises ``DataError``: too few links, or pairs without.
    """
    edges = edge_index.T[edge_index[0] != edge_index[1]]
    if not len(edges):
        raise DataError("edge_index: has no link between two different nodes; there is nothing to attack")
    linked = np.unique(pair_codes(edges, num_nodes))
    count = len(linked) if links is None else links
    excluded = linked
    if left_out is not None and left_out.shape[1]:
        excluded = np.union1d(linked, pair_codes(left_out.T[left_out[0] != left_out[1]], num_nodes))
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
        drawn = pair_codes(random_pairs(num_nodes, 2 * count, random), num_nodes)
        others = np.union1d(others, drawn[~np.isin(drawn, excluded)])
    both = np.concatenate([chosen, random.choice(others, size=count, replace=False)])
    order = random.permutation(2 * count)
    return KnownPairs(np.stack(np.divmod(both, num_nodes), axis=1)[order], order < count)


def pair_codes(pairs: Pairs, num_nodes: int) -> NDArray[np.int64]:
    """One number for each pair of nodes, [M], in either order."""
    ends = np.sort(pairs, axis=1)
    return np.asarray(ends[:, 0] * num_nodes + ends[:, 1])


def random_pairs(num_nodes: int, count: int, random: np.random.Generator) -> Pairs:
    """[count, 2] node numbers, the two of each pair different; num_nodes ≥ 2."""
    first = random.integers(num_nodes, size=count)
    return np.stack([first, (first + random.integers(1, num_nodes, size=count)) % num_nodes], axis=1)


def alike_pairs(features: Numbers, count: int, *, share: float = 0.01, seed: int) -> KnownPairs:
    """``count`` random pairs of rows [N, F]; True are the ``share`` or fewer of the largest inner products."""
    rows = check_rows("features", features, len(features)).astype(np.float64)
    if len(rows) < 2:
        raise DataError("features: has a single row; a pair needs two")
    pairs = random_pairs(len(rows), count, np.random.default_rng(seed))
    products = pair_products(rows, pairs)
    return KnownPairs(pairs, products > np.quantile(products, 1 - share))


def pair_products(rows: Numbers | csr_matrix, pairs: Pairs) -> Floats:
    """Inner products of the rows [N, F] of each pair, [M] float64."""
    found = []
    for part in np.array_split(pairs, 1 + len(pairs) // 10_000):
        first, second = rows[part[:, 0]].astype(np.float64), rows[part[:, 1]]
        products = first.multiply(second) if isinstance(first, csr_matrix) else first * second
        found.append(np.asarray(products.sum(axis=1)).ravel())
    return np.concatenate(found)


@dataclass(frozen=True, eq=False)
class NodeRows:
    """What an adversary has of N nodes: a model's ``outputs``, ``attributes``, and a ``reference``'s without edges."""

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
        """The number N of nodes."""
        return len(self.outputs)


def _unit_rows(rows: Floats) -> Floats:
    return _quotient(rows, np.broadcast_to(np.linalg.norm(rows, axis=1, keepdims=True), rows.shape))


def _centred_rows(rows: Floats) -> Floats:
    """Each row less its mean; exactly zero where all values of a row are equal up to rounding."""
    less: Floats = rows - rows.mean(axis=1, keepdims=True)
    constant = np.abs(less).max(axis=1) <= _ROUNDING * np.abs(rows).max(axis=1)
    less[constant] = 0
    return less


def _cosine_distance(first: Floats, second: Floats) -> Floats:
    # as half the squared distance of unit vectors: 1 - a·b loses all digits where rows are almost parallel
    return 0.5 * _squared_euclidean(_unit_rows(first), _unit_rows(second))


def _squared_euclidean(first: Floats, second: Floats) -> Floats:
    return np.asarray(np.square(first - second).sum(axis=1))


def _manhattan(first: Floats, second: Floats) -> Floats:
    return np.asarray(np.abs(first - second).sum(axis=1))


def _quotient(above: Floats, below: Floats) -> Floats:
    """``above / below``, element by element; 0 where ``below`` is 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


DISTANCES: dict[str, RowFunction] = {
    "cosine": _cosine_distance,
    "euclidean": lambda first, second: np.sqrt(_squared_euclidean(first, second)),
    "correlation": lambda first, second: _cosine_distance(_centred_rows(first), _centred_rows(second)),
    "chebyshev": lambda first, second: np.asarray(np.abs(first - second).max(axis=1)),
    "bray-curtis": lambda first, second: _quotient(_manhattan(first, second), np.abs(first + second).sum(axis=1)),
    "canberra": lambda first, second: np.asarray(
        _quotient(np.abs(first - second), np.abs(first) + np.abs(second)).sum(axis=1)
    ),
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
    """Apply functions to the two rows of each pair, in blocks: results side by side, [M, sum of their widths]."""
    pieces, step = [], max(1, _BLOCK // rows.shape[1])
    for start in range(0, len(pairs), step):
        first, second = (rows[pairs[start : start + step, end]].astype(np.float64) for end in (0, 1))
        pieces.append(np.column_stack([function(first, second) for function in functions]))
    return np.concatenate(pieces)


def pair_distances(rows: Numbers, pairs: Pairs, distance: str) -> Floats:
    """Distances between two nodes' rows [N, W], by name in ``DISTANCES``: [M] float64, at least 0."""
    return _gather(rows, pairs, [DISTANCES[distance]])[:, 0]


def entropies(rows: Numbers) -> Floats:
    """Shannon entropy of each row, in nats, [N, 1]; of rows that are no probabilities that of their softmax."""
    values = rows.astype(np.float64)
    if values.min() < 0 or np.abs(values.sum(axis=1) - 1).max() > 1e-3:
        values = softmax(values, axis=1)
    return np.asarray(entr(values).sum(axis=1, keepdims=True))


def pair_features(nodes: NodeRows, pairs: Pairs, *, same_width: bool) -> Floats:
    """The features of pairs for a supervised attack (He et al. 2021, section 4), [M, K].

    Of the outputs and of the reference: eight distances, and four operations on the entropies. Of the attributes: eight
    distances. With ``same_width`` also four operations on the outputs and the reference themselves, whose number
    depends on the number of classes, so that they cannot be carried over from another graph: K = 12, 20 with
    attributes, 32 with a reference as well, and 4 (C + C') more.
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


Classifier = Literal["mlp", "logistic"]

_MAKERS: dict[Classifier, Callable[[int], Any]] = {
    # two hidden layers and 50 epochs are He et al.'s; a penalty on weights is in the place of their dropout
    "mlp": lambda seed: MLPClassifier((32, 32), alpha=1.0, max_iter=50, random_state=seed),
    "logistic": lambda seed: LogisticRegression(max_iter=1000),
}


def train_classifier(
    classifier: Classifier, features: Floats, truth: NDArray[np.bool_], *, seed: int
) -> Callable[[Floats], Floats]:
    """Train an attack model on features [M, K] of about unit scale; return features [T, K] → log-odds of True [T]."""
    positives = int(np.count_nonzero(truth))
    if positives in (0, len(truth)):
        raise DataError(f"truth: has {positives} positives among {len(truth)} known targets; give some of both")
    model = fit_quietly(_MAKERS[classifier](seed), features, np.asarray(truth, dtype=np.bool_))
    tiny = np.finfo(np.float64).tiny

    def log_odds(others: Floats) -> Floats:
        probabilities = model.predict_proba(others)
        return np.asarray(np.log(probabilities[:, 1] + tiny) - np.log(probabilities[:, 0] + tiny))

    return log_odds


def fit_quietly(model: Any, features: Floats, truth: NDArray[Any]) -> Any:  # noqa: ANN401 - scikit-learn has no types
    """Fit a scikit-learn model and return it; the warning that it has not converged is silenced."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(features, truth)


def nonnegative(columns: Floats, values: Floats, penalty: float) -> Floats:
    """Weights [n] ≥ 0 with columns [d, n]·weights ≈ values [d] and a penalised sum; zeros if the solver fails."""
    count = columns.shape[1]
    equations = np.vstack([columns, np.full((1, count), penalty)])
    try:
        return np.asarray(nnls(equations, np.append(values, 0.0), maxiter=50 * count)[0])
    except RuntimeError:
        return np.zeros(count)


PAIRS_A_TIME = 50_000
_FAR: Final = 10.0


def learned_links(nodes: NodeRows, known: KnownPairs, pairs: Pairs, *, seed: int) -> Floats:
    """Link scores of pairs [M], by a classifier of ``known`` ones of the same graph (He et al. 2021, attacks 3, 6)."""
    describe = describer(nodes, same_width=True)
    return in_parts(train_classifier("mlp", describe(known.pairs), known.truth, seed=seed), describe, pairs)


def in_parts(score: Callable[[Floats], Floats], describe: Callable[[Pairs], Floats], pairs: Pairs) -> Floats:
    """Apply ``score`` to the features of pairs [M, 2], so many at a time that memory stays bounded: [M]."""
    parts = range(0, len(pairs), PAIRS_A_TIME)
    return np.concatenate([score(describe(pairs[start : start + PAIRS_A_TIME])) for start in parts])


def describer(nodes: NodeRows, *, same_width: bool) -> Callable[[Pairs], Floats]:
    """Pairs → their features, in standard deviations from random pairs of the same graph.

    Nearly all random pairs are unlinked, in any graph, and every adversary can draw them. So two graphs are put on one
    scale without anybody's links, which is what lets a classifier of a shadow graph serve the target.
    """
    background = random_pairs(nodes.num_nodes, 4000, np.random.default_rng(0))
    usual = pair_features(nodes, background, same_width=same_width)
    mean, spread = usual.mean(axis=0), usual.std(axis=0)
    spread[spread == 0] = 1

    def describe(pairs: Pairs) -> Floats:
        standardised = (pair_features(nodes, pairs, same_width=same_width) - mean) / spread
        return np.asarray(np.clip(standardised, -_FAR, _FAR))

    return describe
