"""Table files as streams of chosen columns: CSV, in which everything is text, and Parquet with its own types.

What the settings do not say of a CSV's format is found in its first bytes. A stream keeps no more than a few blocks of
a file in memory. A ``Column`` gives its values in the type that a setting asks for; it refuses, by ``DataError`` with
the row, what does not convert, and a column of a type that never does.
"""

from __future__ import annotations

import codecs
import csv
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count, islice
from pathlib import Path
from typing import Final, Literal, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from veilgraph.core.deferred import deferred
from veilgraph.core.errors import DataError
from veilgraph.tables.column_settings import (
    CYCLES,
    PLAIN_NUMBERS,
    WHOLE,
    DateSettings,
    FormatSettings,
    IdSettings,
    NumberSettings,
    is_parquet,
)

with deferred():  # a tenth of a second to import, and for tables alone
    import pyarrow as pa
    from pyarrow import compute as pc
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

Bools = NDArray[np.bool_]
Rows = NDArray[np.int64]
Floats = NDArray[np.float32]
Codes = NDArray[np.int32]
Times = NDArray[np.datetime64]

MISSING, OTHER = -1, -2
"""Codes of no value, and of one outside the vocabulary."""

TRUTHS: Final = (("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0"))
"""What is true, and what is not, in lower case."""

AS_WRITTEN: Final = IdSettings()

SAMPLE_BYTES: Final = 256 << 10
"""Of a file, unpacked, that are looked at for its delimiter and encoding."""

CSV_BLOCK_BYTES = 32 << 20
PARQUET_BATCH_ROWS = 1 << 20

DELIMITERS: Final = (",", ";", "\t", "|")
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True)
class Format:
    """How a file is read.

    Attributes:
        delimiter: between a row's values; empty for Parquet.
        encoding: of the text; empty for Parquet.
        missing: texts that are no value, besides the empty one.
        decimal: the point of a number written as text.
        numbers: column → how its numbers are written, where that is otherwise.
    """

    delimiter: str = ""
    encoding: str = ""
    missing: tuple[str, ...] = ()
    decimal: Literal[".", ","] = "."
    numbers: Mapping[str, NumberSettings] = field(default_factory=dict)

    def number(self, column: str) -> NumberSettings:
        """Return how a column's numbers are written, by its own settings or else by ``decimal``."""
        return self.numbers.get(column) or NumberSettings(decimal=self.decimal)

    def __str__(self) -> str:
        """Name delimiter and encoding, or Parquet, and a decimal comma, as ``data check`` prints them."""
        said = [f"delimiter {self.delimiter!r}", f"encoding {self.encoding}"] if self.delimiter else ["Parquet"]
        said += [f"decimal {self.decimal!r}"] if self.decimal != "." else []
        return ", ".join(said)


def file_format(path: Path, settings: FormatSettings) -> Format:
    """The format of a file, what is not set being found in a sample of it.

    An encoding is found by a byte order mark, or as UTF-8. The delimiter is the comma where every row of the sample has
    as many values by it as the header, and at least two; else the one of ``DELIMITERS`` by which that is so with the
    most values, or that divides the header into the most. Raises ``DataError``: it is not there, or of another
    encoding.
    """
    missing = tuple(text for text in settings.missing_values if text)
    if is_parquet(path):
        with readable(path):
            return Format(missing=missing, decimal=settings.decimal, numbers=settings.numbers)
    with readable(path), pa.input_stream(str(path), compression="detect") as file:
        sample = file.read(SAMPLE_BYTES)
    marked = next((name for mark, name in _MARKS if sample.startswith(mark)), None)
    encoding, whole = settings.encoding or marked or "utf-8", len(sample) < SAMPLE_BYTES
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample, final=whole)
    except UnicodeDecodeError as error:
        where = f"(byte {error.object[error.start]:#04x} at {error.start})"
        if settings.encoding or marked:
            raise DataError(
                f"{path}: is not of encoding {encoding} {where}; set encoding to what it was written in"
            ) from error
        raise DataError(
            f"{path}: is not UTF-8 {where}, and which encoding it is cannot be told for certain; set encoding, as "
            "cp1252, which spreadsheets in Western Europe write, or write it anew"
        ) from error
    delimiter = settings.delimiter or _guess_delimiter(text, whole=whole)
    return Format(delimiter, encoding, missing, settings.decimal, settings.numbers)


