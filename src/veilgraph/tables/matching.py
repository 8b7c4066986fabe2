"""Whether enough of a holder's own ids are common to all, and what of how they are written may keep them apart."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from veilgraph.core.types import PartyId
from veilgraph.tables.convert import fold
from veilgraph.tables.file_settings import IdSettings

_ENOUGH: Final = 0.8
_FEWEST: Final = 2
"""Ids of which a beginning in common says something."""


_APART: Final = 0.95
"""Of a holder's ids that are still told apart once something is left out of them; else it is no way to write them."""
_GAIN: Final = 0.1
_WAYS: Final[Mapping[str, Callable[[str], str]]] = {
    "without leading zeros": lambda text: text.lstrip("0"),
    "without case (ids: {lower: true} at all holders)": fold,
    "without spaces (ids: {strip: true} takes those at the ends)": lambda text: "".join(text.split()),
    "in one Unicode form (NFKC)": lambda text: unicodedata.normalize("NFKC", text),
    "without what is before the digits": lambda text: re.sub(r"^\D+(?=\d)", "", text),
    "without what is before the digits, and leading zeros": lambda text: re.sub(r"^\D*0*(?=\d)", "", text),
}


def all_match_rates(ids: Mapping[PartyId, Sequence[str]]) -> tuple[str, str]:
    """Every holder's match rate, where all tables are in one place, and what keeps ids apart; empty where nothing does.

    Args:
        ids: holder → its ids, each once, written alike.
    """
    common = _common(ids.values())
    each = ", ".join(f"{name} {common:,} of {len(own):,} ({common / len(own):.0%})" for name, own in ids.items())
    said = f"ids that are common to all holders: {each}"
    if all(common >= _ENOUGH * len(own) for own in ids.values()):
        return said, ""
    found = {way: [{*map(change, own)} for own in ids.values()] for way, change in _WAYS.items()}
    counts = {
        way: _common(sets)
        for way, sets in found.items()
        if all(len(some) >= _APART * len(own) for some, own in zip(sets, ids.values(), strict=True))
    }
    best = max(counts, key=lambda way: counts[way], default="")
    if not best or counts[best] < common + _GAIN * min(map(len, ids.values())):
        why = "zeros, case, spaces, a prefix or the Unicode form do not explain it: holders may have other people"
    else:
        why = f"written {best}, {counts[best]:,} would be; write them alike at all holders"
    return said, f"less than {_ENOUGH:.0%} of a holder's ids are common to all: {why}"


def _common(ids: Iterable[Iterable[str]]) -> int:
    return len(set.intersection(*map(set, ids)))


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
