"""How a table file is written: what its settings say, and what is found in its first bytes where they do not."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from veilgraph.core.errors import DataError
from veilgraph.tables.file_settings import FormatSettings, NumberSettings, is_parquet

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
