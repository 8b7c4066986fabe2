"""Nodes of one file or several: what is read, and how ids join labels and further tables."""

import decimal
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.errors import refused
from tests.tables.writing import FORMATS, build, party, write
from veilgraph.core.errors import DataError
from veilgraph.protocol.organisation import Organisation
from veilgraph.report.tables import party_tables
from veilgraph.tables.describe import describe_party
from veilgraph.tables.encode import encode, fit_encoding
from veilgraph.tables.nodes import NodeTable, feature_columns, read_nodes
from veilgraph.tables.source import MISSING, OTHER

LABEL = {"column": "y", "classes": ["no", "yes"]}
APART = {"column": "fraud", "classes": ["no", "yes"], "file": "labels.csv", "id": "customer"}
SPLIT = {"column": "part"}
FRACTIONS = {"train": 0.5, "val": 0.25, "test": 0.25}
JOIN = [{"file": "usage.csv", "id": "client", "prefix": "usage."}]
BOTH = {"strip": True, "lower": True}
NODES = {"id": ["u", "v", "w", "x"], "x": [1, 2, 3, 4]}


def named(table: NodeTable) -> list[str]:
    return [column.name for column in table.columns]


def said(table: NodeTable) -> tuple[list[int], list[int]]:
    """Labels and splits."""
    assert table.labels is not None
    assert table.splits is not None
    return table.labels.tolist(), table.splits.tolist()


# One file


def test_reading_all_kinds_of_columns(tmp_path: Path) -> None:
    features = [
        {"columns": ["x", "flag"], "missing": "zero"},
        {"columns": "kind", "categories": ["b", "a "], "missing": "zero", "other": "zero"},
    ]
    columns = {
        "unused": [[1], [2], [3], [4]],
        "id": ["u", "v", "w", "x"],
        "kind": ["a", " ", "c", " b"],
        "x": [1.5, None, -2.0, 3.0],
        "flag": [True, False, None, True],
        "y": ["yes", None, "no", ""],
        "part": ["train", "", "val", None],
    }
    write(tmp_path / "n.parquet", columns)
    table = read_nodes(party(features, LABEL, SPLIT, nodes="n.parquet"), tmp_path)
    assert table.ids.to_pylist() == ["u", "v", "w", "x"]
    assert named(table) == ["x", "flag", "kind"]
    np.testing.assert_array_equal(table.values[0], np.array([1.5, np.nan, -2, 3], np.float32))
    np.testing.assert_array_equal(table.values[1], np.array([1, 0, np.nan, 1], np.float32))
    assert table.values[2].tolist() == [1, MISSING, OTHER, 0]
    assert said(table) == ([1, -1, 0, -1], [0, -1, 1, -1])


@pytest.mark.parametrize("suffix", FORMATS)
def test_ids_are_text(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"n.{suffix}", {"id": ["007", "7", " 7", 'ü,\n"'], "x": [1, 2, 3, 4]})
    assert read_nodes(party(nodes=f"n.{suffix}"), tmp_path).ids.to_pylist() == ["007", "7", " 7", 'ü,\n"']


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([7, 2**63 + 1], pa.uint64()),
        pa.array(["7", str(2**63 + 1)], pa.large_string()),
        pa.array(["7", str(2**63 + 1)], pa.string_view()),
        pa.array(["7", str(2**63 + 1)]).dictionary_encode(),
    ],
)
def test_an_integer_id_is_its_decimal_text(tmp_path: Path, ids: pa.Array) -> None:
    write(tmp_path / "n.parquet", {"id": ids, "x": pa.array([decimal.Decimal("1.5"), None])})
    table = read_nodes(party([{"columns": "x", "missing": "zero"}], nodes="n.parquet"), tmp_path)
    assert table.ids.to_pylist() == ["7", "9223372036854775809"]
    assert table.values[0][0] == 1.5


