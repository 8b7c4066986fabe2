"""Which file has the nodes and which the labels, whatever the order on the command line; and columns that leak."""

import itertools
import json
import random

import pytest

from tests.cli.commands import veilgraph
from tests.tables.writing import write
from veilgraph.protocol.party_settings import read_party_settings

N = 200
FILES = ("cases.csv", "customers.csv", "transfers.csv")


@pytest.fixture
def bank(tmp_path):
    """Customers, cases that were looked into, with what came of them, and transfers."""
    drawn = random.Random(0)
    ids = [f"C{each:04}" for each in range(N)]
    fraud = {each: drawn.random() < 0.3 for each in ids}
    looked_into = drawn.sample(ids, 120)
    write(tmp_path / "customers.csv", {"customer_id": ids, "age": [drawn.randrange(18, 80) for _ in ids]})
    write(
        tmp_path / "cases.csv",
        {
            "case_no": [f"{90_000 + each}" for each in range(120)],
            "customer_id": looked_into,
            "detected_on": [f"2024-03-{each % 28 + 1:02}" for each in range(120)],
            "loss_eur": [drawn.randrange(100, 900) if fraud[each] else None for each in looked_into],
            "outcome": ["charged" if fraud[each] else "closed" for each in looked_into],
            "fraud": ["yes" if fraud[each] else "no" for each in looked_into],
        },
    )
    ends = [(drawn.choice(ids), drawn.choice(ids)) for _ in range(300)]
    write(tmp_path / "transfers.csv", {"payer": [a for a, _ in ends], "payee": [b for _, b in ends]})
    return tmp_path


def init(folder, *files, more=()):
    result = veilgraph(
        "data", "init", *(folder / each for each in files), "--out", folder / "p.yaml", "--replace", *more
    )
    assert result.exit_code == 0, result.output
    return read_party_settings(folder / "p.yaml")


@pytest.mark.cases(4)
@pytest.mark.parametrize("order", list(itertools.permutations(FILES)))
@pytest.mark.parametrize("label", [(), ("--label", "fraud")])
def test_the_node_table_has_most_ids_and_nothing_beside_the_label_is_a_feature(bank, order, label):
    nodes = init(bank, *order, more=label).nodes
    assert (nodes.file.name, nodes.id, nodes.join) == ("customers.csv", "customer_id", ())
    assert nodes.label is not None
    assert nodes.label.file is not None
    assert (nodes.label.file.name, nodes.label.id, nodes.label.column) == ("cases.csv", None, "fraud")
    assert [each.columns for each in nodes.features] == [("age",)]


@pytest.mark.parametrize("edges", [True, False])
def test_ids_of_digits_are_known_by_what_other_files_have(tmp_path, edges):
    """No name says so, names of people differ as well, and few customers are in a thousand rows of transfers."""
    count = 4000
    drawn = random.Random(1)
    ids = [f"{each:06}" for each in drawn.sample(range(10**6), count)]
    write(
        tmp_path / "customers.csv",
        {"name": [f"N{each}" for each in range(count)], "who": ids, "age": [each % 70 for each in range(count)]},
    )
    named = "customer" if edges else "who"
    fraud = {named: ids[:900], "case": [*range(900)], "fraud": [("no", "yes")[each % 3 == 0] for each in range(900)]}
    write(tmp_path / "cases.csv", fraud)
    write(tmp_path / "payments.csv", {"payer": drawn.choices(ids, k=3000), "payee": drawn.choices(ids, k=3000)})
    files = ["cases.csv", "customers.csv", *(["payments.csv"] if edges else [])]
    nodes = init(tmp_path, *files, more=("--label", "fraud")).nodes
    assert nodes.label is not None
    assert (nodes.file.name, nodes.id, nodes.label.id or nodes.id) == ("customers.csv", "who", named)


def test_ids_are_counted_in_the_whole_file_and_not_in_a_sample(tmp_path):
    """Both samples have a thousand rows."""
    for name, count in (("a.csv", 1200), ("b.csv", 3000)):
        write(
            tmp_path / name, {"client": [f"c{each}" for each in range(count)], "x": [each % 7 for each in range(count)]}
        )
    assert init(tmp_path, "a.csv", "b.csv").nodes.file.name == "b.csv"
    assert init(tmp_path, "b.csv", "a.csv").nodes.file.name == "b.csv"


def test_of_two_files_with_the_same_ids_the_one_of_more_columns_is_the_node_table(tmp_path):
    ids = [f"c{each}" for each in range(60)]
    columns = {name: [each % 5 for each in range(60)] for name in ("q", "r", "s", "t", "u")}
    write(tmp_path / "a_usage.csv", {"client": ids, "calls": [each % 9 for each in range(60)]})
    write(tmp_path / "b_clients.csv", {"client": ids, **columns, "fraud": ["yes", "no"] * 30})
    nodes = init(tmp_path, "a_usage.csv", "b_clients.csv").nodes
    assert nodes.file.name == "b_clients.csv"
    assert [each.file.name for each in nodes.join] == ["a_usage.csv"]
    assert nodes.label is not None
    assert nodes.label.file is None


def test_a_column_that_separates_the_classes_is_called_a_likely_leak(bank):
    settings = init(bank, *FILES, more=("--feature", "loss_eur", "--feature", "outcome"))
    named = {("cases.loss_eur",), ("cases.outcome",)}
    assert named < {each.columns for each in settings.nodes.features}
    said = veilgraph("data", "check", bank / "p.yaml", "--json")
    assert json.loads(said.stdout)["leaks"] == {"cases.loss_eur": 1.0, "cases.outcome": 1.0}
    shown = veilgraph("data", "check", bank / "p.yaml").output.replace("\n", " ")
    assert "likely a leak: cases.loss_eur alone tells the classes apart (AUC 1.000)" in shown
    init(bank, *FILES)
    assert "leak" not in veilgraph("data", "check", bank / "p.yaml").output.replace('"leaks"', "")


@pytest.mark.parametrize(("swapped", "leaks"), [(7, True), (8, False)])
def test_what_nearly_separates_is_a_leak_above_0_98_alone(tmp_path, swapped, leaks):
    """Of 50 and 50 nodes, the nearest `swapped` are on the wrong side: an area of 1 - swapped² / 2500."""
    values = [-each for each in range(1, 51)] + list(range(1, 51))
    fraud = ["no"] * 50 + ["yes"] * 50
    for each in range(swapped):
        values[each], values[50 + each] = values[50 + each], values[each]
    shape = {"id": [f"n{each}" for each in range(100)], "x": [each / 7 for each in values], "fraud": fraud}
    write(tmp_path / "n.csv", shape)
    init(tmp_path, "n.csv")
    found = json.loads(veilgraph("data", "check", tmp_path / "p.yaml", "--json").stdout)["leaks"]
    assert found == ({"x": pytest.approx(1 - swapped**2 / 2500)} if leaks else {})
