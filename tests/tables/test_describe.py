"""What is said of a party's tables; and the example of docs/guides/tables.md, which names every setting."""

import re
import textwrap

import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from rich.console import Console

from docs.pages import find_page
from tests.tables.writing import build, party, write
from veilgraph.protocol.party_settings import PartySettings, read_party_settings
from veilgraph.report.tables import party_tables
from veilgraph.tables.column_settings import CategoricalFeatures, FormatSettings, NumericFeatures
from veilgraph.tables.describe import (
    CategoricalDescription,
    NumericDescription,
    RelationDescription,
    columns_used,
    describe_party,
)
from veilgraph.tables.settings import EdgeSettings, NodeSettings


def example(folder):
    write(
        folder / "nodes.csv",
        {
            "id": ["u", "v", "w", "x", "y"],
            "age": [30, None, 50, None, 10],
            "empty": [None] * 5,
            "kind": ["a", "b", "[/c]", None, "a"],
            "y": ["yes", "no", None, None, "no"],
            "part": ["train", "val", None, None, "test"],
        },
    )
    write(folder / "edges.csv", {"a": ["u", "u", "v", "w", "?"], "b": ["v", "u", "u", "v", "u"], "k": list("ppptp")})
    write(folder / "more.csv", {"a": ["u", "v", "u"], "b": ["v", "u", "v"]})
    return party(
        [
            {"columns": ["age", "empty"], "missing": "zero"},
            {"columns": "kind", "categories": ["a", "b"], "missing": "category", "other": "zero"},
        ],
        {"column": "y", "classes": ["no", "yes"]},
        {"column": "part"},
        edges=[
            {"relation": {"column": "k", "weights": {"p": 1, "q": 1}, "other": "drop"}, "unknown": "drop"},
            {"file": "more.csv", "directed": True},
        ],
    )


def test_a_party_in_numbers(tmp_path):
    settings = example(tmp_path)
    found = describe_party(settings, tmp_path)
    assert (found.party, found.nodes, found.num_features, found.sparse) == ("bank", 5, 5, False)
    assert found.feature_bytes == 4 * 5 * 5
    assert found.features == (
        NumericDescription("age", 2, 10.0, 30.0, 50.0),
        NumericDescription("empty", 5, None, None, None),
        CategoricalDescription("kind", 1, {"a": 2, "b": 1}, 1, 1),
    )
    assert (found.classes, found.unlabelled) == ({"no": 2, "yes": 1}, 2)
    assert found.splits == {"train": 1, "val": 1, "test": 1}
    both, one_way = found.edges
    assert both.relations == (RelationDescription("p", 4, 1, 1, 1), RelationDescription("q", 0, 0, 0, 0))
    assert (both.directed, both.other, both.edges) == (False, 1, 5)
    assert one_way.relations == (RelationDescription("more", 3, 0, 0, 1),)
    assert (one_way.directed, one_way.other, one_way.edges) == (True, 0, 3)
    graph = build(settings, tmp_path).graph
    degrees = graph.degrees()
    assert (both.edges + one_way.edges, found.num_features) == (graph.num_edges, graph.num_features)
    assert found.degrees == (int(degrees.min()), float(degrees.median()), int(degrees.max()))
    assert found.isolated == 3


def test_what_a_range_cuts_and_what_looks_at_all_rows_is_shown(tmp_path):
    write(tmp_path / "nodes.csv", {"id": ["u", "v", "w"], "x": [1, 5, 9], "y": [None, 5, 7]})
    scaled = {"columns": "x", "scale": {"low": 1, "high": 8}}
    found = describe_party(party([scaled]), tmp_path)
    assert found.features == (NumericDescription("x", 0, 1.0, 5.0, 9.0, 1, ranges=True),)
    assert found.beyond_own_row == ()
    text = " ".join(shown(party_tables(found)).split())
    assert "features of a node's own row alone │ yes" in text
    assert "1 to 9, mean 5, 1 cut to the scale" in text
    fitted = describe_party(party([scaled, {"columns": "y", "missing": "mean"}]), tmp_path)
    text = " ".join(shown(party_tables(fitted)).split())
    assert "features of a node's own row alone │ no" in text
    assert "nodes.features.1 (column 'y'): missing=mean is computed from all rows" in text


