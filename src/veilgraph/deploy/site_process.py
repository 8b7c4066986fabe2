"""The processes of a site's last start, which a new start waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Final

from veilgraph.core.errors import RunError
from veilgraph.core.files import locked, private_folder
from veilgraph.core.text import Event
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.progress import site_processes

_POLL_S: Final = 0.2
LAST_S: Final = 60.0
"""Longest wait for the processes of the last start: three times what they are given (``orphans.GRACE_S``)."""

Report = Callable[[str], None]


def last_ended(kit: Kit, stopped: threading.Event, look: Callable[[], None], report: Report) -> bool:
    """Waits until no process of the site's last start is there; False where the site was told to stop meanwhile.

    Raises:
        RunError: one does not end.
    """
    deadline = time.monotonic() + LAST_S
    told = False
    while not stopped.is_set():
        with suppress(RunError), alive(kit):
            return True
        if not told:
            told = True
            report(Event("waiting", f"{kit.name}: processes of the site's last start are ending; waiting for them"))
        if time.monotonic() > deadline:
            there = ", ".join(str(process.pid) for process in site_processes(kit))
            raise RunError(
                f"{kit.name}: processes of the site's last start have not ended in {LAST_S:g} s ({there}); end them "
                "with: kill -9, and join again",
                code="last-start",
                party=kit.name,
            )
        look()
        stopped.wait(_POLL_S)
    return False


def alive(kit: Kit) -> AbstractContextManager[int]:
    """What every process of a site's start holds for as long as it lives, by inheriting it."""
    folder = private_folder(kit.path / "local")
    return locked(folder, f"{kit.path}: processes of the site's last start are there")
