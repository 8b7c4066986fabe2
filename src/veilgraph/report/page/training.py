"""How the training went: loss and accuracy over the epochs, and the final scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from veilgraph.core.words import counted, figure
from veilgraph.report.page.charts import LineChart, Point, line_chart
from veilgraph.report.page.found import Found
from veilgraph.report.tables import percent
from veilgraph.run.run_directory import Record

_NAMES: Final = {"train": "training", "val": "validation", "test": "test"}
_SELECTED: Final = {
    "accuracy": "had the best accuracy on the validation nodes",
    "auc": "had the best AUC on the validation nodes",
    "f1": "had the best macro F1 on the validation nodes",
    "loss": "had the lowest loss on the validation nodes",
    "last": "is the last; no other party was told how the epochs did",
}


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
        charts: none before the first epoch.
        scores: none while the run is not complete.
        facts: further figures, by name.
    """

    notes: tuple[str, ...]
    charts: tuple[LineChart, ...]
    scores: tuple[Score, ...]
    facts: tuple[tuple[str, str], ...]


def training(found: Found) -> Training:
    """Curves and scores of a run, as far as they are here."""
    summary, metrics = found.summary, found.metrics
    return Training(tuple(_notes(found)), _charts(metrics, summary), _scores(summary), _facts(found))


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
    elif found.summary is not None and found.summary.get("test_accuracy") is None and private is None:
        notes.append("No node is set aside for testing, so there is no test accuracy.")
    if private is not None and found.metrics:
        notes.append(
            f"All scores compare with labels that {private.holder}'s nodes had perturbed: they are not accuracies "
            "against the true labels, which stay there."
        )
    return notes


def _charts(metrics: list[Record], summary: Record | None) -> tuple[LineChart, ...]:
    if not metrics:
        return ()
    epochs = (metrics[0]["epoch"], metrics[-1]["epoch"])
    best = None if summary is None else int(summary["best_epoch"])
    mark = None if not best else (float(best), f"kept: epoch {best}")
    losses = _series(metrics, "loss", ("train", "val"))
    highest = max((y for _, points in losses for _, y in points if math.isfinite(y)), default=1.0)
    accuracies = _series(metrics, "accuracy", ("train", "val", "test"))
    found = []
    for title, series, top in (("Loss (cross-entropy)", losses, highest), ("Accuracy", accuracies, 1.0)):
        if series:
            ends = "; ".join(f"{name}: from {points[0][1]:.3g} to {points[-1][1]:.3g}" for name, points in series)
            words = f"{title} over epochs {epochs[0]} to {epochs[1]}. {ends}."
            found.append(
                line_chart(title, words, series, x_label="epoch", x_range=epochs, y_range=(0.0, top), mark=mark)
            )
    return tuple(found)


def _series(metrics: list[Record], quantity: str, splits: tuple[str, ...]) -> list[tuple[str, list[Point]]]:
    """The splits that have points."""
    found = []
    for split in splits:
        key = f"{split}_{quantity}"
        points = [(float(record["epoch"]), float(record[key])) for record in metrics if record.get(key) is not None]
        if points:
            found.append((_NAMES[split], points))
    return found


def _scores(summary: Record | None) -> tuple[Score, ...]:
    if summary is None:
        return ()
    train, val, test = (percent(summary.get(f"{split}_accuracy")) for split in _NAMES)
    rows = [Score("accuracy", "share of the nodes whose class is right", (train, val, test))]
    for key, name, meaning in (
        ("auc", "AUC", "chance that a node of a class is ranked above one of another; 0.5 is guessing"),
        ("f1", "macro F1", "precision and recall together, all classes alike"),
    ):
        values = [summary.get(f"{split}_{key}") for split in ("val", "test")]
        if any(value is not None for value in values):
            rows.append(Score(name, meaning, ("–", figure(values[0]), figure(values[1]))))
    return tuple(rows)


def _facts(found: Found) -> tuple[tuple[str, str], ...]:
    summary, train = found.summary, found.settings.train
    if summary is None:
        return ()
    done = found.metrics[-1]["epoch"] if found.metrics else summary["best_epoch"]
    return (
        ("model kept", f"that of epoch {summary['best_epoch']:,}, which {_SELECTED[train.select_by]}"),
        ("epochs", f"{done:,} of at most {train.epochs:,}"),
        ("time of a step", f"{summary['seconds_per_step']:.3f} s (median)"),
    )
