"""A launcher whose nursery starts at once: forked from a process that has imported everything already.

All else is as with ``veilgraph train --processes``: ``train``, ``resume``, ``predict``, ``run_processes``, the mains of
nursery and worker, sockets, files and signals. The test tells it what to do over a pipe and learns the parties' process
ids.
"""

import gc
import itertools
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Literal, Self

import pytest
import sklearn.metrics  # noqa: F401  (what label holders score with)

import veilgraph.runtime.launch.worker  # noqa: F401  (here once, for all nurseries)
from veilgraph.core.errors import VeilgraphError
from veilgraph.core.types import PartyId
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch import fork_server as nursery
from veilgraph.runtime.launch import processes as launch
from veilgraph.runtime.launch.jobs import RunOptions, predict, resume, train

LONG_S = 60.0


@dataclass(frozen=True)
class Order:
    """What the host shall do.

    Attributes:
        settings: of a training from the start; None: go on with the run.
        run: its directory.
        grace_s: how long the launcher waits for the others when a party has failed; None: as usual.
        dies: party, and in the middle of which write it is killed: the n-th, or the first of a file of that name.
        predicts: predict with the run, which is complete.
    """

    settings: JobSettings | None
    run: Path
    grace_s: float | None = None
    dies: tuple[PartyId, int | str] | None = None
    predicts: bool = False
    state: str = field(default_factory=lambda: os.environ["XDG_STATE_HOME"])
    """Where the test's account keeps what it has seen."""


@dataclass
class Outcome:
    """What became of an order.

    Attributes:
        error: name of the class of what the launcher raised, empty when the run is complete.
        code: of that, where it is an error of ours.
        message: its text.
        failures: party → class and text of what its process reported.
        silent: parties that did not end by themselves within the grace period.
        notice_s: from the moment the launcher saw the first party end badly until it raised.
        seconds: from the start of the first party until the end.
    """

    error: str = ""
    code: str = ""
    message: str = ""
    failures: dict[PartyId, tuple[str, str]] = field(default_factory=dict)
    silent: list[PartyId] = field(default_factory=list)
    notice_s: float = 0.0
    seconds: float = 0.0


class Host:
    """The test's handle of the host process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._channel, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other,), daemon=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "1")
            self._process.start()
        other.close()
        self._runs = False
        assert self._next("ready", 120) is None

    def begin(self, order: Order) -> dict[PartyId, int]:
        """Starts the parties and returns their process ids."""
        if self._runs:  # a test failed in between, and what became of its order is nobody's answer
            self.end()
        self._channel.send(order)
        pids: dict[PartyId, int] = self._next("started", LONG_S)
        self._runs = True
        return pids

    def ends_within(self, seconds: float) -> bool:
        """Waits so long, or until they have ended."""
        return self._channel.poll(seconds)

    def end(self) -> Outcome:
        """Waits for what becomes of them."""
        outcome: Outcome = self._next("ended", LONG_S)
        self._runs = False
        return outcome

    def do(self, order: Order) -> Outcome:
        """Both."""
        self.begin(order)
        return self.end()

    def close(self) -> None:
        """Kills the host: its parties lose their launcher."""
        self._channel.close()
        self._process.kill()
        self._process.join()

    def _next(self, kind: Literal["ready", "started", "ended"], seconds: float):
        assert self._channel.poll(seconds), f"the host says nothing for {seconds} s; waited for {kind!r}"
        said, content = self._channel.recv()
        assert said == kind, f"waited for {kind!r}, and the host says {said!r}: {content}"
        return content


MOST_BYTES = 1 << 24


class Forked:
    """Stands in for ``subprocess.Popen``: runs the nursery's main in a fork of this process."""

    die: tuple[PartyId, int | str] | None = None
    started: dict[PartyId, int]
    report: Callable[[], None]

    def __init__(
        self, command: Sequence[str], *, pass_fds: Collection[int], stdin: int, stdout: int, stderr: int
    ) -> None:
        assert list(command[1:3]) == ["-m", "veilgraph.runtime.launch.fork_server"]
        assert stdin == subprocess.PIPE
        assert stdout == subprocess.DEVNULL
        self._parties = tuple(json.loads(os.pread(int(command[3]), MOST_BYTES, 0))["workers"])
        self._stdin, (told, telling) = os.pipe(), os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(command[3], self._parties, pass_fds, self._stdin[0], stderr, telling)
        os.close(self._stdin[0])
        os.close(telling)
        with os.fdopen(told) as lines:
            type(self).started = dict(zip(self._parties, map(int, lines), strict=True))
        type(self).report()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._stdin[1])
        self.wait()

    def poll(self) -> int | None:
        self._reap(os.WNOHANG)
        return self.returncode

    def wait(self, limit_s: float | None = None) -> None:
        self._reap(0)

    def terminate(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGTERM)

    def _reap(self, options: int) -> None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)


