"""Edges from inputs and outputs of propagation: exact where equations suffice."""

import numpy as np

from veilgraph.audit.edges import neighbour_weights

NODES, WIDTH, STEPS = 60, 8, 20


def test_enough_equations_give_all_weights() -> None:
    random = np.random.default_rng(0)
    links = np.triu(random.random((NODES, NODES)) < 0.08, 1)
    linked = (links | links.T).astype(np.float64)
    true = linked / np.maximum(linked.sum(axis=1, keepdims=True), 1)
    given = random.normal(size=(STEPS, NODES, WIDTH))
    assert np.allclose(neighbour_weights(given, true @ given, ridge=1e-10), true, atol=1e-6)
