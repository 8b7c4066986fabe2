"""Tables of edges: their ends, weights, times, features, relations, and values that nodes share."""

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

from tests.errors import refused
from tests.paradigms.exported import export, over
from tests.paradigms.horizontal import job
from tests.tables.writing import FORMATS, IDS, RELATION, build, party, read_edge_table, write
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.dataset import load_parts
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.rules import Relation
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.report.tables import party_tables
from veilgraph.runtime.launch.jobs import train
from veilgraph.samples.organisations import Export, export_party
from veilgraph.tables.describe import describe_party
from veilgraph.tables.edges import EdgeTable, RemoteNodes, read_edges
from veilgraph.tables.settings import says_weights

ENDS = {"a": ["u", "v", "u"], "b": ["v", "007", "007"]}
DATES = {"date": ["2024-06-30", "2024-05-31", "2024-06-15T12:00"]}
DECAY = {"column": "date", "half_life_days": 30, "at": "2024-06-30"}


def weights(folder: Path, columns: dict[str, Any], **settings: Any) -> Any:
    found = read_edge_table(folder, columns, **settings).weight
    return None if found is None else found.tolist()


def ends(table: EdgeTable) -> list[tuple[int, int]]:
    return list(zip(table.source.tolist(), table.target.tolist(), strict=True))


@pytest.mark.parametrize("suffix", FORMATS)
def test_ends_become_rows_of_the_node_table(tmp_path: Path, suffix: str) -> None:
    table = read_edge_table(tmp_path, {"b": ["v", "007", "u"], "a": ["u", "u", "u"]}, file=f"e.{suffix}")
    assert ends(table) == [(0, 1), (0, 2), (0, 0)]
    assert (table.weight, table.relation) == (None, None)
    assert (table.rows.tolist(), table.dropped.tolist(), table.other) == ([3], [0], 0)


def test_ends_at_other_holders_become_rows_behind_ones_own(tmp_path: Path) -> None:
    columns = {
        "a": ["u", "u", "u", "k", "u", "k", "v"],
        "b": ["v", "k", "k", "u", "w", "l", "007"],
        "at a": ["P", "P", "P", "north", "P", "north", "P"],
        "at b": ["P", "north", "south", "P", "elsewhere", "north", None],
    }
    holders = {"source_holder": "at a", "target_holder": "at b"}
    elsewhere = RemoteNodes("P", ("north", "south"))
    table = read_edge_table(tmp_path, columns, elsewhere, **holders)
    assert set(elsewhere.ids) == {"north/k", "north/l", "south/k"}
    places = {3 + row: name for name, row in elsewhere.ids.items()} | dict(enumerate(IDS.to_pylist()))
    pairs = [(places[one], places[other]) for one, other in ends(table)]
    assert pairs == [("u", "v"), ("u", "north/k"), ("u", "south/k"), ("north/k", "u")]
    assert (table.rows.tolist(), table.dropped.tolist()) == ([7], [3])  # nobody's here, both others', no holder
    assert ends(read_edge_table(tmp_path, columns, RemoteNodes("P"), **holders)) == [(0, 1)]
    everybody = RemoteNodes("P", None)
    assert len(read_edge_table(tmp_path, columns, everybody, **holders).source) == 5
    assert "elsewhere/w" in everybody.ids


@pytest.mark.parametrize("common", [None, ["v", "u"]])
def test_edges_of_holders_are_ones_own_where_no_other_holders_nodes_count(
    tmp_path: Path, common: list[str] | None
) -> None:
    """Whether edges are read before an alignment, and moved, or after it."""
    write(tmp_path / "nodes.csv", {"id": ["u", "v"], "x": [1, 2]})
    ends = {"a": ["u", "u"], "b": ["v", "k"], "at a": ["bank", "bank"], "at b": ["bank", "north"]}
    write(tmp_path / "edges.csv", ends)
    graph = build(party(edges=[{"source_holder": "at a", "target_holder": "at b"}]), tmp_path, common).graph
    assert sorted(graph.edge_index.T.tolist()) == [[0, 1], [1, 0]]


