"""Small pieces of English: lists, counts, figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

TRUST: Final = (
    "This rests on all parties following the protocol, and on the server colluding with no holder: together they could "
    "undo masks and shares."
)
"""What a protocol of honest parties rests on."""


def called(name: str) -> str:
    """A class's name in a sentence; of a number that it is a class."""
    return f"class {name}" if re.fullmatch(r"[-+]?\d+([.,]\d+)?", name) else name


def listed(names: Sequence[str], *, none: str = "nobody") -> str:
    """``A``, ``A and B``, ``A, B and C``."""
    if not names:
        return none
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def counted(count: int, one: str, many: str | None = None) -> str:
    """``1 epoch``, ``1,797 nodes``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def figure(value: float | None, digits: int = 3) -> str:
    """A number with fixed decimals; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"
