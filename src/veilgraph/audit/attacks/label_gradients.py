"""What the rows of a gradient tell without any label: who takes part in the loss, and which nodes are of one class.

With a linear output layer of weights W the gradient of a training node's embedding is a positive multiple of Wᵀ(p − y):
p the predicted distribution, y the one-hot label. Other nodes' rows are zero, unless noise was added to all or logits
were propagated. Everybody through whom gradients pass gets such rows: the server's deep layers take each row by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from veilgraph.audit.attacks.classifiers import Floats
from veilgraph.core.errors import ConfigError, DataError

Labels = NDArray[np.int64]

UNASSIGNED = -1
"""In place of a cluster, for a node whose gradient is zero."""
_RESTARTS = 10


def mean_rows(gradients: NDArray[Any]) -> Floats:
    """Each node's gradient, averaged over the steps: noise averages out, and a class's direction changes slowly.

    Args:
        gradients: [S, N, d], of S ≥ 1 steps.

    Returns:
        [N, d] float64.

    Raises:
        DataError: another shape, or values that are not finite.
    """
    steps = np.asarray(gradients)
    if steps.ndim != 3 or not steps.size:
        raise DataError(f"gradients: {steps.shape} must be [steps, nodes, columns], at least one of each")
    rows = np.asarray(steps.mean(axis=0, dtype=np.float64))
    if not np.isfinite(rows).all():
        raise DataError("gradients: has values that are not finite; leave out the steps they belong to")
    return rows


def directions(rows: Floats) -> Floats:
    """Rows [N, d] scaled to length 1; zero rows stay zero."""
    largest = np.abs(rows).max(axis=1, keepdims=True)  # first, so that no square under- or overflows
    scaled: Floats = np.divide(rows, largest, out=np.zeros_like(rows), where=largest > 0)
    lengths: Floats = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.asarray(np.divide(scaled, lengths, out=scaled, where=lengths > 0))


def membership_scores(gradients: NDArray[Any]) -> Floats:
    """Which nodes the loss is of: the length of a node's mean gradient; exact where others' rows are zero.

    Args:
        gradients: as in ``mean_rows``.

    Returns:
        [N] float64, higher = training node; for ``statistics.measure``.

    Raises:
        DataError: see ``mean_rows``.
    """
    return np.asarray(np.linalg.norm(mean_rows(gradients), axis=1))


def matched(assignment: NDArray[Any], truth: NDArray[Any]) -> Labels:
    """Names clusters by the one-to-one matching with classes that is right most often.

    The matching reads the truth: what it achieves is an upper bound for an adversary who must still learn which
    cluster is which class.

    Args:
        assignment: [T] integers from 0, or ``UNASSIGNED``.
        truth: [T] integers from 0, the same nodes' classes.

    Returns:
        [T] int64, classes; ``UNASSIGNED`` stays.

    Raises:
        DataError: the arrays do not fit each other, or have other values.
    """
    clusters, labels = np.asarray(assignment), np.asarray(truth)
    if clusters.ndim != 1 or clusters.shape != labels.shape or not len(clusters):
        raise DataError(
            f"assignment: {clusters.shape} and truth {labels.shape} must both be [nodes]; give one per node"
        )
    for name, values, least in (("assignment", clusters, UNASSIGNED), ("truth", labels, 0)):
        if not np.issubdtype(values.dtype, np.integer) or values.min() < least:
            raise DataError(f"{name}: must be integers of at least {least}; it is {values.dtype} from {values.min()}")
    size = int(max(clusters.max(), labels.max())) + 1
    common = np.zeros((size, size))
    assigned = clusters != UNASSIGNED
    np.add.at(common, (clusters[assigned], labels[assigned]), 1)
    _, names = linear_sum_assignment(common, maximize=True)
    return np.where(assigned, names[clusters], UNASSIGNED).astype(np.int64)


def check_classes(classes: int) -> None:
    """Refuses fewer than two classes.

    Raises:
        ConfigError: as said.
    """
    if classes < 2:
        raise ConfigError(f"classes={classes!r} must be at least 2: there is nothing to infer of one class")
