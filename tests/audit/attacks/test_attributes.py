"""Attribute inference: which attributes are attacked, and what is found where there is something and where not."""

import numpy as np
import pytest

from veilgraph.audit.features import auxiliary_nodes, choose_attributes, infer_attribute
from veilgraph.audit.statistics import intervals, measure
from veilgraph.graph.builtin import digits_data


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)


class TestInference:
    def test_a_first_layer_gives_pixels_away(self, random):
        pixels = digits_data(0).x.numpy()
        embeddings = pixels @ random.normal(size=(64, 16))
        auxiliary = auxiliary_nodes(len(pixels), 0.3, seed=0)
        for attribute in choose_attributes(pixels, count=3):
            scores, truth = (
                infer_attribute(embeddings, attribute.values, auxiliary, seed=0),
                attribute.values[~auxiliary],
            )
            assert ((scores > 0) == truth).mean() > max(truth.mean(), 1 - truth.mean()) + 0.1
            assert measure(scores, truth).auc > 0.7

    def test_an_embedding_that_knows_nothing_gives_nothing_away(self, random):
        values, auxiliary = random.random(2000) < 0.3, auxiliary_nodes(2000, 0.5, seed=0)
        scores, truth = infer_attribute(random.normal(size=(2000, 8)), values, auxiliary, seed=0), values[~auxiliary]
        auc = intervals(scores, truth, seed=0, samples=200, confidence=0.99)["auc"]
        assert auc.low < 0.5 < auc.high
        assert ((scores > 0) == truth).mean() < 1 - truth.mean() + 0.02

    def test_the_attacked_nodes_values_are_not_read(self, random):
        embeddings, auxiliary = random.normal(size=(300, 4)), auxiliary_nodes(300, 0.5, seed=0)
        values = embeddings[:, 0] > 0
        others = np.where(auxiliary, values, random.random(300) < 0.5)
        found, again = (infer_attribute(embeddings, some, auxiliary, seed=0) for some in (values, others))
        assert found.tolist() == again.tolist()
        assert ((found > 0) == values[~auxiliary]).mean() > 0.95
        assert ((found > 0) == others[~auxiliary]).mean() < 0.7
