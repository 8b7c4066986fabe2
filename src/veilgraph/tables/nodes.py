"""The node table of one organisation, every rule of its settings checked. Only the columns that they name are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.tables.convert import MISSING, OTHER, Codes, Floats, to_codes, to_ids, to_numbers, to_whole
from veilgraph.tables.feature_settings import CategoricalFeatures, NumericFeatures
from veilgraph.tables.settings import NodeSettings, SplitColumn, SplitFractions, TableSettings, is_pattern
from veilgraph.tables.source import Bools, Column, Rows, column_names, stream
from veilgraph.tables.split import draw_splits


@dataclass(frozen=True)
class FeatureColumn:
    """One column of the table and what becomes of it."""

    name: str
    feature: NumericFeatures | CategoricalFeatures


@dataclass(frozen=True, eq=False)
class NodeTable:
    """The nodes of one organisation.

    Attributes:
        path: of the file.
        ids: [N] text, each once.
        columns: the feature columns.
        values: per feature column float32 [N], NaN where missing, or int32 [N] places in its categories, with
            ``MISSING`` and ``OTHER``.
        labels: int32 [N] places in the classes, ``MISSING`` where unlabelled; None without a label column.
        splits: int32 [N], 0 train, 1 validation, 2 test, ``MISSING`` in none; None without a label or target column.
        targets: float32 [N], NaN where unknown; None without a target column.
        graphs: int64 [N], the graph that each node is of; None without such a column.
    """

    path: Path
    ids: pa.StringArray
    columns: tuple[FeatureColumn, ...]
    values: tuple[Floats | Codes, ...]
    labels: Codes | None
    splits: Codes | None
    targets: Floats | None = None
    graphs: Rows | None = None

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.ids)

    def take(self, order: Rows) -> Self:
        """The rows at the given places, in that order."""
        return replace(
            self,
            ids=self.ids.take(pa.array(order)),
            values=tuple(values[order] for values in self.values),
            labels=None if self.labels is None else self.labels[order],
            splits=None if self.splits is None else self.splits[order],
            targets=None if self.targets is None else self.targets[order],
            graphs=None if self.graphs is None else self.graphs[order],
        )


def read_nodes(
    settings: TableSettings,
    base: Path,
    columns: Sequence[FeatureColumn] | None = None,
    streams: LearningStreams | None = None,
) -> NodeTable:
    """Reads the node table.

    Args:
        settings: of the party.
        base: the party file's folder.
        columns: the feature columns of an earlier table; default: what the settings choose in this one.
        streams: of a run, by which a split without ``stratify`` is drawn.

    Raises:
        DataError: names the file, the column, the row (from 1, without the header), the value and the rule.
    """
    nodes = settings.nodes
    path = base / nodes.file
    names = column_names(path)
    if columns is None:
        columns = choose_columns(nodes, path, names)
    wanted = [nodes.id, *(column.name for column in columns)]
    if nodes.label is not None:
        wanted.append(nodes.label.column)
    wanted += [name for name in (nodes.target, nodes.graph) if name is not None]
    if isinstance(nodes.split, SplitColumn):
        wanted.append(nodes.split.column)
    ids: list[pa.StringArray] = []
    values: list[list[Floats | Codes]] = [[] for _ in columns]
    labels: list[Codes] = []
    splits: list[Codes] = []
    targets: list[Floats] = []
    graphs: list[Rows] = []
    for raw_ids, *raw in stream(path, wanted, names):
        ids.append(to_ids(raw_ids))
        for column, part, into in zip(columns, raw, values, strict=False):
            into.append(_feature_values(part, column.feature))
        if nodes.label is not None:
            labels.append(_codes_within(raw[len(columns)], nodes.label.classes, "label.classes"))
        if nodes.target is not None:
            targets.append(to_numbers(raw[len(columns)]))
        if nodes.graph is not None:
            graphs.append(to_whole(raw[wanted.index(nodes.graph, len(columns) + 1) - 1]))
        if isinstance(nodes.split, SplitColumn):
            known = labels[-1] != MISSING if labels else ~np.isnan(targets[-1])
            splits.append(_splits(raw[-1], nodes.split, known))
    if not ids:
        raise DataError(f"{path}: 0 rows, and a party has at least one node; give one row per node")
    every_id = pa.concat_arrays(ids)
    _check_distinct(every_id, path, nodes.id)
    every_label = np.concatenate(labels) if labels else None
    every_split = np.concatenate(splits) if splits else None
    every_target = np.concatenate(targets) if targets else None
    every_graph = np.concatenate(graphs) if graphs else None
    if isinstance(nodes.split, SplitFractions):
        drawn = every_label
        if every_target is not None:  # all of one class
            drawn = np.where(np.isnan(every_target), MISSING, 0).astype(np.int32)
        every_split = _drawn(drawn, nodes.split, settings.party, every_id, every_graph, streams)
    joined = tuple(cast("Floats | Codes", np.concatenate(parts)) for parts in values)
    return NodeTable(path, every_id, tuple(columns), joined, every_label, every_split, every_target, every_graph)


def _drawn(
    labels: Codes | None,
    fractions: SplitFractions,
    party: PartyId,
    ids: pa.StringArray,
    graphs: Rows | None,
    streams: LearningStreams | None,
) -> Codes | None:
    """Splits by ``draw_splits``: of nodes or, where there are several, of graphs, by their first nodes' labels."""
    if labels is None:
        return None
    if graphs is None:
        return draw_splits(labels, fractions, party, ids.to_pylist(), streams)
    numbers, first, place = np.unique(graphs, return_index=True, return_inverse=True)
    return draw_splits(labels[first], fractions, party, [str(each) for each in numbers], streams)[place]


