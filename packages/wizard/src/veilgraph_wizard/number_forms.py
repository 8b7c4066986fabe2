"""How the numbers of a column are written: the ways in which the code that reads tables reads all of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from veilgraph.core.errors import DataError
from veilgraph.tables.column_settings import NumberSettings
from veilgraph.tables.source import Column, strip_unit

_SIGN: Final = r"[^\w\s.,'+()/:#*?!;-]{1,2}"
_AROUND: Final = re.compile(
    rf"[-+]?\s*({_SIGN}|[A-Z]{{3}}(?=\s))?\s*[-+]?\d[\d.,' ]*?\s*({_SIGN}|(?<=\s)[^\W\d_]{{1,4}})?"
)
"""A number with a sign as of a currency, or letters with a space between, before or after it."""
_NUMERIC: Final = re.compile(r"[-+]?[\d.,' ]*\d[\d.,' ]*([eE][-+]?\d+)?")
_FORMS: Final = tuple(
    NumberSettings.model_validate({"decimal": point, "thousands": mark})
    for point, other in ((".", ","), (",", "."))
    for mark in ("", other, " ", "'")
)


def number_forms(texts: Sequence[str]) -> tuple[NumberSettings, ...]:
    """Every way of writing numbers by which all texts are some, the usual one first.

    A number of three digits behind one mark fits two ways: 1,059 is a thousand and more, or little more than one.
    Numbers with either point have a way of their own, where no other fits.
    """
    if not texts:
        return ()
    plain = strip_unit(pa.array(texts, pa.string()), "").to_pylist()
    unit = _unit(plain)
    if unit is None or not all(_NUMERIC.fullmatch(each) for each in strip_unit(pa.array(plain), unit).to_pylist()):
        return ()
    forms = (each.model_copy(update={"unit": unit}) for each in _FORMS)
    found = tuple(each for each in forms if _reads(texts, each))
    either = NumberSettings(decimal="either", unit=unit)
    return found or ((either,) if _reads(texts, either) else ())


def _unit(texts: Sequence[str]) -> str | None:
    """What stands before or after at least half of the numbers; None where it differs."""
    around = [match.groups(default="") for match in map(_AROUND.fullmatch, texts) if match is not None]
    found = Counter(before or after for before, after in around if not (before and after))
    units = [each for each in found if each]
    if len(units) > 1:
        return None
    return units[0] if units and 2 * found[units[0]] >= len(texts) else ""


def _reads(texts: Sequence[str], form: NumberSettings) -> bool:
    column = Column(Path(), "", pa.array(texts, pa.string()), np.arange(len(texts)), form)
    try:
        column.numbers()
    except DataError:
        return False
    return True
