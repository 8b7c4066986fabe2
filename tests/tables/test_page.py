"""The example of docs/tables.md: it is read, it names every setting, and it makes a graph."""

import re
import textwrap
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml

from tests.tables.writing import build
from veilgraph.protocol.party_settings import PartySettings, read_party_settings
from veilgraph.tables.column_settings import CategoricalFeatures, FormatSettings, NumericFeatures
from veilgraph.tables.settings import EdgeSettings, NodeSettings

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")


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
