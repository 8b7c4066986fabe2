"""Neighbourhoods: all neighbours give the graph's own result; drawn ones are unbiased, distinct, within the fanout."""

import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.nn.graphs import dense, random_adjacency
from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.local.build import build_local, local_settings
from veilgraph.nn.neighbourhood import Sampler
from veilgraph.nn.propagate import Adjacency

NODES, DIM = 40, 4


def embedding(nodes: int = NODES) -> Tensor:
    return torch.randn(nodes, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


@pytest.mark.parametrize("fanout", [1, 3])
def test_drawn_neighbours_are_distinct_and_no_more_than_the_fanout(fanout: int) -> None:
    edges = torch.combinations(torch.arange(12)).T
    adjacency = Adjacency.of_edges(torch.cat([edges, edges.flip(0)], dim=1), None, 12, torch.float64)
    around = Sampler(adjacency, 2, fanout).around(torch.tensor([5, 0]), seeded(0))
    for node in range(around.rings[1]):
        chosen = around.nodes[around.edge_index[0, around.edge_index[1] == node]].tolist()
        assert len(chosen) == len(set(chosen)) == fanout
        assert int(around.nodes[node]) not in chosen
    again = Sampler(adjacency, 2, fanout).around(torch.tensor([5, 0]), seeded(0))
    other = Sampler(adjacency, 2, fanout).around(torch.tensor([5, 0]), seeded(1))
    assert torch.equal(around.nodes, again.nodes)
    assert not torch.equal(around.nodes, other.nodes)
    assert around.edges.degrees.tolist() == [11.0] * len(around.nodes)


@nightly
@pytest.mark.cases(1)
@pytest.mark.parametrize("operation", ["sum", "mean", "gcn", "unit_variance_sum"])
def test_a_drawn_hop_is_unbiased(operation: str) -> None:
    adjacency = random_adjacency(NODES, 300, weighted=True)
    h, sampler, targets, draws = embedding(), Sampler(adjacency, 1, 3), torch.arange(10), 1500
    total = torch.zeros(10, DIM, dtype=torch.float64)
    for number in range(draws):
        around = sampler.around(targets, seeded(number))
        (layer,) = around.layers(1)
        total += getattr(layer, operation)(h[around.nodes])
    matrix = dense(adjacency)
    expected = getattr(adjacency, operation)(h)[:10]
    assert int((matrix > 0).sum(dim=1)[:10].max()) > 3, "nothing was left out"
    assert float((total / draws - expected).abs().max()) < 0.08 * float(expected.abs().max())


@pytest.mark.parametrize("operation", ["mean", "gcn", "unit_variance_sum", "self_loop_mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_blocks_a_hop_divides_by_the_exact_degrees(operation: str, dtype: torch.dtype) -> None:
    """In float32 too, where a degree that is rounded before a root or a quotient is taken moves the result."""
    drawn = random_adjacency(NODES, 300, weighted=True)
    adjacency = Adjacency.of_edges(drawn.edge_index, drawn.edge_weight, NODES, dtype)
    h, weight = embedding().to(dtype), (0.25,) if operation == "self_loop_mean" else ()
    whole = getattr(adjacency, operation)(h, *weight)
    for rows, around in Sampler(adjacency, 1, 3).blocks(7):
        (layer,) = around.layers(1)
        found = getattr(layer, operation)(h[around.nodes], *weight)
        torch.testing.assert_close(found, whole[rows], rtol=0, atol=1e-15)


def test_isolated_targets_and_no_edges() -> None:
    empty = Adjacency.of_edges(torch.empty(2, 0, dtype=torch.int64), None, 5, torch.float64)
    around = Sampler(empty, 2, 2).around(torch.tensor([4, 1]), seeded(0))
    assert around.rings == (2, 2, 2)
    local = build_local(
        local_settings({}), DIM, 2, last_round=True, streams=LearningStreams(3, "A"), round=1, dtype=torch.float64
    )
    h = embedding(5)[around.nodes]
    assert local(h, h, around, None).shape == (2, DIM)
