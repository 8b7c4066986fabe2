import numpy as np
import pyarrow as pa
import pytest

from tests.tables.writing import FORMATS, party, write
from veilgraph.core.errors import DataError
from veilgraph.tables.edges import read_edges

IDS = pa.array(["u", "v", "007"])
RELATION = {"column": "kind", "weights": {"card": 0.5, "cash": 2.0}}


def read(folder, columns, **settings):
    name = settings.get("file", "edges.csv")
    write(folder / name, columns)
    return read_edges(party(edges=[settings]).edges[0], folder, IDS)


@pytest.mark.parametrize("suffix", FORMATS)
def test_ends_become_rows_of_the_node_table(tmp_path, suffix):
    table = read(tmp_path, {"b": ["v", "007", "u"], "a": ["u", "u", "u"]}, file=f"e.{suffix}")
    assert table.source.tolist() == [0, 0, 0]
    assert table.target.tolist() == [1, 2, 0]
    assert table.weight is None
    assert table.relation is None
    assert (table.rows.tolist(), table.dropped.tolist(), table.other) == ([3], [0], 0)


def test_integers_match_their_decimal_text(tmp_path):
    write(tmp_path / "e.parquet", {"a": [7, 8], "b": [8, 8]})
    table = read_edges(party(edges=[{"file": "e.parquet"}]).edges[0], tmp_path, pa.array(["8", "7"]))
    assert (table.source.tolist(), table.target.tolist()) == ([1, 0], [0, 0])


def test_weights_and_relations(tmp_path):
    columns = {
        "a": ["u", "u", "x", "v", "v", "u"],
        "b": ["v", "u", "v", "y", "u", "v"],
        "kind": ["cash", "card", "card", "cash", "gift", None],
        "amount": ["3", "4", "5", "6", "lots", "-1"],
    }
    table = read(tmp_path, columns, weight="amount", relation=RELATION | {"other": "drop"}, unknown="drop")
    assert (table.source.tolist(), table.target.tolist()) == ([0, 0], [1, 0])
    assert table.weight is not None
    np.testing.assert_array_equal(table.weight, np.array([6, 2], np.float32))
    assert table.relations == ("card", "cash")
    assert table.relation is not None
    assert table.relation.tolist() == [1, 0]
    assert (table.rows.tolist(), table.dropped.tolist(), table.other) == ([2, 2], [1, 1], 2)


def test_relations_alone_are_weights_unless_all_are_one(tmp_path):
    columns = {"a": ["u", "v"], "b": ["v", "u"], "kind": ["cash", "card"]}
    table = read(tmp_path, columns, relation=RELATION)
    assert table.weight is not None
    assert table.weight.tolist() == [2.0, 0.5]
    plain = read(tmp_path, columns, relation=RELATION | {"weights": {"card": 1, "cash": 1}})
    assert plain.weight is None


def test_no_rows_are_no_edges(tmp_path):
    none = pa.array([], pa.string())
    for suffix in FORMATS:
        table = read(tmp_path, {"a": none, "b": none, "w": none}, file=f"e.{suffix}", weight="w")
        assert len(table.source) == len(table.target) == 0
        assert table.weight is not None
        assert len(table.weight) == 0


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"a": ["u", "x"]}, {}, "column 'a', row 2: 'x' is no id of the node table; add the node, or set unknown"),
        ({"b": ["7", "u"]}, {}, "column 'b', row 1: '7' is no id of the node table"),
        ({"a": [None, "u"]}, {"unknown": "drop"}, "column 'a', row 1: no value where an id must be"),
        ({"w": ["1", "-2"]}, {}, "column 'w', row 2: '-2' is negative, and a weight is at least 0; mend it"),
        ({"w": ["1", None]}, {}, "column 'w', row 2: no value where a weight must be; give every edge its weight"),
        ({"w": ["1", "inf"]}, {}, "column 'w', row 2: 'inf' is not a finite number"),
        ({"w": ["a", "1"]}, {}, "column 'w', row 1: 'a' is not a number"),
        ({"a": ["x", "u"], "w": ["1", "-1"]}, {"unknown": "drop"}, "column 'w', row 2: '-1' is negative"),
        ({"kind": ["card", "gift"]}, {}, "column 'kind', row 2: 'gift' is not one of the relations card, cash; add"),
        ({"kind": ["card", None]}, {}, "column 'kind', row 2: no value is not one of the relations card, cash"),
        ({}, {"target": "to"}, "column 'to': no such column among a, b, w, kind"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_refusals(tmp_path, suffix, changes, settings, message):
    columns = {"a": ["u", "v"], "b": ["v", "u"], "w": ["1", "2"], "kind": ["card", "cash"]} | changes
    with pytest.raises(DataError, match=rf"^\S*e\.{suffix}: {message}"):
        read(tmp_path, columns, file=f"e.{suffix}", weight="w", relation=RELATION, **settings)


def test_a_malformed_row_is_named(tmp_path):
    (tmp_path / "edges.csv").write_text("a,b\nu,v\nu\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"edges\.csv: row 2 has 1 values and the header 2"):
        read_edges(party(edges=[{}]).edges[0], tmp_path, IDS)
