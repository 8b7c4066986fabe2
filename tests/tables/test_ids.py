"""Ids that are written alike first, in every file of a party."""

from typing import Any

import pyarrow as pa
import pytest

from tests.errors import refused
from tests.tables.writing import FORMATS, build, party, write
from veilgraph.core.errors import DataError
from veilgraph.tables.nodes import read_nodes

BOTH = {"strip": True, "lower": True}
LABEL = {"column": "y", "classes": ["no", "yes"], "file": "labels.csv"}
SPLIT = {"column": "part"}


@pytest.mark.parametrize("suffix", FORMATS)
def test_nodes_labels_further_tables_and_edges_alike(tmp_path, suffix):
    write(tmp_path / f"n.{suffix}", {"id": ["AB-7 ", "\tÜx", "c"], "x": [1, 2, 3]})
    write(
        tmp_path / "labels.csv",
        {"id": ["üX", " ab-7", "C"], "y": ["yes", "no", "no"], "part": ["train", "val", "test"]},
    )
    write(tmp_path / "more.csv", {"id": ["C", "Ab-7"], "z": [30, 10]})
    write(tmp_path / "edges.csv", {"a": ["ab-7", "C "], "b": ["ÜX", "AB-7"]})
    settings = party(
        ["x", {"columns": "z", "missing": "zero"}],
        LABEL,
        SPLIT,
        nodes=f"n.{suffix}",
        join=[{"file": "more.csv"}],
        edges=[{"directed": True}],
        ids=BOTH,
    )
    built = build(settings, tmp_path)
    assert built.ids.to_pylist() == ["ab-7", "üx", "c"]
    assert built.graph.labels is not None
    assert built.graph.labels.tolist() == [0, 1, 0]
    assert built.graph.features.tolist() == [[1, 10], [2, 0], [3, 30]]
    assert built.graph.edge_index.tolist() == [[0, 2], [1, 0]]


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [({}, ["A ", "b"]), ({"strip": True}, ["A", "b"]), ({"lower": True}, ["a ", "b"]), (BOTH, ["a", "b"])],
)
def test_each_by_itself(tmp_path, ids, wanted):
    write(tmp_path / "nodes.csv", {"id": ["A ", "b"], "x": [1, 2]})
    assert read_nodes(party(ids=ids), tmp_path).ids.to_pylist() == wanted


def test_zeros_in_front_are_left_out_but_for_the_last(tmp_path):
    write(tmp_path / "nodes.csv", {"id": ["0042", "000", "70", "0A0"], "x": [1, 2, 3, 4]})
    assert read_nodes(party(ids={"unpadded": True}), tmp_path).ids.to_pylist() == ["42", "0", "70", "A0"]


@pytest.mark.parametrize("file", ["nodes.csv", "more.csv", "labels.csv"])
def test_two_spellings_of_one_id_are_refused_with_both(tmp_path, file, monkeypatch):
    monkeypatch.setattr("veilgraph.tables.source.CSV_BLOCK_BYTES", 16)
    tables: dict[str, dict[str, list[Any]]] = {
        "nodes.csv": {"id": ["p", "q", "AB", "r"], "x": [1, 2, 3, 4]},
        "more.csv": {"id": ["p", "q", "AB", "r"], "z": [1, 2, 3, 4]},
        "labels.csv": {
            "id": ["p", "q", "AB", "r"],
            "y": ["no", "yes", "no", "no"],
            "part": ["train", "val", "test", "test"],
        },
    }
    settings = party(["x", "z"], LABEL, SPLIT, join=[{"file": "more.csv"}], ids=BOTH)
    for name, columns in tables.items():
        write(tmp_path / name, columns)
    read_nodes(settings, tmp_path)
    columns = {name: [*values, values[0]] for name, values in tables[file].items()} | {
        "id": [*tables[file]["id"], "aB "]
    }
    write(tmp_path / file, columns)
    with refused(DataError, key="id", value=5) as caught:
        read_nodes(settings, tmp_path)
    assert f"{file}: column 'id', row 5: 'aB ' is as 'AB' is, the id of row 3" in str(caught.value)


def test_an_edge_of_another_spelling_is_unknown_without(tmp_path):
    write(tmp_path / "nodes.csv", {"id": ["u", "v"], "x": [1, 2]})
    write(tmp_path / "edges.csv", {"a": ["U"], "b": pa.array(["v"])})
    with refused(DataError, key="a", value=1):
        build(party(edges=[{}]), tmp_path)


def test_what_is_hashed_says_how_ids_are_written():
    said = {party(ids=ids).hashed() for ids in ({}, {"strip": True}, {"lower": True}, BOTH)}
    assert len(said) == 4
    assert party(ids={}).hashed() == party().hashed()


def test_an_id_of_white_space_alone_is_none(tmp_path):
    write(tmp_path / "nodes.csv", {"id": ["u", "  "], "x": [1, 2]})
    with refused(DataError, key="id", value=2):
        read_nodes(party(ids=BOTH), tmp_path)
