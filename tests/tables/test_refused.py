"""What a party file cannot say, and what its tables cannot hold: each is one error that names the key and the row."""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.errors import refused
from tests.tables.writing import IDS, RELATION, party, read_edge_table, write
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.tables.edges import RemoteNodes
from veilgraph.tables.nodes import read_nodes
from veilgraph.tables.source import stream

LABEL = {"column": "y", "classes": ["no", "yes"]}
SPLIT = {"column": "part"}
FRACTIONS = {"train": 0.5, "val": 0.25, "test": 0.25, "seed": 3}
TIMES = {"by": "when", "train_before": "2024-05-01", "val_before": "2024-06-01"}
DECAY = {"column": "date", "half_life_days": 30, "at": "2024-06-30"}
AFTER = {"column": "date", "after": "2024-01-01"}
SINCE = {"days_since": "2024-01-01"}
TRUTH = {"columns": "b", "boolean": True}
KINDS = {"relation": {"column": "kind", "weights": {"card": 2, "calls": 1}}}
SHARED = {"target": None, "shared": "device", "unknown": "drop"}

# Settings

NODES: list[tuple[dict[str, Any], str]] = [
    ({"delimiter": ";;"}, "nodes.delimiter"),
    ({"delimiter": '"'}, "nodes.delimiter"),
    ({"delimiter": "\n"}, "nodes.delimiter"),
    ({"delimiter": ""}, "nodes.delimiter"),
    ({"encoding": "klingon"}, "nodes.encoding"),
    ({"decimal": "'"}, "nodes.decimal"),
    ({"missing_values": "NA"}, "nodes.missing_values"),
    ({"nodes": "n.parquet", "delimiter": ";"}, "nodes"),
    ({"nodes": "n.parquet", "encoding": "utf-8"}, "nodes"),
    ({"join": [{"file": "n.parquet", "encoding": "utf-8"}]}, "nodes.join.0"),
    ({"label": LABEL | {"delimiter": ";"}, "split": SPLIT}, "nodes.label"),
    ({"target": "price"}, "nodes"),
    ({"target": "price", "label": LABEL, "split": FRACTIONS}, "nodes"),
    ({"target": "x", "split": FRACTIONS}, "nodes"),
    ({"graph": "x"}, "nodes"),
    ({"label": LABEL, "split": TIMES | {"val_before": "2024-05-01"}}, "train_before"),
    ({"label": LABEL, "split": TIMES | {"train_before": "soon"}}, "train_before"),
    ({"label": LABEL, "split": TIMES | {"column": "part"}}, "by"),
    ({"label": LABEL, "split": TIMES | {"seed": 3}}, "seed"),
    ({"features": [{"columns": "when", "date": SINCE}], "label": LABEL, "split": TIMES}, "'when' is a feature"),
]
FEATURES: list[tuple[dict[str, Any], str]] = [
    ({"date": {}}, "date"),
    ({"date": {"parts": []}}, "date"),
    ({"date": {"parts": ["hour"]}}, "date.parts.0"),
    ({"date": {"parts": ["year", "year"]}}, "parts"),
    ({"date": {"days_since": "01.02.2024"}}, "date.days_since"),
    ({"date": {"days_since": "1704067200"}}, "date.days_since"),
    ({"date": {"age_at": "2024-13-01"}}, "date.age_at"),
    ({"date": {"age_at": "2024-01-01", "format": "DD.MM.YYYY"}}, "date.format"),
    ({"date": {"parts": ["month"]}, "missing": 5}, "missing"),
    ({"date": {"parts": ["month"]}, "scale": {"low": 0, "high": 1}}, "scale"),
    ({"date": SINCE | {"age_at": "2024-01-01"}, "missing": 5}, "missing"),
    ({"date": SINCE, "categories": ["a"]}, "date"),
    ({"boolean": False}, "boolean"),
    ({"boolean": True, "scale": {"low": 0, "high": 1}}, "boolean"),
    ({"boolean": "maybe"}, "boolean"),
    ({"boolean": True, "categories": ["a"]}, "boolean"),
]
EDGES: list[tuple[list[dict[str, Any]], str]] = [
    ([{"weight": {"column": "amount", "scale": "sqrt"}}], "scale"),
    ([{"weight": {"scale": "log"}}], "column"),
    ([{"filter": {"column": "date"}}], "filter"),
    ([{"filter": AFTER | {"before": "2024-01-01"}}], "after"),
    ([{"filter": {"column": "date", "after": "May"}}], "after"),
    ([{"decay": DECAY | {"half_life_days": 0}}], "half_life_days"),
    ([{"decay": {"column": "date", "half_life_days": 3}}], "decay.at"),
    ([{"normalize": "median"}], "normalize"),
    ([{"normalize": 0}], "normalize"),
    ([{"factor": -1}], "factor"),
    ([{"hops": -1}], "edges.0.hops"),
    ([{"hops": 33}], "edges.0.hops"),
    ([{"hops": 0.5}], "edges.0.hops"),
    ([{"name": ""}], "edges.0.name"),
    ([{**KINDS, "name": "all"}], "name"),
    ([{**KINDS, "hops": 1}], "hops"),
    ([{"relation": {"column": "kind", "weights": {"card": 1}, "hops": {"cash": 1}}}], "edges.0.relation"),
    ([{"name": "a", "hops": 1}, {"name": "a", "hops": 2}], "edges"),
    ([{"name": "a", "hops": 1}, {"name": "a"}], "edges"),
    ([{"features": ["fee"]}, {"features": ["fee", "amount"], "name": "other"}], "edges"),
    ([{"target": None, "shared": "b", "source_holder": "at"}], "edges.0"),
    ([SHARED | {"weight": "w"}], "edges.0"),
    ([SHARED | {"normalize": "mean"}], "edges.0"),
    ([SHARED | {"directed": True}], "edges.0"),
    ([SHARED | {"target": "b"}], "edges.0"),
    ([SHARED | {"shared": None}], "edges.0"),
]
SETTINGS = [
    *NODES,
    *(({"features": [{"columns": "b"} | entry]}, key) for entry, key in FEATURES),
    *(({"edges": edges}, key) for edges, key in EDGES),
]