def test_moved_edges_are_those_over_the_moved_nodes(tmp_path: Path) -> None:
    rows, order = {"a": ["u", "v", "007", "u"], "b": ["v", "007", "007", "007"]}, np.array([2, 0, 1])
    moved = read_edge_table(tmp_path, rows).move(order)
    anew = read_edges(party(edges=[{}]).edges[0], tmp_path, IDS.take(order))
    assert ends(moved) == ends(anew) == [(1, 2), (2, 0), (0, 0), (1, 0)]


def test_some_ids_of_other_organisations_customers_are_named_with_their_column(tmp_path: Path) -> None:
    rows = {"a": ["u", "v", "x1", "x2", "x1"], "b": ["y1", "v", "y2", "y3", "y4"]}
    table = read_edge_table(tmp_path, rows, unknown="drop")
    assert table.dropped.tolist() == [4]
    assert table.strangers == {"a": ["x1", "x2"], "b": ["y1", "y2", "y3"]}


def test_nodes_that_share_a_value_are_joined_once_for_each_value(tmp_path: Path) -> None:
    """Nodes are u, v and 007; a row twice is one, x is nobody's; a value of too many nodes joins none."""
    shared = {"target": None, "shared": "device", "unknown": "drop"}
    rows = {"a": ["u", "v", "u", "007", "v", "u", "x", "007"], "device": ["d", "d", "d", "d", "e", "e", "e", None]}
    table = read_edge_table(tmp_path, rows, **shared)
    assert sorted(tuple(sorted(pair)) for pair in ends(table)) == [(0, 1), (0, 1), (0, 2), (1, 2)]
    assert (table.rows.tolist(), table.dropped.tolist(), table.crowded) == ([8], [1], 0)
    assert (table.repeated, table.valueless, table.strangers) == (1, 1, {"a": ["x"]})
    table = read_edge_table(tmp_path, rows, **shared, at_most=2)
    assert ([tuple(sorted(pair)) for pair in ends(table)], table.crowded) == ([(0, 1)], 1)


# Weights


def test_weights_and_relations(tmp_path: Path) -> None:
    columns = {
        "a": ["u", "u", "x", "v", "v", "u"],
        "b": ["v", "u", "v", "y", "u", "v"],
        "kind": ["cash", "card", "card", "cash", "gift", None],
        "amount": ["3", "4", "5", "6", "lots", "-1"],
    }
    other = RELATION | {"other": "drop"}
    table = read_edge_table(tmp_path, columns, weight="amount", relation=other, unknown="drop")
    assert ends(table) == [(0, 1), (0, 0)]
    assert table.weight is not None
    assert table.relation is not None
    assert (table.weight.tolist(), table.relation.tolist(), table.relations) == ([6, 2], [1, 0], ("card", "cash"))
    assert (table.rows.tolist(), table.dropped.tolist(), table.other) == ([2, 2], [1, 1], 2)
    kinds = {"a": ["u", "v"], "b": ["v", "u"], "kind": ["cash", "card"]}
    assert weights(tmp_path, kinds, relation=RELATION) == [2.0, 0.5]
    assert weights(tmp_path, kinds, relation=RELATION | {"weights": {"card": 1, "cash": 1}}) is None


