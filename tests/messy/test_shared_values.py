"""Edges by what customers share, and files of which all or many edges are lost."""

import random

import pytest

from tests.cli.commands import veilgraph
from tests.tables.writing import write
from veilgraph.protocol.acceptance import refusal_of
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.party_settings import parse_party_settings, read_party_settings


@pytest.mark.parametrize(("lost", "said"), [(2, False), (3, True)])
def test_a_file_that_loses_more_than_a_fifth_of_its_rows_is_pointed_out(tmp_path, lost, said):
    write(tmp_path / "n.csv", {"id": ["u", "v", "w"], "x": [1, 2, 4]})
    write(tmp_path / "e.csv", {"source": ["u"] * 10, "target": ["nobody"] * lost + ["v"] * (10 - lost)})
    result = veilgraph("data", "init", tmp_path / "n.csv", tmp_path / "e.csv", "--out", tmp_path / "p.yaml")
    assert result.exit_code == 0, result.output
    shown = " ".join(veilgraph("data", "check", tmp_path / "p.yaml").output.split())
    assert ("e.csv: 30% of its rows are dropped" in shown) is said
    assert ("(target: nobody)" in shown) is said


@pytest.mark.cases(1)
@pytest.mark.parametrize("names", [("customer_id", "device"), ("source", "target")])
def test_a_file_of_customers_and_devices_is_recognised(tmp_path, names):
    """Few of the 3,000 customers are in the sample of both files."""
    drawn = random.Random(0)
    ids = [f"C{each:05}" for each in range(3000)]
    write(tmp_path / "customers.csv", {"customer_id": ids, "age": [drawn.randrange(18, 80) for _ in ids]})
    rows = [(customer, f"dev-{drawn.randrange(2500)}") for customer in drawn.choices(ids, k=4000)]
    rows += [*rows[:160], ("C00000", ""), *((each, "dev-hall") for each in ids[:51])]
    write(tmp_path / "uses.csv", {name: [row[place] for row in rows] for place, name in enumerate(names)})
    out = tmp_path / "p.yaml"
    result = veilgraph("data", "init", tmp_path / "uses.csv", tmp_path / "customers.csv", "--out", out)
    assert result.exit_code == 0, result.output
    (edges,) = read_party_settings(out).edges
    assert (edges.source, edges.target, edges.shared, edges.at_most) == (names[0], None, names[1], 50)
    assert "are customers who share" in result.stdout
    checked = veilgraph("data", "check", out)
    assert checked.exit_code == 0, checked.output
    assert (
        f"uses.csv, of 4,212 rows: rows that repeat the node and value of an earlier one, and count once: "
        f"{len(rows) - len(set(rows))}; rows without a value, which join nobody: 1; "
        "values of more nodes than edges.at_most, which join nobody: 1"
    ) in " ".join(checked.stdout.split())


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


def test_both_files_may_call_the_named_ids_alike(tmp_path):
    ids = [f"c{n}" for n in range(90)]
    write(tmp_path / "customers.csv", {"policy": ids, "age": [20 + n % 7 for n in range(90)]})
    write(tmp_path / "uses.csv", {"policy": ids * 2, "device": [f"g{n // 3}" for n in range(180)]})
    files = [tmp_path / name for name in ("uses.csv", "customers.csv")]
    result = veilgraph("data", "init", *files, "--id", "policy", "--out", tmp_path / "a.yaml")
    assert result.exit_code == 0, result.output
    assert [(each.source, each.shared) for each in read_party_settings(tmp_path / "a.yaml").edges] == [
        ("policy", "device")
    ]
    write(tmp_path / "uses.csv", {"policy": ids * 2, "age": list(range(180))})
    result = veilgraph("data", "init", *files, "--id", "policy", "--out", tmp_path / "b.yaml")
    assert "uses.csv: --id policy: 'c0' is in 2 rows" in " ".join(result.output.split())
    write(tmp_path / "customers.csv", {"policy": ["", *ids[1:]], "age": [20 + n % 7 for n in range(90)]})
    result = veilgraph("data", "init", files[1], "--id", "policy", "--out", tmp_path / "b.yaml")
    assert "customers.csv: --id policy: a row has no value there" in " ".join(result.output.split())
    assert not (tmp_path / "b.yaml").exists()


