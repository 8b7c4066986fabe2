"""What a party file says of a file of a table and of its columns: how these become features, and what looks at all."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    field_validator,
    model_validator,
)

from veilgraph.core.settings import Settings

SUFFIXES: Final = (".csv", ".csv.gz", ".parquet")
WHOLE: Final = r"(-?[0-9]+)(?:\.0*)?"
"""Pattern of a whole number, with or without a decimal point."""


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

    decimal: Literal[".", ",", "either"] = "."
    """point; either: each number has its own, and ambiguous ones are refused"""
    thousands: Literal["", ",", ".", " ", "'"] = ""
    """between groups of three digits; empty: none"""
    unit: str = ""
    """before or after a number, such as €, % or kg; dropped"""

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

    delimiter: Annotated[str, BeforeValidator(_check_delimiter)] | None = None
    """CSV: one character, or tab; null: detected"""
    encoding: Annotated[str, AfterValidator(_check_encoding)] | None = None
    """CSV: such as cp1252; null: UTF-8, or by byte order mark"""
    missing_values: tuple[str, ...] = ()
    """texts for no value, besides the empty one"""
    decimal: Literal[".", ","] = "."
    """point of numbers in text"""
    numbers: dict[str, NumberSettings] = Field({})
    """column → how its numbers are written, where it is not as decimal says"""

    def check_format(self, file: Path) -> None:
        """Raise ``ValueError`` if ``delimiter`` or ``encoding`` is set for a Parquet file."""
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

    strip: bool = False
    """without white space at either end"""
    lower: bool = False
    """without case, fully folded: ß is ss"""
    unpadded: bool = False
    """without zeros in front: 00042 is 42"""


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


def _check_time_format(value: str) -> str:
    if "%" not in value:
        raise ValueError("is no format of strptime; write it as in %d.%m.%Y or %m/%d/%Y %H:%M")
    return value


Moment = Annotated[
    datetime, BeforeValidator(_moment, json_schema_input_type=str), PlainSerializer(datetime.isoformat, return_type=str)
]
"""A date or a time; with a zone, its UTC."""

_OneFormat = Annotated[str, AfterValidator(_check_time_format)]
TimeFormat = _OneFormat | Annotated[tuple[_OneFormat, ...], Field(min_length=2)]
"""Strptime's format of text, or several: a value is of the first that fits."""


class DateSettings(Settings):
    """What of a date becomes a feature; every one that is given is a column, or two."""

    days_since: Moment | None = None
    """days since this date, times as fractions"""
    age_at: Moment | None = None
    """years until this date, of 365.2425 days"""
    parts: tuple[Part, ...] = ()
    """the year, and sine and cosine of the month in the year and of the day in the week"""
    format: TimeFormat | None = None
    """of text, as in %d.%m.%Y; null: ISO, as in 2024-01-31"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.names:
            raise ValueError("needs days_since, age_at or parts, which say what becomes of a date; give one")
        if len(set(self.parts)) < len(self.parts):
            raise ValueError(f"parts={list(self.parts)!r} has one twice; remove it")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that a date becomes, in order; a cyclic part has a sine and a cosine."""
        numbers = [name for name, moment in (("days", self.days_since), ("age", self.age_at)) if moment is not None]
        pairs = [[f"{part} sin", f"{part} cos"] if part in CYCLES else [part] for part in self.parts]
        return (*numbers, *(name for pair in pairs for name in pair))


MissingNumber = Literal["error", "zero", "mean"]
_MISSING_NUMBERS: Final[tuple[MissingNumber, ...]] = get_args(MissingNumber)
_DECLARED: Final = frozenset({"error", "zero", "category"})
"""Words for a missing value that say what becomes of it without a look at any other row; so does a number."""
_LARGEST: Final = 3.4028234663852886e38  # of float32, in which numbers of tables are kept


def _as_text(value: object) -> object:
    """Turn an integer or boolean of a setting into text, as a table's values are compared as text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | int) else value


def whole_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without a decimal point, 1 for 1.0, where all are whole numbers; else as they are."""
    names = tuple(names)
    found = [re.fullmatch(WHOLE, name.strip()) for name in names]
    return tuple(each[1] for each in found if each) if all(found) else names


