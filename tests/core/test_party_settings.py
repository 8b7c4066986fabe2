import copy
from typing import Any

import pytest

from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.protocol.party_settings import parse_party_settings, read_party_settings
from veilgraph.tables.settings import SplitFractions

EXAMPLE: dict[str, Any] = {
    "party": "bank",
    "nodes": {
        "file": "customers.csv",
        "id": "customer_id",
        "features": [
            {"columns": "age", "missing": "mean"},
            {"columns": ["income", "balance"], "missing": 0},
            {"columns": "segment", "categories": ["retail", "private"], "missing": "category"},
        ],
        "label": {"column": "fraud", "classes": ["no", "yes"]},
        "split": {"train": 0.6, "val": 0.2, "test": 0.2},
    },
    "edges": [
        {
            "file": "transfers.parquet",
            "source": "payer",
            "target": "payee",
            "relation": {"column": "kind", "weights": {"transfer": 1.0}},
        }
    ],
}


def changed(key, value):
    """The example with one value replaced; None removes the key."""
    example = copy.deepcopy(EXAMPLE)
    *path, last = key.split(".")
    place = example
    for part in path:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return example


def test_defaults():
    settings: Any = parse_party_settings(changed("nodes.label.classes", [0, True]))
    assert [each.missing for each in settings.nodes.features] == ["mean", 0.0, "category"]
    assert (settings.seed, settings.edges[0].directed, settings.edges[0].unknown) == ("private", False, "error")
    assert settings.nodes.reserved == ("customer_id", "fraud")
    assert settings.nodes.label.classes == ("0", "true"), "numbers and truth values are text"


def test_a_file_keeps_words_and_numbers_as_they_are_written(tmp_path):
    """YAML would read ``no`` as false, ``on`` as true and 007 as 7."""
    path = tmp_path / "party.yaml"
    path.write_text(
        """
        party: shop
        nodes:
          file: n.csv
          id: id
          features: [{columns: size, categories: [007, 7, on, 2024-01-01], missing: zero}]
          label: {column: y, classes: [no, yes]}
          split: {train: 0.5, val: 0.25, test: 0.25, seed: 3}
        edges:
          - {file: e.csv, source: a, target: b, weight: null, directed: yes,
             relation: {column: k, weights: {off: 0.5, 1: 2}}}
        """,
        encoding="utf-8",
    )
    settings: Any = read_party_settings(path)
    assert settings.nodes.features[0].categories == ("007", "7", "on", "2024-01-01")
    assert settings.nodes.label.classes == ("no", "yes")
    assert settings.nodes.split == SplitFractions(train=0.5, val=0.25, test=0.25, seed=3)
    edges = settings.edges[0]
    assert (edges.weight, edges.directed, edges.relation.weights) == (None, True, {"off": 0.5, "1": 2.0})


SPLIT_TWICE = {"column": "s", "train": "x", "test": "x"}
NUMERIC, CATEGORICAL = "nodes.features.0", "nodes.features.2"
REFUSED: list[tuple[str, Any, str]] = [
    ("party", "server", "party"),
    ("party", "a bank", "party"),
    ("party", None, "party"),
    ("sed", 1, "sed"),
    ("seed", "random", "seed"),
    ("nodes.file", "customers.xls", "nodes.file"),
    ("nodes.file", 5, "nodes.file"),
    ("nodes.id", "", "nodes.id"),
    ("nodes.id", "age", "age"),
    ("nodes.features.0.columns", [], f"{NUMERIC}.columns"),
    ("nodes.features.0.missing", "category", f"{NUMERIC}.missing"),
    ("nodes.features.0.missing", float("nan"), f"{NUMERIC}.missing"),
    ("nodes.features.0.missing", True, "missing"),
    ("nodes.features.0.other", "zero", f"{NUMERIC}.other"),
    ("nodes.features.2.missing", "mean", f"{CATEGORICAL}.missing"),
    ("nodes.features.2.other", "drop", f"{CATEGORICAL}.other"),
    ("nodes.features.2.categories", ["a", "a "], f"{CATEGORICAL}.categories"),
    ("nodes.label.classes", ["one"], "nodes.label.classes"),
    ("nodes.label.classes", ["x", "x"], "nodes.label.classes"),
    ("nodes.split", None, "nodes"),
    ("nodes.label", None, "nodes"),
    ("nodes.split.train", 0.9, "nodes.split"),
    ("nodes.split.train", -0.1, "nodes.split.train"),
    ("nodes.split", SPLIT_TWICE, "nodes.split"),
    ("nodes.split", "random", "nodes.split"),
    ("edges.0.relation.weights", {"transfer": -1}, "edges.0.relation.weights.transfer"),
    ("edges.0.relation.weights", {}, "edges.0.relation.weights"),
    ("edges.0.directed", "maybe", "edges.0.directed"),
    ("edges.0.unknown", "zero", "edges.0.unknown"),
    ("edges.0.file", "edges", "edges.0.file"),
    ("limits", {"max_nodes": 3}, "limits.max_nodes"),
]


@pytest.mark.parametrize(("key", "value", "named"), REFUSED)
def test_what_is_wrong_is_named_by_its_key_in_one_line(key, value, named):
    with refused(ConfigError, key=named) as caught:
        parse_party_settings(changed(key, value), "party.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["party: [", "- a", "", b"\xff", None])
def test_unreadable_files(tmp_path, content):
    path = tmp_path / "party.yaml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with refused(ConfigError, key="party" if content == "" else path):
        read_party_settings(path)