def test_jobs_that_protect_edges_refuse_shared_values(tmp_path):
    nodes = {"file": "n.csv", "id": "id", "features": [{"columns": "x", "scale": {"low": 0, "high": 1}}]}
    edges = [{"file": "e.csv", "source": "a", "shared": "device"}]
    own = Organisation(parse_party_settings({"party": "A", "nodes": nodes, "edges": edges}), tmp_path)
    data = {"holders": ["A", "B"], "label_holder": "B"}
    sampled = {"epsilon_total": 4, "degree_bound": 5, "batch": 6, "sampling_rate": 0.25}
    for protects in (
        {"paradigm": "sealed", "privacy": {"unit": "edge", "epsilon_total": 4}}
        | {"model": {"network": "linear", "edge_slots": 64}},
        {"paradigm": "node-dp", "data": {**data, "label_holder": "A"}, "release": {"features": {"epsilon": 4}}}
        | {"privacy": {"unit": "edge", "epsilon_total": 4}},
        {"paradigm": "node-dp", "data": {**data, "label_holder": "A"}, "release": {"features": {"epsilon": 4}}}
        | {"privacy": {"unit": "node-edges", "degree_bound": 5, "epsilon_total": 4}},
        {"paradigm": "node-dp", "release": {"features": {"epsilon": 4}}},
        {"paradigm": "averaging", "data": {"holders": ["A", "B", "C"]}, "averaging": {"privacy": sampled}},
    ):
        job = parse_job({"preset": "auto", "data": data, **protects})
        assert "edges.0.shared joins all who have a value" in (refusal_of(own, job) or ""), protects
    assert "shared" not in (refusal_of(own, parse_job({"preset": "auto", "data": data})) or "")


def test_ends_and_rooms_of_patients_are_recognised(tmp_path):
    """Ends whose common word has the letters that tell them apart, and values frequent enough for categories."""
    drawn = random.Random(0)
    ids = [f"P{each:03}" for each in range(200)]
    write(tmp_path / "patients.csv", {"patient": ids, "age": [drawn.randrange(18, 80) for _ in ids]})
    met = {"patient_a": drawn.choices(ids, k=300), "patient_b": drawn.choices(ids, k=300)}
    write(tmp_path / "met.csv", met | {"minutes": [drawn.randrange(5, 90) for _ in range(300)]})
    rooms = [f"R{each:02}" for each in range(30)]
    nights = {"patient": drawn.choices(ids, k=600), "nights": drawn.choices(range(1, 9), k=600)}
    write(tmp_path / "rooms.csv", nights | {"room": drawn.choices(rooms, k=600)})
    files, out = [tmp_path / f"{name}.csv" for name in ("met", "rooms", "patients")], tmp_path / "p.yaml"
    result = veilgraph("data", "init", *files, "--out", out)
    assert result.exit_code == 0, result.output
    assert "to decide: edges.weight: met.csv has minutes, which counts for nothing" in result.stdout
    found = {(each.source, each.target, each.shared) for each in read_party_settings(out).edges}
    assert found == {("patient_a", "patient_b", None), ("patient", None, "room")}
    assert "nights" not in result.stdout
    write(tmp_path / "rooms.csv", {"patient": nights["patient"], "ward": drawn.choices(["A", "B", "C"], k=600)})
    refused = veilgraph("data", "init", *files, "--out", out, "--replace")
    assert "rooms.csv: is neither of nodes" in " ".join(refused.stderr.split()), "everybody in a ward is no edge"
    write(tmp_path / "met.csv", {"one": met["patient_a"], "two": met["patient_b"]})
    refused = veilgraph("data", "init", *files, "--out", out, "--replace")
    assert "as in --ends one:two" in " ".join(refused.stderr.split())
