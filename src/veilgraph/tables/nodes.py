"""The nodes of one organisation, every rule of its settings checked. Only the columns that they name are read.

Several files may say something of the same nodes; they are joined by id, and the first says which nodes there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams, seed_of
from veilgraph.core.types import PartyId
from veilgraph.tables.column_settings import (
    BooleanFeatures,
    CategoricalFeatures,
    DateFeatures,
    Duplicates,
    FormatSettings,
    IdSettings,
    NumericFeatures,
)
from veilgraph.tables.settings import NodeSettings, SplitColumn, SplitFractions, SplitTimes, TableSettings, is_pattern
from veilgraph.tables.source import (
    AS_WRITTEN,
    MISSING,
    OTHER,
    Bools,
    Codes,
    Column,
    Floats,
    Format,
    Rows,
    codes_of,
    column_names,
    date_part,
    file_format,
    stream,
)

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
class _JoinedTable:
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
) -> _JoinedTable:
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
    return _JoinedTable(nodes.ids, nodes.written, [values[index] for index in range(len(wanted))], tuple(counts))


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
        more = f" ({len(several):,} ids have several rows: {some})"
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
        "has one row; merge them, set nodes.duplicates to first or last"
        + ("" if name == before else ", or leave ids out")
    )


def _id_as_written(source: Source, row: int) -> str:
    for (column,) in stream(source.path, [source.id], source.names, source.form):
        if row <= column.rows[-1]:
            return str(column.values[row - int(column.rows[0])].as_py())
    raise AssertionError(f"{source.path} has had a row {row}")


def draw_splits(
    labels: Codes,
    fractions: SplitFractions,
    party: PartyId,
    ids: Sequence[str] | None = None,
    streams: LearningStreams | None = None,
) -> Codes:
    """Draw a split for each labelled node: int32 [N], 0 train, 1 validation, 2 test, ``MISSING`` in none.

    ``labels``: int32 [N], negative where unlabelled. With ``stratify`` each class is divided by the fractions, so that
    splits depend on all labels. Otherwise each node is drawn by its id alone (default: its row), so that splits reveal
    only who is labelled. Parties draw differently, unless the fractions have a key. Without a key, a run's ``streams``
    keep the draw by id secret.
    """
    shares = np.cumsum([fractions.train, fractions.val, fractions.test])
    public = LearningStreams(fractions.seed, party)
    if not fractions.stratify:
        if fractions.key is not None:  # the same at all holders: no party is in it
            streams = LearningStreams(seed_of(hashlib.sha256(fractions.key.encode()).digest()), "")
        drawn = (streams or public).uniform(f"split/{fractions.seed}", ids or [str(row) for row in range(len(labels))])
        places = np.searchsorted(shares, drawn, side="right").astype(np.int32)
        return np.where((labels >= 0) & (places < len(shares)), places, MISSING).astype(np.int32)
    splits = np.full(len(labels), MISSING, np.int32)
    for label in range(int(labels.max(initial=-1)) + 1):
        nodes = np.flatnonzero(labels == label)
        generator = np.random.default_rng(public.seed("split", label))
        parts = np.split(generator.permutation(nodes), np.rint(shares * len(nodes)).astype(int))
        for split, part in enumerate(parts[:-1]):
            splits[part] = split
    return splits


@dataclass(frozen=True)
class FeatureColumn:
    """One column of the table and what becomes of it; ``part``: which of the numbers that a date becomes."""

    name: str
    feature: NumericFeatures | CategoricalFeatures
    part: str = ""

    @property
    def title(self) -> str:
        """The column's name, with the part of a date that it is."""
        return f"{self.name} {self.part}" if self.part else self.name


