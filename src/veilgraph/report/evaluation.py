"""How well a model predicts: its figures with intervals beside guessing and, of two classes, what alarms would find.

All of it needs labels and predictions, so it is shown where both are: at the label holder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from sklearn.metrics import brier_score_loss

from veilgraph.comparison.figures import DRAWS, Estimate, estimates
from veilgraph.comparison.figures import Scored as Tested
from veilgraph.core.text import class_label, counted
from veilgraph.protocol.figures import ACCURACY, AUC, F1, Figure, leak_words
from veilgraph.report import ranking
from veilgraph.report.run_data import Floats, LabelledPredictions, RunData
from veilgraph.report.tables import NOTHING, Section, line_chart, percent
from veilgraph.report.training import alone_words
from veilgraph.runtime.store.results import judge_of, read_compared
from veilgraph.runtime.store.run_directory import Record, RunDirectory

RECALL_AT: Final = 0.05
"""Share of the test nodes whose recall is among the figures."""
_PR_AUC: Final = Figure("pr_auc", "PR-AUC", "precision on average over all of {}, the highest scores first")
_RECALL: Final = Figure("recall", f"recall at {100 * RECALL_AT:g} %", "of {}, found in that share of the nodes")
_RANKED: Final = (AUC, _PR_AUC, _RECALL)
_CHANGED: Final = 1e-3  # a figure of the end of the training, and of predictions of other data or with other noise


class LiftRow(NamedTuple):
    """A figure of the test nodes: its interval, and what somebody reaches who knows nothing."""

    title: str
    value: str
    interval: str
    baseline: str
    meaning: str


def evaluation_section(found: RunData, told: LabelledPredictions | str, by: ranking.ByColumn | None = None) -> Section:
    """Judge the newest predictions of the test nodes for the page, also in groups ``by`` a column.

    ``told`` are the run's predictions with labels, or why they are not here (``missing``). The result's ``references``
    are test figures alone, together and pooled, under ``reference_titles``; ``compare_with`` is the command that finds
    these; ``headline`` is the row of the job's first figure, with further lines in ``beside``; ``samples`` counts the
    bootstrap samples; ``unranked`` is why two classes have no ``ranking``.
    """
    titles, references = _references(found)
    known_here: Section = {"reference_titles": titles, "references": references, "compare_with": "", "headline": None}
    known_here |= {"missing": "", "rows": (), "beside": (), "caption": ""}
    if isinstance(told, str):
        return known_here | {"missing": told[:1].upper() + told[1:]}
    # Of many test nodes × classes fewer: these are slow, some ten seconds for all samples together, and narrow.
    samples = min(DRAWS, max(40, 10**8 // max(told.test.own.size, 1)))
    values = estimates([Tested(told.test.labels, told.test.own)], RECALL_AT, draws=samples)
    known = {name: one for name, one in values.items() if not math.isnan(one.value)}
    main = found.settings.measures.main
    rows = {
        each.name: _lift_row(each, known[each.name], told)
        for each in (main, *(each for each in (*_RANKED, ACCURACY, F1) if each != main))
        if each.name in known and (told.is_ranked or each not in _RANKED)
    }
    unranked = _unranked(found, told)
    pair = len(told.classes) == 2 and not unranked
    caption, beside = f"{told.party}'s {counted(len(told.test.labels), 'test node')}", _ways(found, titles, references)
    if pair:
        count = int(told.test.labels.sum())
        share = percent(count / len(told.test.labels))
        caption += f", {count:,} of them ({share}) are {class_label(told.classes[1])}"
        others = [rows[each.name] for each in (AUC, _PR_AUC) if each != main and each.name in rows]
        beside += [f"{each.title} {each.value} ({each.interval}); {each.baseline}" for each in others]
    return known_here | {
        "compare_with": "" if references else _compare_command(found),
        "headline": rows.get(main.name),
        "beside": beside,
        "caption": caption,
        "samples": samples,
        "notes": list(_notes(found, told, known)),
        "rows": list(rows.values()),
        "unranked": unranked,
        "ranking": _ranking(told) if pair else None,
        "groups": None if by is None else ranking.groups(told, by, _chosen_threshold(told) if pair else None),
    }


def _ways(found: RunData, titles: Sequence[str], references: Sequence[tuple[str, tuple[str, ...]]]) -> list[str]:
    """What the label holder alone, and all data pooled, reach of the job's first figure on the same test nodes."""
    title, settings = found.settings.measures.main.title, found.settings
    ways = [f"{settings.data.label_party} alone", *([] if judge_of(settings, found.summary or {}) else ["pooled"])]
    return [f"{row[titles.index(title)]} {name}" for name, row in references if name in ways and title in titles]


