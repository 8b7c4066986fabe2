"""Relations of a party file: names of tables, columns of kinds, and how far each reaches."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.errors import refused
from tests.tables.writing import build, party, write
from veilgraph.core.errors import ConfigError
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.rules import Relation
from veilgraph.protocol.organisation import Organisation
from veilgraph.report.tables import party_tables
from veilgraph.tables.describe import describe_party

CALLS = {"file": "calls.csv.gz"}
PAYS = {"file": "pays.parquet", "weight": "w", "directed": True}
KINDS = {"file": "kinds.csv", "relation": {"column": "kind", "weights": {"card": 2, "calls": 1}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "nodes.csv", {"id": ["u", "v", "w"], "x": [1, 2, 3]})
    write(tmp_path / "calls.csv.gz", {"a": ["u", "w", "v"], "b": ["v", "w", "u"]})
    write(tmp_path / "pays.parquet", {"a": ["w", "u"], "b": ["u", "w"], "w": [4.0, 0.5]})
    write(tmp_path / "kinds.csv", {"a": ["u", "v"], "b": ["w", "w"], "kind": ["card", "calls"]})
    return tmp_path


def of_each(graph: PartyGraph) -> dict[str, list[tuple[float, ...]]]:
    """Relation → its edges with their weights."""
    assert graph.edge_relation is not None
    weight = [1.0] * graph.num_edges if graph.edge_weight is None else graph.edge_weight.tolist()
    found: dict[str, list[tuple[float, ...]]] = {relation.name: [] for relation in graph.relations}
    for place, edge, each in zip(graph.edge_relation.tolist(), graph.edge_index.T.tolist(), weight, strict=True):
        found[graph.relations[place].name].append((*edge, each))
    return {name: sorted(edges) for name, edges in found.items()}


CALLED = [(0, 1, 1), (0, 1, 1), (1, 0, 1), (1, 0, 1), (2, 2, 1)]


def test_every_table_is_a_relation_called_as_its_file(folder: Path) -> None:
    graph = build(party(edges=[CALLS, PAYS]), folder).graph
    assert graph.relations == (Relation("calls"), Relation("pays"))
    assert of_each(graph) == {"calls": CALLED, "pays": [(0, 2, 0.5), (2, 0, 4)]}


def test_tables_of_one_name_and_kinds_of_a_column_are_one_relation(folder: Path) -> None:
    graph = build(party(edges=[KINDS, CALLS, {**PAYS, "name": "card"}]), folder).graph
    assert [relation.name for relation in graph.relations] == ["card", "calls"]
    assert of_each(graph) == {
        "card": [(0, 2, 0.5), (0, 2, 2), (2, 0, 2), (2, 0, 4)],
        "calls": sorted([*CALLED, (1, 2, 1), (2, 1, 1)]),
    }


def test_hops_are_said_of_a_table_or_of_a_kind(folder: Path) -> None:
    kinds = {**KINDS, "relation": {**KINDS["relation"], "hops": {"card": 0}}}  # type: ignore[dict-item]
    graph = build(party(edges=[{**PAYS, "hops": 1}, kinds]), folder).graph
    assert graph.relations == (Relation("pays", 1), Relation("card", 0), Relation("calls"))


@pytest.mark.parametrize("entry", [CALLS, {**CALLS, "name": "talks"}])
def test_a_single_relation_that_reaches_as_far_as_any_is_edges_alike(folder: Path, entry: dict[str, Any]) -> None:
    graph = build(party(edges=[entry]), folder).graph
    assert (graph.relations, graph.edge_relation) == ((), None)
    bounded = build(party(edges=[{**entry, "hops": 2}]), folder).graph
    assert bounded.relations == (Relation(entry.get("name", "calls"), 2),)


def test_another_name_or_reach_is_other_data(folder: Path) -> None:
    entries: list[list[dict[str, Any]]] = [
        [CALLS, PAYS],
        [CALLS, {**PAYS, "name": "paid"}],
        [CALLS, {**PAYS, "hops": 1}],
        [CALLS, {**PAYS, "hops": 2}],
        [PAYS, CALLS],
    ]
    digests = {Organisation(party(edges=edges), folder).digest() for edges in entries}
    assert len(digests) == len(entries)


def test_a_description_names_relations_where_there_are_several(folder: Path) -> None:
    found = describe_party(party(edges=[CALLS, {**PAYS, "hops": 1}]), folder)
    assert [(each.relation, each.hops, each.rows) for edges in found.edges for each in edges.relations] == [
        ("calls", None, 3),
        ("pays", 1, 2),
    ]
    text = io.StringIO()
    for table in party_tables(found):
        Console(width=160, file=text).print(table)
    lines = [line.split() for line in text.getvalue().splitlines() if "calls.csv" in line or "pays.p" in line]
    assert [line[-2] for line in lines[-2:]] == ["all", "1"]
    (alone,) = describe_party(party(edges=[CALLS]), folder).edges
    assert alone.relations[0].relation is None


WRONG: list[tuple[str, list[dict[str, Any]], str]] = [
    ("hops below 0", [{"hops": -1}], "edges.0.hops"),
    ("hops above 32", [{"hops": 33}], "edges.0.hops"),
    ("hops that are text", [{"hops": "far"}], "edges.0.hops"),
    ("hops of a half", [{"hops": 0.5}], "edges.0.hops"),
    ("no name", [{"name": ""}], "edges.0.name"),
    ("a name beside kinds", [{**KINDS, "name": "all"}], "name"),
    ("hops beside kinds", [{**KINDS, "hops": 1}], "hops"),
    (
        "hops of no kind",
        [{**KINDS, "relation": {"column": "kind", "weights": {"card": 1}, "hops": {"cash": 1}}}],
        "edges.0.relation",
    ),
    ("two reaches of one name", [{"name": "a", "hops": 1}, {"name": "a", "hops": 2}], "edges"),
    ("one without", [{"name": "a", "hops": 1}, {"name": "a"}], "edges"),
]


@pytest.mark.parametrize(("edges", "key"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
def test_what_a_party_file_says_wrongly_is_refused(edges: list[dict[str, Any]], key: str) -> None:
    with refused(ConfigError, key=key):
        party(edges=edges)
