"""Whether two holders' tables have the same feature columns and classes, told from hashes alone.

A hash hides a name from nobody who can guess it; what matters is that no holder is shown a name that it does not have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.tables.edge_settings import EdgeSettings, WeightSettings
from veilgraph.tables.encode import FeatureEncoding
from veilgraph.tables.nodes import FeatureColumn
from veilgraph.tables.settings import NodeSettings

HASH_BYTES: Final = 16
_NONE: Final = bytes(HASH_BYTES)
_FIRST_COLUMN: Final = 2


@dataclass(frozen=True)
class EdgeColumn:
    """A column of numbers of edges, as holders compare it."""

    feature: WeightSettings

    @property
    def title(self) -> str:
        """The column's name, told apart from those of nodes."""
        return f"{self.feature.column} of edges"


Compared = FeatureColumn | EdgeColumn


def edge_columns(edges: Sequence[EdgeSettings]) -> list[EdgeColumn]:
    """Return the columns of a party's edges, the same in all of its tables."""
    return [EdgeColumn(each) for each in (edges[0].features if edges else ())]


def predicted(nodes: NodeSettings) -> object:
    """What a table says is predicted, as ``column_hashes`` takes it: classes, a column of numbers, or None."""
    if nodes.target is not None:
        return {"target": nodes.target}
    return None if nodes.label is None else list(nodes.label.classes)


def column_hashes(columns: Sequence[Compared], classes: object, fitted: FeatureEncoding | None) -> list[bytes]:
    """SHA-256, cut to 16 bytes, of the classes, of what an earlier fit gave, and of every column with its settings.

    Args:
        columns: the feature columns in order, of nodes and then of edges.
        classes: as ``predicted`` says; None where there are no labels, for which the hash is zeros.
        fitted: the encoding of an earlier table, zeros likewise.
    """
    numbers = () if fitted is None else (*fitted.fills, *fitted.means, *fitted.deviations)
    return [
        _NONE if classes is None else _hash("classes", classes),
        _NONE if fitted is None else _hash("fitted", np.array(numbers, "<f8").tobytes().hex()),
        *(_hash(column.title, column.feature.model_dump(mode="json", exclude={"columns"})) for column in columns),
    ]


def check_same_columns(
    party: PartyId, columns: Sequence[Compared], mine: Sequence[bytes], other: PartyId, theirs: Sequence[bytes]
) -> None:
    """Refuses columns that are not another holder's as well.

    Args:
        party: this holder.
        columns: its feature columns.
        mine: their ``column_hashes``.
        other: the other holder.
        theirs: the other's.

    Raises:
        DataError: they differ in number, in a column, in the classes where both have labels, or in an earlier fit.
    """
    if len(mine) != len(theirs):
        raise DataError(
            f"{other} has {len(theirs) - _FIRST_COLUMN} feature columns and {party} {len(columns)}; all "
            "holders of this job have the same: mend nodes.features, or edges.features, at one of them"
        )
    for place, column in enumerate(columns):
        if mine[_FIRST_COLUMN + place] != theirs[_FIRST_COLUMN + place]:
            raise DataError(
                f"{other}'s feature column {place + 1} is not {party}'s {column.title!r} with the same settings "
                "(missing, scale, categories, other); in paradigm horizontal all holders have the same columns, in the "
                "same order: mend nodes.features, or edges.features, at one of them"
            )
    if _NONE not in (mine[0], theirs[0]) and mine[0] != theirs[0]:
        raise DataError(
            f"{other}'s classes are not {party}'s in the same order; mend nodes.label.classes at one of them, or "
            "nodes.target where values are predicted"
        )
    if mine[1] != theirs[1]:
        raise DataError(
            f"{other}'s features are encoded as in another training than {party}'s; predict with parts of one run"
        )


def _hash(name: str, content: object) -> bytes:
    text = json.dumps([name, content], sort_keys=True)
    return hashlib.sha256(text.encode()).digest()[:HASH_BYTES]