def test_amounts_their_logarithm_and_halves_by_age(tmp_path: Path) -> None:
    columns = ENDS | DATES | {"amount": ["0", "55", "1e6"]}
    logs, halves = [math.log1p(amount) for amount in (0, 55, 1e6)], [1, 0.5, 2 ** (-14.5 / 30)]
    assert weights(tmp_path, columns, weight={"column": "amount", "scale": "log"}) == pytest.approx(logs)
    for plain in ("amount", {"column": "amount"}, {"column": "amount", "scale": "none"}):
        assert weights(tmp_path, columns, weight=plain) == [0, 55, 1e6]
    assert weights(tmp_path, columns, decay=DECAY) == pytest.approx(halves)
    wanted = [amount * half for amount, half in zip((0, 55, 1e6), halves, strict=True)]
    assert weights(tmp_path, columns, decay=DECAY, weight="amount") == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("window", "kept"),
    [
        ({"after": "2024-06-15T12:00"}, [0, 2]),
        ({"after": "2024-06-15T12:01"}, [0]),
        ({"before": "2024-06-30"}, [1, 2]),
        ({"before": "2024-06-30T00:01"}, [0, 1, 2]),
        ({"after": "2024-06-01", "before": "2024-06-16"}, [2]),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_window_of_time(tmp_path: Path, window: dict[str, str], kept: list[int], suffix: str) -> None:
    columns = ENDS | DATES | {"amount": ["0", "1", "2"]}
    table = read_edge_table(tmp_path, columns, filter={"column": "date"} | window, weight="amount", file=f"e.{suffix}")
    assert table.weight is not None
    assert table.weight.tolist() == kept
    assert (table.outside, table.rows.tolist(), table.other) == (3 - len(kept), [len(kept)], 0)


def test_what_is_outside_the_window_is_not_looked_at(tmp_path: Path) -> None:
    columns = {
        "a": ["u", "?", "u"],
        "b": ["v", "v", "v"],
        "kind": ["card", "never heard of", "cash"],
        "amount": ["1", "lots", "3"],
        "date": ["2024-06-30", "2025-01-01", None],
    }
    window = {"column": "date", "before": "2024-07-01", "missing": "drop"}
    table = read_edge_table(tmp_path, columns, filter=window, weight="amount", relation=RELATION, decay=DECAY)
    assert (table.source.tolist(), table.outside, table.rows.tolist()) == ([0], 2, [1, 0])


def test_each_relation_weighs_one_on_average_and_then_its_factor(tmp_path: Path) -> None:
    columns = {
        "a": ["u"] * 6,
        "b": ["v"] * 6,
        "kind": ["card", "cash", "card", "cash", "cash", "card"],
        "amount": ["10", "1", "30", "2", "3", "20"],
    }
    found = weights(tmp_path, columns, weight="amount", relation=RELATION, normalize="mean", factor=4)
    assert found == pytest.approx([1, 4, 3, 8, 12, 2])
    found = weights(tmp_path, columns, weight="amount", relation=RELATION, normalize=10)
    assert found == pytest.approx([0.5, 0.2, 1.5, 0.4, 0.6, 1])


def test_two_tables_weigh_alike(tmp_path: Path) -> None:
    """Amounts drown what is counted by ones, unless both are normalised."""
    write(tmp_path / "nodes.csv", {"id": ["u", "v", "w"], "x": [1, 2, 3]})
    write(tmp_path / "transfers.csv", {"a": ["u", "v"], "b": ["v", "w"], "amount": [50, 60]})
    write(tmp_path / "devices.csv", {"a": ["u"], "b": ["w"]})
    transfers = {"file": "transfers.csv", "weight": "amount", "directed": True}
    devices = {"file": "devices.csv", "directed": True}
    alike = [transfers | {"normalize": "mean"}, devices | {"normalize": "mean", "factor": 0.5}]
    for edges, wanted in (([transfers, devices], [50, 60, 1]), (alike, [50 / 55, 60 / 55, 0.5])):
        found = build(party(edges=edges), tmp_path).graph.edge_weight
        assert found is not None
        assert found.tolist() == pytest.approx(wanted)
    described = describe_party(party(edges=alike), tmp_path)
    assert [each.relations[0].mean_weight for each in described.edges] == pytest.approx([1, 0.5])


def test_one_edge_changes_the_others_weights_by_a_mean_and_not_by_a_number(tmp_path: Path) -> None:
    """What an edge tells through all other edges' weights is nothing that an ε of one edge would cover."""

    def others(amount: str, **settings: Any) -> Any:
        return weights(tmp_path, ENDS | DATES | {"amount": ["1", "2", amount]}, **settings)[:2]

    assert others("3", weight="amount", normalize="mean") != others("300", weight="amount", normalize="mean")
    assert others("3", weight="amount", normalize=2) == others("300", weight="amount", normalize=2) == [0.5, 1]
    log: dict[str, Any] = {"weight": {"column": "amount", "scale": "log"}, "decay": DECAY, "factor": 3}
    assert others("3", **log) == others("300", **log)


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ({"weight": "amount"}, "weight"),
        ({"decay": DECAY}, "decay"),
        ({"normalize": 2.0}, "normalize"),
        ({"factor": 0.5}, "factor"),
        ({"relation": RELATION}, "relation.weights"),
        ({"normalize": "mean"}, None),
        ({"relation": {"column": "kind", "weights": {"a": 1, "b": 1}}}, None),
        ({"directed": True}, None),
    ],
)
def test_what_gives_edges_weights(said: dict[str, Any], place: str | None) -> None:
    """Which sealed jobs refuse."""
    assert says_weights(party(edges=[{"name": "e"}, said]).edges) == (place and f"edges.1.{place}")


