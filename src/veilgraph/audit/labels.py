"""Labels: which class training nodes have, from gradients that come back, or from embeddings and a few known labels.

With a linear output layer of weights V the gradient of a training node's embedding is a positive multiple of Vᵀ(p − y):
p the predicted distribution, y the one-hot label. Other nodes' rows are zero, unless noise was added to all or logits
were propagated. Everybody through whom gradients pass gets such rows: the server's deep layers take each row by itself.

Functions on arrays raise ``DataError`` where arrays do not fit each other or are not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import softmax
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import silhouette_score

from veilgraph.audit.attack import AuditContext, Nodes, attack, scored, some_of_each
from veilgraph.audit.finding import Outcome
from veilgraph.audit.pairs import Pairs, check_pairs, check_rows, fitted, unit_columns
from veilgraph.audit.statistics import Truth
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.types import PartyId
from veilgraph.protocol.evidence import Evidence
from veilgraph.protocol.view import Floats

Labels = NDArray[np.int64]

UNASSIGNED = -1
"""In place of a cluster, for a node whose gradient is zero."""
MOST_CLASSES: Final = 50
"""That are tried where nothing says how many there are."""

_KNOWN_PER_CLASS: Final = 3
_MOST: Final = 2000
STEPS: Final = 50
"""Gradients of later steps are smaller, and turn."""
_SHARPNESS: Final = 10.0
"""Of the softmax over cosines: clusters weigh about as much as a logistic regression's probabilities."""
_FEWEST: Final = 4
_GAP: Final = 5.0
"""Between singular values, from which on the lower ones are taken for nothing."""
_LITTLE: Final = 0.2
"""Of the largest singular value: what is below is of no class."""
_PATIENCE: Final = 6
"""Numbers of classes that are tried after the best: what comes later only splits what is found."""
_LOOKED_AT: Final = 1000
"""Nodes that the number of classes is read from."""
_TINY: Final = np.finfo(np.float64).tiny


@attack("labels", "gradients")
def from_gradients(evidence: Evidence, case: AuditContext, adversary: PartyId, target: PartyId) -> Outcome:
    """Gradients of one class point the same way: clusters of training nodes around a few whose class is known."""
    return _inferred("clusters", evidence, case, adversary, target, training=True)


@attack("labels", "gradients", "embedding", "masked")
def completed(evidence: Evidence, case: AuditContext, adversary: PartyId, target: PartyId) -> Outcome:
    """A model of the class, learned from a few known labels, on gradients or embeddings (Fu et al. 2022)."""
    return _inferred("completion", evidence, case, adversary, target, training=bool(evidence.steps))


@attack("labels", "gradients", blind=True)
def blind(evidence: Evidence, case: AuditContext, adversary: PartyId, target: PartyId) -> Outcome:
    """Which training nodes are of one class, by who knows no label (Arazzi et al. 2023)."""
    steps = evidence.steps[:STEPS]
    nodes, asked = case.classmates(target, steps)
    found = blind_labels(np.stack([step[nodes] for step in steps]), seed=case.seed)
    known, right, among = case.class_names(target, nodes), None, ""
    if known is not None:
        labels, classes = known
        right, among = float((matched(found.groups, labels) == labels).mean()), f" where there are {classes} classes"

    def alike(rows: Floats) -> Floats:
        unit = directions(rows[nodes] - rows[nodes].mean(axis=0))
        return np.asarray((unit[asked.pairs[:, 0]] * unit[asked.pairs[:, 1]]).sum(axis=1))

    return Outcome(
        found.pair_scores(asked.pairs),
        asked.truth,
        without=scored(alike, case.own_rows(adversary, target)),
        pooled=scored(alike, case.pooled_rows(target)),
        accuracy=right,
        note=f"Are two training nodes of one class? No label is known; {found.shares.shape[1]} groups were found"
        f"{among}. The accuracy is that of groups with the names that fit them best. Without and "
        "pooled: similarity of features.",
    )


