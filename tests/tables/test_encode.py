"""Features from node tables, and sums of them that are exact."""

import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings

from tests.errors import refused
from tests.tables.writing import party, write
from veilgraph.core.errors import DataError
from veilgraph.graph.features import is_sparse, scale_features
from veilgraph.graph.party import PartyGraph
from veilgraph.tables.column_settings import CategoricalFeatures, NumericFeatures
from veilgraph.tables.encode import FRACTION_BITS, FeatureEncoding, encode, exact_sums, fit_encoding
from veilgraph.tables.nodes import FeatureColumn, NodeTable, read_nodes

FEATURES = (
    {"columns": "x", "missing": "mean"},
    {"columns": ["y", "z"], "missing": 7},
    {"columns": "kind", "categories": ["p", "q"], "missing": "category", "other": "zero"},
)
ZEROS = ({"columns": "x", "missing": "zero"}, {"columns": "kind", "categories": ["p", "q"], "missing": "zero"})


def table_of(folder: Path, rows: dict[str, list[Any]], features: Any) -> NodeTable:
    write(folder / "nodes.csv", {"id": list(range(len(next(iter(rows.values()))))), **rows})
    return read_nodes(party(features), folder)


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(st.integers(0, 2), floats), max_size=30))
def test_sums_of_float32_are_exact(pairs: list[tuple[int, float]]) -> None:
    places = np.array([place for place, _ in pairs], np.int64)
    values = np.array([value for _, value in pairs], np.float32)
    wanted = [sum((Fraction(value) for place, value in pairs if place == at), Fraction(0)) for at in range(3)]
    assert [Fraction(each, 2**FRACTION_BITS) for each in exact_sums(places, values, 3)] == wanted


def together(tables: list[NodeTable], scaling: Any) -> list[FeatureEncoding]:
    """Every table fitted in a thread of its own, added up in the clear."""
    barrier, given_by, found = threading.Barrier(len(tables), timeout=20), {}, {}

    def work(place: int) -> None:
        def total(values: Any) -> list[int]:
            given_by[place] = list(values)
            barrier.wait()
            added = [sum(each) for each in zip(*given_by.values(), strict=True)]
            barrier.wait()
            return added

        found[place] = fit_encoding(tables[place], scaling, total)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(tables))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[place] for place in range(len(tables))]


@pytest.mark.parametrize("first", [1, 20, 59])
def test_what_holders_fit_together_is_what_one_table_of_all_rows_gives(first: int) -> None:
    """To the bit, for values of all sizes."""
    generator = np.random.default_rng(first)
    values = (generator.normal(size=(60, 3)) * [1e12, 1e-6, 1.0] + [0, 0, 1e7]).astype(np.float32)
    values[generator.random((60, 3)) < 0.2] = np.nan
    values[0] = values[-1] = 0.25
    base = whole_table(values)
    parts = [base.take(np.arange(first)), base.take(np.arange(first, 60))]
    alone = fit_encoding(base, "standard")
    assert together(parts, "standard") == [alone, alone]
    filled = np.where(np.isnan(values), np.array(alone.fills[:3], np.float32), values).astype(np.float64)
    assert alone.means[:3] == pytest.approx(filled.mean(axis=0), rel=1e-9)
    assert alone.deviations[:3] == pytest.approx(filled.std(axis=0), rel=1e-9)


def whole_table(values: np.ndarray) -> NodeTable:
    number = NumericFeatures.model_validate({"columns": "x", "missing": "mean"})
    kind = CategoricalFeatures.model_validate({"columns": "kind", "categories": ["p", "q"], "missing": "zero"})
    columns = (*(FeatureColumn(f"x{place}", number) for place in range(values.shape[1])), FeatureColumn("kind", kind))
    codes = (np.arange(len(values)) % 3 - 1).astype(np.int32)
    columns_of = tuple(np.ascontiguousarray(values[:, place]) for place in range(values.shape[1]))
    ids = pa.array([str(row) for row in range(len(values))])
    return NodeTable(Path("nodes.csv"), ids, ids, columns, (*columns_of, codes), None, None)


@pytest.mark.parametrize("value", [0.1, 1e30, 1e-38, -7.0])
def test_a_column_is_constant_only_if_it_is(value: float) -> None:
    values = np.full((40, 2), value, np.float32)
    values[3, 1] = np.nextafter(np.float32(value), np.float32(np.inf))
    deviations = fit_encoding(whole_table(values), "standard").deviations
    assert deviations[0] == 0
    assert deviations[1] > 0


SCALINGS = ("none", "row", "length", "standard")


