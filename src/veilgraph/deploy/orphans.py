"""No process of a site's job lives on for long without the site.

Every one is in a session of its own, which no signal to the site's group reaches. So each watches who began it, and
``join`` waits for those of its last start (``deploy.site_process``).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from threading import Thread
from typing import Final

PARENT_VARIABLE: Final = "VEILGRAPH_PARENT_PROCESS"
"""Of a process's environment: the id of the one that began it, which may be gone before it looks for it."""
GRACE_S: Final = 20.0
"""In which a job's process may end by itself."""
_EVERY_S: Final = 1.0


def begun_here() -> Mapping[str, str]:
    """For the environment of a process that this one begins."""
    return {PARENT_VARIABLE: str(os.getpid())}


def end_with_parent(grace_s: float = 0.0, every_s: float = _EVERY_S) -> None:
    """From now on this process ends when the one that began it has, and those that it begins end likewise with it.

    Args:
        grace_s: so long after the other's end.
        every_s: how often it looks.
    """
    parent = int(os.environ.get(PARENT_VARIABLE, os.getppid()))
    os.environ.update(begun_here())

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every_s)
        signal.raise_signal(signal.SIGTERM)  # its peers are told
        time.sleep(grace_s)
        sys.stderr.write(f"process {parent}, which began this one, has ended, and so does this: {os.getpid()}\n")
        sys.stderr.flush()
        os._exit(1)

    Thread(target=watch, name="parent", daemon=True).start()
