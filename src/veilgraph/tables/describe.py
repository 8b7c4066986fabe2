"""What an organisation's tables hold, in numbers, before anything is sent anywhere. Nothing of this leaves it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilgraph.core.types import PartyId
from veilgraph.tables.column_settings import NumericFeatures, beyond_own_row
from veilgraph.tables.edges import Counts, EdgeTable, RemoteNodes, read_edges
from veilgraph.tables.encode import count_nonzeros, fit_encoding, is_sparse
from veilgraph.tables.joined import FileDescription
from veilgraph.tables.nodes import FeatureColumn, NodeTable, other_columns, read_nodes, read_values
from veilgraph.tables.settings import EdgeSettings, TableSettings, check_reaches
from veilgraph.tables.source import MISSING, OTHER, Codes, Floats

FAR: Final = 256.0
"""A single feature of this size takes h^0 to about half of what the ring holds, with a few columns and width 64."""
SPLITS = ("train", "val", "test")
_LEAK_AUC: Final = 0.98  # area under the curve of one column alone that nothing known beforehand has
_FEWEST: Final = 10
"""Nodes of a class, and of the others, that an area is computed from; and of a category that counts by itself."""
_FEW: Final = 2  # A column of fewer different values says too little of degrees


@dataclass(frozen=True)
class RelationDescription:
    """Rows of one relation of one edge table.

    Attributes:
        relation: its name; None where the party has but one, which reaches as far as any.
        rows: read; of these are ``dropped`` because of an unknown id.
        self_loops: of the kept rows.
        duplicates: kept rows that join the same nodes as an earlier one, in either direction where undirected.
        mean_weight: of the kept rows; None where there are none, or all edges of the table weigh 1.
    """

    relation: str | None
    rows: int
    dropped: int
    self_loops: int
    duplicates: int
    mean_weight: float | None = None
    hops: int | None = None


@dataclass(frozen=True)
class EdgeDescription:
    """One edge table: its kept relations, the directed edges that it adds, and what ``EdgeTable`` says of the rest."""

    file: Path
    directed: bool
    relations: tuple[RelationDescription, ...]
    other: int
    edges: int
    outside: int = 0
    crowded: int = 0
    repeated: int = 0
    valueless: int = 0
    strangers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    between: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of its rows those with an end at another holder: holder of the source → holder of the target → rows."""
    across: int = 0
    """Of these the rows that join nodes of different holders, which jobs of paradigm union use, and no other."""
    pairs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """As ``between``, of pairs of two nodes in its directions, each once, those within this holder among them."""
    hub: tuple[str, int] = ("", 0)
    """Of its nodes, or of others' where it has none, the one with the most of these pairs, and how many these are."""

    def across_in(self, holders: Collection[PartyId]) -> int:
        """Count the rows that join nodes of two different holders, both among ``holders``."""
        found = ((source, target, count) for source, row in self.between.items() for target, count in row.items())
        return sum(count for source, target, count in found if source != target and {source, target} <= {*holders})

    def named(self) -> dict[PartyId, int]:
        """Count the rows between two different holders by each holder that they name, most first, then by name."""
        found = Counter[PartyId]()
        for source, row in self.between.items():
            for target, count in row.items():
                found.update(dict.fromkeys({source, target}, count if source != target else 0))
        return {holder: count for holder, count in sorted(found.items(), key=lambda each: (-each[1], each[0])) if count}

    @property
    def lost(self) -> float:
        """Share of its rows that are dropped because of an unknown id."""
        return sum(each.dropped for each in self.relations) / max(1, sum(each.rows for each in self.relations))


@dataclass(frozen=True)
class NumericDescription:
    """A column of numbers, None where it has no value; ``cut``: values beyond its declared scale, if it ``ranges``."""

    column: str
    missing: int
    minimum: float | None
    mean: float | None
    maximum: float | None
    cut: int = 0
    ranges: bool = False

    @property
    def is_far(self) -> bool:
        """Whether a value exceeds ``FAR`` without a declared range, so that h^0 may overflow the ring unscaled."""
        ends = (abs(end) for end in (self.minimum, self.maximum) if end is not None)
        return not self.ranges and max(ends, default=0.0) > FAR


@dataclass(frozen=True)
class CategoricalDescription:
    """A column of categories; ``other`` counts nodes with a value outside them, and ``others`` such values."""

    column: str
    missing: int
    counts: dict[str, int]
    other: int
    others: int = 0


