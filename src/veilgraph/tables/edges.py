"""The edge tables of one organisation, every rule of its settings checked.

An edge is kept as the rows of its two nodes; ids never pile up in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilgraph.core.deferred import deferred
from veilgraph.core.errors import DataError
from veilgraph.tables.column_settings import IdSettings
from veilgraph.tables.settings import DecaySettings, EdgeSettings, RelationSettings, TimeFilter, WeightSettings
from veilgraph.tables.source import (
    AS_WRITTEN,
    Bools,
    Codes,
    Column,
    Floats,
    Format,
    Rows,
    codes_of,
    file_format,
    is_null,
    stream,
)

with deferred():  # a tenth of a second to import, and for tables alone
    import pyarrow as pa
    from pyarrow import compute as pc

_NAMED: Final = 3  # so many ids that the node table lacks are kept of a column
_HOLDERS: Final = {"source": "source_holder", "target": "target_holder"}
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RemoteNodes:
    """Other holders' nodes at which edges of ``party`` end, numbered in the order in which they are read.

    ``ids``: ``holder/id`` → number from 0. ``others``: the holders whose nodes count; None: every holder.
    """

    party: str = ""
    others: tuple[str, ...] | None = ()
    ids: dict[str, int] = field(default_factory=dict)

    def rows(self, own: Codes, ids: pa.StringArray, holders: pa.StringArray, nodes: int) -> Codes:
        """Return each end's row, int32 [n]: ``own`` at this party, ``nodes`` plus its number at ``others``, else −1.

        ``holders`` [n] names the holder of each of the ``ids`` [n]. Ids that are new are numbered.
        """
        found = np.where(pc.fill_null(pc.equal(holders, self.party), False).to_numpy(zero_copy_only=False), own, -1)
        named = pc.unique(holders).to_pylist() if self.others is None else self.others
        others = [each for each in named if each not in (None, self.party)]
        known = pc.fill_null(pc.is_in(holders, value_set=pa.array(others, pa.string())), False)
        places = known.to_numpy(zero_copy_only=False)
        names = pc.dictionary_encode(pc.binary_join_element_wise(holders, ids, "/").filter(known))
        new = [self.ids.setdefault(each, len(self.ids)) for each in names.dictionary.to_pylist()]
        at = names.indices.to_numpy(zero_copy_only=False)
        found[places] = nodes + np.array(new, np.int64)[at] if new else -1
        return found.astype(np.int32)


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """One file's edges. A row that is repeated is a second edge.

    Attributes:
        source: int32 [E], row of the node in the node table, or behind it of one elsewhere; ``target`` likewise.
        weight: float32 [E], finite and at least 0; None where every edge weighs 1.
        features: float32 [E, F_e], finite; F_e is 0 where no columns are named.
        relation: int32 [E], index into ``relations``; None without a column of relations (``relations`` is (None,)).
        rows: int64 [relations], rows read of each; ``dropped``: of these, left out because of an unknown id.
        other: rows left out because their relation is not listed; ``outside``: because of their time.
        crowded: shared values that join none, since more nodes have them than may.
        repeated: rows of a node and a shared value that an earlier row has, and that add nothing.
        valueless: rows without a shared value, which join none.
        strangers: column → some of its ids that the node table lacks.
    """

    settings: EdgeSettings
    form: Format
    source: Codes
    target: Codes
    weight: Floats | None
    features: Floats
    relation: Codes | None
    relations: tuple[str | None, ...]
    rows: Counts
    dropped: Counts
    other: int
    outside: int = 0
    crowded: int = 0
    repeated: int = 0
    valueless: int = 0
    strangers: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def move(self, order: Rows) -> EdgeTable:
        """Return the same edges over the node table's rows ``order`` [N], which are all of them."""
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        return replace(self, source=places[self.source], target=places[self.target])


