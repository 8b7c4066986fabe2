"""A table of accuracies, and perhaps F1, as Markdown: ours beside the paper's, and below how they came about.

By hand: pandas and tabulate are 90 MB to install for a pivot of these twenty lines, whose cells are words anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final, Literal

import torch

from research.store import Finished, package_version

Measure = Literal["accuracy", "F1"]
"""Of the test nodes; F1 is macro F1."""

_NONE: Final = "–"
_WHOLE_FROM: Final = 1000
_ENGINES: Final = {
    "federated": "every party ran its own role and the secure protocols, over the in-memory link",
    "plaintext": "one process, ordinary autograd, nothing hidden",
}
_WHEN: Final = {
    False: "at the epoch chosen on validation nodes",
    True: "after the last epoch where no epoch may be chosen (`select_by: last`)",
}
_TWIN: Final = "for federated rows that is the protocols' plaintext twin, equal to them but for rounding"


@dataclass(frozen=True)
class Figure:
    """One place of a table.

    Attributes:
        row: its row's heading.
        column: its column's heading.
        paper: the paper's figure in [0, 1], None where it has none.
        runs: the trainings, one per seed.
        paper_f1: the paper's macro F1 in [0, 1], likewise.
    """

    row: str
    column: str
    paper: float | None
    runs: tuple[Finished, ...]
    paper_f1: float | None = None

    def values(self, measure: Measure) -> list[float] | None:
        """One per seed, in [0, 1]; None where a training has none, as F1 in lines of an earlier shape."""
        found = [run.test_accuracy if measure == "accuracy" else run.test_f1 for run in self.runs]
        known = [value for value in found if value is not None]
        return known if len(known) == len(found) else None

    def printed(self, measure: Measure) -> float | None:
        """The paper's."""
        return self.paper if measure == "accuracy" else self.paper_f1


def render(
    title: str,
    corner: str,
    figures: Sequence[Figure],
    notes: Sequence[str],
    *,
    command: str,
    with_f1: bool = False,
    picture: str = "",
) -> str:
    """The whole page. Where the paper has no figure at all, it has no columns either.

    Args:
        title: heading.
        corner: heading of the first column.
        figures: all places, row by row; rows and columns keep the order of their first place.
        notes: sentences below the table; empty ones are left out.
        command: that makes the table.
        with_f1: whether a second table has macro F1.
        picture: file name of a picture beside the page; may be empty.

    Returns:
        Markdown, ending with a newline.
    """
    lines = [f"# {title}", ""]
    lines += [*_grid(f"{corner}: accuracy" if with_f1 else corner, figures, "accuracy"), ""]
    if with_f1:
        lines += [*_grid(f"{corner}: macro F1", figures, "F1"), ""]
    if picture:
        lines += [f"![{title}]({picture})", ""]
    lines += [*_method(figures, with_f1=with_f1), *(f"- {note}" for note in notes if note)]
    lines += [*_effort(figures), f"- Made with `{command}`."]
    return "\n".join(lines) + "\n"


def mean_and_spread(values: Sequence[float]) -> str:
    """``0.809 ± 0.006``: mean and sample standard deviation; a single value has no spread."""
    mean = f"{fmean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {stdev(values):.3f}"


def _grid(corner: str, figures: Sequence[Figure], measure: Measure) -> list[str]:
    columns = _columns(figures)
    rows = tuple(dict.fromkeys(figure.row for figure in figures))
    places = {(figure.row, figure.column): figure for figure in figures}
    words = 2 if any(figure.printed(measure) is not None for figure in figures) else 1
    lines = [_line([corner, "engine", *(word for column in columns for word in (column, "paper")[:words])])]
    lines.append("|---|---|" + "---:|" * (words * len(columns)))
    for row in rows:
        here = [places.get((row, column)) for column in columns]
        engines = sorted({run.engine for figure in here if figure for run in figure.runs})
        cells = [word for figure in here for word in _words(figure, measure)[:words]]
        lines.append(_line([row, ", ".join(engines), *cells]))
    return lines


def _columns(figures: Sequence[Figure]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(figure.column for figure in figures))


def _words(figure: Figure | None, measure: Measure) -> tuple[str, str]:
    if figure is None:
        return _NONE, _NONE
    ours, paper = figure.values(measure), figure.printed(measure)
    return _NONE if ours is None else mean_and_spread(ours), _NONE if paper is None else f"{paper:.3f}"


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def _method(figures: Sequence[Figure], *, with_f1: bool) -> list[str]:
    runs = _runs(figures)
    seeds = sorted({run.seed for run in runs})
    spread = "one seed" if len(seeds) == 1 else f"mean ± sample standard deviation over {len(seeds)} seeds"
    numbers = ", ".join(map(str, seeds))
    when = ", ".join(_WHEN[last] for last in sorted({run.settings["train"]["select_by"] == "last" for run in runs}))
    what = "Test accuracy and macro F1" if with_f1 else "Test accuracy"
    lines = [f"- {what} {when}; {spread} ({numbers}) of partition and weights."]
    engines = {run.engine for run in runs}
    for engine, meaning in _ENGINES.items():
        if engine in engines:
            twin = any(run.kind == "federated" and run.engine == engine == "plaintext" for run in runs)
            lines.append(f"- Engine {engine}: {meaning}{f'; {_TWIN}' if twin else ''}.")
    return lines


def _effort(figures: Sequence[Figure]) -> list[str]:
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
