"""How an error calls an argument: as an option on the command line, and by its name from Python."""

from __future__ import annotations

import shlex
from contextvars import ContextVar
from typing import Final

OPTIONS: Final = ContextVar("OPTIONS", default=False)
"""Whether who reads errors gave options: the command line says so, of the command that it runs."""


def argument(name: str, value: str = "") -> str:
    """An argument of a function that is an option of a command, too.

    Args:
        name: of the argument, as in ``record_views``.
        value: what to give; empty where an option has none, or it is for the reader to choose.
    """
    return f"--{name.replace('_', '-')}" if OPTIONS.get() else f"{name}={value}"


def resuming(run: object) -> str:
    """How a run is gone on with.

    Args:
        run: its path.
    """
    return f"veilgraph resume {shlex.quote(str(run))}" if OPTIONS.get() else f"load_run({str(run)!r}).resume()"
