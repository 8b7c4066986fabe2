"""Edges from inputs and outputs of propagation: exact where equations suffice, chance where they are unrelated."""

from __future__ import annotations

import numpy as np

from veilgraph.audit.edges import neighbour_weights, weight_scores
from veilgraph.audit.pairs import sample_pairs
from veilgraph.audit.statistics import measure

NODES, WIDTH = 60, 8


def weights(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    links = np.triu(random.random((NODES, NODES)) < 0.08, 1)
    linked = (links | links.T).astype(np.float64)
    return np.asarray(linked / np.maximum(linked.sum(axis=1, keepdims=True), 1))


def inputs(seed: int, steps: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(steps, NODES, WIDTH))


def test_enough_equations_give_all_weights() -> None:
    true, given = weights(0), inputs(1, 20)
    assert np.allclose(neighbour_weights(given, true @ given, ridge=1e-10), true, atol=1e-6)


def test_links_are_found_from_too_few_equations_and_in_noise() -> None:
    true, given = weights(0), inputs(1, 5)
    noise = 0.1 * np.random.default_rng(2).normal(size=given.shape)
    asked = sample_pairs(np.stack(np.nonzero(true)), NODES, seed=0)
    scores = weight_scores(neighbour_weights(given, true @ given + noise), asked.pairs)
    assert measure(scores, asked.truth).auc > 0.9


def test_outputs_of_other_inputs_tell_nothing() -> None:
    true, given = weights(0), inputs(1, 20)
    asked = sample_pairs(np.stack(np.nonzero(true)), NODES, seed=0)
    scores = weight_scores(neighbour_weights(given, true @ inputs(3, 20)), asked.pairs)
    assert abs(measure(scores, asked.truth).auc - 0.5) < 0.12  # 2.5 standard deviations of an AUC of 130 and 130