def shown(tables):
    console = Console(width=120, markup=False)
    with console.capture() as capture:
        for table in tables:
            console.print(table)
    return capture.get()


def test_tables_show_every_number_and_take_names_as_they_are(tmp_path):
    text = shown(party_tables(describe_party(example(tmp_path), tmp_path)))
    for line in (
        "Party bank",
        "isolated nodes                     │            3",
        "features in memory                 │ 100 B, dense",
        "edges.csv │ p          │ both      │    4 │       1 │          1 │          1",
        "edges.csv │ not listed │ both      │    1 │       1 │          – │          –",
        "more.csv  │ more       │ directed  │    3 │       0 │          0 │          1",
        "age    │ number   │       2 │ 10 to 50, mean 30",
        "empty  │ number   │       5 │ none",
        "kind   │ category │       1 │ a 2, b 1, (other) 1",
        "classes    │ no 2, yes 1",
        "train      │ 1: no 0, yes 1",
        "val        │ 1: no 1, yes 0",
    ):
        assert line in text


def test_a_party_without_columns_is_told_apart_from_one_that_uses_none():
    assert columns_used(0, {}) == "no columns used: it has no nodes"
    assert columns_used(0, {"x": "all rows are alike"}).startswith("0 of 1 columns used; left out: x")


@pytest.mark.parametrize("named", [False, True])
def test_columns_that_rank_nodes_as_their_edges_do_are_pointed_out(tmp_path, named):
    ids = [f"n{each}" for each in range(12)]
    pairs = [(one, other) for one in range(12) for other in range(one)]
    write(tmp_path / "edges.csv", {"a": [ids[one] for one, _ in pairs], "b": [ids[other] for _, other in pairs]})
    columns = {"id": ids, "paid": [each**2 for each in range(12)], "age": [(7 * each) % 12 for each in range(12)]}
    write(tmp_path / "nodes.csv", columns)
    settings = party([{"columns": ["paid", "age"]}], edges=[{"directed": True}])
    if named:
        made = {"columns_from_edges": ("pa*",)}
        settings = settings.model_copy(update={"nodes": settings.nodes.model_copy(update=made)})
    assert describe_party(settings, tmp_path).from_edges == (() if named else ("paid",))


PAGE = find_page("tables.md").read_text(encoding="utf-8")


def test_the_example_makes_a_graph(tmp_path):
    example = re.findall(r"^```yaml\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)[0]
    customers = re.findall(r"^with `customers.csv`\n\n((?:    .*\n)+)", PAGE, flags=re.MULTILINE)[0]
    (tmp_path / "party.yaml").write_text(example, encoding="utf-8")
    (tmp_path / "customers.csv").write_text(textwrap.dedent(customers), encoding="utf-8")
    settings = read_party_settings(tmp_path / "party.yaml")
    transfers = {"payer": ["007", "k-99"], "payee": ["k-12", "007"], "amount": [2.5, 1.0], "kind": ["card", "card"]}
    transfers["date"] = ["2024-06-01", "2024-05-01"]
    pa.parquet.write_table(pa.table(transfers), tmp_path / "transfers.parquet")
    built = build(settings, tmp_path)
    assert built.encoding.names == (
        *("age", "income", "balance", "w_post", "w_shop"),
        *("segment=retail", "segment=private", "segment missing"),
    )
    assert built.graph.features[1].tolist() == pytest.approx([42.5, 0.39, 0, 0, 1, 0, 1, 0])
    assert built.graph.features[2].tolist() == pytest.approx([51, 0, 0.002, 0, 0, 0, 0, 1])
    assert built.graph.edge_index.tolist() == [[0, 1], [1, 0]]
    assert built.graph.edge_weight is not None
    assert built.graph.edge_weight.tolist() == [0.5, 0.5]


def test_the_example_names_every_setting():
    example = yaml.safe_load(re.findall(r"^```yaml\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)[0])
    assert set(example) == set(PartySettings.model_fields)
    assert set(example["nodes"]) == set(NodeSettings.model_fields)
    assert set(example["edges"][0]) | set(FormatSettings.model_fields) == set(EdgeSettings.model_fields)
    assert set(example["nodes"]["features"][1]) == set(NumericFeatures.model_fields)
    assert set(example["nodes"]["features"][-1]) == set(CategoricalFeatures.model_fields)
