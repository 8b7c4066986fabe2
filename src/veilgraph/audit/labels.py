"""Labels: which class training nodes have, from gradients that come back, or from embeddings and a few known labels.

With a linear output layer of weights V the gradient of a training node's embedding is a positive multiple of Vᵀ(p − y):
p the predicted distribution, y the one-hot label. Other nodes' rows are zero, unless noise was added to all or logits
were propagated. Everybody through whom gradients pass gets such rows: the server's deep layers take each row by itself.

Functions on arrays raise ``DataError`` where arrays do not fit each other or are not finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import softmax
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import silhouette_score

from veilgraph.audit.attack import Nodes, Scene, attack, some_of_each
from veilgraph.audit.finding import Outcome
from veilgraph.audit.pairs import Pairs, check_rows, fit_quietly, unit_columns
from veilgraph.audit.statistics import Truth
from veilgraph.core.errors import DataError
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.canaries import LabelCanaries
from veilgraph.protocol.view import Floats

Labels = NDArray[np.int64]

UNASSIGNED = -1
"""In place of a cluster, for a node whose gradient is zero."""
MOST_CLASSES: Final = 50
"""That are tried where nothing says how many there are."""

_KNOWN_PER_CLASS: Final = 3
STEPS: Final = 50
"""Gradients of later steps are smaller, and turn."""
_SHARPNESS: Final = 10.0
"""Of the softmax over cosines: clusters weigh about as much as a logistic regression's probabilities."""
_GAP: Final = 5.0  # between singular values, from which on the lower ones are taken for nothing
_LITTLE: Final = 0.2  # of the largest singular value: what is below is of no class
_PATIENCE: Final = 6  # numbers of classes that are tried after the best: what comes later only splits what is found
_LOOKED_AT: Final = 1000  # nodes that the number of classes is read from
_TINY: Final = np.finfo(np.float64).tiny


@attack("labels", "gradients")
def from_gradients(at: Scene) -> Outcome:
    """Cluster training nodes by their gradients' directions, around a few whose class is known."""
    return _infer_labels(at, training=True, by_clusters=True)


@attack("labels", "gradients", "embedding", "masked")
def completed(at: Scene) -> Outcome:
    """Learn a model of the class from a few known labels, on gradients or embeddings (Fu et al. 2022)."""
    return _infer_labels(at, training=bool(at.evidence.steps))


@attack("labels", "gradients", blind=True)
def blind(at: Scene) -> Outcome:
    """Group training nodes by class from gradients, without any known label (Arazzi et al. 2023)."""
    steps = at.evidence.steps[:STEPS]
    nodes, asked = at.case.classmates(at.target, steps)
    found = blind_labels(np.stack([step[nodes] for step in steps]), seed=at.case.seed)
    known, right, among = at.case.class_names(at.target, nodes), None, ""
    if known is not None:
        labels, classes = known
        right, among = (
            float((match_clusters(found.groups, labels) == labels).mean()),
            f" where there are {classes} classes",
        )

    def alike(rows: Floats) -> Floats:
        unit = directions(rows[nodes] - rows[nodes].mean(axis=0))
        return np.asarray((unit[asked.pairs[:, 0]] * unit[asked.pairs[:, 1]]).sum(axis=1))

    return Outcome(
        found.pair_scores(asked.pairs),
        asked.truth,
        **at.beside(alike),
        accuracy=right,
        note=f"Are two training nodes of one class? No label is known; {found.shares.shape[1]} groups were found"
        f"{among}. The accuracy is that of groups with the names that fit them best. Without and "
        "pooled: similarity of features.",
    )


@attack("labels", "symbols")
def from_symbols(at: Scene) -> Outcome:
    """Take each training node for the class of its symbol; canaries, whose labels are others, are left out."""
    labels, train, _, classes = at.case.labels(at.target)
    nodes, told = at.case.symbols(at.target, at.evidence.symbols)
    private, graph = at.case.settings.label_privacy, at.case.whole_graph(at.target)
    if private is not None and private.canaries:
        train = np.setdiff1d(train, LabelCanaries.of(at.case.settings, graph, b"").places(graph).numpy())
    asked = np.isin(nodes, train) & (told >= 0)
    if not asked.any():
        raise DataError(f"no training node of {at.target} has a symbol there")
    said, places = np.eye(classes)[told[asked]], np.arange(int(asked.sum()))
    scores, truth = binary_targets(said, labels[nodes[asked]], places)
    right = accuracy(said, labels[nodes[asked]], places)
    note = f"{len(places)} training nodes with a symbol."
    if private is not None:
        note += f" The job has {LabelResponse(private.epsilon, classes).keep_probability:.1%} of symbols be true."
    return Outcome(scores, truth, accuracy=right, note=note)


