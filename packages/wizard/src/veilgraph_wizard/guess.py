"""What tables seem to be: which has the nodes, the labels or edges, and which column is what."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Final

from veilgraph.core.errors import DataError
from veilgraph.core.text import counted
from veilgraph.tables.source import fold
from veilgraph_wizard.choices import Choices
from veilgraph_wizard.sampling import Sample, SampledColumn, distinct_values
from veilgraph_wizard.transfer_columns import sides

_ENDS: Final = (
    ("source", "target"),
    ("src", "dst"),
    ("from", "to"),
    ("payer", "payee"),
    ("sender", "receiver"),
    ("sender", "recipient"),
    ("caller", "callee"),
    ("debtor", "creditor"),
    ("von", "nach"),
    ("a", "b"),
)
_HOLDERS: Final = re.compile(
    r"[_ -]?(bank|bic|institution|holder|marketplace|platform|company|organi[sz]ation|operator|hospital|insurer)[_ -]?",
    re.I,
)
_LABELS: Final = re.compile(
    r"(is[_ -]?)?(label|fraud|fraudulent|laundering|default|defaulted|churn|churned|class|y)", re.I
)
_SPLITS: Final = re.compile(r"split|part|fold|set", re.I)
_WEIGHTS: Final = re.compile(r"weight|amount|value|sum|count|betrag|duration", re.I)
_RELATIONS: Final = re.compile(r"kind|type|relation|channel", re.I)
_IDS: Final = re.compile(
    r"(.*[_ -])?(key|no)|.*(id|nr|number|nummer)|customer|client|subscriber|user|member|person|kunde", re.I
)
_SHARED: Final = re.compile(r"device|phone|telefon|address|adresse|mail|iban|merchant|card|karte|(^|_)ip(_|$)", re.I)
_MOST_CLASSES: Final = 20
_MOST_BESIDE_ID: Final = 3
_MOST_REPEATED: Final = 0.05
"""Of a table's rows, those whose id another has: more are no slips, and the table is one of something else."""
_NONE: Final = Choices()


@dataclass(frozen=True)
class Nodes:
    """A file of nodes, its column of ids, and its other columns; ``prefix``: of these in the party file."""

    sample: Sample
    id: SampledColumn
    others: tuple[SampledColumn, ...]
    prefix: str = ""

    @property
    def is_short(self) -> bool:
        """Whether it has no more than a file of labels may have: an id, a label and two columns."""
        return len(self.others) <= _MOST_BESIDE_ID


@dataclass(frozen=True)
class Edges:
    """A file of edges; with ``is_shared`` the target is what nodes share, and no node.

    ``holders`` are columns that name whose node each end is.
    """

    sample: Sample
    source: SampledColumn
    target: SampledColumn
    weight: SampledColumn | None
    relation: SampledColumn | None
    dates: tuple[SampledColumn, ...]
    is_shared: bool = False
    holders: tuple[SampledColumn, SampledColumn] | None = None


@dataclass(frozen=True)
class Guess:
    """What the files seem to be.

    Attributes:
        nodes: the node table, then further ones; none of a holder of edges between others' nodes.
        label: the column of classes; None where none seems to be one.
        label_file: what it is in, where that is a file of its own.
        split: the column that names splits.
        edges: of each file.
        alike: ids of different files are the same only once they are written alike.
    """

    nodes: tuple[Nodes, ...]
    label: SampledColumn | None
    label_file: Nodes | None
    split: SampledColumn | None
    edges: tuple[Edges, ...]
    alike: bool


