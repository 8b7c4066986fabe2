"""What a holder makes of the initial embeddings h^0 = X·W that a joint method opens to it at every step (VFGNN 3.2).

X [N, F] has all holders' features side by side; W is unknown. Two things follow from the opened values alone, whatever
the secure computation hides:

- *Span.* Every column of every h^0 is a combination of X's columns, so a few steps and the holder's own columns span
  them all. A private column that is known of some nodes is completed for the rest by ridge regression on that span.
- *Inner products.* W begins as independent draws of a known variance, so the first h^0 is a random projection and
  keeps the inner products X·X^T roughly. SGD then changes h^0 by −X·X^T·ΣB_j, where a holder knows its own B_j: a
  linear system for X·X^T with the other holders' parts as noise.

Where a holder knows its part x^i·W^i of h^0, as with ``secure-sum``, it gives these functions h^0 less that part.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, eigh

from veilgraph.audit.attacks.link_features import Floats, Numbers, check_rows
from veilgraph.audit.attacks.pairs import KnownPairs, Pairs, check_pairs, random_pairs
from veilgraph.core.errors import ConfigError, DataError

MAX_NODES = 5000
"""The most nodes that a matrix of all their inner products is estimated for."""
MAX_COLUMNS = 2048
"""The most columns of h^0 that a span is taken from; of a longer sequence, those of evenly spaced steps."""

_RIDGES = np.logspace(-12, 2, 29)
_ROUNDING = 1e-12
_PAIRS_A_TIME = 10_000


def sequence_basis(h0: Numbers, own: Numbers | None = None, *, tolerance: float = 1e-7, power: float = 0.5) -> Floats:
    """A basis of what opened embeddings, and the adversary's own features, span: U·S^power of their singular values.

    The first h^0, the change of each step, and the own features all count the same, whatever their scale.

    Args:
        h0: [T, N, d], opened one after the other.
        own: [N, F], the adversary's features.
        tolerance: directions of smaller singular values, as shares of the largest, are left out; 1e-5 for float32.
        power: 0 treats all directions alike; 1 trusts strong ones more, which suits features that many nodes have.

    Returns:
        [N, r] float64 with orthogonal columns, the strongest first.

    Raises:
        ConfigError: ``tolerance`` or ``power`` is out of range.
        DataError: arrays have the wrong shape, are not finite, or are zero throughout.
    """
    if not 1e-7 <= tolerance < 1:
        raise ConfigError(f"tolerance={tolerance!r} must be at least 1e-7, for rounding, and below 1; take 1e-7")
    if not 0 <= power <= 1:
        raise ConfigError(f"power={power!r} must lie from 0 to 1; take 0.5")
    sequence = _check_sequence("h0", h0)
    parts = [] if own is None else [check_rows("own", own, sequence.shape[1]).astype(np.float64)]
    scaled = [part / size for part in (*parts, *_changes(sequence)) if (size := np.linalg.norm(part)) > 0]
    if not scaled:
        raise DataError("h0: it and own are zero everywhere; there is nothing to span")
    values, vectors = _left_singular(np.concatenate(scaled, axis=1))
    kept = values > tolerance * values[0]
    return np.asarray(vectors[:, kept] * values[kept] ** power)


def complete_columns(
    basis: Numbers, columns: Numbers, known: NDArray[np.bool_], *, ridge: float | None = None
) -> Floats:
    """Completes private columns from their values at some nodes, by ridge regression on a basis.

    Args:
        basis: [N, r], for example of ``sequence_basis``; without the view, the adversary's own features.
        columns: [N, k]; their values at other than known nodes are not read.
        known: [N] bool, the nodes whose values the adversary knows.
        ridge: penalty, relative to the largest squared singular value of the known rows; None takes for each column
            the one of the smallest leave-one-out error on the known nodes.

    Returns:
        [N, k] float64, the fitted values of all nodes.

    Raises:
        ConfigError: ``ridge`` is not positive.
        DataError: arrays do not fit each other, or fewer than two nodes are known.
    """
    if ridge is not None and not 0 < ridge < np.inf:
        raise ConfigError(f"ridge={ridge!r} must be positive and finite; leave it out for the best on known nodes")
    rows = check_rows("basis", basis, len(basis)).astype(np.float64)
    if known.dtype != np.bool_ or known.shape != (len(rows),) or known.sum() < 2:
        raise DataError(f"known: {known.dtype} {known.shape}; give one of {len(rows)} bools a node, two or more True")
    if columns.ndim != 2 or len(columns) != len(rows):
        raise DataError(f"columns: has the shape {columns.shape} for {len(rows)} nodes; give one row per node")
    targets = check_rows("columns", columns[known], int(known.sum())).astype(np.float64)
    middle, mean = rows[known].mean(axis=0), targets.mean(axis=0)
    left, values, right = np.linalg.svd(rows[known] - middle, full_matrices=False)
    kept = values > _ROUNDING * values[0]
    left, squares, right = left[:, kept], np.square(values[kept] / values[0]), right[kept]
    ridges = _RIDGES if ridge is None else np.array([ridge])
    errors = [_left_out_error(left, squares, targets - mean, each) for each in ridges]
    chosen = ridges[np.argmin(errors, axis=0)]
    shrunk = (left.T @ targets) * (squares[:, None] / (squares[:, None] + chosen)) / values[kept, None]
    return np.asarray((rows - middle) @ (right.T @ shrunk) + mean)


def projected_gram(first: Numbers, weight_std: float) -> Floats:
    """Inner products of features from one random projection: h^0·h^0^T/(d·σ²), whose mean over W is X·X^T.

    Args:
        first: [N, d], h^0 of the initial W.
        weight_std: σ of its entries, known from the job.

    Returns:
        [N, N] float64; an entry's variance is (⟨x_u, x_u⟩⟨x_v, x_v⟩ + ⟨x_u, x_v⟩²)/d.

    Raises:
        ConfigError: ``weight_std`` is not positive.
        DataError: ``first`` is no matrix of finite numbers, or has more than ``MAX_NODES`` rows.
    """
    if not 0 < weight_std < np.inf:
        raise ConfigError(f"weight_std={weight_std!r} must be positive and finite; it is that of the initial W")
    rows = check_rows("first", first, _check_size(len(first))).astype(np.float64)
    return np.asarray(rows @ rows.T / (rows.shape[1] * weight_std**2))


def gram_estimate(h0: Numbers, updates: Numbers, *, ridge: float = 0.1, prior: Floats | None = None) -> Floats:
    """Inner products K = X·X^T from h^0_{t+1} − h^0_t = −K·B_t + noise, by ridge regression towards a prior.

    Steps count by the size of their change: the noise, other holders' updates, grows with it.

    Args:
        h0: [T + 1, N, d]; with weight decay, each divided by its scale c_t (``vertical.initial.collaborative``).
        updates: [T, N, d], B_t as far as the adversary knows it: η·momentum/c_{t+1} of its own gradients.
        ridge: penalty, relative to the mean squared singular value of the updates.
        prior: [N, N], where the penalty pulls to, such as ``projected_gram``; default: zero.

    Returns:
        [N, N] float64, symmetric.

    Raises:
        ConfigError: ``ridge`` is not positive.
        DataError: arrays do not fit each other, are not finite, or have more than ``MAX_NODES`` nodes; no update.
    """
    if not 0 < ridge < np.inf:
        raise ConfigError(f"ridge={ridge!r} must be positive and finite; take 0.1")
    sequence, known = _check_sequence("h0", h0), _check_sequence("updates", updates)
    steps, nodes, width = known.shape
    if sequence.shape != (steps + 1, nodes, width):
        raise DataError(f"h0: has the shape {sequence.shape} for updates {known.shape}; give one step more")
    guess = np.zeros((_check_size(nodes), nodes)) if prior is None else check_rows("prior", prior, nodes)
    if guess.shape != (nodes, nodes):
        raise DataError(f"prior: has the shape {guess.shape} for {nodes} nodes; give an inner product for each two")
    squares, products = np.zeros((nodes, nodes)), np.zeros((nodes, nodes))
    for step in range(steps):
        update = known[step].astype(np.float64)
        change = np.subtract(sequence[step + 1], sequence[step], dtype=np.float64)
        size = np.square(change).sum()
        if size > 0:
            squares += update @ (update.T / size)
            products -= change @ (update.T / size)
    if not squares.any():
        raise DataError("updates: are zero wherever h0 changes; there is nothing to learn from")
    products -= guess @ squares
    np.fill_diagonal(squares, np.diag(squares) + ridge * np.trace(squares) / nodes)
    estimate = guess + cho_solve(cho_factor(squares, overwrite_a=True), products.T, overwrite_b=True).T
    return np.asarray((estimate + estimate.T) / 2)


def alike_pairs(features: Numbers, count: int, *, share: float = 0.01, seed: int) -> KnownPairs:
    """``count`` random pairs of rows of ``features`` [N, F]; True are those whose inner product is among the largest.

    ``share`` of the pairs are True, or fewer where products are equal.

    Raises:
        ConfigError: ``count`` or ``share`` is out of range.
        DataError: ``features`` is no finite matrix of two rows or more.
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


