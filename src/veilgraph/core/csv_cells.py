"""Text of tables in CSV files that people open in spreadsheets: it stays text, and can be read back.

A spreadsheet runs a cell that begins with ``=``, ``+``, ``-`` or ``@``, also after white space, and where the file is
split at other separators than commas. An apostrophe before it makes the cell text.
"""

from __future__ import annotations

import re
from typing import Final

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