@pytest.mark.parametrize(("said", "key"), SETTINGS, ids=[f"{key} {said}"[:60] for said, key in SETTINGS])
def test_settings(said: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        party(**said)
    assert key in str(caught.value)


# Tables of nodes

COLUMNS: dict[str, Any] = {
    "id": ["u", "v"],
    "x": ["1", "2"],
    "c": ["p", "q"],
    "y": ["no", "yes"],
    "part": ["train", "val"],
    "d": ["2024-01-01", "2024-01-02"],
    "b": ["yes", "no"],
    "mol": ["0", "1"],
}
USUAL: dict[str, Any] = {
    "features": ["x", {"columns": "c", "categories": ["p", "q"]}, {"columns": "d", "date": SINCE}, TRUTH],
    "label": LABEL,
    "split": SPLIT,
    "graph": "mol",
}
ROWS: list[tuple[dict[str, Any], str | None, int | None]] = [
    ({"id": ["u", "u"]}, "id", 2),
    ({"id": ["u", None]}, "id", 2),
    ({"x": ["1", "1,5"]}, "x", 2),
    ({"x": ["one", "two"]}, "x", 1),
    ({"x": ["1", "inf"]}, "x", 2),
    ({"x": ["nan", "1"]}, "x", 1),
    ({"x": ["1", "-inf"]}, "x", 2),
    ({"x": ["1", "1e999"]}, "x", 2),
    ({"x": ["1", "1e39"]}, "x", 2),
    ({"x": ["1", None]}, "x", 2),
    ({"c": [None, "q"]}, "c", 1),
    ({"c": ["p", "r"]}, "c", 2),
    ({"y": ["no", "maybe"]}, "y", 2),
    ({"part": ["dev", "val"]}, "part", 1),
    ({"y": ["no", None]}, "part", None),
    ({name: pa.array([], pa.string()) for name in COLUMNS}, None, None),
    ({"x": None}, "x", None),
    ({"d": ["2024-01-01", "31.01.2024"]}, "d", 2),
    ({"d": ["2024-01-01", "2024-02-30"]}, "d", 2),
    ({"d": ["2024-01-01T00:00:00Z", "2024-01-01T00:00:0Z"]}, "d", 2),
    ({"d": ["2024-01-01", "0024-01-01"]}, "d", 2),
    ({"d": ["2024-01-01", None]}, "d", 2),
    ({"b": ["yes", "maybe"]}, "b", 2),
    ({"b": ["2", "1"]}, "b", 1),
    ({"b": ["yes", None]}, "b", 2),
    ({"mol": ["0", "-1"]}, "mol", None),
    ({"mol": ["0", "1.5"]}, "mol", None),
    ({"mol": ["0", None]}, "mol", None),
]
TYPES: list[tuple[dict[str, Any], str, int | None]] = [
    ({"id": [1.0, 2.0]}, "id", None),
    ({"id": [True, False]}, "id", None),
    ({"y": [0.0, 1.0]}, "y", None),
    ({"x": pa.array([dt.datetime(2024, 1, 1)] * 2, pa.timestamp("us"))}, "x", None),
    ({"x": [1.0, float("nan")]}, "x", 2),
    ({"x": [1.0, 1e39]}, "x", 2),
    ({"d": [2024, 2025]}, "d", None),
    ({"d": [1.5, 2.5]}, "d", None),
    ({"d": [True, False]}, "d", None),
    ({"b": [0.0, 1.0]}, "b", None),
    ({"id": [[1], [2]]}, "id", None),
    ({"id": [b"\xff\xfe", b"\xff"]}, "id", None),
    ({"x": [[0.5], [0.5]]}, "x", None),
    ({"x": [{"a": 1.0}, {"a": 2.0}]}, "x", None),
    ({"y": pa.array([None, None], pa.string())}, "part", None),
]


@pytest.mark.parametrize(
    ("suffix", "changes", "key", "row"),
    [*((suffix, *row) for suffix in ("csv", "parquet") for row in ROWS), *(("parquet", *row) for row in TYPES)],
)
def test_nodes(tmp_path: Path, suffix: str, changes: dict[str, Any], key: str | None, row: int | None) -> None:
    columns = {name: values for name, values in (COLUMNS | changes).items() if values is not None}
    file = tmp_path / f"n.{suffix}"
    write(file, COLUMNS)
    read_nodes(party(nodes=file.name, **USUAL), tmp_path)
    write(file, columns)
    with refused(DataError, key=key or file) as caught:
        read_nodes(party(nodes=file.name, **USUAL), tmp_path)
    assert row is None or caught.value.value == row
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("said", "values", "word"),
    [
        ({"decimal": ","}, ["1,5", "1.500,5"], ""),
        ({"decimal": ","}, ["1,5", "1.5"], ""),
        ({"decimal": ","}, ["1,5", "1,5,5"], ""),
        ({"decimal": ","}, ["1,5", "x"], ""),
        ({}, ["1", "1,5"], "decimal"),
        ({}, ["1", "NA"], "missing_values"),
        ({"features": [{"columns": "x", "date": SINCE | {"format": "%d.%m.%Y"}}]}, ["01.02.2024", "2024-02-01"], ""),
        ({"features": [{"columns": "x", "date": SINCE | {"format": "%d.%m.%Y"}}]}, ["01.02.2024", "01.02.24"], ""),
        (
            {"features": [{"columns": "x", "date": SINCE | {"format": "%d.%m.%Y"}}]},
            ["01.02.2024", "01.02.2024 12:00"],
            "",
        ),
        ({"label": LABEL, "split": TIMES | {"by": "x"}, "features": ["w"]}, ["2024-04-30", "May"], ""),
    ],
)
def test_values_of_another_form(tmp_path: Path, said: dict[str, Any], values: list[str], word: str) -> None:
    rows = zip("uv", values, ("no", "yes"), "12", strict=True)
    (tmp_path / "nodes.csv").write_text("id;x;y;w\n" + "".join(f"{';'.join(row)}\n" for row in rows))
    with refused(DataError, key="x", value=2) as caught:
        read_nodes(party(**said), tmp_path)
    assert word in str(caught.value)


