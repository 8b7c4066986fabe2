"""How far sums over neighbours move between neighbouring graphs: all small graphs, and where the bounds are met."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from veilgraph_embeddings.aggregation import Sensitivity, aggregated, first_rows_of
from veilgraph_embeddings.methods.noise import calibrated, epsilon_of_node
from veilgraph_embeddings.world import drawn_pairs

from veilgraph.core.randomness import LearningStreams
from veilgraph.privacy.accountant import gaussian_epsilon
from veilgraph.privacy.mechanism import Gaussian, clip_to_grid

Pairs = tuple[tuple[int, int], ...]


def moved(first: Tensor, one: Pairs, other: Pairs, hops: int, bound: int) -> float:
    rows = [
        aggregated(first, torch.tensor(each, dtype=torch.int64).reshape(-1, 2).T, hops, bound) for each in (one, other)
    ]
    return float((rows[0] - rows[1]).norm())


def rows(nodes: int, seed: int, dim: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(nodes, dim, dtype=torch.float64, generator=generator), dim=1)


def test_no_edge_of_any_graph_of_four_nodes_moves_more() -> None:
    pairs = tuple(itertools.combinations(range(4), 2))
    for bound, hops in ((1, 1), (2, 2)):
        limit, first = Sensitivity.of(hops, bound).edge, rows(4, bound, 2)
        for mask in range(1 << len(pairs)):
            graph = tuple(pair for place, pair in enumerate(pairs) if mask >> place & 1)
            for edge in graph:
                less = tuple(pair for pair in graph if pair != edge)
                assert moved(first, graph, less, hops, bound) <= limit + 1e-12


@settings(max_examples=40)
@given(
    st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda pair: pair[0] < pair[1]), min_size=1),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_no_edge_and_no_nodes_features_move_more(
    chosen: set[tuple[int, int]], hops: int, bound: int, seed: int
) -> None:
    graph, first, limit = tuple(sorted(chosen)), rows(9, seed), Sensitivity.of(hops, bound)
    edge, node = graph[seed % len(graph)], seed % 9
    assert moved(first, graph, tuple(pair for pair in graph if pair != edge), hops, bound) <= limit.edge + 1e-12
    other = first.clone()
    other[node] *= -1
    pairs = torch.tensor(graph).T
    assert (aggregated(first, pairs, hops, bound) - aggregated(other, pairs, hops, bound)).norm() <= limit.node + 1e-12


@pytest.mark.parametrize("bound", [1, 2, 5])
def test_the_bound_of_one_nodes_features_is_met(bound: int) -> None:
    star = torch.tensor([[0] * bound, list(range(1, bound + 1))])
    first = rows(bound + 1, 0)
    other = first.clone()
    other[0] *= -1
    found = (aggregated(first, star, 1, bound) - aggregated(other, star, 1, bound)).norm()
    assert float(found) == pytest.approx(Sensitivity.of(1, bound).node)
    assert float((first - other).norm()) == pytest.approx(Sensitivity.of(0, bound).node) == 2.0


def test_the_bound_of_one_edge_is_met() -> None:
    """Where it displaces two others at one node, with rows that turn round: less than the bound would be too little."""
    worst = 0.0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        nodes = torch.randperm(40, generator=generator)[:5].tolist()
        a, b, c, d, e = nodes
        rest = [(a, c), (b, c), (a, d), (b, e)]
        before, after = (tuple((min(p), max(p)) for p in each) for each in (rest, [*rest, (a, b)]))
        first = torch.zeros(40, 1, dtype=torch.float64)
        first[[a, b]], first[c] = 1.0, -1.0
        worst = max(worst, moved(first, before, after, 1, 2))
    assert worst == pytest.approx(Sensitivity.of(1, 2).edge)


def test_without_hops_edges_are_not_used() -> None:
    first = rows(4, 0)
    assert moved(first, ((0, 1),), ((1, 2), (2, 3)), 0, 1) == 0
    assert Sensitivity.of(0, 3).edge == 0


def test_on_the_grid_of_the_noise_it_is_more_and_counted() -> None:
    """Two worlds apart by next to nothing may round to other cells in every entry."""
    deviation, shape = 1e5, (50, 4)
    mechanism = Gaussian(1.0, deviation)
    limit = Sensitivity.of(1, 2).on_grid(mechanism.cell, shape, 1, 2)
    assert limit.node - Sensitivity.of(1, 2).node == pytest.approx(mechanism.cell * math.sqrt(200), rel=1e-6)
    edge = torch.full(shape, 3 * mechanism.cell, dtype=torch.float64)
    landed = [clip_to_grid(edge * factor, mechanism.clip, 2, mechanism.cell) for factor in (1.0, 1 - 1e-8)]
    assert float((landed[0] - landed[1]).norm()) == pytest.approx(mechanism.cell * math.sqrt(200))


@pytest.mark.parametrize(("epsilon", "hops", "bound"), [(0.5, 2, 10), (8.0, 1, 3), (64.0, 0, 1)])
def test_the_noise_costs_no_more_than_asked(epsilon: float, hops: int, bound: int) -> None:
    deviation, limit = calibrated(epsilon, 1e-6, hops, bound, (1000, 16))
    costs = [gaussian_epsilon(by / deviation, 1e-6) for by in (limit.node, limit.edge)]
    assert 0.99 * epsilon < max(costs) <= epsilon
    assert limit.node > Sensitivity.of(hops, bound).node
    assert epsilon_of_node(limit, deviation, 1e-6, 0) == costs[0]
    if hops:
        assert epsilon_of_node(limit, deviation, 1e-6, 3) > epsilon_of_node(limit, deviation, 1e-6, 1) > costs[0]


def test_a_first_row_is_of_its_node_alone() -> None:
    """No statistic of a column is in it: another node's features change no other row, to the last bit."""
    streams = LearningStreams(1, "embed")
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[2] = 100.0
    one, two = (first_rows_of(each, 4, streams) for each in (x, other))
    assert [int(place) for place in (one != two).any(dim=1).nonzero()] == [2]
    assert float(one.norm(dim=1).max()) <= 1 + 1e-12
    x[3] = 0
    assert not first_rows_of(x, 4, streams)[3].any()


def test_held_out_pairs_are_drawn_each_by_itself() -> None:
    """Or one edge more would change which others are used, and the count of the sensitivity would be false."""
    pairs = torch.tensor(list(itertools.combinations(range(40), 2))).T
    whole = drawn_pairs(pairs, 0.3, 5)
    assert whole.double().mean() == pytest.approx(0.3, abs=0.06)
    some = torch.arange(pairs.shape[1]) % 3 == 1
    assert torch.equal(drawn_pairs(pairs[:, some], 0.3, 5), whole[some])
    assert not torch.equal(drawn_pairs(pairs, 0.3, 6), whole)
