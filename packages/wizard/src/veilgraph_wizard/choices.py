"""What somebody who knows the tables has decided, where a first draft of a party file would else guess."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import ValidationError

from veilgraph.core.errors import ConfigError
from veilgraph.tables.column_settings import Duplicates, FormatSettings
from veilgraph_wizard import Protected

RANDOM: Final = "random"
_FEWEST_OF_KEY: Final = 16
_ALIKE: Final = ("strip", "lower", "unpadded")


@dataclass(frozen=True)
class SplitByDate:
    """Training before one day, validation before the other, the rest tested: by a column of dates."""

    column: str
    train_before: date
    val_before: date


@dataclass(frozen=True)
class SplitByKey:
    """At random by each id under a secret, so that holders who have the same key have a node in the same split."""

    key: str


@dataclass(frozen=True)
class Choices:
    """Decisions; what is None or empty is guessed, and said to be.

    Attributes:
        id: column of ids of the node table.
        ids: how ids are written alike, of ``strip``, ``lower`` and ``unpadded``; the empty tuple: as they stand.
        label: column of classes, of any file of nodes.
        labelled: False: no label and no split, for this holder is not the label holder.
        split: at random, by a key, or by a date.
        as_of: the day of which features tell: dates count from it, and later edges are left out.
        missing: texts that are no value, besides those found.
        encoding: of text that is not UTF-8.
        left_out: columns that are no features.
        features: columns that are features where one would be left out, as beside the label in a file of its own.
        ends: pairs of columns, the source and the target of a file of edges.
        ranges: column → the least and the largest value that its numbers can have.
        protect: what an ε is to be about, and so must be made of its own row alone.
        duplicates: which of several rows of one id counts, ``first`` or ``last``; ``refuse``: none may repeat.
        directed: whether edges lead from the source to the target alone.
        joins: whether edges to other holders' nodes are for a union, which takes logarithms of their weights itself.
    """

    id: str | None = None
    ids: tuple[str, ...] | None = None
    label: str | None = None
    labelled: bool = True
    split: SplitByDate | SplitByKey | Literal["random"] | None = None
    as_of: date | None = None
    missing: tuple[str, ...] = ()
    encoding: str | None = None
    left_out: frozenset[str] = frozenset()
    ends: tuple[tuple[str, str], ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    protect: Protected | None = None
    features: frozenset[str] = frozenset()
    duplicates: Duplicates | None = None
    directed: bool | None = None
    joins: bool = True

    @property
    def of_own_row(self) -> bool:
        """Whether a node's features are to be made of its own row alone."""
        return self.protect in ("node", "node-edges", "training-record")

    @property
    def of_own_edge(self) -> bool:
        """Whether an edge's weight is to be made of its own row alone."""
        return self.protect in ("edge", "node-edges")

    @property
    def of_own_label(self) -> bool:
        """Whether classes are to be of what a label can be, and who is trained on to hang on no label."""
        return self.protect in ("label", "node-edges")

    @classmethod
    def read(
        cls,
        *,
        id: str | None = None,  # noqa: A002 - the key's name
        ids: str | None = None,
        label: str | None = None,
        labelled: bool = True,
        split: str | None = None,
        as_of: str | None = None,
        missing: tuple[str, ...] = (),
        encoding: str | None = None,
        left_out: tuple[str, ...] = (),
        ends: tuple[str, ...] = (),
        ranges: tuple[str, ...] = (),
        protect: Protected | None = None,
        features: tuple[str, ...] = (),
        duplicates: Duplicates | None = None,
        directed: bool | None = None,
        joins: bool = True,
    ) -> Self:
        """From texts, as a command is given them.

        Raises:
            ConfigError: names the option, its value and the rule.
        """
        if not labelled and (label is not None or split is not None):
            given = f"--label {label}" if label is not None else f"--split {split}"
            raise ConfigError(f"{given}: is of a label holder, and --no-label says that this is none; leave one out")
        if encoding is not None:
            _check_encoding(encoding)
        return cls(
            id,
            None if ids is None else _alike(ids),
            label,
            labelled,
            None if split is None else _split(split),
            None if as_of is None else _day(as_of, f"--as-of {as_of}"),
            missing,
            encoding,
            frozenset(left_out),
            tuple(map(_ends, ends)),
            dict(map(_range, ranges)),
            protect,
            frozenset(features),
            duplicates,
            directed,
            joins,
        )


def _alike(text: str) -> tuple[str, ...]:
    words = tuple(word for word in text.split(",") if word != "exact")
    if text != "exact" and not (words and set(words) <= set(_ALIKE)):
        raise ConfigError(
            f"--ids {text}: is neither exact nor some of {', '.join(_ALIKE)}; give them as in strip,lower"
        )
    return words


def _ends(text: str) -> tuple[str, str]:
    match text.split(":"):
        case [source, target] if source and target and source != target:
            return source, target
    raise ConfigError(f"--ends {text}: is not SOURCE:TARGET, two columns of a file of edges, as in buyer:seller")


def _range(text: str) -> tuple[str, tuple[float, float]]:
    column, *ends = text.rsplit(":", 2)
    with suppress(ValueError):
        low, high = map(float, ends)
        if column and low < high and math.isfinite(high - low):
            return column, (low, high)
    raise ConfigError(
        f"--range {text}: is not COLUMN:LOW:HIGH, the least and the largest number that it can have, as in age:0:120"
    )


def _split(text: str) -> SplitByDate | SplitByKey | Literal["random"]:
    if text == RANDOM:
        return "random"
    if text.startswith(f"{RANDOM}:"):
        return _key(Path(text.removeprefix(f"{RANDOM}:")), f"--split {text}")
    column, *days = text.rsplit(":", 2)
    where = f"--split {text}"
    if len(days) != 2 or not column:
        raise ConfigError(
            f"{where}: is neither random, random:FILE nor COLUMN:DATE:DATE, as in confirmed_at:2024-05-01:2024-06-01"
        )
    first, second = (_day(each, where) for each in days)
    if first >= second:
        raise ConfigError(f"{where}: {first} must be earlier than {second}; training comes before validation")
    return SplitByDate(column, first, second)


def _key(path: Path, where: str) -> SplitByKey:
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: the key cannot be read ({error}); draw one: openssl rand -hex 16") from error
    if len(key) < _FEWEST_OF_KEY or "\n" in key:
        rule = f"a key is one line of {_FEWEST_OF_KEY} characters or more"
        raise ConfigError(f"{where}: {rule}; draw one: openssl rand -hex 16 > {path.name}")
    return SplitByKey(key)


def _day(text: str, where: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {text!r} is no day in ISO; write it as 2024-05-01") from error


def _check_encoding(name: str) -> None:
    try:
        FormatSettings(encoding=name)
    except ValidationError as error:
        raise ConfigError(f"--encoding {name}: no text is written so; try cp1252 or latin-1") from error
