"""Errors of the neighbourhood estimate in one picture: a panel per data set, a line per mechanism, over ε."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from matplotlib.figure import Figure

from veilgraph.core.errors import RunError
from veilgraph.core.files import write_whole

_STYLES: Final = {"multi-bit": ("#0072b2", "o"), "one-bit": ("#d55e00", "s"), "gaussian": ("#009e73", "^")}


def draw_errors(figures: Mapping[tuple[str, str], Mapping[float, Sequence[float]]], path: Path) -> None:
    """Writes the picture, errors on a logarithmic axis.

    Args:
        figures: (data set, mechanism) → ε → errors, of which the mean is drawn.
        path: the PNG to write, whole or not at all.

    Raises:
        RunError: the file cannot be written.
    """
    datasets = tuple(dict.fromkeys(dataset for dataset, _ in figures))
    picture = Figure(figsize=(3 * len(datasets) + 1.4, 3.2), layout="constrained")
    panels = picture.subplots(1, len(datasets), squeeze=False)[0]
    for axes, dataset in zip(panels, datasets, strict=True):
        for (of, mechanism), errors in figures.items():
            if of == dataset:
                colour, marker = _STYLES[mechanism]
                means = [fmean(values) for values in errors.values()]
                axes.plot(list(errors), means, color=colour, marker=marker, label=mechanism)
        axes.set(title=dataset, xlabel="ε", yscale="log")
        axes.grid(visible=True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("mean absolute error")
    lines, names = panels[0].get_legend_handles_labels()
    picture.legend(lines, names, loc="outside right center", fontsize=9)
    content = io.BytesIO()
    picture.savefig(content, format="png", dpi=150)
    try:
        write_whole(path, content.getvalue())
    except OSError as error:
        raise RunError(f"{path}: the picture cannot be written ({error}); choose another --out") from error
