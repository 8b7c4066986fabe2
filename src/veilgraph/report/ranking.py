"""What predictions are worth: ranking by scores of two classes, groups of nodes by a column, confusions of classes.

Ranking is of one array of scores [T] in [0, 1], and of as many truths: whether a node is of class 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix, precision_recall_curve

from veilgraph.comparison.figures import Scored as Tested
from veilgraph.comparison.figures import estimates
from veilgraph.core.errors import ConfigError
from veilgraph.core.text import class_label, counted
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.report.run_data import Floats, LabelledPredictions, Whole
from veilgraph.report.tables import NOTHING, Grid, Section, percent
from veilgraph.tables.nodes import read_values

Truths = NDArray[np.bool_]
Curve = list[tuple[float, float]]

SHARES: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Of the nodes, those with the highest scores, that somebody looks at."""
_POINTS: Final = 200  # of a curve: more cannot be told apart on a page
_BINS: Final = 10
FEWEST: Final = 20
"""Test nodes of a group that is shown by itself."""
_MOST_GROUPS: Final = 20
_MOST_NUMBERS: Final = 10  # so many different numbers are groups; of more each quarter of the nodes is one
# With more the matrix is no longer readable, and as many of the most frequent confusions are listed in its place.
_MOST_CLASSES: Final = 12


@dataclass(frozen=True)
class Share:
    """``count`` of ``of`` nodes, with its 95 % interval by Wilson's method; ``value`` is NaN of none."""

    count: int
    of: int
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{percent(self.value)} ({self.interval})" if self.of else NOTHING

    @property
    def interval(self) -> str:
        """The interval in words, as percentages."""
        return f"{100 * self.low:.1f} to {100 * self.high:.1f} %"


def share(count: int, of: int) -> Share:
    """The ``Share`` of ``count`` in ``of`` nodes; of none, NaN with the interval [0, 1]."""
    if of == 0:
        return Share(0, 0, float("nan"), 0.0, 1.0)
    between = binomtest(count, of).proportion_ci(method="wilson")
    return Share(count, of, count / of, float(between.low), float(between.high))


@dataclass(frozen=True)
class Looked:
    """What looking at the share of nodes with the highest scores finds of class 1; ``lift``: over looking at random."""

    share: float
    nodes: int
    found: float
    precision: float
    recall: float
    lift: float


@dataclass(frozen=True)
class Bin:
    """Nodes of similar scores: their mean score, and which share of them is of class 1."""

    said: float
    true: Share


@dataclass(frozen=True)
class Alarms:
    """What comes of raising an alarm where a score is at least a threshold."""

    true_alarms: int
    false_alarms: int
    missed: int
    passed: int

    @property
    def raised(self) -> Share:
        """Alarms among all nodes."""
        nodes = self.true_alarms + self.false_alarms + self.missed + self.passed
        return share(self.true_alarms + self.false_alarms, nodes)

    @property
    def precision(self) -> Share:
        """Right alarms among all alarms."""
        return share(self.true_alarms, self.true_alarms + self.false_alarms)

    @property
    def recall(self) -> Share:
        """Right alarms among all nodes of class 1."""
        return share(self.true_alarms, self.true_alarms + self.missed)


def precision_over_recall(truth: Truths, score: Floats) -> Curve:
    """(Recall, precision) from the highest threshold to the lowest; empty without class 1."""
    if not truth.any():
        return []
    precision, recall, _ = precision_recall_curve(truth, score)
    return _thinned(recall[::-1][1:], precision[::-1][1:])  # the first is of no alarm at all


def found_over_looked(truth: Truths, score: Floats) -> Curve:
    """(Share of the nodes looked at, share of class 1 that is found), from none to all; empty without class 1."""
    if not truth.any():
        return []
    found = np.concatenate([[0.0], _expected(truth, score)])
    return _thinned(np.arange(len(found)) / (len(found) - 1), found / truth.sum())


def looked_at(truth: Truths, score: Floats, shares: Sequence[float] = SHARES) -> list[Looked]:
    """What each share of the nodes, in (0, 1], of one node or more, finds of class 1; empty without class 1."""
    total, positives, found = len(truth), int(truth.sum()), _expected(truth, score)
    rows = []
    for each in shares:
        if positives and (nodes := round(each * total)):
            hits = float(found[nodes - 1])
            rows.append(Looked(each, nodes, hits, hits / nodes, hits / positives, hits / nodes / (positives / total)))
    return rows


