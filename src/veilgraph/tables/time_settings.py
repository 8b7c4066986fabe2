"""Dates and times in settings: moments, and how a column of them is written."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from veilgraph.core.settings import Settings

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