def _inferred(
    name: str, evidence: Evidence, case: AuditContext, adversary: PartyId, target: PartyId, *, training: bool
) -> Outcome:
    labels, train, test, classes = case.labels(target)
    asked = train if training else test
    asked = asked[labels[asked] >= 0]
    known = few_of_each(labels, train, classes, case.seed)
    nodes = some_of_each(np.setdiff1d(asked, known), labels, _MOST, case.seed)
    rows = np.concatenate([known, nodes])  # with noise, rows of others would blur the classes
    places = np.arange(len(known), len(rows))

    def scores(name: str, steps: Sequence[Floats], embeddings: Floats | None) -> Floats:
        return label_scores(
            name,
            np.stack([step[rows] for step in steps[:STEPS]]) if steps else None,
            known_nodes=np.arange(len(known)),
            known_labels=labels[known],
            classes=classes,
            embeddings=None if embeddings is None else embeddings[rows],
            seed=case.seed,
        )

    def flat(found: Floats) -> tuple[Floats, Truth]:
        centred = found - found[places].mean(axis=0)  # or a class would be ranked high for being frequent
        return flattened(centred, labels[rows], places)

    def of_features(features: Floats) -> Floats:
        return flat(scores("completion", (), features))[0]

    found = scores(name, evidence.steps, evidence.rows)
    values, truth = flat(found)
    return Outcome(
        values,
        truth,
        without=scored(of_features, case.own_rows(adversary, target)),
        pooled=scored(of_features, case.pooled_rows(target)),
        accuracy=accuracy(found, labels[rows], places),
        note=f"{'Training' if training else 'Test'} nodes; {_KNOWN_PER_CLASS} training nodes of each class are known "
        "(of fewer, all but one). Pooled: the same from all holders' features.",
    )


def few_of_each(labels: Nodes, nodes: Nodes, classes: int, seed: int) -> Nodes:
    """A few nodes of every class, whose labels the adversary knows; a ``DataError`` where a class has too few."""
    random, found = np.random.default_rng(seed), list[Nodes]()
    for label in range(classes):
        some = nodes[labels[nodes] == label]
        if len(some) < 2:
            raise DataError(
                f"labels: class {label} has {len(some)} training nodes; the attack knows one or more of each and asks "
                "for the rest"
            )
        size = min(_KNOWN_PER_CLASS, len(some) - 1)  # the strongest attacker that has a node left to ask for
        found.append(random.choice(some, size=size, replace=False))
    return np.sort(np.concatenate(found))


def mean_rows(gradients: NDArray[Any]) -> Floats:
    """Each node's gradient [N, d], averaged over S ≥ 1 steps, [S, N, d].

    Noise averages out, and a class's direction changes slowly.
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
    """Which nodes the loss is of, [N], higher = training node: the length of a node's mean gradient.

    Exact where others' rows are zero; ``gradients`` and errors as of ``mean_rows``.
    """
    return np.asarray(np.linalg.norm(mean_rows(gradients), axis=1))


def matched(assignment: NDArray[Any], truth: NDArray[Any]) -> Labels:
    """Names clusters [T], or ``UNASSIGNED``, by the one-to-one matching with classes [T] that is right most often.

    The matching reads the truth: what it achieves is an upper bound for an adversary who must still learn which cluster
    is which class.
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


@dataclass(frozen=True, eq=False)
class _Knowledge:
    """All that an adversary has; an attack reads what it uses. Arguments are those of ``label_scores``, checked."""

    nodes: Labels
    labels: Labels
    classes: int
    gradients: Floats | None
    embeddings: Floats | None
    seed: int

    def mean_gradients(self, name: str) -> Floats:
        """[N, d]."""
        if self.gradients is None:
            raise ConfigError(f"attack={name!r} needs gradients; give some, or choose completion for embeddings alone")
        return self.gradients

    def class_means(self, rows: Floats, what: str) -> Floats:
        """Mean over each class's known nodes of whom ``rows`` [N, W] tell something, [C, W]."""
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

    def seeded_cosines(self, rows: Floats, what: str) -> Floats:
        """Cosines [N, C] of directions [N, W] to the centres of k-means that starts at the known nodes' means."""
        start = directions(self.class_means(rows, what))
        seen = rows[rows.any(axis=1)]
        model = fitted(KMeans(self.classes, init=start, n_init=1, random_state=self.seed), seen, np.zeros(len(seen)))
        return np.asarray(rows @ directions(model.cluster_centers_).T)


