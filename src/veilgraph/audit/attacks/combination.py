"""Edges from rows that are made of neighbours' rows: each as a sparse combination of others', no weight below zero.

A hop takes the mean over neighbours, so what it puts out is a combination of few rows with non-negative weights, which
non-negative least squares finds from fewer equations than rows (Bruckstein, Elad & Zibulevsky 2008, "On the uniqueness
of nonnegative sparse solutions to underdetermined systems of equations"; Lawson & Hanson 1974, chapter 23). Where the
hop's input is not known, rows of its output are combined of each other: self-expression (Elhamifar & Vidal 2013,
"Sparse subspace clustering", section 2), in which neighbours share what they are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from veilgraph.audit.attacks.link_features import Floats, Numbers, check_rows
from veilgraph.audit.attacks.pairs import Pairs, check_pairs
from veilgraph.core.errors import ConfigError, DataError

CANDIDATES: Final = 64
"""Rows that one is made of at most: those that a first guess ranks highest."""

Guess = Callable[[NDArray[np.int64]], Floats]
"""Nodes [n] → how likely it makes each node to be a neighbour of theirs, [n, N], around 1 at most."""

_PENALTY: Final = 0.01
_GUESS: Final = 1e-3
_BLOCK: Final = 256
_MOST_STEPS: Final = 50
_TINY: Final = float(np.finfo(np.float64).tiny)


def standardised(rows: Numbers) -> Floats:
    """Each row [d] less its mean and of length 1, so that products are correlations and lengths say nothing."""
    centred = rows.astype(np.float64) - rows.mean(axis=1, keepdims=True)
    return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), _TINY))


def alike(rows: Floats) -> Guess:
    """Inner products of rows [N, d], without a node with itself, as a first guess."""

    def guessed(nodes: NDArray[np.int64]) -> Floats:
        found = np.asarray(rows[nodes] @ rows.T)
        found[np.arange(len(nodes)), nodes] = -np.inf
        return found

    return guessed


def combination_scores(
    inputs: Numbers, outputs: Numbers, pairs: Pairs, guess: Guess, *, penalty: float = _PENALTY
) -> Floats:
    """Scores of pairs: the larger weight of one node in the other, and where neither has one the first guess.

    Args:
        inputs: [N, m], what rows are made of; ``outputs`` themselves where it is not known.
        outputs: [N, m].
        pairs: [M, 2].
        guess: ranks candidates; −∞ for what is none.
        penalty: on the sum of weights, relative to the candidates' mean length.

    Returns:
        [M] float64.

    Raises:
        ConfigError: ``penalty`` is negative.
        DataError: the arrays do not fit each other, are not finite, or ``pairs`` are no pairs of nodes.
    """
    if not 0 <= penalty < np.inf:
        raise ConfigError(f"penalty={penalty!r} must be at least 0 and finite; take {_PENALTY}")
    given = check_rows("inputs", inputs, len(inputs)).astype(np.float64)
    made = check_rows("outputs", outputs, len(inputs)).astype(np.float64)
    if given.shape != made.shape:
        raise DataError(f"inputs: {given.shape} and outputs {made.shape} must have one shape: the same equations")
    asked = check_pairs(pairs, len(given))
    both = np.concatenate([asked, asked[:, ::-1]])
    order = np.argsort(both[:, 0], kind="stable")
    scores = np.empty(len(both))
    for block in np.array_split(np.unique(both[:, 0]), 1 + len(asked) // _BLOCK):
        places = order[np.isin(both[order, 0], block)]
        if len(places):
            rows, others = np.searchsorted(block, both[places, 0]), both[places, 1]
            guesses = guess(block)
            weights = _weights(given, made[block], guesses, penalty)
            scores[places] = weights[rows, others] + _GUESS * np.maximum(guesses[rows, others], -1)
    return np.maximum(*np.split(scores, 2))


def _weights(inputs: Floats, outputs: Floats, guesses: Floats, penalty: float) -> Floats:
    """[n, N], of which ``CANDIDATES`` a row may be above zero."""
    found, count = np.zeros_like(guesses), min(CANDIDATES, guesses.shape[1] - 1)
    for place, (row, likely) in enumerate(zip(outputs, guesses, strict=True)):
        chosen = np.argpartition(-likely, count)[:count]
        chosen = chosen[likely[chosen] > -np.inf]
        columns = inputs[chosen].T
        size = penalty * float(np.linalg.norm(columns)) / len(chosen) ** 0.5
        equations = np.vstack([columns, np.full((1, len(chosen)), size)])
        try:
            found[place, chosen] = nnls(equations, np.append(row, 0.0), maxiter=_MOST_STEPS * len(chosen))[0]
        except RuntimeError:  # where the steps do not suffice, the guess is left
            continue
    return found