def read_edges(
    settings: EdgeSettings,
    base: Path,
    ids: pa.StringArray,
    spelling: IdSettings = AS_WRITTEN,
    elsewhere: RemoteNodes | None = None,
) -> EdgeTable:
    """Read one edge table over nodes with distinct ``ids`` [N], in row order; add other holders' to ``elsewhere``.

    Raises ``DataError``: all rows are dropped, or one breaks a rule. It names file, column, row (from 1) and value.
    """
    path = base / settings.file
    reading = _EdgeReader(settings, path, file_format(path, settings), ids, spelling, elsewhere or RemoteNodes())
    found = reading.read_rows() if settings.shared is None else reading.read_shared()
    if (rows := int(found.rows.sum())) and rows == int(found.dropped.sum()):
        raise DataError(
            f"{path}: all {rows} rows are dropped: none has its ids ({settings.source}"
            f"{'' if settings.target is None else f', {settings.target}'}) in the node table; name the right columns, "
            "write ids alike (ids), or leave the file out"
        )
    return found


@dataclass(frozen=True, eq=False)
class _EdgeReader:
    """Reads one edge table, and notes some unknown ids by column (``strangers``)."""

    settings: EdgeSettings
    path: Path
    form: Format
    ids: pa.StringArray
    spelling: IdSettings
    elsewhere: RemoteNodes
    strangers: dict[str, list[str]] = field(default_factory=dict)

    def read_rows(self) -> EdgeTable:
        """Read a table in which every row is an edge."""
        parts = [self._empty_table(), *self._batch_edges()]
        source, target, features, relation = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("source", "target", "features", "relation")
        )
        own = [part.weight for part in parts if part.weight is not None]
        return replace(
            parts[0],
            source=source,
            target=target,
            weight=self._total_weights(np.concatenate(own) if own else None, relation),
            features=features,
            relation=None if self.settings.relation is None else relation,
            rows=np.sum([part.rows for part in parts], axis=0),
            dropped=np.sum([part.dropped for part in parts], axis=0),
            other=sum(part.other for part in parts),
            outside=sum(part.outside for part in parts),
            strangers=self.strangers,
        )

    def read_shared(self) -> EdgeTable:
        """Join every two nodes with the same value, once for each value that at most ``at_most`` nodes have."""
        settings, ids = self.settings, self.ids
        rows = dropped = outside = valueless = 0
        nodes, values = [np.empty(0, np.int64)], [pa.array([], pa.string())]
        for raw, left_out in self._batches():
            (codes,) = self._look_up_nodes(raw["source"])
            rows, outside = rows + len(codes), outside + left_out
            dropped += int((codes < 0).sum())
            text = raw["shared"].text()
            known, kept = codes >= 0, (codes >= 0) & ~is_null(text)
            valueless += int(known.sum() - kept.sum())
            nodes.append(codes[kept].astype(np.int64))
            values.append(text.filter(pa.array(kept)))
        value = pc.dictionary_encode(pa.concat_arrays(values)).indices.to_numpy(zero_copy_only=False).astype(np.int64)
        held = np.unique(value * len(ids) + np.concatenate(nodes))  # a node that has a value twice has it once
        value, node = held // len(ids), (held % len(ids)).astype(np.int32)
        sizes = np.bincount(value)
        starts = np.cumsum(sizes) - sizes
        source, target = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        for size in range(2, settings.at_most + 1):
            members = node[starts[sizes == size][:, None] + np.arange(size)]
            first, second = np.triu_indices(size, 1)
            source.append(members[:, first].ravel())
            target.append(members[:, second].ravel())
        count = sum(map(len, source))
        return replace(
            self._empty_table(),
            source=np.concatenate(source),
            target=np.concatenate(target),
            weight=None if settings.factor == 1 else np.full(count, settings.factor, np.float32),
            features=np.empty((count, 0), np.float32),
            relation=None,
            rows=np.array([rows]),
            dropped=np.array([dropped]),
            outside=outside,
            crowded=int((sizes > settings.at_most).sum()),
            repeated=rows - dropped - valueless - len(held),
            valueless=valueless,
            strangers=self.strangers,
        )

    def _empty_table(self) -> EdgeTable:
        none, relation = np.empty(0, np.int32), self.settings.relation
        relations = (None,) if relation is None else tuple(relation.weights)
        counts = np.zeros(len(relations), np.int64)
        weight = np.empty(0, np.float32) if self._has_row_weights else None
        features = np.empty((0, len(self.settings.features)), np.float32)
        return EdgeTable(self.settings, self.form, none, none, weight, features, none, relations, counts, counts, 0)

    @property
    def _has_row_weights(self) -> bool:
        """Whether rows have weights of their own, from a column of weights or of ages."""
        return self.settings.weight is not None or self.settings.decay is not None

    def _batches(self) -> Iterator[tuple[dict[str, Column], int]]:
        """Yield each batch's columns by key, without the rows that ``filter`` leaves out, and how many these are."""
        settings = self.settings
        named = {key: getattr(settings, key) for key in ("source", "target", "shared", *_HOLDERS.values())}
        parts = {key: getattr(settings, key) for key in ("weight", "relation", "filter", "decay")}
        parts |= {f"feature {place}": each for place, each in enumerate(settings.features)}
        wanted = {key: name for key, name in named.items() if name is not None}
        wanted |= {key: part.column for key, part in parts.items() if part is not None}
        for columns in stream(self.path, list(wanted.values()), None, self.form):
            raw = dict(zip(wanted, columns, strict=True))
            if settings.filter is not None:
                within = _in_window(settings.filter, raw["filter"])
                raw = {key: column.filter(within) for key, column in raw.items()}
            yield raw, len(columns[0].rows) - len(raw["source"].rows)

    def _batch_edges(self) -> Iterator[EdgeTable]:
        """Yield each batch's edges, with rows' own weights before ``normalize``, and relation 0 without a column."""
        settings, empty = self.settings, self._empty_table()
        kinds = len(empty.relations)
        for columns, outside in self._batches():
            relation, raw, other = _keep_listed(settings.relation, columns)
            source, target = self._end_rows(raw)
            rows = np.bincount(relation, minlength=kinds)
            own = len(self.ids) or np.iinfo(np.int32).max  # one end's, where there are nodes of its own
            known = (source >= 0) & (target >= 0) & (np.minimum(source, target) < own)
            if not known.all():
                source, target, relation = source[known], target[known], relation[known]
            weight = np.ones(len(source), np.float32) if self._has_row_weights else None
            if settings.weight is not None:
                weight = _scaled(raw["weight"].filter(known), settings.weight, is_weight=True)
            if settings.decay is not None and weight is not None:
                weight = (weight * _decay_factors(settings.decay, raw["decay"].filter(known))).astype(np.float32)
            features = np.empty((len(source), len(settings.features)), np.float32)
            for place, each in enumerate(settings.features):
                features[:, place] = _scaled(raw[f"feature {place}"].filter(known), each)
            dropped = rows - np.bincount(relation, minlength=kinds)
            counts = rows, dropped, other, outside
            yield EdgeTable(settings, self.form, source, target, weight, features, relation, empty.relations, *counts)

    def _end_rows(self, raw: dict[str, Column]) -> list[Codes]:
        """Return the rows of all sources and of all targets, int32 [n] each; negative: an unknown node."""
        if not any(key in raw for key in _HOLDERS.values()):
            return self._look_up_nodes(*(raw[end] for end in _HOLDERS))
        found = []
        for end, key in _HOLDERS.items():
            ids = raw[end].ids(self.spelling)
            nodes = codes_of(ids, self.ids)
            holders = raw[key].text() if key in raw else pa.array([self.elsewhere.party] * len(ids), pa.string())
            here = pc.fill_null(pc.equal(holders, self.elsewhere.party), False).to_numpy(zero_copy_only=False)
            self._refuse_unknown(raw[end], here & (nodes < 0))
            self._note_unknown_ids(raw[end], np.where(here, nodes, 0).astype(np.int32))
            found.append(self.elsewhere.rows(nodes, ids, holders, len(self.ids)))
        return found

    def _refuse_unknown(self, column: Column, unknown: Bools) -> None:
        if self.settings.unknown == "error":
            column.refuse_any(unknown, "is no id of the node table", "add the node, or set unknown to drop")

    def _look_up_nodes(self, *columns: Column) -> list[Codes]:
        """Return each column's rows in the node table, int32 [n], negative: unknown, which ``unknown`` may refuse."""
        # One look-up for all: pyarrow builds the table of ids anew in each.
        codes = codes_of(pa.chunked_array([each.ids(self.spelling) for each in columns], pa.string()), self.ids)
        found = np.split(codes, len(columns))
        for column, nodes in zip(columns, found, strict=True):
            self._refuse_unknown(column, nodes < 0)
            self._note_unknown_ids(column, nodes)
        return found

    def _note_unknown_ids(self, column: Column, codes: Codes) -> None:
        some = self.strangers.setdefault(column.name, [])
        if len(some) < _NAMED and (codes < 0).any():
            text = column.filter(codes < 0).text()
            some += [each for each in pc.unique(text).to_pylist() if each is not None and each not in some]
            del some[_NAMED:]

    def _total_weights(self, own: Floats | None, relation: Codes) -> Floats | None:
        """Normalise rows' ``own`` weights (None: all 1) and multiply by factors: float32 [E], or None if all are 1."""
        settings = self.settings
        listed = {"": 1.0} if settings.relation is None else settings.relation.weights
        factors: NDArray[np.floating] = np.array([*listed.values()], np.float32) * np.float32(settings.factor)
        if settings.normalize == "mean" and own is not None:
            counts = np.bincount(relation, minlength=len(listed))
            sums = np.bincount(relation, weights=own, minlength=len(listed))
            empty = (counts > 0) & (sums == 0)
            if empty.any():
                of = "" if settings.relation is None else f" of relation {[*listed][int(empty.argmax())]!r}"
                raise DataError(
                    f"{self.path}: normalize=mean divides by the mean weight, and all weights{of} are 0; leave "
                    "normalize out, or mend the weights"
                )
            factors = factors / np.where(counts > 0, sums / np.maximum(counts, 1), 1.0)
        elif isinstance(settings.normalize, float):
            factors = factors / np.float32(settings.normalize)
        if own is None and bool((factors == 1).all()):
            return None
        weights = factors[relation] if own is None else own * factors[relation]
        return weights.astype(np.float32)


