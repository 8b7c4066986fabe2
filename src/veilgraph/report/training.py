"""How a training goes, in bars of progress, and went: its curves, as a picture and on the page, and final scores."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from types import MappingProxyType
from typing import Any, Final, Self

from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from veilgraph.core.errors import RunError
from veilgraph.core.files import os_errors_as, write_whole
from veilgraph.core.text import counted, figure, listed
from veilgraph.protocol.figures import AUC, CLASS_MEASURES, F1, LOSS, Figure, Measures
from veilgraph.report.protection import compared_with
from veilgraph.report.run_data import RunData
from veilgraph.report.tables import Grid, Point, Section, line_chart, longest_legend
from veilgraph.runtime.store.run_directory import Record

EVERY_S: Final = 30.0
"""Between two lines about what is being done, where the output is no terminal."""


@contextmanager
def heartbeat(console: Console, state: Callable[[], str], every_s: float | None = None) -> Iterator[None]:
    """Print what is being done, if anything, now and then until the block ends; nothing in a terminal."""
    if console.is_terminal:
        yield
        return
    ended, begun, wait_s = Event(), monotonic(), EVERY_S if every_s is None else every_s

    def beat() -> None:
        while not ended.wait(wait_s):
            if words := state():
                console.print(f"{words}, {time_words(monotonic() - begun)} so far", soft_wrap=True, highlight=False)

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def time_words(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3.5 h``: about how long."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def left_words(elapsed_s: float, done: float, total: float, words: str = "about {} left in all") -> str:
    """``, about 12 min left in all``, from the seconds that ``done`` of ``total`` took; empty where none is done."""
    return f", {words.format(time_words(elapsed_s * (total - done) / done))}" if 0 < done <= total else ""


class TrainingBars:
    """Progress of trainings: bars in a terminal, else a line every ``EVERY_S`` and the last state."""

    def __init__(self, console: Console, measures: Measures = CLASS_MEASURES) -> None:
        self._measures = measures
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None if console.is_terminal else 30),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            expand=console.is_terminal,
        )
        self._doing, self._begun = "", monotonic()
        self._done, self._within, self._total = 0, 0.0, 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._bars.console.is_terminal:
            self._bars.start()
        self._stack.enter_context(heartbeat(self._bars.console, self._state))
        return self

    def at(self, done: int, total: int) -> None:
        """Set how many of several trainings are done, for the time left."""
        self._done, self._total, self._within = done, total, 0.0

    def _state(self) -> str:
        """What is being trained, and about how long is left in all; empty between trainings."""
        left = left_words(monotonic() - self._begun, self._done + self._within, self._total)
        return self._doing + left if self._doing else ""

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(text, soft_wrap=True, highlight=False)

    def __exit__(self, *_error: object) -> None:
        self._stack.close()
        if self._bars.live.is_started:
            self._bars.stop()

    @contextmanager
    def stage(self, name: str, epochs: int) -> Iterator[Callable[[list[Record]], None]]:
        """One training of at most ``epochs`` epochs; the block gets the function that takes its records."""
        task = self._bars.add_task(name, total=epochs, state="preparing")
        last: Record = {}
        begun, before, self._doing = monotonic(), math.inf, f"{name}: working"

        def progress(records: list[Record]) -> None:
            nonlocal begun, before
            done = records[-1]["epoch"] if records else 0
            if done < before:  # at first, and where a resumed training goes back: epochs before took none of this time
                begun, before = monotonic(), done
            if records:
                self._bars.start()
                last.update(records[-1])
                self._within = min(done / max(epochs, 1), 1.0)
                state = _epoch_text(last, epochs, self._measures)
                left = left_words(monotonic() - begun, done - before, epochs - before, "at most {} left")
                self._doing = f"{name}: {state}{left}"
                self._bars.update(task, completed=done, state=state)

        try:
            yield progress
        finally:
            self._doing = ""
            if not last:
                self._bars.remove_task(task)
        if last:  # after early stopping there is no more to come
            self._bars.update(task, total=last["epoch"])


def _epoch_text(record: Record, epochs: int, measures: Measures) -> str:
    parts = [f"epoch {record['epoch']:>{len(str(epochs))}}/{epochs}"]
    if "loss" in record:
        parts.append(f"loss {record['loss']:.3f}")
    if (key := f"val_{measures.main.name}") in record:
        parts.append(f"val {measures.main.shown(record[key])}")
    return "  ".join(parts)


_NAMES: Final = {"train": "training", "val": "validation", "test": "test"}
_COLOURS: Final = {"train": "#0072b2", "val": "#d55e00", "test": "#009e73"}
_REFERENCE_COLOURS: Final = ("#555555", "#999999", "#cc79a7", "#56b4e9", "#e69f00")
_NO_REFERENCES: Final[Mapping[str, float]] = MappingProxyType({})
_OF_LOSS: Final[tuple[str, ...]] = ("train", "val")


def points(metrics: Sequence[Record], key: str) -> list[Point]:
    """(Epoch, value) of the epochs that have the figure."""
    return [(float(each["epoch"]), float(each[key])) for each in metrics if each.get(key) is not None]


def draw_curves(
    metrics: Sequence[Record],
    path: Path,
    references: Mapping[str, float] = _NO_REFERENCES,
    **about: Any,  # noqa: ANN401 - of ``curves``
) -> None:
    """Write ``curves`` as a PNG, whole or not at all; a ``RunError`` where the file cannot be written."""
    content = io.BytesIO()
    curves(metrics, references, **about).savefig(content, format="png", dpi=150)
    with os_errors_as(RunError, f"{path}: the curves cannot be written", "choose a writable directory"):
        write_whole(path, content.getvalue())


class Picture(MatplotlibFigure):
    """A figure that notebooks show without pyplot."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def curves(
    metrics: Sequence[Record],
    references: Mapping[str, float] = _NO_REFERENCES,
    *,
    title: str = "Training",
    best_epoch: int | None = None,
    measures: Measures = CLASS_MEASURES,
) -> Picture:
    """A picture of two panels over epochs: loss, and the job's first figure where there was an evaluation.

    ``metrics`` are a run's ``metrics.jsonl``; ``references`` other trainings' figures on test nodes by name, drawn as
    horizontal lines; ``best_epoch``, whose weights were kept, is marked when given.
    """
    picture = Picture(figsize=(11, 4.5), layout="constrained")
    losses, judged = picture.subplots(1, 2)
    main = measures.main
    picture.suptitle(title, fontsize=13)
    _plot_splits(losses, metrics, "loss", _OF_LOSS)
    losses.set(title="Loss", xlabel="epoch", ylabel=measures.loss)
    losses.set_ylim(bottom=0)
    _plot_splits(judged, metrics, main.name, tuple(_NAMES))
    for index, (name, value) in enumerate(references.items()):
        colour = _REFERENCE_COLOURS[index % len(_REFERENCE_COLOURS)]
        label = f"{name}, test ({main.shown(value)})"
        judged.axhline(value, color=colour, linestyle="--", linewidth=1.3, label=label)
    shown = main.title[:1].upper() + main.title[1:]
    judged.set(title=shown, xlabel="epoch", ylabel=f"share of {measures.of}" if main.is_share else main.title)
    if main.is_share:
        judged.set_ylim(0, 1.02)
    for axes in (losses, judged):
        if best_epoch:
            axes.axvline(best_epoch, color="#bbbbbb", linewidth=1, zorder=0, label=f"kept: epoch {best_epoch}")
        axes.grid(visible=True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=9, framealpha=0.85, edgecolor="none")
    return picture


