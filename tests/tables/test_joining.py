"""Nodes of several files: labels in one of their own, and further tables, all joined by id."""

import numpy as np
import pyarrow as pa
import pytest

from tests.errors import refused
from tests.tables.writing import FORMATS, build, party, write
from veilgraph.core.errors import DataError
from veilgraph.protocol.organisation import Organisation
from veilgraph.tables.describe import describe_party
from veilgraph.tables.encode import encode, fit_encoding
from veilgraph.tables.nodes import FileDescription, feature_columns, read_nodes
from veilgraph.tables.source import MISSING

LABEL = {"column": "fraud", "classes": ["no", "yes"], "file": "labels.csv", "id": "customer"}
SPLIT = {"column": "part"}
FRACTIONS = {"train": 0.5, "val": 0.25, "test": 0.25}
NODES = {"id": ["u", "v", "w", "x"], "x": [1, 2, 3, 4]}


@pytest.mark.parametrize("suffix", FORMATS)
def test_labels_of_a_file_are_joined_by_id(tmp_path, suffix):
    write(tmp_path / "nodes.csv", NODES)
    columns = {"customer": ["x", "?", "u", "w"], "fraud": ["yes", "never read", "no", None]}
    write(tmp_path / f"l.{suffix}", columns)
    table = read_nodes(party(label=LABEL | {"file": f"l.{suffix}"}, split=FRACTIONS), tmp_path)
    assert table.labels is not None
    assert table.labels.tolist() == [0, MISSING, MISSING, 1]
    assert table.splits is not None
    assert table.splits[1] == table.splits[2] == MISSING
    assert [(each.rows, each.unknown, each.without) for each in table.counts] == [(4, None, None), (4, 1, 1)]


def test_the_same_labels_in_one_table_or_two_make_the_same_graph(tmp_path):
    write(tmp_path / "nodes.csv", NODES | {"fraud": ["no", None, "yes", "no"], "part": ["train", None, "val", "test"]})
    here = {key: value for key, value in LABEL.items() if key not in {"file", "id"}}
    one = build(party(label=here, split=SPLIT), tmp_path).graph
    write(tmp_path / "nodes.csv", NODES)
    write(
        tmp_path / "labels.csv",
        {"customer": ["x", "w", "u"], "part": ["test", "val", "train"], "fraud": ["no", "yes", "no"]},
    )
    two = build(party(label=LABEL, split=SPLIT), tmp_path).graph
    for name in ("features", "labels", "train_mask", "val_mask", "test_mask"):
        assert getattr(one, name).tolist() == getattr(two, name).tolist()


def test_the_split_beside_the_labels_is_taken_and_else_the_node_tables(tmp_path):
    write(tmp_path / "nodes.csv", NODES | {"part": ["val"] * 4})
    write(tmp_path / "labels.csv", {"customer": list("uvwx"), "fraud": ["no"] * 4})
    elsewhere = read_nodes(party(label=LABEL, split=SPLIT), tmp_path).splits
    write(tmp_path / "labels.csv", {"customer": list("uvwx"), "fraud": ["no"] * 4, "part": ["train"] * 4})
    beside = read_nodes(party(label=LABEL, split=SPLIT), tmp_path).splits
    assert elsewhere is not None
    assert beside is not None
    assert (elsewhere.tolist(), beside.tolist()) == ([1] * 4, [0] * 4)


