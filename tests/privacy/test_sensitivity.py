"""Derived sensitivities against brute force: true changes of propagated, clipped rows on small random graphs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.nn.propagate import Adjacency
from veilgraph.privacy.event import GaussianEvent, LaplaceEvent
from veilgraph.privacy.sensitivity import (
    for_unit,
    frobenius_sensitivity,
    row_sensitivity,
    rows_changed_by_edge,
    rows_changed_by_node,
    why_degree_bound,
)

NODES = 14
Edges = frozenset[tuple[int, int]]
Hop = Callable[[Adjacency, Tensor, Tensor], Tensor]

HOPS: dict[str, Hop] = {
    "sage-mean": lambda adjacency, h, start: torch.tanh((h + adjacency.mean(h)) / 2),
    "appnp": lambda adjacency, h, start: 0.9 * adjacency.self_loop_mean(h, 1.0) + 0.1 * start,
    "gin": lambda adjacency, h, start: h + adjacency.sum(h),
    "maximum": lambda adjacency, h, start: torch.maximum(h, adjacency.maximum(h)),
    "gcn": lambda adjacency, h, start: adjacency.gcn(h),
}


def published(hop: Hop, edges: Edges, x: Tensor, hops: int, clip: float) -> Tensor:
    """The rows before noise: ``hops`` propagations, each row clipped to length ``clip``."""
    both = [pair for a, b in sorted(edges) for pair in ((a, b), (b, a))]
    adjacency = Adjacency(torch.tensor(both, dtype=torch.int64).reshape(-1, 2).T, None, len(x), torch.float64)
    h = x
    for _ in range(hops):
        h = hop(adjacency, h, x)
    lengths: Tensor = h.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return h * (clip / lengths).clamp_max(1)


def degree_bound(*graphs: Edges) -> int:
    return max(sum(node in edge for edge in edges) for edges in graphs for node in range(NODES))


def check(before: Tensor, after: Tensor, rows: int, clip: float) -> None:
    changed = ((after - before).abs().amax(dim=1) > 1e-12).sum()
    assert changed <= rows
    assert (after - before).norm() <= frobenius_sensitivity(clip, rows) + 1e-9


@st.composite
def graphs(draw: st.DrawFn) -> Edges:
    pairs = st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)).filter(lambda pair: pair[0] < pair[1])
    return draw(st.frozensets(pairs, max_size=18))


def features(seed: int, scale: float = 5.0) -> Tensor:
    return scale * torch.randn(NODES, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


SETTING = (graphs(), st.integers(0, 3), st.integers(0, 2**16), st.sampled_from(sorted(HOPS)))


@settings(deadline=None, max_examples=60)
@given(*SETTING)
def test_one_nodes_features_move_the_rows_no_further_than_derived(edges, hops, seed, name):
    x, other = features(seed), features(seed)
    other[0] = -3 * x[0]
    rows = rows_changed_by_node(degree_bound(edges), hops, NODES)
    check(published(HOPS[name], edges, x, hops, 1.0), published(HOPS[name], edges, other, hops, 1.0), rows, 1.0)


@settings(deadline=None, max_examples=60)
@given(*SETTING)
def test_one_edge_moves_the_rows_no_further_than_derived(edges, hops, seed, name):
    other = edges ^ {(0, 1)}
    rows = rows_changed_by_edge(degree_bound(edges, other), hops, NODES, source_degrees=name == "gcn")
    x = features(seed)
    check(published(HOPS[name], edges, x, hops, 1.0), published(HOPS[name], other, x, hops, 1.0), rows, 1.0)


@settings(deadline=None, max_examples=60)
@given(*SETTING, graphs())
def test_a_node_with_its_edges_moves_the_rows_no_further_than_derived(edges, hops, seed, name, donor):
    other = frozenset(edge for edge in edges if 0 not in edge) | frozenset(edge for edge in donor if 0 in edge)
    rows = rows_changed_by_node(degree_bound(edges, other), hops, NODES, edges_too=True, source_degrees=name == "gcn")
    x, y = features(seed), features(seed)
    y[0] = -3 * x[0]
    check(published(HOPS[name], edges, x, hops, 1.0), published(HOPS[name], other, y, hops, 1.0), rows, 1.0)


def test_the_bounds_are_reached():
    """A star whose centre's features turn round turns every row round: 2C·√(1 + D)."""
    star = frozenset((0, leaf) for leaf in range(1, NODES))
    x = torch.zeros(NODES, 1, dtype=torch.float64)
    x[0] = 100.0
    before, after = (published(HOPS["gin"], star, sign * x, 1, 0.5) for sign in (1, -1))
    bound = frobenius_sensitivity(0.5, rows_changed_by_node(NODES - 1, 1, NODES))
    assert (after - before).norm().item() == pytest.approx(bound)


