"""What a tuning found: a table of its best trials, and a picture of all of them."""

from __future__ import annotations

import io
import math
import statistics
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from veilgraph.core.errors import RunError
from veilgraph.core.files import os_errors_as, write_whole
from veilgraph_tuning.space import Choice, Options
from veilgraph_tuning.trials import Trial
from veilgraph_tuning.trying import Tuning

_ROWS: Final = 10
_COLUMNS: Final = 3


def trials_table(tuning: Tuning) -> Table:
    """The best trials and, wherever it ranks, the job as it was."""
    ranked = tuning.ranked()
    shown = [trial for place, trial in enumerate(ranked) if place < _ROWS or trial.number == 0]
    given_up = sum(trial.ending == "pruned" for trial in tuning.trials)
    failed = sum(trial.ending == "failed" for trial in tuning.trials)
    table = Table(
        title=f"Tuning: {len(ranked)} trials, {given_up} given up, {failed} failed",
        title_justify="left",
        caption=f"Validation nodes' {tuning.figure}{_spread(shown)}; test nodes were not looked at.",
        caption_justify="left",
    )
    table.add_column("trial", justify="right")
    table.add_column(f"validation {tuning.figure}", justify="right")
    for key in tuning.space:
        table.add_column(key, justify="right")
    for trial in shown:
        settings = [_short(trial.settings[key]) if key in trial.settings else "as given" for key in tuning.space]
        table.add_row(str(trial.number), _reached(trial, rises=tuning.rises), *settings)
    return table


def failures(tuning: Tuning) -> dict[str, list[int]]:
    """Why trials failed → their numbers."""
    found: dict[str, list[int]] = {}
    for trial in tuning.trials:
        if trial.ending == "failed":
            found.setdefault(trial.why, []).append(trial.number)
    return found


def draw_trials(tuning: Tuning, path: Path) -> None:
    """Writes a picture: what trials reached in their order, and over each setting.

    Raises:
        RunError: the file cannot be written.
    """
    complete = [trial for trial in tuning.trials if trial.ending == "complete"]
    rows = math.ceil((1 + len(tuning.space)) / _COLUMNS)
    figure = Figure(figsize=(4.2 * _COLUMNS, 3.1 * rows), layout="constrained")
    first, *others = figure.subplots(rows, _COLUMNS, squeeze=False).flat
    values = [_natural(trial, rises=tuning.rises) for trial in complete]
    best = max if tuning.rises else min
    first.scatter([trial.number for trial in complete], values, s=18, color="#0072b2")
    so_far = [best(values[: place + 1]) for place in range(len(values))]
    first.step([trial.number for trial in complete], so_far, where="post", color="#d55e00", label="best so far")
    first.set(xlabel="trial", ylabel=f"validation {tuning.figure}")
    first.legend(fontsize=9)
    for axes, (key, choice) in zip(others, tuning.space.items(), strict=False):
        _over(axes, key, choice, [trial for trial in complete if key in trial.settings], tuning)
    for axes in others[len(tuning.space) :]:
        axes.set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    with os_errors_as(RunError, f"{path}: the picture cannot be written", "choose a writable directory"):
        write_whole(path, picture.getvalue())


def _over(axes: Axes, key: str, choice: Choice, trials: list[Trial], tuning: Tuning) -> None:
    chosen = [trial.settings[key] for trial in trials]
    if isinstance(choice, Options):
        names = [str(value) for value in choice.values]
        axes.set_xticks(range(len(names)), names)
        places = [names.index(str(value)) for value in chosen]
        axes.scatter(places, [_natural(trial, rises=tuning.rises) for trial in trials], s=18)
    else:
        axes.scatter(
            [float(value) for value in chosen], [_natural(trial, rises=tuning.rises) for trial in trials], s=18
        )
        if choice.log:
            axes.set_xscale("log")
    axes.set(xlabel=key, ylabel=f"validation {tuning.figure}")
    axes.grid(visible=True, alpha=0.25)


def _natural(trial: Trial, *, rises: bool) -> float:
    """A loss as a loss again."""
    return trial.value if rises else -trial.value


def _reached(trial: Trial, *, rises: bool) -> str:
    spread = f" ± {statistics.stdev(trial.values):.4f}" if len(trial.values) > 1 else ""
    return f"{_natural(trial, rises=rises):.4f}{spread}"


def _spread(trials: list[Trial]) -> str:
    return ", mean ± standard deviation over seeds" if any(len(trial.values) > 1 for trial in trials) else ""


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