def feature_columns(settings: TableSettings, base: Path) -> tuple[FeatureColumn, ...]:
    """The feature columns that the settings choose in the node table as it is now; only its header is read.

    Args:
        settings: of the party.
        base: the party file's folder.

    Raises:
        DataError: the table cannot be read, or as ``choose_columns``.
    """
    path = base / settings.nodes.file
    return choose_columns(settings.nodes, path, column_names(path))


def choose_columns(settings: NodeSettings, path: Path, names: Sequence[str]) -> tuple[FeatureColumn, ...]:
    """The feature columns among the table's ``names``, in the settings' order; a pattern's in the table's order.

    Raises:
        DataError: a pattern that matches nothing, or a column that is chosen twice.
    """
    chosen: dict[str, FeatureColumn] = {}
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
                chosen[name] = FeatureColumn(name, feature)
    return tuple(chosen.values())


def _feature_values(column: Column, feature: NumericFeatures | CategoricalFeatures) -> Floats | Codes:
    fill = "fill it in, or say under missing what it becomes"
    if isinstance(feature, NumericFeatures):
        numbers = to_numbers(column)
        if feature.missing == "error":
            column.refuse_any(np.isnan(numbers), "where missing values are an error", fill)
        return numbers
    codes = to_codes(column, feature.categories)
    if feature.missing == "error":
        column.refuse_any(codes == MISSING, "where missing values are an error", fill)
    if feature.other == "error":
        rule = f"is not one of the categories {', '.join(feature.categories)}"
        column.refuse_any(codes == OTHER, rule, "add it to categories, or set other to zero")
    return codes


def _splits(column: Column, settings: SplitColumn, known: Bools) -> Codes:
    splits = _codes_within(column, (settings.train, settings.val, settings.test), "split")
    unlabelled = (splits != MISSING) & ~known
    column.refuse_any(unlabelled, "for a node without a label", "label it or take it out of the split")
    return splits


def _codes_within(column: Column, vocabulary: Sequence[str], key: str) -> Codes:
    codes = to_codes(column, vocabulary)
    rule = f"is not one of {', '.join(vocabulary)}"
    column.refuse_any(codes == OTHER, rule, f"mend it, change nodes.{key}, or leave it empty")
    return codes


def _check_distinct(ids: pa.StringArray, path: Path, name: str) -> None:
    first = pc.index_in(ids, value_set=ids).to_numpy(zero_copy_only=False)
    repeated = first != np.arange(len(ids))
    if repeated.any():
        row = int(repeated.argmax())
        raise DataError(
            f"{path}: column {name!r}, row {row + 1}: {ids[row].as_py()!r} is also the id of row {first[row] + 1}, and "
            "a node has one row; merge them"
        )
