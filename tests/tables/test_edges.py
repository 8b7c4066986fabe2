import numpy as np
import pytest

from tests.errors import refused
from tests.tables.reading import IDS, RELATION, read
from tests.tables.writing import FORMATS, party
from veilgraph.core.errors import DataError
from veilgraph.tables.edges import read_edges


@pytest.mark.parametrize("suffix", FORMATS)
def test_ends_become_rows_of_the_node_table(tmp_path, suffix):
    table = read(tmp_path, {"b": ["v", "007", "u"], "a": ["u", "u", "u"]}, file=f"e.{suffix}")
    assert table.source.tolist() == [0, 0, 0]
    assert table.target.tolist() == [1, 2, 0]
    assert table.weight is None
    assert table.relation is None
    assert (table.rows.tolist(), table.dropped.tolist(), table.other) == ([3], [0], 0)


def test_weights_and_relations(tmp_path):
    columns = {
        "a": ["u", "u", "x", "v", "v", "u"],
        "b": ["v", "u", "v", "y", "u", "v"],
        "kind": ["cash", "card", "card", "cash", "gift", None],
        "amount": ["3", "4", "5", "6", "lots", "-1"],
    }
    table = read(tmp_path, columns, weight="amount", relation=RELATION | {"other": "drop"}, unknown="drop")
    assert (table.source.tolist(), table.target.tolist()) == ([0, 0], [1, 0])
    np.testing.assert_array_equal(table.weight, np.array([6, 2], np.float32))
    assert table.relations == ("card", "cash")
    assert table.relation.tolist() == [1, 0]
    assert (table.rows.tolist(), table.dropped.tolist(), table.other) == ([2, 2], [1, 1], 2)


def test_relations_alone_are_weights_unless_all_are_one(tmp_path):
    columns = {"a": ["u", "v"], "b": ["v", "u"], "kind": ["cash", "card"]}
    table = read(tmp_path, columns, relation=RELATION)
    assert table.weight.tolist() == [2.0, 0.5]
    plain = read(tmp_path, columns, relation=RELATION | {"weights": {"card": 1, "cash": 1}})
    assert plain.weight is None


@pytest.mark.parametrize(
    ("changes", "settings", "key", "row"),
    [
        ({"a": ["u", "x"]}, {}, "a", 2),
        ({"b": ["7", "u"]}, {}, "b", 1),
        ({"a": [None, "u"]}, {"unknown": "drop"}, "a", 1),
        ({"w": ["1", "-2"]}, {}, "w", 2),
        ({"w": ["1", None]}, {}, "w", 2),
        ({"w": ["1", "inf"]}, {}, "w", 2),
        ({"w": ["a", "1"]}, {}, "w", 1),
        ({"a": ["x", "u"], "w": ["1", "-1"]}, {"unknown": "drop"}, "w", 2),
        ({"kind": ["card", "gift"]}, {}, "kind", 2),
        ({"kind": ["card", None]}, {}, "kind", 2),
        ({}, {"target": "to"}, "to", None),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_refusals(tmp_path, suffix, changes, settings, key, row):
    columns = {"a": ["u", "v"], "b": ["v", "u"], "w": ["1", "2"], "kind": ["card", "cash"]} | changes
    with refused(DataError, key=key or tmp_path / f"e.{suffix}", value=row) as caught:
        read(tmp_path, columns, file=f"e.{suffix}", weight="w", relation=RELATION, **settings)
    assert str(caught.value).startswith(f"{tmp_path}/e.{suffix}: ")


def test_a_malformed_row_is_named(tmp_path):
    (tmp_path / "edges.csv").write_text("a,b\nu,v\nu\n", encoding="utf-8")
    with refused(DataError, key=tmp_path / "edges.csv"):
        read_edges(party(edges=[{}]).edges[0], tmp_path, IDS)