@dataclass(frozen=True, eq=False)
class NodeTable:
    """The nodes of one organisation.

    Attributes:
        ids: [N] text, each once, written alike.
        written: [N] the same ids as the file has them.
        values: per feature column float32 [N], NaN where missing, or int32 [N] places in its categories, with
            ``MISSING`` and ``OTHER``.
        labels: int32 [N] places in the classes, ``MISSING`` where unlabelled; None without a label column.
        splits: int32 [N], 0 train, 1 validation, 2 test, ``MISSING`` in none; None without a label or target column.
        targets: float32 [N], NaN where unknown; None without a target column.
        graphs: int64 [N], the graph that each node is of; None without such a column.
        counts: what became of each file's rows.
    """

    path: Path
    ids: pa.StringArray
    written: pa.StringArray
    columns: tuple[FeatureColumn, ...]
    values: tuple[Floats | Codes, ...]
    labels: Codes | None
    splits: Codes | None
    targets: Floats | None = None
    graphs: Rows | None = None
    counts: tuple[FileDescription, ...] = ()

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.ids)

    def take(self, order: Rows) -> Self:
        """The rows at the given places, in that order."""
        named = {name: getattr(self, name) for name in ("labels", "splits", "targets", "graphs")}
        return replace(
            self,
            ids=self.ids.take(pa.array(order)),
            written=self.written.take(pa.array(order)),
            values=tuple(values[order] for values in self.values),
            **{name: values[order] for name, values in named.items() if values is not None},
        )


def read_nodes(
    settings: TableSettings,
    base: Path,
    columns: Sequence[FeatureColumn] | None = None,
    streams: LearningStreams | None = None,
) -> NodeTable:
    """Read the node table, its feature ``columns`` or those that the settings choose in it.

    ``streams`` of a run draw a split without ``stratify``. Raises ``DataError``: names the file, the column, the row
    (from 1, without the header), the value and the rule.
    """
    nodes = settings.nodes
    if not settings.has_nodes:
        none = pa.array([], pa.string())
        return NodeTable(base, none, none, (), (), None, None)
    sources, labelled = _feature_sources(nodes, base), _label_source(nodes, base)
    if columns is None:
        columns = choose_columns(nodes, sources[0].path, _column_names(sources))
    wanted = [
        Wanted(
            *find_column(sources, column.name),
            partial(_feature_values, chosen=column),
            empty=np.nan if isinstance(column.feature, NumericFeatures) else MISSING,
            unless="say under missing what it becomes" if column.feature.missing == "error" else "",
        )
        for column in columns
    ]
    others = _wanted_others(nodes, sources, labelled)
    files = [*sources, *(() if labelled is None else (labelled,))]
    read = read_joined(files, [*wanted, *others.values()], settings.ids, nodes.duplicates)
    found = dict(zip(others, read.values[len(wanted) :], strict=True))
    labels, targets, graphs, splits = (found.get(key) for key in ("label", "target", "graph", "split"))
    known = labels
    if targets is not None:  # all of one class
        known = np.where(np.isnan(targets), MISSING, 0).astype(np.int32)
    if isinstance(nodes.split, SplitColumn) and splits is not None and known is not None:
        wrong = (splits != MISSING) & (known == MISSING)
        if wrong.any():
            node, where = int(wrong.argmax()), others["split"]
            place = f"{files[where.source].path}: column {where.column!r}, node {read.ids[node].as_py()!r}"
            name = nodes.split.names[splits[node]]
            raise DataError(f"{place}: {name!r} for a node without a label; label it or take it out of the split")
    if isinstance(nodes.split, SplitTimes) and splits is not None and known is not None:
        splits = np.where(known == MISSING, MISSING, splits).astype(np.int32)
    if isinstance(nodes.split, SplitFractions):
        splits = _draw_split_codes(known, nodes.split, settings.party, read.ids, graphs, streams)
    values = tuple(read.values[: len(wanted)])
    named = sources[0].path, read.ids, read.written
    return NodeTable(*named, tuple(columns), values, labels, splits, targets, graphs, read.counts)


