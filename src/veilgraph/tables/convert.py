"""One raw column of a batch to the type a setting asks for.

Every function refuses, by ``DataError`` with the row, what does not convert, and a column of a type that never does.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from veilgraph.tables.column_settings import CYCLES, DateSettings, IdSettings, NumberSettings
from veilgraph.tables.source import Bools, Column, Rows, is_text

Floats = NDArray[np.float32]
Codes = NDArray[np.int32]

MISSING, OTHER = -1, -2
"""Codes of no value, and of one outside the vocabulary."""

TRUTHS: Final = (("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0"))
"""What is true, and what is not, in lower case."""

AS_WRITTEN: Final = IdSettings()


def to_text(column: Column) -> pa.StringArray:
    """Values as text: an integer is its decimal text, a boolean ``true`` or ``false``, an empty text is null."""
    values = _plain(column.values)
    kind = values.type
    if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        column.refuse_type("text or integers", "write it as one of them")
    text = pc.cast(values, pa.string())
    return pc.if_else(pc.equal(text, ""), None, text) if is_text(kind) else text


def to_words(column: Column) -> NDArray[np.object_]:
    """Values of any type that has a text as that, None where there is none; a decimal comma becomes a point. [n]."""
    values = _plain(column.values)
    try:
        text = pc.cast(values, pa.string())
    except pa.ArrowException:
        column.refuse_type("text, numbers or dates", "write it as one of them")
    if column.number.decimal != "." and is_text(values.type):
        mark = column.number.decimal
        number = "^ *[-+]?[0-9]+" + re.escape(mark) + "[0-9]+ *$"
        text = pc.if_else(pc.match_substring_regex(text, number), pc.replace_substring(text, mark, "."), text)
    text = pc.if_else(pc.equal(text, ""), None, text)
    return cast(NDArray[np.object_], text.to_numpy(zero_copy_only=False))


def to_ids(column: Column, spelling: IdSettings = AS_WRITTEN) -> pa.StringArray:
    """Ids as text, every one present."""
    if pa.types.is_boolean(column.values.type):
        column.refuse_type("text or integers", "write it as one of them")
    text = to_text(column)
    if spelling.strip:
        text = pc.utf8_trim_whitespace(text)
        text = pc.if_else(pc.equal(text, ""), None, text)
    text = pc.utf8_normalize(text, form="NFC")  # an é is one letter or two, and looks the same
    if spelling.lower:
        if pc.all(pc.string_is_ascii(text)).as_py() is not False:
            text = pc.utf8_lower(text)
        else:
            text = pa.array([None if each is None else fold(each) for each in text.to_pylist()], pa.string())
    column.refuse_any(is_null(text), "where an id must be", "give every row its id or remove the row")
    return text


def fold(text: str) -> str:
    """A text without case, by Unicode's full case folding: ß is ss, and İ is i with its dot, as its small letter is."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def to_numbers(column: Column) -> Floats:
    """Values as float32, finite; missing ones are NaN."""
    values = _plain(column.values)
    kind = values.type
    if is_text(kind):
        values = _with_points(column, pc.if_else(pc.equal(values, ""), None, values), column.number)
    elif not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
    ):
        column.refuse_type("numbers", "write it as numbers, or leave the column out")
    try:
        wide = pc.cast(values, pa.float64(), safe=False)
    except pa.ArrowInvalid:
        way_out = (
            "write numbers like 1, -2.5 or 1e3, or say under decimal, numbers or missing_values what else there is"
        )
        column.refuse(first_unreadable(values, pa.float64()), "is not a number", way_out)
    with np.errstate(over="ignore"):
        numbers = cast(Floats, wide.to_numpy(zero_copy_only=False).astype(np.float32))
    unfit = ~np.isfinite(numbers) & ~is_null(values)
    column.refuse_any(unfit, "is not a finite number of float32", "mend it, or leave it empty if it is unknown")
    return numbers


def to_truths(column: Column) -> Floats:
    """Truth values, by ``TRUTHS``, as 1 and 0, float32 [n]; missing ones are NaN."""
    text = pc.utf8_lower(pc.utf8_trim_whitespace(to_text(column)))
    codes = look_up(text, pa.array([word for words in TRUTHS for word in words]))
    way_out = "write yes or no, true or false, t or f, y or n, 1 or 0, or give the column categories"
    column.refuse_any(codes == OTHER, "is no truth value", way_out)
    return np.where(codes == MISSING, np.nan, codes < len(TRUTHS[0])).astype(np.float32)


