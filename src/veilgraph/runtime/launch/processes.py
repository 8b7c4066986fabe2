"""Run the parties of a job on this machine, in threads or in processes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import IO, Final, TypeVar

import torch

from veilgraph.core.errors import LinkTimeout, PeerFailed, VeilgraphError, error_of_json
from veilgraph.core.threads import wait_at_exit
from veilgraph.core.types import Link, PartyId
from veilgraph.link.factory import IN_PROCESSES, IN_THREADS, LINKS
from veilgraph.mpc.ring import available_cores
from veilgraph.runtime.launch.fork_server import WorkerSpec, spawn_workers

Result = TypeVar("Result")
Tick = Callable[[], None]
Look = Callable[[], bool]

POLL_S: Final = 0.05  # how often a launcher looks at its parties, at least
_FAILED: Final = 3
PROCESS_DIED: Final = "process-died"
"""Code of the error of a party whose process ended without a word of why."""
GRACE_S: Final = 2.0
"""How long the other parties have to end by themselves once one has failed."""
CAUSE_S: Final = 20.0  # how long it is waited for the cause where those that failed only say that another is gone
_MALLOC_OPTIONS: Final = {
    -8: 1,  # M_ARENA_MAX: one heap for all threads
    -4: 0,  # M_MMAP_MAX: large blocks from the heap as well
    -1: 2**31 - 1,  # M_TRIM_THRESHOLD: do not shrink the heap
    -2: 2**26,  # M_TOP_PAD: grow it in large pieces
}


def run_threads(
    programs: Mapping[PartyId, Callable[[Link], Result]], timeout_s: float, tick: Tick, wire: str = IN_THREADS
) -> dict[PartyId, Result]:
    """Runs every party's program in a thread of its own, joined by a ``wire`` of ``LINKS``.

    ``tick`` is called now and then, for progress. Raises ``ConfigError``: there is no such wire; ``VeilgraphError``:
    the first cause when a party failed. The others then stop with ``PeerFailed``, or are left behind after a while.
    """
    keep_freed_memory()
    network = LINKS.find("link", wire).network(list(programs), timeout_s)
    threads_before = torch.get_num_threads()
    share_cores(len(programs))
    results: dict[PartyId, Result] = {}
    failures: dict[PartyId, BaseException] = {}

    def run(party: PartyId) -> None:
        try:
            results[party] = programs[party](network.link(party))
        except BaseException as error:  # noqa: BLE001  (raised again by the launcher)
            failures[party] = error
            network.fail(party, error)

    threads = [threading.Thread(target=run, args=(party,), name=f"party {party}", daemon=True) for party in programs]

    def some_run() -> bool:
        if running := next((thread for thread in threads if thread.is_alive()), None):
            running.join(POLL_S)  # not by sleeping: most jobs would end in the middle of it
        return running is not None

    try:
        for thread in threads:
            thread.start()
        _wait(some_run, lambda: bool(failures), tick, lambda: any(map(_explains, tuple(failures.values()))))
    except BaseException as error:
        for party in programs:
            network.fail(party, error)
        _wait(some_run, lambda: True, lambda: None)
        raise
    finally:
        torch.set_num_threads(threads_before)
        if left := [thread for thread in threads if thread.is_alive()]:
            wait_at_exit(left)
    if failures:
        raise first_cause(failures.values(), [party for party in programs if party not in failures])
    return {party: results[party] for party in programs}


def run_processes(
    module: str, arguments: Mapping[PartyId, Sequence[str]], tick: Tick, wire: str = IN_PROCESSES
) -> None:
    """Runs a module's ``main`` for every party in an operating-system process of its own; errors as ``run_threads``.

    It gets its arguments and, appended, the descriptor of a file for the error that it fails with (``report_failure``),
    the wire and its invitation. It inherits no other descriptor but a standard input that ends with this process.
    """
    invited = LINKS.find("link", wire).invitations(list(arguments))
    with ExitStack() as stack:
        outputs = {party: stack.enter_context(tempfile.TemporaryFile()) for party in arguments}
        reports = {party: stack.enter_context(tempfile.TemporaryFile()) for party in arguments}
        specs = {
            party: WorkerSpec(
                [*words, str(reports[party].fileno()), wire, *invited[party].arguments],
                outputs[party].fileno(),
                [reports[party].fileno(), *(each.fileno() for each in invited[party].inherited)],
            )
            for party, words in arguments.items()
        }
        server = stack.enter_context(spawn_workers(module, specs))
        for invitation in invited.values():
            for each in invitation.inherited:
                each.close()

        def read_failures() -> list[VeilgraphError]:
            codes = server.codes()
            return [reported_failure(each, code, reports[each], outputs[each]) for each, code in codes.items() if code]

        def some_run() -> bool:
            time.sleep(POLL_S)
            return server.runs()

        _wait(some_run, lambda: any(server.codes().values()), tick, lambda: any(map(_explains, read_failures())))
        silent = [party for party in arguments if party not in server.codes()]
        failures = read_failures()
    if failures:
        raise first_cause(failures, silent)


def _wait(some_run: Look, failed: Look, tick: Tick, explained: Look = lambda: True) -> None:
    """Call ``tick`` until nothing runs, or ``GRACE_S`` after a failure, ``CAUSE_S`` while it is not ``explained``."""
    since = None
    while some_run():
        if since is None and failed():
            since = time.monotonic()
        if since is not None and time.monotonic() - since > (GRACE_S if explained() else CAUSE_S):
            return
        tick()


def first_cause(failures: Iterable[BaseException], silent: Sequence[PartyId]) -> BaseException:
    """Choose the failure that caused the others; if that is a timeout, return one that names the ``silent`` parties."""
    cause = min(failures, key=_rank)
    if isinstance(cause, LinkTimeout) and silent:
        return LinkTimeout(f"nothing more came from {', '.join(silent)}; {cause}", code="silent", party=silent[0])
    return cause


def _explains(error: BaseException) -> bool:
    """Whether an error says more than that another party failed."""
    return _rank(error) < _rank(PeerFailed(""))


def _rank(error: BaseException) -> int:
    """Rank causes first: 0 a party's own error, 1 too few left, 2 a process died, 3 another party's failure."""
    if not isinstance(error, PeerFailed):
        return 1 if getattr(error, "code", "") == "too-few" else 0
    return 2 if error.code == PROCESS_DIED else 3


def share_cores(parties: int) -> None:
    """Set this process's torch threads to cores / (``parties`` - 1), so that as many holders share the cores."""
    torch.set_num_threads(max(1, available_cores() // max(1, parties - 1)))


@cache
def keep_freed_memory() -> None:
    """Asks glibc, where it is there, to keep freed memory in the process.

    A step makes and drops large tensors, whose pages would be faulted in again at the next step: that takes 5 times as
    long as the arithmetic at [169343, 64], 2 times at [19717, 64].
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for option, value in _MALLOC_OPTIONS.items():
            mallopt(option, value)


def report_failure(error: VeilgraphError, report: int) -> int:
    """Write an error as JSON to the descriptor ``report``, for the launcher; return this process's exit code."""
    os.write(report, error.to_json().encode())
    return _FAILED


def end_with_launcher() -> None:
    """Start a thread that ends this process when its standard input ends, as it does with the launcher."""

    def watch() -> None:
        os.read(0, 1)  # not through sys.stdin: its lock would be held when the interpreter ends
        os._exit(_FAILED)

    threading.Thread(target=watch, name="launcher", daemon=True).start()


def reported_failure(party: PartyId, code: int, report: IO[bytes], output: IO[bytes]) -> VeilgraphError:
    """The error of a process that ended with ``code`` (negative: signal): what it reported, else ``PeerFailed``."""
    report.seek(0)
    said = error_of_json(report.read()) if code == _FAILED else None
    if said is not None:
        return said
    if code < 0:
        end = (
            f"was killed by signal {-code} ({signal.strsignal(-code)}), perhaps for want of memory; a training goes on "
            "when it is resumed"
        )
    else:
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
        end = f"ended with code {code}: {lines[-1] if lines else 'no message'}"
    return PeerFailed(f"{party}'s process {end}", code=PROCESS_DIED, value=code, party=party)
