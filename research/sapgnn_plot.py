"""SAPGNN's figures 4 and 5 in one picture: accuracy above, macro F1 below, over the number of holders."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from research.markdown import Figure, Measure
from veilgraph.core.errors import RunError
from veilgraph.core.files import write_whole

_MODELS: Final = {
    "ppgnn-two-stages": ("PPGNN", ":", "^"),
    "ppgnn": ("PPGNN end to end", "--", "s"),
    "federated": ("SAPGNN", "-", "o"),
}
_COLOURS: Final = {0.0: "#d55e00", 0.25: "#009e73", 0.5: "#0072b2"}
_MEASURES: Final[tuple[Measure, ...]] = ("accuracy", "F1")


def draw_label_distribution(figures: Sequence[Figure], path: Path) -> None:
    """Writes the picture: a column of panels per data set, a line per model and q, bars of one standard deviation.

    Args:
        figures: places of ``sapgnn-figure4``; what they are is read from their trainings.
        path: the PNG to write, whole or not at all.

    Raises:
        RunError: the file cannot be written.
    """
    datasets = tuple(dict.fromkeys(figure.runs[0].dataset for figure in figures))
    picture = Picture(figsize=(4 * len(datasets) + 1.8, 6.4), layout="constrained")
    grid = picture.subplots(len(_MEASURES), len(datasets), squeeze=False)
    for row, measure in zip(grid, _MEASURES, strict=True):
        for axes, dataset in zip(row, datasets, strict=True):
            _panel(axes, [figure for figure in figures if figure.runs[0].dataset == dataset], measure)
            axes.set(title=dataset, xlabel="holders", ylabel="macro F1" if measure == "F1" else measure)
    lines, names = grid[0][0].get_legend_handles_labels()
    picture.legend(lines, names, loc="outside right center", fontsize=9)
    content = io.BytesIO()
    picture.savefig(content, format="png", dpi=150)
    try:
        write_whole(path, content.getvalue())
    except OSError as error:
        raise RunError(f"{path}: the picture cannot be written ({error}); choose another --out") from error


def _panel(axes: Axes, figures: Sequence[Figure], measure: Measure) -> None:
    lines: dict[tuple[str, float], dict[int, list[float]]] = {}
    for figure in figures:
        run, values = figure.runs[0], figure.values(measure)
        data = run.settings["data"]
        if values is not None:
            lines.setdefault((run.kind, data["partition"]["mixed"]), {})[data["holders"]] = values
    for (kind, mixed), points in lines.items():
        name, style, marker = _MODELS[kind]
        axes.errorbar(
            list(points),
            [fmean(values) for values in points.values()],
            [stdev(values) if len(values) > 1 else 0.0 for values in points.values()],
            color=_COLOURS[mixed],
            linestyle=style,
            marker=marker,
            capsize=3,
            label=f"{name}, q = {100 * mixed:.0f} %",
        )
    axes.set_xticks(sorted({holders for points in lines.values() for holders in points}))
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