def to_whole(column: Column) -> Rows:
    """Values as int64, every one present and at least 0."""
    text = to_ids(column)
    try:
        numbers = cast(Rows, pc.cast(text, pa.int64()).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid:
        whole = pc.match_substring_regex(text, "^[0-9]{1,18}$").to_numpy(zero_copy_only=False)
        column.refuse(int((~whole.astype(bool)).argmax()), "is not a whole number", "number the graphs from 0")
    column.refuse_any(numbers < 0, "is negative", "number the graphs from 0")
    return numbers


def to_codes(column: Column, vocabulary: Iterable[str]) -> Codes:
    """Place of each value in the vocabulary; ``MISSING`` or ``OTHER`` where it has none. int32 [n]."""
    return look_up(to_text(column), pa.array(list(vocabulary), pa.string()))


def look_up(text: pa.Array, vocabulary: pa.StringArray) -> Codes:
    """As ``to_codes``, of texts."""
    codes = pc.fill_null(pc.index_in(text, value_set=vocabulary), OTHER).to_numpy(zero_copy_only=False).copy()
    codes[is_null(text)] = MISSING
    return cast(Codes, codes)


def is_null(values: pa.Array) -> Bools:
    """Where an array has no value: bool [n]."""
    return cast(Bools, pc.is_null(values).to_numpy(zero_copy_only=False))


def _with_points(column: Column, values: pa.StringArray, written: NumberSettings) -> pa.StringArray:
    """Texts of numbers as programs write them: without a unit or marks between thousands, their point a point."""
    values = bare(values, written.unit)
    if written.decimal == "either":
        return _with_either_point(column, values)
    if written.decimal == "." and not written.thousands:
        return values
    mark, point = re.escape(written.thousands), re.escape(written.decimal)
    if written.thousands:
        grouped = pc.match_substring_regex(values, f"^[-+]?[0-9]{{1,3}}(?:{mark}[0-9]{{3}})+(?:{point}[0-9]*)?$")
        values = pc.if_else(grouped, pc.replace_substring(values, written.thousands, ""), values)
    if written.decimal == ".":
        return values
    pointed = pc.fill_null(pc.match_substring(values, "."), False).to_numpy(zero_copy_only=False)
    rule = f"has a point, and the decimal point here is {written.decimal!r}"
    column.refuse_any(pointed, rule, "write it as the others are, say under numbers how they are, or leave decimal out")
    return pc.replace_substring(values, written.decimal, ".")


def _with_either_point(column: Column, values: pa.StringArray) -> pa.StringArray:
    """Texts of numbers with one point or the other: the last of two marks is the point, a repeated one is none."""
    for point, mark in ((r"\.", ","), (",", r"\.")):
        grouped = f"^[-+]?[0-9]{{1,3}}(?:(?:{mark}[0-9]{{3}})+{point}[0-9]+|(?:{mark}[0-9]{{3}}){{2,}})$"
        without = pc.replace_substring(values, mark[-1], "")
        values = pc.if_else(pc.match_substring_regex(values, grouped), without, values)
    doubtful = pc.fill_null(pc.match_substring_regex(values, "^[-+]?[1-9][0-9]{0,2}[.,][0-9]{3}$"), False)
    column.refuse_any(
        doubtful.to_numpy(zero_copy_only=False),
        "may be thousands or a fraction, and the decimal point here is either",
        "write it without a mark, or say under numbers which point the column has",
    )
    return pc.replace_substring_regex(values, "^([-+]?[0-9]*),([0-9]+)$", r"\1.\2")


def bare(values: pa.StringArray, unit: str) -> pa.StringArray:
    """Texts without a unit before or after, with one kind of space, of apostrophe and of minus."""
    for odd, usual in (("[\u00a0\u202f\u2009]", " "), ("\u2019", "'"), ("\u2212", "-")):
        values = pc.replace_substring_regex(values, odd, usual)
    once = f"(?:{re.escape(unit)})?"
    return pc.replace_substring_regex(values, rf"^\s*([-+]?)\s*{once}\s*(.*?)\s*{once}\s*$", r"\1\2")


def _plain(values: pa.Array) -> pa.Array:
    """Without dictionary encoding, and with one type for all text."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return pc.cast(values, pa.string()) if is_text(values.type) else values


def first_unreadable(values: pa.StringArray, kind: pa.DataType) -> int:
    """Index of the first text that cannot be read as of a type, found by halving what cannot."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            pc.cast(values.slice(low, middle - low), kind)
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    return low


Times = NDArray[np.datetime64]

_ZONED: Final = r"[Tt ].*(Z|[+-]\d\d:?\d\d)$"
_YEAR_DAYS: Final = 365.2425
_EARLIEST: Final = np.datetime64("1000-01-01", "us")


def to_times(column: Column, written: str | Sequence[str] | None = None) -> Times:
    """Values as datetime64[us] [n]; missing ones are NaT. What has a zone is turned to its UTC.

    ``written``: strptime's format of text, or several, of which the first that fits holds; None: ISO.
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
    days: NDArray[np.float64] = (times - np.datetime64(since, "us")) / np.timedelta64(1, "D")
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
    for each, kind in ((local, pa.timestamp("us")), (with_zone, pa.timestamp("us", "UTC"))):
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
