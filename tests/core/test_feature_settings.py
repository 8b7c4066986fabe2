"""Declared ranges of columns, every misuse of one, and the rule that says what looks at other nodes' rows."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from veilgraph.core.errors import ConfigError
from veilgraph.protocol.party_settings import parse_party_settings, read_party_settings
from veilgraph.tables.column_settings import Features, NumericFeatures, ScaleSettings, beyond_own_row, scaled_twice

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
    scaled, plain = read_party_settings(path).nodes.features
    assert isinstance(scaled, NumericFeatures)
    assert isinstance(plain, NumericFeatures)
    assert scaled.scale == ScaleSettings(low=-10.0, high=1000.0)
    assert plain.scale is None
    assert parsed(scale=RANGE, missing="mean").missing == "mean"
    assert parsed(scale={"low": -1, "high": 0}, missing="zero").missing == "zero"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"scale": {"low": 5, "high": 5}}, r"\.\(numeric\)\.scale: low=5\.0 must be below high=5\.0: .*mend"),
        ({"scale": {"low": 6, "high": 5}}, r"low=6\.0 must be below high=5\.0"),
        ({"scale": {"low": float("nan"), "high": 5}}, r"scale\.low=nan: must be a finite number .*; give the end"),
        ({"scale": {"low": 0, "high": "inf"}}, r"scale\.high='inf': must be a finite number of float32; give the end"),
        ({"scale": {"low": -1e39, "high": 1}}, r"scale\.low=-1e\+39: must be a finite number of float32"),
        ({"scale": {"low": 0}}, r"scale\.high: Field required"),
        ({"scale": {**RANGE, "mid": 5}}, r"scale\.mid is not a setting .*remove it"),
        ({"scale": "standard"}, r"scale='standard': must be a declared range, .*data\.feature_scaling: give a range"),
        ({"scale": [0, 1]}, r"scale=\[0, 1\]: must be a declared range, as in"),
        ({"scale": RANGE, "categories": ["a"]}, r"\(categorical\): scale=\{.*\} is for numbers, .*; leave scale out"),
        ({"scale": RANGE, "missing": 101}, r"missing=101\.0 lies outside scale, low=0\.0 to high=100\.0.*within it"),
        ({"scale": {"low": 18, "high": 90}, "missing": "zero"}, r"missing='zero' lies outside scale, low=18\.0"),
        ({"scale": {"low": -9, "high": -1}, "missing": 0}, r"missing=0\.0 lies outside scale"),
    ],
)
def test_every_misuse_of_a_range_names_key_value_rule_and_way_out(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"party\.yaml: nodes\.features\.0.*{message}"):
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
