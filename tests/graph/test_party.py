from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch_geometric.data import Data

from tests.errors import refused
from veilgraph.core.errors import DataError
from veilgraph.graph.federation import check_federation
from veilgraph.graph.party import PartyGraph, load_party, pairs_once, rows_between, save_party
from veilgraph.graph.rules import Relation

MASKS = ("train_mask", "val_mask", "test_mask")
FIELDS = ("features", "edge_index", "edge_weight", "labels", *MASKS)


def mask(*nodes):
    out = torch.zeros(5, dtype=torch.bool)
    out[list(nodes)] = True
    return out


def a_graph(**changes):
    graph = PartyGraph(
        party="bank",
        features=torch.arange(10.0).reshape(5, 2),
        edge_index=torch.tensor([[0, 1, 1], [1, 0, 2]]),
        edge_weight=torch.tensor([1.0, 0.5, 2.0]),
        labels=torch.tensor([0, 1, 2, 0, -1]),
        train_mask=mask(0, 1),
        val_mask=mask(2),
        test_mask=mask(3),
        num_classes=3,
    )
    return replace(graph, **changes)


def sparse(matrix):
    return matrix.to_sparse_csr()


def sorted_by_target(graph):
    order = graph.edge_index[1].argsort(stable=True)
    weight = None if graph.edge_weight is None else graph.edge_weight[order]
    return replace(graph, edge_index=graph.edge_index[:, order], edge_weight=weight)


def same(first, second):
    """Apart from the order of edges, which a saved graph has by target."""
    first, second = sorted_by_target(first), sorted_by_target(second)
    for name in FIELDS:
        left, right = getattr(first, name), getattr(second, name)
        assert (left is None) == (right is None), name
        if left is not None:
            assert left.layout == right.layout
            assert left.dtype == right.dtype
            assert torch.equal(left.to_dense(), right.to_dense()), name
    assert (first.party, first.num_classes, first.num_common) == (second.party, second.num_classes, second.num_common)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_edges_of_any_whole_numbers_are_taken(dtype):
    ends = [[0, 1, 4], [1, 2, 0]]
    graphs = [
        a_graph(edge_index=torch.tensor(ends, dtype=dtype), edge_weight=None),
        PartyGraph.from_data("bank", Data(x=torch.eye(5), edge_index=torch.tensor(ends, dtype=dtype))),
    ]
    for graph in graphs:
        graph.validate()
        assert graph.edge_index.dtype == torch.int64
        assert graph.edge_index.tolist() == ends
    with refused(DataError, key="edge_index"):
        a_graph(edge_index=torch.tensor(ends, dtype=torch.float32), edge_weight=None).validate()


def with_value(value):
    features = torch.ones(5, 2)
    features[3, 1] = value
    return features


