"""The features of pairs: distances against scipy's, operations, entropies."""

import numpy as np
import pytest
from scipy.spatial import distance as scipy_distances
from scipy.stats import entropy

from veilgraph.audit.pairs import DISTANCES, NodeRows, entropies, pair_distances, pair_features

SCIPY = {
    "cosine": scipy_distances.cosine,
    "euclidean": scipy_distances.euclidean,
    "correlation": scipy_distances.correlation,
    "chebyshev": scipy_distances.chebyshev,
    "bray-curtis": scipy_distances.braycurtis,
    "canberra": scipy_distances.canberra,
    "manhattan": scipy_distances.cityblock,
    "squared-euclidean": scipy_distances.sqeuclidean,
}


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


class TestDistances:
    @pytest.mark.parametrize("name", DISTANCES)
    def test_they_are_scipys(self, name, random):
        rows, pairs = random.normal(size=(30, 6)), random.integers(30, size=(200, 2))
        expected = [SCIPY[name](rows[first], rows[second]) for first, second in pairs]
        assert pair_distances(rows, pairs, name) == pytest.approx(expected, rel=1e-9, abs=1e-12)


class TestFeatures:
    def test_entropies_of_posteriors_and_of_logits(self, random):
        logits = random.normal(size=(20, 4))
        posteriors = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected = entropy(posteriors, axis=1)
        assert entropies(posteriors)[:, 0] == pytest.approx(expected)
        assert entropies(logits)[:, 0] == pytest.approx(expected)

    def test_the_two_ends_may_be_swapped(self, random):
        nodes, pairs = NodeRows(random.dirichlet(np.ones(4), 9)), random.integers(9, size=(20, 2))
        ahead, back = (pair_features(nodes, ends, same_width=True) for ends in (pairs, pairs[:, ::-1]))
        assert ahead == pytest.approx(back)