def guess(samples: Sequence[Sample], choices: Choices = _NONE) -> Guess:
    """What files seem to be, in whatever order they are given.

    Raises:
        DataError: none of them seems to be of nodes, one has not the columns that are named, or a column of ids cannot
            be read to its end, as it is where several files are of nodes.
    """
    for ends in choices.ends:
        if not any(_has(each, *ends) for each in samples):
            raise DataError(f"--ends {':'.join(ends)}: no file has both columns; name the two ends of an edge")
    edges = [found for each in samples if (found := _as_edges(each, choices.ends)) is not None]
    paths = {each.sample.path for each in edges}
    rest = [each for each in samples if each.path not in paths]
    nodes = _as_nodes(rest, edges, choices)
    if nodes:
        nodes = _most_ids_first(nodes, choices)
        known = {*map(plain, distinct_values(nodes[0].sample, nodes[0].id.name))} if len(samples) > 1 else set[str]()
        of_nodes = [each.sample.path for each in nodes if each is nodes[0] or not _is_of_use(each)]
        nodes = [each for each in nodes if each.sample.path in of_nodes]
        others = [each for each in rest if each.path not in of_nodes]
        sharing = [found for each in others if (found := _as_shared(each, known)) is not None]
        edges = [*(_checked(each, known) for each in edges), *sharing]
    taken = {*(each.sample.path for each in nodes), *(each.sample.path for each in edges)}
    for each in rest:
        if each.path not in taken:
            _check_unique(each, choices.id)
            first_two = ":".join(column.name for column in each.columns[:2])
            raise DataError(
                f"{each.path}: is neither of nodes, with an id that differs in every row{_not_quite(each)}, nor of "
                "edges, with columns named as source and target, or from and to; name its ids (--id COLUMN), or both "
                f"ends of an edge, or an id and what several share, as in --ends {first_two}; or leave it out and "
                "write its part of the party file by hand (docs/guides/tables.md)"
            )
    if not nodes and edges and all(each.holders is not None for each in edges):
        return Guess((), None, None, None, tuple(edges), alike=False)
    if not nodes:
        said = ", ".join(f"{each.sample.path.name} by {each.source.name!r} and {each.target.name!r}" for each in edges)
        taken_for = f" (taken for edges: {said}; rename columns that are no ends)" if said else ""
        raise DataError(
            f"{samples[0].path}: none of the files is of nodes{taken_for}; give one with a row per node and its id, "
            "or, of edges alone, two columns of whose nodes their ends are, called as payer_bank and payee_bank"
        )
    if choices.id is not None:
        nodes[0] = _identified(nodes[0], choices.id)
    label, labelled = _labels(nodes, choices.label)
    nodes = [each for each in nodes if each is not labelled]
    nodes = [nodes[0], *(_prefixed(each) for each in nodes[1:])]
    if labelled is not None and (wanted := [each for each in labelled.others if each.name in choices.features]):
        nodes.append(_prefixed(Nodes(labelled.sample, labelled.id, tuple(wanted))))
    with_label = labelled or nodes[0]
    split = next((each for each in with_label.others if _is_split(each)), None) if label is not None else None
    alike = _alike(nodes, labelled, edges)
    if not choices.labelled:
        label = labelled = split = None
    return Guess(tuple(nodes), label, labelled, split, tuple(edges), alike)


def _most_ids_first(nodes: Sequence[Nodes], choices: Choices) -> list[Nodes]:
    """The node table first: not a file of labels alone, and of the others the one that has most ids.

    A file of labels has a row for what was looked into, and columns that nobody knew before.
    """
    if len(nodes) == 1:
        return [*nodes]

    def rank(each: Nodes) -> tuple[bool, bool, int, int]:
        label = _label_of(each) if choices.label is None else None
        has_label = label is not None or any(other.name == choices.label for other in each.others)
        named = choices.id is None or each.id.name == choices.id
        return (
            named,
            not (has_label and each.is_short),
            len(distinct_values(each.sample, each.id.name)),
            len(each.others),
        )

    return sorted(nodes, key=rank, reverse=True)


def _identified(nodes: Nodes, name: str) -> Nodes:
    """With the column of ids that is named."""
    columns = nodes.sample.columns
    found = next((each for each in columns if each.name == name), None)
    if found is None:
        raise DataError(f"{nodes.sample.path}: --id {name}: no column has that name; {named(columns)}")
    return Nodes(nodes.sample, found, tuple(each for each in columns if each is not found))


def _check_unique(sample: Sample, name: str | None) -> None:
    """Refuses what --id names where it is no id of every row, or of nearly every row as in an export with slips."""
    for column in sample.columns:
        if column.name == name and not _differs(column):
            raise DataError(
                f"{sample.path}: --id {name}: {_why_no_id(column)}; a table of nodes has a row for each, with its "
                "id: leave other rows out of it, or name another column"
            )


def _differs(column: SampledColumn) -> bool:
    """Whether every row has a value, and nearly all have another."""
    return not column.has_missing and len(column.distinct) >= (1 - _MOST_REPEATED) * len(column.values)


def _why_no_id(column: SampledColumn) -> str:
    if column.has_missing:
        return "a row has no value there"
    value, count = Counter(column.known).most_common(1)[0]
    return f"{value!r} is in {count} rows"


def _not_quite(sample: Sample) -> str:
    """Which column seems to be meant as one of ids; nothing where none does."""
    whole = _whole(sample)
    near = (each for each in sample.columns if 2 * len(each.distinct) > len(each.values))
    column = next((each for each in near if _IDS.fullmatch(each.name.strip())), None)
    if column is not None and column not in whole:
        way_out = "; --duplicates first or last takes it" if _nearly_ids(sample) is column else ""
        return f" (in {column.name!r} {_why_no_id(column)}{way_out})"
    return f" (or is it {whole[0].name!r}?)" if whole else ""


def _nearly_ids(sample: Sample) -> SampledColumn | None:
    """The column that is called as ids are, and differs in nearly every row; None where there is none."""
    called = (each for each in sample.columns if _IDS.fullmatch(each.name.strip()))
    return next((each for each in called if _differs(each)), None)