def check_distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values; ``ValueError`` if two are equal but for white space at the ends."""
    plain = [value.strip() for value in values]
    twice = next((value for index, value in enumerate(values) if plain[index] in plain[:index]), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is given twice; remove one")
    return values


Text = Annotated[str, Field(min_length=1), BeforeValidator(_as_text)]
Columns = Annotated[
    tuple[Text, ...], Field(min_length=1), BeforeValidator(_as_list, json_schema_input_type=tuple[Text, ...] | Text)
]


class ScaleSettings(Settings):
    """A declared range of numbers: a value is cut to [low, high], and that becomes [0, 1]."""

    low: float = Field(allow_inf_nan=True)
    """becomes 0, as does every value below it"""
    high: float = Field(allow_inf_nan=True)
    """becomes 1, as does every value above it; both must be known without looking at the data"""

    @field_validator("low", "high")
    @classmethod
    def _check_finite(cls, value: float) -> float:
        if not abs(value) <= _LARGEST:
            raise ValueError("must be a finite number of float32; give the end of the range of plausible values")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low={self.low!r} must be below high={self.high!r}: a range needs two ends; mend one")
        return self


def _check_scale_range(value: object) -> object:
    if value is None or isinstance(value, dict | ScaleSettings):
        return value
    raise ValueError(
        "must be a declared range, as in {low: 0, high: 100}; scaling that is fitted to the rows is the job's "
        "data.feature_scaling: give a range, or leave scale out"
    )


class NumericFeatures(Settings):
    """Columns of numbers, each one column of the features."""

    columns: Columns
    missing: MissingNumber | float = "error"
    """a missing value stops, or becomes 0, the mean of the training table (horizontal: of all holders' training
    tables), or this number
    """
    scale: Annotated[ScaleSettings | None, BeforeValidator(_check_scale_range)] = None
    """a declared range, which becomes [0, 1]: a value outside it, or a mean that fills one in, is cut to it; null: as
    it is
    """

    @field_validator("missing", mode="plain")
    @classmethod
    def _check_missing(cls, value: object) -> MissingNumber | float:
        for word in _MISSING_NUMBERS:
            if value == word:
                return word
        try:
            number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError("must be error, zero, mean or a finite number (category: only with categories)")
        return number

    @model_validator(mode="after")
    def _check_fill(self) -> Self:
        fill = 0.0 if self.missing == "zero" else self.missing
        if self.scale is not None and isinstance(fill, float) and not self.scale.low <= fill <= self.scale.high:
            raise ValueError(
                f"missing={self.missing!r} lies outside scale, low={self.scale.low!r} to high={self.scale.high!r}, in "
                "the column's own units; set missing to a number within it, or widen scale"
            )
        return self


class BooleanFeatures(NumericFeatures):
    """Columns of truth values, which become 1 and 0."""

    boolean: bool
    """true: true, yes, t, y, 1 are 1 and false, no, f, n, 0 are 0, in any case"""

    @model_validator(mode="after")
    def _check_boolean(self) -> Self:
        if not self.boolean:
            raise ValueError("boolean=false is what holds without it; leave it out")
        if self.scale is not None:
            raise ValueError("scale is for numbers, and truth values are 0 and 1 already; leave scale out, or boolean")
        return self


class DateFeatures(NumericFeatures):
    """Columns of dates, each of which becomes one or several columns of numbers."""

    date: DateSettings

    @model_validator(mode="after")
    def _check_date(self) -> Self:
        several = len(self.date.names) > 1 or self.date.parts
        for key, value in (("scale", self.scale), ("missing", self.missing)):
            if several and value is not None and not isinstance(value, str):
                names = ", ".join(self.date.names)
                raise ValueError(
                    f"{key}={value!r} is for one number, and this date becomes several ({names}); put days_since or "
                    "age_at into an entry of its own"
                )
        return self


class CategoricalFeatures(Settings):
    """Columns of categories, each one column of 0 and 1 per category."""

    columns: Columns
    categories: Annotated[tuple[Text, ...], Field(min_length=1)]
    missing: Literal["error", "zero", "category"] = "error"
    """a missing value stops, or becomes all zeros, or a category of its own"""
    other: Literal["error", "zero"] = "error"
    """a value outside categories stops or is all zeros"""

    @model_validator(mode="before")
    @classmethod
    def _check_scale(cls, data: object) -> object:
        if isinstance(data, dict) and "scale" in data:
            raise ValueError(
                f"scale={data['scale']!r} is for numbers, and categories become 0 and 1; leave scale out, or categories"
            )
        return data

    @field_validator("categories")
    @classmethod
    def _check_categories(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return check_distinct(values)


_KINDS: Final = (
    ("categories", CategoricalFeatures, "(categorical)"),
    ("boolean", BooleanFeatures, "(boolean)"),
    ("date", DateFeatures, "(date)"),
)
"""What an entry of a kind has, besides numbers."""


def _feature_tag(value: object) -> str:
    if isinstance(value, dict):
        return next((tag for key, _, tag in _KINDS if key in value), "(numeric)")
    return next((tag for _, kind, tag in _KINDS if isinstance(value, kind)), "(numeric)")


Features = Annotated[
    Annotated[NumericFeatures, Tag("(numeric)")]
    | Annotated[BooleanFeatures, Tag("(boolean)")]
    | Annotated[DateFeatures, Tag("(date)")]
    | Annotated[CategoricalFeatures, Tag("(categorical)")],
    Discriminator(_feature_tag),
]


def beyond_own_row(
    features: Sequence[NumericFeatures | CategoricalFeatures], scaling: str = "none", *, named: bool = True
) -> list[str]:
    """Why a node's features would depend on the rows of other nodes: a reason for every entry, and one for the scaling.

    Only where there is none is one node's ε about what that node has. ``named`` adds columns' names, which only their
    owner may see.
    """
    reasons = []
    for place, feature in enumerate(features):
        if not (isinstance(feature.missing, float) or feature.missing in _DECLARED):
            reasons.append(
                f"{_label(place, feature.columns, named=named)}: missing={feature.missing} is computed from all rows; "
                "set missing to a number, zero or error"
            )
    if scaling not in ("none", "row", "length"):
        reasons.append(
            f"data.feature_scaling={scaling} is fitted to all rows; set it to none, row or length, and declare "
            "ranges in the party file (nodes.features, scale)"
        )
    return reasons


def scaled_twice(features: Sequence[NumericFeatures | CategoricalFeatures], scaling: str, *, named: bool = True) -> str:
    """Return why ``standard`` scaling after declared ranges is refused, else empty; ``named`` shows columns' names."""
    declared = [
        _label(place, feature.columns, named=named)
        for place, feature in enumerate(features)
        if isinstance(feature, NumericFeatures) and feature.scale is not None
    ]
    if scaling != "standard" or not declared:
        return ""
    return (
        f"{declared[0]}: scale declares a range, and data.feature_scaling={scaling} would fit means and deviations on "
        "top; set data.feature_scaling to none, row or length, or leave scale out"
    )


def declared_values(features: Sequence[NumericFeatures | CategoricalFeatures]) -> tuple[float, float] | None:
    """The least and the largest value that a feature can have, whatever the rows hold; None where rows decide."""
    numbers = [each for each in features if isinstance(each, NumericFeatures)]
    if any(each.scale is None and not isinstance(each, BooleanFeatures) for each in numbers):
        return None
    fills = [each.missing for each in numbers if each.scale is None and isinstance(each.missing, float)]
    return min([0.0, *fills]), max([1.0, *fills])


def _label(place: int, columns: Sequence[str], *, named: bool) -> str:
    rest = f" and {len(columns) - 1} more" if len(columns) > 1 else ""
    return f"nodes.features.{place}" + (f" (column {columns[0]!r}{rest})" if named else "")
