"""Features from a model's outputs by a generator: the generative regression network.

Luo, Wu, Xiao & Ooi 2021, "Feature Inference Attack on Model Predictions in Vertical Federated Learning", section V: a
generator makes unknown features out of the known ones and noise; the model is asked what it would put out for both; the
generator learns until that is what was put out. It needs none of the unknown features, but the model. In a vertical job
nobody has that: the adversary is granted some rows of the columns it is after, and fits a model to them, the linear one
of ``equations``.

Two things differ from the paper. The generator is given the outputs as well, so that it serves an adversary without
features; and a sigmoid keeps its values within the columns' range, in place of a penalty on their variance.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from veilgraph.audit.attacks.equations import fit_model
from veilgraph.audit.attacks.link_features import Floats, Numbers

MAX_NODES: Final = 2000
"""The most nodes that a generator is trained on; it serves all."""

_HIDDEN: Final = 64
_NOISE: Final = 8
STEPS: Final = 200
_RATE: Final = 0.01
_FIRST, _SECOND, _LEAST = 0.9, 0.999, 1e-8
"""Of Adam."""


def generated_columns(
    own: Numbers, columns: Numbers, outputs: Numbers, known: NDArray[np.bool_], *, seed: int
) -> Floats:
    """Columns that make a model put out what was put out.

    Args:
        own: [N, F]; F may be 0.
        columns: [N, k] in [0, 1]; those of other than known nodes are not read.
        outputs: [N, m].
        known: [N] bool, of the model's fit.
        seed: of generator and noise.

    Returns:
        [N, k] float64 in [0, 1].

    Raises:
        DataError: the arrays do not fit each other, are not finite, or fewer than two nodes are known.
    """
    model = fit_model(own, columns, outputs, known)
    whiten = model.whitened()
    wanted, weights = (outputs - own @ model.own - model.bias) @ whiten, model.columns @ whiten
    random = np.random.default_rng(seed)
    given = np.concatenate(
        [_standardised(own), _standardised(outputs), random.normal(size=(len(known), _NOISE))], axis=1
    )
    trained = random.permutation(len(known))[:MAX_NODES]
    generator = _Generator(given.shape[1], columns.shape[1], random)
    scale = float(np.square(wanted).sum(axis=1).mean()) or 1.0
    for _ in range(STEPS):
        made = generator.columns(given[trained])
        generator.step((made @ weights - wanted[trained]) @ weights.T / (scale * len(trained)))
    return generator.columns(given)


class _Generator:
    """Two layers, ReLU between and a sigmoid after them, trained by Adam."""

    def __init__(self, width: int, out: int, random: np.random.Generator) -> None:
        self._weights = [
            random.normal(size=(before + 1, after)) * (2 / (before + 1)) ** 0.5
            for before, after in ((width, _HIDDEN), (_HIDDEN, out))
        ]
        self._moments = [(np.zeros_like(each), np.zeros_like(each)) for each in self._weights]
        self._steps = 0
        self._given = self._hidden = self._made = np.empty((0, 0))

    def columns(self, given: Floats) -> Floats:
        """[n, k] of inputs [n, F]."""
        self._given = _with_one(given)
        self._hidden = _with_one(np.maximum(self._given @ self._weights[0], 0))
        self._made = np.asarray(expit(self._hidden @ self._weights[1]))
        return self._made

    def step(self, gradient: Floats) -> None:
        """Of the loss by the columns that were made last, [n, k]."""
        inner = gradient * self._made * (1 - self._made)
        before = (inner @ self._weights[1][:-1].T) * (self._hidden[:, :-1] > 0)
        self._steps += 1
        for place, found in enumerate((self._given.T @ before, self._hidden.T @ inner)):
            first, second = self._moments[place]
            first = _FIRST * first + (1 - _FIRST) * found
            second = _SECOND * second + (1 - _SECOND) * np.square(found)
            self._moments[place] = first, second
            size = np.sqrt(second / (1 - _SECOND**self._steps)) + _LEAST
            self._weights[place] = self._weights[place] - _RATE * first / (1 - _FIRST**self._steps) / size


def _with_one(rows: Floats) -> Floats:
    return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)


def _standardised(rows: Numbers) -> Floats:
    values = rows.astype(np.float64)
    spread = values.std(axis=0)
    spread[spread == 0] = 1
    return np.asarray((values - values.mean(axis=0)) / spread)