def reliability(truth: Truths, score: Floats) -> list[Bin]:
    """At most ten bins of as many nodes each, by their scores; equal scores are in one bin."""
    edges = np.unique(np.quantile(score, np.arange(1, _BINS) / _BINS))
    place = np.digitize(score, edges, right=True)
    return [
        Bin(float(score[place == each].mean()), share(int(truth[place == each].sum()), int((place == each).sum())))
        for each in np.unique(place)
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error: |mean score − true share| of a bin, averaged over nodes (Naeini et al. 2015)."""
    nodes = sum(each.true.of for each in bins)
    return sum(each.true.of * abs(each.said - each.true.value) for each in bins) / nodes


def best_threshold(truth: Truths, score: Floats) -> float | None:
    """The score from which on alarms have the highest F1; of several the highest. None without class 1."""
    if not truth.any():
        return None
    precision, recall, thresholds = precision_recall_curve(truth, score)
    both = precision[:-1] + recall[:-1]
    f1 = np.divide(2 * precision[:-1] * recall[:-1], both, out=np.zeros_like(both), where=both > 0)
    return float(thresholds[len(f1) - 1 - f1[::-1].argmax()])


def alarms(truth: Truths, score: Floats, threshold: float) -> Alarms:
    """Count true and false alarms, missed nodes and the rest, if an alarm is raised from ``threshold`` on."""
    raised = score >= threshold
    parts = (raised & truth, raised & ~truth, ~raised & truth, ~raised & ~truth)
    return Alarms(*(int(part.sum()) for part in parts))


def _expected(truth: Truths, score: Floats) -> Floats:
    """How many of class 1 are among the k highest scores, for k from 1 to T; within a tie as many as on average."""
    order = np.argsort(-score, kind="stable")
    _, place, count = np.unique(-score[order], return_inverse=True, return_counts=True)
    hits, last = np.bincount(place, weights=truth[order]), np.cumsum(count)
    within = (np.arange(1, len(score) + 1) - (last - count)[place]) / count[place]
    return np.asarray((np.cumsum(hits) - hits)[place] + within * hits[place])


def _thinned(x: Floats, y: Floats) -> Curve:
    """At most 200 points of a curve, evenly spaced by their number, the first and the last among them."""
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), _POINTS)).round().astype(int))
    return [(float(x[each]), float(y[each])) for each in chosen]


# Groups of nodes


@dataclass(frozen=True)
class ByColumn:
    """A column by which test nodes are grouped: its name, and each node's value by its id, where it has one."""

    name: str
    values: Mapping[str, str]


def read_column_of(
    settings: JobSettings, told: LabelledPredictions | str, column: str, party_file: Path | None
) -> ByColumn:
    """A column of the tables of the party whose predictions are here, ``told``, or why they are not.

    Raises ``ConfigError``: there are no predictions and labels here, no tables, it is not known where these are, or the
    column is the label or the id; ``DataError``: there is no such column, or the tables cannot be read.
    """

    def refusal(why: str) -> ConfigError:
        return ConfigError(f"by={column!r}{why}", key="by", value=column)

    if isinstance(told, str):
        raise refusal(f": groups are judged where labels and predictions are, and {told} Ask the label holder")
    if told.ids is None:
        raise refusal(
            ": this run's nodes came from no tables, so they have no ids; leave it out, or train from tables "
            "(docs/guides/tables.md)"
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
        raise refusal(f" is {what}, which makes no groups; name another column")
    return ByColumn(column, read_values(own.settings, own.folder, column))


def groups(told: LabelledPredictions, by: ByColumn, threshold: float | None) -> Grid:
    """The figures of test nodes with ids by group, the largest first; those of numbers in their order.

    ``threshold`` is of alarms, for two classes; None: the share of right classes is all.
    """
    assert told.ids is not None
    values = [by.values.get(told.ids[row]) for row in told.test.rows]
    kept, rest = _split_by_size(_groups_by_quarter(values) or _groups_by_value(values))
    rows = [(name, *_group_cells(told, places, threshold)) for name, places in kept]
    if rest:
        others = np.concatenate([places for _, places in rest])
        name = rest[0][0] if len(rest) == 1 else f"others ({len(rest)} groups)"
        rows.append((name, *_group_cells(told, others, threshold)))
    headings: tuple[str, ...] = ("nodes", "accuracy")
    if threshold is not None:
        headings = ("nodes", f"of {class_label(told.classes[1])}", "AUC", "recall at the threshold", "flagged")
    joined = ""
    if len(rest) > 1:
        joined = f" Groups of fewer than {FEWEST} test nodes, and those beyond the {_MOST_GROUPS} largest, are joined."
    caption = (
        f"Test nodes by {by.name}, in brackets the 95 % interval.{joined} Intervals that do not meet are a difference; "
        "that others do is no proof that there is none."
    )
    return Grid(f"Figures by {by.name}", caption, {by.name: "some", **dict.fromkeys(headings, "number")}, tuple(rows))


def _groups_by_value(values: list[str | None]) -> list[tuple[str, Whole]]:
    """Value → places of the nodes that have it, the largest group first; None is a group of its own."""
    places: dict[str | None, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(value, []).append(place)
    found = sorted(places.items(), key=lambda each: (-len(each[1]), str(each[0])))
    return [("no value" if name is None else name, np.array(each)) for name, each in found]


def _groups_by_quarter(values: list[str | None]) -> list[tuple[str, Whole]]:
    """Group numbers by quartile, nodes without one last; empty where values are no numbers, or few different ones."""
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


def _split_by_size(found: list[tuple[str, Whole]]) -> tuple[list[tuple[str, Whole]], list[tuple[str, Whole]]]:
    """Split groups into those shown alone and those joined: small ones, and those beyond the largest 20."""
    sizes = [len(places) for _, places in found]
    largest = sorted(range(len(found)), key=lambda each: -sizes[each])
    rest = {each for rank, each in enumerate(largest) if sizes[each] < FEWEST or rank >= _MOST_GROUPS}
    for each in reversed(largest):
        if not rest or sum(sizes[other] for other in rest) >= FEWEST:
            break
        rest.add(each)
    return (
        [one for each, one in enumerate(found) if each not in rest],
        [one for each, one in enumerate(found) if each in rest],
    )


def _group_cells(told: LabelledPredictions, places: Whole, threshold: float | None) -> tuple[str, ...]:
    """Cells of the row of ``groups`` on the test nodes at ``places``."""
    labels, likely = told.test.labels[places], told.test.likely[places]
    nodes = f"{len(places):,}"
    if threshold is None:
        return nodes, str(share(int((told.test.taken[places] == labels).sum()), len(places)))
    truth = labels == 1
    at = alarms(truth, likely[:, 1], threshold)
    auc = estimates([Tested(labels, likely)], 1.0)["auc"]
    ranked = NOTHING if math.isnan(auc.value) else f"{auc.value:.3f} ({auc.low:.3f} to {auc.high:.3f})"
    return nodes, str(share(int(truth.sum()), len(truth))), ranked, str(at.recall), str(at.raised)


# Classes


def class_rows(told: LabelledPredictions | str) -> list[tuple[str, int, str, str]]:
    """Of each class its name, how many test nodes are of it, recall and precision; nothing of no predictions."""
    rows: list[tuple[str, int, str, str]] = []
    if isinstance(told, str):
        return rows
    for place, name in enumerate(told.classes):
        true, taken = told.test.labels == place, told.test.taken == place
        nodes, right = int(true.sum()), int((true & taken).sum())
        rows.append((name, nodes, str(share(right, nodes)), str(share(right, int(taken.sum())))))
    return rows


def confusion(told: LabelledPredictions | str) -> Section:
    """Which classes are taken for which by the newest predictions of test nodes, or ``missing``: why that is unknown.

    ``rows``: a cell for each class, how many nodes and which share of the true class; of too many classes ``top`` has
    the most frequent confusions. ``commonest``: the most frequent class, and the accuracy of always answering it.
    """
    if isinstance(told, str):
        return {"missing": f"No confusion matrix: {told}"}
    names = told.classes
    matrix = confusion_matrix(told.test.labels, told.test.taken, labels=range(len(names)))
    sums, right, top, rows = matrix.sum(axis=1), int(matrix.trace()), list[object](), list[object]()
    if len(names) > _MOST_CLASSES:
        wrong = matrix - np.diag(matrix.diagonal())
        most = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_CLASSES]
        pairs = [divmod(int(place), len(names)) for place in most]
        top += [(names[row], names[to], int(wrong[row, to]), int(sums[row])) for row, to in pairs if wrong[row, to]]
    else:
        for row, values in enumerate(matrix):
            shares = (round(float(value / max(sums[row], 1)), 3) for value in values)
            cells = zip(values.tolist(), shares, (row == to for to in range(len(names))), strict=True)
            rows.append((names[row], list(cells)))
    share = percent(right / sums.sum())
    return {
        "missing": "",
        "caption": f"{told.party}'s {counted(int(sums.sum()), 'test node')}: {right:,} right, {share}",
        "commonest": (class_label(names[told.commonest]), float(sums.max() / sums.sum())),
        **{"classes": names, "rows": rows, "top": top},
    }
