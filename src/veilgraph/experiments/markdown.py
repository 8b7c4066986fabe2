"""A table of accuracies as Markdown: our figures beside the paper's, and below how they came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

import torch

from veilgraph.experiments.store import Finished, package_version

_NONE: Final = "–"
_ENGINES: Final = {
    "federated": "every party ran its own role and the secure protocols, over the in-memory link",
    "plaintext": "one process, ordinary autograd, nothing hidden",
}
_TWIN: Final = "for federated rows that is the protocols' plaintext twin, equal to them but for fixed-point rounding"


@dataclass(frozen=True)
class Figure:
    """One place of a table.

    Attributes:
        row: its row's heading.
        column: its column's heading.
        paper: the paper's figure in [0, 1], None where it has none.
        runs: the trainings, one per seed.
    """

    row: str
    column: str
    paper: float | None
    runs: tuple[Finished, ...]


def render(title: str, corner: str, figures: Sequence[Figure], notes: Sequence[str], *, command: str) -> str:
    """The whole page.

    Args:
        title: heading.
        corner: heading of the first column.
        figures: all places, row by row; rows and columns keep the order of their first place.
        notes: sentences below the table; empty ones are left out.
        command: that makes the table.

    Returns:
        Markdown, ending with a newline.
    """
    lines = [f"# {title}", "", *_grid(corner, figures), "", *_method(figures)]
    lines += [f"- {note}" for note in notes if note]
    lines += [*_cost(figures), f"- Made with `{command}`."]
    return "\n".join(lines) + "\n"


def mean_and_spread(values: Sequence[float]) -> str:
    """``0.809 ± 0.006``: mean and sample standard deviation; a single value has no spread."""
    mean = f"{fmean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {stdev(values):.3f}"


def _grid(corner: str, figures: Sequence[Figure]) -> list[str]:
    columns = tuple(dict.fromkeys(figure.column for figure in figures))
    rows = tuple(dict.fromkeys(figure.row for figure in figures))
    places = {(figure.row, figure.column): figure for figure in figures}
    lines = [_line([corner, "engine", *(word for column in columns for word in (column, "paper"))])]
    lines.append("|---|---|" + "---:|" * (2 * len(columns)))
    for row in rows:
        here = [places.get((row, column)) for column in columns]
        engines = sorted({run.engine for figure in here if figure for run in figure.runs})
        lines.append(_line([row, ", ".join(engines), *(word for figure in here for word in _words(figure))]))
    return lines


def _words(figure: Figure | None) -> tuple[str, str]:
    if figure is None:
        return _NONE, _NONE
    ours = mean_and_spread([run.test_accuracy for run in figure.runs])
    return ours, _NONE if figure.paper is None else f"{figure.paper:.3f}"


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def _method(figures: Sequence[Figure]) -> list[str]:
    runs = _runs(figures)
    seeds = sorted({run.seed for run in runs})
    spread = "one seed" if len(seeds) == 1 else f"mean ± sample standard deviation over {len(seeds)} seeds"
    numbers = ", ".join(map(str, seeds))
    lines = [f"- Test accuracy at the epoch chosen on validation nodes; {spread} ({numbers}) of partition and weights."]
    engines = {run.engine for run in runs}
    for engine, meaning in _ENGINES.items():
        if engine in engines:
            twin = any(run.kind == "federated" and run.engine == engine == "plaintext" for run in runs)
            lines.append(f"- Engine {engine}: {meaning}{f'; {_TWIN}' if twin else ''}.")
    return lines


def _cost(figures: Sequence[Figure]) -> list[str]:
    runs = {run.key: run for run in _runs(figures)}.values()
    sent = sum(sum((run.sent_bytes or {}).values()) for run in runs)
    traffic = f", {sent / 1e6:,.1f} MB sent between the parties" if sent else ""
    seconds = sum(run.seconds for run in runs)
    return [
        f"- {len(runs)} trainings, {seconds:,.1f} seconds{traffic}; veilgraph {package_version()}, "
        f"torch {torch.__version__}."
    ]


def _runs(figures: Sequence[Figure]) -> list[Finished]:
    return [run for figure in figures for run in figure.runs]