# Features

FULL: dict[str, Any] = {"model": {"message": "full"}, "train": {"epochs": 2}}
FEES = ENDS | {"fee": ["1", "-2", "0.5"], "amount": ["0", "9", "99"]}
FEATURES: list[Any] = ["fee", {"column": "amount", "scale": "log"}]


def test_features_are_read_go_both_ways_and_with_a_dropped_edge(tmp_path: Path) -> None:
    wanted = np.array([[1, 0], [-2, math.log(10)], [0.5, math.log(100)]])
    np.testing.assert_allclose(read_edge_table(tmp_path, FEES, features=FEATURES).features, wanted, rtol=1e-6)
    write(tmp_path / "nodes.csv", {"id": ["u", "v", "007"], "x": [1, 2, 3]})
    graph = build(party(edges=[{"features": FEATURES}]), tmp_path).graph
    assert graph.edge_features is not None
    np.testing.assert_allclose(graph.edge_features.numpy(), np.concatenate([wanted, wanted]), rtol=1e-6)
    weighted = build(party(edges=[{"features": ["fee"], "weight": "amount", "directed": True}]), tmp_path).graph
    assert weighted.edge_features is not None
    assert weighted.edge_features.tolist() == [[-2], [0.5]], "an edge without weight is none"
    columns = FEES | {"b": ["v", "nobody", "007"]}
    found = read_edge_table(tmp_path, columns, features=["fee"], unknown="drop").features
    assert found.tolist() == [[1], [0.5]]


def test_a_job_computes_with_them_or_is_refused(tmp_path: Path) -> None:
    parties = export(tmp_path, job())
    contents = {path: yaml.safe_load(path.read_text()) for path in parties.values()}

    def say(path: Path, feature: object) -> None:
        contents[path]["edges"][0]["features"] = [feature]
        path.write_text(yaml.safe_dump(contents[path]))

    for path, content in contents.items():
        table = path.parent / content["edges"][0]["file"]
        head, *lines = table.read_text().splitlines()
        table.write_text("\n".join([f'{head},"fee"', *(f"{line},{len(line) % 5}" for line in lines)]))
        say(path, "fee")
    with refused(ConfigError, code="refused"):
        train(over(parties, job()), tmp_path / "linear")
    found = train(over(parties, job(2, FULL)), tmp_path / "full")
    for path in contents:
        say(path, {"column": "fee", "scale": "log"})
    other = train(over(parties, job(2, FULL)), tmp_path / "log")
    assert not torch.equal(found.predictions.probabilities, other.predictions.probabilities)
    say(path, "fee")
    with pytest.raises(DataError, match=r"no feature column like .*'fee of edges'"):
        train(over(parties, job(2, FULL)), tmp_path / "other columns")


def test_written_tables_have_them(tmp_path: Path) -> None:
    features = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    edges, weight = torch.tensor([[0, 1], [1, 0]]), torch.tensor([2.0, 4.0])
    graph = PartyGraph("bank", torch.ones(3, 1), edges, weight, edge_features=features)
    export_party(Export(graph, ["u", "v", "w"], np.arange(3)), tmp_path / "party.yaml", "csv", {})
    found = build(read_party_settings(tmp_path / "party.yaml"), tmp_path).graph
    assert found.edge_features is not None
    assert torch.equal(found.edge_features, features)
    assert torch.equal(found.edge_index, edges)