def _guess_delimiter(text: str, *, whole: bool) -> str:
    lines = text.lstrip("\ufeff").splitlines(keepends=True)
    found = {each: _row_lengths(lines if whole else lines[:-1], each) for each in DELIMITERS}
    alike = {each: widths[0] for each, widths in found.items() if widths and widths[0] > 1 and len(set(widths)) == 1}
    if "," in alike:
        return ","
    most = alike or {each: widths[0] for each, widths in found.items() if widths}
    return max(most, key=most.__getitem__, default=",")


def _row_lengths(lines: list[str], delimiter: str) -> list[int]:
    """Count the values of each of the first 200 non-empty rows, by a delimiter; [] where the text is no such CSV."""
    try:
        return [len(row) for row in islice(filter(None, csv.reader(lines, delimiter=delimiter)), 200)]
    except csv.Error:
        return []


PLAIN: Final = Format(delimiter=",", encoding="utf-8")
"""CSV as most programs write it; of Parquet it says nothing."""

_MALFORMED: Final = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


@dataclass(frozen=True, eq=False)
class Column:
    """A raw column of one batch: a pyarrow array [n] of any type, rows from 1, and how numbers are written as text."""

    path: Path
    name: str
    values: pa.Array
    rows: Rows
    number: NumberSettings = PLAIN_NUMBERS

    def filter(self, keep: Bools) -> Column:
        """Return the column's rows where ``keep`` [n] is true."""
        return self if keep.all() else replace(self, values=self.values.filter(pa.array(keep)), rows=self.rows[keep])

    def refuse_any(self, wrong: Bools, rule: str, way_out: str) -> None:
        """Raise a ``DataError`` for the first value that is ``wrong`` [n], if there is one."""
        if wrong.any():
            self.refuse(int(wrong.argmax()), rule, way_out)

    def refuse(self, index: int, rule: str, way_out: str) -> NoReturn:
        """Raise a ``DataError`` with file, column, row and value at ``index`` of the batch, and rule and way out."""
        value = self.values[index].as_py()
        shown = "no value" if value is None or value == "" else repr(value)
        raise DataError(f"{self.path}: column {self.name!r}, row {self.rows[index]}: {shown} {rule}; {way_out}")

    def refuse_type(self, wanted: str, way_out: str) -> NoReturn:
        """Raise a ``DataError`` that the whole column's type is not ``wanted``."""
        raise DataError(f"{self.path}: column {self.name!r}: type {self.values.type} is not {wanted}; {way_out}")

    def text(self) -> pa.StringArray:
        """Values as text, an empty one as null; integers and booleans are converted, other types are refused."""
        values = _plain(self.values)
        kind = values.type
        if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            self.refuse_type("text or integers", "write it as one of them")
        text = pc.cast(values, pa.string())
        return pc.if_else(pc.equal(text, ""), None, text) if is_text(kind) else text

    def words(self) -> NDArray[np.object_]:
        """Values of any type as text [n], None where missing; a number's decimal comma becomes a point."""
        values = _plain(self.values)
        try:
            text = pc.cast(values, pa.string())
        except pa.ArrowException:
            self.refuse_type("text, numbers or dates", "write it as one of them")
        if self.number.decimal != "." and is_text(values.type):
            mark = self.number.decimal
            number = "^ *[-+]?[0-9]+" + re.escape(mark) + "[0-9]+ *$"
            text = pc.if_else(pc.match_substring_regex(text, number), pc.replace_substring(text, mark, "."), text)
        text = pc.if_else(pc.equal(text, ""), None, text)
        return cast(NDArray[np.object_], text.to_numpy(zero_copy_only=False))

    def ids(self, spelling: IdSettings = AS_WRITTEN) -> pa.StringArray:
        """Ids as text, normalised by ``spelling`` and to Unicode's NFC; a missing one, or another type, is refused."""
        if pa.types.is_boolean(self.values.type):
            self.refuse_type("text or integers", "write it as one of them")
        text = self.text()
        if spelling.strip:
            text = pc.utf8_trim_whitespace(text)
            text = pc.if_else(pc.equal(text, ""), None, text)
        text = pc.utf8_normalize(text, form="NFC")  # an é is one letter or two, and looks the same
        if spelling.unpadded:
            text = pc.replace_substring_regex(text, "^0+(.)", r"\1")
        if spelling.lower:
            if pc.all(pc.string_is_ascii(text)).as_py() is not False:
                text = pc.utf8_lower(text)
            else:
                text = pa.array([None if each is None else fold(each) for each in text.to_pylist()], pa.string())
        self.refuse_any(is_null(text), "where an id must be", "give every row its id or remove the row")
        return text

    def numbers(self) -> Floats:
        """Values as float32 [n], NaN where missing; what is no finite number is refused."""
        values = _plain(self.values)
        kind = values.type
        if is_text(kind):
            values = _normalise_numbers(self, pc.if_else(pc.equal(values, ""), None, values), self.number)
        elif not (
            pa.types.is_integer(kind)
            or pa.types.is_floating(kind)
            or pa.types.is_decimal(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_null(kind)
        ):
            self.refuse_type("numbers", "write it as numbers, make days of dates (features: date), or leave it out")
        try:
            wide = pc.cast(values, pa.float64(), safe=False)
        except pa.ArrowInvalid:
            way_out = (
                "write numbers like 1, -2.5 or 1e3, or say under decimal, numbers or missing_values what else there is"
            )
            self.refuse(first_unreadable(values, pa.float64()), "is not a number", way_out)
        with np.errstate(over="ignore"):
            numbers = cast(Floats, wide.to_numpy(zero_copy_only=False).astype(np.float32))
        unfit = ~np.isfinite(numbers) & ~is_null(values)
        self.refuse_any(unfit, "is not a finite number of float32", "mend it, or leave it empty if it is unknown")
        return numbers

    def truths(self) -> Floats:
        """Truth values, by ``TRUTHS``: float32 [n], 1, 0, or NaN where missing; other words are refused."""
        text = pc.utf8_lower(pc.utf8_trim_whitespace(self.text()))
        codes = codes_of(text, pa.array([word for words in TRUTHS for word in words]))
        way_out = "write yes or no, true or false, t or f, y or n, 1 or 0, or give the column categories"
        self.refuse_any(codes == OTHER, "is no truth value", way_out)
        return np.where(codes == MISSING, np.nan, codes < len(TRUTHS[0])).astype(np.float32)

    def whole(self) -> Rows:
        """Values as int64 [n]; one that is missing, negative or no whole number is refused."""
        text = self.ids()
        try:
            numbers = cast(Rows, pc.cast(text, pa.int64()).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid:
            whole = pc.match_substring_regex(text, "^[0-9]{1,18}$").to_numpy(zero_copy_only=False)
            self.refuse(int((~whole.astype(bool)).argmax()), "is not a whole number", "number the graphs from 0")
        self.refuse_any(numbers < 0, "is negative", "number the graphs from 0")
        return numbers

    def codes(self, vocabulary: Iterable[str]) -> Codes:
        """Index of each stripped value in the vocabulary: int32 [n], ``MISSING`` without a value, else ``OTHER``.

        Of a vocabulary of whole numbers 1.0 is 1, as a column of them is written that has missing values.
        """
        words, column = [each.strip() for each in vocabulary], self
        is_whole = all(each.removeprefix("-").isdecimal() for each in words)
        if is_whole and pa.types.is_floating(self.values.type):
            with suppress(pa.ArrowInvalid):  # of a fraction, whose type is refused below
                known = pc.if_else(pc.is_nan(self.values), None, self.values)
                column = replace(self, values=pc.cast(known, pa.int64()))
        text = pc.utf8_trim_whitespace(column.text())
        if is_whole:
            text = pc.replace_substring_regex(text, f"^{WHOLE}$", r"\1")
        return codes_of(pc.if_else(pc.equal(text, ""), None, text), pa.array(words, pa.string()))

    def times(self, written: str | Sequence[str] | None = None) -> Times:
        """Values as datetime64[us] [n], in UTC, NaT where missing; ``written``: formats, the first that fits."""
        values = self.values
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            return _to_numpy(pc.cast(values, pa.timestamp("us", getattr(kind, "tz", None)), safe=False))
        if not is_text(kind) and not pa.types.is_null(kind):
            self.refuse_type("dates, timestamps or text", "write it as one of them")
        text = self.text()
        times = _parse_iso(self, text) if written is None else _parse_formats(self, text, written)
        self.refuse_any(
            times < _EARLIEST, "is of a year before 1000", "mend it, or set format: %y is a year of two digits"
        )
        return times


def column_names(path: Path, form: Format = PLAIN) -> tuple[str, ...]:
    """Return a table's column names in order; repeated ones of a CSV are numbered by ``number_repeated_names``."""
    if is_parquet(path):
        with readable(path), parquet.ParquetFile(path) as file:
            return tuple(file.schema_arrow.names)
    with _open_csv(path, None, form) as reader:
        return number_repeated_names(reader.schema.names)


def number_repeated_names(header: Sequence[str]) -> tuple[str, ...]:
    """A header whose repeated names are numbered as pandas does: the second ``Account`` is ``Account.1``."""
    found: list[str] = []
    for name in header:
        numbered = (f"{name}.{number}" for number in count(1))
        taken = name and name in found
        found.append(next(each for each in numbered if each not in (*header, *found)) if taken else name)
    return tuple(found)


def stream(
    path: Path, columns: Sequence[str], names: Sequence[str] | None = None, form: Format = PLAIN
) -> Iterator[list[Column]]:
    """The chosen columns, batch by batch, in the order asked for; a column may be asked for more than once.

    In CSV every value is text as it stands and an empty one is null. ``names`` are as ``column_names`` has them. Raises
    ``DataError``: there is no such file, a column is missing or ambiguous, or the content is damaged.
    """
    names = column_names(path, form) if names is None else names
    for column in columns:
        if names.count(column) != 1:
            found = f"{names.count(column)} columns of that name" if column in names else "no such column"
            divided = f" (delimiter {form.delimiter!r})" if form.delimiter else ""
            raise DataError(
                f"{path}: column {column!r}: {found} among {_join_names(names)}{divided}; mend the table or the setting"
            )
    distinct = list(dict.fromkeys(columns))
    batches = _parquet_batches(path, distinct, form) if is_parquet(path) else _csv_batches(path, distinct, form, names)
    first = 1
    for batch in batches:
        rows = np.arange(first, first + batch.num_rows)
        if batch.num_rows:
            yield [Column(path, name, batch.column(name), rows, form.number(name)) for name in columns]
        first += batch.num_rows


def _parquet_batches(path: Path, columns: list[str], form: Format) -> Iterator[pa.RecordBatch]:
    with readable(path), parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(PARQUET_BATCH_ROWS, columns=columns):
            yield _clear_missing(batch, form.missing) if form.missing else batch


def _clear_missing(batch: pa.RecordBatch, missing: Sequence[str]) -> pa.RecordBatch:
    markers = pa.array(missing, pa.string())

    def cleared(values: pa.Array) -> pa.Array:
        kind = values.type
        if not is_text(kind.value_type if pa.types.is_dictionary(kind) else kind):
            return values
        text = pc.cast(values, pa.string())
        return pc.if_else(pc.is_in(text, value_set=markers), None, text)

    return pa.record_batch([cleared(values) for values in batch.columns], batch.schema.names)


def _csv_batches(path: Path, columns: list[str], form: Format, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with _open_csv(path, columns, form, names) as reader:
        for place, batch in enumerate(reader):
            yield batch if place else batch.slice(1)  # without the header


@contextmanager
def _open_csv(
    path: Path, columns: list[str] | None, form: Format, names: Sequence[str] = ()
) -> Iterator[arrow_csv.CSVStreamingReader]:
    # Rows are numbered in the parser only when one thread parses; the streaming reader is hardly faster with more.
    read_options = arrow_csv.ReadOptions(block_size=CSV_BLOCK_BYTES, use_threads=False, encoding=form.encoding)
    if names:  # of the columns of the header too, which may have one twice and is then the first row
        read_options.column_names = names
    parse_options = arrow_csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=True)
    convert_options = arrow_csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns or (), pa.string()),
        null_values=["", *form.missing],
        strings_can_be_null=True,
    )
    try:
        with readable(path), arrow_csv.open_csv(path, read_options, parse_options, convert_options) as reader:
            yield reader
    except DataError as error:
        # Not by Arrow's handler of such rows: one that is no UTF-8 ends in a traceback there.
        if (malformed := _MALFORMED.search(str(error))) is None:
            raise
        row, expected, actual = map(int, malformed.groups())
        raise DataError(
            f"{path}: row {row - 1} has {actual} values and the header {expected}; put values that hold "
            f"{form.delimiter!r} in double quotes, mend the row, or set delimiter"
        ) from error


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise ``DataError`` if the file is missing, or cannot be read within the block."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such table; mend the path, which is relative to the party file's folder")
    try:
        yield
    except (OSError, UnicodeError, pa.ArrowException) as error:
        parquet = is_parquet(path)
        kind, way_out = ("Parquet", "") if parquet else ("CSV", "set encoding if it is not UTF-8, ")
        reason = " ".join(str(error).split())
        raise DataError(
            f"{path}: cannot be read as {kind} ({reason}); {way_out}mend the file or write it anew"
        ) from error