def _feature_sources(nodes: NodeSettings, base: Path) -> list[Source]:
    """Return the node table and then the joined tables as sources; only their headers are read."""
    joined = [_make_source(base / each.file, each.id or nodes.id, each, each.prefix) for each in nodes.join]
    return [_make_source(base / nodes.file, nodes.id, nodes), *joined]


def _label_source(nodes: NodeSettings, base: Path) -> Source | None:
    label = nodes.label
    if label is None or label.file is None:
        return None
    return _make_source(base / label.file, label.id or nodes.id, label)


def _make_source(path: Path, name: str, settings: FormatSettings, prefix: str = "") -> Source:
    form = file_format(path, settings)
    return Source(path, name, column_names(path, form), form, prefix)


def _column_names(sources: Sequence[Source]) -> tuple[str, ...]:
    """Return all columns' names: the first file's, ids included, then the others' with prefix and without ids."""
    first, *others = sources
    joined = dict.fromkeys(name for source in others for name in source.columns)
    return (*first.names, *(name for name in joined if name not in first.names))


def _wanted_others(nodes: NodeSettings, sources: Sequence[Source], labelled: Source | None) -> dict[str, Wanted]:
    """Return the columns to read for ``label``, ``target``, ``graph`` and ``split``, as far as these are set."""
    wanted: dict[str, Wanted] = {}
    label, split, own = nodes.label, nodes.split, len(sources)
    if label is not None:
        place = find_column(sources, label.column) if labelled is None else (own, label.column)
        wanted["label"] = Wanted(*place, partial(_codes_within, vocabulary=label.classes, key="label.classes"), MISSING)
    if nodes.target is not None:
        wanted["target"] = Wanted(*find_column(sources, nodes.target), Column.numbers, np.nan)
    if nodes.graph is not None:
        wanted["graph"] = Wanted(*find_column(sources, nodes.graph), Column.whole, unless="leave nodes.graph out")
    if isinstance(split, SplitColumn | SplitTimes) and nodes.split_column is not None:
        name = nodes.split_column
        with_labels = labelled is not None and labelled.own_name(name) is not None
        place = (own, name) if with_labels else find_column(sources, name)
        wanted["split"] = Wanted(*place, partial(_split_codes, split=split), MISSING)
    return wanted


def _split_codes(column: Column, split: SplitColumn | SplitTimes) -> Codes:
    if isinstance(split, SplitColumn):
        return _codes_within(column, split.names, "split")
    times = column.times(split.format)
    ends = np.array([split.train_before, split.val_before], "datetime64[us]")
    return np.where(np.isnat(times), MISSING, np.searchsorted(ends, times, side="right")).astype(np.int32)


def _draw_split_codes(
    labels: Codes | None,
    fractions: SplitFractions,
    party: PartyId,
    ids: pa.StringArray,
    graphs: Rows | None,
    streams: LearningStreams | None,
) -> Codes | None:
    """Draw splits by ``draw_splits``, of nodes or of ``graphs`` by their first nodes' labels; None without labels."""
    if labels is None:
        return None
    if graphs is None:
        return draw_splits(labels, fractions, party, ids.to_pylist(), streams)
    numbers, first, place = np.unique(graphs, return_index=True, return_inverse=True)
    return draw_splits(labels[first], fractions, party, [str(each) for each in numbers], streams)[place]


def read_column(
    settings: TableSettings, base: Path, name: str, convert: Callable[[Column], Values], empty: object
) -> Values:
    """Read and convert one column of the node or joined tables: [N] in row order, ``empty`` at nodes without a row."""
    return _read_one_column(settings, base, name, convert, empty).values[0]


def read_values(settings: TableSettings, base: Path, name: str) -> dict[str, str]:
    """Read one column of any type as text, with decimal points: id → value, of the nodes that have one."""
    read = _read_one_column(settings, base, name, Column.words, None)
    pairs = zip(read.ids.to_pylist(), read.values[0], strict=True)
    return {node: str(value) for node, value in pairs if value is not None}


