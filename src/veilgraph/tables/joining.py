"""Several files that say something of the same nodes, joined by id: the first one says which nodes there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from veilgraph.core.errors import DataError
from veilgraph.tables.column_settings import Duplicates, IdSettings
from veilgraph.tables.convert import AS_WRITTEN, Codes, look_up, to_ids, to_text
from veilgraph.tables.source import Bools, Column, Format, Rows, stream

Values = NDArray[Any]
_NAMED: Final = 5


@dataclass(frozen=True)
class Source:
    """One file of nodes: all its columns as the file has them, one of ids, and what the party file puts before them."""

    path: Path
    id: str
    names: tuple[str, ...]
    form: Format
    prefix: str = ""

    def own_name(self, name: str) -> str | None:
        """What the file calls a column of the party file, other than its ids; None where it has none such."""
        own = name.removeprefix(self.prefix)
        return own if name.startswith(self.prefix) and own in self.names and own != self.id else None

    @property
    def columns(self) -> tuple[str, ...]:
        """Its columns other than the ids, as the party file has them."""
        return tuple(self.prefix + name for name in self.names if name != self.id)


@dataclass(frozen=True, eq=False)
class Wanted:
    """A column to read: ``source`` is the place of its file, ``column`` its name there.

    Attributes:
        convert: a batch of it → an array of as many values.
        empty: the value of a node that the file has no row of.
        unless: the way out where every node must have a row; empty where it need not.
    """

    source: int
    column: str
    convert: Callable[[Column], Values]
    empty: object = 0
    unless: str = ""


@dataclass(frozen=True)
class FileCounts:
    """What became of one file's rows.

    Attributes:
        rows: read.
        unknown: of these, with an id that is no node's.
        without: nodes that it has no row of.
        repeated: of the rows, those left out because another has the same id.
    """

    path: Path
    form: Format
    rows: int
    unknown: int
    without: int
    repeated: int = 0


@dataclass(frozen=True, eq=False)
class JoinedTable:
    """The nodes of the first file, by id as compared and as written, and the values of every column that was wanted."""

    ids: pa.StringArray
    written: pa.StringArray
    values: list[Values]
    counts: tuple[FileCounts, ...]


def find(sources: Sequence[Source], name: str) -> tuple[int, str]:
    """In which file a column of the party file is, and what it is called there.

    Raises ``DataError`` where several files have it, or none of several.
    """
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
    """Reads the wanted columns of all files.

    Every row of the first file is a node; ``duplicates``: which of several rows of one id in a file counts.

    Raises:
        DataError: the first file has no row, an id is there twice in a file and it is to be refused, or a value that
            must be there is not.
    """
    parts: list[list[Values]] = [[] for _ in wanted]
    of_first = [place for place, each in enumerate(wanted) if each.source == 0]
    first, batches, written = sources[0], [], []
    for raw_ids, *raw in stream(
        first.path, [first.id, *(wanted[place].column for place in of_first)], first.names, first.form
    ):
        batches.append(to_ids(raw_ids, spelling))
        written.append(to_text(raw_ids))
        for place, column in zip(of_first, raw, strict=True):
            parts[place].append(wanted[place].convert(column))
    if not batches:
        raise DataError(f"{first.path}: 0 rows, and a party has at least one node; give one row per node")
    ids, named = pa.concat_arrays(batches), pa.concat_arrays(written)
    values = [np.concatenate(each) if each else np.empty(0) for each in parts]
    rows = len(ids)
    kept = _kept(ids, first, duplicates)
    if not kept.all():
        ids, named = (each.filter(pa.array(kept)) for each in (ids, named))
        for place in of_first:
            values[place] = values[place][kept]
    counts = [FileCounts(first.path, first.form, rows, 0, 0, rows - len(ids))]
    for place, source in enumerate(sources[1:], start=1):
        of_this = [index for index, each in enumerate(wanted) if each.source == place]
        found, joined = _read_beside(source, [wanted[index] for index in of_this], ids, spelling, duplicates)
        counts.append(found)
        for index, each in zip(of_this, joined, strict=True):
            values[index] = each
    return JoinedTable(ids, named, values, tuple(counts))


def _read_beside(
    source: Source, wanted: Sequence[Wanted], ids: pa.StringArray, spelling: IdSettings, duplicates: Duplicates
) -> tuple[FileCounts, list[Values]]:
    """A further file's columns in the order of the nodes; rows of others are counted and not looked at."""
    row_of = np.zeros(len(ids), np.int64)
    pieces: list[tuple[Codes, list[Values]]] = []
    rows = unknown = repeated = 0
    for raw_ids, *raw in stream(source.path, [source.id, *(each.column for each in wanted)], source.names, source.form):
        codes = look_up(to_ids(raw_ids, spelling), ids)
        keep = codes >= 0
        later = _note_rows(raw_ids.rows[keep], codes[keep], row_of)
        if duplicates == "refuse" and later.any():
            index = int(later.argmax())
            _refuse_double(source, int(raw_ids.rows[keep][index]), int(row_of[codes[keep][index]]))
        rows, unknown, repeated = rows + len(codes), unknown + int((~keep).sum()), repeated + int(later.sum())
        if duplicates == "first":  # of the others, each is written over by a later one
            keep[keep] = ~later
        codes = codes[keep]
        pieces.append((codes, [each.convert(column.filter(keep)) for each, column in zip(wanted, raw, strict=True)]))
    without = row_of == 0
    joined = []
    for place, each in enumerate(wanted):
        if each.unless and without.any():
            raise DataError(
                f"{source.path}: column {each.column!r}: node {ids[int(without.argmax())].as_py()!r} has no row, where "
                f"a value must be; add the row, or {each.unless}"
            )
        kind = pieces[0][1][place].dtype if pieces else np.float32
        column = np.full(len(ids), each.empty, kind)
        for codes, batch in pieces:
            column[codes] = batch[place]
        joined.append(column)
    return FileCounts(source.path, source.form, rows, unknown, int(without.sum()), repeated), joined


