"""Attribute inference from embeddings (Duddu et al. 2020, "Quantifying Privacy Leakage in Graph Embedding").

An adversary has every node's embedding and knows a private attribute of some nodes (the auxiliary nodes). It trains a
classifier on those and applies it to the rest. Without the embeddings it could only name the more frequent value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilgraph.audit.attacks.classifiers import Classifier, Floats, train_classifier
from veilgraph.audit.attacks.link_features import Numbers, check_rows
from veilgraph.audit.statistics import measure
from veilgraph.core.errors import ConfigError, DataError

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Attribute:
    """A binary attribute, taken from one column of a feature matrix.

    Attributes:
        column: its number.
        above: a node has the attribute where the column is above this.
        values: [N] bool.
    """

    column: int
    above: float
    values: Flags

    @property
    def share(self) -> float:
        """Of the nodes that have it."""
        return float(self.values.mean())


@dataclass(frozen=True, eq=False)
class AttributeInference:
    """What an adversary found out about the nodes whose attribute it did not know.

    Attributes:
        accuracy: share of them that it gets right.
        prior_accuracy: the same for naming the value that most auxiliary nodes have.
        auc: area under the ROC; 0.5 for naming one value.
        scores: [T] float64, higher = has the attribute; above 0 counts as "has it".
        truth: [T] bool.
    """

    accuracy: float
    prior_accuracy: float
    auc: float
    scores: Floats
    truth: Flags


def choose_attributes(features: Numbers, *, count: int, min_share: float = 0.1) -> list[Attribute]:
    """The columns that an attack on them says most about: those whose two values are nearest to equally frequent.

    A column of two values is taken as it is; any other is cut at its median. Of equal columns the first is taken.

    Args:
        features: [N, F], a holder's private features.
        count: at most so many attributes.
        min_share: of the nodes that must have the attribute, and of those that must not; in (0, 0.5].

    Returns:
        The best first; fewer than ``count``, or none, where columns have too few nodes of one value.

    Raises:
        ConfigError: ``count`` or ``min_share`` is out of range.
        DataError: ``features`` is no matrix of finite numbers.
    """
    if count < 1:
        raise ConfigError(f"count={count!r} must be at least 1: how many attributes to attack")
    if not 0 < min_share <= 0.5:
        raise ConfigError(f"min_share={min_share!r} must lie above 0 and at most at 0.5; take 0.1")
    rows = check_rows("features", features, len(features))
    lowest, highest = rows.min(axis=0), rows.max(axis=0)
    has_two = ((rows == lowest) | (rows == highest)).all(axis=0)
    above = np.where(has_two, lowest, np.median(rows, axis=0))
    shares = (rows > above).mean(axis=0)
    order = np.argsort(np.abs(shares - 0.5), kind="stable")[:count]
    return [
        Attribute(int(column), float(above[column]), rows[:, column] > above[column])
        for column in order
        if min(shares[column], 1 - shares[column]) >= min_share
    ]


def auxiliary_nodes(num_nodes: int, share: float, *, seed: int) -> Flags:
    """Which nodes' attribute the adversary knows: ``share`` of all, at random, [N] bool.

    Raises:
        ConfigError: ``share`` is not strictly between 0 and 1.
    """
    if not 0 < share < 1:
        raise ConfigError(f"share={share!r} must lie strictly between 0 and 1; take 0.1 to 0.5")
    known = np.zeros(num_nodes, dtype=np.bool_)
    known[np.random.default_rng(seed).choice(num_nodes, size=round(share * num_nodes), replace=False)] = True
    return known


def infer_attribute(
    embeddings: Numbers, values: Flags, auxiliary: Flags, *, seed: int, classifier: Classifier = "logistic"
) -> AttributeInference:
    """Mounts the attack.

    Args:
        embeddings: [N, d]; what the adversary has of every node.
        values: [N] bool, the attribute; those of other than auxiliary nodes are read for scoring only.
        auxiliary: [N] bool, the nodes whose attribute the adversary knows.
        seed: of the classifier.
        classifier: ``mlp`` or ``logistic``.

    Raises:
        ConfigError: an unknown classifier.
        DataError: arrays do not fit each other; auxiliary nodes all have the attribute or all lack it; or fewer than
            ``statistics.MIN_TARGETS`` of the other nodes have it, or lack it.
    """
    for name, flags in (("values", values), ("auxiliary", auxiliary)):
        if flags.dtype != np.bool_ or flags.shape != (len(embeddings),):
            raise DataError(f"{name}: {flags.dtype} {flags.shape} for {len(embeddings)} nodes; give one bool per node")
    rows = _standardised(check_rows("embeddings", embeddings, len(embeddings)))
    score = train_classifier(classifier, rows[auxiliary], values[auxiliary], seed=seed)
    truth = values[~auxiliary]
    scores = score(rows[~auxiliary])
    usual = values[auxiliary].mean() >= 0.5
    return AttributeInference(
        accuracy=float(((scores > 0) == truth).mean()),
        prior_accuracy=float((truth == usual).mean()),
        auc=measure(scores, truth).auc,
        scores=scores,
        truth=truth,
    )


def _standardised(rows: Numbers) -> Floats:
    """Columns of mean 0 and standard deviation 1 over all nodes: the adversary has every embedding."""
    values = rows.astype(np.float64)
    spread = values.std(axis=0)
    spread[spread == 0] = 1
    return np.asarray((values - values.mean(axis=0)) / spread)