def _read_one_column(
    settings: TableSettings, base: Path, name: str, convert: Callable[[Column], Values], empty: object
) -> _JoinedTable:
    sources = _feature_sources(settings.nodes, base)
    wanted = [Wanted(*find_column(sources, name), convert, empty)]
    return read_joined(sources, wanted, settings.ids, settings.nodes.duplicates)


def read_ids(settings: TableSettings, base: Path) -> list[str]:
    """Read the node table's ids alone, normalised by ``settings.ids``; [] without a node table."""
    if not settings.has_nodes:
        return []
    source = _make_source(base / settings.nodes.file, settings.nodes.id, settings.nodes)
    ids: list[str] = read_joined([source], [], settings.ids, settings.nodes.duplicates).ids.to_pylist()
    return ids


def feature_columns(settings: TableSettings, base: Path) -> tuple[FeatureColumn, ...]:
    """Return the feature columns that the settings choose in the tables' current headers; no rows are read."""
    if not settings.has_nodes:
        return ()
    sources = _feature_sources(settings.nodes, base)
    return choose_columns(settings.nodes, sources[0].path, _column_names(sources))


def other_columns(settings: TableSettings, base: Path) -> tuple[str, ...]:
    """Return all columns of the files of nodes and labels but id, label, target, graph and split; reads headers."""
    if not settings.has_nodes:
        return ()
    labelled = _label_source(settings.nodes, base)
    beside = () if labelled is None else labelled.columns
    names = dict.fromkeys((*_column_names(_feature_sources(settings.nodes, base)), *beside))
    return tuple(name for name in names if name and name not in settings.nodes.reserved)


def choose_columns(settings: NodeSettings, path: Path, names: Sequence[str]) -> tuple[FeatureColumn, ...]:
    """The feature columns among the table's ``names``, in the settings' order; a pattern's in the table's order.

    Raises ``DataError`` for a pattern that matches nothing, or a column that is chosen twice.
    """
    chosen: dict[str, tuple[FeatureColumn, ...]] = {}
    for feature in settings.features:
        for wanted in feature.columns:
            found = [wanted]
            if is_pattern(wanted) and wanted not in names:
                found = [name for name in names if fnmatchcase(name, wanted) and name not in settings.reserved]
            if not found:
                raise DataError(f"{path}: columns {wanted!r}: no column matches; mend the pattern or leave it out")
            for name in found:
                if name in chosen:
                    raise DataError(
                        f"{path}: column {name!r} is chosen as a feature twice, the second time by {wanted!r}; name it "
                        "in one entry of features"
                    )
                parts = feature.date.names if isinstance(feature, DateFeatures) else ("",)
                chosen[name] = tuple(FeatureColumn(name, feature, part) for part in parts)
    return tuple(column for columns in chosen.values() for column in columns)


def _feature_values(column: Column, chosen: FeatureColumn) -> Floats | Codes:
    feature = chosen.feature
    fill = "fill it in, or say under missing what it becomes"
    if isinstance(feature, NumericFeatures):
        if isinstance(feature, DateFeatures):
            numbers = date_part(column.times(feature.date.format), chosen.part, feature.date)
        else:
            numbers = column.truths() if isinstance(feature, BooleanFeatures) else column.numbers()
        if feature.missing == "error":
            column.refuse_any(np.isnan(numbers), "where missing values are an error", fill)
        return numbers
    codes = column.codes(feature.categories)
    if feature.missing == "error":
        column.refuse_any(codes == MISSING, "where missing values are an error", fill)
    if feature.other == "error":
        rule = f"is not one of the categories {', '.join(feature.categories)}"
        column.refuse_any(codes == OTHER, rule, "add it to categories, or set other to zero")
    return codes


def _codes_within(column: Column, vocabulary: Sequence[str], key: str) -> Codes:
    codes = column.codes(vocabulary)
    rule = f"is not one of {', '.join(vocabulary)}"
    column.refuse_any(codes == OTHER, rule, f"mend it, change nodes.{key}, or leave it empty")
    return codes
