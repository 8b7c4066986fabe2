"""A graph in an order of its own: what is released of it is the same to the bit, however its nodes were numbered."""

import pytest
import torch
from torch import Tensor
from veilgraph_node_dp.sums import pair_matrix

from veilgraph.graph.features import compact, reorder_nodes
from veilgraph.graph.party import PartyGraph

NODES, EDGES = 60, 1500


def numbered(order: Tensor, *, sparse: bool) -> PartyGraph:
    """The same graph with its nodes numbered in another way, and its edges in another order."""
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(NODES, 9, generator=generator) * (torch.rand(NODES, 9, generator=generator) < 0.3)
    edges = torch.randint(0, NODES, (2, EDGES), generator=generator)
    weight = torch.rand(EDGES, generator=generator)
    places = torch.empty_like(order)
    places[order] = torch.arange(NODES)
    shuffled = torch.randperm(EDGES, generator=torch.Generator().manual_seed(int(order[0])))
    rows = compact(features[order]) if sparse else features[order]
    return PartyGraph("B", rows, places[edges][:, shuffled], weight[shuffled])


def summed(graph: PartyGraph) -> Tensor:
    """Sums of all nodes' features over its pairs, weights added up to what a pair has."""
    pairs = pair_matrix(graph.edge_index, graph.edge_weight, graph.num_nodes)
    return torch.from_numpy(pairs @ graph.features.to_dense().numpy())


@pytest.mark.parametrize("sparse", [False, True])
def test_sums_are_the_same_bits_in_whatever_order_nodes_and_edges_come(sparse: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    names = torch.randperm(NODES, generator=generator)
    found, bare = [], []
    for _ in range(4):
        order = torch.randperm(NODES, generator=generator)
        graph = numbered(order, sparse=sparse)
        by_name = names[order].argsort()
        found.append(summed(reorder_nodes(graph, by_name)))
        bare.append(summed(graph)[by_name])
    assert all(torch.equal(each, found[0]) for each in found)
    assert not all(torch.equal(each, bare[0]) for each in bare)
    assert all(torch.allclose(each, found[0], atol=1e-5) for each in bare)
