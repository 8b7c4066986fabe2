"""Edges from what goes into a hop of propagation and what comes out of it, where an adversary has both (R > 1 rounds).

A hop without weights is H' = A·H, row by row a combination of the neighbours' rows, with new equations for the same A
in every round of every pass. Least squares finds A.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from veilgraph.audit.attacks.link_features import Floats, Numbers
from veilgraph.audit.attacks.pairs import Pairs, check_pairs
from veilgraph.core.errors import ConfigError, DataError

MAX_NODES = 5000
"""The most nodes that all weights between them are estimated for."""


def neighbour_weights(inputs: Numbers, outputs: Numbers, *, ridge: float = 1e-3) -> Floats:
    """Ridge estimate of A in outputs = A·inputs, for all steps together.

    Args:
        inputs: [S, N, d].
        outputs: [S, N, d], of the same steps.
        ridge: penalty, relative to the mean squared singular value of the inputs.

    Returns:
        [N, N] float64: row v has the weights of the nodes whose rows v's output is made of.

    Raises:
        ConfigError: ``ridge`` is not positive.
        DataError: the arrays do not fit each other, are not finite or zero, or have more than ``MAX_NODES`` nodes.
    """
    if not 0 < ridge < np.inf:
        raise ConfigError(f"ridge={ridge!r} must be positive and finite; take 1e-3")
    if inputs.ndim != 3 or inputs.shape != outputs.shape or not inputs.size:
        raise DataError(f"inputs: {inputs.shape} and outputs {outputs.shape} must both be [steps, nodes, width]")
    nodes = inputs.shape[1]
    if nodes > MAX_NODES:
        raise DataError(
            f"inputs: have {nodes} nodes; weights between all of them are estimated for at most {MAX_NODES}"
        )
    squares, products = np.zeros((nodes, nodes)), np.zeros((nodes, nodes))
    for given, made in zip(inputs, outputs, strict=True):
        row = given.astype(np.float64)
        size = np.square(row).sum() or 1.0
        squares += row @ (row.T / size)
        products += made.astype(np.float64) @ (row.T / size)
    trace = float(np.trace(squares))
    if not (np.isfinite(trace) and np.isfinite(products).all() and trace > 0):
        raise DataError("inputs: they and outputs must be finite, and inputs not zero everywhere; leave out such steps")
    squares[np.diag_indices(nodes)] += ridge * trace / nodes
    return np.asarray(cho_solve(cho_factor(squares, overwrite_a=True), products.T, overwrite_b=True).T)


def weight_scores(weights: Floats, pairs: Pairs) -> Floats:
    """Scores of pairs, [M] float64: the larger weight of one node in the other, each beside its row's spread.

    Raises:
        DataError: ``pairs`` are no pairs of the matrix's nodes.
    """
    first, second = check_pairs(pairs, len(weights)).T
    spread = weights.std(axis=1)
    spread[spread == 0] = 1
    scaled = weights / spread[:, None]
    return np.asarray(np.maximum(scaled[first, second], scaled[second, first]))
