"""What holders compare of their tables: the share of common ids, and hashes of feature columns, classes and splits.

A hash hides a name from nobody who can guess it; what matters is that no holder is shown a name that it does not have.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.tables.column_settings import IdSettings
from veilgraph.tables.encode import FeatureEncoding
from veilgraph.tables.nodes import FeatureColumn
from veilgraph.tables.settings import EdgeSettings, NodeSettings, SplitFractions, WeightSettings
from veilgraph.tables.source import fold

_ENOUGH: Final = 0.8
_NEARLY_ALL: Final = 0.98  # of ids in common, where nothing is looked for that keeps others apart
_NOTED: Final = 0.02  # of the shortest table: so many more ids in common are no chance
_FEWEST: Final = 2  # ids of which a beginning in common says something
_APART: Final = 0.95
"""Of a holder's ids that are still told apart once something is left out of them; else it is no way to write them."""
_WAYS: Final[Mapping[str, Callable[[str], str]]] = {
    "without leading zeros (ids: {unpadded: true} at all holders)": lambda text: re.sub("^0+(?=.)", "", text),
    "without case (ids: {lower: true} at all holders)": fold,
    "without spaces (ids: {strip: true} takes those at the ends)": lambda text: "".join(text.split()),
    "in one Unicode form (NFKC)": lambda text: unicodedata.normalize("NFKC", text),
    "without what is before the digits": lambda text: re.sub(r"^\D+(?=\d)", "", text),
    "without what is before the digits, and leading zeros": lambda text: re.sub(r"^\D*0*(?=\d)", "", text),
}


def all_match_rates(ids: Mapping[PartyId, Sequence[str]]) -> tuple[str, str]:
    """Return a sentence on how many of each holder's ``ids`` all holders have, and one on why few are, or empty."""
    common = count_common(ids.values())
    each = ", ".join(f"{name} {common:,} of {len(own):,} ({common / len(own):.0%})" for name, own in ids.items())
    said = f"ids that are common to all holders: {each}"
    least = min(common / len(own) for own in ids.values())
    way, count = (None, 0) if least >= _NEARLY_ALL else _better_written(ids, common)
    if way is None and least >= _ENOUGH:
        return said, ""
    few = f"less than {_ENOUGH:.0%}" if least < _ENOUGH else "not all"
    return said, f"{few} of a holder's ids are common to all: {_why_apart(way, count)}"


def check_any_common(ids: Mapping[PartyId, Sequence[str]], columns: Mapping[PartyId, str]) -> None:
    """Raise ``DataError`` where holders have no id in common; ``columns``: holder → where its ids are, in words."""
    if count_common(ids.values()):
        return
    where = ", ".join(f"{name} {column}" for name, column in columns.items())
    raise DataError(
        f"nodes.id: no id is common to all holders ({where}): {_why_apart(*_better_written(ids, 0))}. Name the column "
        "that all have (nodes.id: veilgraph data init --id COLUMN --replace), or write ids alike (ids: --ids)",
        code="no-common-id",
        value=list(ids),
    )


def _better_written(ids: Mapping[PartyId, Sequence[str]], common: int) -> tuple[str | None, int]:
    """Find the way to write ids by which clearly more are common, and how many; None: no way is better."""
    found = {way: [{*map(change, own)} for own in ids.values()] for way, change in _WAYS.items()}
    counts = {
        way: count_common(sets)
        for way, sets in found.items()
        if all(len(some) >= _APART * len(own) for some, own in zip(sets, ids.values(), strict=True))
    }
    best = max(counts, key=lambda way: counts[way], default="")
    if not best or counts[best] < common + _NOTED * min(map(len, ids.values())):
        return None, common
    return best, counts[best]


def _why_apart(way: str | None, count: int) -> str:
    if way is None:
        return (
            "zeros, case, spaces, a prefix or the Unicode form do not explain it. Holders may have other people: "
            "compare a few ids by hand"
        )
    return f"written {way}, {count:,} would be; write them alike at all holders"


def count_common(ids: Iterable[Iterable[str]]) -> int:
    """Count the ids that all holders have."""
    return len(set.intersection(*map(set, ids)))


def match_rate(common: int, ids: Sequence[str], spelling: IdSettings) -> tuple[str, bool]:
    """Return a sentence on a holder's share of ``common`` ids, with hints below 80 %, and whether it is a warning."""
    text = f"{common:,} of {len(ids):,} own ids ({common / len(ids):.0%}) are common to all holders"
    if common >= _ENOUGH * len(ids):
        return text, False
    hints = "; ".join(_spelling_hints(ids, spelling))
    return f"{text}, and less than {_ENOUGH:.0%} is rarely meant. Compare how holders write ids: {hints}", True