@pytest.mark.parametrize(("features", "key"), [(["v_*"], Path("nodes.csv")), (["x", "x"], "x"), (["x", "?"], "x")])
def test_choices_of_columns(tmp_path: Path, features: list[str], key: Any) -> None:
    write(tmp_path / "nodes.csv", {"id": ["u"], "x": [1]})
    with refused(DataError, key=key):
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
def test_damaged_files(tmp_path: Path, name: str, content: bytes | None, key: str | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with refused(DataError, key=key or tmp_path / name):
        read_nodes(party(nodes=name), tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"a,b\n1,2\n3\n", ("row 2 has 1 values and the header 2", "double quotes")),
        (b"a,b\n1,2\n3,4\n5,6,7\n", ("row 3 has 3 values and the header 2",)),
        (b"a,b\n1,2\n\xff\x80\n", ("row 2 has 1 values and the header 2",)),
        (b"a,b\n1,\xff\n", ("cannot be read as CSV",)),
    ],
)
def test_a_malformed_row_is_named(
    tmp_path: Path, text: bytes, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "table.csv").write_bytes(text)
    with pytest.raises(DataError) as caught:
        list(stream(tmp_path / "table.csv", ["a", "b"]))
    assert all(word in str(caught.value) for word in ("table.csv", *words))
    assert capfd.readouterr().err == "", "not even from within Arrow"


