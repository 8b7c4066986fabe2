"""How files are written, and what is read of them."""

import gzip

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.errors import refused
from tests.tables.writing import build, party, write
from veilgraph.core.errors import DataError
from veilgraph.tables import source as formats
from veilgraph.tables.column_settings import FormatSettings
from veilgraph.tables.describe import describe_party
from veilgraph.tables.nodes import read_nodes
from veilgraph.tables.source import file_format

TEXT = "id,x,c\nü,1,p\nv,2,q\n"


def form_of(folder, content, name="n.csv", **given):
    (folder / name).write_bytes(content)
    return file_format(folder / name, FormatSettings(**given))


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


def test_a_sample_decides_and_bytes_behind_it_are_refused_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "SAMPLE_BYTES", 40)
    assert form_of(tmp_path, b"id;x,y\n" + b"uvw;1,1\n" * 5 + b"w;2\n").delimiter == ","
    assert form_of(tmp_path, b"id;x\n" + b"uvw;1\n" * 5 + b"w;1,5\n").delimiter == ";"
    assert form_of(tmp_path, b"id;a,b,c\n" + b"uvw;1\n" * 9).delimiter == ";"  # the sample's end divides a row
    for first in range(4):  # a character that the sample's end divides
        assert form_of(tmp_path, ("id;x" + "-" * first + "\n" + "ü€" * 100).encode()).encoding == "utf-8"
    for content, said in ((b"\xfc,1\n", {}), ("ü,1\n".encode(), {"encoding": "ascii"})):
        (tmp_path / "nodes.csv").write_bytes(b"id,x\n" + b"u,1\n" * 12 + content)
        with refused(DataError, key=tmp_path / "nodes.csv"):
            read_nodes(party(**said), tmp_path)


@pytest.mark.parametrize("given", [{}, {"encoding": "utf-8"}, {"encoding": "ascii"}])
def test_an_encoding_in_doubt_is_refused(tmp_path, given):
    with refused(DataError, key=tmp_path / "n.csv") as caught:
        form_of(tmp_path, TEXT.encode("cp1252"), **given)
    assert "set encoding" in str(caught.value)


def test_what_is_set_is_taken(tmp_path):
    (tmp_path / "nodes.csv").write_bytes("id:x,y\nü:1\nv:2\n".encode("cp1252"))
    table = read_nodes(party(["x,y"], delimiter=":", encoding="cp1252"), tmp_path)
    assert table.ids.to_pylist() == ["ü", "v"]
    (tmp_path / "nodes.csv").write_bytes(b"id\tx\nu\t1\n")
    assert read_nodes(party(delimiter="tab"), tmp_path).ids.to_pylist() == ["u"]
    assert form_of(tmp_path, TEXT.encode("utf-8-sig"), encoding="latin-1").encoding == "latin-1"


@pytest.mark.parametrize("name", ["n.csv", "n.parquet"])
def test_markers_are_no_value_in_every_kind_of_column(tmp_path, name):
    columns = {"id": ["u", "v", "w"], "x": ["1", "NA", ""], "c": ["n/a", "p", "NAN"], "y": ["no", "NA", "yes"]}
    write(tmp_path / name, {key: pa.array(values).dictionary_encode() for key, values in columns.items()})
    kinds = {"columns": "c", "categories": ["p", "NAN"], "missing": "category"}
    settings = party(
        [{"columns": "x", "missing": "zero"}, kinds],
        {"column": "y", "classes": ["no", "yes"]},
        {"train": 1, "val": 0, "test": 0},
        nodes=name,
        missing_values=["", "NA", "n/a"],
    )
    table = read_nodes(settings, tmp_path)
    np.testing.assert_array_equal(table.values[0], [1, np.nan, np.nan])
    assert table.values[1].tolist() == [-1, 0, 1]
    assert table.labels is not None
    assert table.labels.tolist() == [0, -1, 1]
    write(tmp_path / "nodes.csv", {"id": ["NA", "u"], "x": [1, 2]})
    with refused(DataError, key="id", value=1):
        read_nodes(party(missing_values=["NA"]), tmp_path)