def is_text(kind: pa.DataType) -> bool:
    """Whether a column's type is one of Arrow's for text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _join_names(names: Sequence[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def fold(text: str) -> str:
    """A text without case, by Unicode's full case folding: ß is ss, and İ is i with its dot, as its small letter is."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def codes_of(text: pa.Array, vocabulary: pa.StringArray) -> Codes:
    """Index of each text in the vocabulary: int32 [n], ``MISSING`` where null, ``OTHER`` where it is not there."""
    codes = pc.fill_null(pc.index_in(text, value_set=vocabulary), OTHER).to_numpy(zero_copy_only=False).copy()
    codes[is_null(text)] = MISSING
    return cast(Codes, codes)


def is_null(values: pa.Array) -> Bools:
    """Where an array has no value: bool [n]."""
    return cast(Bools, pc.is_null(values).to_numpy(zero_copy_only=False))


def _normalise_numbers(column: Column, values: pa.StringArray, written: NumberSettings) -> pa.StringArray:
    """Remove a unit and thousands marks from texts of numbers, and write a decimal point; refuse a stray point."""
    values = strip_unit(values, written.unit)
    if written.decimal == "either":
        return _normalise_either_point(column, values)
    if written.decimal == "." and not written.thousands:
        return values
    mark, point = re.escape(written.thousands), re.escape(written.decimal)
    if written.thousands:
        grouped = f"^[-+]?[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+(?:{point}[0-9]*)?$"  # 0.123 is no 123
        grouped = pc.match_substring_regex(values, grouped)
        values = pc.if_else(grouped, pc.replace_substring(values, written.thousands, ""), values)
    if written.decimal == ".":
        return values
    pointed = pc.fill_null(pc.match_substring(values, "."), False).to_numpy(zero_copy_only=False)
    rule = f"has a point, and the decimal point here is {written.decimal!r}"
    column.refuse_any(pointed, rule, "write it as the others are, say under numbers how they are, or leave decimal out")
    return pc.replace_substring(values, written.decimal, ".")


