"""Columns of several files that say something of the same nodes, joined by id: the first file says which there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from veilgraph.core.deferred import deferred
from veilgraph.core.errors import DataError
from veilgraph.tables.column_settings import (
    Duplicates,
    IdSettings,
)
from veilgraph.tables.source import (
    AS_WRITTEN,
    Bools,
    Codes,
    Column,
    Format,
    Rows,
    codes_of,
    stream,
)

with deferred():  # a tenth of a second to import, and for tables alone
    import pyarrow as pa
    from pyarrow import compute as pc

Values = NDArray[Any]


@dataclass(frozen=True)
class Source:
    """One file of nodes: its column of ids, all its columns' ``names``, and the party file's ``prefix`` for them."""

    path: Path
    id: str
    names: tuple[str, ...]
    form: Format
    prefix: str = ""

    def own_name(self, name: str) -> str | None:
        """Return a column's name without the prefix; None: the file has no such column, or it is the ids."""
        own = name.removeprefix(self.prefix)
        return own if name.startswith(self.prefix) and own in self.names and own != self.id else None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns but the ids, with the prefix."""
        return tuple(self.prefix + name for name in self.names if name != self.id)


@dataclass(frozen=True, eq=False)
class Wanted:
    """A column to read: ``source`` is the index of its file, ``column`` its name there.

    ``convert`` turns a batch into an array. A node without a row gets ``empty``; it is refused, with ``unless`` as the
    way out, if that is not empty.
    """

    source: int
    column: str
    convert: Callable[[Column], Values]
    empty: object = 0
    unless: str = ""


@dataclass(frozen=True)
class FileDescription:
    """How many rows of a file of nodes or edges were read and left out.

    Attributes:
        form: how it is written: set, or found in it.
        unknown: rows whose id is no node's, which are left out; None where that is no question.
        without: nodes that the file has no row of; None likewise.
        repeated: rows left out because another has the same id.
    """

    file: Path
    form: str
    rows: int
    unknown: int | None = None
    without: int | None = None
    repeated: int = 0


@dataclass(frozen=True, eq=False)
class JoinedTable:
    """The nodes of the first file, by id as compared and as written, and the values of every column that was wanted."""

    ids: pa.StringArray
    written: pa.StringArray
    values: list[Values]
    counts: tuple[FileDescription, ...]


def find_column(sources: Sequence[Source], name: str) -> tuple[int, str]:
    """Return which file has a column, and its name there; ``DataError``: several files have it, or none of several."""
    found = [(place, own) for place, source in enumerate(sources) if (own := source.own_name(name)) is not None]
    if len(found) == 1:
        return found[0]
    first = sources[0].path
    if found:
        other = sources[found[1][0]].path.name
        raise DataError(
            f"{sources[found[0][0]].path}: column {name!r} is in {other} too, and either could be meant; give the "
            "joined file a prefix (nodes.join, prefix)"
        )
    if len(sources) > 1 and name not in sources[0].names:
        files = ", ".join(source.path.name for source in sources)
        raise DataError(f"{first}: column {name!r}: no such column in {files}; mend the table or the setting")
    return 0, name


def read_joined(
    sources: Sequence[Source],
    wanted: Sequence[Wanted],
    spelling: IdSettings = AS_WRITTEN,
    duplicates: Duplicates = "refuse",
) -> JoinedTable:
    """Read the wanted columns of all files, joined by id; each row of the first file is a node.

    ``duplicates``: which of several rows of one id in a file counts. Raises ``DataError``: the first file has no row,
    an id is refused as repeated, or a node lacks a required row.
    """
    nodes = _read_file(0, sources[0], wanted, spelling, duplicates)
    count = len(nodes.ids)
    if not count:
        raise DataError(f"{sources[0].path}: 0 rows, and a party has at least one node; give one row per node")
    values, counts = nodes.values, [nodes.describe(None, None)]
    for place, source in enumerate(sources[1:], start=1):
        read = _read_file(place, source, wanted, spelling, duplicates, nodes.ids)
        without = np.ones(count, bool)
        without[read.nodes] = False
        for index, own in read.values.items():
            each = wanted[index]
            if each.unless and without.any():
                raise DataError(
                    f"{source.path}: column {each.column!r}: node {nodes.ids[int(without.argmax())].as_py()!r} has no "
                    f"row, where a value must be; add the row, or {each.unless}"
                )
            values[index] = np.full(count, each.empty, own.dtype)
            values[index][read.nodes] = own
        counts.append(read.describe(read.unknown, int(without.sum())))
    return JoinedTable(nodes.ids, nodes.written, [values[index] for index in range(len(wanted))], tuple(counts))


@dataclass(frozen=True, eq=False)
class _FileRows:
    """The kept rows of a file: ids, each row's node (0 in the first file), and ``values`` by index in ``wanted``."""

    source: Source
    ids: pa.StringArray
    written: pa.StringArray
    nodes: Codes
    values: dict[int, Values]
    rows: int
    unknown: int
    repeated: int

    def describe(self, unknown: int | None, without: int | None) -> FileDescription:
        return FileDescription(self.source.path, str(self.source.form), self.rows, unknown, without, self.repeated)


