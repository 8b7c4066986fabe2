"""Dates as features: how they are written, and what becomes of them."""

import datetime as dt
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import refused
from tests.tables.writing import party, write
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.tables.column_settings import DateSettings
from veilgraph.tables.columns import column_hashes
from veilgraph.tables.describe import describe_party
from veilgraph.tables.encode import FeatureEncoding, encode, fit_encoding
from veilgraph.tables.nodes import read_nodes
from veilgraph.tables.source import date_part

SINCE = dt.datetime(2024, 1, 1)


def read(folder, values, name="n.parquet", missing="error", **date):
    write(folder / name, {"id": list(range(len(values))), "d": values})
    return read_nodes(party([{"columns": "d", "date": date, "missing": missing}], nodes=name), folder)


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("2024-01-01", 0),
        ("2023-12-31", -1),
        ("2024-01-02T12:00", 1.5),
        ("2024-01-02 06:00:00", 1.25),
        ("2024-01-02T00:00:00.000000", 1),
        ("2024-01-02T00:00:00Z", 1),
        ("2024-01-02T02:00:00+02:00", 1),
        ("2024-01-01T18:00:00-0600", 1),
    ],
)
@pytest.mark.parametrize("name", ["n.csv", "n.parquet"])
def test_iso(tmp_path, name, text, days):
    table = read(tmp_path, ["2024-01-11", text, None], name, missing="zero", days_since="2024-01-01")
    np.testing.assert_array_equal(table.values[0], [10, days, np.nan])


@pytest.mark.parametrize(
    "values",
    [
        pa.array([dt.date(2024, 1, 3), None]),
        pa.array([dt.date(2024, 1, 3), None], pa.date64()),
        pa.array([dt.datetime(2024, 1, 3), None], pa.timestamp("ns")),
        pa.array([dt.datetime(2024, 1, 3), None], pa.timestamp("s")),
        pa.array([dt.datetime(2024, 1, 3, tzinfo=dt.UTC), None], pa.timestamp("ms", "Asia/Tokyo")),
        pa.array(["2024-01-03", None]).dictionary_encode(),
        pa.array(["2024-01-03", ""], pa.large_string()),
    ],
)
def test_parquets_types(tmp_path, values):
    table = read(tmp_path, values, missing="zero", days_since="2024-01-01")
    np.testing.assert_array_equal(table.values[0], [2, np.nan])


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("%d.%m.%Y", "31.01.2024"),
        ("%m/%d/%y", "1/31/24"),
        ("%Y%m%d", "20240131"),
        ("%d.%m.%Y %H:%M", "31.01.2024 00:00"),
    ],
)
def test_formats(tmp_path, written, text):
    table = read(tmp_path, [text, None], missing="zero", days_since="2024-01-01", format=written)
    np.testing.assert_array_equal(table.values[0], [30, np.nan])


@given(st.dates(dt.date(1000, 1, 1)))
def test_parts_are_those_of_the_calendar(day):
    settings = DateSettings(parts=("weekday", "year", "month"), age_at=SINCE, days_since=SINCE)
    assert settings.names == ("days", "age", "weekday sin", "weekday cos", "year", "month sin", "month cos")
    found = [date_part(np.array([day], "datetime64[us]"), name, settings)[0] for name in settings.names]
    week, month = 2 * math.pi * day.weekday() / 7, 2 * math.pi * (day.month - 1) / 12
    days = (day - SINCE.date()).days
    wanted = [*(days, -days / 365.2425, math.sin(week), math.cos(week)), *(day.year, math.sin(month), math.cos(month))]
    assert found == pytest.approx(wanted, abs=1e-6, rel=1e-6)


def test_one_column_becomes_several_which_later_tables_have_too(tmp_path):
    date = {"parts": ["year", "weekday"], "days_since": "2024-01-01"}
    features = [{"columns": "d*", "date": date, "missing": "mean"}]
    write(tmp_path / "nodes.csv", {"id": [1, 2], "d1": ["2024-01-01", None], "d2": ["2024-01-08", "2022-01-03"]})
    settings = party(features)
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


def test_missing_dates_and_declared_ranges(tmp_path):
    write(tmp_path / "nodes.csv", {"id": [1, 2, 3], "d": ["2023-12-31", None, "2024-01-06"]})
    scaled = {"columns": "d", "date": {"days_since": "2024-01-01"}, "missing": 2, "scale": {"low": 0, "high": 10}}
    table = read_nodes(party([scaled]), tmp_path)
    assert encode(table, fit_encoding(table, "none")).flatten().tolist() == pytest.approx([0, 0.2, 0.5])
    assert describe_party(party([scaled]), tmp_path).beyond_own_row == ()


def test_holders_dates_are_the_same_column_only_with_the_same_settings():
    def hashes(**date):
        settings = party([{"columns": "d", "date": date}])
        feature = settings.nodes.features[0]
        from veilgraph.tables.nodes import FeatureColumn  # noqa: PLC0415

        return column_hashes([FeatureColumn("d", feature, part) for part in feature.date.names], None, None)

    same = hashes(days_since="2024-01-01")
    assert same == hashes(days_since="2024-01-01T00:00:00Z")
    assert same != hashes(days_since="2024-01-02")
    pair = hashes(parts=["month"])
    assert pair[2] != pair[3]


@pytest.mark.parametrize(
    ("values", "date", "row"),
    [
        (["2024-01-01", "31.01.2024"], {}, 2),
        (["2024-01-01", "2024-02-30"], {}, 2),
        (["2024-01-01", "2024-01-01T00:00:00Z", "2024-01-01T00:00:0Z"], {}, 3),
        (["01.02.2024", "2024-02-01"], {"format": "%d.%m.%Y"}, 2),
        (["01.02.2024", "01.02.24"], {"format": "%d.%m.%Y"}, 2),
        (["01.02.2024", "01.02.2024 12:00"], {"format": "%d.%m.%Y"}, 2),
        (["2024-01-01", "0024-01-01"], {}, 2),
        (["2024-01-01", None], {}, 2),
        ([2024, 2025], {}, None),
        ([1.5, 2.5], {}, None),
        ([True, False], {}, None),
    ],
)
def test_dates_that_are_refused(tmp_path, values, date, row):
    with refused(DataError, key="d", value=row):
        read(tmp_path, values, days_since="2024-01-01", **date)


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"date": {}}, "date"),
        ({"date": {"parts": []}}, "date"),
        ({"date": {"parts": ["hour"]}}, "date.parts.0"),
        ({"date": {"parts": ["year", "year"]}}, "parts"),
        ({"date": {"days_since": "01.02.2024"}}, "date.days_since"),
        ({"date": {"days_since": "1704067200"}}, "date.days_since"),
        ({"date": {"days_since": 5}}, "date.days_since"),
        ({"date": {"age_at": "2024-13-01"}}, "date.age_at"),
        ({"date": {"age_at": "2024-01-01", "format": "DD.MM.YYYY"}}, "date.format"),
        ({"date": {"parts": ["month"]}, "missing": 5}, "missing"),
        ({"date": {"parts": ["month"]}, "scale": {"low": 0, "high": 1}}, "scale"),
        ({"date": {"days_since": "2024-01-01", "age_at": "2024-01-01"}, "missing": 5}, "missing"),
        ({"date": {"days_since": "2024-01-01"}, "categories": ["a"]}, "date"),
    ],
)
def test_settings_that_are_refused(entry, key):
    with pytest.raises(ConfigError) as caught:
        party([{"columns": "d"} | entry])
    assert key in str(caught.value)