@pytest.mark.parametrize(
    ("rows", "key", "value"),
    [
        ({"customer": ["u", "v", "u"]}, "customer", 3),
        ({"customer": ["u", None, "v"]}, "customer", 2),
        ({"fraud": ["no", "maybe", "no"]}, "fraud", 2),
        ({"fraud": None}, "fraud", None),
        ({"customer": None}, "customer", None),
    ],
)
def test_labels_that_are_refused(tmp_path, rows, key, value):
    write(tmp_path / "nodes.csv", NODES)
    columns = {"customer": ["u", "v", "w"], "fraud": ["no", "yes", "no"]} | rows
    write(tmp_path / "labels.csv", {name: values for name, values in columns.items() if values is not None})
    with refused(DataError, key=key, value=value) as caught:
        read_nodes(party(label=LABEL, split=FRACTIONS), tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/labels.csv: ")


def test_a_node_in_a_split_has_a_label_in_whichever_file(tmp_path):
    write(tmp_path / "nodes.csv", NODES)
    write(tmp_path / "labels.csv", {"customer": ["w", "v"], "fraud": ["no", None], "part": ["val", "train"]})
    with refused(DataError, key="part") as caught:
        read_nodes(party(label=LABEL, split=SPLIT), tmp_path)
    assert "node 'v': 'train' for a node without a label" in str(caught.value)


JOIN = [{"file": "usage.csv", "id": "client", "prefix": "usage."}]


def test_columns_of_further_tables_follow_the_nodes_of_the_first(tmp_path):
    write(tmp_path / "nodes.csv", NODES | {"kind": ["p", "q", "p", "q"]})
    write(tmp_path / "usage.csv", {"client": ["w", "u", "?"], "x": ["30", "10", "lots"], "kind": ["a", "b", "c"]})
    settings = party(
        [
            {"columns": "usage.x", "missing": "mean"},
            "x",
            {"columns": "usage.kind", "categories": ["a", "b"], "missing": "category"},
            {"columns": "kind", "categories": ["p", "q"]},
        ],
        join=JOIN,
    )
    table = read_nodes(settings, tmp_path)
    assert table.ids.to_pylist() == ["u", "v", "w", "x"]
    encoding = fit_encoding(table, "none")
    assert encoding.names == (
        *("usage.x", "x", "usage.kind=a", "usage.kind=b", "usage.kind missing"),
        *("kind=p", "kind=q"),
    )
    assert encode(table, encoding).tolist() == [
        [10, 1, 0, 1, 0, 1, 0],
        [20, 2, 0, 0, 1, 0, 1],
        [30, 3, 1, 0, 0, 1, 0],
        [20, 4, 0, 0, 1, 0, 1],
    ]


def test_several_tables_and_labels_among_them(tmp_path):
    write(tmp_path / "nodes.csv", NODES)
    write(tmp_path / "more.csv", {"id": list("xwv"), "y": [4, 3, 2]})
    write(tmp_path / "labels.csv", {"id": list("xu"), "fraud": ["yes", "no"], "part": ["train", "val"]})
    label = {"column": "fraud", "classes": ["no", "yes"]}
    table = read_nodes(
        party(
            ["x", {"columns": "y", "missing": "zero"}],
            label,
            SPLIT,
            join=[{"file": "more.csv"}, {"file": "labels.csv"}],
        ),
        tmp_path,
    )
    np.testing.assert_array_equal(table.values[1], [np.nan, 2, 3, 4])
    assert table.labels is not None
    assert table.splits is not None
    assert (table.labels.tolist(), table.splits.tolist()) == ([0, -1, -1, 1], [1, -1, -1, 0])


def test_rows_across_batches_of_a_further_table(tmp_path, monkeypatch):
    monkeypatch.setattr("veilgraph.tables.source.CSV_BLOCK_BYTES", 64)
    names = [f"n{row:03}" for row in range(100)]
    write(tmp_path / "nodes.csv", {"id": names, "x": list(range(100))})
    write(tmp_path / "usage.csv", {"client": names[::-1], "x": list(range(99, -1, -1))})
    table = read_nodes(party(["x", "usage.x"], join=JOIN), tmp_path)
    np.testing.assert_array_equal(table.values[0], table.values[1])
    write(tmp_path / "usage.csv", {"client": [*names[::-1], "n050"], "x": list(range(101))})
    with refused(DataError, key="client", value=101) as caught:
        read_nodes(party(["x", "usage.x"], join=JOIN), tmp_path)
    assert "'n050' is also the id of row 50" in str(caught.value)


@pytest.mark.parametrize(
    ("features", "join", "usage", "key"),
    [
        (["x", "y"], [{"file": "usage.csv", "id": "client"}], {}, "x"),
        (["*"], [{"file": "usage.csv", "id": "client"}], {}, "x"),
        (["usage.z"], JOIN, {}, "usage.z"),
        (["usage.client"], JOIN, {}, "usage.client"),
        (["usage.y"], JOIN, {"client": ["u", "v", "w"]}, "y"),
        (["usage.y"], JOIN, {"client": ["u", "v", "w", "w"]}, "client"),
        (["usage.y"], JOIN, {"client": pa.array([], pa.string())}, "y"),
    ],
)
def test_joins_that_are_refused(tmp_path, features, join, usage, key):
    write(tmp_path / "nodes.csv", NODES)
    columns = {"client": list("uvwx"), "x": [1, 2, 3, 4], "y": [1, 2, 3, 4]} | usage
    write(tmp_path / "usage.csv", {name: values[: len(columns["client"])] for name, values in columns.items()})
    with refused(DataError, key=key):
        read_nodes(party(features, join=join), tmp_path)


def test_what_became_of_every_files_rows_is_said(tmp_path):
    write(tmp_path / "nodes.csv", NODES)
    write(tmp_path / "usage.csv", {"client": ["u", "?", "!"], "y": [1, 2, 3]})
    write(tmp_path / "edges.csv", {"a": ["u"], "b": ["v"]})
    found = describe_party(party(["x"], join=JOIN, edges=[{}]), tmp_path)
    assert [(str(each.file), each.rows, each.unknown, each.without) for each in found.files] == [
        ("nodes.csv", 4, None, None),
        ("usage.csv", 3, 2, 3),
        ("edges.csv", 1, None, None),
    ]
    assert isinstance(found.files[0], FileDescription)


@pytest.mark.parametrize("changed", ["labels.csv", "usage.csv"])
def test_the_digest_of_the_tables_is_of_every_file(tmp_path, changed):
    write(tmp_path / "nodes.csv", NODES)
    write(tmp_path / "usage.csv", {"client": ["u"], "y": [1]})
    write(tmp_path / "labels.csv", {"customer": ["u"], "fraud": ["no"]})
    own = Organisation(party(label=LABEL, split=FRACTIONS, join=JOIN), tmp_path)
    before = own.digest()
    assert own.digest() == before
    with (tmp_path / changed).open("a", encoding="utf-8") as file:
        file.write("\n")
    assert own.digest() != before


def test_a_file_of_labels_has_no_features(tmp_path):
    write(tmp_path / "nodes.csv", NODES)
    write(tmp_path / "labels.csv", {"customer": list("uvwx"), "fraud": ["no"] * 4, "amount_lost": [0, 1, 2, 3]})
    table = read_nodes(party(["*"], LABEL, FRACTIONS), tmp_path)
    assert [column.name for column in table.columns] == ["x"]


def test_patterns_take_the_first_tables_columns_first_and_no_ids(tmp_path):
    write(tmp_path / "nodes.csv", NODES)
    write(tmp_path / "usage.csv", {"client": list("uvwx"), "calls": [1, 2, 3, 4], "x": [0] * 4})
    settings = party(["*"], join=JOIN)
    assert [column.name for column in read_nodes(settings, tmp_path).columns] == ["x", "usage.calls", "usage.x"]
    assert feature_columns(settings, tmp_path) == read_nodes(settings, tmp_path).columns
