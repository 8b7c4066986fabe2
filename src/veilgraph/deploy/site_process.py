"""The processes of a site: none of a job's lives on for long without the site, and none meets those of its last start.

Every one is in a session of its own, which no signal to the site's group reaches. So each watches who began it, and
``join`` waits for those of its last start.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Final

from veilgraph.core.errors import RunError
from veilgraph.core.files import locked, private_folder
from veilgraph.core.text import Event, Report
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.progress import site_processes

_POLL_S: Final = 0.2
LAST_S: Final = 60.0
"""Longest wait for the processes of the last start: three times what they are given (``GRACE_S``)."""


def await_earlier_processes(kit: Kit, stopped: threading.Event, look: Callable[[], None], report: Report) -> bool:
    """Wait until the site's earlier processes ended: True; False once ``stopped``; ``RunError``: one does not end."""
    deadline = time.monotonic() + LAST_S
    told = False
    while not stopped.is_set():
        with suppress(RunError), lock_kit(kit):
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


def lock_kit(kit: Kit) -> AbstractContextManager[int]:
    """Lock a kit; each process that inherits the descriptor holds it while it lives. ``RunError``: others hold it."""
    folder = private_folder(kit.path / "local")
    return locked(folder, f"{kit.path}: processes of the site's last start are there")


PARENT_VARIABLE: Final = "VEILGRAPH_PARENT_PROCESS"
"""Of a process's environment: the id of the one that began it, which may be gone before it looks for it."""
GRACE_S: Final = 20.0
"""In which a job's process may end by itself."""


def parent_environment() -> Mapping[str, str]:
    """Environment variables for a child process: this process's id, by which the child watches it."""
    return {PARENT_VARIABLE: str(os.getpid())}


def end_with_parent(grace_s: float = 0.0, every_s: float = 1.0) -> None:
    """Watch the parent every ``every_s``; once it is gone raise SIGTERM here, and exit with 1 after ``grace_s``."""
    parent = int(os.environ.get(PARENT_VARIABLE, os.getppid()))
    os.environ.update(parent_environment())

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every_s)
        signal.raise_signal(signal.SIGTERM)  # its peers are told
        time.sleep(grace_s)
        sys.stderr.write(f"process {parent}, which began this one, has ended, and so does this: {os.getpid()}\n")
        sys.stderr.flush()
        os._exit(1)

    Thread(target=watch, name="parent", daemon=True).start()


STUCK_S: Final = 60.0
"""``net join`` looks after its site several times a second; without a look for so long it is stuck."""


@dataclass
class SiteWatch:
    """What ``net join`` notes of its site while it looks after it; ``restarts`` are of the broker, at the server."""

    is_up: bool = False
    restarts: int = 0
    looked: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        """Note that the site was looked after now."""
        self.looked = time.monotonic()
