"""Derived sensitivities against brute force: true changes of propagated, clipped rows on small random graphs."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests import nightly
from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.nn.local.hops import AppnpHop, AppnpSettings
from veilgraph.nn.propagate import Adjacency
from veilgraph.privacy.aggregation import bound_degrees
from veilgraph.privacy.plan import rows_changed_by_edge, rows_changed_by_node

NODES = 14
MANY = 10**9
"""Of nodes: no count is cut down to it."""
Edges = frozenset[tuple[int, int]]
Hop = Callable[[Adjacency, Tensor, Tensor], Tensor]

HOPS: dict[str, Hop] = {
    "sage-mean": lambda adjacency, h, start: torch.tanh((h + adjacency.mean(h)) / 2),
    "appnp": lambda adjacency, h, start: AppnpHop(AppnpSettings(model="appnp"), 1, 2)(h, start, adjacency, None),
    "gin": lambda adjacency, h, start: h + adjacency.sum(h),
    "maximum": lambda adjacency, h, start: torch.maximum(h, adjacency.maximum(h)),
    "gcn": lambda adjacency, h, start: adjacency.gcn(h),
}


def published(hop: Hop, edges: Edges, x: Tensor, hops: int, clip: float, bound: int | None) -> Tensor:
    """The rows before noise: ``hops`` propagations over the edges within ``bound``, each row clipped to ``clip``."""
    both = [pair for a, b in sorted(edges) for pair in ((a, b), (b, a))]
    edge_index = torch.tensor(both, dtype=torch.int64).reshape(-1, 2).T
    if bound is not None:
        edge_index = edge_index[:, bound_degrees(edge_index, len(x), bound)]
    adjacency = Adjacency.of_edges(edge_index, None, len(x), torch.float64)
    h = x
    for _ in range(hops):
        h = hop(adjacency, h, x)
    lengths: Tensor = h.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return h * (clip / lengths).clamp_max(1)


def changed(before: Tensor, after: Tensor) -> int:
    """Rows that are not the same to the last bit."""
    return int((before != after).any(dim=1).sum())


def frobenius_sensitivity(clip: float, rows: int) -> float:
    """How far the published matrix moves at most where so many rows change: 2C·√rows."""
    return 2 * clip * math.sqrt(rows)


def check(before: Tensor, after: Tensor, rows: int, clip: float) -> None:
    assert changed(before, after) <= rows
    assert (after - before).norm() <= frobenius_sensitivity(clip, rows) + 1e-9


@st.composite
def graphs(draw: st.DrawFn) -> Edges:
    pairs = st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)).filter(lambda pair: pair[0] <= pair[1])
    return draw(st.frozensets(pairs, max_size=30))


def features(seed: int, nodes: int = NODES) -> Tensor:
    return 5 * torch.randn(nodes, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


SETTING = (graphs(), st.integers(1, 3), st.integers(0, 3), st.integers(0, 2**16), st.sampled_from(sorted(HOPS)))


@settings(max_examples=60)
@given(*SETTING)
def test_one_nodes_features_move_the_rows_no_further_than_derived(edges, bound, hops, seed, name):
    x, other = features(seed), features(seed)
    other[0] = -3 * x[0]
    before, after = (published(HOPS[name], edges, rows, hops, 1.0, bound) for rows in (x, other))
    check(before, after, rows_changed_by_node(bound, hops, MANY), 1.0)


@settings(max_examples=50)
@given(*SETTING, st.integers(0, 2))
def test_one_edge_moves_the_rows_no_further_than_derived(edges, bound, hops, seed, name, to):
    """{0, 1}, {0, 2}, or 0's edge to itself, more or less."""
    x = features(seed)
    before, after = (published(HOPS[name], graph, x, hops, 1.0, bound) for graph in (edges, edges ^ {(0, to)}))
    check(before, after, rows_changed_by_edge(bound, hops, MANY, source_degrees=name == "gcn"), 1.0)


@settings(max_examples=50)
@given(graphs(), st.integers(1, 3), st.integers(1, 2))
@nightly
def test_no_edge_of_any_small_graph_changes_more_rows_than_derived(edges, bound, hops):
    x = features(0)
    before = published(HOPS["appnp"], edges, x, hops, 1.0, bound)
    rows = rows_changed_by_edge(bound, hops, MANY)
    for pair in itertools.combinations_with_replacement(range(NODES), 2):
        check(before, published(HOPS["appnp"], edges ^ {pair}, x, hops, 1.0, bound), rows, 1.0)


