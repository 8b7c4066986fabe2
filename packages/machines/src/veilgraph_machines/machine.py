"""A further machine's process for one job: ``python -m veilgraph_machines.machine MEETING RANK COUNT THREADS REPORT``.

MEETING is HOST:PORT of the leader's store, or the path of a ``FileStore``. ``attend`` starts one process after another;
a user calls ``veilgraph net machine``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

import torch
from torch.distributed import FileStore, Store

from veilgraph.core.errors import ConfigError, VeilgraphError
from veilgraph.core.threads import run_and_leave
from veilgraph.protocol.party_settings import PartySettings
from veilgraph.runtime.launch.processes import end_with_launcher, keep_freed_memory, report_failure, reported_failure
from veilgraph_machines.passes import serve
from veilgraph_machines.rendezvous import address_towards, follow, private_address, reached_store

LOOPBACK: Final = "127.0.0.1"

_PAUSE_S: Final = 2.0


def attend(settings: PartySettings, rank: int, report: Callable[[str], None]) -> None:
    """Take part in the party's jobs, one after another, without end.

    Args:
        settings: of the party; its file is the same on all its machines.
        rank: of this machine, from 1.
        report: called with a line when something happens that a person wants to know.

    Raises:
        ConfigError: the party has no such machine, its address is not private, or the machine that joins has another
            release.
    """
    machines = settings.machines
    if machines is None or not 0 < rank < machines.count:
        has = "no machines" if machines is None else f"machines.count={machines.count}"
        raise ConfigError(f"--rank {rank}: the party file has {has}; ranks are from 1 to one less than their number")
    meeting = f"{private_address(machines.host, 'machines.address')}:{machines.port}"
    report(f"machine {rank} of {settings.party} waits for jobs at {machines.address}")
    while True:
        with MachineProcess(meeting, rank, machines.count) as process:
            failure = process.outcome()
        if isinstance(failure, ConfigError):
            raise failure
        report(f"machine {rank}: " + ("the job is done" if failure is None else str(failure)))
        if failure is not None:
            time.sleep(_PAUSE_S)


class MachineProcess:
    """A further machine's process, for one job; ended with the block.

    Args:
        meeting: as this module's argument.
        rank: of the machine.
        count: M.
        threads: of the process; 0: as many as torch takes.
    """

    def __init__(self, meeting: str, rank: int, count: int, threads: int = 0) -> None:
        self._rank = rank
        self._report, self._output = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end of the block
        arguments = [meeting, *map(str, (rank, count, threads, self._report.fileno()))]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "veilgraph_machines.machine", *arguments],
            pass_fds=[self._report.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._output,
        )

    def __enter__(self) -> MachineProcess:
        return self

    def outcome(self, limit_s: float | None = None) -> VeilgraphError | None:
        """Wait for its end, and return what it failed with, if it did; of one that is not at its end in time, None."""
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        if code == 0:
            return None
        return reported_failure(f"machine {self._rank}", code, self._report, self._output)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._report.close()
        self._output.close()


def main(arguments: list[str]) -> int:
    """Wait for the party's own process, serve it to the end of the job, and return the exit code."""
    meeting, rank, count, threads, report = arguments
    end_with_launcher()
    keep_freed_memory()
    if int(threads):
        torch.set_num_threads(int(threads))
    try:
        store, host = _meet(meeting)
        with closing(follow(store, int(rank), int(count), host)) as group:
            serve(group)
    except VeilgraphError as error:
        return report_failure(error, int(report))
    return 0


def _meet(meeting: str) -> tuple[Store, str]:
    """The store, and the address of this machine on which it listens for the others."""
    if meeting.startswith("/"):
        return FileStore(meeting), LOOPBACK
    host, port = meeting.split(":")
    return reached_store(host, int(port)), address_towards(host, int(port))


if __name__ == "__main__":
    run_and_leave(lambda: main(sys.argv[1:]))
