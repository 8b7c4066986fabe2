"""Edges from rows made of neighbours' rows: found from fewer equations than rows, and not from unrelated ones."""

from __future__ import annotations

import numpy as np

from veilgraph.audit.edges import alike, combination_scores, standardised
from veilgraph.audit.pairs import KnownPairs, sample_pairs
from veilgraph.audit.statistics import measure

NODES, WIDTH = 300, 24


def mean_of_neighbours(seed: int) -> tuple[np.ndarray, KnownPairs]:
    random = np.random.default_rng(seed)
    links = np.triu(random.random((NODES, NODES)) < 3 / NODES, 1)
    links |= links.T
    mean = links / np.maximum(links.sum(axis=1, keepdims=True), 1)
    return mean, sample_pairs(np.stack(np.nonzero(links)), NODES, seed=seed)


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(NODES, WIDTH))


def test_outputs_alone_are_combined_of_each_other() -> None:
    mean, asked = mean_of_neighbours(0)
    smooth = standardised((np.eye(NODES) + mean) @ rows(1))
    assert measure(combination_scores(smooth, smooth, asked.pairs, alike(smooth)), asked.truth).auc > 0.9


def test_outputs_of_other_inputs_tell_nothing() -> None:
    (mean, asked), given = mean_of_neighbours(0), rows(1)
    other = standardised(rows(2))
    for inputs, outputs in ((given, mean @ rows(3)), (other, other)):
        scores = combination_scores(inputs, outputs, asked.pairs, alike(standardised(outputs)))
        if inputs is other:
            assert abs(measure(scores, asked.truth).auc - 0.5) < 0.06
        else:
            weights = combination_scores(inputs, outputs, asked.pairs, lambda nodes: np.zeros((len(nodes), NODES)))
            assert abs(measure(weights, asked.truth).auc - 0.5) < 0.06
