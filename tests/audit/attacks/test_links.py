"""Link stealing: all eight attacks where there is nothing to be found and where there is much."""

import numpy as np
import pytest
import torch

from research.attack_strength_models import PlainSettings, induced, train_plain
from research.link_reference import reference_posteriors
from research.link_stealing import STEALING, Knowledge, link_scores
from tests import nightly
from veilgraph.audit.pairs import KnownPairs, NodeRows, sample_pairs
from veilgraph.audit.statistics import intervals, measure
from veilgraph.graph.builtin import digits_data

NETWORK = PlainSettings("GCN", width=16, epochs=100, dropout=0.5, weight_decay=5e-4)


def nodes_of(x: torch.Tensor, posteriors: np.ndarray) -> NodeRows:
    reference = reference_posteriors(x.numpy(), posteriors.argmax(axis=1), seed=0)
    return NodeRows(posteriors, x.numpy(), reference)


def induced_digits(keep: torch.Tensor) -> tuple[NodeRows, np.ndarray]:
    data = induced(digits_data(0), keep)
    members = torch.arange(len(data.y)) % 8 == 0
    outputs = train_plain(data, members, int(data.y.max()) + 1, NETWORK, seed=0).outputs(data)
    return nodes_of(data.x, outputs.posteriors), data.edge_index.numpy()


@pytest.fixture(scope="module")
def digits() -> tuple[Knowledge, KnownPairs]:
    """One half of the digits attacked; the shadow is the other half without 8 and 9, so it has other classes."""
    even, y = torch.arange(1797) % 2 == 0, digits_data(0).y
    target, edges = induced_digits(even)
    shadow, shadow_edges = induced_digits(~even & (y < 8))
    partial, attacked = sample_pairs(edges, target.num_nodes, seed=0).split(0.2, seed=1)
    known = sample_pairs(shadow_edges, shadow.num_nodes, seed=2)
    return Knowledge(target, partial, (shadow, known)), attacked


@pytest.fixture(scope="module")
def nothing() -> tuple[Knowledge, KnownPairs]:
    """Posteriors and attributes that know nothing of the links."""
    random = np.random.default_rng(1)

    def nodes(classes: int) -> NodeRows:
        outputs, reference = (random.dirichlet(np.ones(classes), 600) for _ in range(2))
        return NodeRows(outputs, random.normal(size=(600, 9)), reference)

    target, shadow = nodes(5), nodes(3)
    partial, attacked = sample_pairs(random.integers(600, size=(2, 1200)), 600, seed=0).split(0.3, seed=1)
    known = sample_pairs(random.integers(600, size=(2, 400)), 600, seed=2)
    return Knowledge(target, partial, (shadow, known)), attacked


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


class TestReference:
    def test_no_row_comes_from_a_model_that_saw_its_class(self, random):
        attributes = np.eye(200)  # tells a node's class to nobody but who has seen that node
        classes = random.integers(2, size=200)
        found = reference_posteriors(attributes, classes, seed=0)
        assert found.sum(axis=1) == pytest.approx(np.ones(200))
        assert np.mean(found.argmax(axis=1) == classes) < 0.65


class TestAttacks:
    @pytest.mark.cases(4)
    @pytest.mark.parametrize(
        ("number", "classifier"), [*((number, "logistic") for number in STEALING), (3, "mlp"), (7, "mlp")]
    )
    def test_they_find_nothing_where_there_is_nothing(self, nothing, number, classifier):
        knowledge, attacked = nothing
        scores = link_scores(number, knowledge, attacked.pairs, seed=0, classifier=classifier)
        auc = intervals(scores, attacked.truth, seed=0, samples=200, confidence=0.99)["auc"]
        assert auc.low < 0.5 < auc.high
        assert auc.high - auc.low < 0.12

    @nightly
    def test_they_find_links_in_a_plain_gcn(self, digits):
        knowledge, attacked = digits
        aucs = [auc_of(number, knowledge, attacked) for number in STEALING]
        assert aucs[0] > 0.9
        assert min(aucs[1:]) > aucs[0] - 0.005
        assert min(aucs[5:]) > aucs[0]


def auc_of(number: int, knowledge: Knowledge, attacked: KnownPairs) -> float:
    return measure(link_scores(number, knowledge, attacked.pairs, seed=0), attacked.truth).auc
