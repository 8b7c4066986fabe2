"""Scores of boosted trees that the label holder fits at home: a block of columns of a sealed job.

A training node's score is of trees that were fitted without it, or a network would trust scores more than it may at
other nodes. Later predictions fit the same trees to the training nodes as they were, which the label holder keeps.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
FOLDS: Final = 5  # parts of the training nodes, each of which is scored by trees of all others
_ROUNDS: Final = 50
_MOST_TREES: Final = 500  # of all classes together: with more than ten there are fewer rounds
_LEAVES: Final = 4
_RATE: Final = 0.1
_FEWEST: Final = 5  # training nodes in a leaf
_ONE_FIT: Final = threading.Lock()
"""Held by a fit. scikit-learn empties the process's warning filters for a moment: of two parties' threads one would
find none, warn of it, and leave wrong ones.
"""
_LEAST: Final = 1e-6  # probabilities are no less, so that scores are 14 at most


@dataclass(frozen=True)
class Examples:
    """Training nodes of the label holder, as they were in a training: rows float64 [T, W], labels int64 [T]."""

    rows: Tensor
    labels: Tensor

    def folds(self) -> NDArray[np.int64]:
        """Assign each training node to a fold, by its row alone; equal rows are in one fold: [T]."""
        _, which = np.unique(self.rows.numpy(), axis=0, return_inverse=True)
        return np.asarray(which.ravel() % FOLDS, dtype=np.int64)

    def scores(self, rows: Tensor, classes: int) -> Tensor:
        """Fit trees, and score rows, float64 [N, W]: log p_c − log p_0 for c = 1 … C − 1, float64 [N, C − 1].

        A row equal to a training node's, up to rounding, is scored by trees that were fitted without its fold.
        """
        examples, labels, folds = self.rows.numpy(), self.labels.numpy(), self.folds()
        fold_of = {row.tobytes(): fold for row, fold in zip(examples.round(9) + 0.0, folds, strict=True)}
        of = np.array([fold_of.get(row.tobytes(), FOLDS) for row in rows.numpy().round(9) + 0.0])
        found = np.zeros((len(of), classes))
        for fold in np.unique(of):
            kept = folds != fold
            found[of == fold] = _class_probabilities(examples[kept], labels[kept], rows.numpy()[of == fold], classes)
        logs = torch.from_numpy(found).clamp_min(_LEAST).log()
        return logs[:, 1:] - logs[:, :1]


def _class_probabilities(examples: Floats, labels: NDArray[np.int64], rows: Floats, classes: int) -> Floats:
    """Fit boosted trees to examples, and predict probabilities of rows: [n, C]; uniform if examples have one class."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415 - slow to import, for one block alone

    found = np.full((len(rows), classes), 1 / classes)
    if len(np.unique(labels)) > 1:
        model: Any = HistGradientBoostingClassifier(
            max_leaf_nodes=_LEAVES,
            learning_rate=_RATE,
            max_iter=min(_ROUNDS, max(1, _MOST_TREES // classes)),
            min_samples_leaf=_FEWEST,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=0,
        )
        with _ONE_FIT:
            model.fit(examples, labels)
        found[:] = 0
        found[:, model.classes_] = model.predict_proba(rows)
    return found
