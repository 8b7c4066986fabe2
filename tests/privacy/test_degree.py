"""Bounding degrees: nobody keeps too many neighbours, and one pair of nodes more changes three pairs at most."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from veilgraph_node_dp.settings import SumPrivacySettings

from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.aggregation import MOST_NODES, bound_degrees, delta_of_too_many, too_many_units
from veilgraph.privacy.event import Unit

NODES = 12
Pair = frozenset[int]
Edge = tuple[int, int]

NODE = st.integers(0, NODES - 1)
EDGES = st.lists(st.tuples(NODE, NODE), max_size=60)
BOUND = st.integers(1, 4)


def tensor(edges: list[Edge]) -> Tensor:
    return torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T


def kept(edges: list[Edge], bound: int) -> set[Pair]:
    mask = bound_degrees(tensor(edges), NODES, bound).tolist()
    return {frozenset(edge) for edge, keep in zip(edges, mask, strict=True) if keep and edge[0] != edge[1]}


def degrees(pairs: set[Pair]) -> Counter[int]:
    return Counter(node for pair in pairs for node in pair)


@given(EDGES, BOUND)
def test_no_node_keeps_more_neighbours_than_the_bound(edges, bound):
    assert max(degrees(kept(edges, bound)).values(), default=0) <= bound


@settings(max_examples=60)
@given(EDGES, BOUND, NODE, NODE)
def test_a_pair_more_changes_itself_and_one_other_pair_at_each_of_its_nodes(edges, bound, a, b):
    edges = [edge for edge in edges if set(edge) != {a, b} or a == b]
    before, after = kept(edges, bound), kept([*edges, (a, b)], bound)
    assert after - before <= {frozenset({a, b})}
    displaced = before - after
    for node in (a, b):
        assert sum(node in pair for pair in displaced) <= 1
    assert all(pair & {a, b} for pair in displaced)
    if a == b:
        assert after == before
    elif frozenset({a, b}) not in after:
        assert len(displaced) <= 1


@given(EDGES, BOUND)
def test_all_entries_of_a_pair_stay_or_go_together_and_own_loops_stay(edges, bound):
    mask = bound_degrees(tensor(edges), NODES, bound).tolist()
    by_pair: dict[Pair, set[bool]] = {}
    for edge, keep in zip(edges, mask, strict=True):
        by_pair.setdefault(frozenset(edge), set()).add(keep)
    assert all(len(values) == 1 for values in by_pair.values())
    assert all(values == {True} for pair, values in by_pair.items() if len(pair) == 1)


@given(EDGES, BOUND, st.randoms(use_true_random=False))
def test_the_order_of_the_edges_does_not_matter(edges, bound, random):
    order = list(range(len(edges)))
    random.shuffle(order)
    edge_index = tensor(edges)
    assert torch.equal(
        bound_degrees(edge_index[:, order], NODES, bound), bound_degrees(edge_index, NODES, bound)[order]
    )


def test_the_order_is_fixed_for_good():
    """Another order would be another function of the same data: a second release, not the same one again."""
    edges = tensor([(0, leaf) for leaf in range(1, 11)])
    assert edges[1, bound_degrees(edges, 11, 4)].tolist() == [4, 5, 6, 9]


@pytest.mark.parametrize(
    ("unit", "delta", "refuses"),
    [
        ("node-edges", 1 / 41, False),
        ("node-edges", 1 / 40, True),
        ("edge", 1 / 65, False),  # of 60 pairs, which are told from no other number from 33 to 64
        ("edge", 1 / 64, True),
        ("edge", None, False),
    ],
)
def test_a_delta_is_of_all_that_its_epsilon_is_about(unit, delta, refuses):
    """Who publishes one of 1/δ nodes as it is keeps any ε with that δ: so it is of all that ε is about, nodes or
    pairs with an edge, each once however it is recorded; a job's of what is common, a party's own of all its nodes."""
    for pairs in (60, 59, 33, 64):
        among = torch.combinations(torch.arange(40))[:pairs].T
        graph = PartyGraph("B", torch.eye(40), torch.cat([among, among.flip(0), among], dim=1))
        _is_refused(graph, unit, delta, refuses)


def _is_refused(graph: PartyGraph, unit: Unit, delta: float | None, refuses: bool) -> None:
    bound = {} if unit == "edge" else {"degree_bound": 40}
    settings = SumPrivacySettings.model_validate({"unit": unit, "delta": delta, "epsilon_total": 1, **bound})
    assert bool(too_many_units(settings, graph)) == refuses
    assert not refuses or f"privacy.delta={delta:g}" in too_many_units(settings, graph)
    if delta is not None:
        partly = replace(graph, num_common=10)
        assert bool(delta_of_too_many(delta, unit, partly, "limits.max_delta")) == refuses
        assert not too_many_units(settings, partly)


def test_a_bound_is_a_whole_number_of_at_least_one_and_nodes_are_not_too_many():
    for bound in (0, -1, True, 1.5):
        with refused(ConfigError, key="degree_bound"):
            bound_degrees(tensor([(0, 1)]), 2, bound)  # type: ignore[arg-type]
    with refused(DataError, key="num_nodes", value=2147483649):
        bound_degrees(tensor([(0, 1)]), MOST_NODES + 1, 1)
