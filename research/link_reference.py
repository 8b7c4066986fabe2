"""What an adversary has for reference in attacks on links, where it knows nodes' attributes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from veilgraph.audit.pairs import Numbers, fit_quietly
from veilgraph.core.errors import DataError
from veilgraph.protocol.view import Floats


def reference_posteriors(attributes: Numbers, classes: NDArray[np.int64], *, seed: int) -> Floats:
    """The reference model of He et al.: what can be said of a node's class without any edge.

    A logistic regression of the class on the attributes, trained on one half of the nodes and applied to the other,
    so that no node's row comes from a model that has seen its class.

    Args:
        attributes: [N, F].
        classes: [N] int64, the class that the attacked model predicts.
        seed: of the halves.

    Returns:
        [N, distinct classes] float64 posteriors.

    Raises:
        DataError: fewer than two classes have two nodes or more.
    """
    distinct, places, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    if len(places) != len(attributes):
        raise DataError(f"classes: has {len(places)} values for {len(attributes)} nodes; give one per node")
    if np.count_nonzero(sizes >= 2) < 2:
        raise DataError(
            "classes: has fewer than two classes of two nodes or more; a reference model has nothing to tell"
        )
    shuffled = np.random.default_rng(seed).permutation(len(places))
    half = np.empty(len(places), dtype=np.int64)
    half[shuffled[np.argsort(places[shuffled], kind="stable")]] = np.arange(len(places)) % 2
    posteriors = np.zeros((len(places), len(distinct)))
    for side in (0, 1):
        model = fit_quietly(LogisticRegression(max_iter=200), attributes[half != side], places[half != side])
        posteriors[np.ix_(half == side, model.classes_)] = model.predict_proba(attributes[half == side])
    return posteriors
