"""Progress bars of trainings: one line each, fed with the epochs' records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from veilgraph.protocol.figures import CLASS_MEASURES, Measures
from veilgraph.run.run_directory import Record


class TrainingBars:
    """Bars in a terminal; where there is none, their last state is printed at the end.

    A training that fails before its first epoch leaves no bar.
    """

    def __init__(self, console: Console, measures: Measures = CLASS_MEASURES) -> None:
        self._measures = measures
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            expand=True,
        )

    def __enter__(self) -> Self:
        if self._bars.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bars.live.is_started:
            self._bars.stop()

    @contextmanager
    def stage(self, name: str, epochs: int) -> Iterator[Callable[[list[Record]], None]]:
        """One training of at most ``epochs`` epochs; the block gets the function that takes its records."""
        task = self._bars.add_task(name, total=epochs, state="preparing")
        last: Record = {}

        def progress(records: list[Record]) -> None:
            if records:
                self._bars.start()
                last.update(records[-1])
                self._bars.update(task, completed=last["epoch"], state=_state(last, epochs, self._measures))

        try:
            yield progress
        finally:
            if not last:
                self._bars.remove_task(task)
        if last:  # after early stopping there is no more to come
            self._bars.update(task, total=last["epoch"])


@contextmanager
def counted(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """One bar for many trainings; the block gets the function that takes (what is being done, done, in all)."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    task = bar.add_task("")

    def progress(what: str, done: int, total: int) -> None:
        bar.start()
        bar.update(task, description=what, completed=done, total=total)

    try:
        yield progress
    finally:
        if bar.live.is_started:
            bar.stop()


def _state(record: Record, epochs: int, measures: Measures) -> str:
    parts = [f"epoch {record['epoch']:>{len(str(epochs))}}/{epochs}"]
    if "loss" in record:
        parts.append(f"loss {record['loss']:.3f}")
    if (key := f"val_{measures.main.name}") in record:
        parts.append(f"val {measures.main.shown(record[key])}")
    return "  ".join(parts)