def _labels(nodes: Sequence[Nodes], name: str | None) -> tuple[SampledColumn | None, Nodes | None]:
    """The column of classes, and what it is in where that is a file of its own."""
    if name is None:
        others = [each for each in nodes[1:] if _label_of(each) is not None]
        labelled = next((each for each in others if each.is_short), None)
        if labelled is None and _label_of(nodes[0]) is None:
            labelled = next(iter(others), None)
        return _label_of(labelled or nodes[0]), labelled
    for each in nodes:
        column = next((other for other in each.others if other.name == name), None)
        if column is not None and not 2 <= len(column.distinct) <= _MOST_CLASSES:
            raise DataError(
                f"{each.sample.path}: --label {name}: has {counted(len(column.distinct), 'different value')}, and "
                f"classes are 2 to {_MOST_CLASSES}; name another column, or where other organisations have the other "
                "classes, leave --label out and write nodes.label with the classes of all"
            )
        if column is not None:
            return column, None if each is nodes[0] else each
    raise DataError(
        f"{nodes[0].sample.path}: --label {name}: no file of nodes has that column; "
        f"{named([other for each in nodes for other in each.others])}"
    )


def named(columns: Sequence[SampledColumn]) -> str:
    """Which columns there are, for whoever named another."""
    return f"there are {', '.join(column.name for column in columns)}"


def _has(sample: Sample, *names: str) -> bool:
    return {*names} <= {column.name for column in sample.columns}


def _other_end(name: str, first: str, second: str) -> str | None:
    """What a column is called beside one of a name with the word ``first``, as payer_id; None where it has not."""
    if name == first or name.startswith(f"{first}_"):
        return second + name.removeprefix(first)
    return name.removesuffix(first) + second if name.endswith(f"_{first}") else None


def _as_edges(sample: Sample, ends: Sequence[tuple[str, str]]) -> Edges | None:
    named = {column.name: column for column in sample.columns}
    pairs = [(named[one], named[other]) for one, other in ends if _has(sample, one, other)]
    across = sides(sample, next((each for each in ends if _has(sample, *each)), None))
    by_name = {name.strip().lower(): column for name, column in named.items()}
    found = ((name, _other_end(name, *words)) for words in _ENDS for name in by_name)
    pairs += [(by_name[name], by_name[other]) for name, other in found if other in by_name]
    if across is not None and (not pairs or _holders(*pairs[0], sample.columns) is None):
        pairs = [across[0]]
    if not pairs:
        return None
    source, target = pairs[0]
    rest = [column for column in sample.columns if column is not source and column is not target]
    return Edges(
        sample,
        source,
        target,
        next((each for each in rest if each.written == "number" and _WEIGHTS.search(each.name)), None),
        next(
            (each for each in rest if each.written == "category" and each.has_few and _RELATIONS.search(each.name)),
            None,
        ),
        tuple(each for each in rest if each.written == "date"),
        holders=_holders(source, target, rest) or (across[1] if across is not None else None),
    )


def _holders(
    source: SampledColumn, target: SampledColumn, rest: Sequence[SampledColumn]
) -> tuple[SampledColumn, SampledColumn] | None:
    """Columns called as the ends and a word for an organisation, as payer_bank and payee_bank."""
    called = {}
    for column in rest:
        word = _HOLDERS.search(column.name)
        if word and column.has_few:
            called[column.name.replace(word[0], "").strip().lower(), word[1].lower()] = column
    ends = (source.name.strip().lower(), target.name.strip().lower())
    pairs = [(called.get((ends[0], word)), called.get((ends[1], word))) for _, word in called]
    return next(((one, other) for one, other in pairs if one is not None and other is not None), None)


def _as_nodes(samples: Sequence[Sample], edges: Sequence[Edges], choices: Choices) -> list[Nodes]:
    """Those that are of nodes. Ids are the column that other files have most of: a case has a number of its own too."""
    ends = [Counter(map(plain, {*each.source.known, *each.target.known})) for each in edges]
    numbered = Counter(column.name for each in samples for column in _whole(each))
    again = {column for column, count in numbered.items() if count > 1}
    may_be = {each.path: _ids(each, choices, {*chain(*ends)}, again) for each in samples}
    of = {path: Counter({plain(value) for column in columns for value in column.known})
          for path, columns in may_be.items()}  # fmt: skip
    everywhere = sum([*of.values(), *ends], Counter[str]())
    names = Counter(column.name for columns in may_be.values() for column in columns)
    found = []
    for sample in samples:

        def shared(column: SampledColumn, own: Counter[str] = of[sample.path]) -> tuple[int, int]:
            return sum(everywhere[each] > own[each] for each in map(plain, column.known)), names[column.name]

        if columns := may_be[sample.path]:
            column = max(columns, key=shared)
            found.append(Nodes(sample, column, tuple(each for each in sample.columns if each is not column)))
    return found