def _plot_splits(axes: Axes, metrics: Sequence[Record], quantity: str, splits: Sequence[str]) -> None:
    for split in splits:
        if found := points(metrics, f"{split}_{quantity}"):
            marker = "o" if len(found) == 1 else None
            axes.plot(*zip(*found, strict=True), color=_COLOURS[split], label=_NAMES[split], marker=marker)


def training(found: RunData) -> Section:
    """Curves and scores of a run, as far as they are here: a chart for each figure of the epochs' records."""
    charts = list(_curve_charts(found.metrics, found.summary, found.settings.measures))
    return {
        "progress": progress(found) if found.summary is None else "",
        "charts": charts,
        "legend": longest_legend(charts),
        "scores": _scores_grid(found),
        "compared_with": "" if found.settings.label_privacy is None else compared_with(found.settings),
    }


def progress(found: RunData) -> str:
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


def _curve_charts(metrics: list[Record], summary: Record | None, measures: Measures) -> Iterator[Section]:
    if not metrics:
        return
    epochs = (metrics[0]["epoch"], metrics[-1]["epoch"])
    best = None if summary is None else int(summary["best_epoch"])
    mark = None if not best else (float(best), f"kept: epoch {best}")
    drawn = [(f"Loss ({measures.loss})", "loss", False, _OF_LOSS)]
    drawn += [
        (each.title[:1].upper() + each.title[1:], each.name, is_bounded(each), tuple(_NAMES))
        for each in measures.figures
    ]
    for name, quantity, bounded, splits in drawn:
        # A split without points stays among the series, so that a split has one colour in all charts.
        series = [(_NAMES[split], points(metrics, f"{split}_{quantity}")) for split in splits]
        if told := [(split, each) for split, each in series if each]:
            ends = "; ".join(f"{split}: from {each[0][1]:.3g} to {each[-1][1]:.3g}" for split, each in told)
            words = f"{name} over epochs {epochs[0]} to {epochs[1]}. {ends}."
            highest = max((y for _, each in told for _, y in each if math.isfinite(y)), default=1.0)
            top = 1.0 if bounded else highest
            yield line_chart(name, words, series, x_label="epoch", x_range=epochs, y_range=(0.0, top), mark=mark)


