"""How well a model predicts: its figures with intervals beside guessing and, of two classes, what alarms would find.

All of it needs labels and predictions, so it is shown where both are: at the label holder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from veilgraph.comparison.figures import DRAWS, Estimate, estimates
from veilgraph.comparison.figures import Scored as Tested
from veilgraph.core.words import called, counted, figure
from veilgraph.protocol.figures import ACCURACY, AUC, F1, Figure, leak_words
from veilgraph.report.alone import alone_words
from veilgraph.report.page.charts import LineChart, Point, line_chart
from veilgraph.report.page.found import Found
from veilgraph.report.page.groups import ByColumn, Groups, groups
from veilgraph.report.page.scored import Floats, Scored, Whole
from veilgraph.report.ranking import (
    Alarms,
    Bin,
    Looked,
    alarms,
    best_threshold,
    brier,
    calibration_error,
    found_over_looked,
    interval_of,
    looked_at,
    precision_over_recall,
    reliability,
)
from veilgraph.report.tables import percent
from veilgraph.run.comparing import read_compared
from veilgraph.run.run_directory import Record, RunDirectory

LOOKED_AT: Final = 0.05
"""Share of the test nodes whose recall is among the figures."""
_PR_AUC: Final = Figure("pr_auc", "PR-AUC", "precision on average over all of {}, the highest scores first")
_RECALL: Final = Figure("recall", f"recall at {100 * LOOKED_AT:g} %", "of {}, found in that share of the nodes")
_AT_ONCE, _FEWEST_SAMPLES = 10**8, 40
"""Probabilities of all samples together: some ten seconds."""
_CHANGED: Final = 1e-3
"""A figure of the end of the training, and of predictions of other data or with other noise."""


@dataclass(frozen=True)
class Row:
    """A figure of the test nodes: its interval, and what somebody reaches who knows nothing."""

    title: str
    value: str
    interval: str
    baseline: str
    meaning: str


@dataclass(frozen=True)
class Looking:
    """What is found by looking at some share of the nodes; as ``ranking.Looked``, in words."""

    share: str
    nodes: str
    found: str
    precision: str
    recall: str
    lift: str


@dataclass(frozen=True)
class Reliable:
    """Nodes of similar scores: what the model says of them and what is true."""

    said: str
    true: str
    interval: str
    nodes: str


@dataclass(frozen=True)
class Falling:
    """Where one split falls at the threshold."""

    split: str
    precision: str
    recall: str
    raised: str


@dataclass(frozen=True)
class Threshold:
    """A threshold that validation nodes have chosen; ``cells``: of test nodes, true class → (alarm, no alarm)."""

    value: str
    falls: tuple[Falling, ...]
    cells: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Ranking:
    """What the scores of two classes are worth.

    Attributes:
        positive: name of class 1.
        charts: precision over recall, found over looked at, true over said.
        looked: shares of the nodes with the highest scores.
        calibration: in a sentence.
        bins: nodes of similar scores.
        threshold: None where no validation node is of class 1.
    """

    positive: str
    charts: tuple[LineChart, ...]
    looked: tuple[Looking, ...]
    calibration: str
    bins: tuple[Reliable, ...]
    threshold: Threshold | None


@dataclass(frozen=True)
class Judged:
    """The section.

    Attributes:
        missing: why it has nothing; empty where it has.
        references: of who trains alone, together, and with all data in one place, by ``reference_titles``; or empty.
        reference_titles: the figures of the test nodes.
        compare_with: the command that finds these; empty where they are there.
        headline: of the first figure: value, interval and what it is held against; None where that is not known.
        beside: further lines below it.
        caption: whose nodes, how many.
        samples: of the test nodes, by which intervals are.
        notes: what must be said beside the figures.
        rows: the first figure first.
        unranked: why there is no ranking of two classes; empty where there is one, or there are more.
        ranking: of two classes with probabilities; else None.
        groups: where a column is named.
    """

    missing: str = ""
    references: tuple[tuple[str, tuple[str, ...]], ...] = ()
    reference_titles: tuple[str, ...] = ()
    compare_with: str = ""
    headline: Row | None = None
    beside: tuple[str, ...] = ()
    caption: str = ""
    samples: int = DRAWS
    notes: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    unranked: str = ""
    ranking: Ranking | None = None
    groups: Groups | None = None


def judged(found: Found, told: Scored | str, by: ByColumn | None = None) -> Judged:
    """How well the newest predictions of the test nodes are.

    Args:
        found: the run.
        told: its predictions with labels, or why they are not here.
        by: a column whose groups are judged by themselves; not without predictions and labels.
    """
    titles, references = _references(found)
    if isinstance(told, str):
        return Judged(told[:1].upper() + told[1:], references, titles)
    samples = samples_of(told.test.own.size)
    values = estimates([Tested(told.test.labels, told.test.own)], LOOKED_AT, draws=samples)
    known = {name: one for name, one in values.items() if not math.isnan(one.value)}
    measures = found.settings.measures
    ranked = (AUC.name, _PR_AUC.name, _RECALL.name)
    rows = {
        each.name: _row(each, known[each.name], told)
        for each in (measures.main, *(each for each in (AUC, _PR_AUC, _RECALL, ACCURACY, F1) if each != measures.main))
        if each.name in known and (told.is_ranked or each.name not in ranked)
    }
    unranked = _unranked(found, told)
    pair = len(told.classes) == 2 and not unranked
    return Judged(
        references=references,
        reference_titles=titles,
        compare_with="" if references else _compare_with(found),
        headline=rows.get(measures.main.name),
        beside=tuple(_beside(rows, measures.main)) if pair else (),
        caption=f"{told.party}'s {counted(len(told.test.labels), 'test node')}{_positives(told) if pair else ''}",
        samples=samples,
        notes=tuple(_notes(found, told, known)),
        rows=tuple(rows.values()),
        unranked=unranked,
        ranking=_ranking(told) if pair else None,
        groups=None if by is None else groups(told, by, threshold_of(told) if pair else None),
    )


def _references(found: Found) -> tuple[tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]:
    """The titles of figures, and who reaches what of them, where the run was compared."""
    summaries, measures = read_compared(RunDirectory(found.path)), found.settings.measures
    figures = [each for each in measures.figures if any(_reached(each, one) is not None for one in summaries.values())]

    def cell(each: Figure, one: Record) -> str:
        value = _reached(each, one)
        return "–" if value is None else each.shown(value) if each.is_share else f"{value:.3f}"

    rows = tuple((name, tuple(cell(each, one) for each in figures)) for name, one in summaries.items())
    return tuple(each.title for each in figures), rows


def _reached(each: Figure, summary: Record) -> float | None:
    value = summary.get(f"test_{each.name}")
    return None if value is None or math.isnan(value) else float(value)


def _compare_with(found: Found) -> str:
    if not found.is_part:
        return f"veilgraph compare {found.path}"
    return f"veilgraph compare {found.path / 'job.yaml'} --party party.yaml" if found.settings.is_aligned else ""


def samples_of(size: int) -> int:
    """How many samples intervals are by: fewer of many probabilities, of which intervals are narrow and samples slow.

    Args:
        size: test nodes × classes.
    """
    return min(DRAWS, max(_FEWEST_SAMPLES, _AT_ONCE // max(size, 1)))


def _positives(told: Scored) -> str:
    count = int(told.test.labels.sum())
    return f", {count:,} of them ({percent(count / len(told.test.labels))}) are {called(told.classes[1])}"


def _row(each: Figure, one: Estimate, told: Scored) -> Row:
    interval = (
        f"{each.shown(one.low)} to {each.shown(one.high)}" if each.is_share else f"{one.low:.3f} to {one.high:.3f}"
    )
    value = each.shown(one.value) if each.is_share else f"{one.value:.3f}"
    return Row(each.title, value, interval, _baseline(each, told), each.meaning.format(called(told.classes[-1])))


def _baseline(each: Figure, told: Scored) -> str:
    """What knowing nothing gives, and how."""
    labels, classes = told.test.labels, told.classes
    if each.name == AUC.name:
        return "0.500 by guessing"
    if each.name == _PR_AUC.name:
        return f"{labels.mean():.3f} by guessing: the share of {called(classes[1])}"
    if each.name == _RECALL.name:
        return f"{LOOKED_AT:.3f} by looking at random"
    right = float((labels == told.commonest).mean())
    if each.name == ACCURACY.name:
        return f"{percent(right)} by always saying {called(classes[told.commonest])}"
    return f"{2 * right / (1 + right) / len(classes):.3f} by always saying {called(classes[told.commonest])}"


def _beside(rows: Mapping[str, Row], main: Figure) -> list[str]:
    others = [each for each in (AUC, _PR_AUC) if each != main and each.name in rows]
    return [
        f"{rows[each.name].title} {rows[each.name].value} ({rows[each.name].interval}); {rows[each.name].baseline}"
        for each in others
    ]


def _notes(found: Found, told: Scored, known: Mapping[str, Estimate]) -> list[str]:
    notes = (
        [leak] if told.is_ranked and "auc" in known and (leak := leak_words({told.party: known["auc"].value})) else []
    )
    main = found.settings.measures.main
    ended = None if found.summary is None else found.summary.get(f"test_{main.name}")
    if ended is not None and main.name in known and abs(known[main.name].value - ended) > _CHANGED:
        notes.append(
            f"The newest predictions are not those that the training ended with, of which the test {main.title} was "
            f"{main.shown(ended)}: data or noise are others. All figures here are of the newest."
        )
    return [*notes, *alone_words(found.summary or {}, found.settings.measures)]


def _unranked(found: Found, told: Scored) -> str:
    """Why nodes cannot be ranked, or one of two classes not be looked for; empty where they can."""
    pair = len(told.classes) == 2
    none = "there is no AUC, no precision over recall, no threshold and no calibration" if pair else "there is no AUC"
    if not told.is_ranked and found.settings.opens_classes_alone:
        return f"Classes alone were opened, so nodes cannot be ranked: {none}. A job that opens probabilities has them."
    if not told.is_ranked:
        return f"All nodes of a predicted class have the same probability, so nodes cannot be ranked: {none}."
    present = np.unique(told.test.labels)
    if pair and len(present) == 1:
        one = called(told.classes[present[0]])
        return f"All test nodes here are {one}, so nothing says how well one class is told from the other: {none}."
    return ""


def _ranking(told: Scored) -> Ranking:
    truth, score = told.test.labels == 1, told.test.likely[:, 1]
    bins = reliability(truth, score)
    name = called(told.classes[1])
    said, true, error = float(score.mean()), float(truth.mean()), calibration_error(bins)
    calibration = (
        f"On average the model gives {name} a probability of {percent(said)}, and {percent(true)} of the test nodes "
        f"are. Brier score {brier(truth, score):.3f}; {true * (1 - true):.3f} for always saying {percent(true)}. "
        f"Expected calibration error {error:.3f}. "
    )
    if told.calibrated:
        own = told.test.own[:, 1]
        calibration += (
            f"The network itself says {percent(float(own.mean()))}, with an error of "
            f"{calibration_error(reliability(truth, own)):.3f}: validation nodes chose how its probabilities are "
            "corrected. The order of nodes is the same, and so is the predicted class, which is the network's choice."
        )
    else:
        calibration += "They are the network's own: no validation node was there to correct them by."
    return Ranking(
        name,
        _charts(told, bins),
        tuple(_looking(each) for each in looked_at(truth, score)),
        calibration,
        tuple(Reliable(percent(each.said), percent(each.true.value), interval_of(each.true), f"{each.true.of:,}")
              for each in bins),
        _threshold(told),
    )  # fmt: skip


def _charts(told: Scored, bins: Sequence[Bin]) -> tuple[LineChart, ...]:
    truth, score, name = told.test.labels == 1, told.test.likely[:, 1], called(told.classes[1])
    share, one = float(truth.mean()), (0.0, 1.0)
    precision, gains = precision_over_recall(truth, score), found_over_looked(truth, score)
    said = [(each.said, each.true.value) for each in bins]
    diagonal: list[Point] = [(0.0, 0.0), (1.0, 1.0)]

    def chart(title: str, words: str, curve: list[Point], against: list[Point], x_label: str) -> LineChart:
        series = (("the model", curve), ("without a model", against))
        return line_chart(title, words, series, x_label=x_label, x_range=one, y_range=one, ticks=5)

    return (
        chart(
            f"Precision over recall, of {name}",
            f"Precision over recall of {name}: {_ends(precision)}; without a model {share:.3f}.",
            precision,
            [(0.0, share), (1.0, share)],
            "share of all that is found",
        ),
        chart(
            "Found over looked at, the highest scores first",
            f"Share of {name} found over the share of nodes looked at: {_ends(gains[1:])}.",
            gains,
            diagonal,
            "share of the nodes looked at",
        ),
        chart(
            "True over said",
            f"Share that is {name} over the probability that the model gives: {_ends(said)}.",
            said,
            diagonal,
            "probability that the model gives",
        ),
    )


def _ends(curve: Sequence[Point]) -> str:
    (x, y), (a, b) = curve[0], curve[-1]
    return f"from {y:.3f} at {x:.3f} to {b:.3f} at {a:.3f}"


def _looking(each: Looked) -> Looking:
    return Looking(
        f"{100 * each.share:g} %",
        f"{each.nodes:,}",
        f"{each.found:,.4g}",
        percent(each.precision),
        percent(each.recall),
        f"{each.lift:.1f} ×",
    )


def threshold_of(told: Scored) -> float | None:
    """The threshold that validation nodes choose; None where none of them is of class 1."""
    return best_threshold(told.val.labels == 1, told.val.likely[:, 1])


def _threshold(told: Scored) -> Threshold | None:
    threshold = threshold_of(told)
    if threshold is None:
        return None

    def at(labels: Whole, likely: Floats) -> Alarms:
        return alarms(labels == 1, likely[:, 1], threshold)

    val, test = at(told.val.labels, told.val.likely), at(told.test.labels, told.test.likely)
    no, yes = map(called, told.classes)
    return Threshold(
        f"{threshold:.6f}",
        (_falling("validation", val), _falling("test", test)),
        ((yes, test.true_alarms, test.missed), (no, test.false_alarms, test.passed)),
    )


def _falling(split: str, at: Alarms) -> Falling:
    raised = at.raised
    return Falling(
        split,
        f"{percent(at.precision.value)} ({interval_of(at.precision)})" if at.precision.of else "–",
        f"{percent(at.recall.value)} ({interval_of(at.recall)})",
        f"{figure(1000 * raised.value, 1)} ({1000 * raised.low:.1f} to {1000 * raised.high:.1f})",
    )