def test_patterns_take_the_tables_order_and_later_tables_that_of_the_first(tmp_path: Path) -> None:
    """Neither id, label nor split; of a file of labels nothing, and of further tables no ids."""
    first = {"w_b": [1], "id": ["u"], "y": ["no"], "w_a": [2], "v[1]": [3], "part": ["train"]}
    write(tmp_path / "nodes.csv", first)
    settings = party(["w_*", "v[1]"], LABEL, SPLIT)
    table = read_nodes(settings, tmp_path)
    assert named(table) == named(read_nodes(party(["*"], LABEL, SPLIT), tmp_path)) == ["w_b", "w_a", "v[1]"]
    later = {"w_new": [0], "w_a": [4], "v[1]": [9], "id": ["u"], "w_b": [3], "y": ["no"], "part": ["train"]}
    write(tmp_path / "nodes.csv", later)
    again = read_nodes(settings, tmp_path, table.columns)
    assert again.columns == table.columns
    assert [values.tolist() for values in again.values] == [[3], [4], [9]]
    write(tmp_path / "nodes.csv", NODES)
    write(tmp_path / "usage.csv", {"client": list("uvwx"), "calls": [1, 2, 3, 4], "x": [0] * 4})
    write(tmp_path / "labels.csv", {"customer": list("uvwx"), "fraud": ["no"] * 4, "amount_lost": [0, 1, 2, 3]})
    settings = party(["*"], APART, FRACTIONS, join=JOIN)
    joined = read_nodes(settings, tmp_path)
    assert named(joined) == ["x", "usage.calls", "usage.x"]
    assert feature_columns(settings, tmp_path) == joined.columns


def test_fractions_are_stratified_and_depend_on_the_seed_only(tmp_path: Path) -> None:
    labels = ["no"] * 50 + ["yes"] * 20 + [None] * 10
    write(tmp_path / "nodes.csv", {"id": list(range(80)), "x": [0] * 80, "y": labels})

    def splits(seed: int) -> Any:
        table = read_nodes(party(label=LABEL, split={"train": 0.6, "val": 0.2, "test": 0.1, "seed": seed}), tmp_path)
        assert table.splits is not None
        return table.splits

    first = splits(0)
    assert [(first[:50] == part).sum() for part in (0, 1, 2, MISSING)] == [30, 10, 5, 5]
    assert [(first[50:70] == part).sum() for part in (0, 1, 2, MISSING)] == [12, 4, 2, 2]
    assert (first[70:] == MISSING).all()
    np.testing.assert_array_equal(splits(0), first)
    assert (splits(1) != first).any()


@pytest.mark.parametrize(("values", "classes"), [([True, False], ["false", "true"]), ([1, 0], [0, 1])])
def test_booleans_and_integers_as_classes(tmp_path: Path, values: list[Any], classes: list[Any]) -> None:
    write(tmp_path / "n.parquet", {"id": ["u", "v"], "x": ["1", "2"], "y": values, "part": ["train", "val"]})
    table = read_nodes(party(["x"], LABEL | {"classes": classes}, SPLIT, nodes="n.parquet"), tmp_path)
    assert said(table)[0] == [1, 0]


@pytest.mark.parametrize("values", [["1.0", "0", None, "1"], [1.0, 0.0, math.nan, 1.0]])
@pytest.mark.parametrize("classes", [["0", "1"], ["0.0", "1."]])
def test_whole_numbers_as_classes_have_no_point(tmp_path: Path, values: list[Any], classes: list[str]) -> None:
    write(tmp_path / "n.parquet", {"id": ["u", "v", "w", "z"], "x": ["1"] * 4, "y": values})
    settings = party(["x"], LABEL | {"classes": classes}, FRACTIONS, nodes="n.parquet")
    assert settings.nodes.label is not None
    assert settings.nodes.label.classes == ("0", "1")
    labels = read_nodes(settings, tmp_path).labels
    assert labels is not None
    assert labels.tolist() == [1, 0, MISSING, 1]


def test_a_fraction_is_no_whole_class(tmp_path: Path) -> None:
    settings = party(["x"], LABEL | {"classes": ["1.0", "1.5"]}, FRACTIONS)
    assert settings.nodes.label is not None
    assert settings.nodes.label.classes == ("1.0", "1.5")
    write(tmp_path / "n.parquet", {"id": ["u", "v"], "x": ["1", "2"], "y": [0.0, 0.5]})
    with refused(DataError, key="y"):
        read_nodes(party(["x"], LABEL | {"classes": ["0", "1"]}, FRACTIONS, nodes="n.parquet"), tmp_path)


