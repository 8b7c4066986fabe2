"""SPU's Python, which cannot be veilgraph's: SPU is pinned to older numpy and jax. Programs run in it as processes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from veilgraph.core.errors import ConfigError, RunError

PYTHON_VARIABLE: Final = "VEILGRAPH_SPU_PYTHON"
DEFAULT_PYTHON: Final = Path(".venv-spu") / "bin" / "python"
"""Made by ``make spu``, in the folder it is called in."""
PROGRAMS: Final = Path(__file__).parent / "spu"
REQUIREMENTS: Final = PROGRAMS / "requirements.txt"
_POLL_S: Final = 0.05


def spu_python() -> Path:
    """The interpreter that has SPU: the one that the environment variable names, else that of ``make spu``.

    Raises:
        ConfigError: it does not exist; the message says how to make one.
    """
    named = os.environ.get(PYTHON_VARIABLE)
    python = Path(named) if named else DEFAULT_PYTHON
    if not python.is_file():
        raise ConfigError(
            f"{PYTHON_VARIABLE}={named or ''}: {python} does not exist, and SPU needs an environment of its own; run "
            f"`make spu`, or pip install -r {REQUIREMENTS} with Python 3.11 and name that python in {PYTHON_VARIABLE}"
        )
    return python


def run_together(commands: Sequence[Sequence[str]], folder: Path, timeout_s: float) -> None:
    """Runs processes side by side until all are done; when one fails the others are ended.

    Args:
        commands: one for each process.
        folder: their errors are kept there, ``stderr0.txt``, ….
        timeout_s: for all of them.

    Raises:
        RunError: a process could not be started, failed or took too long; with the last line of its errors.
    """
    deadline = time.monotonic() + timeout_s
    with ExitStack() as stack:
        running: list[subprocess.Popen[bytes]] = []
        stack.callback(_end, running)
        try:
            for number, command in enumerate(commands):
                errors = stack.enter_context((folder / f"stderr{number}.txt").open("wb"))
                running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors))
        except OSError as error:
            raise RunError(
                f"SPU: {commands[0][0]} cannot be started ({error}); name another {PYTHON_VARIABLE}",
                key=PYTHON_VARIABLE,
                value=commands[0][0],
            ) from error
        while any(process.poll() is None for process in running):
            if any(process.poll() for process in running):
                break
            if time.monotonic() > deadline:
                raise RunError(
                    f"SPU: not done in {timeout_s:.0f} s; take a smaller graph or fewer epochs",
                    code="timeout",
                    value=timeout_s,
                )
            time.sleep(_POLL_S)
        for number, process in enumerate(running):
            if process.poll():
                lines = (folder / f"stderr{number}.txt").read_text(encoding="utf-8", errors="replace").split("\n")
                said = next((line for line in reversed(lines) if line.strip()), "nothing on stderr")
                raise RunError(
                    f"SPU: {' '.join(commands[number])} failed with status {process.returncode}: {said}",
                    code="status",
                    value=process.returncode,
                )


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in running:
        process.kill()  # nothing happens to one that is done
        process.wait()
