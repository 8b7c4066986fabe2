"""FLARE's prints and logs kept from the user's terminal, in whatever order threads come and go."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Final

_SILENT: Final = logging.CRITICAL + 1


class Shared:
    """A change of the whole process that holds while any thread is inside: the first makes it, the last undoes it.

    Two threads that each set and restore for themselves would leave it for ever: the second to enter saves the
    changed state, and the second to leave restores it.
    """

    def __init__(self, change: Callable[[], AbstractContextManager[None]]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._inside = 0
        self._made = ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Makes the change unless it is made; on leaving, undoes it unless others are inside."""
        with self._lock:
            if not self._inside:
                self._made.enter_context(self._change())
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._made.close()


@contextmanager
def _without_prints() -> Iterator[None]:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


@contextmanager
def _without_logs() -> Iterator[None]:
    flare = logging.getLogger("nvflare")
    level = flare.level
    flare.setLevel(_SILENT)
    try:
        yield
    finally:
        flare.setLevel(level)


no_prints = Shared(_without_prints)
"""Inside, nothing that anybody prints is seen: for the short calls of FLARE that print."""

no_logs = Shared(_without_logs)
"""Inside, FLARE's own log is silent; every other log is as it was."""
