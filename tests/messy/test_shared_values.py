"""Edges by what customers share, and files of which all or many edges are lost."""

import random

import pytest

from tests.cli.commands import veilgraph
from tests.errors import refused
from tests.tables.reading import read
from tests.tables.writing import party, write
from veilgraph.core.errors import ConfigError
from veilgraph.protocol.acceptance import refusal_of
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.party_settings import parse_party_settings, read_party_settings

SHARED = {"target": None, "shared": "device", "unknown": "drop"}


def pairs(table):
    return sorted((min(ends), max(ends)) for ends in zip(table.source.tolist(), table.target.tolist(), strict=True))


def test_nodes_that_share_a_value_are_joined_once_for_each_value(tmp_path):
    """Nodes are u, v and 007; a row twice is one, x is nobody's."""
    rows = {"a": ["u", "v", "u", "007", "v", "u", "x", "007"], "device": ["d", "d", "d", "d", "e", "e", "e", None]}
    table = read(tmp_path, rows, **SHARED)
    assert pairs(table) == [(0, 1), (0, 1), (0, 2), (1, 2)]
    assert (table.rows.tolist(), table.dropped.tolist(), table.crowded) == ([8], [1], 0)


def test_a_value_of_more_nodes_than_may_share_it_joins_none_and_is_counted(tmp_path):
    rows = {"a": ["u", "v", "007", "v", "u"], "device": ["d", "d", "d", "e", "e"]}
    table = read(tmp_path, rows, **SHARED, at_most=2)
    assert (pairs(table), table.crowded) == ([(0, 1)], 1)


@pytest.mark.parametrize(
    "wrong", [{"weight": "w"}, {"normalize": "mean"}, {"directed": True}, {"target": "b"}, {"shared": None}]
)
def test_what_is_of_rows_that_are_an_edge_each_is_refused(wrong):
    with refused(ConfigError, key="edges.0"):
        party(edges=[SHARED | wrong])


@pytest.mark.parametrize(("lost", "said"), [(2, False), (3, True)])
def test_a_file_that_loses_more_than_a_fifth_of_its_rows_is_pointed_out(tmp_path, lost, said):
    write(tmp_path / "n.csv", {"id": ["u", "v", "w"], "x": [1, 2, 4]})
    write(tmp_path / "e.csv", {"source": ["u"] * 10, "target": ["nobody"] * lost + ["v"] * (10 - lost)})
    result = veilgraph("data", "init", tmp_path / "n.csv", tmp_path / "e.csv", "--out", tmp_path / "p.yaml")
    assert result.exit_code == 0, result.output
    shown = " ".join(veilgraph("data", "check", tmp_path / "p.yaml").output.split())
    assert ("e.csv: 30% of its rows are dropped" in shown) is said
    assert ("(target: nobody)" in shown) is said


def test_some_ids_of_other_organisations_customers_are_named_with_their_column(tmp_path):
    rows = {"a": ["u", "v", "x1", "x2", "x1"], "b": ["y1", "v", "y2", "y3", "y4"]}
    table = read(tmp_path, rows, unknown="drop")
    assert table.dropped.tolist() == [4]
    assert table.strangers == {"a": ["x1", "x2"], "b": ["y1", "y2", "y3"]}


@pytest.mark.cases(1)
@pytest.mark.parametrize("names", [("customer_id", "device"), ("source", "target")])
def test_a_file_of_customers_and_devices_is_recognised(tmp_path, names):
    """Few of the 3,000 customers are in the sample of both files."""
    drawn = random.Random(0)
    ids = [f"C{each:05}" for each in range(3000)]
    write(tmp_path / "customers.csv", {"customer_id": ids, "age": [drawn.randrange(18, 80) for _ in ids]})
    used = {names[0]: drawn.choices(ids, k=4000), names[1]: [f"dev-{drawn.randrange(2500)}" for _ in range(4000)]}
    write(tmp_path / "uses.csv", used)
    out = tmp_path / "p.yaml"
    result = veilgraph("data", "init", tmp_path / "uses.csv", tmp_path / "customers.csv", "--out", out)
    assert result.exit_code == 0, result.output
    (edges,) = read_party_settings(out).edges
    assert (edges.source, edges.target, edges.shared, edges.at_most) == (names[0], None, names[1], 50)
    assert "are customers who share" in result.stdout
    checked = veilgraph("data", "check", out)
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize(
    ("devices", "shared"),
    [([f"d{n // 3}" for n in range(900)], True), (["web", "app"] * 450, False), ([f"d{n}" for n in range(900)], False)],
    ids=["of three each", "kinds", "of one each"],
)
def test_a_device_of_each_node_joins_nodes_where_several_have_it(tmp_path, devices, shared):
    ids = [f"c{n}" for n in range(900)]
    write(tmp_path / "customers.csv", {"customer_id": ids, "age": [20 + n % 7 for n in range(900)]})
    write(tmp_path / "devices.csv", {"customer_id": ids, "device": devices})
    files = [tmp_path / name for name in ("customers.csv", "devices.csv")]
    assert veilgraph("data", "init", *files, "--party", "A", "--out", tmp_path / "a.yaml").exit_code == 0
    assert [each.shared for each in read_party_settings(tmp_path / "a.yaml").edges] == (["device"] if shared else [])


def test_jobs_that_protect_edges_refuse_shared_values(tmp_path):
    nodes = {"file": "n.csv", "id": "id", "features": [{"columns": "x", "scale": {"low": 0, "high": 1}}]}
    edges = [{"file": "e.csv", "source": "a", "shared": "device"}]
    own = Organisation(parse_party_settings({"party": "A", "nodes": nodes, "edges": edges}), tmp_path)
    data = {"holders": ["A", "B"], "label_holder": "B"}
    for unit, bound in (("edge", {}), ("node", {"degree_bound": 5}), ("node-edges", {"degree_bound": 5})):
        privacy = {"unit": unit, "epsilon_total": 4, "aggregation": {}, **bound}
        job = parse_job({"paradigm": "vertical", "preset": "auto", "data": data, "privacy": privacy})
        assert "edges.0.shared joins all who have a value" in (refusal_of(own, job) or ""), unit
    sampled = {"epsilon_total": 4, "degree_bound": 5, "batch": 6, "sampling_rate": 0.25}
    for others in (
        {"paradigm": "sealed", "privacy": {"unit": "edge", "aggregation": {}, "epsilon_total": 4}}
        | {"model": {"network": "linear", "edge_slots": 64}},
        {"paradigm": "node-dp", "release": {"features": {"epsilon": 4}}}
        | {"privacy": {"unit": "edge", "aggregation": {}, "epsilon_total": 4}},
        {"paradigm": "averaging", "data": {"holders": ["A", "B", "C"]}, "averaging": {"privacy": sampled}},
    ):
        job = parse_job({"preset": "auto", "data": data, **others})
        assert "edges.0.shared joins all who have a value" in (refusal_of(own, job) or ""), others["paradigm"]
    assert "shared" not in (refusal_of(own, parse_job({"preset": "auto", "data": data})) or "")
