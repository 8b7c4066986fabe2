import copy
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.protocol.party_settings import parse_party_settings, read_party_settings
from veilgraph.tables.column_settings import CategoricalFeatures, NumericFeatures
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


def test_defaults_and_shapes():
    settings = parse_party_settings(EXAMPLE)
    age, money, segment = settings.nodes.features
    assert isinstance(age, NumericFeatures)
    assert (age.columns, age.missing) == (("age",), "mean")
    assert isinstance(money, NumericFeatures)
    assert (money.columns, money.missing) == (("income", "balance"), 0.0)
    assert isinstance(segment, CategoricalFeatures)
    assert (segment.missing, segment.other) == ("category", "error")
    assert settings.seed == "private"
    assert isinstance(settings.nodes.split, SplitFractions)
    assert not settings.edges[0].directed
    assert settings.edges[0].unknown == "error"
    assert settings.nodes.reserved == ("customer_id", "fraud")
    with refused(ValidationError, key="party", value="shop"):
        settings.party = "shop"  # type: ignore[misc]


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
    settings = read_party_settings(path)
    feature = settings.nodes.features[0]
    assert isinstance(feature, CategoricalFeatures)
    assert feature.categories == ("007", "7", "on", "2024-01-01")
    assert settings.nodes.label is not None
    assert settings.nodes.label.classes == ("no", "yes")
    assert settings.nodes.split == SplitFractions(train=0.5, val=0.25, test=0.25, seed=3)
    edges = settings.edges[0]
    assert edges.weight is None
    assert edges.directed is True
    assert edges.relation is not None
    assert edges.relation.weights == {"off": 0.5, "1": 2.0}


def test_numbers_and_booleans_in_settings_are_text():
    settings = parse_party_settings(changed("nodes.label.classes", [0, True]))
    assert settings.nodes.label is not None
    assert settings.nodes.label.classes == ("0", "true")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("party", "server", "party='server'.*the server's name; rename it"),
        ("party", "a bank", "party='a bank'.*pattern"),
        ("party", None, "party: Field required"),
        ("sed", 1, "sed is not a setting .value 1.; did you mean seed. Else remove it"),
        ("seed", "random", "seed='random'.*'private', 'fresh' or 'job'"),
        ("nodes.file", "customers.xls", r"nodes\.file='customers.xls'.*\.csv, \.csv\.gz, \.parquet; convert it"),
        ("nodes.file", 5, r"nodes\.file=5"),
        ("nodes.id", "", r"nodes\.id=''.*at least 1 character"),
        ("nodes.id", "age", "nodes: column 'age' is a feature and also the id.*take it out of features"),
        ("nodes.features.0.columns", [], "columns=.*at least 1"),
        ("nodes.features.0.missing", "category", r"features\.0\.\(numeric\)\.missing='category': must be error, zero"),
        ("nodes.features.0.missing", float("nan"), "missing=nan: must be error, zero, mean or a finite number"),
        ("nodes.features.0.missing", True, "missing=True: must be"),
        ("nodes.features.0.other", "zero", r"\(numeric\)\.other is not a setting"),
        ("nodes.features.2.missing", "mean", r"\(categorical\)\.missing='mean'.*'error', 'zero' or 'category'"),
        ("nodes.features.2.other", "drop", r"other='drop'.*'error' or 'zero'"),
        ("nodes.features.2.categories", ["a", "a"], "categories=.*'a' is given twice; remove one"),
        ("nodes.features.2.categories", ["a", "a "], "categories=.*'a ' is given twice; remove one"),
        ("nodes.label.classes", ["one"], "classes=.*at least 2"),
        ("nodes.label.classes", ["x", "x"], "classes=.*'x' is given twice"),
        ("nodes.split", None, "nodes: label needs split.*give split"),
        ("nodes.label", None, "nodes: split needs label.*remove split"),
        ("nodes.split.train", 0.9, r"train \+ val \+ test = 1\.3 must be at most 1; lower one"),
        ("nodes.split.train", -0.1, r"nodes\.split\.\(fractions\)\.train=-0\.1"),
        ("nodes.split", {"column": "s", "train": "x", "test": "x"}, "'x' is given twice"),
        ("nodes.split", "random", r"nodes\.split\.\(fractions\)='random'"),
        ("edges.0.relation.weights", {"transfer": -1}, r"weights\.transfer=-1.*greater than or equal to 0"),
        ("edges.0.relation.weights", {}, "weights.*at least 1"),
        ("edges.0.directed", "maybe", r"edges\.0\.directed='maybe'"),
        ("edges.0.unknown", "zero", r"edges\.0\.unknown='zero'.*'error' or 'drop'"),
        ("edges.0.file", "edges", r"edges\.0\.file='edges'"),
        ("limits", {"max_nodes": 3}, r"limits\.max_nodes is not a setting"),
    ],
)
def test_refusals(key, value, message):
    with pytest.raises(ConfigError, match=f"^party.yaml: .*{message}") as caught:
        parse_party_settings(changed(key, value), "party.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("party: [", {"key": Path("party.yaml")}),
        ("party: " + "[" * 10_000, {"key": Path("party.yaml")}),
        ("- a", {"key": Path("party.yaml")}),
        ("", {"key": "party"}),
        (b"\xff", {"key": Path("party.yaml")}),
        (None, {"key": Path("party.yaml")}),
    ],
)
def test_unreadable_files(tmp_path, content, message):
    path = tmp_path / "party.yaml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with refused(ConfigError, **message):
        read_party_settings(path)