NO_EDGES = torch.empty(2, 0, dtype=torch.int64)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"features": sparse(torch.eye(5))},
        {"features": torch.zeros(5, 1, dtype=torch.float64)},
        {"edge_index": NO_EDGES, "edge_weight": None},
        {"edge_index": NO_EDGES, "edge_weight": torch.empty(0)},
        {"edge_index": torch.zeros(2, 1, dtype=torch.int64), "edge_weight": None},
        {"test_mask": None},
        {"num_common": 5},
        {"num_common": 3},
        {"labels": None, "train_mask": None, "val_mask": None, "test_mask": None, "num_classes": None},
    ],
)
def test_what_is_allowed(changes):
    a_graph(**changes).validate()


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"party": "server"}, "party"),
        ({"features": with_value(float("nan"))}, "features"),
        ({"features": with_value(float("-inf"))}, "features"),
        ({"features": sparse(with_value(float("inf")))}, "features"),
        ({"features": torch.ones(5, 2, dtype=torch.int64)}, "features"),
        ({"features": torch.ones(5, 2).to_sparse()}, "features"),
        ({"features": torch.ones(5)}, "features"),
        ({"features": torch.ones(5, 0)}, "features"),
        ({"features": torch.ones(0, 3)}, "features"),
        ({"edge_index": torch.tensor([[0, 1, 1], [1, 5, 2]])}, "edge_index"),
        ({"edge_index": torch.tensor([[0, 1, -1], [1, 0, 2]])}, "edge_index"),
        ({"edge_index": torch.zeros(2, 3)}, "edge_index"),
        ({"edge_index": torch.zeros(3, 2, dtype=torch.int64)}, "edge_index"),
        ({"edge_weight": torch.ones(2)}, "edge_weight"),
        ({"edge_weight": torch.tensor([1.0, -1.0, 1.0])}, "edge_weight"),
        ({"edge_weight": torch.tensor([1.0, 1.0, float("nan")])}, "edge_weight"),
        ({"labels": torch.tensor([0, 1, 3, 0, -1])}, "labels"),
        ({"labels": torch.tensor([0, 1, 2, 0, -2])}, "labels"),
        ({"labels": torch.zeros(4, dtype=torch.int64)}, "labels"),
        ({"labels": torch.zeros(5)}, "labels"),
        ({"edge_features": torch.ones(2, 3)}, "edge_features"),
        ({"num_classes": None}, "num_classes"),
        ({"num_classes": 1}, "num_classes"),
        ({"train_mask": None}, "train_mask"),
        ({"train_mask": mask()}, "train_mask"),
        ({"val_mask": mask()}, "val_mask"),
        ({"train_mask": torch.ones(4, dtype=torch.bool)}, "train_mask"),
        ({"val_mask": torch.ones(5)}, "val_mask"),
        ({"val_mask": mask(1)}, "val_mask"),
        ({"test_mask": mask(2)}, "test_mask"),
        ({"train_mask": mask(0, 4)}, "train_mask"),
        ({"labels": None}, "train_mask"),
        ({"num_common": 0}, "train_mask"),
        ({"num_common": 6}, "num_common"),
        ({"num_common": 2}, "val_mask"),
        ({"val_mask": None}, "val_mask"),
        ({"num_common": 2, "train_mask": mask(3), "test_mask": None}, "train_mask"),
    ],
)
def test_what_is_refused(changes, argument):
    with refused(DataError, key=argument, party=changes.get("party", "bank")):
        a_graph(**changes).validate()


def test_a_sparse_matrix_with_broken_indices():
    broken = torch.sparse_csr_tensor(
        torch.tensor([0, 1, 1]), torch.tensor([7]), torch.ones(1), (2, 2), check_invariants=False
    )
    with refused(DataError, key="features", party="bank"):
        PartyGraph("bank", broken, NO_EDGES).validate()


def test_the_most_edges_at_a_node_are_of_either_direction_and_of_common_nodes():
    out = torch.tensor([[0, 0, 0, 1], [1, 2, 3, 4]])
    assert a_graph(edge_index=out, edge_weight=None).most_edges_at_a_node() == 3
    assert a_graph(edge_index=out.flip(0), edge_weight=None).most_edges_at_a_node() == 3
    weighted = a_graph(edge_index=out, edge_weight=torch.tensor([0.5, 0.5, 0.5, 4]))
    assert weighted.most_edges_at_a_node() == 4
    assert replace(a_graph(edge_index=out, edge_weight=None), num_common=3).most_edges_at_a_node() == 2


def test_an_edge_of_weight_0_is_none_wherever_a_graph_comes_from(tmp_path):
    graph = a_graph(
        edge_weight=torch.tensor([1.0, 0.0, 2.0]),
        edge_relation=torch.tensor([0, 1, 1]),
        relations=(Relation("calls"), Relation("pays")),
        edge_features=torch.arange(6.0).reshape(3, 2),
    )
    graph.validate()
    save_party(graph, tmp_path / "graph.safetensors")
    for found in (graph, load_party(tmp_path / "graph.safetensors"), replace(graph)):
        kept = {name: getattr(found, name).tolist() for name in ("edge_weight", "edge_relation", "edge_features")}
        assert kept == {"edge_weight": [1, 2], "edge_relation": [0, 1], "edge_features": [[0, 1], [4, 5]]}
        assert found.num_edges == 2
    with refused(DataError, key="edge_weight"):
        a_graph(edge_weight=torch.tensor([0.0, -1.0, 1.0])).validate()


