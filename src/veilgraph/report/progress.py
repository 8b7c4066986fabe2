"""Progress bars of trainings: one line each, fed with the epochs' records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from veilgraph.protocol.figures import CLASS_MEASURES, Measures
from veilgraph.runtime.store.run_directory import Record

EVERY_S: Final = 30.0
"""Between two lines about what is being done, where the output is no terminal."""


@contextmanager
def heartbeat(console: Console, state: Callable[[], str], every_s: float | None = None) -> Iterator[None]:
    """Print what is being done now and then until the block ends; nothing in a terminal, which shows it anyway.

    An empty state is not printed; ``every_s`` is ``EVERY_S`` by default.
    """
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


def left_words(elapsed_s: float, done: float, total: float) -> str:
    """``, about 12 min left in all``, of so many seconds for what is done; empty where nothing is done yet."""
    return f", about {time_words(elapsed_s * (total - done) / done)} left in all" if 0 < done <= total else ""


class TrainingBars:
    """Bars in a terminal; where there is none, a line every ``EVERY_S`` and their last state at the end.

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
        self._doing, self._begun = "", monotonic()
        self._done, self._within, self._total = 0, 0.0, 0
        self._beat = heartbeat(console, self._state)

    def __enter__(self) -> Self:
        if self._bars.console.is_terminal:
            self._bars.start()
        self._beat.__enter__()
        return self

    def at(self, done: int, total: int) -> None:
        """How many trainings of how many are done, where they are not each by itself."""
        self._done, self._total, self._within = done, total, 0.0

    def _state(self) -> str:
        left = left_words(monotonic() - self._begun, self._done + self._within, self._total)
        return self._doing + left if self._doing else ""

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(text, soft_wrap=True, highlight=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._beat.__exit__(kind, error, traceback)
        if self._bars.live.is_started:
            self._bars.stop()

    @contextmanager
    def stage(self, name: str, epochs: int) -> Iterator[Callable[[list[Record]], None]]:
        """One training of at most ``epochs`` epochs; the block gets the function that takes its records."""
        task = self._bars.add_task(name, total=epochs, state="preparing")
        last: Record = {}
        begun, self._doing = monotonic(), f"{name}: working"

        def progress(records: list[Record]) -> None:
            if records:
                self._bars.start()
                last.update(records[-1])
                left_s = (monotonic() - begun) / max(last["epoch"], 1) * max(epochs - last["epoch"], 0)
                self._within = min(last["epoch"] / max(epochs, 1), 1.0)
                state = _state(last, epochs, self._measures)
                self._doing = f"{name}: {state}, at most {time_words(left_s)} left"
                self._bars.update(task, completed=last["epoch"], state=state)

        try:
            yield progress
        finally:
            self._doing = ""
            if not last:
                self._bars.remove_task(task)
        if last:  # after early stopping there is no more to come
            self._bars.update(task, total=last["epoch"])


def _state(record: Record, epochs: int, measures: Measures) -> str:
    parts = [f"epoch {record['epoch']:>{len(str(epochs))}}/{epochs}"]
    if "loss" in record:
        parts.append(f"loss {record['loss']:.3f}")
    if (key := f"val_{measures.main.name}") in record:
        parts.append(f"val {measures.main.shown(record[key])}")
    return "  ".join(parts)
