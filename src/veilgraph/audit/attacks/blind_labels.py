"""Label inference by an adversary who knows no label, nor how many classes there are: from gradients alone.

How many there are is the rank of the gradients and one more, or what clusters of their directions stand out by. A top
model of the adversary's own is then matched to them: under label y and any prediction p the gradient of a node's
embedding is a positive multiple of Vᵀ(p − y), V the top model's weights, and so lies in the cone of V_k − V_y, k ≠ y. A
label and a top model that a gradient cannot come from leave a residual. So nodes on which the model errs, whose
gradients point elsewhere than those of the rest of their class, find their label too.

What comes out are groups without names: which class a group is, nothing in the gradients says. Two nodes of one group
are of one class all the same, and one known label then names its group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from veilgraph.audit.attacks.classifiers import Floats, fitted
from veilgraph.audit.attacks.label_gradients import UNASSIGNED, Labels, directions, mean_rows
from veilgraph.audit.attacks.pairs import Pairs, check_pairs
from veilgraph.core.errors import ConfigError, DataError

MOST_CLASSES: Final = 50
"""That are tried where nothing says how many there are."""

_RESTARTS: Final = 5
_FEWEST: Final = 4
_GAP: Final = 5.0
"""Between singular values, from which on the lower ones are taken for nothing."""
_LITTLE: Final = 0.2
"""Of the largest singular value: what is below is of no class."""
_PATIENCE: Final = 6
"""Numbers of classes that are tried after the best: what comes later only splits what is found."""
_LOOKED_AT: Final = 1000
"""Nodes that the number of classes is read from."""
_MATCHINGS: Final = 10
_STEPS: Final = 60
"""Of projected gradient, for the predictions that fit best."""
_SHARPNESS: Final = 10.0


@dataclass(frozen=True, eq=False)
class Blind:
    """What the adversary makes of gradients.

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
        """How likely two nodes are of one class, [P] float64: by their groups and, where noise blurs these, the cosine.

        Args:
            pairs: [P, 2] nodes.

        Raises:
            DataError: see ``check_pairs``.
        """
        first, second = check_pairs(pairs, len(self.rows)).T
        return np.asarray(
            (self.shares[first] * self.shares[second]).sum(axis=1) + (self.rows[first] * self.rows[second]).sum(axis=1)
        )


def blind_labels(gradients: NDArray[Any], *, classes: int | None = None, seed: int) -> Blind:
    """Finds groups of nodes of one class.

    Args:
        gradients: [S, N, d], of S ≥ 1 steps; where noise hides who takes part, of the attacked nodes only.
        classes: their number, where the adversary knows it; None reads it from the gradients.
        seed: of the first centres.

    Raises:
        ConfigError: ``classes`` is below 2.
        DataError: see ``mean_rows``; or too few nodes have a gradient.

    Source: Arazzi et al. 2023, "BlindSage: Label Inference Attacks against Node-level Vertical Federated Graph Neural
        Networks", sections IV and V: a substitute of the server's model, and labels, under which the received gradients
        come about; clusters where the number of classes is not known. They train the substitute by gradient descent
        from labels drawn at random; here clusters are the beginning, the substitute is one layer, and labels and
        layer are fitted in turns by least squares.
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
    gaps = np.where(some, values[:-1] / np.maximum(values[1:], np.finfo(np.float64).tiny), 0)[: MOST_CLASSES - 1]
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
    model = fitted(KMeans(classes, n_init=_RESTARTS, random_state=seed), rows, np.zeros(len(rows)))
    return np.asarray(model.labels_, dtype=np.int64)


def _matched_shares(rows: Floats, groups: Labels) -> Floats:
    """Shares [n, K] from the residuals of matching a linear top model and labels to directions [n, d] in turns."""
    count = int(groups.max()) + 1
    top = -np.stack([rows[groups == group].mean(axis=0) for group in range(count)])
    residuals = np.zeros((len(rows), count))
    for _ in range(_MATCHINGS):
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
    step = 1 / max(float(np.linalg.eigvalsh(gram)[-1]), np.finfo(np.float64).tiny)
    errors, ahead, speed = np.zeros_like(fits), np.zeros_like(fits), 1.0
    for _ in range(_STEPS):  # accelerated, since nearly parallel classes make it slow
        before, errors = errors, np.maximum(ahead - step * (ahead @ gram - fits), 0)
        speed, last = (1 + np.sqrt(1 + 4 * speed**2)) / 2, speed
        ahead = errors + (last - 1) / speed * (errors - before)
    errors[:, label] = 0
    left = np.linalg.norm(rows - errors @ cone, axis=1)
    errors[:, label] = -errors.sum(axis=1)
    return errors, left
