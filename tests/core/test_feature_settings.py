"""Declared ranges of columns, every misuse of one, and the rule that says what looks at other nodes' rows."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.protocol.party_settings import parse_party_settings, read_party_settings
from veilgraph.tables.column_settings import Features, ScaleSettings, beyond_own_row, scaled_twice

FEATURES: TypeAdapter[Any] = TypeAdapter(tuple[Features, ...])
RANGE = {"low": 0, "high": 100}


def features(*entries: dict[str, Any]) -> Any:
    return FEATURES.validate_python(entries)


def parsed(**entry: Any) -> Any:
    content = {"party": "bank", "nodes": {"file": "n.csv", "id": "id", "features": [{"columns": "age", **entry}]}}
    return parse_party_settings(content, "party.yaml").nodes.features[0]


def test_a_range_is_read_as_it_is_written(tmp_path) -> None:
    path = tmp_path / "party.yaml"
    path.write_text(
        "party: bank\nnodes:\n  file: n.csv\n  id: id\n"
        "  features: [{columns: [a, 'b_*'], missing: 5, scale: {low: -1e1, high: 1_000}}, {columns: c, scale: null}]\n",
        encoding="utf-8",
    )
    features: Any = read_party_settings(path).nodes.features
    scaled, plain = features
    assert (scaled.scale, plain.scale) == (ScaleSettings(low=-10.0, high=1000.0), None)
    assert parsed(scale=RANGE, missing="mean").missing == "mean"
    assert parsed(scale={"low": -1, "high": 0}, missing="zero").missing == "zero"


SCALE = "nodes.features.0.scale"


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"scale": {"low": 5, "high": 5}}, "low"),
        ({"scale": {"low": 6, "high": 5}}, "low"),
        ({"scale": {"low": float("nan"), "high": 5}}, f"{SCALE}.low"),
        ({"scale": {"low": 0, "high": "inf"}}, f"{SCALE}.high"),
        ({"scale": {"low": -1e39, "high": 1}}, f"{SCALE}.low"),
        ({"scale": {"low": 0}}, f"{SCALE}.high"),
        ({"scale": {**RANGE, "mid": 5}}, f"{SCALE}.mid"),
        ({"scale": "standard"}, SCALE),
        ({"scale": [0, 1]}, SCALE),
        ({"scale": RANGE, "categories": ["a"]}, "scale"),
        ({"scale": RANGE, "missing": 101}, "missing"),
        ({"scale": {"low": 18, "high": 90}, "missing": "zero"}, "missing"),
        ({"scale": {"low": -9, "high": -1}, "missing": 0}, "missing"),
    ],
)
def test_every_misuse_of_a_range_is_refused_by_its_key(entry: dict[str, Any], key: str) -> None:
    with refused(ConfigError, key=key):
        parsed(**entry)


DECLARED = (
    {"columns": "a"},
    {"columns": "b", "missing": 3, "scale": RANGE},
    {"columns": "c", "missing": "zero"},
    {"columns": "d", "categories": ["x", "y"], "missing": "category", "other": "zero"},
    {"columns": "e", "categories": ["x"], "missing": "zero"},
    {"columns": "f", "categories": ["x"]},
)


@pytest.mark.parametrize("scaling", ["none", "row"])
def test_what_is_declared_is_of_the_own_row(scaling: str) -> None:
    assert beyond_own_row(features(*DECLARED), scaling) == []


def test_the_rule_names_every_column_that_is_fitted_and_the_way_out() -> None:
    entries = features(*DECLARED, {"columns": ["g", "h*"], "missing": "mean"}, {"columns": "i", "missing": "mean"})
    first, second, scaling = beyond_own_row(entries, "standard")
    assert first == (
        "nodes.features.6 (column 'g' and 1 more): missing=mean is computed from all rows; set missing to a number, "
        "zero or error"
    )
    assert second.startswith("nodes.features.7 (column 'i'): missing=mean")
    assert scaling.startswith("data.feature_scaling=standard is fitted to all rows; set it to none, row or length")
    assert "'" not in "".join(beyond_own_row(entries, named=False)), "columns' names are their owner's"
    clipped = features({"columns": "a", "missing": "mean", "scale": RANGE})
    assert len(beyond_own_row(clipped)) == 1, "a mean is fitted, whatever is cut afterwards"


def test_a_range_and_a_fitted_scaling_are_not_both_taken() -> None:
    says = scaled_twice(features(*DECLARED), "standard")
    assert says.startswith("nodes.features.1 (column 'b'): scale declares a range, and data.feature_scaling=standard")
    assert "'b'" not in scaled_twice(features(*DECLARED), "standard", named=False)
    assert scaled_twice(features(*DECLARED), "row") == scaled_twice(features(DECLARED[0]), "standard") == ""
