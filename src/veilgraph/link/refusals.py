"""A log of refused messages and connections: few lines however many there are, and none that is never counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from veilgraph.core.text import printable

MAX_SOURCES: Final = 1024
"""Sources that are counted apart; further ones share one entry."""
MAX_KINDS: Final = 64
"""Kinds of refusals of one source that get a line of their own."""
EVERY_S: Final = 10.0
"""Longest time until a refusal without a line of its own is counted in one."""
_LONGEST_LINE: Final = 1000
_FURTHER: Final = ("further sources",)

Source = tuple[str, ...]
"""Who is refused, and where, as far as that is certain."""


@dataclass
class _Source:
    kinds: set[Hashable] = field(default_factory=set)
    waiting: int = 0
    newest: str = ""


class RefusalLog:
    """Logs the first refusal of each kind at once, and seconds later how many more there were.

    Memory and lines are bounded. No number of refusals silences a later one: a source can use up its own kinds and not
    another's, and whatever has no line of its own is counted within ``EVERY_S``. ``say`` takes a source and a line;
    ``later`` calls a function after so many seconds.
    """

    def __init__(
        self, say: Callable[[Source, str], None], later: Callable[[float, Callable[[], None]], None] | None = None
    ) -> None:
        self._say, self._later = say, later or self._start_timer
        self._lock = threading.Lock()
        self._sources: dict[Source, _Source] = {}
        self._timer: threading.Timer | None = None
        self._is_due = False

    def add(self, source: Source, kind: Hashable, words: str) -> None:
        """Count a refusal, and why; who is refused may make up ``kind``, which tells it apart, but not ``source``."""
        words = printable(words, _LONGEST_LINE)
        with self._lock:
            if source not in self._sources and len(self._sources) >= MAX_SOURCES:
                source = _FURTHER
            entry = self._sources.setdefault(source, _Source())
            is_first = kind not in entry.kinds and len(entry.kinds) < MAX_KINDS
            begins = not is_first and not self._is_due
            if is_first:
                entry.kinds.add(kind)
            else:
                entry.waiting, entry.newest, self._is_due = entry.waiting + 1, words, True
        if is_first:
            self._say(source, words)
        elif begins:
            self._later(EVERY_S, self.flush)

    def flush(self) -> None:
        """Log for each source how many refusals had no line of their own since the last time."""
        with self._lock:
            counted = [(name, one.waiting, one.newest) for name, one in self._sources.items() if one.waiting]
            for name, _, _ in counted:
                self._sources[name].waiting = 0
            self._is_due = False
        for name, count, newest in counted:
            self._say(name, f"{count} more of {' for '.join(name)}, the last: {newest}")

    def close(self) -> None:
        """Stop the timer, and log the counts since the last time."""
        if self._timer is not None:
            self._timer.cancel()
        self.flush()

    def _start_timer(self, seconds: float, call: Callable[[], None]) -> None:
        self._timer = threading.Timer(seconds, call)
        self._timer.daemon = True
        self._timer.start()