def test_a_column_that_is_twice_in_a_header_has_a_number(tmp_path: Path) -> None:
    """As pandas numbers it, whatever else the header has; a Parquet file is refused, for it cannot be read by name."""
    (tmp_path / "n.csv").write_text("\n\nx,id,x,x.1,x\n1,u,2,3,4\n\n5,v,6,7,8\n")
    columns = ("x.3", "x", "x.2", "x.1")
    table = read_nodes(party(columns, nodes="n.csv"), tmp_path)
    assert named(table) == [*columns]
    assert [each.tolist() for each in table.values] == [[4, 8], [1, 5], [2, 6], [3, 7]]
    (tmp_path / "n.csv").write_text("id,x,x\nu,1,2\nv,3\n")
    with refused(DataError, key=tmp_path / "n.csv"):
        read_nodes(party(["x.1"], nodes="n.csv"), tmp_path)
    pa.parquet.write_table(pa.table([["u"], [1.0], [2.0]], ["id", "x", "x"]), tmp_path / "n.parquet")
    with refused(DataError, key="x"):
        read_nodes(party(["x"], nodes="n.parquet"), tmp_path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_rows_are_counted_across_batches(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilgraph.tables.source.CSV_BLOCK_BYTES", 64)
    monkeypatch.setattr("veilgraph.tables.source.PARQUET_BATCH_ROWS", 10)
    numbers = [str(value) for value in range(100)]
    numbers[77] = "x"
    write(tmp_path / f"n.{suffix}", {"id": list(range(100)), "x": numbers})
    with refused(DataError, key="x", value=78):
        read_nodes(party(nodes=f"n.{suffix}"), tmp_path)
    names = [f"n{row:03}" for row in range(100)]
    write(tmp_path / "nodes.csv", {"id": names, "x": list(range(100))})
    write(tmp_path / "usage.csv", {"client": names[::-1], "x": list(range(99, -1, -1))})
    table = read_nodes(party(["x", "usage.x"], join=JOIN), tmp_path)
    np.testing.assert_array_equal(table.values[0], table.values[1])


# Labels, and further tables


@pytest.mark.parametrize("suffix", FORMATS)
def test_labels_of_a_file_are_joined_by_id(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / "nodes.csv", NODES)
    columns = {"customer": ["x", "?", "u", "w"], "fraud": ["yes", "never read", "no", None]}
    write(tmp_path / f"l.{suffix}", columns)
    table = read_nodes(party(label=APART | {"file": f"l.{suffix}"}, split=FRACTIONS), tmp_path)
    labels, splits = said(table)
    assert labels == [0, MISSING, MISSING, 1]
    assert splits[1] == splits[2] == MISSING
    assert [(each.rows, each.unknown, each.without) for each in table.counts] == [(4, None, None), (4, 1, 1)]


def test_the_split_beside_the_labels_is_taken_and_else_the_node_tables(tmp_path: Path) -> None:
    write(tmp_path / "nodes.csv", NODES | {"part": ["val"] * 4})
    labels = {"customer": list("uvwx"), "fraud": ["no"] * 4}
    for columns, split in ((labels, 1), (labels | {"part": ["train"] * 4}, 0)):
        write(tmp_path / "labels.csv", columns)
        assert said(read_nodes(party(label=APART, split=SPLIT), tmp_path)) == ([0] * 4, [split] * 4)


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
def test_labels_that_are_refused(tmp_path: Path, rows: dict[str, Any], key: str, value: object) -> None:
    write(tmp_path / "nodes.csv", NODES)
    columns = {"customer": ["u", "v", "w"], "fraud": ["no", "yes", "no"]} | rows
    write(tmp_path / "labels.csv", {name: values for name, values in columns.items() if values is not None})
    with refused(DataError, key=key, value=value) as caught:
        read_nodes(party(label=APART, split=FRACTIONS), tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/labels.csv: ")


def test_a_node_in_a_split_has_a_label_in_whichever_file(tmp_path: Path) -> None:
    write(tmp_path / "nodes.csv", NODES)
    write(tmp_path / "labels.csv", {"customer": ["w", "v"], "fraud": ["no", None], "part": ["val", "train"]})
    with refused(DataError, key="part") as caught:
        read_nodes(party(label=APART, split=SPLIT), tmp_path)
    assert "node 'v': 'train' for a node without a label" in str(caught.value)


def test_columns_of_further_tables_follow_the_nodes_of_the_first(tmp_path: Path) -> None:
    write(tmp_path / "nodes.csv", NODES | {"kind": ["p", "q", "p", "q"]})
    write(tmp_path / "usage.csv", {"client": ["w", "u", "?"], "x": ["30", "10", "lots"], "kind": ["a", "b", "c"]})
    write(tmp_path / "labels.csv", {"id": list("xu"), "fraud": ["yes", "no"], "part": ["train", "val"]})
    features = [
        {"columns": "usage.x", "missing": "mean"},
        "x",
        {"columns": "usage.kind", "categories": ["a", "b"], "missing": "category"},
        {"columns": "kind", "categories": ["p", "q"]},
    ]
    label = {"column": "fraud", "classes": ["no", "yes"]}
    table = read_nodes(party(features, label, SPLIT, join=[*JOIN, {"file": "labels.csv"}]), tmp_path)
    assert table.ids.to_pylist() == ["u", "v", "w", "x"]
    assert said(table) == ([0, -1, -1, 1], [1, -1, -1, 0])
    encoding = fit_encoding(table, "none")
    names = ("usage.x", "x", "usage.kind=a", "usage.kind=b", "usage.kind missing", "kind=p", "kind=q")
    assert encoding.names == names
    assert encode(table, encoding).tolist() == [
        [10, 1, 0, 1, 0, 1, 0],
        [20, 2, 0, 0, 1, 0, 1],
        [30, 3, 1, 0, 0, 1, 0],
        [20, 4, 0, 0, 1, 0, 1],
    ]


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
def test_joins_that_are_refused(tmp_path: Path, features: Any, join: Any, usage: dict[str, Any], key: str) -> None:
    write(tmp_path / "nodes.csv", NODES)
    columns: dict[str, Any] = {"client": list("uvwx"), "x": [1, 2, 3, 4], "y": [1, 2, 3, 4]} | usage
    write(tmp_path / "usage.csv", {name: values[: len(columns["client"])] for name, values in columns.items()})
    with refused(DataError, key=key):
        read_nodes(party(features, join=join), tmp_path)


def test_what_became_of_every_files_rows_is_said_and_the_digest_is_of_all(tmp_path: Path) -> None:
    write(tmp_path / "nodes.csv", NODES)
    write(tmp_path / "usage.csv", {"client": ["u", "?", "!"], "y": [1, 2, 3]})
    write(tmp_path / "labels.csv", {"customer": ["u"], "fraud": ["no"]})
    write(tmp_path / "edges.csv", {"a": ["u"], "b": ["v"]})
    settings = party(["x"], APART, FRACTIONS, join=JOIN, edges=[{}])
    counts = [
        (str(each.file), each.rows, each.unknown, each.without) for each in describe_party(settings, tmp_path).files
    ]
    assert counts == [
        ("nodes.csv", 4, None, None),
        ("usage.csv", 3, 2, 3),
        ("labels.csv", 1, 0, 3),
        ("edges.csv", 1, None, None),
    ]
    own = Organisation(settings, tmp_path)
    digests = [own.digest()]
    assert own.digest() == digests[0]
    for name, *_ in counts:
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write("\n")
        digests.append(own.digest())
    assert len({*digests}) == 5


# Ids that are written alike first


@pytest.mark.parametrize("suffix", FORMATS)
def test_ids_of_nodes_labels_further_tables_and_edges_are_written_alike(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"n.{suffix}", {"id": ["AB-7 ", "\tÜx", "c"], "x": [1, 2, 3]})
    labels = {"customer": ["üX", " ab-7", "C"], "fraud": ["yes", "no", "no"], "part": ["train", "val", "test"]}
    write(tmp_path / "labels.csv", labels)
    write(tmp_path / "usage.csv", {"client": ["C", "Ab-7"], "z": [30, 10]})
    write(tmp_path / "edges.csv", {"a": ["ab-7", "C "], "b": ["ÜX", "AB-7"]})
    features = ["x", {"columns": "usage.z", "missing": "zero"}]
    edges = [{"directed": True}]
    built = build(party(features, APART, SPLIT, nodes=f"n.{suffix}", join=JOIN, edges=edges, ids=BOTH), tmp_path)
    assert built.ids.to_pylist() == ["ab-7", "üx", "c"]
    assert built.graph.labels is not None
    assert built.graph.labels.tolist() == [0, 1, 0]
    assert built.graph.features.tolist() == [[1, 10], [2, 0], [3, 30]]
    assert built.graph.edge_index.tolist() == [[0, 2], [1, 0]]


@pytest.mark.parametrize(
    ("spelling", "ids", "wanted"),
    [
        ({}, ["A ", "b"], ["A ", "b"]),
        ({"strip": True}, ["A ", "b"], ["A", "b"]),
        ({"lower": True}, ["A ", "b"], ["a ", "b"]),
        (BOTH, ["A ", "b"], ["a", "b"]),
        ({"unpadded": True}, ["0042", "000", "70", "0A0"], ["42", "0", "70", "A0"]),
    ],
)
def test_each_by_itself(tmp_path: Path, spelling: dict[str, bool], ids: list[str], wanted: list[str]) -> None:
    write(tmp_path / "nodes.csv", {"id": ids, "x": [1.5] * len(ids)})
    assert read_nodes(party(ids=spelling), tmp_path).ids.to_pylist() == wanted
    assert (party(ids=spelling).hashed() == party().hashed()) == (not spelling), "what is hashed says it"


def test_ids_that_are_one_or_none_when_written_alike_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "nodes.csv", {"id": ["u", "  "], "x": [1, 2]})
    with refused(DataError, key="id", value=2):
        read_nodes(party(ids=BOTH), tmp_path)
    write(tmp_path / "nodes.csv", {"id": ["u", "v"], "x": [1, 2]})
    write(tmp_path / "edges.csv", {"a": ["U"], "b": pa.array(["v"])})
    with refused(DataError, key="a", value=1):
        build(party(edges=[{}]), tmp_path)


@pytest.mark.parametrize("file", ["nodes.csv", "usage.csv", "labels.csv"])
def test_two_spellings_of_one_id_are_refused_with_both(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilgraph.tables.source.CSV_BLOCK_BYTES", 16)
    ids = ["p", "q", "AB", "r"]
    tables: dict[str, dict[str, list[Any]]] = {
        "nodes.csv": {"id": ids, "x": [1, 2, 3, 4]},
        "usage.csv": {"id": ids, "z": [1, 2, 3, 4]},
        "labels.csv": {"id": ids, "y": ["no", "yes", "no", "no"], "part": ["train", "val", "test", "test"]},
    }
    label = LABEL | {"file": "labels.csv"}
    settings = party(["x", "z"], label, SPLIT, join=[{"file": "usage.csv"}], ids=BOTH)
    for name, columns in tables.items():
        write(tmp_path / name, columns)
    read_nodes(settings, tmp_path)
    more = {name: [*values, values[0]] for name, values in tables[file].items()}
    write(tmp_path / file, more | {"id": [*ids, "aB "]})
    with refused(DataError, key="id", value=5) as caught:
        read_nodes(settings, tmp_path)
    assert f"{file}: column 'id', row 5: 'aB ' is as 'AB' is, the id of row 3" in str(caught.value)


REPEATED = ["a", "b", "A", "c", "b", "d", "B "]


def with_duplicates(folder: Path, **more: Any) -> NodeTable:
    write(folder / "nodes.csv", {"id": REPEATED, "x": [1.0, 2, 3, 4, 5, 6, 7]})
    write(folder / "usage.csv", {"id": ["d", "c", "x", "d", "d"], "calls": [1.0, 2, 3, 4, 5]})
    write(folder / "labels.csv", {"id": ["a", "c", "a", "d", "b"], "y": ["no", "yes", "yes", "no", "no"]})
    label, features = LABEL | {"file": "labels.csv"}, [{"columns": ["x", "calls"], "missing": "zero"}]
    settings = party(features, label, FRACTIONS, join=[{"file": "usage.csv"}], ids=BOTH, **more)
    described = describe_party(settings, folder)
    assert [each.repeated for each in described.files] == [3, 2, 1]
    assert [each.unknown for each in described.files] == [None, 1, 0]
    assert "repeated ids" in {str(column.header) for column in party_tables(described)[1].columns}
    return read_nodes(settings, folder)


@pytest.mark.parametrize(
    ("which", "rows", "x", "calls", "labels"),
    [
        ("first", ["a", "b", "c", "d"], [1, 2, 4, 6], [np.nan, np.nan, 2, 1], [0, 0, 1, 0]),
        ("last", ["A", "c", "d", "B "], [3, 4, 6, 7], [np.nan, 2, 5, np.nan], [1, 1, 0, 0]),
    ],
)
def test_one_row_of_an_id_counts_in_every_file(
    tmp_path: Path, which: str, rows: list[str], x: list[float], calls: list[float], labels: list[int]
) -> None:
    found = with_duplicates(tmp_path, duplicates=which)
    assert found.written.to_pylist() == rows
    assert found.ids.to_pylist() == [each.strip().lower() for each in rows]
    assert found.values[0].tolist() == x
    np.testing.assert_array_equal(found.values[1], calls)
    assert said(found)[0] == labels


def test_without_a_choice_repeated_ids_are_refused_with_what_to_set(tmp_path: Path) -> None:
    with refused(DataError, key="id", value=3) as caught:
        with_duplicates(tmp_path)
    assert "'A' is as 'a' is, the id of row 1 (ids of several rows, 2: 'a', 'b')" in str(caught.value)
    assert "merge them, or set nodes.duplicates to first or last" in str(caught.value)
    write(tmp_path / "nodes.csv", {"id": ["a", "b"], "x": [1.0, 2]})
    write(tmp_path / "usage.csv", {"id": ["x", "a", "b", "a"], "calls": [0.0, 1, 2, 3]})
    with refused(DataError, key="id", value=4):
        read_nodes(party(["x", "calls"], join=[{"file": "usage.csv"}]), tmp_path)
