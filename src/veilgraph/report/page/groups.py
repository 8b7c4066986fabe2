"""How well a model predicts for each group of nodes, by a column of the label holder's own tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilgraph.comparison.figures import Scored as Tested
from veilgraph.comparison.figures import estimates
from veilgraph.core.errors import ConfigError
from veilgraph.core.words import called
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.report.page.scored import Scored
from veilgraph.report.ranking import Share, alarms, interval_of, share
from veilgraph.report.tables import percent
from veilgraph.tables.nodes import read_values

Rows = NDArray[np.int64]

FEWEST: Final = 20
"""Test nodes of a group that is shown by itself."""
_MOST: Final = 20
"""Groups; the others are joined."""
_MOST_NUMBERS: Final = 10
"""So many different numbers are groups; of more each quarter of the nodes is one."""
_NOTHING: Final = "–"


@dataclass(frozen=True)
class ByColumn:
    """A column by which test nodes are grouped: its name, and each node's value by its id, where it has one."""

    name: str
    values: Mapping[str, str]


@dataclass(frozen=True)
class Group:
    """A row: the group's name and its figures, one for each heading."""

    name: str
    figures: tuple[str, ...]


@dataclass(frozen=True)
class Groups:
    """The table; ``joined``: how many groups are in the row of the others."""

    column: str
    headings: tuple[str, ...]
    rows: tuple[Group, ...]
    joined: int


def read_column_of(settings: JobSettings, told: Scored | str, column: str, party_file: Path | None) -> ByColumn:
    """A column of the tables of the party whose predictions are here.

    Args:
        settings: of the run.
        told: its predictions with labels, or why they are not here.
        column: as the party file has it.
        party_file: that party's; None: the one that the job names.

    Raises:
        ConfigError: there are no predictions and labels here, the nodes came from no tables, it is not known where
            these are, or the column is the label or the id.
        DataError: there is no such column, or the tables cannot be read.
    """
    if isinstance(told, str):
        raise ConfigError(
            f"by={column!r}: groups are judged where labels and predictions are, and {told} Ask the label holder",
            key="by",
            value=column,
        )
    if told.ids is None:
        raise ConfigError(
            f"by={column!r}: this run's nodes came from no tables, so they have no ids; leave it out, or train from "
            "tables (docs/tables.md)",
            key="by",
            value=column,
        )
    path = party_file or (settings.data.parties or {}).get(told.party)
    if path is None:
        raise ConfigError(
            f"by={column!r}: the run does not say where {told.party}'s tables are; give its party file: --party "
            "party.yaml",
            key="party",
        )
    own = Organisation.read(path, told.party)
    nodes = own.settings.nodes
    label = None if nodes.label is None or nodes.label.file is not None else nodes.label.column
    if column in (label, nodes.id):
        what = "the label itself" if column == label else "the nodes' id"
        raise ConfigError(
            f"by={column!r} is {what}, which makes no groups; name another column", key="by", value=column
        )
    return ByColumn(column, read_values(own.settings, own.folder, column))


def groups(told: Scored, by: ByColumn, threshold: float | None) -> Groups:
    """The test nodes' figures by group, the largest first; those of numbers in their order.

    Args:
        told: predictions with labels, of nodes with ids.
        by: the column.
        threshold: of alarms, for two classes with probabilities; None: the share of right classes is all.
    """
    assert told.ids is not None
    values = [by.values.get(told.ids[row]) for row in told.test.rows]
    found = _quarters(values) or _named(values)
    kept, rest = _joined(found)
    rows = [Group(name, _figures(told, places, threshold)) for name, places in kept]
    if rest:
        others = np.concatenate([places for _, places in rest])
        name = rest[0][0] if len(rest) == 1 else f"others ({len(rest)} groups)"
        rows.append(Group(name, _figures(told, others, threshold)))
    headings: tuple[str, ...] = ("nodes", "accuracy")
    if threshold is not None:
        headings = ("nodes", f"of {called(told.classes[1])}", "AUC", "recall at the threshold", "flagged")
    return Groups(by.name, headings, tuple(rows), len(rest))


def _named(values: list[str | None]) -> list[tuple[str, Rows]]:
    """Value → places of the nodes that have it, the most frequent first."""
    places: dict[str | None, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(value, []).append(place)
    found = sorted(places.items(), key=lambda each: (-len(each[1]), str(each[0])))
    return [("no value" if name is None else name, np.array(each)) for name, each in found]


def _quarters(values: list[str | None]) -> list[tuple[str, Rows]]:
    """Quarters of a column of numbers, those without one last; nothing where it is not, or has few different ones."""
    try:
        numbers = np.array([math.nan if value is None else float(value) for value in values])
    except ValueError:
        return []
    known = np.isfinite(numbers)
    if len(np.unique(numbers[known])) <= _MOST_NUMBERS:
        return []
    edges = np.unique(np.quantile(numbers[known], [0.25, 0.5, 0.75]))
    ends = [f"{edge:g}" for edge in edges]
    names = [f"up to {ends[0]}", *(f"above {low} to {high}" for low, high in pairwise(ends))]
    place = np.where(known, np.digitize(numbers, edges, right=True), -1)
    found = [(name, np.flatnonzero(place == each)) for each, name in enumerate([*names, f"above {ends[-1]}"])]
    return [each for each in [*found, ("no value", np.flatnonzero(~known))] if len(each[1])]


def _joined(found: list[tuple[str, Rows]]) -> tuple[list[tuple[str, Rows]], list[tuple[str, Rows]]]:
    """Groups that are shown by themselves, and those that become one, which is no smaller than a group may be."""
    sizes = [len(places) for _, places in found]
    largest = sorted(range(len(found)), key=lambda each: -sizes[each])
    rest = {each for rank, each in enumerate(largest) if sizes[each] < FEWEST or rank >= _MOST}
    for each in reversed(largest):
        if not rest or sum(sizes[other] for other in rest) >= FEWEST:
            break
        rest.add(each)
    return (
        [one for each, one in enumerate(found) if each not in rest],
        [one for each, one in enumerate(found) if each in rest],
    )


def _figures(told: Scored, places: Rows, threshold: float | None) -> tuple[str, ...]:
    labels, likely = told.test.labels[places], told.test.likely[places]
    nodes = f"{len(places):,}"
    if threshold is None:
        right = share(int((told.test.taken[places] == labels).sum()), len(places))
        return nodes, _shown(right)
    truth = labels == 1
    at = alarms(truth, likely[:, 1], threshold)
    auc = estimates([Tested(labels, likely)], 1.0)["auc"]
    ranked = _NOTHING if math.isnan(auc.value) else f"{auc.value:.3f} ({auc.low:.3f} to {auc.high:.3f})"
    return nodes, _shown(share(int(truth.sum()), len(truth))), ranked, _shown(at.recall), _shown(at.raised)


def _shown(one: Share) -> str:
    return f"{percent(one.value)} ({interval_of(one)})" if one.of else _NOTHING
