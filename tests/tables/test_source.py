"""How files are written, and what is read of them."""

import gzip
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.errors import refused
from tests.tables.writing import build, party, write
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.tables import source as formats
from veilgraph.tables.column_settings import FormatSettings
from veilgraph.tables.describe import describe_party
from veilgraph.tables.nodes import read_nodes
from veilgraph.tables.source import file_format, stream

TEXT = "id,x,c\nü,1,p\nv,2,q\n"


def form_of(folder, content, name="n.csv", **given):
    (folder / name).write_bytes(content)
    return file_format(folder / name, FormatSettings(**given))


def test_an_encoding_that_is_set_is_taken_whatever_a_file_begins_with(tmp_path):
    assert form_of(tmp_path, TEXT.encode("utf-8-sig"), encoding="latin-1").encoding == "latin-1"


@pytest.mark.cases(8)
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", ["n.csv", "n.csv.gz"])
def test_what_is_found_is_stated_and_read_by(tmp_path, delimiter, encoding, name):
    content = TEXT.replace(",", delimiter).encode(encoding)
    found = form_of(tmp_path, gzip.compress(content) if name.endswith("gz") else content, name)
    assert (found.delimiter, found.encoding) == (delimiter, encoding)
    described = describe_party(party(nodes=name), tmp_path)
    assert described.files[0].form == f"delimiter {delimiter!r}, encoding {encoding}"
    table = read_nodes(party(nodes=name), tmp_path)
    assert table.ids.to_pylist() == ["ü", "v"]
    assert table.values[0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("id;x;y\nu;1,5;2\nv;2;3,5\n", ";"),  # decimal commas
        ("id;note, if any\nu;a, b\nv;c\n", ";"),
        ('id,note\nu,"a;b;c"\nv,"d;e;f"\n', ","),
        ('id,note\nu,"a\n;;b"\n', ","),
        ("id,x\nu,1;2\nv,3;4\n", ","),
        ("id;a;b,x\nu;1;2,3\n", ","),  # as it always was, though semicolons give more
        ("a b|c d\n1 2|3 4\n", "|"),
        ("id\nu\n", ","),
        ("", ","),
        ("id;x\nu;1;3\nv;2\n", ";"),  # a row too many, which is refused by its number
        ("id,x\nu,1,3\nv,2;3\n", ","),
        ("id;x\n\n\nu;1\n", ";"),
    ],
)
def test_delimiters(tmp_path, text, wanted):
    assert form_of(tmp_path, text.encode()).delimiter == wanted


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)


@settings(max_examples=60)
@given(rows=st.lists(st.lists(names, min_size=3, max_size=3), min_size=1, max_size=5), data=st.data())
def test_what_was_read_by_commas_still_is(tmp_path_factory, rows, data):
    """Whatever is in the values: a file of old that every row of could be read keeps its meaning."""
    path = tmp_path_factory.getbasetemp() / "any.csv"
    columns = dict(zip(("a", "b;c|d\te", "f"), zip(*rows, strict=True), strict=True))
    write(path, {name: pa.array(values) for name, values in columns.items()})
    assert file_format(path, FormatSettings()).delimiter == ","


def test_a_sample_is_looked_at_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "SAMPLE_BYTES", 40)
    assert form_of(tmp_path, b"id;x,y\n" + b"uvw;1,1\n" * 5 + b"w;2\n").delimiter == ","
    assert form_of(tmp_path, b"id;x\n" + b"uvw;1\n" * 5 + b"w;1,5\n").delimiter == ";"
    assert form_of(tmp_path, b"id;a,b,c\n" + b"uvw;1\n" * 9).delimiter == ";"  # the sample's end divides a row
    for first in range(4):  # a character that the sample's end divides
        assert form_of(tmp_path, ("id;x" + "-" * first + "\n" + "ü€" * 100).encode()).encoding == "utf-8"


@pytest.mark.parametrize(
    ("content", "given", "key"),
    [
        ("id,x\nü,1\n".encode("cp1252"), {}, "n.csv"),
        ("id,x\nü,1\n".encode("cp1252"), {"encoding": "utf-8"}, "n.csv"),
        (TEXT.encode("cp1252"), {"encoding": "ascii"}, "n.csv"),
    ],
)
def test_an_encoding_in_doubt_is_refused(tmp_path, content, given, key):
    with refused(DataError, key=tmp_path / key) as caught:
        form_of(tmp_path, content, **given)
    assert "set encoding" in str(caught.value)


def test_bytes_behind_the_sample_are_refused_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "SAMPLE_BYTES", 16)
    (tmp_path / "nodes.csv").write_bytes(b"id,x\n" + b"u,1\n" * 9 + "ü,1\n".encode("cp1252"))
    with refused(DataError, key=tmp_path / "nodes.csv") as caught:
        read_nodes(party(), tmp_path)
    assert "set encoding" in str(caught.value)
    (tmp_path / "nodes.csv").write_bytes(b"id,x\n" + b"u,1\n" * 9 + "ü,1\n".encode())
    with refused(DataError, key=tmp_path / "nodes.csv"):
        read_nodes(party(encoding="ascii"), tmp_path)


