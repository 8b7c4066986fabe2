"""Of declared tables a node's features are the same bits whatever other rows hold; of fitted ones they are not."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import Tensor

from tests.tables.writing import build, party, write
from veilgraph.graph.build import BuiltGraph
from veilgraph.graph.features import is_sparse
from veilgraph.tables.column_settings import Features, ScaleSettings, beyond_own_row, declared_values
from veilgraph.tables.columns import column_hashes
from veilgraph.tables.encode import FeatureEncoding, Scaling, within_range
from veilgraph.tables.nodes import FeatureColumn

ROWS, CATEGORIES = 12, [f"c{place}" for place in range(60)]
WIDE = {"columns": "kind", "categories": CATEGORIES, "missing": "category", "other": "zero"}
DECLARED: dict[str, Sequence[Mapping[str, Any]]] = {
    "as they are": ({"columns": ["x", "y"], "missing": 7}, {"columns": "z", "missing": "zero"}),
    "ranges": ({"columns": "x", "missing": 2, "scale": {"low": -3, "high": 5}}, {"columns": ["y", "z"], "missing": 1}),
    "zero is inside": ({"columns": ["x", "y", "z"], "missing": "zero", "scale": {"low": -50, "high": 1e3}},),
    "wide categories": (WIDE, {"columns": "x", "missing": 0, "scale": {"low": 0, "high": 1}}),
    "narrow categories": ({**WIDE, "categories": ["c0", "c1"], "missing": "zero"}, {"columns": "z", "missing": 0}),
}
FITTED: dict[str, tuple[Sequence[Mapping[str, Any]], Scaling]] = {
    "a mean": (({"columns": ["x", "y", "z"], "missing": "mean"},), "none"),
    "a mean, then a range": (({"columns": ["x", "y"], "missing": "mean", "scale": {"low": 0, "high": 9e9}},), "none"),
    "standard": (({"columns": ["x", "y", "z"], "missing": 0},), "standard"),
    "standard over categories": ((WIDE, {"columns": "x", "missing": 0}), "standard"),
}

numbers = st.none() | st.sampled_from([0.0, -0.0, 5.0, -3.0]) | st.floats(-(2.0**120), 2.0**120, width=32)
kinds = st.none() | st.sampled_from([*CATEGORIES[:5], "another"])
row = st.fixed_dictionaries({"x": numbers, "y": numbers, "z": numbers, "kind": kinds})
others = st.lists(row, min_size=ROWS - 1, max_size=ROWS - 1)


def built(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    features: Sequence[Mapping[str, Any]],
    scaling: Scaling = "none",
    encoding: FeatureEncoding | None = None,
    *,
    per_node: bool = True,
) -> BuiltGraph:
    columns: dict[str, list[Any]] = {name: [each[name] for each in rows] for name in ("x", "y", "z", "kind")}
    write(folder / "nodes.csv", {"id": [f"n{place}" for place in range(len(rows))], **columns})
    return cast(BuiltGraph, build(party(features), folder, None, encoding, scaling, per_node=per_node))


def bits(features: Tensor, node: int) -> list[int]:
    """Of one node's features in the layout they have."""
    if not is_sparse(features):
        return [int(value) for value in features[node].view(torch.int32)]
    here = slice(*features.crow_indices()[node : node + 2].tolist())
    values = features.values()[here].view(torch.int32)
    return [-1, *features.col_indices()[here].tolist(), *values.tolist()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.mark.cases(3)
@pytest.mark.parametrize("scaling", ["none", "row", "length"])
@pytest.mark.parametrize("features", DECLARED.values(), ids=DECLARED)
def test_a_nodes_features_are_the_same_bits_whatever_the_others_are(
    folder: Path, features: Sequence[Mapping[str, Any]], scaling: Scaling
) -> None:
    assert beyond_own_row(party(features).nodes.features, scaling) == []

    @settings(max_examples=8)
    @given(own=row, before=others, after=others, node=st.integers(0, ROWS - 1))
    def holds(own: dict[str, Any], before: list[Any], after: list[Any], node: int) -> None:
        one, other = ([*rows[:node], own, *rows[node:]] for rows in (before, after))
        first, second = built(folder, one, features, scaling), built(folder, other, features, scaling)
        assert first.encoding == second.encoding, "nothing is fitted"
        assert bits(first.graph.features, node) == bits(second.graph.features, node)

    holds()


@pytest.mark.parametrize("features", DECLARED.values(), ids=DECLARED)
def test_nor_where_all_others_are_alike(folder: Path, features: Sequence[Mapping[str, Any]]) -> None:
    """Whatever asks all rows answers otherwise there: is a value missing, is a column constant, are all zero?"""
    known: Mapping[str, Any] = {"x": 3.0, "y": 0.25, "z": -4.0, "kind": "c1"}
    missing: Mapping[str, Any] = dict.fromkeys(known)
    zero: Mapping[str, Any] = {"x": 0.0, "y": 0.0, "z": 0.0, "kind": "another"}
    large: Mapping[str, Any] = {"x": 1e30, "y": 1e30, "z": -1e30, "kind": "c0"}
    for own in (known, missing):
        found = [built(folder, [own, *[rest] * 5], features, "row") for rest in (own, known, missing, zero, large)]
        assert len({tuple(bits(each.graph.features, 0)) for each in found}) == 1


@pytest.mark.parametrize(("features", "scaling"), FITTED.values(), ids=FITTED)
def test_of_fitted_tables_any_node_tells_what_another_has(
    folder: Path, features: Sequence[Mapping[str, Any]], scaling: Scaling
) -> None:
    """The attack: the first node's features, which it did not change, say whether the last one has a large value."""
    assert beyond_own_row(party(features).nodes.features, scaling)
    common: list[Mapping[str, Any]] = [
        {"x": None, "y": None, "z": None, "kind": "c0"},
        {"x": 1.0, "y": 1.0, "z": 1.0, "kind": "c1"},
    ] * 5
    seen = set()
    for secret in (1.0, 1e6):
        rows = [*common, {"x": secret, "y": secret, "z": secret, "kind": "c2"}]
        seen.add(tuple(bits(built(folder, rows, features, scaling).graph.features, 0)))
    assert len(seen) == 2


def test_the_layout_too_is_of_what_is_declared_and_not_of_how_many_values_are_zero(folder: Path) -> None:
    """Sums of a row round by the layout: whether other rows are full would show in the last bits of this one."""
    own: Mapping[str, Any] = {"x": 0.1, "y": 0.2, "z": 0.7, "kind": "c3"}
    empty, full = ({"x": value, "y": value, "z": value, "kind": "c1" if value else "-"} for value in (0.0, 3.0))
    narrow = ({"columns": ["x", "y", "z"]}, {**WIDE, "categories": CATEGORIES[:30]})
    for features, sparse in ((narrow, False), (({"columns": "x"}, WIDE), True)):
        for rest in (empty, full):
            rows: list[Mapping[str, Any]] = [own, *[rest] * 40]
            assert is_sparse(built(folder, rows, features, "row").graph.features) == sparse
    loose = {
        is_sparse(built(folder, [own, *[rest] * 40], narrow, per_node=False).graph.features) for rest in (empty, full)
    }
    assert loose == {False, True}


def test_values_are_cut_to_the_range_and_it_becomes_0_to_1(folder: Path) -> None:
    features = ({"columns": "x", "missing": 10, "scale": {"low": -10, "high": 30}}, {"columns": "y"})
    values = [-1e30, -10, 0, None, 10, 29, 30, 31, 1e30]
    rows = [{"x": value, "y": 5, "z": 0, "kind": "c0"} for value in values]
    found = built(folder, rows, features).graph.features
    assert found[:, 0].tolist() == pytest.approx([0, 0, 0.25, 0.5, 0.5, 0.975, 1, 1, 1], abs=1e-7)
    assert found[:, 1].tolist() == [5] * len(values)


@settings(max_examples=40)
@given(
    ends=st.lists(st.floats(-3e38, 3e38), min_size=2, max_size=2, unique=True),
    values=st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=2, max_size=8),
)
def test_whatever_the_range_features_stay_within_0_and_1_in_order(ends: list[float], values: list[float]) -> None:
    scale = ScaleSettings(low=min(ends), high=max(ends))
    found = within_range(np.array(sorted(values), np.float32), scale)
    assert found.dtype == np.float32
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    assert (np.diff(found) >= 0).all()


