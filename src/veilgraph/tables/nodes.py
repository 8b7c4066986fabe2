"""The nodes of one organisation, every rule of its settings checked. Only the columns that they name are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np

from veilgraph.core.deferred import deferred
from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams, seed_of
from veilgraph.core.types import PartyId
from veilgraph.tables.column_settings import (
    BooleanFeatures,
    CategoricalFeatures,
    DateFeatures,
    FormatSettings,
    NumericFeatures,
)
from veilgraph.tables.joined import FileDescription, JoinedTable, Source, Values, Wanted, find_column, read_joined
from veilgraph.tables.settings import NodeSettings, SplitColumn, SplitFractions, SplitTimes, TableSettings, is_pattern
from veilgraph.tables.source import (
    MISSING,
    OTHER,
    Codes,
    Column,
    Floats,
    Rows,
    column_names,
    date_part,
    file_format,
)

with deferred():  # a tenth of a second to import, and for tables alone
    import pyarrow as pa


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
) -> JoinedTable:
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
