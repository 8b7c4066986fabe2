"""What party files of old say, byte for byte: their digests are in runs, and their columns' hashes in agreements."""

import hashlib

import pytest

from veilgraph.protocol.party_settings import parse_party_settings
from veilgraph.tables.columns import column_hashes, predicted
from veilgraph.tables.encode import FeatureEncoding
from veilgraph.tables.nodes import FeatureColumn

NODES = {
    "file": "customers.csv",
    "id": "customer_id",
    "features": [
        {"columns": "age", "missing": "mean"},
        {"columns": ["income", "balance"], "missing": 0, "scale": {"low": 0, "high": 100}},
        {"columns": "segment", "categories": ["retail", "private"], "missing": "category"},
    ],
}
LABELLED = {
    "label": {"column": "fraud", "classes": ["no", "yes"]},
    "split": {"train": 0.6, "val": 0.2, "test": 0.2},
}
EDGES = [
    {"file": "t.parquet", "source": "payer", "target": "payee", "weight": "amount"},
    {
        "file": "e.csv",
        "source": "a",
        "target": "b",
        "directed": True,
        "relation": {"column": "kind", "weights": {"transfer": 1.0, "card": 0.5}},
    },
]


def parsed(**nodes):
    return parse_party_settings({"party": "bank", "nodes": NODES | nodes, "edges": EDGES})


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ({}, "719244885a47b242"),
        (LABELLED, "ae2ed56fb4f56f01"),
        (LABELLED | {"split": {"column": "part"}, "graph": "g"}, "4b0d61df84211447"),
        ({"target": "y", "split": {"train": 0.6, "val": 0.2, "test": 0.2, "stratify": False}}, "a81e8d969023f576"),
    ],
)
def test_what_is_hashed_of_a_party_file_of_old_is_as_it_was(nodes, wanted):
    assert sha(parsed(**nodes).hashed()) == wanted


def test_what_holders_compare_of_columns_is_as_it_was():
    settings = parsed(**LABELLED)
    names = ("age", "income", "segment")
    columns = [FeatureColumn(name, feature) for name, feature in zip(names, settings.nodes.features, strict=True)]
    told = b"".join(column_hashes(columns, predicted(settings.nodes), None))
    assert sha(told.hex()) == "f930fc07e0d7c677"
    encoding = FeatureEncoding(tuple(columns), (1.5, 0.0, 0.0), "none")
    assert sha(encoding.to_json()) == "8d7b2b62ddbce2d2"
