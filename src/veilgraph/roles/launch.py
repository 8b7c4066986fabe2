"""Runs the parties of a job on this machine. Only this file chooses the wire."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Final, TypeVar

from veilgraph.core import errors
from veilgraph.core.errors import PeerFailed, VeilgraphError
from veilgraph.core.types import Link, PartyId
from veilgraph.link.memory import MemoryHub
from veilgraph.link.sockets import socket_mesh

Result = TypeVar("Result")
Tick = Callable[[], None]

_POLL_S: Final = 0.05
_FAILED: Final = 3
_GRACE_S: Final = 10.0
_MALLOC_OPTIONS: Final = {
    -8: 1,  # M_ARENA_MAX: one heap for all threads
    -4: 0,  # M_MMAP_MAX: large blocks from the heap as well
    -1: 2**31 - 1,  # M_TRIM_THRESHOLD: do not shrink the heap
    -2: 2**26,  # M_TOP_PAD: grow it in large pieces
}


def run_threads(
    programs: Mapping[PartyId, Callable[[Link], Result]], timeout_s: float, tick: Tick
) -> dict[PartyId, Result]:
    """Runs every party's program in a thread of its own over the in-memory link.

    Args:
        programs: party → what it does with its link.
        timeout_s: longest wait for a message.
        tick: called now and then in the calling thread, for progress.

    Raises:
        VeilgraphError: the first cause when a party failed; the others then stop with ``PeerFailed``.
    """
    keep_freed_memory()
    hub = MemoryHub(list(programs), timeout_s)

    def run(party: PartyId) -> Result:
        try:
            return programs[party](hub.link(party))
        except BaseException as error:
            hub.fail(party, error)
            raise

    with ThreadPoolExecutor(len(programs), thread_name_prefix="party") as pool:
        futures: dict[PartyId, Future[Result]] = {party: pool.submit(run, party) for party in programs}
        try:
            while not all(future.done() for future in futures.values()):
                time.sleep(_POLL_S)
                tick()
        except BaseException as error:
            for party in programs:
                hub.fail(party, error)
            raise
    failures = [failure for future in futures.values() if (failure := future.exception()) is not None]
    if failures:
        raise _first_cause(failures)
    return {party: future.result() for party, future in futures.items()}


def run_processes(commands: Mapping[PartyId, Sequence[str]], tick: Tick) -> None:
    """Runs every party in an operating-system process of its own over local socket pairs.

    Each process gets its command and, appended, ``peer=file descriptor`` for each other party; it inherits no
    other descriptor. A failing party reports its error on the last line of its standard error.

    Raises:
        VeilgraphError: the first cause when a party failed.
    """
    mesh = socket_mesh(list(commands))
    processes: dict[PartyId, subprocess.Popen[bytes]] = {}
    reports = {party: tempfile.TemporaryFile() for party in commands}  # noqa: SIM115  (closed below)
    try:
        for party, command in commands.items():
            ends = {peer: end.fileno() for peer, end in mesh[party].items()}
            processes[party] = subprocess.Popen(
                [sys.executable, *command, *(f"{peer}={number}" for peer, number in ends.items())],
                pass_fds=list(ends.values()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=reports[party],
            )
            for end in mesh[party].values():
                end.close()
        while any(process.poll() is None for process in processes.values()):
            time.sleep(_POLL_S)
            tick()
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
        for process in processes.values():
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
    failed = []
    for party, process in processes.items():
        with reports[party] as report:
            if process.returncode != 0:
                report.seek(0)
                failed.append(_reported(party, process.returncode, report.read().decode(errors="replace")))
    if failed:
        raise _first_cause(failed)


@cache
def keep_freed_memory() -> None:
    """Asks glibc to keep freed memory in the process; does nothing where there is no glibc.

    A step makes and drops large tensors. By default their pages go back to the system and are faulted in again at the
    next step, which costs more than the arithmetic on them: 5 times at [169343, 64], 2 times at [19717, 64].
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for option, value in _MALLOC_OPTIONS.items():
            mallopt(option, value)


def report_failure(error: VeilgraphError) -> int:
    """What a party's process prints and returns when it fails, so that the launcher can raise the same error."""
    sys.stderr.write(f"\n{type(error).__name__}: {' '.join(str(error).split())}\n")
    return _FAILED


def _reported(party: PartyId, code: int, output: str) -> VeilgraphError:
    lines = output.strip().splitlines()
    name, _, message = (lines[-1] if lines else "").partition(": ")
    known = getattr(errors, name, None)
    if code == _FAILED and isinstance(known, type) and issubclass(known, VeilgraphError):
        return known(message)
    return PeerFailed(f"{party}'s process ended with code {code}: {lines[-1] if lines else 'no message'}")


def _first_cause(failed: Sequence[BaseException]) -> BaseException:
    return next((error for error in failed if not isinstance(error, PeerFailed)), failed[0])