@pytest.mark.parametrize("layout", [torch.clone, sparse])
def test_the_common_part_is_the_induced_subgraph(layout):
    graph = a_graph(
        features=layout(torch.arange(1.0, 11).reshape(5, 2)),
        edge_index=torch.tensor([[0, 3, 1, 2, 4, 2], [1, 0, 2, 3, 4, 0]]),
        edge_weight=1 + torch.arange(6.0),
        num_common=3,
    )
    assert (graph.common, graph.num_nodes) == (3, 5)
    part = graph.common_part()
    part.validate()
    assert part.features.layout == graph.features.layout
    assert part.features.to_dense().tolist() == [[1, 2], [3, 4], [5, 6]]
    assert part.edge_index.tolist() == [[0, 1, 2], [1, 2, 0]]
    assert part.edge_weight.tolist() == [1, 3, 6]
    assert part.labels.tolist() == [0, 1, 2]
    assert part.train_mask.tolist() == [True, True, False]
    assert (part.num_nodes, part.common, part.num_classes) == (3, 3, 3)
    assert part.common_part() is part


@pytest.mark.parametrize("layout", [torch.clone, sparse])
def test_rows_of_any_layout(layout):
    matrix = torch.tensor([[0.0, 0, 1], [0, 0, 0], [2, 3, 0], [0, 4, 0]])
    for start in range(5):
        for stop in range(start, 5):
            rows = rows_between(layout(matrix), start, stop)
            assert torch.equal(rows.to_dense(), matrix[start:stop])
            assert rows.layout == layout(matrix).layout


class TestFromData:
    def test_everything(self):
        graph = a_graph()
        data = Data(
            x=graph.features,
            edge_index=graph.edge_index,
            edge_attr=graph.edge_weight[:, None],
            y=graph.labels[:, None],
            **{name: getattr(graph, name) for name in MASKS},
        )
        same(PartyGraph.from_data("bank", data), graph)

    def test_the_number_of_classes_tells_of_no_label_where_it_is_said(self):
        # Others are told it, without noise: the one node of the last class would be known by it at any ε.
        graph = a_graph(labels=torch.tensor([0, 1, 0, 1, -1]), num_classes=None)
        said = {name: getattr(graph, name) for name in MASKS} | {"edge_index": graph.edge_index, "x": graph.features}
        worlds = [graph.labels, torch.tensor([2, 1, 0, 1, -1])]
        guessed, stated = (
            [PartyGraph.from_data("bank", Data(y=labels, **said, **more)).num_classes for labels in worlds]
            for more in ({}, {"num_classes": 3})
        )
        assert guessed == [2, 3]
        assert stated == [3, 3]
        with refused(DataError, key="labels", party="bank"):
            PartyGraph.from_data("bank", Data(y=worlds[1], **said, num_classes=2))
        with refused(DataError, key="data.num_classes", party="bank"):
            PartyGraph.from_data("bank", Data(y=graph.labels, **said, num_classes=2.5))

    def test_edge_attr_is_the_weight_or_the_features(self):
        def found(**columns):
            data = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1], [1, 0]]), **columns)
            graph = PartyGraph.from_data("bank", data)
            return graph.edge_weight, graph.edge_features

        two, weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.5, 2.0])
        assert torch.equal(found(edge_attr=weight)[0], weight)
        assert found(edge_attr=weight)[1] is None
        assert torch.equal(found(edge_attr=two.long())[1], two)
        assert found(edge_attr=two)[0] is None
        both = found(edge_weight=weight, edge_attr=weight)
        assert torch.equal(both[0], weight)
        assert torch.equal(both[1], weight.unsqueeze(1))

    @pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
    def test_sparse_features(self, layout):
        x = torch.eye(4)
        graph = PartyGraph.from_data("bank", Data(x=getattr(x, layout)(), edge_index=NO_EDGES))
        assert graph.features.layout == torch.sparse_csr
        assert torch.equal(graph.features.to_dense(), x)

    @pytest.mark.parametrize(
        ("changes", "argument"),
        [
            ({"x": None}, "data.x"),
            ({"edge_index": None}, "data.edge_index"),
            ({"edge_attr": torch.ones(3, 4, 2)}, "data.edge_attr"),
            ({"y": torch.ones(5, 2)}, "data.y"),
        ],
    )
    def test_what_is_refused(self, changes, argument):
        graph = a_graph()
        data = Data(**({"x": graph.features, "edge_index": graph.edge_index} | changes))
        with refused(DataError, key=argument, party="bank"):
            PartyGraph.from_data("bank", data)


