"""What a party file says of any file of a table: its format, ids, numbers, dates and times."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    model_validator,
)

from veilgraph.core.settings import Settings

SUFFIXES: Final = (".csv", ".csv.gz", ".parquet")


def _check_suffix(path: Path) -> Path:
    if not path.name.endswith(SUFFIXES):
        raise ValueError(f"a table is a file ending in {', '.join(SUFFIXES)}; convert it")
    return path


TablePath = Annotated[Path, AfterValidator(_check_suffix), Field(description="relative to the party file's folder")]


def _check_delimiter(value: object) -> object:
    value = "\t" if value == "tab" else value
    if isinstance(value, str) and (len(value) != 1 or not value.isascii() or value in '"\n\r'):
        raise ValueError("is one character of ASCII, and no quote or line break, or tab; leave it out to have it found")
    return value


def _check_encoding(value: str) -> str:
    try:
        "".encode(value)
    except (LookupError, ValueError) as error:
        raise ValueError("is no encoding of text that Python knows; write it as in utf-8, cp1252, utf-16") from error
    return value


class NumberSettings(Settings):
    """How people write the numbers of a column."""

    decimal: Literal[".", ",", "either"] = Field(
        ".", description="the point; either: each number has its own, and one that fits two ways is refused"
    )
    thousands: Literal["", ",", ".", " ", "'"] = Field("", description="between groups of three digits; empty: none")
    unit: str = Field("", description="before or after a number, as in €, % or kg; it is left out")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.thousands == self.decimal:
            raise ValueError(f"thousands={self.thousands!r} is the decimal point already; mend one")
        if self.decimal == "either" and self.thousands:
            raise ValueError(f"thousands={self.thousands!r}: with decimal=either marks are found; leave thousands out")
        return self


PLAIN_NUMBERS: Final = NumberSettings()


class FormatSettings(Settings):
    """How a file is written; what is not said is found in it."""

    delimiter: Annotated[str, BeforeValidator(_check_delimiter)] | None = Field(
        None, description="CSV: one character, or tab; null: found in the first rows"
    )
    encoding: Annotated[str, AfterValidator(_check_encoding)] | None = Field(
        None, description="CSV: as in cp1252; null: UTF-8, or what a byte order mark says"
    )
    missing_values: tuple[str, ...] = Field((), description="texts that are no value, besides the empty one")
    decimal: Literal[".", ","] = Field(".", description="point of numbers that are written as text")
    numbers: dict[str, NumberSettings] = Field(
        {}, description="column → how its numbers are written, where it is not as decimal says"
    )

    def check_format(self, file: Path) -> None:
        """Refuses, by ``ValueError``, what is about CSV for another file."""
        for key in ("delimiter", "encoding"):
            if is_parquet(file) and getattr(self, key) is not None:
                raise ValueError(f"{key}={getattr(self, key)!r} is for CSV, and {file} is Parquet; leave it out")


def is_parquet(path: Path) -> bool:
    """Whether a table is a Parquet file, by its name."""
    return path.name.endswith(".parquet")


def stem(path: Path) -> str:
    """The name of a table's file without its ending."""
    name = path.name
    for suffix in (".gz", ".csv", ".parquet"):
        name = name.removesuffix(suffix)
    return name


class TableFile(FormatSettings):
    """A file, and how it is written."""

    file: TablePath

    @model_validator(mode="after")
    def _check_file(self) -> Self:
        self.check_format(self.file)
        return self


Duplicates = Literal["refuse", "first", "last"]


class IdSettings(Settings):
    """How ids are written alike before any two are compared: those of nodes, labels and edges."""

    strip: bool = Field(False, description="without white space at either end")
    lower: bool = Field(False, description="without case, by Unicode's full case folding: ß is ss")


Part = Literal["year", "month", "weekday"]
CYCLES: Final = ("month", "weekday")
"""Parts that begin anew: each becomes a sine and a cosine."""


def _moment(value: object) -> object:
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime.combine(value, time())
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            raise ValueError("is no date in ISO format; write it as in 2024-01-31 or 2024-01-31T12:00") from error
    if not isinstance(value, datetime):
        raise ValueError("is no date; write it as in 2024-01-31 or 2024-01-31T12:00")
    return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)


def _check_format(value: str) -> str:
    if "%" not in value:
        raise ValueError("is no format of strptime; write it as in %d.%m.%Y or %m/%d/%Y %H:%M")
    return value


Moment = Annotated[
    datetime, BeforeValidator(_moment, json_schema_input_type=str), PlainSerializer(datetime.isoformat, return_type=str)
]
"""A date or a time; with a zone, its UTC."""

_OneFormat = Annotated[str, AfterValidator(_check_format)]
TimeFormat = _OneFormat | Annotated[tuple[_OneFormat, ...], Field(min_length=2)]
"""Strptime's format of text, or several: a value is of the first that fits."""


class DateSettings(Settings):
    """What of a date becomes a feature; every one that is given is a column, or two."""

    days_since: Moment | None = Field(None, description="days since this date, times as fractions")
    age_at: Moment | None = Field(None, description="years until this date, of 365.2425 days")
    parts: tuple[Part, ...] = Field(
        (), description="the year, and sine and cosine of the month in the year and of the day in the week"
    )
    format: TimeFormat | None = Field(None, description="of text, as in %d.%m.%Y; null: ISO, as in 2024-01-31")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.names:
            raise ValueError("needs days_since, age_at or parts, which say what becomes of a date; give one")
        if len(set(self.parts)) < len(self.parts):
            raise ValueError(f"parts={list(self.parts)!r} has one twice; remove it")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns that a date becomes, in order."""
        numbers = [name for name, moment in (("days", self.days_since), ("age", self.age_at)) if moment is not None]
        pairs = [[f"{part} sin", f"{part} cos"] if part in CYCLES else [part] for part in self.parts]
        return (*numbers, *(name for pair in pairs for name in pair))
