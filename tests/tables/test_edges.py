import numpy as np
import pytest

from tests.errors import refused
from tests.tables.reading import IDS, RELATION, read
from tests.tables.writing import FORMATS, party
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.tables.edges import Elsewhere, read_edges


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


def test_ends_at_other_holders_become_rows_behind_ones_own(tmp_path):
    columns = {
        "a": ["u", "u", "u", "k", "u", "k", "v"],
        "b": ["v", "k", "k", "u", "w", "l", "007"],
        "at a": ["P", "P", "P", "north", "P", "north", "P"],
        "at b": ["P", "north", "south", "P", "elsewhere", "north", None],
    }
    ends = {"source_holder": "at a", "target_holder": "at b"}
    elsewhere = Elsewhere("P", ("north", "south"))
    table = read(tmp_path, columns, elsewhere, **ends)
    assert set(elsewhere.ids) == {"north/k", "north/l", "south/k"}
    places = {3 + row: name for name, row in elsewhere.ids.items()} | dict(enumerate(IDS.to_pylist()))
    pairs = [(places[one], places[other]) for one, other in zip(table.source, table.target, strict=True)]
    assert pairs == [("u", "v"), ("u", "north/k"), ("u", "south/k"), ("north/k", "u")]
    assert (table.rows.tolist(), table.dropped.tolist()) == ([7], [3])  # nobody's here, both others', no holder
    alone = read(tmp_path, columns, Elsewhere("P"), **ends)
    assert (alone.source.tolist(), alone.target.tolist()) == ([0], [1])
    everybody = Elsewhere("P", None)
    assert len(read(tmp_path, columns, everybody, **ends).source) == 5
    assert "elsewhere/w" in everybody.ids


def test_an_end_of_ones_own_that_is_not_there_is_refused_and_another_s_is_not(tmp_path):
    columns = {"a": ["u", "x"], "b": ["k", "k"], "at": ["north", "north"]}
    with refused(DataError, key="a"):
        read(tmp_path, columns, Elsewhere("P", ("north",)), target_holder="at")
    dropped = read(tmp_path, columns, Elsewhere("P", ("north",)), target_holder="at", unknown="drop")
    assert (dropped.source.tolist(), dropped.target.tolist(), dropped.dropped.tolist()) == ([0], [3], [1])
    assert dropped.strangers["a"] == ["x"]


def test_holders_of_ends_are_of_edges_of_two_columns(tmp_path):
    with refused(ConfigError, key="edges.0"):
        read(tmp_path, {"a": ["u"], "b": ["d"], "at": ["north"]}, target=None, shared="b", source_holder="at")
