"""Columns of dates and times, and what of them becomes a feature."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from veilgraph.tables.convert import Floats, first_unreadable, is_null, to_text
from veilgraph.tables.source import Column, is_text
from veilgraph.tables.time_settings import CYCLES, DateSettings

Times = NDArray[np.datetime64]

_MICROSECONDS: Final = pa.timestamp("us")
_ZONED: Final = r"[Tt ].*(Z|[+-]\d\d:?\d\d)$"
_DAY: Final = np.timedelta64(1, "D")
_YEAR_DAYS: Final = 365.2425
_EARLIEST: Final = np.datetime64("1000-01-01", "us")


def to_times(column: Column, written: str | Sequence[str] | None = None) -> Times:
    """Values as datetime64[us] [n]; missing ones are NaT. What has a zone is turned to its UTC.

    Args:
        column: Parquet's dates or timestamps, or text.
        written: strptime's format of text, or several, of which the first that fits holds; None: ISO.

    Raises:
        DataError: a column of another type, or a value that is no such date.
    """
    values = column.values
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _to_numpy(pc.cast(values, pa.timestamp("us", getattr(kind, "tz", None)), safe=False))
    if not is_text(kind) and not pa.types.is_null(kind):
        column.refuse_type("dates, timestamps or text", "write it as one of them")
    text = to_text(column)
    times = _of_iso(column, text) if written is None else _of_format(column, text, written)
    column.refuse_any(
        times < _EARLIEST, "is of a year before 1000", "mend it, or set format: %y is a year of two digits"
    )
    return times


def date_part(times: Times, name: str, settings: DateSettings) -> Floats:
    """One of the columns that dates become, as ``DateSettings.names`` calls it: float32 [n], NaN where missing."""
    if name == "days":
        numbers = _days(times, settings.days_since)
    elif name == "age":
        numbers = -_days(times, settings.age_at) / _YEAR_DAYS
    else:
        numbers = _of_calendar(times, name)
    return np.where(np.isnat(times), np.nan, numbers).astype(np.float32)


def _days(times: Times, since: datetime | None) -> NDArray[np.float64]:
    days: NDArray[np.float64] = (times - np.datetime64(since, "us")) / _DAY
    return days


def _of_calendar(times: Times, name: str) -> NDArray[np.float64]:
    days = np.where(np.isnat(times), np.datetime64(0, "D"), times.astype("datetime64[D]"))
    months = days.astype("datetime64[M]").astype(np.int64)
    weekdays = days.astype(np.int64) + 3  # 1970 began on a Thursday
    part, _, wave = name.partition(" ")
    if part not in CYCLES:
        return (months // 12 + 1970).astype(np.float64)
    turns = months % 12 / 12 if part == "month" else weekdays % 7 / 7
    return np.sin(2 * np.pi * turns) if wave == "sin" else np.cos(2 * np.pi * turns)


def _of_iso(column: Column, text: pa.StringArray) -> Times:
    zoned = pc.fill_null(pc.match_substring_regex(text, _ZONED), False)
    local = pc.if_else(zoned, None, text)
    with_zone = pc.if_else(zoned, text, None)
    found = []
    for each, kind in ((local, _MICROSECONDS), (with_zone, pa.timestamp("us", "UTC"))):
        try:
            found.append(_to_numpy(pc.cast(each, kind)))
        except pa.ArrowInvalid:
            way_out = "write it as in 2024-01-31 or 2024-01-31T12:00, or set format, as in %d.%m.%Y"
            column.refuse(first_unreadable(each, kind), "is no date in ISO format", way_out)
    return np.where(zoned.to_numpy(zero_copy_only=False), found[1], found[0])


def _of_format(column: Column, text: pa.StringArray, written: str | Sequence[str]) -> Times:
    formats = [written] if isinstance(written, str) else [*written]
    times = pc.coalesce(*(pc.strptime(text, format=each, unit="us", error_is_null=True) for each in formats))
    rule = f"is no date of format {' or '.join(map(repr, formats))}"
    column.refuse_any(is_null(times) & ~is_null(text), rule, "mend it, or set another format")
    return _to_numpy(times)


def _to_numpy(times: pa.Array) -> Times:
    missing = is_null(times)
    numbers = pc.fill_null(pc.cast(times, pa.int64()), 0).to_numpy(zero_copy_only=False)
    found: Times = numbers.astype("datetime64[us]")
    return np.where(missing, np.datetime64("NaT", "us"), found)