@dataclass(frozen=True)
class PartyDescription:
    """A party's tables.

    Attributes:
        degrees: smallest, median and largest number of incoming edges.
        isolated: nodes without any edge.
        pairs: different pairs of nodes with an edge in either direction, of a node with itself too.
        classes: class → labelled nodes; None without labels.
        splits: split → nodes; None without labels or targets.
        split_classes: split → class → nodes; None without labels.
        sparse: whether the features are kept sparse (unless standardised).
        feature_bytes: that they take in memory as float32 (unless standardised, when it is 4·N·F).
        beyond_own_row: why a node's features depend on other nodes' rows; empty where they do not.
        from_edges: features that rank nodes nearly as their numbers of edges do, and are not said to be made of these.
        leaks: features that alone tell a class from the others → the area under their curve, where labels are here.
        used: columns of the files that are features.
        left_out: those that are neither, nor id, label, target, graph or split.
        graphs: how many there are; None where nodes are not told apart by them.
        files: every file of nodes, the node table first, then those of edges.
    """

    party: PartyId
    nodes: int
    edges: tuple[EdgeDescription, ...]
    degrees: tuple[int, float, int]
    isolated: int
    features: tuple[NumericDescription | CategoricalDescription, ...]
    classes: dict[str, int] | None
    unlabelled: int
    splits: dict[str, int] | None
    num_features: int
    sparse: bool
    feature_bytes: int
    beyond_own_row: tuple[str, ...]
    target: NumericDescription | None = None
    graphs: int | None = None
    from_edges: tuple[str, ...] = ()
    leaks: dict[str, float] = field(default_factory=dict)
    used: int = 0
    left_out: tuple[str, ...] = ()
    files: tuple[FileDescription, ...] = ()
    split_classes: dict[str, dict[str, int]] | None = None
    pairs: int = 0

    @property
    def only_class(self) -> str | None:
        """The class of all training nodes, where they are of one."""
        trained = [name for name, count in (self.split_classes or {}).get(SPLITS[0], {}).items() if count]
        return trained[0] if len(trained) == 1 else None


def describe_party(settings: TableSettings, base: Path) -> PartyDescription:
    """Reads a party's tables and describes them."""
    table = read_nodes(settings, base)
    incoming, outgoing = np.zeros(table.num_nodes, np.int64), np.zeros(table.num_nodes, np.int64)
    edges, files = [], [replace(each, file=Path(os.path.relpath(each.file, base))) for each in table.counts]
    names_them, joined = _has_relations(settings.edges), [np.empty(0, dtype=np.int64)]
    for edge_settings in settings.edges:
        elsewhere = RemoteNodes(settings.party, None)
        read = read_edges(edge_settings, base, table.ids, settings.ids, elsewhere)
        edges.append(_describe_edges(read, table, elsewhere, names_them=names_them))
        files.append(
            FileDescription(edge_settings.file, str(read.form), int(read.rows.sum()) + read.other + read.outside)
        )
        _add_degrees(read, incoming, outgoing)
        source, target = read.source.astype(np.int64), read.target.astype(np.int64)
        joined.append(np.minimum(source, target) << 32 | np.maximum(source, target))
    encoding = fit_encoding(table, "none")
    shape = table.num_nodes, encoding.num_features
    nonzeros = count_nonzeros(table, encoding)
    sparse = is_sparse(nonzeros, shape)
    label = settings.nodes.label
    used = {column.name for column in table.columns}
    return PartyDescription(
        party=settings.party,
        nodes=table.num_nodes,
        edges=tuple(edges),
        degrees=(int(incoming.min()), float(np.median(incoming)), int(incoming.max()))
        if len(incoming)
        else (0, 0.0, 0),
        isolated=int(((incoming == 0) & (outgoing == 0)).sum()),
        features=tuple(
            _describe_column(column, values, settings, base)
            for column, values in zip(table.columns, table.values, strict=True)
        ),
        classes=None if label is None or table.labels is None else _count_by_name(table.labels, label.classes),
        unlabelled=table.num_nodes if table.labels is None else int((table.labels == MISSING).sum()),
        splits=None if table.splits is None else _count_by_name(table.splits, SPLITS),
        num_features=encoding.num_features,
        sparse=sparse,
        feature_bytes=12 * nonzeros + 8 * (table.num_nodes + 1) if sparse else 4 * shape[0] * shape[1],
        beyond_own_row=tuple(beyond_own_row(settings.nodes.features)),
        target=None if table.targets is None else _describe_numbers(settings.nodes.target or "", table.targets),
        from_edges=tuple(_columns_like_degrees(settings, table, (incoming, outgoing))),
        used=len(used),
        left_out=tuple(each for each in other_columns(settings, base) if each not in used),
        leaks={} if table.labels is None else dict(_leaking_columns(table, table.labels)),
        graphs=None if table.graphs is None else len(np.unique(table.graphs)),
        files=tuple(files),
        pairs=len(np.unique(np.concatenate(joined))),
        split_classes=None
        if label is None or table.labels is None or table.splits is None
        else {name: _count_by_name(table.labels[table.splits == at], label.classes) for at, name in enumerate(SPLITS)},
    )


