"""KProp and learning from perturbed labels, against dense matrices and the definitions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from veilgraph_node_dp import learner as kprop
from veilgraph_node_dp.learner import (
    KPropNetwork,
    LabelDenoising,
    PropagatedInput,
    neighbour_adjacency,
    propagate,
)
from veilgraph_node_dp.mechanisms import AffineFeatures
from veilgraph_node_dp.settings import DenoiseSettings, KPropSettings

from tests import nightly
from tests.nn.slow import DOUBLE, random_graph, slow_aggregate
from veilgraph.core.randomness import LearningStreams

AGGREGATES = ["gcn", "mean", "sum"]


def slow_gcn(graph):
    matrix = slow_aggregate(graph, "sum")
    for node in graph.edge_index[0, graph.edge_index[0] == graph.edge_index[1]].tolist():
        matrix[node, node] += 1
    with_loops = matrix + torch.eye(graph.num_nodes, dtype=DOUBLE)
    root = with_loops.sum(1).rsqrt()
    return root[:, None] * with_loops * root


def sparse_signs(nodes, columns, seed=0):
    """What the multi-bit mechanism releases with m = 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.zeros(nodes, columns, dtype=DOUBLE)
    chosen = torch.randint(0, columns, (nodes,), generator=generator)
    x[torch.arange(nodes), chosen] = torch.randint(0, 2, (nodes,), generator=generator).to(DOUBLE) * 2 - 1
    return x


@settings(max_examples=40)
@given(
    aggregate=st.sampled_from(AGGREGATES),
    nodes=st.integers(1, 8),
    edges=st.integers(0, 20),
    hops=st.integers(0, 4),
    weighted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_algorithm_2_equals_the_dense_computation(aggregate, nodes, edges, hops, weighted, seed):
    graph = random_graph(nodes, edges, seed, weighted)
    expected = torch.linalg.matrix_power(slow_aggregate(graph, aggregate), hops) @ graph.features
    found = propagate(neighbour_adjacency(graph, aggregate, DOUBLE), graph.features, hops)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("hops", [0, 1, 3])
@pytest.mark.parametrize("layout", ["strided", "sparse", "integer", "sparse after W"])
def test_rectified_features_are_never_formed_but_count(hops, layout, monkeypatch):
    graph = random_graph()
    values = sparse_signs(9, 6)
    given_values = {
        "strided": values,
        "sparse": values.to_sparse_csr(),
        "integer": values.to(torch.int8),
        "sparse after W": values.to_sparse_csr(),
    }[layout]
    if layout == "sparse after W":
        monkeypatch.setattr(kprop, "LARGEST", 0)
    source = PropagatedInput(AffineFeatures(given_values, 7.5, 0.5), graph, hops, "gcn", DOUBLE)
    assert source.is_propagated == (layout != "sparse after W")
    matrix = torch.linalg.matrix_power(slow_aggregate(graph, "gcn"), hops) if hops else slow_gcn(graph)
    weight = torch.randn(6, 4, dtype=DOUBLE, requires_grad=True)
    expected = matrix @ (7.5 * values + 0.5) @ weight
    torch.testing.assert_close(source.times(weight), expected)
    (mine,) = torch.autograd.grad(source.times(weight).cos().sum(), weight)
    (reference,) = torch.autograd.grad(expected.cos().sum(), weight)
    torch.testing.assert_close(mine, reference)


def network(graph, features, **changes):
    chosen = KPropSettings(**{"hops": 2, "dim": 4, "dropout": 0.5, **changes})
    return KPropNetwork(chosen, chosen.tried[0], features, graph, 3, streams=LearningStreams(0, "server"), dtype=DOUBLE)


@pytest.mark.parametrize("hops", [0, 3])
def test_the_network_equals_the_dense_computation(hops):
    graph = random_graph()
    features = AffineFeatures(sparse_signs(9, 6).to_sparse_csr(), 3.0, 0.5)
    model = network(graph, features, hops=hops, activation="tanh")
    first = torch.linalg.matrix_power(slow_aggregate(graph, "gcn"), hops) if hops else slow_gcn(graph)
    x = 3.0 * sparse_signs(9, 6) + 0.5
    hidden = torch.tanh(model.gain * (first @ x @ model.update.weight.t()) + model.update.bias)
    expected = slow_gcn(graph) @ (hidden @ model.output.weight.t()) + model.output.bias
    torch.testing.assert_close(model(None), expected)


LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2])
KNOWN = torch.tensor([True, True, False, True, True, False, True, False, True])


