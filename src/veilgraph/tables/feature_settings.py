"""How columns of a node table become features: ``nodes.features`` of a party file, and what of it looks at all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from veilgraph.core.settings import Settings
from veilgraph.tables.file_settings import DateSettings

MissingNumber = Literal["error", "zero", "mean"]
_MISSING_NUMBERS: Final[tuple[MissingNumber, ...]] = get_args(MissingNumber)
_DECLARED: Final = frozenset({"error", "zero", "category"})
"""Words for a missing value that say what becomes of it without a look at any other row; so does a number."""
_LARGEST: Final = 3.4028234663852886e38
"""Of float32, in which numbers of tables are kept."""


def _as_text(value: object) -> object:
    """Values of a table are compared as text, so a number or a boolean in a setting is its text too."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | int) else value


def check_distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    """The values, each of which is given once."""
    twice = next((value for index, value in enumerate(values) if value in values[:index]), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is given twice; remove one")
    return values


Text = Annotated[str, Field(min_length=1), BeforeValidator(_as_text)]
Columns = Annotated[
    tuple[Text, ...], Field(min_length=1), BeforeValidator(_as_list, json_schema_input_type=tuple[Text, ...] | Text)
]


class ScaleSettings(Settings):
    """A declared range of numbers: a value is cut to [low, high], and that becomes [0, 1]."""

    low: float = Field(allow_inf_nan=True, description="becomes 0, as does every value below it")
    high: float = Field(
        allow_inf_nan=True,
        description="becomes 1, as does every value above it; both must be known without looking at the data",
    )

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


def _as_scale(value: object) -> object:
    if value is None or isinstance(value, dict | ScaleSettings):
        return value
    raise ValueError(
        "must be a declared range, as in {low: 0, high: 100}; scaling that is fitted to the rows is the job's "
        "data.feature_scaling: give a range, or leave scale out"
    )


class NumericFeatures(Settings):
    """Columns of numbers, each one column of the features."""

    columns: Columns
    missing: MissingNumber | float = Field(
        "error",
        description="a missing value stops, or becomes 0, the mean of the training table (horizontal: of all holders' "
        "training tables), or this number",
    )
    scale: Annotated[ScaleSettings | None, BeforeValidator(_as_scale)] = Field(
        None,
        description="a declared range, which becomes [0, 1]: a value outside it, or a mean that fills one in, is cut "
        "to it; null: as it is",
    )

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
    def _check(self) -> Self:
        fill = 0.0 if self.missing == "zero" else self.missing
        if self.scale is not None and isinstance(fill, float) and not self.scale.low <= fill <= self.scale.high:
            raise ValueError(
                f"missing={self.missing!r} lies outside scale, low={self.scale.low!r} to high={self.scale.high!r}, in "
                "the column's own units; set missing to a number within it, or widen scale"
            )
        return self


class BooleanFeatures(NumericFeatures):
    """Columns of truth values, which become 1 and 0."""

    boolean: bool = Field(description="true: true, yes, t, y, 1 are 1 and false, no, f, n, 0 are 0, in any case")

    @model_validator(mode="after")
    def _check_boolean(self) -> Self:
        if not self.boolean:
            raise ValueError("boolean=false says nothing: columns are numbers without it; leave it out")
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
                    f"{key}={value!r} is of one number, and date gives {names}; give days_since or age_at an entry of "
                    "its own"
                )
        return self


class CategoricalFeatures(Settings):
    """Columns of categories, each one column of 0 and 1 per category."""

    columns: Columns
    categories: Annotated[tuple[Text, ...], Field(min_length=1)]
    missing: Literal["error", "zero", "category"] = Field(
        "error", description="a missing value stops, or becomes all zeros, or a category of its own"
    )
    other: Literal["error", "zero"] = Field("error", description="a value outside categories stops or is all zeros")

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


def _feature_kind(value: object) -> str:
    if isinstance(value, dict):
        return next((tag for key, _, tag in _KINDS if key in value), "(numeric)")
    return next((tag for _, kind, tag in _KINDS if isinstance(value, kind)), "(numeric)")


Features = Annotated[
    Annotated[NumericFeatures, Tag("(numeric)")]
    | Annotated[BooleanFeatures, Tag("(boolean)")]
    | Annotated[DateFeatures, Tag("(date)")]
    | Annotated[CategoricalFeatures, Tag("(categorical)")],
    Discriminator(_feature_kind),
]


def beyond_own_row(
    features: Sequence[NumericFeatures | CategoricalFeatures], scaling: str = "none", *, named: bool = True
) -> list[str]:
    """Why a node's features would depend on the rows of other nodes; nothing where its own row alone makes them.

    Only then is one node's ε about what that node has, and not about what the others' encoding tells of it.

    Args:
        features: ``nodes.features`` of a party file.
        scaling: the job's ``data.feature_scaling``.
        named: with the columns' names, which only their owner may see; else their place in the party file alone.

    Returns:
        One reason for every entry of ``features``, and one for the scaling; each with its way out.
    """
    reasons = []
    for place, feature in enumerate(features):
        if not (isinstance(feature.missing, float) or feature.missing in _DECLARED):
            reasons.append(
                f"{_entry(place, feature.columns, named=named)}: missing={feature.missing} is computed from all rows; "
                "set missing to a number, zero or error"
            )
    if scaling not in ("none", "row", "length"):
        reasons.append(
            f"data.feature_scaling={scaling} is fitted to all rows; set it to none, row or length, and declare "
            "ranges in the party file (nodes.features, scale)"
        )
    return reasons


def scaled_twice(features: Sequence[NumericFeatures | CategoricalFeatures], scaling: str, *, named: bool = True) -> str:
    """Why declared ranges do not go with a job's scaling; empty where they do. Arguments as for ``beyond_own_row``."""
    declared = [
        _entry(place, feature.columns, named=named)
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


def _entry(place: int, columns: Sequence[str], *, named: bool) -> str:
    """An entry of ``nodes.features``, as keys of settings are named elsewhere."""
    rest = f" and {len(columns) - 1} more" if len(columns) > 1 else ""
    return f"nodes.features.{place}" + (f" (column {columns[0]!r}{rest})" if named else "")
