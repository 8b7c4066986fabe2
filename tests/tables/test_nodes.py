import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.tables.writing import FORMATS, party, write
from veilgraph.core.errors import DataError
from veilgraph.tables.convert import MISSING, OTHER
from veilgraph.tables.nodes import read_nodes

LABEL = {"column": "y", "classes": ["no", "yes"]}
SPLIT = {"column": "part"}


def test_reading_all_kinds_of_columns(tmp_path):
    settings = party(
        [
            {"columns": ["x", "flag"], "missing": "zero"},
            {"columns": "kind", "categories": ["b", "a"], "missing": "zero", "other": "zero"},
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
            "kind": ["a", "", "c", "b"],
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
    ("changes", "message"),
    [
        ({"id": ["u", "u"]}, "column 'id', row 2: 'u' is also the id of row 1.*merge them"),
        ({"id": ["u", None]}, "column 'id', row 2: no value where an id must be; give every row its id"),
        ({"x": ["1", "1,5"]}, "column 'x', row 2: '1,5' is not a number; write numbers like"),
        ({"x": [" 1", "two"]}, "column 'x', row 1: ' 1' is not a number"),
        ({"x": ["1", "inf"]}, "column 'x', row 2: 'inf' is not a finite number of float32; mend it"),
        ({"x": ["nan", "1"]}, "column 'x', row 1: 'nan' is not a finite number"),
        ({"x": ["1", "1e39"]}, "column 'x', row 2: '1e39' is not a finite number of float32"),
        ({"x": ["1", None]}, "column 'x', row 2: no value where missing values are an error; fill it in"),
        ({"c": [None, "q"]}, "column 'c', row 1: no value where missing values are an error"),
        ({"c": ["p", "r"]}, "column 'c', row 2: 'r' is not one of the categories p, q; add it to categories, or set"),
        ({"y": ["no", "maybe"]}, "column 'y', row 2: 'maybe' is not one of no, yes; mend it, change nodes.label.cl"),
        ({"part": ["dev", "val"]}, "column 'part', row 1: 'dev' is not one of train, val, test"),
        ({"y": ["no", None]}, "column 'part', row 2: 'val' for a node without a label; label it or take it out"),
        ({"id": []}, "0 rows, and a party has at least one node"),
        ({"x": None}, "column 'x': no such column among id, c, y, part; mend the table or the setting"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_refusals(tmp_path, suffix, changes, message):
    columns = {name: changes.get(name, values) for name, values in GOOD.items()}
    columns = {name: values for name, values in columns.items() if values is not None}
    if columns["id"] == []:
        columns = dict.fromkeys(columns, pa.array([], pa.string()))
    write(tmp_path / f"n.{suffix}", columns)
    settings = party(["x", {"columns": "c", "categories": ["p", "q"]}], LABEL, SPLIT, nodes=f"n.{suffix}")
    with pytest.raises(DataError, match=rf"^\S*n\.{suffix}: {message}"):
        read_nodes(settings, tmp_path)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("id", [1.0, 2.0], "column 'id': type double is not text or integers; write it as one of them"),
        ("id", [True, False], "column 'id': type bool is not text or integers"),
        ("y", [0.0, 1.0], "column 'y': type double is not text or integers"),
        ("x", pa.array([1, 2], pa.timestamp("us")), r"column 'x': type timestamp\[us\] is not numbers"),
        ("x", [1.0, float("nan")], "column 'x', row 2: nan is not a finite number"),
        ("x", [1.0, 1e39], r"column 'x', row 2: 1e\+39 is not a finite number"),
    ],
)
def test_parquet_types(tmp_path, column, values, message):
    write(tmp_path / "n.parquet", GOOD | {column: values})
    with pytest.raises(DataError, match=message):
        read_nodes(party(["x"], LABEL, SPLIT, nodes="n.parquet"), tmp_path)


def test_booleans_and_integers_as_classes(tmp_path):
    for values, classes in (([True, False], ["false", "true"]), ([1, 0], [0, 1])):
        write(tmp_path / "n.parquet", GOOD | {"y": values})
        table = read_nodes(party(["x"], LABEL | {"classes": classes}, SPLIT, nodes="n.parquet"), tmp_path)
        assert table.labels is not None
        assert table.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (["v_*"], r"columns 'v_\*': no column matches; mend the pattern or leave it out"),
        (["x", "x"], "column 'x' is chosen as a feature twice, the second time by 'x'"),
        (["x", "?"], r"column 'x' is chosen as a feature twice, the second time by '\?'"),
    ],
)
def test_choices_of_columns(tmp_path, features, message):
    write(tmp_path / "nodes.csv", {"id": ["u"], "x": [1]})
    with pytest.raises(DataError, match=message):
        read_nodes(party(features), tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "n.csv",
            b"id,x\nu,1\n\nv,2,3\n",
            "row 2 has 3 values and the header 2; put values that hold commas in double",
        ),
        ("n.csv", b"", "cannot be read as CSV in UTF-8 .Empty CSV file"),
        ("n.csv", b"id,x\n\xe9,1\n", "cannot be read as CSV in UTF-8 .*invalid UTF8"),
        ("n.csv", b"id,x,x\nu,1,2\n", "column 'x': 2 columns of that name among id, x, x"),
        ("n.csv", b"id;x\nu;1\n", "column 'id': no such column among id;x"),
        ("n.csv.gz", b"id,x\nu,1\n", "cannot be read as CSV"),
        ("n.parquet", b"id,x\nu,1\n", "cannot be read as Parquet"),
        ("n.csv", None, "there is no such table; mend the path, which is relative to the party file's folder"),
        ("n.parquet", None, "there is no such table"),
    ],
)
def test_damaged_files(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: {message}"):
        read_nodes(party(nodes=name), tmp_path)


def test_rows_are_counted_across_batches(tmp_path, monkeypatch):
    monkeypatch.setattr("veilgraph.tables.source._CSV_BLOCK_BYTES", 64)
    monkeypatch.setattr("veilgraph.tables.source._PARQUET_BATCH_ROWS", 10)
    numbers = [str(value) for value in range(100)]
    numbers[77] = "x"
    for suffix in FORMATS:
        write(tmp_path / f"n.{suffix}", {"id": list(range(100)), "x": numbers})
        with pytest.raises(DataError, match="column 'x', row 78: 'x' is not a number"):
            read_nodes(party(nodes=f"n.{suffix}"), tmp_path)