def response(keep, classes=3):
    """Randomised response that keeps a label with probability ``keep``."""
    matrix = torch.full((classes, classes), (1 - keep) / (classes - 1), dtype=DOUBLE)
    return matrix.fill_diagonal_(keep)


def denoising(graph, steps, transition, known=KNOWN, targets="soft"):
    settings = DenoiseSettings(denoise_steps=steps, targets=targets)
    return LabelDenoising(LABELS, known, transition, settings, neighbour_adjacency(graph, "gcn", DOUBLE))


def slow_aggregated(graph, p, steps):
    """A^steps over the known nodes and its row sums, p itself where they are zero; node by node."""
    matrix = torch.linalg.matrix_power(slow_aggregate(graph, "gcn"), steps) * KNOWN
    return torch.stack([row @ p / row.sum() if row.sum() > 0 else p[v] for v, row in enumerate(matrix)])


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_loss_equals_the_dense_computation(steps):
    graph, transition = random_graph(edges=15), response(0.6)
    logits = torch.randn(9, 3, dtype=DOUBLE, requires_grad=True)
    found = denoising(graph, steps, transition)
    one_hot = functional.one_hot(LABELS, 3).to(DOUBLE)
    p = logits.softmax(1) @ transition
    target, predicted = (slow_aggregated(graph, q, steps) if steps else q for q in (one_hot, p))
    torch.testing.assert_close(found.targets[KNOWN], target[KNOWN])
    expected = -(target * predicted.log()).sum(1)[KNOWN].mean()
    torch.testing.assert_close(found.loss(logits, KNOWN), expected)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (found.loss(logits, KNOWN), expected)]
    torch.testing.assert_close(*gradients)


def test_labels_of_other_nodes_are_not_read():
    graph, transition = random_graph(), response(0.6)
    other = torch.where(KNOWN, LABELS, -1)
    settings = DenoiseSettings(denoise_steps=1, targets="soft")
    found = LabelDenoising(other, KNOWN, transition, settings, neighbour_adjacency(graph, "gcn", DOUBLE))
    assert torch.equal(found.targets[KNOWN], denoising(graph, 1, transition).targets[KNOWN])


@nightly
def test_the_truth_minimises_the_expected_loss():
    """Where the network is right about p(y|x), its side of the comparison is the expectation of the labels' side."""
    graph, transition = random_graph(), response(0.7)
    truth = (2 * torch.randn(9, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))).requires_grad_()
    found = denoising(graph, 2, transition)
    drawn = truth.detach().softmax(1) @ transition
    labels = torch.multinomial(drawn, 3000, replacement=True, generator=torch.Generator().manual_seed(0))
    settings = DenoiseSettings(denoise_steps=2, targets="soft")
    adjacency = neighbour_adjacency(graph, "gcn", DOUBLE)
    draws = [LabelDenoising(column, KNOWN, transition, settings, adjacency).targets for column in labels.T]
    found.targets = torch.stack(draws).mean(0)
    (at_truth,) = torch.autograd.grad(found.loss(truth, KNOWN), truth)
    wrong = (-truth.detach()).requires_grad_()
    (elsewhere,) = torch.autograd.grad(found.loss(wrong, KNOWN), wrong)
    assert float(at_truth.norm()) < 0.15 * float(elsewhere.norm())