def test_a_changed_table_is_encoded_as_before(folder: Path) -> None:
    features = DECLARED["ranges"]
    rows = [{"x": value, "y": value, "z": None, "kind": None} for value in (0.0, 1.0, 4.0)]
    first = built(folder, rows, features)
    kept = FeatureEncoding.from_json(first.encoding.to_json())
    assert kept == first.encoding
    grown = built(folder, [*rows, {"x": 1e9, "y": -1e9, "z": 4.0, "kind": "c9"}], features, encoding=kept)
    assert torch.equal(grown.graph.features[:3], first.graph.features)
    assert grown.graph.features[3].tolist() == [1.0, -1e9, 4.0]


def test_holders_of_the_same_columns_have_the_same_ranges() -> None:
    told = []
    for scale in (None, {"low": 0, "high": 1}, {"low": 0, "high": 2}):
        feature = party([{"columns": "x", "scale": scale}]).nodes.features[0]
        told.append(column_hashes([FeatureColumn("x", feature)], None, None)[-1])
    assert len(set(told)) == 3


@pytest.mark.parametrize(
    ("features", "values"),
    [
        ([{"columns": "x", "scale": {"low": 5, "high": 9}}], (0.0, 1.0)),
        ([{"columns": "x", "scale": {"low": 5, "high": 9}, "missing": 7}], (0.0, 1.0)),
        ([{"columns": "x", "categories": ["a", "b"]}, {"columns": "y", "boolean": True}], (0.0, 1.0)),
        ([{"columns": "y", "boolean": True, "missing": -0.5}], (-0.5, 1.0)),
        ([{"columns": "x", "scale": {"low": 5, "high": 9}}, {"columns": "y"}], None),
        ([{"columns": "d", "date": {"days_since": "2020-01-01"}}], None),
        ([{"columns": "d", "date": {"days_since": "2020-01-01"}, "scale": {"low": 0, "high": 99}}], (0.0, 1.0)),
    ],
)
def test_what_values_there_can_be_is_known_without_a_row(
    features: list[dict[str, Any]], values: tuple[float, float] | None
) -> None:
    read: tuple[Any, ...] = TypeAdapter(tuple[Features, ...]).validate_python(features)
    assert declared_values(read) == values