def _read_file(
    place: int,
    source: Source,
    wanted: Sequence[Wanted],
    spelling: IdSettings,
    duplicates: Duplicates,
    known: pa.StringArray | None = None,
) -> _FileRows:
    """Read the columns wanted of file number ``place``: all rows, or those whose ids are ``known`` if given."""
    values: dict[int, list[Values]] = {index: [] for index, each in enumerate(wanted) if each.source == place}
    columns = [source.id, *(wanted[index].column for index in values)]
    texts, codes, at, rows = [[pa.array([], pa.string())] * 2], [np.empty(0, np.int32)], [np.empty(0, np.int64)], 0
    for raw_ids, *raw in stream(source.path, columns, source.names, source.form):
        ids = raw_ids.ids(spelling)
        rows += len(ids)
        nodes = np.zeros(len(ids), np.int32) if known is None else codes_of(ids, known)
        keep = nodes >= 0
        texts.append([each.filter(pa.array(keep)) for each in (ids, raw_ids.text())])
        codes.append(nodes[keep])
        at.append(raw_ids.rows[keep])
        for index, column in zip(values, raw, strict=True):
            values[index].append(wanted[index].convert(column.filter(keep)))
    found = {index: np.concatenate(each) if each else np.empty(0, np.float32) for index, each in values.items()}
    (ids, written), own = (pa.concat_arrays(each) for each in zip(*texts, strict=True)), np.concatenate(codes)
    kept = _rows_to_keep(ids, np.concatenate(at), source, duplicates)
    if not kept.all():
        ids, written = (each.filter(pa.array(kept)) for each in (ids, written))
        own, found = own[kept], {index: each[kept] for index, each in found.items()}
    return _FileRows(source, ids, written, own, found, rows, rows - len(kept), len(kept) - len(ids))


def _rows_to_keep(ids: pa.StringArray, at: Rows, source: Source, duplicates: Duplicates) -> Bools:
    """Return which rows to keep, bool [n]: of each id the first or last; or refuse repeats. ``at``: rows' numbers."""
    rows = np.arange(len(ids))
    first = pc.index_in(ids, value_set=ids).to_numpy(zero_copy_only=False)
    repeated = first != rows
    if duplicates == "refuse" and repeated.any():
        row, several = int(repeated.argmax()), np.unique(first[repeated])
        some = ", ".join(repr(ids[int(place)].as_py()) for place in several[:5])
        more = f" (ids of several rows, {len(several):,}: {some})"
        _refuse_repeated_id(source, int(at[row]), int(at[first[row]]), more)
    if duplicates == "last":
        last = np.zeros(len(ids), np.int64)
        last[first] = rows  # of several, the last is kept
        return cast(Bools, last[first] == rows)
    return cast(Bools, ~repeated)


def _refuse_repeated_id(source: Source, row: int, earlier: int, more: str) -> None:
    name, before = (_id_as_written(source, each) for each in (row, earlier))
    also = "also" if name == before else f"as {before!r} is,"
    raise DataError(
        f"{source.path}: column {source.id!r}, row {row}: {name!r} is {also} the id of row {earlier}{more}, and a node "
        "has one row; merge them, or set nodes.duplicates to first or last"
        + ("" if name == before else ", or leave ids out")
    )


def _id_as_written(source: Source, row: int) -> str:
    for (column,) in stream(source.path, [source.id], source.names, source.form):
        if row <= column.rows[-1]:
            return str(column.values[row - int(column.rows[0])].as_py())
    raise AssertionError(f"{source.path} has had a row {row}")