def columns_used(used: int, left_out: Mapping[str, str]) -> str:
    """Say in one line how many columns are features, and why others are not; ``left_out``: column → reason."""
    if not used and not left_out:
        return "no columns used: it has no nodes"
    reasons = dict[str, list[str]]()
    for name, why in left_out.items():
        reasons.setdefault(why, []).append(name)
    said = "; ".join(f"{', '.join(names)}, because {why}" for why, names in reasons.items())
    return f"{used} of {used + len(left_out)} columns used" + (f"; left out: {said}" if said else "")


def _columns_like_degrees(settings: TableSettings, table: NodeTable, degrees: tuple[Counts, Counts]) -> Iterator[str]:
    """Yield numeric columns whose rank correlation with a degree is 0.8 or more, and not said to be made of edges."""
    from scipy.stats import rankdata  # noqa: PLC0415 - slow to import, and few commands describe tables

    counts = [rankdata(each) for each in (*degrees, degrees[0] + degrees[1]) if len(np.unique(each)) > 1]
    for column, values in zip(table.columns, table.values, strict=True):
        said = any(fnmatchcase(column.name, made) for made in settings.nodes.columns_from_edges)
        if said or not isinstance(column.feature, NumericFeatures):
            continue
        known = ~np.isnan(values)
        ranks = rankdata(values[known])
        if len(np.unique(ranks)) > _FEW and any(
            np.ptp(each[known]) > 0 and abs(np.corrcoef(ranks, each[known])[0, 1]) >= 0.8 for each in counts
        ):
            yield column.title


def _leaking_columns(table: NodeTable, labels: Codes) -> Iterator[tuple[str, float]]:
    """Yield columns that alone separate a class from all others with an AUC above 0.98, and that AUC."""
    from scipy.stats import rankdata  # noqa: PLC0415 - as above

    known = labels != MISSING
    classes = labels[known]
    sizes = np.bincount(classes)
    judged = np.flatnonzero((sizes >= _FEWEST) & (len(classes) - sizes >= _FEWEST))
    for column, values in zip(table.columns, table.values, strict=True):
        largest = 0.0
        for scores in _scores(column, values[known], classes, judged):
            sums = np.bincount(classes, rankdata(scores), len(sizes))[judged]
            own = sizes[judged]
            areas = (sums - own * (own + 1) / 2) / (own * (len(classes) - own))
            largest = max([largest, *areas, *(1 - areas)])
        if largest > _LEAK_AUC:
            yield column.title, largest


def _scores(
    column: FeatureColumn, values: Floats | Codes, classes: Codes, judged: Counts
) -> Iterator[NDArray[np.floating]]:
    """Yield scores [n] of nodes by a column: numbers, missing ones as ±∞; or each judged class's share by category."""
    if isinstance(column.feature, NumericFeatures):
        unknown = np.isnan(values)
        yield np.where(unknown, -np.inf, values)
        if unknown.any():
            yield np.where(unknown, np.inf, values)
        return
    _, level, count = np.unique(values, return_inverse=True, return_counts=True)
    level = np.where(count < _FEWEST, len(count), np.arange(len(count)))[level]  # rare ones are one
    for each in judged:
        shares = np.bincount(level, classes == each) / np.maximum(np.bincount(level), 1)
        yield shares[level]


def _has_relations(edges: Sequence[EdgeSettings]) -> bool:
    reaches = check_reaches(edges)
    named = any(each.relation is not None or each.name is not None for each in edges)
    return named or len(reaches) > 1 or any(hops is not None for hops in reaches.values())