def is_bounded(figure: Figure) -> bool:
    """Whether the highest value of a figure is 1."""
    return figure.is_share or figure in (AUC, F1)


def _scores_grid(found: RunData) -> Grid:
    """Figures of a complete run on each split, a row each; of an incomplete run no row."""
    rows, measures = [], found.settings.measures
    for each in () if found.summary is None else measures.figures:
        values = [(found.summary or {}).get(f"{split}_{each.name}") for split in _NAMES]
        if each is measures.main or any(value is not None for value in values):
            cells = (each.shown(value) if each is measures.main else figure(value) for value in values)
            rows.append((each.title, *cells, each.meaning))
    return Grid(
        "Scores",
        "How well the kept model does, on nodes that it was trained on, chosen by, and tested on.",
        {"score": "", **dict.fromkeys(_NAMES.values(), "number"), "what it says": "wide"},
        tuple(rows),
    )


def best_of(select_by: str, measures: Measures) -> str:
    """The figure by which the epoch that is kept is the best, in words."""
    return "the lowest loss" if select_by == LOSS else measures.named(select_by).best


_WAYS: Final = ("together", "alone")


def alone_words(summary: Record, measures: Measures) -> list[str]:
    """Whether holders are better off together or alone, or by what others released (``adds``), in sentences.

    By the job's first figure, or by the one that a holder chose by at home (``judged_by``).
    """
    better, told = list[str](), list[str]()
    for party, found in summary.get("alone", {}).items():
        main = measures.named(found.get("judged_by", measures.main.name))
        together, alone = (found[way].get(f"val_{main.name}") for way in _WAYS)
        if together is None or alone is None:
            why = f"its own validation {measures.of} have no {main.title}, as where all are of one class"
            told.append(f"Whether {party} is better off alone is not known: {why}.")
            continue
        if "adds" in found:
            shown = [main.shown(found[way].get(f"{split}_{main.name}")) for split in ("val", "test") for way in _WAYS]
            gain = "a" if found["adds"] else "no clear"
            way_out = "" if found["adds"] else " Raise release.features.epsilon, or do without the release."
            told.append(
                f"{party}'s validation {measures.of} show {gain} gain from what others released. The {main.title} "
                f"is {shown[0]} with it, over {counted(found['hops'], 'hop')}, and {shown[1]} by {party}'s own data "
                f"alone. On test {measures.of} it is {shown[2]} and {shown[3]}.{way_out}"
            )
        elif alone != together and (alone > together) == main.rises:
            told.append(
                f"{party} is better off alone: on its own validation {measures.of} its {main.title} is "
                f"{main.shown(alone)} alone and {main.shown(together)} with this model, on its test {measures.of} "
                f"{main.shown(found['alone'].get(f'test_{main.name}'))} and "
                f"{main.shown(found['together'].get(f'test_{main.name}'))}."
            )
        else:
            better.append(party)
    if better:
        are = "is" if len(better) == 1 else "are"
        told.append(
            f"{listed(better)} {are} no worse off with this model than with the same network trained alone, by own "
            f"validation {measures.of}. Other models may do better alone: veilgraph compare JOB.yaml tries some."
        )
    return told
