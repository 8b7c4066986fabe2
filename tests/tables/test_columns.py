"""Columns of dates, of truth values, of numbers to predict, of graphs, and of the dates that splits are by."""

import datetime as dt
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import refused
from tests.tables.writing import build, party, write
from veilgraph.core.errors import DataError
from veilgraph.report.tables import party_tables
from veilgraph.tables.column_settings import DateSettings
from veilgraph.tables.columns import column_hashes, prediction_kind
from veilgraph.tables.describe import describe_party
from veilgraph.tables.encode import FeatureEncoding, encode, fit_encoding
from veilgraph.tables.nodes import FeatureColumn, NodeTable, read_nodes
from veilgraph.tables.source import TRUTHS, date_part

SINCE = dt.datetime(2024, 1, 1)
TRUTH = {"columns": "b", "boolean": True}
FRACTIONS = {"train": 0.5, "val": 0.25, "test": 0.25, "seed": 3}


def read(folder: Path, columns: dict[str, Any], *features: Any, name: str = "n.parquet", **nodes: Any) -> NodeTable:
    write(folder / name, {"id": list(range(len(next(iter(columns.values()))))), **columns})
    return read_nodes(party(features, nodes=name, **nodes), folder)


# Dates


ISO = [
    ("2024-01-01", 0),
    ("2023-12-31", -1),
    ("2024-01-02T12:00", 1.5),
    ("2024-01-02 06:00:00", 1.25),
    ("2024-01-02T00:00:00.000000", 1),
    ("2024-01-02T00:00:00Z", 1),
    ("2024-01-02T02:00:00+02:00", 1),
    ("2024-01-01T18:00:00-0600", 1),
]
TYPES = [
    pa.array([dt.date(2024, 1, 3), None]),
    pa.array([dt.date(2024, 1, 3), None], pa.date64()),
    pa.array([dt.datetime(2024, 1, 3), None], pa.timestamp("ns")),
    pa.array([dt.datetime(2024, 1, 3), None], pa.timestamp("s")),
    pa.array([dt.datetime(2024, 1, 3, tzinfo=dt.UTC), None], pa.timestamp("ms", "Asia/Tokyo")),
    pa.array(["2024-01-03", None]).dictionary_encode(),
    pa.array(["2024-01-03", ""], pa.large_string()),
]


@pytest.mark.parametrize(
    ("name", "values", "days"),
    [
        *((name, [text, None], days) for name in ("n.csv", "n.parquet") for text, days in ISO),
        *(("n.parquet", values, 2) for values in TYPES),
    ],
)
def test_dates_as_iso_and_parquet_have_them(tmp_path: Path, name: str, values: Any, days: float) -> None:
    feature = {"columns": "d", "date": {"days_since": "2024-01-01"}, "missing": "zero"}
    np.testing.assert_array_equal(read(tmp_path, {"d": values}, feature, name=name).values[0], [days, np.nan])


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("%d.%m.%Y", "31.01.2024"),
        ("%m/%d/%y", "1/31/24"),
        ("%Y%m%d", "20240131"),
        ("%d.%m.%Y %H:%M", "31.01.2024 00:00"),
    ],
)
def test_formats_of_dates(tmp_path: Path, written: str, text: str) -> None:
    feature = {"columns": "d", "date": {"days_since": "2024-01-01", "format": written}, "missing": "zero"}
    np.testing.assert_array_equal(read(tmp_path, {"d": [text, None]}, feature).values[0], [30, np.nan])


@given(st.dates(dt.date(1000, 1, 1)))
def test_parts_are_those_of_the_calendar(day: dt.date) -> None:
    settings = DateSettings(parts=("weekday", "year", "month"), age_at=SINCE, days_since=SINCE)
    assert settings.names == ("days", "age", "weekday sin", "weekday cos", "year", "month sin", "month cos")
    found = [date_part(np.array([day], "datetime64[us]"), name, settings)[0] for name in settings.names]
    week, month = 2 * math.pi * day.weekday() / 7, 2 * math.pi * (day.month - 1) / 12
    days = (day - SINCE.date()).days
    wanted = [*(days, -days / 365.2425, math.sin(week), math.cos(week)), *(day.year, math.sin(month), math.cos(month))]
    assert found == pytest.approx(wanted, abs=1e-6, rel=1e-6)


