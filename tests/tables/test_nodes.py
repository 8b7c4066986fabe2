import decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.errors import refused
from tests.tables.writing import FORMATS, party, write
from veilgraph.core.errors import DataError
from veilgraph.tables.nodes import read_nodes
from veilgraph.tables.source import MISSING, OTHER

LABEL = {"column": "y", "classes": ["no", "yes"]}
SPLIT = {"column": "part"}


def test_reading_all_kinds_of_columns(tmp_path):
    settings = party(
        [
            {"columns": ["x", "flag"], "missing": "zero"},
            {"columns": "kind", "categories": ["b", "a "], "missing": "zero", "other": "zero"},
        ],
        LABEL,
        SPLIT,
        nodes="n.parquet",
    )
    write(
        tmp_path / "n.parquet",
        {
            "unused": [[1], [2], [3], [4]],
            "id": ["u", "v", "w", "x"],
            "kind": ["a", " ", "c", " b"],
            "x": [1.5, None, -2.0, 3.0],
            "flag": [True, False, None, True],
            "y": ["yes", None, "no", ""],
            "part": ["train", "", "val", None],
        },
    )
    table = read_nodes(settings, tmp_path)
    assert table.ids.to_pylist() == ["u", "v", "w", "x"]
    assert [column.name for column in table.columns] == ["x", "flag", "kind"]
    np.testing.assert_array_equal(table.values[0], np.array([1.5, np.nan, -2, 3], np.float32))
    np.testing.assert_array_equal(table.values[1], np.array([1, 0, np.nan, 1], np.float32))
    assert table.values[2].tolist() == [1, MISSING, OTHER, 0]
    assert table.labels is not None
    assert table.labels.tolist() == [1, -1, 0, -1]
    assert table.splits is not None
    assert table.splits.tolist() == [0, -1, 1, -1]


@pytest.mark.parametrize("suffix", FORMATS)
def test_ids_are_text(tmp_path, suffix):
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
def test_an_integer_id_is_its_decimal_text(tmp_path, ids):
    write(tmp_path / "n.parquet", {"id": ids, "x": pa.array([decimal.Decimal("1.5"), None])})
    table = read_nodes(party([{"columns": "x", "missing": "zero"}], nodes="n.parquet"), tmp_path)
    assert table.ids.to_pylist() == ["7", "9223372036854775809"]
    assert table.values[0][0] == 1.5


def test_patterns_take_the_tables_order_and_never_id_label_or_split(tmp_path):
    write(tmp_path / "nodes.csv", {"w_b": [1], "id": ["u"], "y": ["no"], "w_a": [2], "v[1]": [3], "part": ["train"]})
    table = read_nodes(party(["w_*", "v[1]"], LABEL, SPLIT), tmp_path)
    assert [column.name for column in table.columns] == ["w_b", "w_a", "v[1]"]
    everything = read_nodes(party(["*"], LABEL, SPLIT), tmp_path)
    assert [column.name for column in everything.columns] == ["w_b", "w_a", "v[1]"]


def test_later_tables_keep_the_columns_of_the_first(tmp_path):
    settings = party(["w_*"])
    write(tmp_path / "nodes.csv", {"id": ["u"], "w_b": [1], "w_a": [2]})
    first = read_nodes(settings, tmp_path)
    write(tmp_path / "nodes.csv", {"w_new": [0], "w_a": [4], "id": ["u"], "w_b": [3]})
    later = read_nodes(settings, tmp_path, first.columns)
    assert later.columns == first.columns
    assert [values.tolist() for values in later.values] == [[3], [4]]


def test_fractions_are_stratified_and_depend_on_the_seed_only(tmp_path):
    labels = ["no"] * 50 + ["yes"] * 20 + [None] * 10
    write(tmp_path / "nodes.csv", {"id": list(range(80)), "x": [0] * 80, "y": labels})

    def splits(seed):
        table = read_nodes(party(label=LABEL, split={"train": 0.6, "val": 0.2, "test": 0.1, "seed": seed}), tmp_path)
        assert table.splits is not None
        return table.splits

    first = splits(0)
    assert [(first[:50] == part).sum() for part in (0, 1, 2, MISSING)] == [30, 10, 5, 5]
    assert [(first[50:70] == part).sum() for part in (0, 1, 2, MISSING)] == [12, 4, 2, 2]
    assert (first[70:] == MISSING).all()
    np.testing.assert_array_equal(splits(0), first)
    assert (splits(1) != first).any()


GOOD = {"id": ["u", "v"], "x": ["1", "2"], "c": ["p", "q"], "y": ["no", "yes"], "part": ["train", "val"]}


