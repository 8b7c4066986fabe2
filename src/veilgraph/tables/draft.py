"""A party file, with comments, of what tables seem to be."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from veilgraph.core.errors import DataError
from veilgraph.tables.guess import Edges, Guess, Nodes
from veilgraph.tables.sampling import ROWS, Sample, SampledColumn

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_WORDS: Final = frozenset({"null", "Null", "NULL"})
_SINCE: Final = "2020-01-01"


@dataclass(frozen=True)
class Draft:
    """The text of a party file, and what somebody who knows the tables is to decide of it."""

    text: str
    decisions: tuple[str, ...]


def draft(found: Guess, party: str, folder: Path) -> Draft:
    """Writes down a guess.

    Args:
        found: what the tables seem to be.
        party: name of the holder.
        folder: of the party file, from which paths start.

    Raises:
        DataError: no column seems to be a feature.
    """
    first = found.nodes[0]
    decisions: list[str] = []
    lines = [
        f"# Guessed from the first {ROWS} rows of each file at most; lines with 'decide' are for you to settle.",
        "# Then: veilgraph data check. docs/tables.md explains every key.",
        f"party: {_text(party)}  # this holder's name in the job",
    ]
    if found.alike:
        lines.append("ids: {strip: true, lower: true}  # decide: ids of the files differ in white space or case")
        decisions.append("ids: the files write them differently; all holders must write them alike")
    lines += ["nodes:", *(f"  {line}" for line in _file(first.sample, folder, decisions))]
    lines.append(f"  id: {_text(first.id.name)}  # decide: what all holders call a node by")
    decisions.append(f"nodes.id: is {first.id.name!r} what the other holders have too?")
    lines += [f"  {line}" for line in _joined(found.nodes[1:], first, folder, decisions)]
    taken = {id(each) for each in (found.label, found.split)}
    lines.append("  features:")
    entries = [line for each in found.nodes for line in _features(each, taken, decisions)]
    lines += [f"    {line}" for line in entries]
    if not any(line.startswith("- ") for line in entries):
        raise DataError(
            f"{first.sample.path}: no column of the nodes seems to be a feature; give a file that has numbers of them, "
            "dates, truth values or few different texts"
        )
    lines += [f"  {line}" for line in _labels(found, first, folder, decisions)]
    if found.edges:
        lines.append("edges:")
    for each in found.edges:
        lines += _edges(each, folder, decisions)
    return Draft("\n".join(lines) + "\n", tuple(decisions))


def _file(sample: Sample, folder: Path, decisions: list[str]) -> Iterator[str]:
    path = os.path.relpath(sample.path.absolute(), folder.absolute())
    yield f"file: {_text(path)}  # {sample.form}"
    if sample.in_doubt:
        yield f"encoding: {sample.form.encoding}  # decide: it is not UTF-8"
        decisions.append(f"encoding of {path}: it is not UTF-8; is it {sample.form.encoding}?")
    if sample.decimal != ".":
        yield f'decimal: "{sample.decimal}"'
    if sample.markers:
        yield f"missing_values: [{', '.join(map(_text, sample.markers))}]"


def _joined(nodes: Sequence[Nodes], first: Nodes, folder: Path, decisions: list[str]) -> Iterator[str]:
    if nodes:
        yield "join:"
    for each in nodes:
        lines = [*_file(each.sample, folder, decisions), f"prefix: {_text(each.prefix)}"]
        lines += [f"id: {_text(each.id.name)}"] if each.id.name != first.id.name else []
        yield from _item(lines, "  ")


def _features(nodes: Nodes, taken: set[int], decisions: list[str]) -> Iterator[str]:
    joined = bool(nodes.prefix)
    for column in nodes.others:
        if id(column) in taken:
            continue
        name = _text(nodes.prefix + column.name)
        missing = column.has_missing or joined
        if column.kind == "number":
            yield f"- {{columns: {name}{', missing: mean' if missing else ''}}}"
        elif column.kind == "boolean":
            yield f"- {{columns: {name}, boolean: true{', missing: mean' if missing else ''}}}"
        elif column.kind == "date":
            yield from _date(column, name, missing=missing, decisions=decisions)
        elif column.kind == "category":
            values = ", ".join(map(_text, column.distinct))
            known = "category" if missing else "error"
            yield f"- {{columns: {name}, categories: [{values}], missing: {known}, other: zero}}"
        else:
            why = "no value" if column.kind == "nothing" else f"{len(column.distinct)} different texts"
            yield f"# {name}: left out, as it has {why}"


def _date(column: SampledColumn, name: str, *, missing: bool, decisions: list[str]) -> Iterator[str]:
    written = f", format: {_text(column.formats[0])}" if column.formats[0] else ""
    comment = "  # decide: since when"
    if len(column.formats) > 1:
        comment += f", and which format: {' or '.join(column.formats)}"
        decisions.append(f"date {name}: is it written {' or '.join(column.formats)}?")
    known = ", missing: mean" if missing else ""
    yield f"- {{columns: {name}, date: {{days_since: {_SINCE}{written}}}{known}}}{comment}"


def _labels(found: Guess, first: Nodes, folder: Path, decisions: list[str]) -> Iterator[str]:
    label = found.label
    if label is None:
        yield "# label: {column: ..., classes: [..., ...]}  # at the label holder only; and a split"
        return
    yield "label:"
    if found.label_file is not None:
        yield from (f"  {line}" for line in _file(found.label_file.sample, folder, decisions))
        if found.label_file.id.name != first.id.name:
            yield f"  id: {_text(found.label_file.id.name)}"
    yield f"  column: {_text(label.name)}  # decide: leave label and split out unless this holder is the label holder"
    yield f"  classes: [{', '.join(map(_text, label.distinct))}]"
    decisions.append(f"nodes.label: is {label.name!r} what is to be predicted, and its classes in this order?")
    if found.split is not None:
        yield f"split: {{column: {_text(found.split.name)}}}"
        return
    yield "# decide: at random, or by a date: {by: ..., train_before: 2024-05-01, val_before: 2024-06-01}"
    yield "split: {train: 0.6, val: 0.2, test: 0.2}"
    decisions.append("nodes.split: at random, or by a date?")


def _edges(edges: Edges, folder: Path, decisions: list[str]) -> Iterator[str]:
    lines = [*_file(edges.sample, folder, decisions)]
    lines += [f"source: {_text(edges.source.name)}", f"target: {_text(edges.target.name)}"]
    if edges.weight is not None:
        lines.append(f"weight: {{column: {_text(edges.weight.name)}, scale: log}}")
    if edges.relation is not None:
        kinds = ", ".join(f"{_text(value)}: 1" for value in edges.relation.distinct)
        lines.append(f"relation: {{column: {_text(edges.relation.name)}, weights: {{{kinds}}}}}")
    lines.append("normalize: mean  # every relation weighs alike; not where ε is of one edge")
    for date in edges.dates[:1]:
        written = f", format: {_text(date.formats[0])}" if date.formats[0] else ""
        name = _text(date.name)
        lines.append(f"# filter: {{column: {name}, before: {_SINCE}{written}}}  # what was known by then")
        lines.append(f"# decay: {{column: {name}, half_life_days: 90, at: {_SINCE}{written}}}")
    lines.append("directed: false")
    lines.append("unknown: drop  # an edge to an id that is no node's; or error")
    yield from _item(lines, "  ")


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