def _as_shared(sample: Sample, known: set[str]) -> Edges | None:
    """A file of who uses what: a column of ids of nodes, and one of values that several have; None where it is none."""
    users = [
        each
        for each in sample.columns
        if each.known and 2 * sum(plain(one) in known for one in each.known) >= len(each.known)
    ]
    values = [each for each in sample.columns if each not in users and len(each.distinct) < len(each.known)]
    worded = [each for each in values if each.written in ("text", "category") and not each.has_few]
    values = [each for each in values if _SHARED.search(each.name) or each in worded]
    if not users or not values:
        return None
    value = next((each for each in values if _SHARED.search(each.name)), values[0])
    dates = tuple(each for each in sample.columns if each.written == "date")
    return Edges(sample, users[0], value, None, None, dates, is_shared=True)


def _is_of_use(nodes: Nodes) -> bool:
    """Whether a file has nothing but what nodes share, such as a device of each, and when they did."""
    values = [each for each in nodes.others if each.written != "date"]
    return bool(values) and all(
        _SHARED.search(each.name) and not each.has_few and len(each.distinct) < len(each.known) for each in values
    )


def _checked(edges: Edges, known: set[str]) -> Edges:
    """Edges as their columns are named, or, where no target is a node and sources are, of what these share."""
    source, target = (sum(plain(each) in known for each in end.known) for end in (edges.source, edges.target))
    if target or not source or edges.holders is not None:
        return edges
    return Edges(edges.sample, edges.source, edges.target, None, None, edges.dates, is_shared=True)


def _ids(sample: Sample, choices: Choices, ends: Set[str], again: Set[str]) -> list[SampledColumn]:
    """Columns that may be of ids: the one that is named, or those that are called so before others of text.

    Whole numbers that are called otherwise are ids where ``ends`` of edges are, or another file has the column
    ``again``. Where nothing else may, and it is decided which of several rows counts, some may repeat.
    """
    said = [column for column in sample.columns if column.name == choices.id]
    if not all(map(_differs, said)):
        return []  # it may say who uses which device
    texts = [column for column in sample.columns if column.is_unique and column.written in ("text", "category")]
    named = [
        each
        for each in (*texts, *_whole(sample))
        if _IDS.fullmatch(each.name.strip())
        or (each not in texts and (each.name in again or _has_ends(sample, each, ends)))
    ]
    found = said or [*named, *(each for each in texts if each not in named)]
    if not found and choices.duplicates in ("first", "last") and (nearly := _nearly_ids(sample)) is not None:
        return [nearly]
    return found


def _whole(sample: Sample) -> list[SampledColumn]:
    """Columns of whole numbers that differ in every row."""
    return [each for each in sample.columns if each.is_unique and all(one.strip().isdecimal() for one in each.known)]


def _has_ends(sample: Sample, column: SampledColumn, ends: Set[str]) -> bool:
    """Whether half of its values are ``ends`` of edges, or half of those its values, in all rows of its file.

    Few of a table's ids are among the ends of a thousand edges.
    """
    if 2 * sum(plain(each) in ends for each in column.known) >= len(column.known):
        return True
    return bool(ends) and 2 * len(ends & {*map(plain, distinct_values(sample, column.name))}) >= len(ends)


def _label_of(nodes: Nodes) -> SampledColumn | None:
    return next(
        (
            each
            for each in nodes.others
            if _LABELS.fullmatch(each.name.strip()) and 2 <= len(each.distinct) <= _MOST_CLASSES
        ),
        None,
    )


def _is_split(column: SampledColumn) -> bool:
    return _SPLITS.fullmatch(column.name.strip()) is not None and set(column.distinct) <= {"train", "val", "test"}


def _prefixed(nodes: Nodes) -> Nodes:
    stem = nodes.sample.path.name.split(".")[0]
    return Nodes(nodes.sample, nodes.id, nodes.others, f"{stem}.")


def _alike(nodes: Sequence[Nodes], labelled: Nodes | None, edges: Sequence[Edges]) -> bool:
    """Whether more ids of other files are among the node table's once white space and case do not count."""
    first = set(nodes[0].id.known)
    folded = set(map(plain, first))
    others = [each.id for each in (*nodes[1:], *([labelled] if labelled else []))]
    others += [end for each in edges for end in ([each.source] if each.is_shared else [each.source, each.target])]
    values = {value for column in others for value in column.known}
    few_repeat = len(folded) >= (1 - _MOST_REPEATED) * len(first)
    return few_repeat and sum(plain(each) in folded for each in values) > len(values & first)


def plain(value: str) -> str:
    """Return an id without white space around it, in lower case."""
    return fold(value.strip())
