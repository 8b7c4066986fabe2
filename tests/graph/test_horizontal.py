"""Simulated horizontal splits, and the combined graph that their parts make."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data

from tests.errors import refused
from veilgraph.core.errors import DataError
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.features import compact
from veilgraph.graph.partition import split_by_label, split_by_nodes, split_horizontally
from veilgraph.graph.pooling import pool_parts, without_duplicates

NAMES = ("A", "B", "C", "D", "E")
MASKS = ("train_mask", "val_mask", "test_mask")


def there(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def edges_of(edge_index) -> list[tuple[int, int]]:
    return sorted(map(tuple, edge_index.T.tolist()))


def all_edges(parts) -> list[tuple[int, int]]:
    return sorted(edge for part in parts for edge in edges_of(part.ids[part.graph.edge_index]))


@settings(max_examples=25)
@given(holders=st.integers(1, 5), seed=st.integers(0, 99), directed=st.booleans(), sparse=st.booleans())
def test_edges_are_dealt_and_labels_are_at_one_holder(holders, seed, directed, sparse) -> None:
    data = synthetic_data(60, seed=seed)
    if sparse:
        data.x = compact(torch.where(data.x > 1.5, data.x, 0.0))
    if directed:
        data.edge_index = data.edge_index[:, ::3]
    dense = data.x.to_dense()
    parts = split_horizontally(data, names=NAMES[:holders], seed=seed)
    assert all_edges(parts) == edges_of(data.edge_index)
    counts = [part.graph.num_edges for part in parts]
    assert max(counts) - min(counts) <= 3
    labelled = torch.cat([part.ids[there(part.graph.labels) >= 0] for part in parts])
    assert labelled.sort().values.tolist() == list(range(60)), "each label once"
    for part in parts:
        assert torch.equal(part.ids, part.ids.unique())
        assert torch.equal(part.graph.features.to_dense(), dense[part.ids])
        own = there(part.graph.labels) >= 0
        assert torch.equal(there(part.graph.labels)[own], data.y[part.ids[own]])
        touched = torch.isin(torch.arange(part.graph.num_nodes), part.graph.edge_index)
        assert bool((own | touched).all()), "knows no node without a reason"
        for mask in MASKS:
            assert torch.equal(getattr(part.graph, mask), data[mask][part.ids] & own)
    for mask in MASKS:
        sizes = [int(getattr(part.graph, mask).sum()) for part in parts]
        assert sum(sizes) == int(data[mask].sum())
        assert max(sizes) - min(sizes) <= 1


def test_both_directions_stay_together() -> None:
    for part in split_horizontally(synthetic_data(60), names=NAMES[:3], seed=1, overlap=0.4):
        assert edges_of(part.graph.edge_index) == edges_of(part.graph.edge_index.flip(0))


@pytest.mark.parametrize("overlap", [0.0, 0.25, 1.0])
def test_so_many_edges_are_at_two_holders(overlap) -> None:
    data = synthetic_data(80)
    parts = split_horizontally(data, names=NAMES[:3], seed=1, overlap=overlap)
    pairs = data.num_edges // 2
    assert len(all_edges(parts)) == 2 * (pairs + round(overlap * pairs))
    assert len(set(all_edges(parts))) == data.num_edges
    assert all_edges(without_duplicates(parts)) == edges_of(data.edge_index)


def test_all_know_all() -> None:
    data = synthetic_data(60)
    parts = split_horizontally(data, names=NAMES[:3], seed=1, knows="all")
    assert all_edges(parts) == edges_of(data.edge_index)
    for part in parts:
        assert part.ids.tolist() == list(range(60))
        assert torch.equal(there(part.graph.labels), data.y)
        assert torch.equal(there(part.graph.test_mask), data.test_mask)


@settings(max_examples=15)
@given(
    holders=st.integers(1, 5), seed=st.integers(0, 99), weighted=st.booleans(), knows=st.sampled_from(["own", "all"])
)
def test_the_parts_make_the_graph_again(holders, seed, weighted, knows) -> None:
    data = synthetic_data(60, seed=seed)
    if weighted:
        data.edge_weight = torch.rand(data.num_edges) + 0.1
    overlap = 0.3 if holders > 1 else 0.0
    parts = split_horizontally(data, names=NAMES[:holders], seed=seed, overlap=overlap, knows=knows)
    pooled = pool_parts(parts)
    graph = pooled.graph
    graph.validate()
    assert pooled.ids.tolist() == list(range(60))
    assert torch.equal(graph.features.to_dense(), data.x)
    assert torch.equal(there(graph.labels), data.y)
    assert edges_of(graph.edge_index) == edges_of(data.edge_index)
    for mask in MASKS:
        assert torch.equal(getattr(graph, mask), data[mask])
    if weighted:
        weights = dict(zip(map(tuple, data.edge_index.T.tolist()), data.edge_weight.tolist(), strict=True))
        assert [weights[edge] for edge in map(tuple, graph.edge_index.T.tolist())] == there(graph.edge_weight).tolist()


@pytest.mark.parametrize(("holders", "groups"), [(1, [{0, 1, 2}]), (2, [{0, 1}, {2}]), (3, [{0}, {1}, {2}])])
def test_classes_go_to_holders_in_order(holders, groups) -> None:
    data = synthetic_data(90)
    data.test_mask[:7] = False
    parts = split_by_label(data, names=NAMES[:holders], seed=0, mixed=0.0)
    assert [set(there(part.graph.labels).tolist()) for part in parts] == groups
    in_mask = data.train_mask | data.val_mask | data.test_mask
    ids = torch.cat([part.ids for part in parts]).sort().values
    assert torch.equal(ids, in_mask.nonzero().reshape(-1)), "every node in a mask at one holder, the others nowhere"
    home = torch.full((90,), -1)
    for index, part in enumerate(parts):
        home[part.ids] = index
    source, target = home[data.edge_index]
    assert all_edges(parts) == edges_of(data.edge_index[:, (source == target) & (source >= 0)])


@pytest.mark.parametrize("holders", [2, 3, 5])
@pytest.mark.parametrize("mixed", [0.25, 0.5])
def test_so_many_nodes_change_holders(holders, mixed) -> None:
    data = synthetic_data(300)
    names = NAMES[:holders]
    before = split_by_label(data, names=names, seed=4, mixed=0.0)
    after = split_by_label(data, names=names, seed=4, mixed=mixed)
    for index, part in enumerate(before):
        leaving = [int(torch.isin(part.ids, other.ids).sum()) for other in after]
        stay = leaving.pop(index)
        assert stay == len(part.ids) - round(mixed * len(part.ids))
        assert max(leaving) - min(leaving) <= 1, "evenly to the others"
    assert sum(len(part.ids) for part in after) == 300


def test_aligned_nodes_for_a_model_that_needs_them() -> None:
    data = synthetic_data(90)
    apart = split_by_label(data, names=NAMES[:2], seed=0, mixed=0.25)
    aligned = split_by_label(data, names=NAMES[:2], seed=0, mixed=0.25, knows="all")
    assert all_edges(apart) == all_edges(aligned)
    for part in aligned:
        assert part.ids.tolist() == list(range(90))
        assert torch.equal(there(part.graph.labels), data.y)


@settings(max_examples=20)
@given(holders=st.integers(1, 5), seed=st.integers(0, 99))
def test_nodes_are_dealt_once_and_edges_between_holders_are_lost(holders, seed) -> None:
    data = synthetic_data(200)
    parts = split_by_nodes(data, names=NAMES[:holders], seed=seed)
    ids = torch.cat([part.ids for part in parts])
    assert sorted(ids.tolist()) == list(range(200))
    home = {node: part.graph.party for part in parts for node in part.ids.tolist()}
    kept = [edge for edge in edges_of(data.edge_index) if home[edge[0]] == home[edge[1]]]
    assert all_edges(parts) == kept
    for part in parts:
        assert torch.equal(there(part.graph.labels), data.y[part.ids])
        for mask in MASKS:
            assert torch.equal(there(getattr(part.graph, mask)), data[mask][part.ids])
            assert abs(int(getattr(part.graph, mask).sum()) - int(data[mask].sum()) / holders) < 1


def test_refusals() -> None:
    data = synthetic_data(60)
    with refused(DataError, key="overlap", value=1.5):
        split_horizontally(data, names=NAMES[:2], seed=0, overlap=1.5)
    with refused(DataError, key="overlap", value=0.5):
        split_horizontally(data, names=["A"], seed=0, overlap=0.5)
    with refused(DataError, key="mixed", value=-0.1):
        split_by_label(data, names=NAMES[:2], seed=0, mixed=-0.1)
    few = synthetic_data(60)
    few.val_mask[few.val_mask.nonzero()[1:]] = False
    with refused(DataError, key="val_mask", party="B"):
        split_horizontally(few, names=NAMES[:2], seed=0)
    with refused(DataError, key="data.y"):
        split_by_label(Data(x=data.x, edge_index=data.edge_index), names=NAMES[:2], seed=0, mixed=0.0)
    one, two = split_horizontally(data, names=NAMES[:2], seed=0)
    with refused(DataError, key="holders"):
        pool_parts([one, replace(two, graph=replace(two.graph, features=two.graph.features[:, 1:]))])
