"""The label holder of LPGNN learns exactly what its plaintext twin learns from the same released values."""

import math
from dataclasses import replace

import pytest
import torch
from veilgraph_node_dp.learner import LocalLearner, neighbour_adjacency, own_features, spread_labels
from veilgraph_node_dp.mechanisms import AffineFeatures
from veilgraph_node_dp.release import released_features, unpacked
from veilgraph_node_dp.settings import TRIED, node_dp

from research.local_private import LocalPrivateNetwork, NoisyLabels
from tests import nightly
from tests.errors import refused
from tests.roles.federation import CLASSES, NODES, Settings, with_own_nodes
from tests.roles.local_parties import (
    MECHANISMS,
    PRIVATE_LABELS,
    exchange,
    local_job,
    local_parties,
    publisher_for,
    session_of,
)
from tests.roles.streams import streams_of
from veilgraph.core.errors import RangeOverflow
from veilgraph.graph.party import PartyGraph
from veilgraph.link.factory import MemoryHub
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.figures import CLASS_MEASURES, Scores
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.role import precision
from veilgraph.report.training import alone_words
from veilgraph.runtime.session.training import train_step

CASES: dict[str, tuple[int, Settings, bool]] = {
    **{name: (3, {"release": {"features": mechanism}}, False) for name, mechanism in MECHANISMS.items()},
    "two holders": (2, {}, False),
    "own features": (3, {}, True),
    "own features, two holders, float64": (2, {"precision": "float64"}, True),
    "private labels": (3, PRIVATE_LABELS, False),
    "private labels, hard, own features": (
        3,
        {"release": {"labels": {"holder": "C", "epsilon": 1.0, "targets": "hard", "denoise_steps": 1}}},
        True,
    ),
    "no hops, tanh": (2, {"model": {"hops": 0, "activation": "tanh"}}, True),
    "hops chosen": (3, {"model": {"hops": "auto"}}, False),
    "hops chosen, private labels": (3, {**PRIVATE_LABELS, "model": {"hops": "auto"}}, True),
    "mean, balanced": (3, {"model": {"aggregate": "mean"}, "train": {"class_weights": "balanced"}}, False),
}


def learner_of(settings: JobSettings, graphs: list[PartyGraph]) -> LocalLearner:
    """A's role after an exchange."""
    releases = exchange(settings, graphs).releases["A"]
    session = session_of(settings, MemoryHub(["A", "B"], 1).link("A"))
    graph, nodes = graphs[0], graphs[0].common
    features = [own_features(graph), *released_features(session, releases, nodes)]
    return LocalLearner(session, graph, features, releases.labels(nodes))


def twin_of(settings: JobSettings, graphs: list[PartyGraph]) -> LocalPrivateNetwork:
    """In plaintext: every holder's mechanism, with the same randomness, and everything in one place."""
    learner, private, dtype = graphs[0].common_part(), node_dp(settings).release.labels, precision(settings)
    blocks, labels = [AffineFeatures(learner.features)], None
    for graph in graphs[1:]:
        publisher, part = publisher_for(settings, graph), graph.common_part()
        assert publisher is not None
        mechanism = publisher.mechanism
        values = unpacked(publisher.features(part.features), part.num_nodes, mechanism)
        blocks.append(AffineFeatures(values, mechanism.scale, mechanism.offset))
        if private is not None and private.holder == graph.party:
            assert part.labels is not None
            assert part.train_mask is not None
            assert part.val_mask is not None
            known, released = part.train_mask | part.val_mask, part.labels.clone()
            released[known] = publisher.labels(part.labels[known])
            labels = NoisyLabels(released, LabelResponse(private.epsilon, CLASSES).transition(), private)
            learner = replace(
                learner,
                labels=part.labels,
                train_mask=part.train_mask,
                val_mask=part.val_mask,
                test_mask=part.test_mask,
                num_classes=part.num_classes,
            )
    with streams_of("A"):
        return LocalPrivateNetwork(
            node_dp(settings).network,
            settings.train,
            learner,
            AffineFeatures.joined(blocks, dtype),
            labels,
            seed=settings.seed,
            dtype=dtype,
        )


def of_validation(scores: Scores) -> dict[str, float | None]:
    """What private labels leave to be known; true labels of test nodes are the twin's alone."""
    return {name: value for name, value in scores.record().items() if not name.startswith("test")}


