"""The edge tables of one organisation, every rule of its settings checked.

An edge is kept as the rows of its two nodes; ids never pile up in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilgraph.tables.convert import AS_WRITTEN, Codes, Floats, look_up, to_codes, to_ids, to_numbers
from veilgraph.tables.file_settings import IdSettings
from veilgraph.tables.formats import Format
from veilgraph.tables.settings import EdgeSettings, RelationSettings
from veilgraph.tables.source import Column, file_format, stream

Counts = NDArray[np.int64]
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """One file's edges. A row that is repeated is a second edge.

    Attributes:
        settings: of the file.
        form: how it is written.
        source: int32 [E], row of the node in the node table.
        target: int32 [E], as ``source``.
        weight: float32 [E], finite and at least 0; None where every edge weighs 1.
        relation: int32 [E], place in ``relations``; None where they are not told apart.
        relations: the relations that are kept, or (None,).
        rows: [relations] rows read of each.
        dropped: [relations] rows of each left out because of an unknown id.
        other: rows left out because their relation is not listed.
    """

    settings: EdgeSettings
    form: Format
    source: Codes
    target: Codes
    weight: Floats | None
    relation: Codes | None
    relations: tuple[str | None, ...]
    rows: Counts
    dropped: Counts
    other: int


@dataclass(frozen=True, eq=False)
class _Part:
    """The same of one batch; ``weight`` is empty where every edge weighs 1, ``relation`` 0 where there is but one."""

    source: Codes
    target: Codes
    weight: Floats
    relation: Codes
    rows: Counts
    dropped: Counts
    other: int


def read_edges(settings: EdgeSettings, base: Path, ids: pa.StringArray, spelling: IdSettings = AS_WRITTEN) -> EdgeTable:
    """Reads one edge table.

    Args:
        settings: of the table.
        base: the party file's folder.
        ids: [N] id of the node in each row, each once.
        spelling: of the table's ids.

    Raises:
        DataError: names the file, the column, the row (from 1, without the header), the value and the rule.
    """
    relations = (None,) if settings.relation is None else tuple(settings.relation.weights)
    factors = [1.0] if settings.relation is None else list(settings.relation.weights.values())
    weighted = settings.weight is not None or set(factors) != {1.0}
    path = base / settings.file
    form = file_format(path, settings)
    parts = list(_parts(settings, path, form, ids, np.array(factors, np.float32), spelling))
    none = np.zeros(len(relations), np.int64)
    return EdgeTable(
        settings=settings,
        form=form,
        source=_join([part.source for part in parts], np.int32),
        target=_join([part.target for part in parts], np.int32),
        weight=_join([part.weight for part in parts], np.float32) if weighted else None,
        relation=None if settings.relation is None else _join([part.relation for part in parts], np.int32),
        relations=relations,
        rows=sum((part.rows for part in parts), none),
        dropped=sum((part.dropped for part in parts), none),
        other=sum(part.other for part in parts),
    )


def _parts(
    settings: EdgeSettings, path: Path, form: Format, ids: pa.StringArray, factors: Floats, spelling: IdSettings
) -> Iterator[_Part]:
    wanted = {"source": settings.source, "target": settings.target}
    if settings.weight is not None:
        wanted["weight"] = settings.weight
    if settings.relation is not None:
        wanted["relation"] = settings.relation.column
    for columns in stream(path, list(wanted.values()), None, form):
        raw = dict(zip(wanted, columns, strict=True))
        relation, raw, other = _listed(settings.relation, raw)
        source, target = _ends(settings, raw["source"], raw["target"], ids, spelling)
        rows = np.bincount(relation, minlength=len(factors))
        known = (source >= 0) & (target >= 0)
        if not known.all():
            source, target, relation = source[known], target[known], relation[known]
        weight = factors[relation] if bool((factors != 1).any()) else np.empty(0, np.float32)
        if "weight" in raw:
            weight = _checked_weight(raw["weight"].filter(known)) * factors[relation]
        dropped = rows - np.bincount(relation, minlength=len(factors))
        yield _Part(source, target, weight, relation, rows, dropped, other)


def _listed(relation: RelationSettings | None, raw: dict[str, Column]) -> tuple[Codes, dict[str, Column], int]:
    """Each row's relation, the rows whose relation is listed, and the number of the others."""
    if relation is None:
        return np.zeros(len(raw["source"].rows), np.int32), raw, 0
    codes = to_codes(raw["relation"], relation.weights)
    listed = codes >= 0
    if relation.other == "error":
        rule = f"is not one of the relations {', '.join(relation.weights)}"
        raw["relation"].refuse_any(~listed, rule, "add it to relation.weights, or set other to drop")
    return codes[listed], {key: column.filter(listed) for key, column in raw.items()}, int((~listed).sum())


def _ends(
    settings: EdgeSettings, source: Column, target: Column, ids: pa.StringArray, spelling: IdSettings
) -> tuple[Codes, Codes]:
    # One look-up for both: pyarrow builds the table of ids anew in each.
    codes = look_up(pa.chunked_array([to_ids(source, spelling), to_ids(target, spelling)], pa.string()), ids)
    ends = codes[: len(source.rows)], codes[len(source.rows) :]
    if settings.unknown == "error":
        for column, end in zip((source, target), ends, strict=True):
            column.refuse_any(end < 0, "is no id of the node table", "add the node, or set unknown to drop")
    return ends


def _checked_weight(column: Column) -> Floats:
    weight = to_numbers(column)
    column.refuse_any(np.isnan(weight), "where a weight must be", "give every edge its weight or remove the row")
    column.refuse_any(weight < 0, "is negative, and a weight is at least 0", "mend it or remove the row")
    return weight


def _join(parts: list[NDArray[T]], dtype: type[T]) -> NDArray[T]:
    return np.concatenate([np.empty(0, dtype), *parts])