def _spelling_hints(ids: Sequence[str], spelling: IdSettings) -> Iterator[str]:
    if not spelling.unpadded and all(each.isdecimal() for each in ids):
        zeros = any(each[0] == "0" and len(each) > 1 for each in ids)
        yield (
            "these have leading zeros, which others may have lost (ids: {unpadded: true} at all holders)"
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
    yield "others may have other people, or ids of another system: compare a few by hand"


HASH_BYTES: Final = 16
_NONE: Final = bytes(HASH_BYTES)
_FIRST_COLUMN: Final = 3
_OWN: Final[dict[str, bool | set[str]]] = {"columns": True, "date": {"format"}}
"""Of a feature's settings those that may differ between holders: they say where and how a table has the values."""


@dataclass(frozen=True)
class EdgeColumn:
    """A feature column of edges, which holders compare."""

    feature: WeightSettings

    @property
    def title(self) -> str:
        """The column's name, told apart from those of nodes."""
        return f"{self.feature.column} of edges"


Compared = FeatureColumn | EdgeColumn


def edge_columns(edges: Sequence[EdgeSettings]) -> list[EdgeColumn]:
    """Return the columns of a party's edges, the same in all of its tables."""
    return [EdgeColumn(each) for each in (edges[0].features if edges else ())]


def prediction_kind(nodes: NodeSettings) -> object:
    """Return what is predicted, for ``column_hashes``: the list of classes, ``{"target": column}``, or None."""
    if nodes.target is not None:
        return {"target": nodes.target}
    return None if nodes.label is None else list(nodes.label.classes)


def split_hash(nodes: NodeSettings, session: str) -> bytes:
    """HMAC-SHA256 of ``session``, seed and fractions under a random split's key, cut to 16 bytes; zeros: not random.

    Splits without a key all have one hash. ``session`` is new each time, so that nobody can precompute guesses.
    """
    split = nodes.split
    if not isinstance(split, SplitFractions):
        return _NONE
    drawn = () if split.key is None else (split.seed, split.train, split.val, split.test)
    return hmac.digest((split.key or "").encode(), json.dumps([session, drawn]).encode(), "sha256")[:HASH_BYTES]


def column_hashes(
    columns: Sequence[Compared], classes: object, fitted: FeatureEncoding | None, split: bytes | None = None
) -> list[bytes]:
    """Return hashes of the classes, the earlier fit, the split, and each column with its settings: 16 bytes each.

    Columns of nodes come before those of edges; ``classes`` is ``prediction_kind``'s, ``split`` is ``split_hash``'s.
    Hashes are SHA-256, and zeros where there is None.
    """
    numbers = () if fitted is None else (*fitted.fills, *fitted.means, *fitted.deviations)
    return [
        _NONE if classes is None else _hash("classes", classes),
        _NONE if fitted is None else _hash("fitted", np.array(numbers, "<f8").tobytes().hex()),
        split or _NONE,
        *(_hash(column.title, column.feature.model_dump(mode="json", exclude=_OWN)) for column in columns),
    ]


def check_same_columns(
    party: PartyId, columns: Sequence[Compared], mine: Sequence[bytes], other: PartyId, theirs: Sequence[bytes]
) -> None:
    """Refuse another holder's ``column_hashes`` if columns, classes, the earlier fit or the split's key differ."""
    if len(mine) != len(theirs):
        raise DataError(
            f"{other} has {len(theirs) - _FIRST_COLUMN} feature columns and {party} {len(columns)}; all "
            "holders of this job have the same: mend nodes.features, or edges.features, at one of them"
        )
    for place, column in enumerate(columns, start=_FIRST_COLUMN):
        is_theirs = mine[place] == theirs[place] if isinstance(column, EdgeColumn) else mine[place] in theirs
        if not is_theirs:
            raise DataError(
                f"{other} has no feature column like {party}'s {column.title!r}, with the same missing, scale, "
                "categories and other. All holders of this job have the same columns, those of edges in the same "
                "order: mend nodes.features, or edges.features, at one of them"
            )
    if _NONE not in (mine[0], theirs[0]) and mine[0] != theirs[0]:
        raise DataError(
            f"{other} and {party} name different classes, or in another order; mend nodes.label.classes at one of "
            "them, or nodes.target where values are predicted"
        )
    if mine[1] != theirs[1]:
        raise DataError(
            f"{other} and {party} encode features by different trainings; predict with the parts of one run"
        )
    if _NONE not in (mine[2], theirs[2]) and mine[2] != theirs[2]:
        raise DataError(
            f"nodes.split.key: {other} draws its split by another key, seed or fractions than {party}, or without a "
            "key. A node of both could be trained on at one and tested at the other. Give nodes.split the same key, "
            "seed and fractions in every party file; or leave the key out of every one",
            code="other-split",
            party=other,
        )


def reorder_columns(
    columns: Sequence[FeatureColumn], mine: Sequence[bytes], first: Sequence[bytes]
) -> list[FeatureColumn]:
    """Put a holder's node columns into another's order; ``mine`` and ``first``: the ``column_hashes`` of both."""
    found = dict(zip(mine[_FIRST_COLUMN:], columns, strict=False))  # behind them are those of edges
    return [found[each] for each in first[_FIRST_COLUMN : _FIRST_COLUMN + len(columns)]]


def _hash(name: str, content: object) -> bytes:
    text = json.dumps([name, content], sort_keys=True)
    return hashlib.sha256(text.encode()).digest()[:HASH_BYTES]