def _norm_scores(knowledge: _Knowledge) -> Floats:
    """Of two classes the rarer has the longer gradients: a model that follows frequencies errs more on it.

    Which class is rarer the adversary takes from its known labels, and where it knows as many of both, that of
    the longer gradients among these. Scores are log lengths, less the middle between both classes' known ones.

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


def _cosine_scores(knowledge: _Knowledge) -> Floats:
    """Gradients of one class point the same way: cosine to the mean direction of the class's known nodes.

    Source: Li et al. 2022, as ``_norm_scores``, for two classes; Liu et al. 2024, as ``_cluster_scores``, for more.
    """
    rows = directions(knowledge.mean_gradients("cosine"))
    return np.asarray(rows @ directions(knowledge.class_means(rows, "gradient")).T)


def _cluster_scores(knowledge: _Knowledge) -> Floats:
    """Cosine to the centres of k-means over all directions, started at the known nodes' mean directions.

    Nodes of unknown label make prototypes better than a few known ones alone.

    Source: Liu et al. 2024, "Similarity-based Label Inference Attack against Training and Inference of Split
        Learning" (clusters of gradients); Basu et al. 2002, "Semi-supervised Clustering by Seeding".
    """
    return knowledge.seeded_cosines(directions(knowledge.mean_gradients("clusters")), "gradient")


def _completion_scores(knowledge: _Knowledge) -> Floats:
    """Completes what the adversary has of the model with an output layer of its own, semi-supervised.

    Features are the direction and the length of gradients, and the standardised embeddings, whichever there are. The
    score is the mean of two distributions over the classes: of a logistic regression on the known nodes, and a softmax
    of the cosines to clusters of all nodes that start at the known ones. (Fu et al. train by MixMatch.)

    Source: Fu et al. 2022, "Label Inference Attacks Against Vertical Federated Learning", section 4.1.
    """
    blocks = []
    if knowledge.gradients is not None:
        lengths = np.linalg.norm(knowledge.gradients, axis=1, keepdims=True)
        usual = lengths.mean() or 1.0
        unit = np.sqrt(knowledge.gradients.shape[1])  # as long as a standardised row of that width
        blocks += [directions(knowledge.gradients) * unit, np.log1p(lengths / usual)]
    if knowledge.embeddings is not None:
        blocks.append(unit_columns(knowledge.embeddings))
    features = np.concatenate(blocks, axis=1)
    clusters = softmax(_SHARPNESS * knowledge.seeded_cosines(directions(features), "features"), axis=1)
    model = fitted(LogisticRegression(max_iter=1000), features[knowledge.nodes], knowledge.labels)
    guesses = np.asarray((clusters + model.predict_proba(features)) / 2)
    guesses[~features.any(axis=1)] = 1 / knowledge.classes
    return guesses


COMPLETIONS: dict[str, Callable[[_Knowledge], Floats]] = {
    "norm": _norm_scores,
    "cosine": _cosine_scores,
    "clusters": _cluster_scores,
    "completion": _completion_scores,
}
"""The attacks by name. ``norm`` is for two classes; ``completion`` alone reads embeddings, and needs no gradients."""


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
    """Scores of every node for every class, of an adversary who knows the labels of a few: [N, C] float64.

    They are comparable between nodes. Nodes of whom an adversary sees nothing, like nodes outside the training set
    whose gradient is zero, get the same score for every class.

    Args:
        attack: of ``COMPLETIONS``.
        gradients: [S, N, d], of S ≥ 1 steps; None if the adversary has none. Where others' rows are noise, those of the
            attacked and the known nodes alone, or the others blur the clusters.
        known_nodes: [K] integers, distinct rows of the other arrays.
        known_labels: [K] integers, their labels; at least one node of every class.
        classes: C.
        embeddings: [N, d'], what the adversary has of every node; None if nothing.
        seed: of the clusters.
    """
    if attack not in COMPLETIONS:
        raise ConfigError(f"attack={attack!r} is unknown; choose one of {', '.join(COMPLETIONS)}")
    if classes < 2:
        raise ConfigError(f"classes={classes!r} must be at least 2: there is nothing to infer of one class")
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
    return COMPLETIONS[attack](_Knowledge(nodes, labels, classes, rows, embeddings, seed))


def flattened(scores: Floats, labels: NDArray[Any], nodes: NDArray[Any]) -> tuple[Floats, Truth]:
    """The targets of ``statistics.measure``: is this node of this class?

    Args:
        scores: [N, C], from ``label_scores``.
        labels: [N] integers, the truth; read at ``nodes`` only.
        nodes: [T] integers, the attacked nodes; none of the known ones, or the figures flatter the attack.

    Returns:
        Scores and truth [T·C], node by node, of every pair of node and class (micro-average of one against the rest).
        With two classes the one pair says all of the other, and it is [T]: is the node of class 1?
    """
    chosen, truth = _checked_truth(scores, labels, nodes)
    if scores.shape[1] == 2:
        return chosen[:, 1] - chosen[:, 0], truth == 1
    return chosen.ravel(), (truth[:, None] == np.arange(scores.shape[1])).ravel()


def accuracy(scores: Floats, labels: NDArray[Any], nodes: NDArray[Any]) -> float:
    """Share of nodes whose class has the highest score; of equal scores one is guessed. Arguments: ``flattened``."""
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


@dataclass(frozen=True, eq=False)
class Blind:
    """What an adversary makes of gradients who knows no label: groups without names.

    Which class a group is, nothing in the gradients says. Two nodes of one group are of one class all the same, and one
    known label then names its group.

    Attributes:
        shares: [N, K], each node's shares of the K groups that were found; a row is zero where the gradient is.
        rows: [N, d], directions of the gradients.
    """

    shares: Floats
    rows: Floats

    @property
    def groups(self) -> Labels:
        """The likeliest group of each node, [N] int64; ``UNASSIGNED`` where nothing is seen of it."""
        return np.where(self.shares.any(axis=1), self.shares.argmax(axis=1), UNASSIGNED).astype(np.int64)

    def pair_scores(self, pairs: Pairs) -> Floats:
        """How likely two nodes are of one class, [P]: by their groups and, where noise blurs these, the cosine."""
        first, second = check_pairs(pairs, len(self.rows)).T
        return np.asarray(
            (self.shares[first] * self.shares[second]).sum(axis=1) + (self.rows[first] * self.rows[second]).sum(axis=1)
        )


def blind_labels(gradients: NDArray[Any], *, classes: int | None = None, seed: int) -> Blind:
    """Finds groups of nodes of one class from gradients alone.

    How many there are is the rank of the gradients and one more, or what clusters of their directions stand out by. A
    top model of the adversary's own is then matched to them: under label y and any prediction p the gradient lies in
    the cone of V_k − V_y, k ≠ y, and a label and a top model that it cannot come from leave a residual. So nodes on
    which the model errs, whose gradients point elsewhere than those of the rest of their class, find their label too.

    Args:
        gradients: [S, N, d], of S ≥ 1 steps; where noise hides who takes part, of the attacked nodes only.
        classes: their number, where the adversary knows it; None reads it from the gradients.
        seed: of the first centres.

    Source: Arazzi et al. 2023, "BlindSage: Label Inference Attacks against Node-level Vertical Federated Graph Neural
        Networks", sections IV and V. They train the substitute of the server's model by gradient descent from labels
        drawn at random; here clusters are the beginning, the substitute is one layer, and labels and layer are fitted
        in turns by least squares.
    """
    if classes is not None and classes < 2:
        raise ConfigError(f"classes={classes!r} must be at least 2; leave it out if it is not known")
    rows = directions(mean_rows(gradients))
    seen = rows.any(axis=1)
    count, least = int(np.count_nonzero(seen)), _FEWEST if classes is None else classes
    if count < least:
        raise DataError(
            f"gradients: of {count} nodes are not zero, and the attack needs {least}; give the steps of a training pass"
        )
    told = rows[seen]
    found = _clustered(told, classes or _of_rank(told) or _of_silhouette(told, seed), seed)
    shares = np.zeros((len(rows), int(found.max()) + 1))
    shares[seen] = _matched_shares(told, found)
    return Blind(shares, rows)


def _of_rank(rows: Floats) -> int | None:
    """One more than the rank: p − y sums to 0 over the classes. None where no dimension stands out as the last one.

    Rows are no wider than that where embeddings are narrower than the number of classes.
    """
    values = np.linalg.svd(rows, compute_uv=False)
    some = values[:-1] > _LITTLE * values[0]
    if not some.any():
        return None
    gaps = np.where(some, values[:-1] / np.maximum(values[1:], _TINY), 0)[: MOST_CLASSES - 1]
    place = int(gaps.argmax())
    return place + 2 if gaps[place] >= _GAP else None


def _of_silhouette(rows: Floats, seed: int) -> int:
    """As many as stand out the most."""
    random = np.random.default_rng(seed)
    some = rows if len(rows) <= _LOOKED_AT else rows[random.choice(len(rows), size=_LOOKED_AT, replace=False)]
    best, best_value = 2, -np.inf
    for number in range(2, min(MOST_CLASSES, len(some) - 1) + 1):
        clusters = _clustered(some, number, seed)
        value = float(silhouette_score(some, clusters)) if len(np.unique(clusters)) > 1 else -np.inf
        if value > best_value:
            best, best_value = number, value
        elif number - best >= _PATIENCE:
            break
    return best


def _clustered(rows: Floats, classes: int, seed: int) -> Labels:
    model = fitted(KMeans(classes, n_init=5, random_state=seed), rows, np.zeros(len(rows)))
    return np.asarray(model.labels_, dtype=np.int64)


def _matched_shares(rows: Floats, groups: Labels) -> Floats:
    """Shares [n, K] from the residuals of matching a linear top model and labels to directions [n, d] in turns."""
    count = int(groups.max()) + 1
    top = -np.stack([rows[groups == group].mean(axis=0) for group in range(count)])
    residuals = np.zeros((len(rows), count))
    for _ in range(10):
        errors = np.empty((count, len(rows), count))
        for label in range(count):
            errors[label], residuals[:, label] = _explained(rows, top, label)
        found = residuals.argmin(axis=1)
        if (found == groups).all():
            break
        groups = found
        top = np.linalg.lstsq(errors[groups, np.arange(len(rows))], rows, rcond=None)[0]
    weights = np.exp(-_SHARPNESS * (residuals - residuals.min(axis=1, keepdims=True)))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _explained(rows: Floats, top: Floats, label: int) -> tuple[Floats, Floats]:
    """What explains rows best under one label: p − y [n, K] up to a positive factor, and what it leaves [n]."""
    cone = top - top[label]
    gram, fits = cone @ cone.T, rows @ cone.T
    step = 1 / max(float(np.linalg.eigvalsh(gram)[-1]), _TINY)
    errors, ahead, speed = np.zeros_like(fits), np.zeros_like(fits), 1.0
    for _ in range(60):  # projected gradient, accelerated, since nearly parallel classes make it slow
        before, errors = errors, np.maximum(ahead - step * (ahead @ gram - fits), 0)
        speed, last = (1 + np.sqrt(1 + 4 * speed**2)) / 2, speed
        ahead = errors + (last - 1) / speed * (errors - before)
    errors[:, label] = 0
    left = np.linalg.norm(rows - errors @ cone, axis=1)
    errors[:, label] = -errors.sum(axis=1)
    return errors, left