# Tables of edges

OF_EDGES: list[tuple[dict[str, Any], dict[str, Any], str, object]] = [
    ({"a": ["u", "x"]}, {}, "a", 2),
    ({"b": ["7", "u"]}, {}, "b", 1),
    ({"b": ["v", " u"]}, {}, "b", 2),
    ({"w": ["1", "nan"]}, {}, "w", 2),
    ({"w": ["1", "1e300"]}, {}, "w", 2),
    ({"a": [None, "u"]}, {"unknown": "drop"}, "a", 1),
    ({"w": ["1", "-2"]}, {}, "w", 2),
    ({"w": ["1", None]}, {}, "w", 2),
    ({"w": ["1", "inf"]}, {}, "w", 2),
    ({"w": ["a", "1"]}, {}, "w", 1),
    ({"a": ["x", "u"], "w": ["1", "-1"]}, {"unknown": "drop"}, "w", 2),
    ({"kind": ["card", "gift"]}, {}, "kind", 2),
    ({"kind": ["card", None]}, {}, "kind", 2),
    ({}, {"target": "to"}, "to", None),
    ({"date": ["2024-06-30", None]}, {"filter": AFTER}, "date", 2),
    ({"date": ["2024-06-30", "30.06.2024"]}, {"filter": AFTER}, "date", 2),
    ({"date": ["2024-06-30", None]}, {"decay": DECAY}, "date", 2),
    ({"date": ["2024-06-30", "2024-06-30T00:00:01"]}, {"decay": DECAY}, "date", 2),
    ({"date": ["2024-06-30", "yesterday"]}, {"decay": DECAY}, "date", 2),
    ({"w": ["1", "-1"]}, {"weight": {"column": "w", "scale": "log"}}, "w", 2),
    ({"w": ["0", "0"]}, {"normalize": "mean"}, "normalize", "mean"),
    ({}, {"filter": AFTER | {"column": "when"}}, "when", None),
    ({"w": ["1", None]}, {"weight": None, "features": ["w"]}, "w", 2),
    ({"w": ["1", "-1"]}, {"weight": None, "features": [{"column": "w", "scale": "log"}]}, "w", 2),
]


@pytest.mark.parametrize(("changes", "said", "key", "value"), OF_EDGES)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_edges(
    tmp_path: Path, suffix: str, changes: dict[str, Any], said: dict[str, Any], key: str, value: object
) -> None:
    columns = {"a": ["u", "v"], "b": ["v", "u"], "w": ["1", "2"], "kind": ["card", "cash"], "date": ["2024-06-01"] * 2}
    usual = {"file": f"e.{suffix}", "weight": "w", "relation": RELATION}
    with refused(DataError, key=key, value=value) as caught:
        read_edge_table(tmp_path, columns | changes, **usual | said)
    assert str(caught.value).startswith(f"{tmp_path}/e.{suffix}: ")


def test_an_end_of_ones_own_that_is_not_there_is_refused_and_another_s_is_not(tmp_path: Path) -> None:
    columns = {"a": ["u", "x"], "b": ["k", "k"], "at": ["north", "north"]}
    with refused(DataError, key="a"):
        read_edge_table(tmp_path, columns, RemoteNodes("P", ("north",)), target_holder="at")
    found = read_edge_table(tmp_path, columns, RemoteNodes("P", ("north",)), target_holder="at", unknown="drop")
    assert (found.source.tolist(), found.target.tolist(), found.dropped.tolist()) == ([0], [len(IDS)], [1])
    assert found.strangers["a"] == ["x"]