def _note_rows(rows: Rows, codes: Codes, row_of: Rows) -> Bools:
    """Note the first row of each node of this batch in ``row_of`` [N], from 1; which rows are of one that has one."""
    later = row_of[codes] > 0
    first, place = np.unique(codes, return_index=True)
    later |= ~np.isin(np.arange(len(codes)), place)
    row_of[first] = np.where(row_of[first] > 0, row_of[first], rows[place])
    return later


def _kept(ids: pa.StringArray, source: Source, duplicates: Duplicates) -> Bools:
    """Which rows of the first file are nodes: all, or of each id the first or the last."""
    rows = np.arange(len(ids))
    first = pc.index_in(ids, value_set=ids).to_numpy(zero_copy_only=False)
    repeated = first != rows
    if duplicates == "refuse" and repeated.any():
        row, several = int(repeated.argmax()), np.unique(first[repeated])
        some = ", ".join(repr(ids[int(place)].as_py()) for place in several[:_NAMED])
        _refuse_double(source, row + 1, int(first[row]) + 1, f" ({len(several):,} ids have several rows: {some})")
    if duplicates == "last":
        last = np.zeros(len(ids), np.int64)
        last[first] = rows  # of several, the last is kept
        return cast(Bools, last[first] == rows)
    return cast(Bools, ~repeated)


def _refuse_double(source: Source, row: int, earlier: int, more: str = "") -> None:
    name, before = (_spelled(source, each) for each in (row, earlier))
    also = "also" if name == before else f"as {before!r} is,"
    raise DataError(
        f"{source.path}: column {source.id!r}, row {row}: {name!r} is {also} the id of row {earlier}{more}, and a node "
        "has one row; merge them, set nodes.duplicates to first or last"
        + ("" if name == before else ", or leave ids out")
    )


def _spelled(source: Source, row: int) -> str:
    for (column,) in stream(source.path, [source.id], source.names, source.form):
        if row <= column.rows[-1]:
            return str(column.values[row - int(column.rows[0])].as_py())
    raise AssertionError(f"{source.path} has had a row {row}")
