"""Threads of a process: a result that they share, and how the process ends while some still run.

An interpreter that goes down beneath a daemon thread may take the process with it: up to Python 3.13 ``take_gil``
unwinds the thread by ``pthread_exit``, and within an operator of torch that is ``std::terminate``: SIGABRT, exit code
134, after all was said. A party that is left behind in the midst of its work is such a thread.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Final, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def locked_cache(maxsize: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate with an ``lru_cache`` under a lock, so that parties in threads compute the same total once."""

    def decorate(make: Callable[P, R]) -> Callable[P, R]:
        cached, lock = lru_cache(maxsize)(make), threading.RLock()

        @wraps(make)
        def found(*args: P.args, **kwargs: P.kwargs) -> R:
            with lock:
                return cached(*args, **kwargs)  # type: ignore[arg-type]  # all that is asked for can be hashed

        return found

    return decorate


LEFT_WAIT_S: Final = 10.0
"""How long an interpreter that is not ended by ``leave`` waits for threads that were left behind."""
_UNWRITTEN: Final = 120  # Python's own exit code where standard output cannot be written at the end


def run_and_leave(work: Callable[[], int | None]) -> NoReturn:
    """Call ``work`` and end the process by ``leave`` with its exit code.

    ``work`` gives the exit code, or leaves by ``sys.exit``; any other exception is shown, and the code is 1.
    """
    code = 1
    try:
        code = work() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
    leave(code)


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """While the block lasts SIGINT and SIGTERM call ``stop``, and do nothing else. For the main thread alone."""
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(code: int) -> NoReturn:
    """Ends the process: as ever where no daemon thread runs, and else without tearing the interpreter down.

    Handlers of ``atexit`` are called and standard streams written either way. The system lets go of locks and files;
    objects are not deleted one by one, and a thread stops wherever it is. Called in the main thread, as the last thing.
    """
    if not any(thread.daemon for thread in threading.enumerate()):
        sys.exit(code)
    atexit.unregister(_await)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            code = code or _UNWRITTEN
    os._exit(code)


def wait_at_exit(threads: Sequence[threading.Thread]) -> None:
    """Have an interpreter that ends without ``leave`` wait for these threads, at most ``LEFT_WAIT_S`` seconds."""
    atexit.register(_await, threads)


def _await(threads: Sequence[threading.Thread]) -> None:
    """Join the threads one after another, for ``LEFT_WAIT_S`` seconds in all."""
    deadline = time.monotonic() + LEFT_WAIT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