def _infer_labels(at: Scene, *, training: bool, by_clusters: bool = False) -> Outcome:
    """Outcome of scoring the classes of training, or test, nodes from a few known labels, by clusters or a model."""
    evidence, case = at.evidence, at.case
    labels, train, test, classes = case.labels(at.target)
    asked = train if training else test
    asked = asked[labels[asked] >= 0]
    known = few_of_each(labels, train, classes, case.seed)
    nodes = some_of_each(np.setdiff1d(asked, known), labels, 2000, case.seed)
    rows = np.concatenate([known, nodes])  # with noise, rows of others would blur the classes
    places = np.arange(len(known), len(rows))

    few = KnownLabels(np.arange(len(known)), labels[known], classes, case.seed)

    def flat(found: Floats) -> tuple[Floats, Truth]:
        centred = found - found[places].mean(axis=0)  # or a class would be ranked high for being frequent
        return binary_targets(centred, labels[rows], places)

    def of_features(features: Floats) -> Floats:
        return flat(few.completion(None, features[rows]))[0]

    gradients = np.stack([step[rows] for step in evidence.steps[:STEPS]]) if evidence.steps else None
    if by_clusters and gradients is not None:
        found = few.clusters(gradients)
    else:
        found = few.completion(gradients, None if evidence.rows is None else evidence.rows[rows])
    values, truth = flat(found)
    return Outcome(
        values,
        truth,
        **at.beside(of_features),
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
    """Each node's gradient [N, d], averaged over S ≥ 1 steps: noise averages out, and directions change slowly."""
    steps = np.asarray(gradients)
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
    """Membership scores [N], higher = training node: the length of each row of ``mean_rows``."""
    return np.asarray(np.linalg.norm(mean_rows(gradients), axis=1))


def match_clusters(assignment: NDArray[Any], truth: NDArray[Any]) -> Labels:
    """Names clusters [T], or ``UNASSIGNED``, by the one-to-one matching with classes [T] that is right most often.

    The matching reads the truth, so it is an upper bound for an adversary, who must still learn which is which.
    """
    size = int(max(assignment.max(), truth.max())) + 1
    common, assigned = np.zeros((size, size)), assignment != UNASSIGNED
    np.add.at(common, (assignment[assigned], truth[assigned]), 1)
    _, names = linear_sum_assignment(common, maximize=True)
    return np.where(assigned, names[assignment], UNASSIGNED).astype(np.int64)


@dataclass(frozen=True, eq=False)
class KnownLabels:
    """What an adversary makes of the labels of a few nodes: scores of every node for every class, [N, C] float64.

    They are comparable between nodes; nodes of whom it sees nothing get the same for every class. Gradients are [S, N,
    d], of S ≥ 1 steps; where others' rows are noise, those of the attacked and the known nodes alone. ``nodes`` are
    [K], with labels of every class.
    """

    nodes: NDArray[Any]
    labels: NDArray[Any]
    classes: int
    seed: int

    def clusters(self, gradients: NDArray[Any]) -> Floats:
        """Cosine to the centres of k-means over all directions, started at the known nodes' mean directions.

        Nodes of unknown label make prototypes better than a few known ones alone.

        Source: Liu et al. 2024, "Similarity-based Label Inference Attack against Training and Inference of Split
            Learning" (clusters of gradients); Basu et al. 2002, "Semi-supervised Clustering by Seeding".
        """
        return self._cosines(directions(mean_rows(gradients)), "gradient")

    def completion(self, gradients: NDArray[Any] | None, embeddings: NDArray[Any] | None = None) -> Floats:
        """Completes what the adversary has of the model with an output layer of its own, semi-supervised.

        Features are the direction and the length of gradients, and the standardised ``embeddings`` [N, d']. The score
        is the mean of two distributions over the classes: of a logistic regression on the known nodes, and a softmax of
        the cosines to clusters of all nodes that start at the known ones. (Fu et al. train by MixMatch.) Source: Fu et
        al. 2022, "Label Inference Attacks Against Vertical Federated Learning", section 4.1.
        """
        blocks = []
        if gradients is not None:
            rows = mean_rows(gradients)
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            unit = np.sqrt(rows.shape[1])  # as long as a standardised row of that width
            blocks += [directions(rows) * unit, np.log1p(lengths / (lengths.mean() or 1.0))]
        if embeddings is not None:
            count = len(embeddings) if gradients is None else gradients.shape[1]
            blocks.append(unit_columns(check_rows("embeddings", embeddings, count)))
        features = np.concatenate(blocks, axis=1)
        clusters = softmax(_SHARPNESS * self._cosines(directions(features), "features"), axis=1)
        model = fit_quietly(LogisticRegression(max_iter=1000), features[self.nodes], self.labels)
        guesses = np.asarray((clusters + model.predict_proba(features)) / 2)
        guesses[~features.any(axis=1)] = 1 / self.classes
        return guesses

    def _cosines(self, rows: Floats, what: str) -> Floats:
        """Cosines [N, C] of directions [N, W] to the centres of k-means that starts at the known nodes' means."""
        start, told = np.empty((self.classes, rows.shape[1])), rows[self.nodes].any(axis=1)
        for label in range(self.classes):
            mine = self.nodes[told & (self.labels == label)]
            if not len(mine):
                raise DataError(
                    f"known_nodes: those of class {label} have no {what}: they are zero; give a training node"
                )
            start[label] = rows[mine].mean(axis=0)
        seen = rows[rows.any(axis=1)]
        centres = KMeans(self.classes, init=directions(start), n_init=1, random_state=self.seed)
        return np.asarray(rows @ directions(fit_quietly(centres, seen, np.zeros(len(seen))).cluster_centers_).T)


def binary_targets(scores: Floats, labels: NDArray[Any], nodes: NDArray[Any]) -> tuple[Floats, Truth]:
    """Turn scores [N, C] of ``KnownLabels`` into binary targets: is this node of this class?

    None of the ``nodes`` [T] is a known one, or the figures flatter the attack. Gives scores and truth [T·C], node by
    node, of every pair of node and class (micro-average of one against the rest). With two classes it is [T]: is the
    node of class 1?
    """
    chosen, truth = scores[nodes], labels[nodes]
    if scores.shape[1] == 2:
        return chosen[:, 1] - chosen[:, 0], truth == 1
    return chosen.ravel(), (truth[:, None] == np.arange(scores.shape[1])).ravel()


def accuracy(scores: Floats, labels: NDArray[Any], nodes: NDArray[Any]) -> float:
    """Share of nodes whose class has the highest score; ties are guessed. Arguments: ``binary_targets``."""
    chosen, truth = scores[nodes], labels[nodes]
    best = chosen == chosen.max(axis=1, keepdims=True)
    return float((best[np.arange(len(truth)), truth] / best.sum(axis=1)).mean())


@dataclass(frozen=True, eq=False)
class Blind:
    """What an adversary makes of gradients who knows no label: groups without names, one known label of which names it.

    ``shares`` [N, K] of the groups are zero where the gradient is; ``rows`` [N, d] are directions of gradients.
    """

    shares: Floats
    rows: Floats

    @property
    def groups(self) -> Labels:
        """The likeliest group of each node, [N] int64; ``UNASSIGNED`` where nothing is seen of it."""
        return np.where(self.shares.any(axis=1), self.shares.argmax(axis=1), UNASSIGNED).astype(np.int64)

    def pair_scores(self, pairs: Pairs) -> Floats:
        """How likely two nodes are of one class, [P]: by their groups and, where noise blurs these, the cosine."""
        first, second = pairs.T
        return np.asarray(
            (self.shares[first] * self.shares[second]).sum(axis=1) + (self.rows[first] * self.rows[second]).sum(axis=1)
        )


def blind_labels(gradients: NDArray[Any], *, classes: int | None = None, seed: int) -> Blind:
    """Finds groups of nodes of one class from gradients alone, [S, N, d], of attacked nodes only where noise hides who
    takes part.

    How many ``classes`` there are, if that is not known, is the rank of the gradients and one more, or what clusters of
    their directions stand out by. A top model of the adversary's own is then matched to them: under label y and any
    prediction p the gradient lies in the cone of V_k − V_y, k ≠ y, and a label and a top model that it cannot come from
    leave a residual. So nodes on which the model errs, whose gradients point elsewhere than those of the rest of their
    class, find their label too.

    Source: Arazzi et al. 2023, "BlindSage: Label Inference Attacks against Node-level Vertical Federated Graph Neural
    Networks", sections IV and V. They train the substitute of the server's model by gradient descent from labels drawn
    at random; here clusters are the beginning, the substitute is one layer, and labels and layer are fitted in turns by
    least squares.
    """
    rows = directions(mean_rows(gradients))
    seen = rows.any(axis=1)
    count, least = int(np.count_nonzero(seen)), 4 if classes is None else classes
    if count < least:
        raise DataError(
            f"gradients: of {count} nodes are not zero, and the attack needs {least}; give the steps of a training pass"
        )
    told = rows[seen]
    found = _kmeans_labels(told, classes or _classes_by_rank(told) or _classes_by_silhouette(told, seed), seed)
    shares = np.zeros((len(rows), int(found.max()) + 1))
    shares[seen] = _matched_shares(told, found)
    return Blind(shares, rows)


def _classes_by_rank(rows: Floats) -> int | None:
    """Number of classes: rank of directions [n, d] plus one, as p − y sums to 0. None: no clear rank."""
    values = np.linalg.svd(rows, compute_uv=False)
    some = values[:-1] > _LITTLE * values[0]
    if not some.any():
        return None
    gaps = np.where(some, values[:-1] / np.maximum(values[1:], _TINY), 0)[: MOST_CLASSES - 1]
    place = int(gaps.argmax())
    return place + 2 if gaps[place] >= _GAP else None


def _classes_by_silhouette(rows: Floats, seed: int) -> int:
    """Number of classes whose k-means clusters of directions [n, d] have the best silhouette."""
    random = np.random.default_rng(seed)
    some = rows if len(rows) <= _LOOKED_AT else rows[random.choice(len(rows), size=_LOOKED_AT, replace=False)]
    best, best_value = 2, -np.inf
    for number in range(2, min(MOST_CLASSES, len(some) - 1) + 1):
        clusters = _kmeans_labels(some, number, seed)
        value = float(silhouette_score(some, clusters)) if len(np.unique(clusters)) > 1 else -np.inf
        if value > best_value:
            best, best_value = number, value
        elif number - best >= _PATIENCE:
            break
    return best


def _kmeans_labels(rows: Floats, classes: int, seed: int) -> Labels:
    model = fit_quietly(KMeans(classes, n_init=5, random_state=seed), rows, np.zeros(len(rows)))
    return np.asarray(model.labels_, dtype=np.int64)


def _matched_shares(rows: Floats, groups: Labels) -> Floats:
    """Shares [n, K] from the residuals of matching a linear top model and labels to directions [n, d] in turns."""
    count = int(groups.max()) + 1
    top = -np.stack([rows[groups == group].mean(axis=0) for group in range(count)])
    residuals = np.zeros((len(rows), count))
    for _ in range(10):
        errors = np.empty((count, len(rows), count))
        for label in range(count):
            errors[label], residuals[:, label] = _fit_label(rows, top, label)
        found = residuals.argmin(axis=1)
        if (found == groups).all():
            break
        groups = found
        top = np.linalg.lstsq(errors[groups, np.arange(len(rows))], rows, rcond=None)[0]
    weights = np.exp(-_SHARPNESS * (residuals - residuals.min(axis=1, keepdims=True)))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _fit_label(rows: Floats, top: Floats, label: int) -> tuple[Floats, Floats]:
    """Fit p − y [n, K], up to a positive factor, to rows [n, d] under one label; give it and the residuals [n]."""
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