def _normalise_either_point(column: Column, values: pa.StringArray) -> pa.StringArray:
    """Write texts of numbers with a decimal point, whether theirs is ``.`` or ``,``; refuse the ambiguous 1.234."""
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


def strip_unit(values: pa.StringArray, unit: str) -> pa.StringArray:
    """Strip a unit before or after each text, and make typographic spaces, apostrophes and minus signs ASCII."""
    for odd, usual in (("[\u00a0\u202f\u2009]", " "), ("\u2019", "'"), ("\u2212", "-")):
        values = pc.replace_substring_regex(values, odd, usual)
    once = f"(?:{re.escape(unit)})?"
    return pc.replace_substring_regex(values, rf"^\s*([-+]?)\s*{once}\s*(.*?)\s*{once}\s*$", r"\1\2")


def _plain(values: pa.Array) -> pa.Array:
    """Decode a dictionary-encoded array, and cast any type of text to ``string``."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return pc.cast(values, pa.string()) if is_text(values.type) else values


def first_unreadable(values: pa.StringArray, kind: pa.DataType) -> int:
    """Find by bisection the index of the first text that cannot be cast to a type; there must be one."""
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


_ZONED: Final = r"[Tt ].*(Z|[+-]\d\d:?\d\d)$"
_YEAR_DAYS: Final = 365.2425
_EARLIEST: Final = np.datetime64("1000-01-01", "us")


def date_part(times: Times, name: str, settings: DateSettings) -> Floats:
    """Compute one feature of dates, ``name`` of ``DateSettings.names``: float32 [n], NaN where missing."""
    if name == "days":
        numbers = _days_since(times, settings.days_since)
    elif name == "age":
        numbers = -_days_since(times, settings.age_at) / _YEAR_DAYS
    else:
        numbers = _calendar_part(times, name)
    return np.where(np.isnat(times), np.nan, numbers).astype(np.float32)


def _days_since(times: Times, since: datetime | None) -> NDArray[np.float64]:
    days: NDArray[np.float64] = (times - np.datetime64(since, "us")) / np.timedelta64(1, "D")
    return days


def _calendar_part(times: Times, name: str) -> NDArray[np.float64]:
    days = np.where(np.isnat(times), np.datetime64(0, "D"), times.astype("datetime64[D]"))
    months = days.astype("datetime64[M]").astype(np.int64)
    weekdays = days.astype(np.int64) + 3  # 1970 began on a Thursday
    part, _, wave = name.partition(" ")
    if part not in CYCLES:
        return (months // 12 + 1970).astype(np.float64)
    turns = months % 12 / 12 if part == "month" else weekdays % 7 / 7
    return np.sin(2 * np.pi * turns) if wave == "sin" else np.cos(2 * np.pi * turns)


def _parse_iso(column: Column, text: pa.StringArray) -> Times:
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


def _parse_formats(column: Column, text: pa.StringArray, written: str | Sequence[str]) -> Times:
    formats = [written] if isinstance(written, str) else [*written]
    times = pc.coalesce(*(pc.strptime(text, format=each, unit="us", error_is_null=True) for each in formats))
    rule = f"is no date of format {' or '.join(map(repr, formats))}"
    column.refuse_any(is_null(times) & ~is_null(text), rule, "mend it, or set another format")
    found = _to_numpy(times)
    short = found < np.datetime64("0100-01-01")  # strptime takes two digits for a year of the first century
    column.refuse_any(short, "has a year of two digits", "write four, or set format with %y in place of %Y")
    return found


def _to_numpy(times: pa.Array) -> Times:
    missing = is_null(times)
    numbers = pc.fill_null(pc.cast(times, pa.int64()), 0).to_numpy(zero_copy_only=False)
    found: Times = numbers.astype("datetime64[us]")
    return np.where(missing, np.datetime64("NaT", "us"), found)
