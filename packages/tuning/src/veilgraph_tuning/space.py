"""What a tuner may vary: dotted keys of a job's settings, each with the values that it may take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import yaml

from veilgraph.core.arguments import check_several
from veilgraph.core.errors import ConfigError
from veilgraph.core.yaml_file import parse_yaml

Value = bool | int | float | str


@dataclass(frozen=True)
class Span:
    """Numbers from ``low`` to ``high``, both included.

    Attributes:
        low: the smallest.
        high: the largest.
        log: drawn evenly over their logarithms.
        whole: whole numbers alone.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __contains__(self, value: object) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= float(str(value)) <= self.high and (not self.whole or isinstance(value, int))

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{' log' if self.log else ''}"


@dataclass(frozen=True)
class Options:
    """One of some values.

    Attributes:
        values: two at least, distinct.
    """

    values: tuple[Value, ...]

    def __contains__(self, value: object) -> bool:
        return any(value == each and type(value) is type(each) for each in self.values)

    def __str__(self) -> str:
        return ",".join(map(str, self.values))


Choice = Span | Options
Space = Mapping[str, Choice]
"""Dotted key, such as ``train.learning_rate``, → what it may be."""

_MADE_OF: Final = "LOW..HIGH, 'LOW..HIGH log' or values between commas, as in train.learning_rate=0.001..0.1 log"


def read_choice(text: str) -> tuple[str, Choice]:
    """``key=low..high``, ``key=low..high log`` or ``key=a,b,c``: the key, and what it may be.

    Raises:
        ConfigError: it is neither, or there is nothing to choose from.
    """
    key, equals, said = (part.strip() for part in text.partition("="))
    if not (key and equals and said):
        raise ConfigError(f"vary={text!r} is not KEY=CHOICE; a choice is {_MADE_OF}", key="vary", value=text)
    return key, choice_of(key, said)


def choice_of(key: str, said: Choice | str | Sequence[Value]) -> Choice:
    """What a key may be, from text as in ``read_choice`` or from the values themselves; raises as it does."""
    if isinstance(said, Span | Options):
        return said
    if not isinstance(said, str):
        check_several(f"vary.{key}", said, "values")
        said = Options(tuple(dict.fromkeys(said)))
        if len(said.values) > 1:
            return said
        said = str(said)
    log = said.endswith(" log")
    low, between, high = said.removesuffix(" log").partition("..")
    values = tuple(dict.fromkeys(map(_value, said.split(","))))
    found = _span(low, high, log=log) if between else Options(values)
    if found is None or log > bool(between) or (isinstance(found, Options) and len(found.values) < 2):
        raise ConfigError(
            f"vary={key}: {said!r} leaves nothing to choose from; a choice is {_MADE_OF}, LOW below HIGH and, with "
            "log, above 0",
            key="vary",
            value=key,
        )
    return found


def _span(low: str, high: str, *, log: bool) -> Span | None:
    try:
        ends = float(low), float(high)
    except ValueError:
        return None
    if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]) or (log and ends[0] <= 0):
        return None
    return Span(*ends, log=log, whole=all(end.strip().lstrip("-").isdigit() for end in (low, high)))


def _value(text: str) -> Value:
    try:
        found = parse_yaml(text)
    except (yaml.YAMLError, ValueError):
        found = None
    return found if isinstance(found, bool | int | float | str) else text.strip()