@pytest.mark.parametrize(
    ("changes", "key", "row"),
    [
        ({"id": ["u", "u"]}, "id", 2),
        ({"id": ["u", None]}, "id", 2),
        ({"x": ["1", "1,5"]}, "x", 2),
        ({"x": ["one", "two"]}, "x", 1),
        ({"x": [" 1", "two"]}, "x", 2),
        ({"x": ["1", "inf"]}, "x", 2),
        ({"x": ["nan", "1"]}, "x", 1),
        ({"x": ["1", "1e39"]}, "x", 2),
        ({"x": ["1", None]}, "x", 2),
        ({"c": [None, "q"]}, "c", 1),
        ({"c": ["p", "r"]}, "c", 2),
        ({"y": ["no", "maybe"]}, "y", 2),
        ({"part": ["dev", "val"]}, "part", 1),
        ({"y": ["no", None]}, "part", None),
        ({"id": []}, None, None),
        ({"x": None}, "x", None),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_refusals(tmp_path, suffix, changes, key, row):
    columns = {name: changes.get(name, values) for name, values in GOOD.items()}
    columns = {name: values for name, values in columns.items() if values is not None}
    if columns["id"] == []:
        columns = dict.fromkeys(columns, pa.array([], pa.string()))
    write(tmp_path / f"n.{suffix}", columns)
    settings = party(["x", {"columns": "c", "categories": ["p", "q"]}], LABEL, SPLIT, nodes=f"n.{suffix}")
    with refused(DataError, key=key or tmp_path / f"n.{suffix}", value=row) as caught:
        read_nodes(settings, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/n.{suffix}: ")


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("id", [1.0, 2.0], {"key": "id"}),
        ("id", [True, False], {"key": "id"}),
        ("y", [0.0, 1.0], {"key": "y"}),
        ("x", pa.array([1, 2], pa.timestamp("us")), {"key": "x"}),
        ("x", [1.0, float("nan")], {"key": "x", "value": 2}),
        ("x", [1.0, 1e39], {"key": "x", "value": 2}),
    ],
)
def test_parquet_types(tmp_path, column, values, message):
    write(tmp_path / "n.parquet", GOOD | {column: values})
    with refused(DataError, **message):
        read_nodes(party(["x"], LABEL, SPLIT, nodes="n.parquet"), tmp_path)


def test_booleans_and_integers_as_classes(tmp_path):
    for values, classes in (([True, False], ["false", "true"]), ([1, 0], [0, 1])):
        write(tmp_path / "n.parquet", GOOD | {"y": values})
        table = read_nodes(party(["x"], LABEL | {"classes": classes}, SPLIT, nodes="n.parquet"), tmp_path)
        assert table.labels is not None
        assert table.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("features", "message"),
    [(["v_*"], {"key": Path("nodes.csv")}), (["x", "x"], {"key": "x"}), (["x", "?"], {"key": "x"})],
)
def test_choices_of_columns(tmp_path, features, message):
    write(tmp_path / "nodes.csv", {"id": ["u"], "x": [1]})
    with refused(DataError, **message):
        read_nodes(party(features), tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        ("n.csv", b"id,x\nu,1\n\nv,2,3\n", None),
        ("n.csv", b"", None),
        ("n.csv", b"id,x\n\xe9,1\n", None),
        ("n.csv", b"id:x\nu:1\n", "id"),
        ("n.csv.gz", b"id,x\nu,1\n", None),
        ("n.parquet", b"id,x\nu,1\n", None),
        ("n.csv", None, None),
        ("n.parquet", None, None),
    ],
)
def test_damaged_files(tmp_path, name, content, key):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with refused(DataError, key=key or tmp_path / name):
        read_nodes(party(nodes=name), tmp_path)


def test_a_column_that_is_twice_in_a_header_has_a_number(tmp_path):
    """As pandas numbers it, whatever else the header has; a Parquet file is refused, for it cannot be read by name."""
    (tmp_path / "n.csv").write_text("\n\nx,id,x,x.1,x\n1,u,2,3,4\n\n5,v,6,7,8\n")
    columns = ("x.3", "x", "x.2", "x.1")
    table = read_nodes(party(columns, nodes="n.csv"), tmp_path)
    assert [column.name for column in table.columns] == [*columns]
    assert [each.tolist() for each in table.values] == [[4, 8], [1, 5], [2, 6], [3, 7]]
    (tmp_path / "n.csv").write_text("id,x,x\nu,1,2\nv,3\n")
    with refused(DataError, key=tmp_path / "n.csv"):
        read_nodes(party(["x.1"], nodes="n.csv"), tmp_path)
    twice = pa.table([["u"], [1.0], [2.0]], ["id", "x", "x"])
    pa.parquet.write_table(twice, tmp_path / "n.parquet")
    with refused(DataError, key="x"):
        read_nodes(party(["x"], nodes="n.parquet"), tmp_path)


def test_rows_are_counted_across_batches(tmp_path, monkeypatch):
    monkeypatch.setattr("veilgraph.tables.source.CSV_BLOCK_BYTES", 64)
    monkeypatch.setattr("veilgraph.tables.source.PARQUET_BATCH_ROWS", 10)
    numbers = [str(value) for value in range(100)]
    numbers[77] = "x"
    for suffix in FORMATS:
        write(tmp_path / f"n.{suffix}", {"id": list(range(100)), "x": numbers})
        with refused(DataError, key="x", value=78):
            read_nodes(party(nodes=f"n.{suffix}"), tmp_path)