def test_holders_of_graphs_have_as_many_columns_of_edges(tmp_path: Path) -> None:
    given = {}
    for columns, part in enumerate(load_parts(job().data, 5), start=1):
        given[part.graph.party] = replace(part.graph, edge_features=torch.ones(part.graph.num_edges, columns))
    ids = {name: list(range(graph.num_nodes)) for name, graph in given.items()}
    content = job(2, FULL).model_dump(mode="json") | {"data": {"holders": ["A", "B"]}}
    with pytest.raises(DataError, match="columns of edges differ"):
        train(parse_job(content), tmp_path / "run", parties=given, ids=ids)


# Relations

CALLS: dict[str, Any] = {"file": "calls.csv.gz"}
PAYS: dict[str, Any] = {"file": "pays.parquet", "weight": "w", "directed": True}
KINDS: dict[str, Any] = {"file": "kinds.csv", "relation": {"column": "kind", "weights": {"card": 2, "calls": 1}}}
CALLED = [(0, 1, 1), (0, 1, 1), (1, 0, 1), (1, 0, 1), (2, 2, 1)]


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


def test_every_table_is_a_relation_and_those_of_one_name_are_one(folder: Path) -> None:
    graph = build(party(edges=[CALLS, PAYS]), folder).graph
    assert graph.relations == (Relation("calls"), Relation("pays"))
    assert of_each(graph) == {"calls": CALLED, "pays": [(0, 2, 0.5), (2, 0, 4)]}
    graph = build(party(edges=[KINDS, CALLS, {**PAYS, "name": "card"}]), folder).graph
    assert [relation.name for relation in graph.relations] == ["card", "calls"]
    assert of_each(graph) == {
        "card": [(0, 2, 0.5), (0, 2, 2), (2, 0, 2), (2, 0, 4)],
        "calls": sorted([*CALLED, (1, 2, 1), (2, 1, 1)]),
    }


def test_hops_are_said_of_a_table_or_of_a_kind(folder: Path) -> None:
    kinds = {**KINDS, "relation": {**KINDS["relation"], "hops": {"card": 0}}}
    graph = build(party(edges=[{**PAYS, "hops": 1}, kinds]), folder).graph
    assert graph.relations == (Relation("pays", 1), Relation("card", 0), Relation("calls"))


@pytest.mark.parametrize("entry", [CALLS, {**CALLS, "name": "talks"}])
def test_a_single_relation_that_reaches_as_far_as_any_is_edges_alike(folder: Path, entry: dict[str, Any]) -> None:
    graph = build(party(edges=[entry]), folder).graph
    assert (graph.relations, graph.edge_relation) == ((), None)
    bounded = build(party(edges=[{**entry, "hops": 2}]), folder).graph
    assert bounded.relations == (Relation(entry.get("name", "calls"), 2),)


def test_another_name_or_reach_is_other_data(folder: Path) -> None:
    paid = [PAYS, {**PAYS, "name": "paid"}, {**PAYS, "hops": 1}, {**PAYS, "hops": 2}]
    entries = [*([CALLS, each] for each in paid), [PAYS, CALLS]]
    assert len({Organisation(party(edges=edges), folder).digest() for edges in entries}) == len(entries)


def test_a_description_names_relations_where_there_are_several(folder: Path) -> None:
    found = describe_party(party(edges=[CALLS, {**PAYS, "hops": 1}]), folder)
    named = [(each.relation, each.hops, each.rows) for edges in found.edges for each in edges.relations]
    assert named == [("calls", None, 3), ("pays", 1, 2)]
    text = io.StringIO()
    for table in party_tables(found):
        Console(width=160, file=text).print(table)
    lines = [line.split() for line in text.getvalue().splitlines() if "calls.csv" in line or "pays.p" in line]
    assert [line[-2] for line in lines[-2:]] == ["all", "1"]
    (alone,) = describe_party(party(edges=[CALLS]), folder).edges
    assert alone.relations[0].relation is None
