"""What a party file says of any file of a table, whatever is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
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

    decimal: Literal[".", ","] = Field(".", description="the point")
    thousands: Literal["", ",", ".", " ", "'"] = Field("", description="between groups of three digits; empty: none")
    unit: str = Field("", description="before or after a number, as in €, % or kg; it is left out")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.thousands == self.decimal:
            raise ValueError(f"thousands={self.thousands!r} is the decimal point already; mend one")
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