def _become(
    plan: str, parties: Sequence[PartyId], keep: Collection[int], stdin: int, stderr: int, telling: int
) -> None:
    """Turns the fork into the nursery, which tells the parties' process ids, and into these; never returns."""
    code, fork, unborn = 1, os.fork, iter(parties)

    def noted() -> int:
        party, pid = next(unborn), fork()
        if pid:
            os.write(telling, b"%d\n" % pid)
            if party == parties[-1]:
                os.close(telling)
            return pid
        os.close(telling)
        if Forked.die is not None and Forked.die[0] == party:
            _die_at_write(Forked.die[1])
        return 0

    try:
        os.dup2(stdin, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(stderr, 2)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            if int(name) not in {0, 1, 2, telling, *keep}:
                with suppress(OSError):
                    os.close(int(name))
        os.fork = noted
        code = nursery.main([plan])
    except BaseException:  # noqa: BLE001  (as an interpreter that ends)
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def _die_at_write(which: int | str) -> None:
    """Kills this process when half of a file is written and the file is not renamed yet."""
    fsync, writes = os.fsync, itertools.count(1)

    def die(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        if next(writes) == which or name.startswith(f".{which}."):
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):  # whose entry may be on the disk or not
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = die  # type: ignore[assignment]


def serve(channel: Connection) -> None:
    """Body of the host process: carries out orders until the test closes the pipe."""
    usual_grace_s = launch.GRACE_S
    gc.freeze()  # else each party looks through all of it, and copies it
    nursery.subprocess.Popen = Forked  # type: ignore[attr-defined]
    channel.send(("ready", None))
    while True:
        try:
            order: Order = channel.recv()
            os.environ["XDG_STATE_HOME"] = order.state
        except EOFError:
            return
        launch.GRACE_S = usual_grace_s if order.grace_s is None else order.grace_s  # type: ignore[misc]
        channel.send(("ended", _carry_out(order, channel)))


def _carry_out(order: Order, channel: Connection) -> Outcome:
    outcome, began, failed = Outcome(), time.monotonic(), 0.0
    reported, cause, codes = launch.reported_failure, launch.first_cause, nursery.ForkServer.codes

    def seen(self: nursery.ForkServer) -> dict[PartyId, int]:
        nonlocal failed
        ended = codes(self)
        if any(ended.values()):
            failed = failed or time.monotonic()
        return ended

    def report(party: PartyId, code: int, report: IO[bytes], output: IO[bytes]) -> VeilgraphError:
        error = reported(party, code, report, output)
        outcome.failures[party] = type(error).__name__, str(error)
        return error

    def first(failures: Iterable[BaseException], silent: Sequence[PartyId]) -> BaseException:
        outcome.silent = list(silent)
        outcome.notice_s = time.monotonic() - (failed or began)
        return cause(failures, silent)

    def started() -> None:
        nonlocal began
        began = time.monotonic()
        channel.send(("started", dict(Forked.started)))

    Forked.die, Forked.started = order.dies, {}
    Forked.report = staticmethod(started)
    launch.reported_failure, launch.first_cause = report, first
    nursery.ForkServer.codes = seen  # type: ignore[method-assign]
    try:
        if order.settings is None:
            (predict if order.predicts else resume)(order.run, options=RunOptions(processes=True))
        else:
            train(order.settings, order.run, options=RunOptions(processes=True))
    except Exception as error:  # noqa: BLE001  (the test's to judge)
        outcome.error, outcome.message = type(error).__name__, str(error)
        outcome.code = error.code if isinstance(error, VeilgraphError) else ""
    finally:
        launch.reported_failure, launch.first_cause = reported, cause
        nursery.ForkServer.codes = codes  # type: ignore[method-assign]
    outcome.seconds = time.monotonic() - began
    return outcome
