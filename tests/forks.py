"""Processes that begin with what they run imported: forks of one server, each ended by its own interpreter.

A fork runs a module's function at the top level of ``__main__``, as ``python -m`` would, and goes the whole way out:
``threading``'s join, ``atexit``, the interpreter's end, the libraries' destructors. Its exit code is what the system
says.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final

from veilgraph.core.deferred import import_quickly

CLI: Final = "veilgraph.cli:main"
TIMED_OUT: Final = -9
_POLL_S: Final = 0.005


@dataclass(frozen=True)
class Order:
    """What a fork shall do.

    Attributes:
        target: module:function.
        arguments: what ``sys.argv`` has after the program's name; the function is given none.
        folder: where it does it; its output goes to files beside that.
        grace_s: how long a launcher waits for parties once one has failed.
        limit_s: how long it may take.
    """

    target: str
    arguments: Sequence[str]
    folder: str
    grace_s: float
    limit_s: float
    state: str = field(default_factory=lambda: os.environ["XDG_STATE_HOME"])
    """Where the test's account keeps what it has seen."""


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, negative for a signal, and all that it wrote."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


class Forks:
    """The test's handle of the server.

    Args:
        folder: has what its processes write.
        modules: what they begin with.
    """

    def __init__(self, folder: Path, modules: Sequence[str]) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            text=True,
        )
        assert self._answer() == "ready"

    def run(
        self,
        *arguments: str | Path,
        target: str = CLI,
        folder: Path | None = None,
        grace_s: float = 0.0,
        limit_s: float = 60.0,
    ) -> Ended:
        """Runs the command line, or another function, in a process of its own, with nothing on its standard input."""
        order = Order(target, list(map(str, arguments)), str(folder or self._folder), grace_s, limit_s)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**asdict(order), "outputs": str(self._folder)}) + "\n")
        self._process.stdin.flush()
        code = int(self._answer())
        texts = [(self._folder / name).read_bytes().decode(errors="replace") for name in ("stdout", "stderr")]
        return Ended(code, *texts)

    def close(self) -> None:
        with self._process:  # closes its pipes, and waits
            pass

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def forks(folder: Path, *modules: str) -> Iterator[Forks]:
    """A server for as long as the block lasts."""
    server = Forks(folder, modules)
    try:
        yield server
    finally:
        server.close()


def _next() -> Mapping[str, object] | None:
    """In the server: None when the test is done; in a fork: its order."""
    for line in sys.stdin:
        order = json.loads(line)
        with warnings.catch_warnings(action="ignore"):
            child = os.fork()
        if child == 0:
            return _become(order)
        os.write(1, b"%d\n" % _end_of(child, time.monotonic() + order["limit_s"]))
    return None


def _become(order: Mapping[str, object]) -> Mapping[str, object]:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(f"{order['outputs']}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - a descriptor, for as long as the process lives
    return order


def _end_of(child: int, deadline: float) -> int:
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            with suppress(ProcessLookupError):  # what it started and left
                os.killpg(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return TIMED_OUT
        time.sleep(_POLL_S)


if __name__ == "__main__":
    with warnings.catch_warnings(action="ignore"):
        for name in sys.argv[1:]:
            import_quickly(name)
    gc.freeze()  # else a fork's end looks through all of it
    os.write(1, b"ready\n")
    if (given := _next()) is not None:
        from veilgraph.runtime.launch import processes as launch

        launch.GRACE_S = given["grace_s"]  # type: ignore[misc, assignment]
        os.environ["XDG_STATE_HOME"] = str(given["state"])
        os.chdir(str(given["folder"]))
        sys.argv = ["veilgraph", *given["arguments"]]  # type: ignore[misc]
        module_name, _, function = str(given["target"]).partition(":")
        getattr(import_module(module_name), function)()