def _in_window(window: TimeFilter, column: Column) -> Bools:
    """Whether each row's time lies in [after, before): bool [n]; a missing time is refused or false, as set."""
    times = column.times(window.format)
    unknown = np.isnat(times)
    if window.missing == "error":
        column.refuse_any(unknown, "where a time must be", "give every edge its time, or set filter.missing to drop")
    kept = ~unknown
    if window.after is not None:
        kept &= times >= np.datetime64(window.after)
    if window.before is not None:
        kept &= times < np.datetime64(window.before)
    return kept


def _decay_factors(decay: DecaySettings, column: Column) -> NDArray[np.float64]:
    """Return 2^(−age / half-life) of each edge: float64 [n]; refuse missing times and those after ``decay.at``."""
    times = column.times(decay.format)
    column.refuse_any(np.isnat(times), "where a time must be", "give every edge its time or remove the row")
    age = (np.datetime64(decay.at, "us") - times) / np.timedelta64(1, "D")
    rule = f"is later than decay.at={decay.at.isoformat()}, and an age is at least 0"
    column.refuse_any(age < 0, rule, "set decay.at to a later date, or leave such edges out with filter.before")
    return np.exp2(-age / decay.half_life_days)


def _keep_listed(relation: RelationSettings | None, raw: dict[str, Column]) -> tuple[Codes, dict[str, Column], int]:
    """Keep the rows with a listed relation: its index, int32 [n]; the rows' columns; and how many others there are."""
    if relation is None:
        return np.zeros(len(raw["source"].rows), np.int32), raw, 0
    codes = raw["relation"].codes(relation.weights)
    listed = codes >= 0
    if relation.other == "error":
        rule = f"is not one of the relations {', '.join(relation.weights)}"
        raw["relation"].refuse_any(~listed, rule, "add it to relation.weights, or set other to drop")
    return codes[listed], {key: column.filter(listed) for key, column in raw.items()}, int((~listed).sum())


def _scaled(column: Column, settings: WeightSettings, *, is_weight: bool = False) -> Floats:
    """Read numbers, float32 [n], or log(1 + number); refuse missing ones, and negative weights and logarithms."""
    numbers = column.numbers()
    column.refuse_any(np.isnan(numbers), "where a number must be", "give every edge its number or remove the row")
    if is_weight or settings.scale == "log":
        rule = "a weight is at least 0" if is_weight else "scale=log takes numbers of at least 0"
        column.refuse_any(numbers < 0, f"is negative, and {rule}", "mend it or remove the row")
    return np.log1p(numbers.astype(np.float64)).astype(np.float32) if settings.scale == "log" else numbers
