"""How the training went: loss and what it is judged by over the epochs, and the final scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from veilgraph.core.words import counted, figure
from veilgraph.protocol.figures import AUC, F1, LAST, LOSS, Figure, Measures
from veilgraph.report.labels import compared_with
from veilgraph.report.page.charts import LineChart, Point, line_chart
from veilgraph.report.page.found import Found
from veilgraph.run.run_directory import Record

_NAMES: Final = {"train": "training", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class Score:
    """A row of the scores' table: one cell for training, validation and test each."""

    name: str
    meaning: str
    cells: tuple[str, str, str]


@dataclass(frozen=True)
class Training:
    """The section.

    Attributes:
        notes: what is missing, or must be said beside the figures.
        charts: none before the first epoch; of each figure that the epochs' records have.
        legend: of the charts, the one with the most lines.
        scores: none while the run is not complete.
        facts: further figures, by name.
    """

    notes: tuple[str, ...]
    charts: tuple[LineChart, ...]
    legend: LineChart | None
    scores: tuple[Score, ...]
    facts: tuple[tuple[str, str], ...]


def training(found: Found) -> Training:
    """Curves and scores of a run, as far as they are here."""
    summary, metrics, measures = found.summary, found.metrics, found.settings.measures
    charts = _charts(metrics, summary, measures)
    legend = max(charts, key=lambda chart: len(chart.lines), default=None)
    return Training(tuple(_notes(found)), charts, legend, _scores(summary, measures), _facts(found))


def progress(found: Found) -> str:
    """How far a run without final scores is, in a sentence."""
    labelled = found.settings.data.label_party
    if found.trained and found.is_part and labelled not in found.here:
        return f"This organisation's part of the training is done; the scores are at {labelled}."
    if found.metrics:
        done = counted(found.metrics[-1]["epoch"], "epoch")
        return f"The training is not complete: {done} of at most {found.settings.train.epochs:,} are done."
    if found.is_part and labelled not in found.here and found.sent:
        return f"How far the training is, {labelled} records; it is not known here."
    return "Nothing has been trained in this run yet."


def _notes(found: Found) -> list[str]:
    notes = []
    if found.summary is None:
        notes.append(progress(found))
    private = found.settings.label_release
    if found.settings.predicts_named:
        notes.append("No node is predicted but those that are named later, so no accuracy is known.")
    elif found.summary is not None and private is None:
        measures = found.settings.measures
        if found.summary.get(f"test_{measures.main.name}") is None:
            notes.append(f"No {measures.one} is set aside for testing, so there is no test {measures.main.title}.")
    if private is not None and found.metrics:
        notes.append(
            f"All scores compare with labels that {private.holder}'s nodes had perturbed: they are not accuracies "
            "against the true labels, which stay there."
        )
    if found.settings.label_privacy is not None and found.metrics:
        notes.append(f"{compared_with(found.settings)} The epoch was chosen by perturbed ones.")
    return notes


def _charts(metrics: list[Record], summary: Record | None, measures: Measures) -> tuple[LineChart, ...]:
    if not metrics:
        return ()
    epochs = (metrics[0]["epoch"], metrics[-1]["epoch"])
    best = None if summary is None else int(summary["best_epoch"])
    mark = None if not best else (float(best), f"kept: epoch {best}")
    drawn = [(f"Loss ({measures.loss})", "loss", False)]
    drawn += [(each.title[:1].upper() + each.title[1:], each.name, is_bounded(each)) for each in measures.figures]
    found = []
    for name, quantity, bounded in drawn:
        series = _series(metrics, quantity, tuple(_NAMES) if quantity != "loss" else ("train", "val"))
        if told := [(split, points) for split, points in series if points]:
            ends = "; ".join(f"{split}: from {points[0][1]:.3g} to {points[-1][1]:.3g}" for split, points in told)
            words = f"{name} over epochs {epochs[0]} to {epochs[1]}. {ends}."
            top = 1.0 if bounded else _highest(told)
            found.append(
                line_chart(name, words, series, x_label="epoch", x_range=epochs, y_range=(0.0, top), mark=mark)
            )
    return tuple(found)


def is_bounded(figure: Figure) -> bool:
    """Whether 1 is the most that it can be."""
    return figure.is_share or figure in (AUC, F1)


def _highest(series: list[tuple[str, list[Point]]]) -> float:
    return max((y for _, points in series for _, y in points if math.isfinite(y)), default=1.0)


def _series(metrics: list[Record], quantity: str, splits: tuple[str, ...]) -> list[tuple[str, list[Point]]]:
    """The splits, without points where they have none."""
    found = []
    for split in splits:
        key = f"{split}_{quantity}"
        points = [(float(record["epoch"]), float(record[key])) for record in metrics if record.get(key) is not None]
        found.append((_NAMES[split], points))
    return found


def _scores(summary: Record | None, measures: Measures) -> tuple[Score, ...]:
    if summary is None:
        return ()
    rows = []
    for each in measures.figures:
        values = [summary.get(f"{split}_{each.name}") for split in _NAMES]
        if each is measures.main or any(value is not None for value in values):
            train, val, test = (each.shown(value) if each is measures.main else figure(value) for value in values)
            rows.append(Score(each.title, each.meaning, (train, val, test)))
    return tuple(rows)


def _selected(by: str, measures: Measures) -> str:
    if by == LAST:
        return "is the last; no other party was told how the epochs did"
    found = "the lowest loss" if by == LOSS else measures.named(by).best
    return f"had {found} on the validation {measures.of}"


def _facts(found: Found) -> tuple[tuple[str, str], ...]:
    summary, train = found.summary, found.settings.train
    if summary is None:
        return ()
    done = found.metrics[-1]["epoch"] if found.metrics else summary["best_epoch"]
    return (
        (
            "model kept",
            f"that of epoch {summary['best_epoch']:,}, which {_selected(train.select_by, found.settings.measures)}",
        ),
        ("epochs", f"{done:,} of at most {train.epochs:,}"),
        ("time of a step", f"{summary['seconds_per_step']:.3f} s (median)"),
    )
