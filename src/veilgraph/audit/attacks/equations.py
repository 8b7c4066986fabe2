"""Features from a model's outputs by solving its equations: the equation solving attack.

Luo, Wu, Xiao & Ooi 2021, "Feature Inference Attack on Model Predictions in Vertical Federated Learning", section IV-A:
the logarithms of the ratios of a logistic regression's C confidences are C − 1 linear equations in its inputs. Who
knows the model and a part of the inputs solves for the others: exactly where these are C − 1 or fewer, else for the
shortest solution.

The paper's adversary is given the whole model. In a vertical job nobody has one: the adversary is granted some rows of
the columns it is after, fits a linear model of the outputs to them and to its own features, and solves that. A graph
network is not linear, so each equation is weighed by how well the fit says what it comes to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilgraph.audit.attacks.link_features import Floats, Numbers, check_rows
from veilgraph.core.errors import ConfigError, DataError

_RIDGE: Final = 1e-2
_LEAST_CONFIDENCE: Final = 1e-12
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, eq=False)
class LinearModel:
    """outputs = own·A + columns·B + bias + noise.

    Attributes:
        own: A, [F, m]; F is 0 where the adversary has no features.
        columns: B, [k, m].
        bias: [m].
        noise: [m, m], covariance of what the model leaves.
    """

    own: Floats
    columns: Floats
    bias: Floats
    noise: Floats

    def whitened(self) -> Floats:
        """[m, m]: what equations are multiplied by, so that each counts by how little noise it has."""
        values, vectors = np.linalg.eigh(self.noise)
        least = max(float(values[-1]), 0.0) * 1e-6
        return np.asarray(vectors / np.sqrt(np.maximum(values, least))) if least > 0 else np.eye(len(values))


def log_ratios(posteriors: Numbers) -> Floats:
    """Logarithms of ratios of neighbouring confidences, ln v_c − ln v_{c+1}: [N, C] to [N, C − 1].

    Raises:
        DataError: they are fewer than two a row, negative, or not finite.
    """
    rows = check_rows("posteriors", posteriors, len(posteriors)).astype(np.float64)
    if rows.shape[1] < 2 or (rows < 0).any():
        raise DataError(f"posteriors: {rows.shape} must be two or more confidences a row, none below 0")
    logs = np.log(np.maximum(rows, _LEAST_CONFIDENCE))
    return np.asarray(logs[:, :-1] - logs[:, 1:])


def fit_model(
    own: Numbers, columns: Numbers, outputs: Numbers, known: NDArray[np.bool_], *, ridge: float = _RIDGE
) -> LinearModel:
    """A linear model of outputs by ridge regression on the known nodes; other nodes' columns are not read.

    Args:
        own: [N, F].
        columns: [N, k].
        outputs: [N, m].
        known: [N] bool.
        ridge: penalty, relative to the mean squared singular value of the inputs.

    Raises:
        ConfigError: ``ridge`` is negative.
        DataError: the arrays do not fit each other, are not finite, or fewer than two nodes are known.
    """
    if not 0 <= ridge < np.inf:
        raise ConfigError(f"ridge={ridge!r} must be at least 0 and finite; take {_RIDGE}")
    if known.dtype != np.bool_ or known.shape != (len(outputs),) or known.sum() < 2:
        raise DataError(f"known: {known.dtype} {known.shape}; give one bool for each of {len(outputs)} nodes, two True")
    made = check_rows("outputs", outputs[known], int(known.sum())).astype(np.float64)
    parts = [
        check_rows(name, each[known], len(made)).astype(np.float64) if each.shape[1] else np.empty((len(made), 0))
        for name, each in (("own", own), ("columns", columns))
    ]
    inputs = np.concatenate(parts, axis=1)
    middle, mean = inputs.mean(axis=0), made.mean(axis=0)
    centred = inputs - middle
    squares = centred.T @ centred
    squares[np.diag_indices(len(squares))] += ridge * np.trace(squares) / len(squares) + _ROUNDING
    weights = np.linalg.solve(squares, centred.T @ (made - mean))
    left = made - mean - centred @ weights
    width = own.shape[1]
    return LinearModel(weights[:width], weights[width:], mean - middle @ weights, left.T @ left / len(left))


def solve_equations(model: LinearModel, own: Numbers, outputs: Numbers) -> Floats:
    """The unknown columns: the shortest solution of all equations, each weighed by its noise.

    Args:
        model: known, or fitted.
        own: [N, F].
        outputs: [N, m].

    Returns:
        [N, k] float64.

    Raises:
        DataError: the arrays do not fit the model, or are not finite.
    """
    made = check_rows("outputs", outputs, len(own)).astype(np.float64)
    if own.shape[1] != len(model.own) or made.shape[1] != model.columns.shape[1]:
        raise DataError(f"own: {own.shape} and outputs {made.shape} do not fit a model of {model.own.shape}")
    rest = made - own.astype(np.float64) @ model.own - model.bias
    whiten = model.whitened()
    return np.asarray(rest @ whiten @ np.linalg.pinv(model.columns @ whiten, rcond=1e-8))