def test_the_counts_by_hand():
    assert rows_changed_by_node(3, 2, 1000) == 1 + 3 + 9
    assert rows_changed_by_edge(3, 2, 1000) == 2 * (1 + 3)
    assert rows_changed_by_edge(3, 2, 1000, source_degrees=True) == 2 * (1 + 3 + 9)
    assert rows_changed_by_node(3, 2, 1000, edges_too=True) == 1 + 6 * (1 + 3)
    assert rows_changed_by_node(3, 2, 1000, edges_too=True, source_degrees=True) == 1 + 6 * (1 + 3 + 9)
    assert rows_changed_by_node(3, 2, 10) == 10
    assert rows_changed_by_node(10**9, 32, 10**6, edges_too=True) == 10**6


def test_without_hops_edges_count_nothing_and_a_node_is_its_row():
    assert rows_changed_by_edge(None, 0, 5) == 0
    assert rows_changed_by_node(None, 0, 5, edges_too=True) == 1
    assert frobenius_sensitivity(0.7, 1) == row_sensitivity(0.7, "replacement") == 1.4
    assert frobenius_sensitivity(0.7, 0) == 0
    assert row_sensitivity(0.7, "zero-out") == 0.7


def test_an_event_about_rows_read_for_a_unit_matches_the_frobenius_sensitivity():
    clip, rows = 0.7, 13
    node = for_unit(GaussianEvent(5.0), "node", rows)
    assert isinstance(node, GaussianEvent)
    assert (node.unit, node.neighbours) == ("node", "replacement")
    assert node.multiplier == pytest.approx(5.0 * clip / frobenius_sensitivity(clip, rows))
    edge = for_unit(LaplaceEvent(5.0, "replacement"), "edge", rows)
    assert isinstance(edge, LaplaceEvent)
    assert edge.epsilon == pytest.approx(2 * rows / 5)
    with pytest.raises(ConfigError, match="unit='node'"):
        for_unit(node, "edge", 2)
    with pytest.raises(ConfigError, match="rows=0"):
        for_unit(GaussianEvent(5.0), "edge", 0)


def test_a_missing_degree_bound_is_explained():
    reason = why_degree_bound("node", 2)
    assert reason is not None
    assert why_degree_bound("row", 2) is None
    assert why_degree_bound("edge", 0) is None
    with pytest.raises(ConfigError, match=reason):
        rows_changed_by_node(None, 2, 5)
    with pytest.raises(ConfigError, match="one edge"):
        rows_changed_by_edge(None, 2, 5)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan])
def test_a_clip_is_finite_and_positive(clip):
    with pytest.raises(ConfigError, match="clip"):
        row_sensitivity(clip, "zero-out")


def test_counts_are_whole_numbers():
    with pytest.raises(ConfigError, match="degree_bound=-1"):
        rows_changed_by_edge(-1, 2, 5)
    with pytest.raises(ConfigError, match="hops=-1"):
        rows_changed_by_node(3, -1, 5)
    with pytest.raises(ConfigError, match="rows=-1"):
        frobenius_sensitivity(1.0, -1)
