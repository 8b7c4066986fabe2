"""Label inference from gradients and embeddings, at the server and at holders without labels.

An adversary knows the labels of a few nodes, one a class or more, and gives every other node a score for each class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilgraph.audit.attacks.classifiers import Floats
from veilgraph.audit.attacks.label_attacks import COMPLETIONS, Knowledge
from veilgraph.audit.attacks.label_gradients import Labels, check_classes, mean_rows
from veilgraph.audit.attacks.link_features import check_rows
from veilgraph.core.errors import ConfigError, DataError


def label_scores(
    attack: str,
    gradients: NDArray[Any] | None,
    *,
    known_nodes: NDArray[Any],
    known_labels: NDArray[Any],
    classes: int,
    embeddings: NDArray[Any] | None = None,
    seed: int,
) -> Floats:
    """Mounts an attack.

    Args:
        attack: of ``COMPLETIONS``.
        gradients: [S, N, d], of S ≥ 1 steps; None if the adversary has none. Where others' rows are
            noise, those of the attacked and the known nodes alone, or the others blur the clusters.
        known_nodes: [K] integers, distinct rows of the other arrays.
        known_labels: [K] integers, their labels; at least one node of every class.
        classes: C.
        embeddings: [N, d'], what the adversary has of every node; None if nothing.
        seed: of the clusters.

    Returns:
        [N, C] float64, higher = more likely of that class, comparable between nodes.

    Raises:
        ConfigError: an unknown attack, fewer than two classes, or an attack that lacks what it needs.
        DataError: an array breaks a rule, or a known class has no node of whom anything is seen.
    """
    if attack not in COMPLETIONS:
        raise ConfigError(f"attack={attack!r} is unknown; choose one of {', '.join(COMPLETIONS)}")
    check_classes(classes)
    rows = None if gradients is None else mean_rows(gradients)
    if embeddings is not None:
        embeddings = check_rows("embeddings", embeddings, len(embeddings if rows is None else rows)).astype(np.float64)
    seen = rows if rows is not None else embeddings
    if seen is None:
        raise ConfigError(f"attack={attack!r} was given neither gradients nor embeddings; give what it needs")
    nodes = _checked_nodes("known_nodes", known_nodes, len(seen))
    labels = _checked_labels("known_labels", known_labels, len(nodes), classes)
    missing = np.flatnonzero(np.bincount(labels, minlength=classes) == 0)
    if len(missing):
        raise DataError(f"known_labels: has none of class {missing[0]}; give at least one node of every class")
    return COMPLETIONS[attack](Knowledge(nodes, labels, classes, rows, embeddings, seed))


def flattened(scores: Floats, labels: NDArray[Any], nodes: NDArray[Any]) -> tuple[Floats, NDArray[np.bool_]]:
    """The targets of ``statistics.measure``: is this node of this class?

    Args:
        scores: [N, C], from ``label_scores``.
        labels: [N] integers, the truth; read at ``nodes`` only.
        nodes: [T] integers, the attacked nodes; none of the known ones, or the figures flatter the attack.

    Returns:
        Scores [T·C] and truth [T·C], node by node, of every pair of node and class (micro-average of one against the
        rest). With two classes the one pair says all of the other, and it is [T]: is the node of class 1?

    Raises:
        DataError: the arrays do not fit each other.
    """
    chosen, truth = _checked_truth(scores, labels, nodes)
    if scores.shape[1] == 2:
        return chosen[:, 1] - chosen[:, 0], truth == 1
    return chosen.ravel(), (truth[:, None] == np.arange(scores.shape[1])).ravel()


def accuracy(scores: Floats, labels: NDArray[Any], nodes: NDArray[Any]) -> float:
    """Share of nodes whose class has the highest score; of equal scores one is guessed at random.

    Args:
        scores: as in ``flattened``.
        labels: as in ``flattened``.
        nodes: as in ``flattened``.

    Raises:
        DataError: the arrays do not fit each other.
    """
    chosen, truth = _checked_truth(scores, labels, nodes)
    best = chosen == chosen.max(axis=1, keepdims=True)
    return float((best[np.arange(len(truth)), truth] / best.sum(axis=1)).mean())


def _checked_truth(scores: Floats, labels: NDArray[Any], nodes: NDArray[Any]) -> tuple[Floats, Labels]:
    """Scores [T, C] and labels [T] of the nodes."""
    rows = check_rows("scores", scores, len(labels)).astype(np.float64)
    chosen = _checked_nodes("nodes", nodes, len(rows))
    return rows[chosen], _checked_labels("labels", np.asarray(labels)[chosen], len(chosen), rows.shape[1])


def _checked_nodes(name: str, nodes: NDArray[Any], count: int) -> Labels:
    found = np.asarray(nodes)
    if found.ndim != 1 or not len(found) or not np.issubdtype(found.dtype, np.integer):
        raise DataError(f"{name}: {found.shape} of {found.dtype} must be integers, one per node; give at least one")
    if found.min() < 0 or found.max() >= count or len(np.unique(found)) < len(found):
        raise DataError(f"{name}: must be distinct numbers in 0..{count - 1}; they are the rows of the other arrays")
    return found.astype(np.int64)


def _checked_labels(name: str, labels: NDArray[Any], count: int, classes: int) -> Labels:
    found = np.asarray(labels)
    if found.shape != (count,) or not np.issubdtype(found.dtype, np.integer):
        raise DataError(f"{name}: {found.shape} of {found.dtype} must be [{count}] integers: one per node")
    if found.min() < 0 or found.max() >= classes:
        raise DataError(f"{name}: must lie in 0..{classes - 1}; leave out nodes whose class is not known")
    return found.astype(np.int64)
