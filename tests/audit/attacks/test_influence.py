"""Edges from influence: on networks that do and do not carry features along them."""

import numpy as np
import pytest

from veilgraph.audit.edges import influence_scores, queried_pairs
from veilgraph.audit.statistics import measure

NODES, CLASSES = 60, 3


def graph(seed=0, links=90):
    random = np.random.default_rng(seed)
    return random.integers(NODES, size=(2, links))


def network(edges, hops):
    """Posteriors of ``hops`` steps of averaging over edges and a linear layer, for features [N, d]."""
    adjacency = np.eye(NODES)
    adjacency[edges[0], edges[1]] = adjacency[edges[1], edges[0]] = 1
    mean = np.linalg.matrix_power(adjacency / adjacency.sum(axis=1, keepdims=True), hops)
    weight = np.random.default_rng(5).normal(size=(8, CLASSES))

    def posteriors(features):
        shares = np.exp(mean @ features @ weight)
        return shares / shares.sum(axis=1, keepdims=True)

    return posteriors


def influences(posteriors, pairs, noise=0.0):
    random = np.random.default_rng(1)
    features = random.normal(size=(NODES, 8))

    def ask(node):
        changed = features.copy()
        changed[node] *= 2
        shares = posteriors(changed) * np.exp(noise * random.normal(size=(NODES, CLASSES)))
        return shares / shares.sum(axis=1, keepdims=True)

    return influence_scores(posteriors(features), ask, pairs)


NOTHING = np.empty((2, 0), dtype=np.int64)


@pytest.mark.parametrize(("hops", "least"), [(1, 1.0), (2, 0.95), (3, 0.85)])
def test_a_network_tells_the_edges_that_it_averages_over(hops, least):
    edges = graph()
    pairs = queried_pairs(edges, NOTHING, NODES, queries=20, seed=0)
    assert measure(influences(network(edges, hops), pairs.pairs), pairs.truth).auc >= least


def test_a_network_without_edges_or_with_much_noise_tells_none():
    edges = graph()
    pairs = queried_pairs(edges, NOTHING, NODES, queries=40, seed=0)
    alone = influences(network(edges, 0), pairs.pairs)
    assert alone.max() < 1e-12
    other = influences(network(graph(seed=1), 1), pairs.pairs)
    noisy = influences(network(edges, 1), pairs.pairs, noise=50.0)
    assert abs(measure(other, pairs.truth).auc - 0.5) < 0.1
    assert abs(measure(noisy, pairs.truth).auc - 0.5) < 0.1


def test_pairs_are_all_hidden_links_of_the_queried_and_as_many_others():
    edges, known = graph(), graph(seed=2, links=30)
    found = queried_pairs(edges, np.concatenate([known, edges[:, :20]], axis=1), NODES, queries=10, seed=0)
    own = {frozenset(pair) for pair in np.concatenate([known, edges[:, :20]], axis=1).T.tolist()}
    hidden = {frozenset(pair) for pair in edges.T.tolist() if len(set(pair)) == 2} - own
    queried = set(found.pairs[:, 0].tolist())
    assert len(queried) <= 10
    linked = {frozenset(pair) for pair in found.pairs[found.truth].tolist()}
    assert linked == {pair for pair in hidden if pair & queried}
    others = {frozenset(pair) for pair in found.pairs[~found.truth].tolist()}
    assert found.truth.sum() * 2 == len(found.truth)
    assert not others & (hidden | own)
    assert all(len(pair) == 2 for pair in others)
