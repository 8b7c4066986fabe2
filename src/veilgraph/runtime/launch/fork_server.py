"""Parties' processes as forks of one that has imported what they run.

It is started as ``python -m veilgraph.runtime.launch.fork_server PLAN ...``.

Importing takes seconds of computing: here it is done once for all parties. A server lives for one session and begins
with what the launching process has at that moment (environment, folder, umask, limits), as would processes of their
own. It computes nothing and starts no thread, for no thread survives a fork.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import takewhile
from typing import IO, Final

from veilgraph.core.deferred import import_quickly
from veilgraph.core.threads import run_and_leave

FORKS: Final = sys.platform == "linux"
"""Elsewhere libraries do not bear it: there the server imports nothing, and each party does for itself."""


@dataclass(frozen=True)
class WorkerSpec:
    """How to start a party's process: arguments of ``main``, descriptors of stderr and of what it alone inherits."""

    arguments: Sequence[str]
    output: int
    keeps: Sequence[int]


class ForkServer:
    """A running fork server, as its launcher sees it: it writes "index code" of each party that ended into ``ends``."""

    def __init__(self, parties: Sequence[str], process: subprocess.Popen[bytes], ends: IO[bytes]) -> None:
        self._parties, self._process, self._ends = tuple(parties), process, ends

    def runs(self) -> bool:
        """Whether the server runs, which ends with its last party."""
        return self._process.poll() is None

    def codes(self) -> dict[str, int]:
        """Party → exit code (negative: signal) of those that ended; after the server died, its code for the others."""
        died = None if self.runs() else self._process.returncode
        # not by read: the position in the file is the server's as well
        lines = os.pread(self._ends.fileno(), 1 << 16, 0).split(b"\n")[:-1]
        ended = {self._parties[int(index)]: int(code) for index, code in map(bytes.split, lines)}
        codes = {party: ended.get(party, died) for party in self._parties}
        return {party: code for party, code in codes.items() if code is not None}


@contextmanager
def spawn_workers(module: str, specs: Mapping[str, WorkerSpec]) -> Iterator[ForkServer]:
    """Run ``module.main(arguments)`` in a process of its own for each party; end them all at the end of the block.

    Their standard input ends with this process. The server itself writes to the first party's standard error.
    """
    with tempfile.TemporaryFile() as ends, tempfile.TemporaryFile() as plan:
        parties = {party: asdict(spec) for party, spec in specs.items()}
        content = {"module": module, "ends": ends.fileno(), "workers": parties, "forks": FORKS}
        plan.write(json.dumps(content).encode())  # too long for an argument where there are many parties
        plan.seek(0)
        columns = zip(*(spec.arguments for spec in specs.values()), strict=False)
        # The first arguments, as far as all have the same: who looks at the processes sees of which run they are.
        told = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
        with subprocess.Popen(
            [sys.executable, "-m", "veilgraph.runtime.launch.fork_server", str(plan.fileno()), *told],
            pass_fds=[ends.fileno(), plan.fileno(), *_all_descriptors(specs.values())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=next(iter(specs.values())).output,
        ) as process:
            try:
                yield ForkServer(list(specs), process, ends)
            finally:
                process.terminate()  # it kills its parties; without it they end by their standard input
                try:
                    process.wait(10.0)
                except subprocess.TimeoutExpired:
                    process.kill()


def _all_descriptors(specs: Iterable[WorkerSpec]) -> set[int]:
    return {each for spec in specs for each in (spec.output, *spec.keeps)}


def main(arguments: list[str]) -> int:
    """Fork a process per party of the plan in descriptor ``arguments[0]``, log their ends; a fork returns its code."""
    with open(int(arguments[0]), "rb") as file:  # noqa: PTH123 - a descriptor
        plan = json.load(file)
    module, ends = plan["module"], plan["ends"]
    specs = {party: WorkerSpec(**spec) for party, spec in plan["workers"].items()}
    inherited = _all_descriptors(specs.values()) | {ends}
    if plan["forks"]:
        import_quickly(module)
        gc.freeze()  # what is there is shared, and not looked through again by each party
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who ignores it hands that down
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM})
    running: dict[int, int] = {}
    for index, (party, spec) in enumerate(specs.items()):
        with warnings.catch_warnings(action="ignore"):  # of threads: libraries' own, which bear a fork
            pid = os.fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.dup2(spec.output, 2)
            for each in inherited.difference(spec.keeps):
                os.close(each)
            if not plan["forks"]:
                os.execv(sys.executable, [sys.executable, "-m", module, *spec.arguments])  # noqa: S606
            return _child_main(party, module, list(spec.arguments))
        running[pid] = index
    for each in inherited - {ends}:  # a peer that is gone is noticed when the last copy of its end is closed
        os.close(each)
    _reap(running, ends)
    os._exit(0)  # an interpreter takes long to tidy up


def _child_main(party: str, module: str, arguments: list[str]) -> int:
    """Name this process after its party, reseed torch and NumPy, and return the exit code of ``module.main``."""
    ctypes.CDLL(None).prctl(15, party.encode())  # PR_SET_NAME: what top and ps call it
    for library in ("torch", "numpy.random"):  # Python's own generators do so by themselves
        if library in sys.modules:
            sys.modules[library].seed()
    code: int = import_module(module).main(arguments)
    return code


def _reap(running: dict[int, int], ends: int) -> None:
    """Wait for all of ``running`` (pid → index), writing "index code" lines to ``ends``; on SIGTERM kill them."""
    while running:
        if signal.sigwait({signal.SIGCHLD, signal.SIGTERM}) == signal.SIGTERM:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
        while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            os.write(ends, b"%d %d\n" % (running.pop(ended[0]), os.waitstatus_to_exitcode(ended[1])))


if __name__ == "__main__":
    run_and_leave(lambda: main(sys.argv[1:]))
