"""Hops relation by relation: each with a mean, a weight and a reach of its own, over a graph and a neighbourhood."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import RGCNConv
from veilgraph_testing.graphs import random_graph, random_rows, seeded, without_edges

from tests import nightly
from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.rules import Relation
from veilgraph.nn.local.build import build_local, local_settings
from veilgraph.nn.neighbourhood import Sampler
from veilgraph.nn.propagate import Adjacency

DIM, NODES = 4, 12
TWO = (Relation("calls"), Relation("pays"))


def build(relations: tuple[Relation, ...] = TWO, model: str = "relational", **said: object) -> Any:
    settings = local_settings({"model": model, "activation": "none", **said})
    streams = LearningStreams(0, "A")
    return build_local(
        settings, DIM, 2, last_round=False, streams=streams, round=1, dtype=torch.float64, relations=relations
    )


def slowly(h: Tensor, edges: Tensor, weight: Tensor, kinds: Tensor, hop: Any) -> Tensor:
    """W_0·h + Σ_r W_r·mean_r, edge by edge."""
    out: Tensor = h @ hop.own.T
    for place, related in enumerate(hop.related.values()):
        mine = kinds == place
        total, degree = torch.zeros_like(h), torch.zeros(len(h), dtype=h.dtype)
        for (source, target), each in zip(edges[:, mine].T.tolist(), weight[mine].tolist(), strict=True):
            total[target] += each * h[source]
            degree[target] += each
        out = out + torch.where(degree > 0, 1 / degree, 0.0).unsqueeze(1) * total @ related.T
    return out


def test_a_hop_is_a_weight_for_each_relation_whose_mean_is_by_its_own_degrees() -> None:
    h, generator = random_rows(DIM), seeded(4)
    edges = torch.randint(0, NODES - 2, (2, 30), generator=generator)
    weight = torch.rand(30, generator=generator, dtype=torch.float64) + 0.1
    kinds = torch.randint(0, 2, (30,), generator=generator)
    graph = Adjacency.of_edges(edges, weight, NODES, torch.float64, relations=TWO, edge_relation=kinds)
    model = build(hops=2)
    expected = slowly(slowly(h, edges, weight, kinds, model.hops[0]), edges, weight, kinds, model.hops[1])
    torch.testing.assert_close(model(h, h, graph, None), expected)
    torch.testing.assert_close(graph.mean(h), random_merged(edges, weight).mean(h))  # and all together as ever


def random_merged(edges: Tensor, weight: Tensor) -> Adjacency:
    return Adjacency.of_edges(edges, weight, NODES, torch.float64)


def test_without_weights_it_is_pygs_rgcn() -> None:
    h, model = random_rows(DIM), build(hops=1)
    graph = random_graph(relations=TWO)
    conv = RGCNConv(DIM, DIM, 2, bias=False).double()
    conv.root.data = model.hops[0].own.data.T
    conv.weight.data = torch.stack([weight.data.T for weight in model.hops[0].related.values()])
    kinds = torch.arange(graph.edge_index.shape[1]) % 2
    torch.testing.assert_close(model(h, h, graph, None), conv(h, graph.edge_index, kinds))


@pytest.mark.parametrize("start", ["glorot", "average"])
def test_with_one_relation_it_is_sage_mean_from_the_same_weights(start: str) -> None:
    h, graph = random_rows(DIM), random_graph(weighted=True)
    ours, theirs = (build((), model, start=start)(h, h, graph, None) for model in ("relational", "sage-mean"))
    torch.testing.assert_close(ours, theirs)


def test_it_starts_from_the_mean_of_a_node_and_its_relations_means_where_that_is_asked() -> None:
    h, graph = random_rows(DIM), random_graph(relations=TWO)
    model = build(hops=1, start="average")
    means = graph.of_relation("calls").mean(h) + graph.of_relation("pays").mean(h)
    torch.testing.assert_close(model(h, h, graph, None), h / 2 + means / 4)


def reached(relations: tuple[Relation, ...], kinds: list[int], hops: int = 2) -> list[int]:
    """Nodes whose features count for node 0 of the path 0 ← 1 ← 2 ← …, whose edges are of these kinds."""
    nodes = len(kinds) + 1
    edges = torch.stack([torch.arange(1, nodes), torch.arange(nodes - 1)])
    graph = Adjacency.of_edges(
        edges, None, nodes, torch.float64, relations=relations, edge_relation=torch.tensor(kinds)
    )
    h = random_rows(DIM, nodes).requires_grad_()
    build(relations, hops=hops)(h, h, graph, None)[0].sum().backward()
    assert h.grad is not None
    return [node for node in range(nodes) if bool((h.grad[node] != 0).any())]


def test_edges_of_a_relation_count_within_its_hops_of_a_node() -> None:
    near = (Relation("calls"), Relation("pays", hops=1))
    assert reached(near, [0, 0, 0]) == [0, 1, 2]
    assert reached(near, [1, 0, 0]) == [0, 1, 2]  # a payment of the node's, and its partner's calls
    assert reached(near, [0, 1, 0]) == [0, 1]  # a partner's payment is two hops away
    assert reached(near, [1, 1, 0]) == [0, 1]
    assert reached(near, [1, 1, 0], hops=1) == [0, 1]
    assert reached((Relation("calls"), Relation("pays", hops=0)), [1, 0, 0]) == [0]
    assert reached((Relation("calls"), Relation("pays", hops=9)), [1, 1, 1], hops=3) == [0, 1, 2, 3]


def test_a_relation_without_edges_has_a_weight_and_says_nothing() -> None:
    relations = (*TWO, Relation("nobody"))
    h, model = random_rows(DIM), build(relations, hops=1)
    edges = random_graph().edge_index
    kinds = torch.arange(edges.shape[1]) % 2
    graph = Adjacency.of_edges(edges, None, NODES, torch.float64, relations=relations, edge_relation=kinds)
    assert len(model.hops[0].related) == 3
    torch.testing.assert_close(graph.of_relation("nobody").mean(h), torch.zeros_like(h))
    empty = without_edges(relations=relations)
    torch.testing.assert_close(model(h, h, empty, None), h @ model.hops[0].own.T)


@nightly
def test_drawn_neighbours_estimate_each_relations_mean_over_its_whole_degree() -> None:
    """A node with five neighbours, of which two are drawn: of one relation's mean, the average over draws is right."""
    relations, nodes = TWO, 6
    edges = torch.stack([torch.arange(1, nodes), torch.zeros(nodes - 1, dtype=torch.int64)])
    kinds = torch.tensor([0, 0, 0, 1, 1])
    graph = Adjacency.of_edges(edges, None, nodes, torch.float64, relations=relations, edge_relation=kinds)
    h, sampler, draws = random_rows(DIM, nodes), Sampler(graph, 1, 2), 3000
    for name, expected in (("calls", h[1:4].mean(dim=0)), ("pays", h[4:].mean(dim=0))):
        total = torch.zeros(DIM, dtype=torch.float64)
        for number in range(draws):
            around = sampler.around(torch.tensor([0]), seeded(number))
            (layer,) = around.layers(1)
            total += layer.of_relation(name).mean(h[around.nodes])[0]
        torch.testing.assert_close(total / draws, expected, atol=0.06, rtol=0)


def test_a_neighbourhood_keeps_which_edge_is_of_which_relation() -> None:
    edges = torch.tensor([[3, 1, 2, 4, 0], [0, 0, 1, 2, 3]])
    kinds = torch.tensor([1, 0, 1, 0, 1])
    graph = Adjacency.of_edges(edges, None, 5, torch.float64, relations=TWO, edge_relation=kinds)
    around = Sampler(graph, 2, None).around(torch.tensor([0, 2]), None)
    for layer, expected in zip(around.layers(2), ({(3, 0), (2, 1), (0, 3)}, {(3, 0)}), strict=True):
        pays = layer.of_relation("pays").edge_index
        assert {tuple(pair) for pair in around.nodes[pays].T.tolist()} == expected
    first, last = Sampler(graph, 2, None).around(torch.tensor([0]), None).layers(2)
    assert [len(each.of_relation("pays").exact_degrees) for each in (first, last)] == [4, 3]
