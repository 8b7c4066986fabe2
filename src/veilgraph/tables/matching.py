"""Whether enough of a holder's own ids are common to all, and what of how they are written may keep them apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from veilgraph.tables.file_settings import IdSettings

_ENOUGH: Final = 0.8
_FEWEST: Final = 2
"""Ids of which a beginning in common says something."""


def match_rate(common: int, ids: Sequence[str], spelling: IdSettings) -> tuple[str, bool]:
    """What a holder is told of its match rate, from its own ids alone; and whether it is a warning.

    Args:
        common: of its ids, how many all holders have.
        ids: of its table, one or more, written alike.
        spelling: how they were written alike.
    """
    text = f"{common:,} of {len(ids):,} own ids ({common / len(ids):.0%}) are common to all holders"
    if common >= _ENOUGH * len(ids):
        return text, False
    hints = "; ".join(_hints(ids, spelling))
    return f"{text}, and less than {_ENOUGH:.0%} is rarely meant. Compare how holders write ids: {hints}", True


def _hints(ids: Sequence[str], spelling: IdSettings) -> Iterator[str]:
    if all(each.isdecimal() for each in ids):
        zeros = any(each[0] == "0" and len(each) > 1 for each in ids)
        yield (
            "these have leading zeros, which others may have lost"
            if zeros
            else ("these have no leading zeros, which a spreadsheet takes away and others may have kept")
        )
    first, last = min(ids), max(ids)
    alike = next((place for place, each in enumerate(zip(first, last, strict=False)) if len({*each}) > 1), len(first))
    start = first[:alike].rstrip("0123456789") if len(ids) >= _FEWEST else ""
    if start:
        yield f"these all begin with {start!r}, which others may leave out"
    if not spelling.strip and any(each != each.strip() for each in ids):
        yield "some have spaces at an end (ids: {strip: true} at all holders)"
    if not spelling.lower and any(each != each.casefold() for each in ids):
        yield "some have capitals (ids: {lower: true} at all holders)"
    if not all(each.isascii() for each in ids):
        yield "some have letters beyond ASCII, which others may write otherwise, as ss for ß"
    yield "others may have other people, or ids of another system"
