"""The features of pairs: distances against scipy's, operations, entropies."""

import numpy as np
import pytest
from scipy.spatial import distance as scipy_distances
from scipy.stats import entropy

from veilgraph.audit.pairs import DISTANCES, OPERATIONS, NodeRows, entropies, pair_distances, pair_features

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

    @pytest.mark.parametrize("name", DISTANCES)
    def test_blocks_change_nothing(self, name, random):
        rows, pairs = random.dirichlet(np.ones(64), 30), random.integers(30, size=(40_000, 2))
        found = pair_distances(rows, pairs, name)
        for some in (slice(0, 50), slice(16_360, 16_410), slice(39_950, 40_000)):
            assert found[some].tolist() == pair_distances(rows, pairs[some], name).tolist()

    @pytest.mark.parametrize(
        ("name", "expected"), [("cosine", [0, 0.5]), ("bray-curtis", [0, 1]), ("canberra", [0, 2])]
    )
    def test_zero_rows(self, name, expected):
        rows = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 2.0]])
        assert pair_distances(rows, np.array([[0, 1], [0, 2]]), name) == pytest.approx(expected)

    def test_constant_rows_have_no_direction_to_correlate(self):
        rows = np.array([[0.1] * 3, [1 / 3] * 3, [0.5, 0.3, 0.2]])
        assert pair_distances(rows, np.array([[0, 1], [1, 2]]), "correlation") == pytest.approx([0, 0.5])

    @pytest.mark.parametrize("name", ["cosine", "correlation"])
    def test_nearly_parallel_rows_keep_their_order(self, name):
        rows = np.array([[1.0, 0.0, 0.0], [1.0, 1e-9, 0.0], [1.0, 2e-9, 0.0]])
        near, far = pair_distances(rows, np.array([[0, 1], [0, 2]]), name)
        assert 0 < near < far
        assert far / near == pytest.approx(4, rel=1e-4)


class TestFeatures:
    def test_operations(self):
        results = {name: operation(np.array([3.0]), np.array([5.0]))[0] for name, operation in OPERATIONS.items()}
        assert results == {"average": 4, "hadamard": 15, "weighted-l1": 2, "weighted-l2": 4}

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
