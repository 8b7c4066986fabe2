"""The picture of a run: loss and what it is judged by over epochs."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from veilgraph.core.errors import RunError
from veilgraph.core.files import write_whole
from veilgraph.protocol.figures import CLASS_MEASURES, Measures
from veilgraph.run.run_directory import Record

_COLOURS: Final = {"train": "#0072b2", "val": "#d55e00", "test": "#009e73"}
_NAMES: Final = {"train": "training", "val": "validation", "test": "test"}
_REFERENCE_COLOURS: Final = ("#555555", "#999999", "#cc79a7", "#56b4e9", "#e69f00")
_NO_REFERENCES: Final[Mapping[str, float]] = MappingProxyType({})


def draw_curves(
    metrics: Sequence[Record],
    path: Path,
    references: Mapping[str, float] = _NO_REFERENCES,
    *,
    title: str = "Training",
    best_epoch: int | None = None,
    measures: Measures = CLASS_MEASURES,
) -> None:
    """Writes ``curves`` as a PNG, whole or not at all; the other arguments are its.

    Raises:
        RunError: the file cannot be written.
    """
    figure = curves(metrics, references, title=title, best_epoch=best_epoch, measures=measures)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    try:
        write_whole(path, picture.getvalue())
    except OSError as error:
        raise RunError(f"{path}: the curves cannot be written ({error}); choose a writable directory") from error


def curves(
    metrics: Sequence[Record],
    references: Mapping[str, float] = _NO_REFERENCES,
    *,
    title: str = "Training",
    best_epoch: int | None = None,
    measures: Measures = CLASS_MEASURES,
) -> Figure:
    """A picture of two panels: loss over epochs, and the job's first figure (accuracy) over epochs.

    Args:
        metrics: one record per epoch, as in a run's ``metrics.jsonl``; those without an evaluation show no figure.
        references: name → the figure of another training on test nodes, drawn as a horizontal line.
        title: of the picture.
        best_epoch: whose weights were kept; marked when given.
        measures: of the job.
    """
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    losses, judged = figure.subplots(1, 2)
    main = measures.main
    figure.suptitle(title, fontsize=13)
    _lines(losses, metrics, "loss", ("train", "val"))
    losses.set(title="Loss", xlabel="epoch", ylabel=measures.loss)
    losses.set_ylim(bottom=0)
    _lines(judged, metrics, main.name, ("train", "val", "test"))
    for index, (name, value) in enumerate(references.items()):
        colour = _REFERENCE_COLOURS[index % len(_REFERENCE_COLOURS)]
        label = f"{name}, test ({main.shown(value)})"
        judged.axhline(value, color=colour, linestyle="--", linewidth=1.3, label=label)
    title = main.title[:1].upper() + main.title[1:]
    judged.set(title=title, xlabel="epoch", ylabel=f"share of {measures.of}" if main.is_share else main.title)
    if main.is_share:
        judged.set_ylim(0, 1.02)
    for axes in (losses, judged):
        if best_epoch:
            axes.axvline(best_epoch, color="#bbbbbb", linewidth=1, zorder=0, label=f"kept: epoch {best_epoch}")
        axes.grid(visible=True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=9, framealpha=0.85, edgecolor="none")
    return figure


def _lines(axes: Axes, metrics: Sequence[Record], quantity: str, splits: Sequence[str]) -> None:
    for split in splits:
        key = f"{split}_{quantity}"
        points = [(record["epoch"], record[key]) for record in metrics if record.get(key) is not None]
        if points:
            marker = "o" if len(points) == 1 else None
            axes.plot(*zip(*points, strict=True), color=_COLOURS[split], label=_NAMES[split], marker=marker)