class TestFile:
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"features": sparse(torch.eye(5, 7, dtype=torch.float64))},
            {"edge_weight": None, "test_mask": None},
            {"num_common": 3},
            {"labels": None, "train_mask": None, "val_mask": None, "test_mask": None, "num_classes": None},
        ],
    )
    def test_round_trip_leaves_one_file(self, tmp_path, changes):
        graph = a_graph(**changes)
        save_party(graph, tmp_path / "bank.safetensors")
        save_party(graph, tmp_path / "bank.safetensors")
        same(load_party(tmp_path / "bank.safetensors"), graph)
        assert [path.name for path in tmp_path.iterdir()] == ["bank.safetensors"]

    @pytest.mark.parametrize("keep", [0, 5, 60, -1])
    def test_damaged(self, tmp_path, keep):
        path = tmp_path / "bank.safetensors"
        save_party(a_graph(), path)
        path.write_bytes(path.read_bytes()[:keep])
        with refused(DataError, key=path):
            load_party(path)

    @pytest.mark.parametrize(
        "tensors",
        [
            {"features": torch.ones(2, 2)},
            {"edge_index": NO_EDGES},
            {"features": torch.ones(2, 2), "edge_index": NO_EDGES, "extra": torch.ones(1)},
            {
                "features.row_pointers": torch.tensor([0, 3]),
                "features.columns": torch.tensor([0]),
                "features.values": torch.ones(1),
                "edge_index": NO_EDGES,
            },
        ],
    )
    def test_incomplete(self, tmp_path, tensors):
        path = tmp_path / "bank.safetensors"
        save_file(tensors, path, {"format": "veilgraph-party-1", "party": "bank", "num_features": "2"})
        with refused(DataError, key=path):
            load_party(path)

    def test_content_is_validated(self, tmp_path):
        path = tmp_path / "bank.safetensors"
        save_party(a_graph(features=with_value(float("nan"))), path)
        with refused(DataError, key="features", party="bank"):
            load_party(path)


def other(**changes):
    """Of another holder, which has no labels."""
    plain = {"labels": None, "train_mask": None, "val_mask": None, "test_mask": None, "num_classes": None}
    return a_graph(**({"party": "shop"} | plain | changes))


def test_only_the_common_nodes_of_a_federation_must_be_as_many():
    check_federation([a_graph(num_common=3), other(features=torch.ones(9, 1), num_common=3)], "bank")


@pytest.mark.parametrize(
    ("graphs", "label_holder", "key"),
    [
        ([a_graph()], "bank", "holders"),
        ([a_graph(num_common=3), other()], "bank", "holders"),
        ([a_graph(), a_graph()], "bank", "holders"),
        ([a_graph(), other()], "x", "label_holder"),
        ([a_graph(), other()], "shop", "labels"),
    ],
    ids=["too few", "of other sizes", "a name twice", "an unknown label holder", "a label holder without labels"],
)
def test_what_is_no_federation_is_refused(graphs, label_holder, key):
    with refused(DataError, key=key):
        check_federation(graphs, label_holder)


@pytest.mark.parametrize(("highest", "edges"), [(1, 0), (1, 1), (5, 40), (1000, 300), (2**31, 50)])
def test_pairs_once_are_the_columns_that_there_are_in_order(highest: int, edges: int) -> None:
    ends = torch.randint(highest, (2, edges), generator=torch.Generator().manual_seed(edges))
    pairs, place = pairs_once(ends)
    assert pairs.T.tolist() == [list(each) for each in sorted(set(map(tuple, ends.T.tolist())))]
    assert torch.equal(pairs[:, place], ends)