def test_what_is_set_is_taken(tmp_path):
    (tmp_path / "nodes.csv").write_bytes("id:x,y\nü:1\nv:2\n".encode("cp1252"))
    table = read_nodes(party(["x,y"], delimiter=":", encoding="cp1252"), tmp_path)
    assert table.ids.to_pylist() == ["ü", "v"]
    (tmp_path / "nodes.csv").write_bytes(b"id\tx\nu\t1\n")
    assert read_nodes(party(delimiter="tab"), tmp_path).ids.to_pylist() == ["u"]


def test_every_file_of_a_party_has_a_format_of_its_own(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,x\nu,1\nv,2\nw,3\n")
    (tmp_path / "labels.csv").write_bytes("id;Straße;p\nu;ä;train\nv;o;val\nw;-;test\n".encode("cp1252"))
    (tmp_path / "more.csv").write_text("id|y\nu|1,5\nv|-\n")
    (tmp_path / "edges.csv").write_text("a\tb\tw\nu\tv\t2,5\n")
    label = {"column": "Straße", "classes": ["o", "ä"], "file": "labels.csv", "encoding": "cp1252"}
    label |= {"missing_values": ["-"]}
    settings = party(
        ["x", {"columns": "y", "missing": 7}],
        label,
        {"column": "p"},
        join=[{"file": "more.csv", "decimal": ",", "missing_values": ["-"]}],
        edges=[{"weight": "w", "decimal": ","}],
    )
    with refused(DataError, key="p"):  # the label is no value
        build(settings, tmp_path)
    (tmp_path / "labels.csv").write_bytes("id;Straße;p\nu;ä;train\nv;o;val\nw;o;test\n".encode("cp1252"))
    graph = build(settings, tmp_path).graph
    assert graph.features.tolist() == [[1, 1.5], [2, 7], [3, 7]]
    assert graph.labels is not None
    assert graph.labels.tolist() == [1, 0, 0]
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [2.5, 2.5]
    assert [each.form for each in describe_party(settings, tmp_path).files] == [
        "delimiter ',', encoding utf-8",
        "delimiter '|', encoding utf-8, decimal ','",
        "delimiter ';', encoding cp1252",
        "delimiter '\\t', encoding utf-8, decimal ','",
    ]


@pytest.mark.parametrize("name", ["n.csv", "n.parquet"])
def test_markers_are_no_value_in_every_kind_of_column(tmp_path, name):
    columns = {"id": ["u", "v", "w"], "x": ["1", "NA", ""], "c": ["n/a", "p", "NAN"], "y": ["no", "NA", "yes"]}
    kinds = {"columns": "c", "categories": ["p", "NAN"], "missing": "category"}
    label = {"column": "y", "classes": ["no", "yes"]}
    write(tmp_path / name, {key: pa.array(values).dictionary_encode() for key, values in columns.items()})
    features = [{"columns": "x", "missing": "zero"}, kinds]
    fractions = {"train": 1, "val": 0, "test": 0}
    table = read_nodes(party(features, label, fractions, nodes=name, missing_values=["", "NA", "n/a"]), tmp_path)
    np.testing.assert_array_equal(table.values[0], [1, np.nan, np.nan])
    assert table.values[1].tolist() == [-1, 0, 1]
    assert table.labels is not None
    assert table.labels.tolist() == [0, -1, 1]
    with refused(DataError, key="x", value=2) as caught:
        read_nodes(party(features, nodes=name), tmp_path)
    assert "missing_values" in str(caught.value)


def test_an_id_that_is_no_value_is_refused(tmp_path):
    write(tmp_path / "nodes.csv", {"id": ["NA", "u"], "x": [1, 2]})
    with refused(DataError, key="id", value=1):
        read_nodes(party(missing_values=["NA"]), tmp_path)


@pytest.mark.parametrize("value", ["1.500", "1.500,5", "1.5", "1,5,5", "x"])
def test_points_beside_decimal_commas_are_refused(tmp_path, value):
    (tmp_path / "nodes.csv").write_text(f"id;x\nu;1,5\nv;{value}\n")
    with refused(DataError, key="x", value=2):
        read_nodes(party(decimal=","), tmp_path)


def test_decimal_commas_are_refused_where_nothing_is_said(tmp_path):
    (tmp_path / "nodes.csv").write_text("id;x\nu;1\nv;1,5\n")
    with refused(DataError, key="x", value=2) as caught:
        read_nodes(party(), tmp_path)
    assert "decimal" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"delimiter": ";;"}, "nodes.delimiter"),
        ({"delimiter": '"'}, "nodes.delimiter"),
        ({"delimiter": "\n"}, "nodes.delimiter"),
        ({"delimiter": "§"}, "nodes.delimiter"),
        ({"delimiter": ""}, "nodes.delimiter"),
        ({"encoding": "klingon"}, "nodes.encoding"),
        ({"encoding": "rot13"}, "nodes.encoding"),
        ({"decimal": "'"}, "nodes.decimal"),
        ({"missing_values": "NA"}, "nodes.missing_values"),
        ({"nodes": "n.parquet", "delimiter": ";"}, "nodes"),
        ({"nodes": "n.parquet", "encoding": "utf-8"}, "nodes"),
        ({"join": [{"file": "n.parquet", "encoding": "utf-8"}]}, "nodes.join.0"),
        ({"label": {"column": "y", "classes": ["a", "b"], "delimiter": ";"}, "split": {"column": "p"}}, "nodes.label"),
    ],
)
def test_formats_that_are_refused(given, key):
    with pytest.raises(ConfigError) as caught:
        party(**given)
    assert key in str(caught.value)


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
