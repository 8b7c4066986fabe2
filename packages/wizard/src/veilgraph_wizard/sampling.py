"""Rows from the beginning of a table, and what each column seems to hold.

No more of a file is read than its beginning: of CSV ``formats.SAMPLE_BYTES``, of Parquet its first group of rows. Of
that CSV at most ``ROWS`` rows are looked at, evenly: a file is often sorted by what it tells.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from veilgraph.core.errors import DataError
from veilgraph.tables.column_settings import SUFFIXES, FormatSettings, NumberSettings, is_parquet
from veilgraph.tables.source import SAMPLE_BYTES, TRUTHS, Format, file_format, number_repeated_names, readable, stream
from veilgraph_wizard.number_forms import number_forms

Kind = Literal["number", "boolean", "date", "category", "text", "nothing", "constant", "identifier"]

ROWS: Final = 1000
_MARKERS: Final = frozenset({"NA", "N/A", "n/a", "NULL", "null", "None", "NaN", "nan", "-", "?"})
_GUESSED: Final = "cp1252"
_FORMATS: Final = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y"),
    *("%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y"),
    *("%Y/%m/%d %H:%M", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M"),
)
_DAYS: Final = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")
"""ISO, where other formats stand beside it."""
_SWAPPED: Final = ({"%d/%m/%Y", "%m/%d/%Y"}, {"%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M"})
_SHORT_YEAR: Final = re.compile(r"\d{1,2}([./-])\d{1,2}\1\d{2}")
_ISO: Final = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")
_ROW_NUMBERS: Final = re.compile(r"__index_level_\d+__")
_ISSUED: Final = re.compile(r"(.*[_ .-])?(id|key|no|nr)|.*(phone|telefon|iban|account|konto|nummer|number).*", re.I)
_LONG: Final = 9
"""Digits, as many in every row, that no amount has."""
_EVEN: Final = 0.1
"""Distance from a uniform distribution: amounts pile up somewhere, and numbers that are issued do not."""
_FEWEST_ISSUED: Final = 100
_NEARLY: Final = 0.95
_FREQUENT: Final = 0.01
_COVERED: Final = 0.2
_MOST_CATEGORIES: Final = 20
_MOST_MARKERS: Final = 3
_BATCH: Final = 20 * ROWS


@dataclass(frozen=True)
class SampledColumn:
    """The first values of a column; None where there is none, or a marker of the file's."""

    name: str
    values: tuple[str | None, ...]

    @cached_property
    def known(self) -> tuple[str, ...]:
        """The values that there are."""
        return tuple(value for value in self.values if value is not None)

    @cached_property
    def distinct(self) -> tuple[str, ...]:
        """Each value once, in order, without white space at its ends, which tells nothing."""
        return tuple(sorted({value.strip() for value in self.known}))

    @property
    def has_missing(self) -> bool:
        """Whether a row of the sample has none."""
        return len(self.known) < len(self.values)

    @property
    def is_unique(self) -> bool:
        """Whether every row has a value, and each another."""
        return not self.has_missing and len(set(self.values)) == len(self.values) > 0

    @cached_property
    def formats(self) -> tuple[str, ...]:
        """Every format by which all values are dates; the empty one is ISO."""
        if all(_ISO.fullmatch(value) and _is_date(value, "") for value in self.distinct):
            return ("",) if self.distinct else ()
        return tuple(each for each in _FORMATS if all(_is_date(value, each) for value in self.distinct))

    @cached_property
    def mixed(self) -> tuple[str, ...]:
        """Formats of which every value has one; empty where one is enough, or a value could be of two."""
        of = self._fitting.values()
        sure = {fit[0] for fit in of if len(fit) == 1}
        settled = all(len(fit) == 1 or sum(each in sure for each in fit) == 1 for fit in of)
        return tuple(sorted(sure)) if settled and not any(sure.issuperset(each) for each in _SWAPPED) else ()

    @cached_property
    def _fitting(self) -> dict[str, tuple[str, ...]]:
        """Each value → the formats by which it is a date."""
        digits = {value for value in self.distinct if any(map(str.isdigit, value))}
        if 2 * len(digits) < len(self.distinct):
            return dict.fromkeys(self.distinct, ())
        fits = [  # a format after the other: strptime compiles one anew where more than five take turns
            (each, {value for value in digits if _is_date(value, each)}) for each in (*_DAYS, *_FORMATS)
        ]
        return {value: tuple(each for each, values in fits if value in values) for value in self.distinct}

    @property
    def unread_dates(self) -> str:
        """Why no format can be said of values that are dates for the greater part; empty where they are none."""
        if self.known and all(_SHORT_YEAR.fullmatch(value) for value in self.distinct):
            return "its dates have years of two digits: write four"
        rows = Counter(self._fitting[value.strip()] for value in self.known)
        if self.formats or self.mixed or 2 * rows[()] >= len(self.known):
            return ""
        odd = next((value for value, fit in self._fitting.items() if not fit), "")
        of = [f"{count} as {' or '.join(fit)}" for fit, count in rows.most_common() if fit]
        of += [f"{rows[()]} in no known way ({odd!r})"] * bool(rows[()])
        return (
            "its dates are written in several ways, and some can be read as two days or as none "
            f"({', '.join(of)}, of {len(self.known)} rows looked at): write all in one way"
        )

    @property
    def days(self) -> tuple[date, ...]:
        """Of each value that there is, where they are dates of one format."""
        form = self.formats[0]
        return tuple(
            (datetime.strptime(each, form) if form else datetime.fromisoformat(each)).date() for each in self.known
        )

    @cached_property
    def numbers(self) -> tuple[NumberSettings, ...]:
        """Every way of writing numbers in which all values are some, the usual one first."""
        return number_forms(self.distinct)

    def number(self, decimal: str) -> NumberSettings:
        """How its numbers are written, in a file with this decimal point if they can be."""
        return next((each for each in self.numbers if each.decimal == decimal), self.numbers[0])

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """Its categories: all of a few, or the most frequent ones where these make up a good part."""
        if self.has_few:
            return self.distinct
        least = max(_MOST_MARKERS, _FREQUENT * len(self.known))
        frequent = [
            each for each in Counter(map(str.strip, self.known)).most_common(_MOST_CATEGORIES) if each[1] >= least
        ]
        covered = sum(count for _, count in frequent) >= _COVERED * len(self.known)
        return tuple(sorted(value for value, _ in frequent)) if covered else ()

    @property
    def has_few(self) -> bool:
        """Whether its values are so few that each may be a category."""
        return len(self.distinct) <= min(_MOST_CATEGORIES, max(2, len(self.known) // 2))

    @cached_property
    def written(self) -> Kind:
        """What its values are, whether or not they are of use."""
        if not self.distinct:
            return "nothing"
        words = {value.strip().lower() for value in self.distinct}
        if words <= {word for words in TRUTHS for word in words} and len(words) == 2:
            return "boolean"
        if self.numbers:
            return "number"
        if self.formats or self.mixed:
            return "date"
        return "category" if self.levels else "text"

    @cached_property
    def kind(self) -> Kind:
        """What it seems to be."""
        if len(self.distinct) == 1 and len(self.values) > 1:
            telling = self.has_missing and (self.written == "category" or self.distinct[0].isdecimal())
            return "category" if telling else "constant"
        return "identifier" if self._is_issued() else self.written

    def _is_issued(self) -> bool:
        """Whether it is of whole numbers, nearly all different, that are no amounts: of accounts, telephones, rows."""
        known = [value.removesuffix(".0") for value in self.known]
        plain = [value.removeprefix("+") for value in known]
        if self.written != "number" or not all(map(str.isdecimal, plain)) or len(plain) <= _MOST_CATEGORIES:
            return False
        if len(self.distinct) < _NEARLY * len(known):
            return False
        if _ISSUED.fullmatch(self.name.strip()) or any(each[0] in "+0" for each in known if len(each) > 1):
            return True
        numbers = sorted(map(int, plain))
        places = [
            (each - numbers[0]) / (numbers[-1] - numbers[0]) - place / len(numbers)
            for place, each in enumerate(numbers)
        ]
        even = len(numbers) >= _FEWEST_ISSUED and max(map(abs, places)) < _EVEN
        return even or (len({*map(len, plain)}) == 1 and len(plain[0]) >= _LONG)


@dataclass(frozen=True)
class Sample:
    """The first rows of a file.

    Attributes:
        path: of the file.
        form: how it is written.
        in_doubt: its encoding was guessed.
        columns: in its order.
        markers: texts found in it that seem to be no value.
        doubtful: those of them that do so by standing among numbers or dates alone.
    """

    path: Path
    form: Format
    in_doubt: bool
    columns: tuple[SampledColumn, ...]
    markers: tuple[str, ...]
    doubtful: tuple[str, ...] = ()

    @property
    def decimal(self) -> str:
        """Point of its numbers."""
        return "," if any({each.decimal for each in column.numbers} == {","} for column in self.columns) else "."


def sample(path: Path, encoding: str | None = None, missing: Sequence[str] = ()) -> Sample:
    """Reads the beginning of a table.

    Args:
        path: of the file.
        encoding: of text that is not UTF-8; None: it is guessed.
        missing: texts that are known to be no value.

    Raises:
        DataError: there is no such file, it is no table, has no rows, or two columns of one name.
    """
    if not path.name.endswith(SUFFIXES):
        raise DataError(f"{path}: a table is a file ending in {', '.join(SUFFIXES)}; convert it")
    in_doubt = False
    try:
        form = file_format(path, FormatSettings())
    except DataError:
        form, in_doubt = file_format(path, FormatSettings(encoding=encoding or _GUESSED)), encoding is None
    names, rows = _parquet_rows(path) if is_parquet(path) else _csv_rows(path, form)
    if not rows:
        raise DataError(f"{path}: 0 rows, from which nothing can be guessed; give a table that has some")
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise DataError(f"{path}: several columns are called {twice!r}, and a party file names one; rename the others")
    found = [[None if value in (None, "") else value for value in column] for column in zip(*rows, strict=True)]
    values = {value for column in found for value in column if value is not None}
    known = (_MARKERS | set(missing)) & values
    doubtful = {each for column in found for each in _among(column, known)}
    markers = tuple(sorted(known | doubtful))
    columns = tuple(
        SampledColumn(name, tuple(None if value in markers else value for value in column))
        for name, column in zip(names, found, strict=True)
        if name and not _ROW_NUMBERS.fullmatch(name)  # pandas writes them without a name, or by this one
    )
    return Sample(path, form, in_doubt, columns, markers, tuple(sorted(doubtful)))


def distinct_values(sample: Sample, name: str) -> list[str]:
    """Every value that a column has in the whole file, once.

    Raises:
        DataError: the file cannot be read to its end.
    """
    found: pa.Array = None
    for (column,) in stream(sample.path, [name], None, sample.form):
        values = pc.drop_null(pc.cast(column.values, pa.string()))
        found = pc.unique(values if found is None else pa.concat_arrays([found, values]))
    return [] if found is None else [str(each) for each in found.to_pylist()]


def _among(column: Sequence[str | None], markers: Collection[str]) -> set[str]:
    """Texts of a column that seem to be no value: they recur, and all others are numbers, or dates of a format."""
    kept = SampledColumn("", tuple(None if value in markers else value for value in column))
    if kept.written not in ("text", "category") or kept.has_few:
        return set()
    # only what recurs is looked at: to read a value in every way takes milliseconds
    often = (value for value, count in Counter(kept.known).most_common() if count > 1)
    odd = (value for value in often if SampledColumn("", (value,)).written not in ("number", "date"))
    again = [*islice(odd, _MOST_MARKERS)]
    for places in range(1, len(again) + 1):
        left = SampledColumn("", tuple(None if value in again[:places] else value for value in kept.values))
        if left.written in ("number", "date") and 2 * len(left.known) > len(kept.known):
            return set(again[:places])
    return set()


def _csv_rows(path: Path, form: Format) -> tuple[list[str], list[Sequence[str | None]]]:
    with readable(path), pa.input_stream(str(path), compression="detect") as file:
        content = file.read(SAMPLE_BYTES)
    whole = len(content) < SAMPLE_BYTES
    text = codecs.getincrementaldecoder(form.encoding)().decode(content, final=whole).lstrip("\ufeff")
    lines = text.splitlines(keepends=True)
    names, *rows = [*filter(None, csv.reader(lines if whole else lines[:-1], delimiter=form.delimiter))] or [[]]
    known: list[Sequence[str | None]] = [row for row in rows if len(row) == len(names)]
    if rows and not known:
        raise DataError(
            f"{path}: no row has {len(names)} values (delimiter {form.delimiter!r}), as its first line has; the first "
            "line is to be the columns' names: delete what is above them, or write the party file by hand"
        )
    return [*number_repeated_names(names)], _spread(known)


def _spread(rows: list[Sequence[str | None]]) -> list[Sequence[str | None]]:
    """At most ``ROWS`` of them, evenly."""
    return rows if len(rows) <= ROWS else [rows[place * len(rows) // ROWS] for place in range(ROWS)]


def _parquet_rows(path: Path) -> tuple[list[str], list[Sequence[str | None]]]:
    with readable(path), pa.parquet.ParquetFile(path) as file:
        batch = next(file.iter_batches(_BATCH, row_groups=[0]), None) if file.num_row_groups else None
        names = list(file.schema_arrow.names)
    if batch is None:
        return names, []
    return names, _spread(
        list(zip(*([_written(value) for value in column.to_pylist()] for column in batch), strict=True))
    )


def _written(value: object) -> str | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_date(value: str, written: str) -> bool:
    try:
        if written:
            datetime.strptime(value, written)
        else:
            datetime.fromisoformat(value)
    except ValueError:
        return False
    return True
