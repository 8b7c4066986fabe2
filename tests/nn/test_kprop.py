import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.errors import refused
from tests.nn.slow import DOUBLE, random_graph, slow_aggregate
from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.features import from_scipy, to_scipy
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.node_dp import kprop
from veilgraph.paradigms.node_dp.kprop import KPropNetwork, PropagatedInput, neighbour_adjacency, propagate
from veilgraph.paradigms.node_dp.settings import KPropSettings
from veilgraph.privacy.local.affine import AffineFeatures

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


def test_one_hop_leaves_the_node_itself_out():
    graph = PartyGraph("a", torch.eye(3, dtype=DOUBLE), torch.tensor([[0, 1, 1, 1], [1, 0, 1, 2]]))
    found = propagate(neighbour_adjacency(graph, "mean", DOUBLE), graph.features, 1)
    torch.testing.assert_close(found, torch.tensor([[0, 1, 0], [1, 0, 0], [0, 1, 0]], dtype=DOUBLE))


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
    source = PropagatedInput(AffineFeatures(given_values, 7.5, 0.5), graph, KPropSettings(hops=hops), DOUBLE)
    assert source.is_propagated == (layout != "sparse after W")
    matrix = torch.linalg.matrix_power(slow_aggregate(graph, "gcn"), hops) if hops else slow_gcn(graph)
    weight = torch.randn(6, 4, dtype=DOUBLE, requires_grad=True)
    expected = matrix @ (7.5 * values + 0.5) @ weight
    torch.testing.assert_close(source.times(weight), expected)
    (mine,) = torch.autograd.grad(source.times(weight).cos().sum(), weight)
    (reference,) = torch.autograd.grad(expected.cos().sum(), weight)
    torch.testing.assert_close(mine, reference)


@pytest.mark.parametrize(
    ("nodes", "columns", "propagation", "expected"),
    [(1000, 5, 1000, True), (1000, 100, 1000, False), (1000, 100, 10**6, True), (40_000, 4000, 10**9, False)],
)
def test_sparse_features_are_propagated_once_where_that_is_cheaper_and_small(nodes, columns, propagation, expected):
    one_each = from_scipy(to_scipy(sparse_signs(nodes, 1).to_sparse_csr()))
    wide = torch.sparse_csr_tensor(
        one_each.crow_indices(), one_each.col_indices(), one_each.values(), (nodes, columns), check_invariants=True
    )
    assert kprop._is_cheaper_propagated(wide, propagation) is expected


def network(graph, features, **changes):
    chosen = KPropSettings(**{"hops": 2, "dim": 4, "dropout": 0.5, **changes})
    return KPropNetwork(chosen, features, graph, 3, streams=LearningStreams(0, "server"), dtype=DOUBLE)


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


def test_the_output_does_not_depend_on_the_scale_of_the_features():
    graph = random_graph()
    values = sparse_signs(9, 6).to_sparse_csr()
    small, large = (network(graph, AffineFeatures(values, scale, 0.5 * scale)) for scale in (1.0, 1e4))
    torch.testing.assert_close(small(None), large(None))
    assert float(large.gain) == pytest.approx(1e-4 * float(small.gain))


def test_without_edges_nothing_is_propagated_and_all_is_finite():
    graph = random_graph(edges=0)
    model = network(graph, AffineFeatures(graph.features))
    assert float(model.gain) == 1
    torch.testing.assert_close(model(None), model.output.bias.expand(9, 3))


def test_dropout_follows_its_generator():
    graph = random_graph()
    model = network(graph, AffineFeatures(graph.features))
    first, again, other = (model(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, model(None))


def test_initial_weights_follow_the_seed():
    graph = random_graph()
    model = network(graph, AffineFeatures(graph.features))
    again = network(graph, AffineFeatures(graph.features), aggregate="mean")
    assert torch.equal(model.update.weight, again.update.weight)


@pytest.mark.parametrize("changes", [{"hops": -1}, {"dim": 0}, {"dropout": 1.0}, {"aggregate": "max"}, {"steps": 2}])
def test_what_the_settings_refuse(changes):
    with refused(ValidationError, key=next(iter(changes)), value=next(iter(changes.values()))):
        KPropSettings(**changes)
