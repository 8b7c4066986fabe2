"""Attribute inference: which attributes are attacked, and what is found where there is something and where not."""

import numpy as np
import pytest

from tests.errors import refused
from veilgraph.audit.features import auxiliary_nodes, choose_attributes, infer_attribute
from veilgraph.audit.statistics import intervals
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.builtin import digits_data


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)


class TestChoice:
    def test_the_most_even_columns_come_first_and_lopsided_ones_not_at_all(self):
        columns = [np.arange(100) < ones for ones in (30, 4, 100, 50, 45)]
        found = choose_attributes(np.stack(columns, axis=1).astype(np.float32), count=9)
        assert [attribute.column for attribute in found] == [3, 4, 0]
        assert [attribute.share for attribute in found] == pytest.approx([0.5, 0.45, 0.3])
        assert found[2].values.tolist() == columns[0].tolist()

    def test_any_other_column_is_cut_at_its_median(self, random):
        sizes = random.permutation(101).astype(np.float64)
        counts = np.where(np.arange(101) < 80, 0.0, sizes)  # mostly zero: cut above it
        found = choose_attributes(np.stack([counts, sizes], axis=1), count=2)
        assert [(attribute.column, attribute.above) for attribute in found] == [(1, 50), (0, 0)]
        assert found[0].values.tolist() == (sizes > 50).tolist()
        assert found[1].values.sum() == np.count_nonzero(counts)

    def test_two_values_are_told_apart_whatever_they_are(self):
        column = np.where(np.arange(40) < 25, 7.0, -2.0)
        (found,) = choose_attributes(column[:, None], count=1)
        assert found.values.tolist() == (column == 7).tolist()

    def test_there_may_be_none(self):
        assert choose_attributes(np.ones((20, 3)), count=3) == []

    def test_bad_features(self):
        with refused(DataError, key="features"):
            choose_attributes(np.array([[np.inf], [0.0]]), count=1)


class TestAuxiliary:
    def test_a_share_of_the_nodes_by_a_seed(self):
        first, again, other = (auxiliary_nodes(200, 0.3, seed=seed) for seed in (1, 1, 2))
        assert first.sum() == 60
        assert first.tolist() == again.tolist() != other.tolist()


class TestInference:
    @pytest.mark.parametrize("classifier", ["logistic", "mlp"])
    def test_a_first_layer_gives_pixels_away(self, classifier, random):
        pixels = digits_data(0).x.numpy()
        embeddings = pixels @ random.normal(size=(64, 16))
        auxiliary = auxiliary_nodes(len(pixels), 0.3, seed=0)
        for attribute in choose_attributes(pixels, count=3):
            found = infer_attribute(embeddings, attribute.values, auxiliary, seed=0, classifier=classifier)
            assert found.accuracy > found.prior_accuracy + 0.1
            assert found.auc > 0.7

    @pytest.mark.parametrize("classifier", ["logistic", "mlp"])
    def test_an_embedding_that_knows_nothing_gives_nothing_away(self, classifier, random):
        values, auxiliary = random.random(2000) < 0.3, auxiliary_nodes(2000, 0.5, seed=0)
        found = infer_attribute(random.normal(size=(2000, 8)), values, auxiliary, seed=0, classifier=classifier)
        auc = intervals(found.scores, found.truth, seed=0, samples=200, confidence=0.99)["auc"]
        assert auc.low < 0.5 < auc.high
        assert found.prior_accuracy == pytest.approx(0.7, abs=0.05)
        assert found.accuracy < found.prior_accuracy + 0.02

    def test_the_attacked_nodes_values_are_not_read(self, random):
        embeddings, auxiliary = random.normal(size=(300, 4)), auxiliary_nodes(300, 0.5, seed=0)
        values = embeddings[:, 0] > 0
        others = np.where(auxiliary, values, random.random(300) < 0.5)
        found, again = (infer_attribute(embeddings, some, auxiliary, seed=0) for some in (values, others))
        assert found.scores.tolist() == again.scores.tolist()
        assert found.accuracy > 0.95
        assert again.accuracy < 0.7

    def test_the_prior_is_the_auxiliary_nodes_majority(self, random):
        auxiliary = np.arange(100) < 50
        values = np.where(auxiliary, np.arange(100) < 40, np.arange(100) < 60)
        found = infer_attribute(random.normal(size=(100, 2)), values, auxiliary, seed=0)
        assert found.prior_accuracy == pytest.approx(0.2)

    def test_a_constant_column_and_the_scale_do_not_matter(self, random):
        embeddings, auxiliary = random.normal(size=(300, 4)), auxiliary_nodes(300, 0.5, seed=0)
        other = np.column_stack([embeddings * 1e6 + 5, np.full(300, 3.0)])
        found, again = (
            infer_attribute(rows, embeddings[:, 1] > 0, auxiliary, seed=0).auc for rows in (embeddings, other)
        )
        assert found == pytest.approx(again, abs=1e-3)

    @pytest.mark.parametrize(
        ("values", "auxiliary", "message"),
        [
            (
                np.ones(40),
                np.ones(40, dtype=np.bool_),
                {"key": "values"},
            ),
            (np.arange(40) < 9, np.arange(4) < 2, {"key": "auxiliary"}),
            (np.arange(40) < 20, np.arange(40) < 10, {"key": "truth"}),
            (np.arange(40) < 20, np.arange(40) % 20 < 15, {"key": "truth"}),
        ],
    )
    def test_arrays_that_cannot_be_attacked(self, values, auxiliary, message, random):
        with refused(DataError, **message):
            infer_attribute(random.normal(size=(40, 2)), values, auxiliary, seed=0)

    def test_an_unknown_classifier(self):
        with refused(ConfigError, key="classifier", value="svm"):
            infer_attribute(np.eye(4), np.arange(4) < 2, np.arange(4) < 3, seed=0, classifier="svm")  # type: ignore[arg-type]