@pytest.mark.parametrize("case", CASES)
def test_the_learner_is_its_plaintext_twin(case: str) -> None:
    holders, changes, own = CASES[case]
    settings = local_job(holders, changes)
    graphs = with_own_nodes(local_parties(settings, own=own), (4, 0, 3)[:holders])
    for graph in graphs:
        assert float(graph.features.to_dense().abs().max()) <= 10
    learner, twin = learner_of(settings, graphs), twin_of(settings, graphs)
    for epoch in range(1, 5):
        loss = twin.train_step(epoch)
        train_step(learner, epoch, epoch)
        assert learner.loss == loss
    with torch.no_grad():
        learner.forward(9, None)
    assert torch.equal(learner.logits, twin.infer())
    assert learner.logits.shape == (NODES, CLASSES)
    ours, theirs = learner.scores(everything=True), twin.score(twin.infer(), everything=True)
    if node_dp(settings).release.labels is None:
        assert ours == theirs
        assert ours.values["test_accuracy"] is not None
    else:
        assert of_validation(ours) == of_validation(theirs)
        assert ours.values["test_accuracy"] is None
    weights = learner.model.weights()
    expected = {f"network.{name}": tensor for name, tensor in twin.network.state_dict().items()}
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name
    assert learner.logits.dtype == precision(settings)


def test_labels_are_spread_as_in_the_closed_form() -> None:
    graph = local_parties(local_job(2))[0]
    adjacency = neighbour_adjacency(graph, "gcn", torch.float64)
    labels, train = torch.arange(NODES) % CLASSES, torch.arange(NODES) % 3 != 0
    matrix = adjacency.sum(torch.eye(NODES, dtype=torch.float64))
    own = torch.nn.functional.one_hot(labels, CLASSES).double() * train.unsqueeze(1)
    exact = torch.linalg.solve(torch.eye(NODES, dtype=torch.float64) - 0.5 * matrix, 0.5 * own)
    labels = torch.where(train, labels, -1)  # as of nodes without a label
    found = spread_labels(adjacency, labels, train, CLASSES, 0.5).exp()
    reached = exact.sum(dim=1) > 1e-6
    torch.testing.assert_close(found[reached], (exact / exact.sum(dim=1, keepdim=True))[reached], rtol=1e-5, atol=1e-7)
    shares = own.sum(dim=0) / own.sum()
    nowhere = graph.with_edges(torch.zeros(graph.num_edges, dtype=torch.bool))
    alone = spread_labels(neighbour_adjacency(nowhere, "gcn", torch.float64), labels, train, CLASSES, 0.5).exp()
    torch.testing.assert_close(alone[~train], shares.expand(int((~train).sum()), CLASSES))


@nightly
@pytest.mark.parametrize(("epsilon", "adds"), [(0.01, False), (2000.0, True)])
def test_the_learner_is_told_whether_releases_add_to_its_own_data(epsilon: float, adds: bool) -> None:
    """Where they do, hardly an edge is left for labels to be spread over."""
    settings = local_job(2, {"model": {"hops": "auto"}}, mechanism="laplace", epsilon=epsilon)
    graphs = local_parties(settings)
    if adds:
        few, train = graphs[0].with_edges(torch.arange(graphs[0].num_edges) < 10), graphs[0].train_mask
        assert train is not None
        graphs[0] = replace(few, val_mask=~train, test_mask=None)
    learner = learner_of(settings, graphs)
    for epoch in range(1, 80):
        train_step(learner, epoch, epoch)
    learner.forward(99, None)
    found = learner.alone()
    assert found is not None
    assert found["adds"] is adds
    assert found["hops"] in TRIED
    words = alone_words({"alone": {"A": found}}, CLASS_MEASURES)
    assert len(words) == 1
    assert words[0].startswith(
        f"A's validation nodes show {'a' if adds else 'no clear'} gain from what others released."
    )
    assert ("release.features.epsilon" in words[0]) is not adds


def test_private_labels_are_those_that_were_released() -> None:
    settings = local_job(3, PRIVATE_LABELS)
    graphs = local_parties(settings)
    released = exchange(settings, graphs).releases["A"].labels(NODES)
    learner = learner_of(settings, graphs)
    assert released is not None
    assert learner.graph.labels is not None
    assert torch.equal(learner.graph.labels, released.values)
    assert graphs[1].labels is not None
    assert graphs[1].train_mask is not None
    assert graphs[1].val_mask is not None
    known = graphs[1].train_mask | graphs[1].val_mask
    assert torch.equal(released.values >= 0, known), "nothing is released of test nodes"
    kept = float((released.values == graphs[1].labels)[known].double().mean())
    assert 0.5 < kept < 0.98, "e²/(e² + 2) = 0.79 is expected"
    assert learner.graph.test_mask is None


def test_training_that_diverges_says_so() -> None:
    for changes in ({}, PRIVATE_LABELS):
        learner = learner_of(local_job(3, changes), local_parties(local_job(3, changes)))
        with torch.no_grad():
            next(learner.model.networks["network"].parameters()).fill_(math.nan)
        with refused(RangeOverflow, code="diverged", key="train.learning_rate"):
            train_step(learner, 0, 1)
