"""A party file, with comments, of what tables seem to be."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

import yaml

from veilgraph.core.errors import DataError
from veilgraph.tables.column_settings import NumberSettings, whole_names
from veilgraph.tables.describe import columns_used
from veilgraph_wizard.choices import Choices, SplitByDate, SplitByKey
from veilgraph_wizard.guess import Edges, Guess, Nodes, named, plain
from veilgraph_wizard.sampling import ROWS, Kind, Sample, SampledColumn

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_WORDS: Final = frozenset({"null", "Null", "NULL"})
_SINCE: Final = "2020-01-01"
_BIRTH: Final = re.compile(r"birth|born|(^|_)dob($|_)|geburt|geboren|naissance|nacimiento|nascita", re.I)
_AT_RANDOM: Final = "split: {train: 0.6, val: 0.2, test: 0.2}"
_EACH_AT_RANDOM: Final = "split: {train: 0.6, val: 0.2, test: 0.2, stratify: false}"
_NORMALIZED: Final = "normalize: mean  # every relation weighs alike; not where ε is of one edge"
_NONE: Final = Choices()


@dataclass(frozen=True)
class Draft:
    """The text of a party file, what somebody who knows the tables is to decide of it, and which columns it uses."""

    text: str
    decisions: tuple[str, ...]
    used: str = ""


def draft(found: Guess, party: str, folder: Path, choices: Choices = _NONE) -> Draft:
    """Writes down a guess.

    Raises:
        DataError: no column seems to be a feature, or one has not the columns that are named.
    """
    return _Drafting(found, party, folder, choices).draft()


class _Drafting:
    """The lines of a party file, and what is left to decide, as it is found."""

    def __init__(self, found: Guess, party: str, folder: Path, choices: Choices) -> None:
        self._found, self._party, self._folder, self._choices = found, party, folder, choices
        self._decisions: list[str] = []
        self._used, self._left_out = 0, dict[str, str]()

    @property
    def _first(self) -> Nodes:
        """The node table."""
        return self._found.nodes[0]

    def draft(self) -> Draft:
        found = self._found
        lines = [
            f"# Guessed from {ROWS} rows of each file at most; lines with 'decide' are for you to settle.",
            "# Then: veilgraph data check. docs/guides/tables.md explains every key.",
            "# Columns, categories and classes are those that were found, and others are told how many. Where an ε is",
            "# to protect a node or a label, write what there can be: one that a single node has would tell of it.",
            f"party: {_text(self._party)}  # this holder's name in the job",
            f"ledger: {_text(f'{self._party}-ledger')}  # a folder: what is ever released with noise is counted there",
            *self._ids(),
        ]
        if found.nodes:
            self._check_columns()
            lines += self._nodes()
        else:
            lines.append("# nodes: none of its own; the job names this holder in across (docs/explanation/union.md)")
        lines += ["edges:"] if found.edges else []
        for each in found.edges:
            lines += self._edges(each)
        return Draft("\n".join(lines) + "\n", tuple(self._decisions), columns_used(self._used, self._left_out))

    def _nodes(self) -> list[str]:
        found, choices = self._found, self._choices
        lines = ["nodes:", *(f"  {line}" for line in self._file(self._first.sample))]
        across = any(each.holders is not None for each in found.edges)
        whose = "edges call a node by" if across else "all holders call a node by"
        doubt = f"  # decide: what {whose}" if choices.id is None else ""
        lines.append(f"  id: {_text(self._first.id.name)}{doubt}")
        if doubt:
            asked = "what edges call a node by" if across else "what the other holders have too"
            self._decide(f"nodes.id: is {self._first.id.name!r} {asked}? (--id)")
        if choices.duplicates is not None:
            lines.append(f"  duplicates: {choices.duplicates}")
        elif self._repeats():
            lines.append("  duplicates: first  # decide: some ids have several rows; or last, or refuse")
            self._decide(
                "nodes.duplicates: some ids have several rows; which counts, the first or the last? (--duplicates)"
            )
        lines += [f"  {line}" for line in self._joined()]
        taken = {id(each) for each in (found.label, found.split)}
        entries = [line for each in found.nodes for line in self._features(each, taken)]
        if found.label_file is not None:
            split = self._choices.split.column if isinstance(self._choices.split, SplitByDate) else None
            beside = (each for each in found.label_file.others if id(each) not in taken and each.name != split)
            kept = {each.name for each in beside} - self._choices.features
            self._left_out |= dict.fromkeys(sorted(kept), "the file of the label has it (--feature)")
        has_features = any(line.startswith("- ") for line in entries)
        lines += [f"  features:{'' if has_features else ' []  # none seems to be one'}"]
        lines += [f"    {line}" for line in entries]
        if not has_features and not found.edges:
            raise DataError(
                f"{self._first.sample.path}: no column of the nodes seems to be a feature; give a file that has "
                "numbers of them, dates, truth values or few different texts, or one of edges "
                f"({columns_used(0, self._left_out)})"
            )
        return lines + [f"  {line}" for line in self._labels()]

    def _repeats(self) -> bool:
        """Whether rows of the sample have the same id, once ids are written alike."""
        first, alike = self._first.id, self._found.alike if self._choices.ids is None else bool(self._choices.ids)
        return not first.is_unique or (alike and len({*map(plain, first.known)}) < len(first.known))

    def _decide(self, what: str) -> None:
        if what not in self._decisions:
            self._decisions.append(what)

    def _check_columns(self) -> None:
        columns = [column for each in self._found.nodes for column in each.others]
        numbers = [column for column in columns if column.written == "number"]
        for name in sorted(self._choices.ranges.keys() - {each.name for each in numbers}):
            raise DataError(
                f"{self._first.sample.path}: --range {name}: no column of numbers has that name; {named(numbers)}"
            )
        for option, names in (("--leave-out", self._choices.left_out), ("--feature", self._choices.features)):
            for name in sorted(names - {each.name for each in columns}):
                raise DataError(
                    f"{self._first.sample.path}: {option} {name}: no file of nodes has that column; {named(columns)}"
                )

    def _ids(self) -> Iterator[str]:
        if self._choices.ids is not None:
            if self._choices.ids:
                yield f"ids: {{{', '.join(f'{word}: true' for word in self._choices.ids)}}}"
        elif self._found.alike:
            yield "ids: {strip: true, lower: true}  # decide: ids of the files differ in white space or case"
            self._decide("ids: the files write them differently; all holders must write them alike (--ids)")

    def _file(self, sample: Sample) -> Iterator[str]:
        path = os.path.relpath(sample.path.absolute(), self._folder.absolute())
        yield f"file: {_text(path)}  # {sample.form}"
        if sample.in_doubt:
            yield f"encoding: {sample.form.encoding}  # decide: it is not UTF-8"
            self._decide(f"encoding of {path}: it is not UTF-8; is it {sample.form.encoding}? (--encoding)")
        elif sample.form.encoding == self._choices.encoding:
            yield f"encoding: {sample.form.encoding}"
        if sample.decimal != ".":
            yield f'decimal: "{sample.decimal}"'
        if written := [*self._numbers(sample)]:
            yield f"numbers: {{{', '.join(written)}}}"
        if sample.markers:
            comment = ""
            if sample.doubtful:
                words = ", ".join(map(repr, sample.doubtful))
                comment = "  # decide: some stand among numbers or dates"
                self._decide(f"missing_values of {path}: is {words} no value? (--missing)")
            yield f"missing_values: [{', '.join(map(_text, sample.markers))}]{comment}"

    def _numbers(self, sample: Sample) -> Iterator[str]:
        """How columns of numbers are written, where it is not as in the rest of the file; ends of edges are none."""
        usual = NumberSettings.model_validate({"decimal": sample.decimal})
        for column in sample.columns:
            if column.written != "number" or column.kind in ("identifier", "constant"):
                continue
            form = column.number(sample.decimal)
            marked = next((each for each in column.distinct if "," in each or "." in each), None)
            if marked is not None and sample.decimal == "." and len({each.decimal for each in column.numbers}) > 1:
                number = float(re.sub(r"[^-\d.]", "", marked.replace(form.thousands or " ", "")))
                self._decide(f"{column.name}: is {marked!r} {number:,.10g}? Else mend numbers, or decimal, of its file")
            if form != usual:
                said = {"decimal": form.decimal, **form.model_dump(exclude_defaults=True)}
                yield f"{_text(column.name)}: {{{', '.join(f'{key}: {_text(value)}' for key, value in said.items())}}}"

    def _joined(self) -> Iterator[str]:
        nodes = self._found.nodes[1:]
        if nodes:
            yield "join:"
        for each in nodes:
            lines = [*self._file(each.sample), f"prefix: {_text(each.prefix)}"]
            lines += [f"id: {_text(each.id.name)}"] if each.id.name != self._first.id.name else []
            yield from _item(lines, "  ")

    def _features(self, nodes: Nodes, taken: set[int]) -> Iterator[str]:
        joined = bool(nodes.prefix)
        split = self._choices.split
        of_split = None if self._found.label_file is not None or not isinstance(split, SplitByDate) else split.column
        for column in nodes.others:
            if id(column) in taken or column.name == of_split:
                continue
            name = _text(nodes.prefix + column.name)
            if why := self._why_none(column, joined=joined):
                self._left_out[nodes.prefix + column.name] = why
                yield f"# {name}: left out, because {why}"
            else:
                self._used += 1
                yield self._feature(column, name, missing=column.has_missing or joined)

    def _why_none(self, column: SampledColumn, *, joined: bool) -> str:
        """Why a column is no feature; empty where it is one."""
        if column.name in self._choices.left_out:
            return "--leave-out says so"
        across = any(each.holders is not None for each in self._found.edges)  # all holders then have the same columns
        kept = joined != across and (joined or column.written == "number")
        reasons = {
            "nothing": "no row has a value",
            "constant": "" if kept else "all rows have the same value",
            "identifier": "nearly every row has a number of its own",
            "text": column.unread_dates or "too many rows have a text of their own",
        }
        return reasons.get(self._kind(column), "")

    def _kind(self, column: SampledColumn) -> Kind:
        """What a column is taken for. Where a node is protected it is not left out for what one node alone changes."""
        named = column.name in self._choices.features or column.name in self._choices.ranges
        return column.written if named or (self._choices.of_own_row and len(column.distinct) == 1) else column.kind

    def _feature(self, column: SampledColumn, name: str, *, missing: bool) -> str:
        kind = self._kind(column) if self._kind(column) != "constant" else column.written
        if kind == "number":
            return self._number(column, name, missing=missing)
        if kind == "boolean":
            return f"- {{columns: {name}, boolean: true{self._filled(missing)}}}"
        if kind == "date":
            return self._date(column, name, missing=missing)
        if self._choices.of_own_row:
            self._decide(
                f"{column.name}: which categories can it have, from what it means and not from these tables? One "
                "that a single node has would tell of it"
            )
            return f"# - {{columns: {name}, categories: [...], missing: category, other: zero}}  # decide: which"
        known = "category" if missing else "error"
        counted = sum(value.strip() in column.levels for value in column.known)
        if rest := len(column.distinct) - len(column.levels):
            self._decide(
                f"{column.name}: are {len(column.levels)} of its {len(column.distinct)} values enough as categories? "
                f"The other {rest} are in {len(column.known) - counted} of {len(column.known)} rows, and count as "
                "none; name more of them under categories"
            )
        values = ", ".join(map(_text, column.levels))
        return f"- {{columns: {name}, categories: [{values}], missing: {known}, other: zero}}"

    def _filled(self, missing: bool, range_: tuple[float, float] = (0, 0)) -> str:
        """What a missing number is; a mean is of all rows."""
        if not missing or not self._choices.of_own_row:
            return ", missing: mean" if missing else ""
        low, high = range_
        return ", missing: zero" if low <= 0 <= high else f", missing: {low:g}"

    def _number(self, column: SampledColumn, name: str, *, missing: bool) -> str:
        if column.name in self._choices.ranges:
            low, high = range_ = self._choices.ranges[column.name]
            return f"- {{columns: {name}{self._filled(missing, range_)}, scale: {{low: {low:g}, high: {high:g}}}}}"
        if not self._choices.of_own_row:
            return f"- {{columns: {name}{self._filled(missing)}}}"
        self._decide(
            f"{column.name}: which numbers can it have, from what it means and not from these tables? They become "
            f"0 to 1, or large ones outweigh all else (--range {column.name}:LOW:HIGH)"
        )
        return f"- {{columns: {name}{self._filled(missing)}}}  # decide: scale: {{low: ..., high: ...}}"

    def _date(self, column: SampledColumn, name: str, *, missing: bool) -> str:
        since = self._choices.as_of or _SINCE
        unsettled = [] if self._choices.as_of else ["since when"]
        if not self._choices.as_of:
            self._decide("dates: which day do features count from, and tell of? (--as-of)")
        if len(column.formats) > 1:
            unsettled.append(f"which format: {' or '.join(column.formats)}")
            self._decide(f"date {name}: is it written {' or '.join(column.formats)}? Else change its format")
        comment = f"  # decide: {', and '.join(unsettled)}" if unsettled else ""
        known = self._filled(missing)
        return f"- {{columns: {name}, date: {{days_since: {since}{_format(column)}}}{known}}}{comment}"

    def _labels(self) -> Iterator[str]:
        label = self._found.label
        if label is None:
            if self._choices.split is not None:
                raise DataError(
                    f"{self._first.sample.path}: --split is given, and no column seems to be of classes; name it "
                    "(--label)"
                )
            if self._choices.labelled:
                yield "# label: {column: ..., classes: [..., ...]}  # at the label holder only; and a split"
            return
        if self._choices.of_own_label:
            self._decide(
                f"nodes.label: which classes can {label.name!r} have, from what it means and not from these tables? "
                "One that a single node has would tell of it; label and split are comments until they are written"
            )
            yield "# decide: classes, then take away the marks of comment"
            yield from (f"# {line}" for line in self._label_lines(label))
        else:
            yield from self._label_lines(label)

    def _label_lines(self, label: SampledColumn) -> Iterator[str]:
        found = self._found
        yield "label:"
        if found.label_file is not None:
            yield from (f"  {line}" for line in self._file(found.label_file.sample))
            if found.label_file.id.name != self._first.id.name:
                yield f"  id: {_text(found.label_file.id.name)}"
        if self._choices.label is None:
            comment = "  # decide: leave label and split out unless this holder is the label holder"
            self._decide(
                f"nodes.label: is {label.name!r} what is to be predicted, and its classes in this order? (--label, "
                "--no-label)"
            )
        else:
            comment = ""
        yield f"  column: {_text(label.name)}{comment}"
        classes = tuple(dict.fromkeys(whole_names(label.distinct)))
        if self._choices.of_own_label:
            yield "  classes: [..., ...]"
        elif len(classes) == 2:
            rows = Counter(whole_names(value.strip() for value in label.known))
            classes = tuple(sorted(classes, key=lambda each: -rows[each]))  # average precision is of the second
            yield f"  classes: [{', '.join(map(_text, classes))}]  # the second is looked for, as fraud is"
        else:
            yield f"  classes: [{', '.join(map(_text, classes))}]"
        yield from self._split()

    def _split(self) -> Iterator[str]:
        choice, with_label = self._choices.split, self._found.label_file or self._first
        dates = [each for each in with_label.others if each.kind == "date"]
        if isinstance(choice, SplitByDate):
            column = next((each for each in with_label.others if each.name == choice.column), None)
            if column is None or column.kind != "date":
                raise DataError(
                    f"{with_label.sample.path}: --split {choice.column}: no column of dates has that name; "
                    f"{named(dates) if dates else 'there is none, so split at random'}"
                )
            days = f"train_before: {choice.train_before}, val_before: {choice.val_before}"
            yield f"split: {{by: {_text(column.name)}, {days}{_format(column)}}}"
        elif choice is None and self._found.split is not None:
            yield f"split: {{column: {_text(self._found.split.name)}}}"
        elif choice is None:
            yield "# decide: at random, or by a date: {by: ..., train_before: 2024-05-01, val_before: 2024-06-01}"
            yield self._at_random()
            dated = (each for each in dates if not _BIRTH.search(each.name))
            by = next(filter(None, map(_by_date, dated)), "COLUMN:DATE:DATE")
            self._decide(f"nodes.split: at random, or by a date? (--split random, --split {by})")
        else:
            yield self._at_random()

    def _at_random(self) -> str:
        """By classes, who is trained on hangs on all labels."""
        if isinstance(split := self._choices.split, SplitByKey):
            return f"{_EACH_AT_RANDOM.removesuffix('}')}, key: {_text(split.key)}}}"
        return _EACH_AT_RANDOM if self._choices.of_own_label else _AT_RANDOM

    def _across(self, edges: Edges, lines: list[str], *holders: SampledColumn) -> Iterator[str]:
        """Edges to nodes of other holders, with what was paid where there is a node table: a network's count alike."""
        for end, column in zip(("source", "target"), holders, strict=True):
            lines.append(f"{end}_holder: {_text(column.name)}  # whose node it is, by the holder's name in the job")
        names = sorted({*holders[0].distinct, *holders[1].distinct})
        self._decide(
            f"edges: {holders[0].name} and {holders[1].name} say whose nodes ends are; are "
            f"{', '.join(names)} the holders' names in the job?"
        )
        if edges.weight is not None and self._found.nodes and self._choices.joins:
            lines.append(f"weight: {_text(edges.weight.name)}  # counts at home alone, as log(1 + the sum of a pair)")
        elif edges.weight is not None and self._found.nodes:
            lines.append(f"weight: {{column: {_text(edges.weight.name)}, scale: log}}")
            lines += [] if self._choices.of_own_edge else [_NORMALIZED]
        for dated in edges.dates[:1] if self._choices.as_of is not None else ():
            known = f"filter: {{column: {_text(dated.name)}, before: {self._choices.as_of}{_format(dated)}}}"
            lines.append(f"{known}  # what was known by then: of all holders the same")
        lines.append("directed: true")
        if self._found.nodes:
            lines.append("unknown: drop  # an edge to an id of this holder's that is no node's; or error")
        yield from _item(lines, "  ")

    def _edges(self, edges: Edges) -> Iterator[str]:
        lines = [*self._file(edges.sample)]
        end = "shared" if edges.is_shared else "target"
        lines += [f"source: {_text(edges.source.name)}", f"{end}: {_text(edges.target.name)}"]
        if edges.holders is not None:
            yield from self._across(edges, lines, *edges.holders)
            return
        if edges.is_shared:
            lines.append("at_most: 50  # who has the same value is joined, unless so many have it")
            self._decide(
                f"edges.at_most: are customers who share {edges.target.name!r} to be joined, if at most 50 have it? "
                f"Else change at_most, or draft without {edges.sample.path.name}"
            )
        taken = {id(each) for each in (edges.source, edges.target, edges.weight, edges.relation, *edges.dates)}
        numbers = [each for each in edges.sample.columns if each.written == "number" and id(each) not in taken]
        if numbers and edges.weight is None and not edges.is_shared:
            names = ", ".join(each.name for each in numbers)
            self._decide(
                f"edges.weight: {edges.sample.path.name} has {names}, which counts for nothing; does it say how strong "
                "an edge is? Then name it there"
            )
        if edges.weight is not None:
            line = f"weight: {{column: {_text(edges.weight.name)}, scale: log}}"
            counts = "  # left out: every edge counts once where an ε is of edges"
            lines.append(f"# {line}{counts}" if self._choices.protect == "edge" else line)
        if edges.relation is not None:
            relation = _text(edges.relation.name)
            if self._choices.of_own_edge:
                self._decide(
                    f"{edges.relation.name}: which relations are there, from what it means and not from these tables? "
                    "One that a single edge has would tell of it"
                )
                lines.append(
                    f"# relation: {{column: {relation}, weights: {{...: 1}}, other: drop}}  # decide: relations"
                )
            else:
                kinds = ", ".join(f"{_text(value)}: 1" for value in edges.relation.distinct)
                lines.append(f"relation: {{column: {relation}, weights: {{{kinds}}}}}")
        weighs = edges.weight is not None or edges.relation is not None  # else every row weighs 1 already
        if weighs and not self._choices.of_own_edge:
            lines.append(_NORMALIZED)
        for dated in edges.dates[:1]:
            name, day = _text(dated.name), self._choices.as_of
            dropped = ", missing: drop" if dated.has_missing else ""
            known = f"filter: {{column: {name}, before: {day or _SINCE}{_format(dated)}{dropped}}}"
            lines.append(f"{'' if day else '# '}{known}  # what was known by then")
            if not edges.is_shared:
                lines.append(f"# decay: {{column: {name}, half_life_days: 90, at: {day or _SINCE}{_format(dated)}}}")
        if not edges.is_shared:
            directed, comment = self._choices.directed, ""
            if directed is None:
                comment = f"  # decide: or true, from {edges.source.name!r} to {edges.target.name!r} alone"
                self._decide("edges.directed: does it matter who is the source and who the target? (--directed)")
            lines.append(f"directed: {str(bool(directed)).lower()}{comment}")
        lines.append("unknown: drop  # an edge to an id that is no node's; or error")
        yield from _item(lines, "  ")


def _format(column: SampledColumn) -> str:
    """The key of a date's format, where it is not ISO."""
    if not column.formats:
        return f", format: [{', '.join(map(_text, column.mixed))}]"
    return f", format: {_text(column.formats[0])}" if column.formats[0] else ""


def _by_date(column: SampledColumn) -> str | None:
    """The option that trains on the earlier 60 % of a sample's rows, and validates on the next 20 %."""
    days = sorted(column.days) if column.formats else [date.min] * 5
    first, second = (days[place * len(days) // 5] for place in (3, 4))
    return f"{column.name}:{first}:{second}" if first < second else None


def _item(lines: Sequence[str], indent: str) -> Iterator[str]:
    """An entry of a list, whose keys are lines."""
    for place, line in enumerate(lines):
        yield f"{indent}{'- ' if place == 0 else '  '}{line}"


def _text(value: str) -> str:
    """A text as YAML has it, within braces too."""
    if _PLAIN.fullmatch(value) and value not in _WORDS:
        return value
    written: str = yaml.safe_dump(value, default_style='"', width=2**20, allow_unicode=True)
    return written.strip()