def made(columns, nodes, seed=0, nonzero=1.0):
    """A table of so many numeric columns and one of categories, without files."""
    generator = np.random.default_rng(seed)
    numeric, kinds = NumericFeatures(columns=("n*",)), CategoricalFeatures(columns=("k",), categories=("a", "b"))
    values = [
        (generator.normal(3, 2, nodes) * (generator.random(nodes) < nonzero)).astype(np.float32) for _ in range(columns)
    ]
    codes = generator.integers(0, 2, nodes).astype(np.int32)
    described = (*(FeatureColumn(f"n{column}", numeric) for column in range(columns)), FeatureColumn("k", kinds))
    ids = pa.nulls(nodes, pa.string())
    return NodeTable(Path("made.csv"), ids, ids, described, (*values, codes), None, None)


def test_every_rule_for_missing_values(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {"x": [1, None, 4], "y": [None, 2, 0], "z": [1, 1, None], "kind": ["q", None, "other"]}
    table = table_of(tmp_path, rows, FEATURES)
    encoding = fit_encoding(table, "none")
    assert encoding.names == ("x", "y", "z", "kind=p", "kind=q", "kind missing")
    assert encoding.fills == (2.5, 7.0, 7.0, 0.0)
    assert encode(table, encoding).tolist() == [[1, 7, 1, 0, 1, 0], [2.5, 2, 1, 0, 0, 1], [4, 0, 7, 0, 0, 0]]
    table = table_of(tmp_path, {"x": [None, 3], "kind": ["p", None]}, ZEROS)
    assert encode(table, fit_encoding(table, "none")).tolist() == [[0, 1, 0], [3, 0, 0]]
    nothing = table_of(tmp_path, {"x": [None, None]}, FEATURES[:1])
    with refused(DataError, key="x"):
        fit_encoding(nothing, "none")


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("nonzero", [1.0, 0.3, 0.02])
def test_scaling_agrees_with_that_of_graphs(scaling, nonzero, monkeypatch):
    """In one piece or in several, sparse or dense."""
    table = made(columns=30, nodes=200, nonzero=nonzero)
    raw = encode(table, fit_encoding(table, "none"))
    edges = torch.empty(2, 0, dtype=torch.int64)
    wanted = scale_features(PartyGraph("bank", raw, edges), scaling).features
    features = encode(table, fit_encoding(table, scaling))
    assert is_sparse(features) == (scaling != "standard" and nonzero == 0.02)
    torch.testing.assert_close(features.to_dense(), wanted.to_dense(), rtol=1e-6, atol=1e-6)
    monkeypatch.setattr("veilgraph.tables.encode.ROWS_AT_ONCE", 7)
    monkeypatch.setattr("veilgraph.tables.encode.SPARSE_BELOW", 0.0)
    dense = encode(table, fit_encoding(table, scaling))
    assert not is_sparse(dense)
    torch.testing.assert_close(features.to_dense(), dense, rtol=1e-6, atol=0)


def test_a_grown_table_keeps_the_means_and_scales_of_the_first(tmp_path):
    features = ({"columns": "x", "missing": "mean"}, "constant")
    first = table_of(tmp_path, {"x": [1, None, 4], "constant": [5, 5, 5]}, features)
    encoding = fit_encoding(first, "standard")
    assert encoding.means == (2.5, 5.0)
    assert encoding.deviations == pytest.approx((np.sqrt(1.5), 0.0))
    grown = table_of(tmp_path, {"x": [1, None, 4, None, 100], "constant": [5, 5, 5, 5, 9]}, features)
    before, after = encode(first, encoding), encode(grown, encoding)
    torch.testing.assert_close(after[:3], before, rtol=0, atol=0)
    assert after[3].tolist() == [0, 0]
    assert after[4].tolist() == pytest.approx([97.5 / np.sqrt(1.5), 0])


numbers = st.floats(-1e30, 1e30)


@settings(max_examples=30)
@given(
    names=st.lists(st.text(min_size=1), min_size=1, max_size=5, unique=True),
    scaling=st.sampled_from(SCALINGS),
    data=st.data(),
)
def test_json_brings_everything_back(names, scaling, data):
    rules = (
        NumericFeatures(columns=("*",), missing=data.draw(numbers)),
        CategoricalFeatures(columns=("c",), categories=tuple(names), missing="category"),
    )
    columns = tuple(FeatureColumn(name, rules[index % 2]) for index, name in enumerate(names))
    fills = tuple(data.draw(numbers) for _ in names)
    encoding = FeatureEncoding(columns, fills, scaling)
    if scaling == "standard":
        many = st.lists(numbers, min_size=encoding.num_features, max_size=encoding.num_features)
        encoding = FeatureEncoding(columns, fills, scaling, tuple(data.draw(many)), tuple(data.draw(many)))
    assert FeatureEncoding.from_json(encoding.to_json()) == encoding


@pytest.mark.parametrize(
    ("old", "new"),
    [("{", ""), ('"fills":[0.0', '"fills":[0.0,0.0'), ('["n0",0]', '["n0",9]'), ('"means":[', '"means":[1.0,')],
)
def test_damaged_records_are_refused(old, new):
    text = fit_encoding(made(2, 5), "standard").to_json()
    assert old in text
    with refused(DataError, code="encoding"):
        FeatureEncoding.from_json(text.replace(old, new, 1))
