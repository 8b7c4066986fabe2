"""Runs that are cut off, and their processes."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from veilgraph.core.types import SERVER
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.checkpoints import Checkpoints
from veilgraph.runtime.store.run_directory import PartyStore, Record, RunDirectory


class CutError(Exception):
    """The test's own: nothing of veilgraph may swallow it."""


def cut(*_: Any, **__: Any) -> None:
    """Stands for a call in which a party ends."""
    raise CutError


@contextmanager
def cut_at(epoch: int) -> Iterator[None]:
    """The label holder dies just after it logged ``epoch``."""
    original = RunDirectory.append_metrics

    def append(self: RunDirectory, record: Record) -> None:
        original(self, record)
        if record["epoch"] == epoch:
            raise CutError

    RunDirectory.append_metrics = append  # type: ignore[method-assign]
    try:
        yield
    finally:
        RunDirectory.append_metrics = original  # type: ignore[method-assign]


def cut_run(settings: JobSettings, out: Path, epoch: int) -> Path:
    with cut_at(epoch), pytest.raises(CutError):
        train(settings, out)
    return out


@contextmanager
def as_training_leaves_it() -> Iterator[None]:
    """Runs keep their two newest checkpoints: what a kill after the last epoch leaves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "finish", lambda self, epoch, best, facts: None)
        yield


def epochs_of(run: Path) -> dict[str, list[int]]:
    names = (*RunDirectory.open(run).settings.data.names, SERVER)
    return {party: PartyStore(run / "parties" / party).epochs() for party in names}


def checkpoint(run: Path, party: str, epoch: int) -> Path:
    return run / "parties" / party / "checkpoints" / f"epoch-{epoch:06d}.safetensors"


def lines_of(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.005)


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def workers(run: Path) -> dict[str, int]:
    """Party → process id of the workers of a run on this machine."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            arguments = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            name = (folder / "comm").read_text().strip()
        except OSError:
            continue
        if (
            "veilgraph.runtime.launch.fork_server" in arguments
            and str(run) in arguments
            and not name.startswith("python")
        ):
            found[name] = int(folder.name)
    return found


def alive(pids: dict[str, int]) -> list[str]:
    def running(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    return [party for party, pid in pids.items() if running(pid)]
