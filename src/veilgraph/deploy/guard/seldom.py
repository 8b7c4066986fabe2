"""FLARE's lines on trying to reach the server again, of which there are eight each ten seconds: now and then."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 600.0
TALKATIVE: Final = (
    "nvflare.fuel.f3.sfm.conn_manager",
    "nvflare.fuel.f3.drivers.grpc_driver.GrpcDriver",
    "nvflare.fuel.f3.cellnet.core_cell.CoreCell",
)
"""Loggers that say each attempt, and how it failed."""
_NUMBERS: Final = re.compile(r"\d+")
_MOST: Final = 256
"""Kinds of lines that are remembered."""


class Seldom(logging.Filter):
    """Lets a line pass unless one that differs in numbers alone did so not long before.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._passed: dict[tuple[int, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is logged."""
        kind, now = (record.levelno, _NUMBERS.sub("#", record.getMessage())), self._clock()
        if now - self._passed.get(kind, -EVERY_S) < EVERY_S:
            return False
        if len(self._passed) >= _MOST:
            self._passed.clear()
        self._passed[kind] = now
        return True


def thin() -> None:
    """Of this process, whatever FLARE sets of its logs later on."""
    for name in TALKATIVE:
        logging.getLogger(name).addFilter(Seldom())
