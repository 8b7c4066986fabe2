"""Which relation an edge is of: kept with a graph, in its file, and taken from PyTorch Geometric's HeteroData."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch_geometric.data import HeteroData
from torch_geometric.transforms import AddMetaPaths

import veilgraph as vg
from tests.errors import refused
from veilgraph.core.errors import DataError
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.graph.pooling import HorizontalPart, pool, without_duplicates
from veilgraph.graph.rules import Relation

CALLS, PAYS = Relation("calls"), Relation("pays", hops=1)
NODES = 5


def graph(**changes: Any) -> PartyGraph:
    """Edges that are not in the order of their targets."""
    made = PartyGraph(
        "bank",
        torch.arange(10.0).reshape(NODES, 2),
        torch.tensor([[0, 1, 4, 3], [2, 0, 1, 0]]),
        edge_relation=torch.tensor([1, 0, 1, 0], dtype=torch.int16),
        relations=(CALLS, PAYS),
    )
    return replace(made, **changes)


def of_each(made: PartyGraph) -> dict[str, set[tuple[int, ...]]]:
    """Relation → its edges."""
    assert made.edge_relation is not None
    named = [made.relations[place].name for place in made.edge_relation.tolist()]
    found: dict[str, set[tuple[int, ...]]] = {relation.name: set() for relation in made.relations}
    for name, edge in zip(named, made.edge_index.T.tolist(), strict=True):
        found[name].add(tuple(edge))
    return found


def customers(**attributes: Any) -> HeteroData:
    """Customers who call and pay each other, and have devices."""
    data = HeteroData()
    data["customer"].x = torch.rand(NODES, 2)
    data["customer", "calls", "customer"].edge_index = torch.tensor([[1, 3], [0, 0]])
    data["customer", "pays", "customer"].edge_index = torch.tensor([[0, 4], [2, 1]])
    data["customer", "pays", "customer"].hops = 1
    for name, value in attributes.items():
        setattr(data, name, value)
    return data


def with_devices() -> HeteroData:
    data = customers()
    data["device"].num_nodes = 2
    data["customer", "uses", "device"].edge_index = torch.tensor([[0, 1, 2], [0, 0, 1]])
    data["device", "of", "customer"].edge_index = data["customer", "uses", "device"].edge_index.flip(0)
    return data


def test_a_file_keeps_them_beside_its_sorted_edges(tmp_path: Path) -> None:
    save_party(graph(), tmp_path / "g.safetensors")
    loaded = load_party(tmp_path / "g.safetensors")
    assert loaded.relations == (CALLS, PAYS)
    assert loaded.edge_index[1].tolist() == [0, 0, 1, 2]
    assert of_each(loaded) == of_each(graph()) == {"calls": {(1, 0), (3, 0)}, "pays": {(0, 2), (4, 1)}}


@pytest.mark.parametrize("said", ["[", '[{"name": "a", "far": 1}]', '{"a": 1}', "3"])
def test_damaged_relations_of_a_file_are_refused(tmp_path: Path, said: str) -> None:
    tensors = {"features": torch.ones(2, 1), "edge_index": torch.zeros(2, 0, dtype=torch.int64)}
    metadata = {"format": "veilgraph-party-1", "party": "bank", "relations": said}
    save_file(tensors, tmp_path / "g.safetensors", metadata)
    with refused(DataError, key=tmp_path / "g.safetensors"):
        load_party(tmp_path / "g.safetensors")


def test_edges_that_are_left_out_take_their_relation_with_them() -> None:
    common = graph(num_common=4).common_part()
    assert of_each(common) == {"calls": {(1, 0), (3, 0)}, "pays": {(0, 2)}}
    common.validate()
    ids = torch.arange(NODES)
    _, second = without_duplicates(
        [HorizontalPart(graph().with_edges(torch.tensor([0, 1])), ids), HorizontalPart(graph(), ids)]
    )
    assert of_each(second.graph) == {"calls": {(3, 0)}, "pays": {(4, 1)}}


def test_a_divided_graph_keeps_them() -> None:
    data = customers()
    data["customer"].y = torch.arange(NODES) % 2
    for place, name in enumerate(("train_mask", "val_mask")):
        data["customer"][name] = torch.arange(NODES) == place
    parts = vg.simulate.vertically(data, 2, seed=1)
    assert {part.relations for part in parts} == {(CALLS, PAYS)}
    joined = [of_each(part) for part in parts]
    assert {name: joined[0][name] | joined[1][name] for name in joined[0]} == of_each(graph())
    (whole,) = vg.simulate.horizontally(data, 1)
    whole.graph.validate()
    assert of_each(whole.graph) == of_each(graph())


def test_pooled_they_stay_each_holders_own_where_that_is_asked() -> None:
    labels: dict[str, Any] = {"labels": torch.arange(NODES) % 2, "num_classes": 2}
    labels |= {"train_mask": torch.arange(NODES) == 0, "val_mask": torch.arange(NODES) == 1}
    other = replace(graph().merged(), party="shop", edge_weight=torch.full((4,), 0.5))
    pooled = pool([graph(**labels), other], "bank", relational=True)
    pooled.validate()
    assert pooled.relations == (Relation("bank/calls"), Relation("bank/pays", 1), Relation("shop/edges"))
    assert of_each(pooled)["shop/edges"] == set(map(tuple, graph().edge_index.T.tolist()))
    assert of_each(pooled)["bank/pays"] == of_each(graph())["pays"]
    assert pooled.edge_weight is not None
    assert pooled.edge_weight.tolist() == [1.0] * 4 + [0.5] * 4
    assert pool([graph(**labels), other], "bank").relations == ()


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("no relations", {"relations": ()}, "edge_relation"),
    ("no places", {"edge_relation": None}, "edge_relation"),
    ("a list", {"relations": [CALLS, PAYS]}, "relations"),
    ("names", {"relations": ("calls", "pays")}, "relations"),
    ("a name twice", {"relations": (CALLS, CALLS)}, "relations"),
    ("an empty name", {"relations": (CALLS, Relation(""))}, "relations"),
    ("hops below 0", {"relations": (CALLS, Relation("pays", -1))}, "relations"),
    ("hops above 32", {"relations": (CALLS, Relation("pays", 33))}, "relations"),
    ("hops of a half", {"relations": (CALLS, Relation("pays", 0.5))}, "relations"),  # type: ignore[arg-type]
    ("hops that are true", {"relations": (CALLS, Relation("pays", True))}, "relations"),
    ("a place too far", {"edge_relation": torch.tensor([0, 1, 2, 0])}, "edge_relation"),
    ("a place below 0", {"edge_relation": torch.tensor([0, 1, -1, 0])}, "edge_relation"),
    ("too few places", {"edge_relation": torch.tensor([0, 1])}, "edge_relation"),
    ("places that are no whole numbers", {"edge_relation": torch.tensor([0.0, 1, 1, 0])}, "edge_relation"),
    ("a list of places", {"edge_relation": [0, 1, 1, 0]}, "edge_relation"),
]


@pytest.mark.parametrize(("changes", "key"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
def test_relations_that_break_a_rule_are_refused(changes: dict[str, Any], key: str) -> None:
    graph().validate()
    with refused(DataError, key=key, party="bank"):
        graph(**changes).validate()


def test_heterodata_is_the_graph_of_one_type_whose_edge_types_are_relations() -> None:
    made = PartyGraph.from_data("bank", customers())
    assert made.relations == (CALLS, PAYS)
    assert of_each(made) == of_each(graph())
    assert made.edge_weight is None


def test_one_edge_type_that_reaches_as_far_as_any_is_edges_alike() -> None:
    data = customers()
    del data["customer", "calls", "customer"]
    assert PartyGraph.from_data("bank", data).relations == (PAYS,)
    del data["customer", "pays", "customer"].hops
    alike = PartyGraph.from_data("bank", data)
    assert (alike.relations, alike.edge_relation, alike.num_edges) == ((), None, 2)


def test_which_type_is_common_is_named_or_the_only_one_with_features_or_labels() -> None:
    data = customers()
    data["device"].num_nodes = 7
    assert PartyGraph.from_data("bank", data).num_nodes == NODES
    data["device"].x = torch.rand(7, 1)
    with refused(DataError, key="data", party="bank"):
        PartyGraph.from_data("bank", data)
    data.common = "customer"
    assert PartyGraph.from_data("bank", data).num_nodes == NODES
    data.common = "shop"
    with refused(DataError, key="data.common", party="bank"):
        PartyGraph.from_data("bank", data)
    del data.common
    data["customer"].y = torch.arange(NODES).float()
    data["customer"].train_mask, data["customer"].val_mask = torch.eye(NODES, dtype=torch.bool)[:2]
    assert PartyGraph.from_data("bank", data).num_nodes == NODES


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of AddMetaPaths
def test_what_leads_to_other_nodes_is_refused_until_it_is_projected_as_the_error_says() -> None:
    data = with_devices()
    with refused(DataError, key="data.edge_types", party="bank"):
        PartyGraph.from_data("bank", data)
    path = [("customer", "uses", "device"), ("device", "of", "customer")]
    joined = AddMetaPaths([path])(data)
    for edge in path:
        del joined[edge]
    made = PartyGraph.from_data("bank", joined)
    assert type(made.edge_index) is torch.Tensor
    assert [relation.name for relation in made.relations] == ["calls", "pays", "metapath_0"]
    assert (0, 1) in of_each(made)["metapath_0"]


def without_nodes() -> HeteroData:
    return HeteroData()


def without_x() -> HeteroData:
    data = customers()
    del data["customer"].x
    return data


def changed(**attributes: Any) -> Callable[[], HeteroData]:
    def make() -> HeteroData:
        data = customers()
        for name, value in attributes.items():
            data["customer", "pays", "customer"][name] = value
        return data

    return make


WRONG_HETERO: list[tuple[str, Callable[[], HeteroData], str]] = [
    ("no types of nodes", without_nodes, "data"),
    ("no features", without_x, "data.x"),
    ("edges that are an array", changed(edge_index=torch.zeros(2, 1).numpy()), "data.edge_index"),
    ("edges of three rows", changed(edge_index=torch.zeros(3, 1).long()), "data.edge_index"),
    ("edges that are no whole numbers", changed(edge_index=torch.zeros(2, 1)), "data.edge_index"),
    ("no edges", changed(edge_index=None), "data.edge_index"),
    ("a node that is not there", changed(edge_index=torch.tensor([[9], [0]])), "edge_index"),
    ("weights that are a list", changed(edge_weight=[1.0, 2.0]), "data.edge_weight"),
    ("too few weights", changed(edge_weight=torch.ones(1)), "data.edge_weight"),
    ("two numbers for an edge", changed(edge_attr=torch.ones(2, 2)), "data.edge_attr"),
    ("hops that are text", changed(hops="1"), "relations"),
    ("hops below 0", changed(hops=-1), "relations"),
]


@pytest.mark.parametrize(("make", "key"), [each[1:] for each in WRONG_HETERO], ids=[each[0] for each in WRONG_HETERO])
def test_heterodata_that_breaks_a_rule_is_refused(make: Callable[[], HeteroData], key: str) -> None:
    with refused(DataError, key=key, party="bank"):
        PartyGraph.from_data("bank", make())