def _describe_edges(table: EdgeTable, nodes: NodeTable, elsewhere: RemoteNodes, *, names_them: bool) -> EdgeDescription:
    directed = table.settings.directed
    relations = []
    for place, (name, hops) in enumerate(table.settings.reaches.items()):
        source, target, weight = table.source, table.target, table.weight
        if table.relation is not None:
            mine = table.relation == place
            source, target, weight = source[mine], target[mine], None if weight is None else weight[mine]
        relations.append(
            RelationDescription(
                relation=name if names_them else None,
                rows=int(table.rows[place]),
                dropped=int(table.dropped[place]),
                self_loops=int((source == target).sum()),
                duplicates=_count_duplicates(source, target, directed),
                mean_weight=None if weight is None or not len(weight) else float(weight.mean(dtype=np.float64)),
                hops=hops,
            )
        )
    added = len(table.source) + (0 if directed else int((table.source != table.target).sum()))
    between, pairs, hub = _count_by_holders(table, nodes, elsewhere)
    across = sum(sum(row.values()) - row.get(source, 0) for source, row in between.items())
    left = table.outside, table.crowded, table.repeated, table.valueless, table.strangers, between, across, pairs, hub
    return EdgeDescription(table.settings.file, directed, tuple(relations), table.other, added, *left)


_ByHolders = dict[str, dict[str, int]]
_Counted = tuple[_ByHolders, _ByHolders, tuple[str, int]]


def _count_by_holders(table: EdgeTable, nodes: NodeTable, elsewhere: RemoteNodes) -> _Counted:
    """Count rows with an end elsewhere, and distinct node pairs, by both ends' holders; find the node in most pairs."""
    others, place = np.unique([name.split("/", 1)[0] for name in elsewhere.ids], return_inverse=True)
    names = [elsewhere.party, *map(str, others)]
    home = np.concatenate([np.zeros(nodes.num_nodes, np.int64), 1 + place.astype(np.int64)])

    def counted(source: NDArray[np.int64], target: NDArray[np.int64]) -> _ByHolders:
        keys, counts = np.unique(home[source] * len(names) + home[target], return_counts=True)
        found = _ByHolders()
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            found.setdefault(names[key // len(names)], {})[names[key % len(names)]] = count
        return found

    source, target = table.source.astype(np.int64), table.target.astype(np.int64)
    far = (home[source] > 0) | (home[target] > 0)
    between = counted(source[far], target[far])
    if not table.settings.directed:
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
    pairs = np.unique((source * len(home) + target)[source != target])
    ends = np.bincount(np.concatenate([pairs // len(home), pairs % len(home)]), minlength=1)[: nodes.num_nodes or None]
    hub = ends.argmax()
    name = str((nodes.ids if nodes.num_nodes else [*elsewhere.ids, ""])[hub])
    return between, counted(pairs // len(home), pairs % len(home)), (name, int(ends[hub]))


def _count_duplicates(source: Codes, target: Codes, directed: bool) -> int:
    first, second = (source, target) if directed else (np.minimum(source, target), np.maximum(source, target))
    pairs = (first.astype(np.int64) << 32) + second
    pairs.sort()
    return int((pairs[1:] == pairs[:-1]).sum())


def _add_degrees(table: EdgeTable, incoming: Counts, outgoing: Counts) -> None:
    nodes = len(incoming)
    targets, sources = (np.bincount(end, minlength=nodes)[:nodes] for end in (table.target, table.source))
    incoming += targets
    outgoing += sources
    if not table.settings.directed:
        loops = np.bincount(table.source[table.source == table.target], minlength=nodes)[:nodes]
        incoming += sources - loops
        outgoing += targets - loops


def _describe_column(
    column: FeatureColumn, values: Floats | Codes, settings: TableSettings, base: Path
) -> NumericDescription | CategoricalDescription:
    if not isinstance(column.feature, NumericFeatures):
        missing, other = int((values == MISSING).sum()), int((values == OTHER).sum())
        counts = _count_by_name(values.astype(np.int32, copy=False), column.feature.categories)
        found = {each.strip() for each in read_values(settings, base, column.name).values()} if other else set[str]()
        return CategoricalDescription(column.name, missing, counts, other, len(found - {*column.feature.categories}))
    scale = column.feature.scale
    cut = 0 if scale is None else int(((values < scale.low) | (values > scale.high)).sum())
    return replace(_describe_numbers(column.title, values), cut=cut, ranges=scale is not None)


def _describe_numbers(name: str, values: Floats | Codes) -> NumericDescription:
    known = values[~np.isnan(values)]
    missing = len(values) - len(known)
    if len(known) == 0:
        return NumericDescription(name, missing, None, None, None)
    mean = float(known.mean(dtype=np.float64))
    return NumericDescription(name, missing, float(known.min()), mean, float(known.max()))


def _count_by_name(codes: Codes, names: tuple[str, ...]) -> dict[str, int]:
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    return dict(zip(names, counts.tolist(), strict=True))