def test_one_column_becomes_several_which_later_tables_have_too(tmp_path: Path) -> None:
    date = {"parts": ["year", "weekday"], "days_since": "2024-01-01"}
    write(tmp_path / "nodes.csv", {"id": [1, 2], "d1": ["2024-01-01", None], "d2": ["2024-01-08", "2022-01-03"]})
    settings = party([{"columns": "d*", "date": date, "missing": "mean"}])
    table = read_nodes(settings, tmp_path)
    encoding = fit_encoding(table, "none")
    parts = ("days", "year", "weekday sin", "weekday cos")
    assert encoding.names == tuple(f"d{each} {part}" for each in (1, 2) for part in parts)
    assert encode(table, encoding).tolist() == [[0, 2024, 0, 1, 7, 2024, 0, 1], [0, 2024, 0, 1, -728, 2022, 0, 1]]
    assert [each.column for each in describe_party(settings, tmp_path).features[:2]] == ["d1 days", "d1 year"]
    again = FeatureEncoding.from_json(encoding.to_json())
    assert again == encoding
    write(tmp_path / "nodes.csv", {"id": [3], "d1": [None], "d2": ["2024-01-01"], "d3": ["2024-01-01"]})
    later = read_nodes(settings, tmp_path, again.columns)
    assert encode(later, again).tolist() == [[0, 2024, 0, 1, 0, 2024, 0, 1]]


def test_missing_dates_and_declared_ranges(tmp_path: Path) -> None:
    write(tmp_path / "nodes.csv", {"id": [1, 2, 3], "d": ["2023-12-31", None, "2024-01-06"]})
    scaled = {"columns": "d", "date": {"days_since": "2024-01-01"}, "missing": 2, "scale": {"low": 0, "high": 10}}
    table = read_nodes(party([scaled]), tmp_path)
    assert encode(table, fit_encoding(table, "none")).flatten().tolist() == pytest.approx([0, 0.2, 0.5])
    assert describe_party(party([scaled]), tmp_path).beyond_own_row == ()


# Truth values


def test_every_word_for_a_truth_value_in_any_case(tmp_path: Path) -> None:
    words = [word for words in TRUTHS for word in words]
    both = [*words, *(word.upper() for word in words)]
    assert read(tmp_path, {"b": both}, TRUTH, name="n.csv").values[0].tolist() == ([1] * 5 + [0] * 5) * 2


@pytest.mark.parametrize("values", [[True, False, None], [1, 0, None], ["Yes ", " f", ""]])
def test_truth_values_of_parquet(tmp_path: Path, values: list[Any]) -> None:
    table = read(tmp_path, {"b": values}, TRUTH | {"missing": "mean"})
    np.testing.assert_array_equal(table.values[0], [1, 0, np.nan])
    encoding = fit_encoding(table, "none")
    assert encode(table, encoding).tolist() == [[1], [0], [0.5]]
    assert FeatureEncoding.from_json(encoding.to_json()) == encoding


# Splits by date

LABEL = {"column": "y", "classes": ["no", "yes"]}
TIMES = {"by": "when", "train_before": "2024-05-01", "val_before": "2024-06-01"}
WHEN = ["2024-04-30T23:59:59", "2024-05-01", "2024-05-31", "2024-06-01", None, "2024-01-01"]
NODES = {"id": list("uvwxyz"), "x": [1, 2, 3, 4, 5, 6], "y": ["no", "yes", "no", "yes", "no", None], "when": WHEN}
WANTED = [0, 1, 1, 2, -1, -1]


def splits(folder: Path, name: str = "nodes.csv", **changes: Any) -> list[int]:
    table = read_nodes(party(**{"label": LABEL, "split": TIMES, "nodes": name, **changes}), folder)
    assert [column.name for column in table.columns] == ["x"], "the date is no feature"
    assert table.splits is not None
    return [int(each) for each in table.splits]


@pytest.mark.parametrize("name", ["n.csv", "n.parquet"])
def test_early_is_trained_and_late_tested_on(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, NODES)
    assert splits(tmp_path, name) == splits(tmp_path, name, features=["*"]) == WANTED
    masks = build(party(label=LABEL, split=TIMES, nodes=name), tmp_path).graph
    trained, validated, tested = (
        each.nonzero().flatten() for each in (masks.train_mask, masks.val_mask, masks.test_mask)
    )
    assert (trained.tolist(), validated.tolist(), tested.tolist()) == ([0], [1, 2], [3])


