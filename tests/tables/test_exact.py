"""Exact sums against Python's fractions, and statistics that do not depend on how rows are divided."""

from __future__ import annotations

import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from tests.errors import refused
from tests.tables.reading import table_of
from veilgraph.core.errors import DataError
from veilgraph.tables.encode import FeatureEncoding, fit_encoding
from veilgraph.tables.exact import FRACTION_BITS, exact, exact_sums, mean_of
from veilgraph.tables.feature_settings import CategoricalFeatures, NumericFeatures
from veilgraph.tables.nodes import FeatureColumn, NodeTable

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(st.integers(0, 2), floats), max_size=30))
def test_sums_of_float32_are_exact(pairs: list[tuple[int, float]]) -> None:
    places = np.array([place for place, _ in pairs], np.int64)
    values = np.array([value for _, value in pairs], np.float32)
    wanted = [sum((Fraction(value) for place, value in pairs if place == at), Fraction(0)) for at in range(3)]
    assert [Fraction(each, 2**FRACTION_BITS) for each in exact_sums(places, values, 3)] == wanted


def test_sums_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=100) * 10.0 ** np.random.default_rng(1).integers(-12, 12, 100)
    places = np.arange(100) % 7
    whole = exact_sums(places, values, 7)
    monkeypatch.setattr("veilgraph.tables.exact.AT_ONCE", 9)
    assert exact_sums(places, values, 7) == whole
    assert sum(whole) == sum(exact(value) for value in values.tolist())
    assert mean_of(sum(whole), 100) == float(sum(map(Fraction, values.tolist())) / 100)


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


def test_a_mean_of_nothing_is_refused(tmp_path: Path) -> None:
    table = table_of(tmp_path, {"x": [1, None]}, ({"columns": "x", "missing": "mean"},))
    assert fit_encoding(table, "none", lambda values: [2 * value for value in values]).fills == (1.0,)
    with refused(DataError, key="x"):
        fit_encoding(table, "none", lambda values: [0, 0])