def _references(found: RunData) -> tuple[tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]:
    """The titles of figures, and a row of test values for each training of the run's comparison, if it has one."""
    summaries, measures = read_compared(RunDirectory(found.path)), found.settings.measures
    figures = [each for each in measures.figures if any(_value_of(each, one) is not None for one in summaries.values())]

    rows = tuple(
        (name, tuple(NOTHING if (value := _value_of(each, one)) is None else _as_text(each, value) for each in figures))
        for name, one in summaries.items()
    )
    return tuple(each.title for each in figures), rows


def _value_of(each: Figure, summary: Record) -> float | None:
    value = summary.get(f"test_{each.name}")
    return None if value is None or math.isnan(value) else float(value)


def _as_text(each: Figure, value: float) -> str:
    return each.shown(value) if each.is_share else f"{value:.3f}"


def _compare_command(found: RunData) -> str:
    if not found.is_part:
        return f"veilgraph compare {found.path}"
    return f"veilgraph compare {found.path / 'job.yaml'} --party party.yaml" if found.settings.is_aligned else ""


def _lift_row(each: Figure, one: Estimate, told: LabelledPredictions) -> LiftRow:
    interval = f"{_as_text(each, one.low)} to {_as_text(each, one.high)}"
    meaning = each.meaning.format(class_label(told.classes[-1]))
    return LiftRow(each.title, _as_text(each, one.value), interval, _baseline(each, told), meaning)


def _baseline(each: Figure, told: LabelledPredictions) -> str:
    """What a figure is without a model, in words: by guessing, or by always saying the commonest class."""
    labels, classes = told.test.labels, told.classes
    if each == AUC:
        return "0.500 by guessing"
    if each == _PR_AUC:
        return f"{labels.mean():.3f} by guessing: the share of {class_label(classes[1])}"
    if each == _RECALL:
        return f"{RECALL_AT:.3f} by looking at random"
    right, always = float((labels == told.commonest).mean()), f"by always saying {class_label(classes[told.commonest])}"
    return (
        f"{percent(right)} {always}" if each == ACCURACY else f"{2 * right / (1 + right) / len(classes):.3f} {always}"
    )


def _notes(found: RunData, told: LabelledPredictions, known: Mapping[str, Estimate]) -> Iterator[str]:
    """Sentences beside the figures: a likely leak, predictions newer than the run, who is better off alone."""
    main, summary = found.settings.measures.main, found.summary or {}
    if told.is_ranked and "pr_auc" in known and (leak := leak_words({told.party: known["auc"].value})):
        yield leak
    ended = summary.get(f"test_{main.name}")
    if ended is not None and main.name in known and abs(known[main.name].value - ended) > _CHANGED:
        yield (
            f"The newest predictions are not those that the training ended with, of which the test {main.title} was "
            f"{main.shown(ended)}: data or noise are others. All figures here are of the newest."
        )
    yield from alone_words(summary, found.settings.measures)


