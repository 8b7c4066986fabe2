"""Text of a stranger or of a table, for a terminal, a log or a page: nothing in it can move a cursor or hide."""

from __future__ import annotations

import json
import logging
from typing import Final

_LINES: Final = "\n\t"


def printable(text: object, characters: int | None = None) -> str:
    r"""Return one line in which every character shows itself.

    Control characters, escape sequences, line breaks, text direction marks and lone surrogates become their escapes in
    JSON, as ``\u001b``.

    Args:
        text: of anybody.
        characters: longest result; the rest is cut off.
    """
    given = str(text) if characters is None else str(text)[:characters]
    return given if given.isprintable() else "".join(map(_shown, given))[:characters]


def printable_lines(text: object) -> str:
    """Return the same for text of several lines, whose line breaks and tabs stay."""
    given = str(text)
    return given if given.isprintable() else "".join(each if each in _LINES else _shown(each) for each in given)


class PrintableRecords(logging.Filter):
    """Makes every record of a log one printable line, and a traceback printable, whatever handler writes it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite a record."""
        record.msg, record.args = printable(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = printable_lines(logging.Formatter().formatException(record.exc_info))
        return True


def _shown(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]
