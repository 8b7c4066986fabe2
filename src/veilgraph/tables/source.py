"""Table files as streams of chosen columns: CSV, in which everything is text, and Parquet with its own types.

What the settings do not say of a CSV's format is found in its first bytes. A stream keeps no more than a few blocks of
a file in memory.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from veilgraph.core.errors import DataError
from veilgraph.tables.column_settings import PLAIN_NUMBERS, FormatSettings, NumberSettings, is_parquet

SAMPLE_BYTES: Final = 256 << 10
"""Of a file, unpacked, that are looked at for its delimiter and encoding."""

_SAMPLE_ROWS: Final = 200
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
        """How a column's numbers are written."""
        return self.numbers.get(column) or NumberSettings(decimal=self.decimal)

    def __str__(self) -> str:
        """As ``data check`` says it."""
        said = [f"delimiter {self.delimiter!r}", f"encoding {self.encoding}"] if self.delimiter else ["Parquet"]
        said += [f"decimal {self.decimal!r}"] if self.decimal != "." else []
        return ", ".join(said)


def format_of(path: Path, settings: FormatSettings) -> Format:
    """The format of a file that is there, what is not set being found in a sample of it.

    An encoding is found where the bytes leave no doubt: a byte order mark, or UTF-8. The delimiter is the comma where
    every row of the sample has as many values by it as the header, and at least two; else the one of ``DELIMITERS`` by
    which that is so with the most values, or that divides the header into the most.

    Raises:
        DataError: the file is not UTF-8 and has no mark, or not of the encoding that is set.
        OSError: it cannot be read.
    """
    missing = tuple(text for text in settings.missing_values if text)
    if is_parquet(path):
        return Format(missing=missing, decimal=settings.decimal, numbers=settings.numbers)
    with pa.input_stream(str(path), compression="detect") as file:
        sample = file.read(SAMPLE_BYTES)
    encoding = settings.encoding or _encoding_of(path, sample)
    whole = len(sample) < SAMPLE_BYTES
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample, final=whole)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is not of encoding {encoding} (byte {error.object[error.start]:#04x} at {error.start}); set "
            "encoding to what it was written in"
        ) from error
    delimiter = settings.delimiter or _delimiter_of(text, whole=whole)
    return Format(delimiter, encoding, missing, settings.decimal, settings.numbers)


def _encoding_of(path: Path, sample: bytes) -> str:
    marked = next((name for mark, name in _MARKS if sample.startswith(mark)), "")
    if marked:
        return marked
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample, final=len(sample) < SAMPLE_BYTES)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is not UTF-8 (byte {sample[error.start]:#04x} at {error.start}), and which encoding it is cannot "
            "be told for certain; set encoding, as cp1252, which spreadsheets in Western Europe write, or write it anew"
        ) from error
    return "utf-8"


def _delimiter_of(text: str, *, whole: bool) -> str:
    lines = text.lstrip("\ufeff").splitlines(keepends=True)
    found = {each: _widths(lines if whole else lines[:-1], each) for each in DELIMITERS}
    alike = {each: widths[0] for each, widths in found.items() if widths and widths[0] > 1 and len(set(widths)) == 1}
    if "," in alike:
        return ","
    most = alike or {each: widths[0] for each, widths in found.items() if widths}
    return max(most, key=most.__getitem__, default=",")


def _widths(lines: list[str], delimiter: str) -> list[int]:
    """How many values each row of a sample has, by a delimiter; empty lines are no rows."""
    try:
        return [len(row) for row in islice(filter(None, csv.reader(lines, delimiter=delimiter)), _SAMPLE_ROWS)]
    except csv.Error:
        return []


Bools = NDArray[np.bool_]
Rows = NDArray[np.int64]

PLAIN: Final = Format(delimiter=",", encoding="utf-8")
"""CSV as most programs write it; of Parquet it says nothing."""

CSV_BLOCK_BYTES = 32 << 20
PARQUET_BATCH_ROWS = 1 << 20
_MALFORMED: Final = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


@dataclass(frozen=True, eq=False)
class Column:
    """A raw column of one batch: a pyarrow array [n] of any type.

    ``rows`` is the number of each value's row in the table, from 1, a CSV's header and empty lines left out; ``number``
    is how numbers are written as text.
    """

    path: Path
    name: str
    values: pa.Array
    rows: Rows
    number: NumberSettings = PLAIN_NUMBERS

    def filter(self, keep: Bools) -> Column:
        """Without the values that are not to be kept; ``keep``: [n]."""
        return self if keep.all() else replace(self, values=self.values.filter(pa.array(keep)), rows=self.rows[keep])

    def refuse_any(self, wrong: Bools, rule: str, way_out: str) -> None:
        """Raises ``DataError`` for the first value that is ``wrong`` [n], if there is one."""
        if wrong.any():
            self.refuse(int(wrong.argmax()), rule, way_out)

    def refuse(self, index: int, rule: str, way_out: str) -> NoReturn:
        """Raises the ``DataError`` of the value at ``index`` of the batch."""
        value = self.values[index].as_py()
        shown = "no value" if value is None or value == "" else repr(value)
        raise DataError(f"{self.path}: column {self.name!r}, row {self.rows[index]}: {shown} {rule}; {way_out}")

    def refuse_type(self, wanted: str, way_out: str) -> NoReturn:
        """Raises the ``DataError`` of a whole column of the wrong type."""
        raise DataError(f"{self.path}: column {self.name!r}: type {self.values.type} is not {wanted}; {way_out}")


def file_format(path: Path, settings: FormatSettings) -> Format:
    """How a table is written, as its settings say or as it is found in a sample."""
    with readable(path):
        return format_of(path, settings)


def column_names(path: Path, form: Format = PLAIN) -> tuple[str, ...]:
    """The table's columns in their order."""
    if is_parquet(path):
        with readable(path), pa.parquet.ParquetFile(path) as file:
            return tuple(file.schema_arrow.names)
    with _open_csv(path, None, form) as reader:
        return tuple(reader.schema.names)


def stream(
    path: Path, columns: Sequence[str], names: Sequence[str] | None = None, form: Format = PLAIN
) -> Iterator[list[Column]]:
    """The chosen columns, batch by batch, in the order asked for; a column may be asked for more than once.

    In CSV every value is text as it stands and an empty one is null. ``names`` are all columns, as ``column_names`` has
    them.

    Raises:
        DataError: there is no such file, a column is missing or ambiguous, or the content is damaged.
    """
    names = column_names(path, form) if names is None else names
    for column in columns:
        if names.count(column) != 1:
            found = f"{names.count(column)} columns of that name" if column in names else "no such column"
            divided = f" (delimiter {form.delimiter!r})" if form.delimiter else ""
            raise DataError(
                f"{path}: column {column!r}: {found} among {_listed(names)}{divided}; mend the table or the setting"
            )
    distinct = list(dict.fromkeys(columns))
    batches = _parquet_batches if is_parquet(path) else _csv_batches
    first = 1
    for batch in batches(path, distinct, form):
        rows = np.arange(first, first + batch.num_rows)
        if batch.num_rows:
            yield [Column(path, name, batch.column(name), rows, form.number(name)) for name in columns]
        first += batch.num_rows


def _parquet_batches(path: Path, columns: list[str], form: Format) -> Iterator[pa.RecordBatch]:
    with readable(path), pa.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(PARQUET_BATCH_ROWS, columns=columns):
            yield _without(batch, form.missing) if form.missing else batch


def _without(batch: pa.RecordBatch, missing: Sequence[str]) -> pa.RecordBatch:
    markers = pa.array(missing, pa.string())

    def cleared(values: pa.Array) -> pa.Array:
        kind = values.type
        if not is_text(kind.value_type if pa.types.is_dictionary(kind) else kind):
            return values
        text = pc.cast(values, pa.string())
        return pc.if_else(pc.is_in(text, value_set=markers), None, text)

    return pa.record_batch([cleared(values) for values in batch.columns], batch.schema.names)


def _csv_batches(path: Path, columns: list[str], form: Format) -> Iterator[pa.RecordBatch]:
    with _open_csv(path, columns, form) as reader:
        yield from reader


@contextmanager
def _open_csv(path: Path, columns: list[str] | None, form: Format) -> Iterator[pa.csv.CSVStreamingReader]:
    # Rows are numbered in the parser only when one thread parses; the streaming reader is hardly faster with more.
    read_options = pa.csv.ReadOptions(block_size=CSV_BLOCK_BYTES, use_threads=False, encoding=form.encoding)
    parse_options = pa.csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=True)
    convert_options = pa.csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns or (), pa.string()),
        null_values=["", *form.missing],
        strings_can_be_null=True,
    )
    try:
        with readable(path), pa.csv.open_csv(path, read_options, parse_options, convert_options) as reader:
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
    """Whatever keeps a file from being read becomes a ``DataError``."""
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


def _listed(names: Sequence[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
