"""What came and was not what it said: counted, and logged in few lines, however much of it comes."""

from __future__ import annotations

import logging
import threading
from typing import Final

MAX_SOURCES: Final = 64
"""How many kinds of refusals are told apart; whoever makes up more of them finds all further ones in one line."""

_LONGEST_NAME: Final = 64

log = logging.getLogger("veilgraph")


class Refusals:
    """Counts refusals by who they claim to be of, what they claim to be, and whose connection they came through.

    The first of each is logged at once, then the count whenever it is ten times the last, and at the end.

    Args:
        party: whose log it is.
    """

    def __init__(self, party: str) -> None:
        self._party = party
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str, str], int] = {}
        self._logged: dict[tuple[str, str, str], int] = {}

    def add(self, claimed: str | None, kind: str, through: object, why: str) -> None:
        """Counts one.

        Args:
            claimed: the party that it says it is of; None for somebody who is not in the job.
            kind: what it says it is.
            through: name of the connection that it came through, if that is known.
            why: it was refused.
        """
        name = _printable(str(through))[:_LONGEST_NAME] if through else ""
        key = (claimed or "nobody in this job", kind, name)
        with self._lock:
            if key not in self._counts and len(self._counts) >= MAX_SOURCES:
                key = ("somebody", "frame", "")
            count = self._counts[key] = self._counts.get(key, 0) + 1
            if count > 1 and count < 10 * self._logged[key]:
                return
            self._logged[key] = count
        self._say(key, count, f": {_printable(why)[:300]}" if count == 1 else "")

    def close(self) -> None:
        """Logs the counts that have grown since they were logged."""
        with self._lock:
            grown = [(key, count) for key, count in self._counts.items() if count > self._logged[key]]
            self._logged.update(grown)
        for key, count in grown:
            self._say(key, count, "")

    def _say(self, key: tuple[str, str, str], count: int, why: str) -> None:
        claimed, kind, name = key
        through = f", through the connection of {name}" if name else ""
        plural = "s that claim" if count > 1 else " that claims"
        log.warning(
            "%s refused %d forged %s%s to be of %s%s%s", self._party, count, kind, plural, claimed, through, why
        )


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text[:1000])