def gram_scores(gram: Floats, pairs: Pairs, own: Numbers | None = None) -> Floats:
    """Estimated inner products of pairs, [M] float64, less those of the adversary's own features where they are given.

    Raises:
        DataError: ``gram`` is not square, ``own`` does not fit it, or ``pairs`` are no pairs of its nodes.
    """
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise DataError(f"gram: has the shape {gram.shape}; give an inner product for each two nodes")
    checked = check_pairs(pairs, len(gram))
    scores = gram[checked[:, 0], checked[:, 1]]
    return scores if own is None else scores - pair_products(check_rows("own", own, len(gram)), checked)


def _check_sequence(name: str, values: Numbers) -> Numbers:
    found = np.asarray(values)
    if found.ndim != 3 or not found.size:
        raise DataError(f"{name}: has the shape {found.shape}; give steps of one row per node and one column per width")
    if not np.isfinite(found).all():
        raise DataError(f"{name}: has values that are not finite; leave out their steps")
    return found


def _check_size(nodes: int) -> int:
    if nodes > MAX_NODES:
        raise DataError(
            f"nodes: {nodes} are too many for a matrix of inner products; give {MAX_NODES} of them or fewer"
        )
    return nodes


def _changes(sequence: Numbers) -> Iterator[Floats]:
    """The first of evenly spaced steps, then the differences between them."""
    count = min(len(sequence), max(2, MAX_COLUMNS // sequence.shape[2]))
    places = np.linspace(0, len(sequence) - 1, count).round().astype(np.int64)
    yield sequence[0].astype(np.float64)
    for before, after in pairwise(places):
        yield np.subtract(sequence[after], sequence[before], dtype=np.float64)


def _left_singular(matrix: Floats) -> tuple[Floats, Floats]:
    """Singular values, falling, and left vectors, by way of the smaller of the two squared matrices."""
    tall = matrix.shape[0] > matrix.shape[1]
    squares, vectors = eigh(matrix.T @ matrix if tall else matrix @ matrix.T)
    values = np.sqrt(np.maximum(squares[::-1], 0))
    vectors = vectors[:, ::-1]
    if tall:
        vectors = matrix @ np.divide(vectors, values, out=np.zeros_like(vectors), where=values > 0)
    return values, vectors


def _left_out_error(left: Floats, squares: Floats, targets: Floats, ridge: float) -> Floats:
    """Mean squared leave-one-out error of each column, closed form: residual over one less the leverage."""
    kept = ridge / (squares + ridge)  # of a direction's part, what the fit leaves as residual
    inside = left.T @ targets
    residual = targets - left @ inside + left @ (kept[:, None] * inside)
    outside = 1 - 1 / len(left) - np.square(left).sum(axis=1)
    room = np.where(outside > _ROUNDING, outside, 0) + np.square(left) @ kept
    return np.asarray(np.square(residual / room[:, None]).mean(axis=0))


def pair_products(rows: Numbers, pairs: Pairs) -> Floats:
    """Inner products of the rows [N, F] of each pair, [M] float64."""
    parts = np.array_split(pairs, 1 + len(pairs) // _PAIRS_A_TIME)
    return np.concatenate([(rows[part[:, 0]].astype(np.float64) * rows[part[:, 1]]).sum(axis=1) for part in parts])
