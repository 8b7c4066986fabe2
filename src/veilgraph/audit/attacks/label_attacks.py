"""Attacks on labels: each makes scores for every class out of what an adversary knows.

Nodes of whom it sees nothing, like nodes outside the training set whose gradient is zero, get the same score for
every class. ``labels.label_scores`` checks arguments and calls these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import softmax
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression

from veilgraph.audit.attacks.classifiers import Floats, fitted
from veilgraph.audit.attacks.label_gradients import Labels, directions
from veilgraph.core.errors import ConfigError, DataError

_SHARPNESS = 10.0
"""Of the softmax over cosines: clusters weigh about as much as a logistic regression's probabilities."""


@dataclass(frozen=True, eq=False)
class Knowledge:
    """All that an adversary has; an attack reads what it uses.

    Attributes:
        nodes: [K] int64, the nodes whose label it knows.
        labels: [K] int64, in 0 to C − 1; every class occurs.
        classes: C.
        gradients: [N, d] float64, mean over the steps; None if it has none.
        embeddings: [N, d'] float64; None if it has none.
        seed: of the clusters.
    """

    nodes: Labels
    labels: Labels
    classes: int
    gradients: Floats | None
    embeddings: Floats | None
    seed: int

    def mean_gradients(self, attack: str) -> Floats:
        """[N, d].

        Raises:
            ConfigError: there are none.
        """
        if self.gradients is None:
            raise ConfigError(
                f"attack={attack!r} needs gradients; give some, or choose completion for embeddings alone"
            )
        return self.gradients

    def class_means(self, rows: Floats, what: str) -> Floats:
        """Mean over each class's known nodes of whom ``rows`` [N, W] tell something, [C, W].

        Raises:
            DataError: all known nodes of some class have zero rows.
        """
        means = np.empty((self.classes, rows.shape[1]))
        told = rows[self.nodes].any(axis=1)
        for label in range(self.classes):
            mine = self.nodes[told & (self.labels == label)]
            if not len(mine):
                raise DataError(
                    f"known_nodes: those of class {label} have no {what}: they are zero; give a training node"
                )
            means[label] = rows[mine].mean(axis=0)
        return means


def norm_scores(knowledge: Knowledge) -> Floats:
    """Of two classes the rarer has the longer gradients: a model that follows frequencies errs more on it.

    Which class is rarer the adversary takes from its known labels, and where it knows as many of both, that of
    the longer gradients among these. Scores are log lengths, less the middle between both classes' known ones.

    Raises:
        ConfigError: there are more than two classes, or no gradients.
        DataError: the known nodes of a class have no gradient.

    Source: Li et al. 2022, "Label Leakage and Protection in Two-party Split Learning", section 3.
    """
    if knowledge.classes != 2:
        raise ConfigError(f"attack='norm' is for 2 classes, not {knowledge.classes}; choose cosine, which is for any")
    lengths = np.linalg.norm(knowledge.mean_gradients("norm"), axis=1)
    seen = lengths > 0
    logs = np.log(lengths, out=np.zeros_like(lengths), where=seen)  # a few very long ones decide nothing
    means = knowledge.class_means(np.column_stack([seen, logs]), "gradient")[:, 1]
    first, second = np.bincount(knowledge.labels)
    longer = int(means[1] > means[0]) if first == second else int(second < first)
    excess = np.where(seen, logs - means.mean(), 0)
    return np.column_stack([-excess, excess] if longer else [excess, -excess])


def cosine_scores(knowledge: Knowledge) -> Floats:
    """Gradients of one class point the same way: cosine to the mean direction of the class's known nodes.

    Raises:
        ConfigError: there are no gradients.
        DataError: the known nodes of a class have no gradient.

    Source: Li et al. 2022, as ``norm_scores``, for two classes; Liu et al. 2024, as ``cluster_scores``, for more.
    """
    rows = directions(knowledge.mean_gradients("cosine"))
    return np.asarray(rows @ directions(knowledge.class_means(rows, "gradient")).T)


def cluster_scores(knowledge: Knowledge) -> Floats:
    """Cosine to the centres of k-means over all directions, started at the known nodes' mean directions.

    Nodes of unknown label make prototypes better than a few known ones alone.

    Raises:
        ConfigError: there are no gradients.
        DataError: the known nodes of a class have no gradient.

    Source: Liu et al. 2024, "Similarity-based Label Inference Attack against Training and Inference of Split
        Learning" (clusters of gradients); Basu et al. 2002, "Semi-supervised Clustering by Seeding".
    """
    return _seeded_cosines(directions(knowledge.mean_gradients("clusters")), knowledge, "gradient")


def completion_scores(knowledge: Knowledge) -> Floats:
    """Completes what the adversary has of the model with an output layer of its own, semi-supervised.

    Features are the direction and the length of gradients, and the standardised embeddings, whichever there are. The
    score is the mean of two distributions over the classes: of a logistic regression on the known nodes, and a softmax
    of the cosines to clusters of all nodes that start at the known ones. (Fu et al. train by MixMatch.)

    Raises:
        ConfigError: there are neither gradients nor embeddings.
        DataError: the known nodes of a class have features that are all zero.

    Source: Fu et al. 2022, "Label Inference Attacks Against Vertical Federated Learning", section 4.1.
    """
    blocks = []
    if knowledge.gradients is not None:
        lengths = np.linalg.norm(knowledge.gradients, axis=1, keepdims=True)
        usual = lengths.mean() or 1.0
        unit = np.sqrt(knowledge.gradients.shape[1])  # as long as a standardised row of that width
        blocks += [directions(knowledge.gradients) * unit, np.log1p(lengths / usual)]
    if knowledge.embeddings is not None:
        blocks.append(_standardised(knowledge.embeddings))
    if not blocks:
        raise ConfigError("attack='completion' needs gradients, embeddings, or both; it was given neither")
    features = np.concatenate(blocks, axis=1)
    clusters = softmax(_SHARPNESS * _seeded_cosines(directions(features), knowledge, "features"), axis=1)
    model = fitted(LogisticRegression(max_iter=1000), features[knowledge.nodes], knowledge.labels)
    guesses = np.asarray((clusters + model.predict_proba(features)) / 2)
    guesses[~features.any(axis=1)] = 1 / knowledge.classes
    return guesses


COMPLETIONS: dict[str, Callable[[Knowledge], Floats]] = {
    "norm": norm_scores,
    "cosine": cosine_scores,
    "clusters": cluster_scores,
    "completion": completion_scores,
}
"""The attacks by name. ``norm`` is for two classes; ``completion`` alone reads embeddings, and needs no gradients."""


def _seeded_cosines(rows: Floats, knowledge: Knowledge, what: str) -> Floats:
    """Cosines [N, C] of directions [N, W] to the centres of k-means that starts at the known nodes' means."""
    start = directions(knowledge.class_means(rows, what))
    seen = rows[rows.any(axis=1)]
    model = fitted(
        KMeans(knowledge.classes, init=start, n_init=1, random_state=knowledge.seed), seen, np.zeros(len(seen))
    )
    return np.asarray(rows @ directions(model.cluster_centers_).T)


def _standardised(features: Floats) -> Floats:
    """Columns of mean 0 and standard deviation 1."""
    spread = features.std(axis=0)
    spread[spread == 0] = 1
    return np.asarray((features - features.mean(axis=0)) / spread)
