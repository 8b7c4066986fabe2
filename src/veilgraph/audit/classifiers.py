"""The attack models: small classifiers that an adversary trains on what it knows the truth of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.protocol.view import Floats

Classifier = Literal["mlp", "logistic"]

_MAKERS: dict[Classifier, Callable[[int], Any]] = {
    # two hidden layers and 50 epochs are He et al.'s; a penalty on weights is in the place of their dropout
    "mlp": lambda seed: MLPClassifier((32, 32), alpha=1.0, max_iter=50, random_state=seed),
    "logistic": lambda seed: LogisticRegression(max_iter=1000),
}


def train_classifier(
    classifier: Classifier, features: Floats, truth: NDArray[np.bool_], *, seed: int
) -> Callable[[Floats], Floats]:
    """Trains an attack model.

    Args:
        classifier: ``mlp`` (two hidden layers of 32) or ``logistic`` (regression).
        features: [M, K], of about unit scale.
        truth: [M] bool.
        seed: of initial weights and batches.

    Returns:
        Features [T, K] → log-odds of "positive" [T].
    """
    if classifier not in _MAKERS:
        raise ConfigError(f"classifier={classifier!r} is unknown; choose one of {', '.join(_MAKERS)}")
    positives = int(np.count_nonzero(truth))
    if positives in (0, len(truth)):
        raise DataError(f"truth: has {positives} positives among {len(truth)} known targets; give some of both")
    model = fitted(_MAKERS[classifier](seed), features, np.asarray(truth, dtype=np.bool_))
    tiny = np.finfo(np.float64).tiny

    def log_odds(others: Floats) -> Floats:
        probabilities = model.predict_proba(others)
        return np.asarray(np.log(probabilities[:, 1] + tiny) - np.log(probabilities[:, 0] + tiny))

    return log_odds


def fitted(model: Any, features: Floats, truth: NDArray[Any]) -> Any:  # noqa: ANN401 - scikit-learn has no types
    """A scikit-learn model after ``fit``; that it stopped at its number of epochs is meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(features, truth)