@settings(max_examples=60)
@given(*SETTING, st.floats(0.1, 5))
def test_another_weight_changes_half_as_many_rows_as_another_edge(edges, bound, hops, seed, name, weight):
    x = features(seed)
    both = [pair for a, b in sorted(edges | {(0, 1)}) for pair in ((a, b), (b, a))]
    edge_index = torch.tensor(both, dtype=torch.int64).T
    edge_index = edge_index[:, bound_degrees(edge_index, NODES, bound)]
    results = []
    for value in (weight, 7.0):
        weights = torch.where(edge_index.sum(dim=0) == 1, value, 1.0).double()
        adjacency = Adjacency.of_edges(edge_index, weights, NODES, torch.float64)
        h = x
        for _ in range(hops):
            h = HOPS[name](adjacency, h, x)
        results.append(h)
    assert 2 * changed(*results) <= rows_changed_by_edge(bound, hops, MANY, source_degrees=name == "gcn")


def four_trees(bound: int, hops: int) -> tuple[list[tuple[int, int]], int]:
    """Trees below the nodes 0 to 3: all within ``hops`` - 2 edges have ``bound`` neighbours, with {0, 2} and {1, 3}.

    Returns:
        The edges and the number of nodes.
    """
    edges, nodes, shell = [(0, 2), (1, 3)], 4, [0, 1, 2, 3]
    for _ in range(max(1, hops - 1)):
        children = []
        for parent in shell:
            for _ in range(bound - 1):
                edges.append((parent, nodes))
                children.append(nodes)
                nodes += 1
        shell = children
    return edges, nodes


@pytest.mark.parametrize(("bound", "hops"), [(1, 1), (1, 3), (2, 1), (2, 2), (2, 3), (3, 2), (4, 2), (3, 3)])
def test_an_edge_that_displaces_two_others_reaches_the_count(bound, hops):
    edges, nodes = four_trees(bound, hops)
    generator = torch.Generator().manual_seed(0)
    for _ in range(1000):  # until the order puts {a, c} and {b, d} last at a and b
        names = torch.randperm(nodes, generator=generator).tolist()
        renamed = frozenset((min(pair), max(pair)) for pair in ((names[a], names[b]) for a, b in edges))
        pairs = torch.tensor([sorted((names[a], names[b])) for a, b in [*edges, (0, 1)]]).T
        if bound_degrees(pairs, nodes, bound).tolist() == [False, False, *[True] * (len(edges) - 1)]:
            break
    new = (min(names[:2]), max(names[:2]))
    x = features(0, nodes)
    before, after = (published(HOPS["appnp"], graph, x, hops, 1.0, bound) for graph in (renamed, renamed | {new}))
    assert changed(before, after) == rows_changed_by_edge(bound, hops, MANY)


def test_without_the_bound_on_degrees_the_count_does_not_hold():
    star = frozenset((0, leaf) for leaf in range(1, NODES - 1))
    x = features(0)
    rows = rows_changed_by_edge(2, 2, MANY)
    for bound, holds in ((2, True), (None, False)):
        before, after = (published(HOPS["appnp"], graph, x, 2, 1.0, bound) for graph in (star, star | {(0, NODES - 1)}))
        assert (changed(before, after) <= rows) == holds


def test_the_bounds_are_reached():
    """A star whose centre's features turn round turns every row round: 2C·√(1 + D)."""
    star = frozenset((0, leaf) for leaf in range(1, NODES))
    x = torch.zeros(NODES, 1, dtype=torch.float64)
    x[0] = 100.0
    before, after = (published(HOPS["gin"], star, sign * x, 1, 0.5, NODES - 1) for sign in (1, -1))
    bound = frobenius_sensitivity(0.5, rows_changed_by_node(NODES - 1, 1, NODES))
    assert (after - before).norm().item() == pytest.approx(bound)


def test_a_missing_degree_bound_is_refused():
    with refused(ConfigError, key="degree_bound"):
        rows_changed_by_node(None, 2, 5)
    with refused(ConfigError, key="degree_bound"):
        rows_changed_by_edge(None, 2, 5)