def _unranked(found: RunData, told: LabelledPredictions) -> str:
    """Why nodes cannot be ranked, or the test nodes of two classes are all of one; empty where neither is so."""
    pair = len(told.classes) == 2
    none = "there is no AUC, no precision over recall, no threshold and no calibration" if pair else "there is no AUC"
    if not told.is_ranked and found.settings.outcome.opens_classes_alone:
        return f"Classes alone were opened, so nodes cannot be ranked: {none}. A job that opens probabilities has them."
    if not told.is_ranked:
        return f"All nodes of a predicted class have the same probability, so nodes cannot be ranked: {none}."
    present = np.unique(told.test.labels)
    if pair and len(present) == 1:
        one = class_label(told.classes[present[0]])
        return f"All test nodes here are {one}, so nothing says how well one class is told from the other: {none}."
    return ""


def _ranking(told: LabelledPredictions) -> Section:
    """Charts and figures of how well scores rank the nodes of two classes.

    ``threshold`` was chosen by validation nodes, with its alarms on them and on test nodes; None where none of
    them is of class 1. ``own``: mean and error of the scores before calibration, where they are calibrated.
    """
    truth, score = told.test.labels == 1, told.test.likely[:, 1]
    bins, threshold = ranking.reliability(truth, score), _chosen_threshold(told)
    chosen, own = None, None
    if threshold is not None:
        val, test = (ranking.alarms(of.labels == 1, of.likely[:, 1], threshold) for of in (told.val, told.test))
        chosen = {"value": threshold, "val": val, "test": test}
    if told.calibrated:
        given = told.test.own[:, 1]
        own = {"said": float(given.mean()), "error": ranking.calibration_error(ranking.reliability(truth, given))}
    return {
        **dict(zip(("negative", "positive"), map(class_label, told.classes), strict=True)),
        "charts": list(_ranking_charts(truth, score, bins, class_label(told.classes[1]))),
        "looked": ranking.looked_at(truth, score),
        "said": float(score.mean()),
        "true": float(truth.mean()),
        "brier": float(brier_score_loss(truth, score)),
        "error": ranking.calibration_error(bins),
        "own": own,
        "bins": bins,
        "threshold": chosen,
    }


def _chosen_threshold(told: LabelledPredictions) -> float | None:
    """The threshold of highest F1 on validation nodes; None where none of them is of class 1."""
    return ranking.best_threshold(told.val.labels == 1, told.val.likely[:, 1])


def _ranking_charts(truth: ranking.Truths, score: Floats, bins: Sequence[ranking.Bin], name: str) -> Iterator[Section]:
    share = float(truth.mean())
    precision, gains = ranking.precision_over_recall(truth, score), ranking.found_over_looked(truth, score)
    said = [(each.said, each.true.value) for each in bins]
    diagonal: ranking.Curve = [(0.0, 0.0), (1.0, 1.0)]
    drawn: list[tuple[str, str, ranking.Curve, ranking.Curve, str]] = [
        (
            f"Precision over recall, of {name}",
            f"Precision over recall of {name}: {_ends_text(precision)}; without a model {share:.3f}.",
            precision,
            [(0.0, share), (1.0, share)],
            "share of all that is found",
        ),
        (
            "Found over looked at, the highest scores first",
            f"Share of {name} found over the share of nodes looked at: {_ends_text(gains[1:])}.",
            gains,
            diagonal,
            "share of the nodes looked at",
        ),
        (
            "True over said",
            f"Share that is {name} over the probability that the model gives: {_ends_text(said)}.",
            said,
            diagonal,
            "probability that the model gives",
        ),
    ]
    for title, words, curve, against, x_label in drawn:
        series = (("the model", curve), ("without a model", against))
        yield line_chart(title, words, series, x_label=x_label, x_range=(0.0, 1.0), y_range=(0.0, 1.0), ticks=5)


def _ends_text(curve: ranking.Curve) -> str:
    (x, y), (a, b) = curve[0], curve[-1]
    return f"from {y:.3f} at {x:.3f} to {b:.3f} at {a:.3f}"
