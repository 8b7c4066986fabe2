"""What a server does beside its passes: dealing ahead, on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec

P = ParamSpec("P")


class Background:
    """Pieces of work, one after another in the order given; the thread starts with the first."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dealer")
        self._unfinished: list[Future[object]] = []

    def submit(self, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Has ``work`` done when all that was given before is."""
        self._unfinished.append(self._executor.submit(work, *args, **kwargs))

    def check(self) -> None:
        """Raises the error of a piece of work that has failed since the last check, the first of several."""
        finished = [future for future in self._unfinished if future.done()]
        self._unfinished = [future for future in self._unfinished if future not in finished]
        for future in finished:
            future.result()

    def close(self) -> None:
        """Waits for all that was given."""
        self._executor.shutdown(wait=True)
