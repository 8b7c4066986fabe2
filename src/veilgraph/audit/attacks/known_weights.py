"""Features from an opened h^0 = X·W where the adversary can compute the initial W, or a part of it.

W follows from a learning seed. Whoever has the seed of all holders, as all have where they learn from the job's, knows
W, and a node's row of X solves d linear equations: alone where X has d columns or fewer, and beyond where it is sparse
and has no negative values, as the sparsest of all solutions (Donoho & Tanner 2005, "Sparse nonnegative solution of
underdetermined linear equations by linear programming"; here by non-negative least squares, Lawson & Hanson 1974,
chapter 23, with a small penalty on the sum). Columns that many nodes have are penalised less in a second pass.

Of a *collaborative* W every holder knows the part that it drew itself. A matched filter (an inner product with a
column's own part of W) ranks features by it, with all other parts as noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from scipy.optimize import nnls

from veilgraph.audit.attacks.link_features import Floats, Numbers, check_rows
from veilgraph.core.errors import ConfigError, DataError

MAX_NUMBERS: Final = 300_000
"""Nodes times columns that are solved for at most; a node of Cora takes about 20 ms."""
MAX_COLUMNS: Final = 10_000

_PENALTY: Final = 0.01
_LEAST_SHARE: Final = 0.1
_MOST_STEPS: Final = 20


def sparse_rows(opened: Numbers, weights: Floats, *, penalty: float = _PENALTY) -> Floats:
    """The sparsest X ≥ 0 with X·W = opened, row by row, in two passes.

    Args:
        opened: [n, d], h^0 of some nodes less all that is known of it.
        weights: W, [F, d].
        penalty: on the sum of a row, relative to the median length of a row of W.

    Returns:
        [n, F] float64.

    Raises:
        ConfigError: ``penalty`` is negative.
        DataError: the arrays do not fit each other, are not finite, or are more than ``MAX_COLUMNS`` wide or
            ``MAX_NUMBERS`` large.
    """
    if not 0 <= penalty < np.inf:
        raise ConfigError(f"penalty={penalty!r} must be at least 0 and finite; take {_PENALTY}")
    rows = _checked(opened, weights)
    if len(weights) > MAX_COLUMNS or len(rows) * len(weights) > MAX_NUMBERS:
        raise DataError(
            f"weights: {len(rows)} nodes with {len(weights)} unknown columns are too many; give at most {MAX_COLUMNS} "
            f"columns, and at most {MAX_NUMBERS} values in all"
        )
    size = penalty * float(np.median(np.linalg.norm(weights, axis=1)))

    def solved(scale: Floats) -> Floats:
        equations = np.vstack([weights.T * scale, np.full((1, len(weights)), size)])
        return np.stack([_nonnegative(equations, np.append(row, 0.0)) for row in rows]) * scale

    first = solved(np.ones(len(weights)))
    means = first.mean(axis=0)
    if not means.any():
        return first
    return solved(np.sqrt(means / means.mean() + _LEAST_SHARE))


def least_squares_rows(opened: Numbers, weights: Floats) -> Floats:
    """The shortest X with X·W = opened: exact where W [F, d] has no more rows than columns.

    Args:
        opened: [n, d].
        weights: [F, d].

    Returns:
        [n, F] float64.

    Raises:
        DataError: the arrays do not fit each other, or are not finite.
    """
    return np.asarray(_checked(opened, weights) @ np.linalg.pinv(weights))


def matched_rows(opened: Numbers, drawn: Floats) -> Floats:
    """Inner products with what is known of each row of W: the signal |w|²·x in the noise of all that is not known.

    Args:
        opened: [n, d].
        drawn: the known part of W, [F, d].

    Returns:
        [n, F] float64, to rank by.

    Raises:
        DataError: the arrays do not fit each other, or are not finite.
    """
    return np.asarray(_checked(opened, drawn) @ (drawn / np.square(drawn).sum(axis=1, keepdims=True)).T)


def without_own(opened: Numbers, own: Numbers, drawn: Floats, *, others: bool) -> Floats:
    """h^0 less the adversary's own part, in the unit of features, whatever power of two it was opened in.

    Args:
        opened: [N, d].
        own: [N, F], its features.
        drawn: what it knows of its own columns' W, [F, d].
        others: whether its columns' W has parts of others, which a regression on its features takes out as well.

    Returns:
        [N, d] float64.

    Raises:
        DataError: the arrays do not fit each other, are not finite, or the own features are zero.
    """
    features = check_rows("own", own, len(opened)).astype(np.float64)
    part = features @ drawn
    size = float(np.square(part).sum())
    unit = abs(float((_checked(opened, drawn) * part).sum())) / (size or 1.0)
    if not unit > 0:
        raise DataError("own: the adversary's part of h0 is zero; there is nothing to tell the unit of h0 by")
    rest = opened / 2.0 ** np.round(np.log2(unit)) - part
    if not others:
        return np.asarray(rest)
    squares = features.T @ features
    squares[np.diag_indices(len(squares))] += np.trace(squares) / len(squares) or 1.0
    return np.asarray(rest - features @ np.linalg.solve(squares, features.T @ rest))


def exact_share(found: Floats, truth: Numbers, *, tolerance: float = 0.01) -> float:
    """Of rows of which every value is found, to a share of the largest that there is."""
    return float((np.abs(found - truth).max(axis=1) <= tolerance * np.abs(truth).max()).mean())


def solver(own: Numbers) -> Callable[[Numbers, Floats], Floats]:
    """Sparse and non-negative, or shortest, rows: as the adversary's own features suggest that others' are."""
    return sparse_rows if (own >= 0).all() else least_squares_rows


def _nonnegative(equations: Floats, values: Floats) -> Floats:
    """Where the steps do not suffice, nothing is said of the node."""
    try:
        return np.asarray(nnls(equations, values, maxiter=_MOST_STEPS * equations.shape[1])[0])
    except RuntimeError:
        return np.zeros(equations.shape[1])


def _checked(opened: Numbers, weights: Floats) -> Floats:
    rows = check_rows("opened", opened, len(opened)).astype(np.float64)
    if weights.ndim != 2 or weights.shape[1] != rows.shape[1] or not np.isfinite(weights).all():
        raise DataError(
            f"weights: have the shape {weights.shape} for h0 {rows.shape}; give finite ones, a row a column"
        )
    return rows
