"""A further machine's process for one job: ``python -m veilgraph_machines.machine HOST PORT RANK THREADS REPORT``.

``attend`` starts one after another; a user calls ``veilgraph net machine``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import torch

from veilgraph.core.errors import ConfigError, VeilgraphError
from veilgraph.core.threads import run_and_leave
from veilgraph.protocol.party_settings import PartySettings
from veilgraph.runtime.launch.processes import end_with_launcher, keep_freed_memory, report_failure, reported_failure
from veilgraph_machines.rendezvous import follow
from veilgraph_machines.secret import SECRET_BYTES, read_secret
from veilgraph_machines.worker import serve

_PAUSE_S: Final = 2.0

Report = Callable[[str], None]


def attend(settings: PartySettings, folder: Path, rank: int, report: Report) -> None:
    """Takes part in the party's jobs, one after another, without end.

    Args:
        settings: of the party; its file is the same on all its machines.
        folder: where the party file is.
        rank: of this machine, from 1.
        report: called with a line when something happens that a person wants to know.

    Raises:
        ConfigError: the party has no such machine, or this one another release than the one that joins, or no secret.
    """
    machines = settings.machines
    if machines is None or not 0 < rank < machines.count:
        has = "no machines" if machines is None else f"machines.count={machines.count}"
        raise ConfigError(f"--rank {rank}: the party file has {has}; ranks are from 1 to one less than their number")
    secret = read_secret(machines.within(folder).secret)
    report(f"machine {rank} of {settings.party} waits for jobs at {machines.address}")
    while True:
        with MachineProcess(machines.host, machines.port, rank, secret) as process:
            failure = process.outcome()
        if isinstance(failure, ConfigError):
            raise failure
        report(f"machine {rank}: " + ("the job is done" if failure is None else str(failure)))
        if failure is not None:
            time.sleep(_PAUSE_S)


class MachineProcess:
    """A further machine's process, for one job; ended with the block.

    Args:
        host: where the party's own process is.
        port: of its rendezvous.
        rank: of the machine.
        secret: of the party; the process gets it on its standard input, where nobody else reads it.
        threads: of the process; 0: as many as torch takes.
    """

    def __init__(self, host: str, port: int, rank: int, secret: bytes, threads: int = 0) -> None:
        self._rank = rank
        self._report, self._output = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end of the block
        arguments = [host, str(port), str(rank), str(threads), str(self._report.fileno())]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "veilgraph_machines.machine", *arguments],
            pass_fds=[self._report.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._output,
        )
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # its outcome says what it ended with
                self._process.stdin.write(secret)
                self._process.stdin.flush()

    def __enter__(self) -> MachineProcess:
        return self

    def outcome(self, limit_s: float | None = None) -> VeilgraphError | None:
        """Waits for its end, and says what it failed with, if it did; of one that is not at its end in time, None."""
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        if code == 0:
            return None
        return reported_failure(f"machine {self._rank}", code, self._report, self._output)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._report.close()
        self._output.close()


def main(arguments: list[str]) -> int:
    """Waits for the party's own process, serves it to the end of the job, and returns the exit code."""
    host, port, rank, threads, report = arguments
    secret = _read_secret()
    end_with_launcher()
    keep_freed_memory()
    if int(threads):
        torch.set_num_threads(int(threads))
    try:
        with closing(follow(host, int(port), int(rank), secret)) as group:
            serve(group)
    except VeilgraphError as error:
        return report_failure(error, int(report))
    return 0


def _read_secret() -> bytes:
    secret = b""
    while len(secret) < SECRET_BYTES and (more := os.read(0, SECRET_BYTES - len(secret))):
        secret += more
    return secret


if __name__ == "__main__":
    run_and_leave(lambda: main(sys.argv[1:]))