def test_dates_of_splits_in_other_forms_and_files(tmp_path: Path) -> None:
    write(tmp_path / "n.parquet", NODES | {"when": pa.array(WHEN).cast(pa.timestamp("us"))})
    assert splits(tmp_path, "n.parquet") == WANTED
    days = [None if each is None else f"{each[8:10]}.{each[5:7]}.{each[:4]}" for each in WHEN]
    write(tmp_path / "nodes.csv", NODES | {"when": days})
    assert splits(tmp_path, split=TIMES | {"format": "%d.%m.%Y"}) == WANTED
    write(tmp_path / "nodes.csv", {"id": list("zyxwvu"), "x": list(range(6))})
    write(tmp_path / "labels.csv", {name: NODES[name] for name in ("id", "y", "when")})
    assert splits(tmp_path, label=LABEL | {"file": "labels.csv"}) == WANTED[::-1]
    assert splits(tmp_path, join=[{"file": "labels.csv"}]) == WANTED[::-1]


# Numbers to predict, and graphs


def test_a_target_is_a_number_or_unknown_and_then_in_no_split(tmp_path: Path) -> None:
    prices = [row * 1.5 if row % 5 else None for row in range(40)]
    columns, by = {"x": [1] * 40, "price": prices}, {"target": "price", "split": FRACTIONS}
    table = read(tmp_path, columns, "x", name="nodes.csv", **by)
    assert table.targets is not None
    assert table.splits is not None
    known = ~np.isnan(table.targets)
    assert table.targets[known].tolist() == [each for each in prices if each]
    assert Counter(table.splits[known].tolist()) == {0: 16, 1: 8, 2: 8}
    assert (table.splits[~known] == -1).all()
    back = table.take(np.arange(40)[::-1])
    assert back.targets is not None
    assert np.array_equal(back.targets, table.targets[::-1], equal_nan=True)
    shown = describe_party(party(**by), tmp_path)
    assert shown.target is not None
    assert (shown.target.minimum, shown.target.missing) == (1.5, 8)
    assert party_tables(shown)[-1].title == "Target"


def test_a_split_by_a_column_is_of_nodes_with_a_target(tmp_path: Path) -> None:
    columns = {"x": [1, 1], "price": [None, 2]}
    by: dict[str, Any] = {"target": "price", "split": {"column": "part"}}
    with refused(DataError, key="part"):
        read(tmp_path, columns | {"part": ["train", "val"]}, "x", **by)
    table = read(tmp_path, columns | {"part": [None, "val"]}, "x", **by)
    assert table.splits is not None
    assert table.splits.tolist() == [-1, 1]


@pytest.mark.parametrize("by", [{"label": {"column": "kind", "classes": ["a", "b"]}}, {"target": "price"}])
def test_graphs_are_divided_whole(by: dict[str, Any], tmp_path: Path) -> None:
    graphs = [row % 7 for row in range(70)]
    columns = {"x": [1] * 70, "mol": graphs, "kind": ["ab"[each % 2] for each in graphs], "price": graphs}
    table = read(tmp_path, columns, "x", name="nodes.csv", graph="mol", split=FRACTIONS, **by)
    assert table.graphs is not None
    assert table.splits is not None
    pairs = set(zip(table.graphs.tolist(), table.splits.tolist(), strict=True))
    assert len(pairs) == len({graph for graph, _ in pairs}) == 7
    assert {split for _, split in pairs} >= {0, 1}
    assert describe_party(party(graph="mol", split=FRACTIONS, **by), tmp_path).graphs == 7


# Holders have the same columns, or are told

SAID: list[dict[str, Any]] = [
    {"columns": "d"},
    {"columns": "d", "scale": {"low": 0, "high": 1}},
    {"columns": "d", "scale": {"low": 0, "high": 2}},
    {"columns": "d", "boolean": True},
    {"columns": "d", "date": {"days_since": "2024-01-01"}},
    {"columns": "d", "date": {"days_since": "2024-01-02"}},
]


def hashes(feature: dict[str, Any]) -> tuple[bytes, ...]:
    read_as = party([feature]).nodes.features[0]
    parts = read_as.date.names if "date" in feature else ("",)
    return tuple(column_hashes([FeatureColumn("d", read_as, part) for part in parts], None, None))


def test_what_a_column_is_read_as_is_in_its_hash() -> None:
    assert len({hashes(each) for each in SAID}) == len(SAID)
    assert hashes(SAID[4]) == hashes({"columns": "d", "date": {"days_since": "2024-01-01T00:00:00Z"}})
    assert hashes(SAID[4]) == hashes({"columns": "d", "date": {"days_since": "2024-01-01", "format": "%d.%m.%Y"}})
    months = hashes({"columns": "d", "date": {"parts": ["month"]}})
    assert months[2] != months[3]
    priced = [party(**each).nodes for each in ({}, *({"target": t, "split": FRACTIONS} for t in ("price", "worth")))]
    assert len({column_hashes([], prediction_kind(nodes), None)[0] for nodes in priced}) == 3
