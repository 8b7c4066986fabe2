"""Text that people read: safe in a terminal and in a spreadsheet, small pieces of English, lines with facts.

What a stranger or a table has written can neither move a terminal's cursor nor hide there, and no spreadsheet runs it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, Self

_LINES: Final = "\n\t"


def printable(text: object, characters: int | None = None) -> str:
    r"""Return text on one line, unprintable characters as JSON escapes; ``characters`` is the most to return."""
    given = str(text) if characters is None else str(text)[:characters]
    return given if given.isprintable() else "".join(map(_escaped, given))[:characters]


def printable_lines(text: object) -> str:
    """Return text with unprintable characters as JSON escapes; line breaks and tabs stay."""
    given = str(text)
    return given if given.isprintable() else "".join(each if each in _LINES else _escaped(each) for each in given)


class PrintableRecords(logging.Filter):
    """Makes every record of a log one printable line, and a traceback printable, whatever handler writes it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Make a record's message and traceback printable in place, and let it pass."""
        record.msg, record.args = printable(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = printable_lines(logging.Formatter().formatException(record.exc_info))
        return True


def _escaped(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


# A spreadsheet runs a cell that begins with =, +, - or @, also after white space, and where it splits the file at other
# separators than commas. An apostrophe before it makes the cell text.
_BEGINS: Final = r"(?:^|(?<=[,;|\t\r\n]))"
_BLANK: Final = r"(?:[^\S\t\r\n]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\ufeff])*"
_RUNS: Final = rf"(?='*{_BLANK}[=+\-@\uff1d\uff0b\uff0d\uff20\t\r\n])"
_ADDED: Final = re.compile(_BEGINS + _RUNS)
_REMOVED: Final = re.compile(_BEGINS + "'" + _RUNS)


def csv_cell(text: str) -> str:
    """Return a text as a cell that no spreadsheet runs: an apostrophe stands before what it would run."""
    return _ADDED.sub("'", text)


def text_of_cell(cell: str) -> str:
    """Return the text of which ``csv_cell`` made a cell."""
    return _REMOVED.sub("", cell)


TRUST: Final = (
    "This rests on all parties following the protocol, and on the server colluding with no holder: together they could "
    "undo masks and shares."
)
"""What a protocol of honest parties rests on."""


_CAUSE: Final = 300


def cause_line(error: Exception) -> str:
    """Return an error on one printable line, cut to 300 characters, with its class where it is no error of ours."""
    own = type(error).__module__.startswith("veilgraph.")
    words = " ".join(str(error).split()) or "no words"
    return printable(words if own else f"{type(error).__name__}: {words}", _CAUSE)


def class_label(name: str) -> str:
    """Return a class's name for a sentence: ``class 3`` where it is a number, else as it is."""
    return f"class {name}" if re.fullmatch(r"[-+]?\d+([.,]\d+)?", name) else name


def listed(names: Sequence[str]) -> str:
    """Join names as ``A``, ``A and B`` or ``A, B and C``; ``nobody`` for none."""
    if not names:
        return "nobody"
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun, ``1 epoch`` or ``1,797 nodes``; ``many`` is an irregular plural."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


_UNITS: Final = ("kB", "MB", "GB", "TB")


def human_bytes(count: int) -> str:
    """A number of bytes in decimal units with three digits or so: ``999 B``, ``1.5 kB``, ``128 MB``."""
    if count < 1000:
        return f"{count} B"
    value, unit = count / 1000, 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if value < 9.95 else f"{value:.0f} {_UNITS[unit]}"


def figure(value: float | None, digits: int = 3) -> str:
    """A number with fixed decimals; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


Level = Literal["info", "warning", "error"]
Report = Callable[[str], None]
"""Takes a line, or an ``Event``, when something happens that a person wants to know."""


class Event(str):
    """A line, its kind for programs, the engine's id of its job, or "", and further values apart from the words."""

    name: str
    level: Level
    job: str
    facts: Mapping[str, str | int | float]

    def __new__(  # noqa: D102
        cls, name: str, words: str, *, level: Level = "info", job: str = "", **facts: str | int | float
    ) -> Self:
        made = super().__new__(cls, words)
        made.name, made.level, made.job, made.facts = name, level, job, MappingProxyType(facts)
        return made
