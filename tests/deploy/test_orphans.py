"""No process of a site lives on without the one that began it, and the next start waits for those of the last."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.deploy import site_process as starting
from veilgraph.deploy.kit import Kit

PARENT = """
import subprocess, sys, time, os
from veilgraph.deploy import site_process
os.environ.update(site_process.parent_environment())
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""
CHILD = """
import time
from veilgraph.deploy import site_process
{before}
site_process.end_with_parent({grace_s}, 0.05)
time.sleep(60)
"""
ENDS = CHILD.format(before="", grace_s=0.2)
LOOKS_LATE = CHILD.format(before="time.sleep(1)", grace_s=0.2)
HAS_TIME = CHILD.format(before="import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)", grace_s=60)


def is_there(pid: int) -> bool:
    """A zombie, which waits for whoever began it, is not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False


def ends(pid: int, within_s: float = 30.0) -> bool:
    deadline = time.monotonic() + within_s
    while is_there(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@dataclass
class Begun:
    """Processes, which end with the test."""

    parents: list[subprocess.Popen[str]] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)

    def parent_of(self, child: str, **environment: str) -> int:
        """Runs ``child`` as the child of another process; its id."""
        command = [sys.executable, "-c", PARENT, child]
        self.parents.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment))
        return self.said()

    def said(self) -> int:
        """The next process that one of the last parent's descendants says to have begun."""
        told = self.parents[-1].stdout
        assert told is not None  # all of them share it
        self.pids.append(int(told.readline()))
        return self.pids[-1]

    def kill_parent(self) -> None:
        self.parents[-1].kill()
        self.parents[-1].wait()


@pytest.fixture
def begun() -> Iterator[Begun]:
    begun = Begun()
    yield begun
    for pid in begun.pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for parent in begun.parents:
        parent.kill()
        parent.communicate()


@pytest.mark.parametrize("child", [ENDS, LOOKS_LATE], ids=["at once", "before it looks"])
def test_a_process_ends_with_the_one_that_began_it(child: str, begun: Begun) -> None:
    pid = begun.parent_of(child)
    begun.kill_parent()
    assert ends(pid)


def test_while_that_is_there_it_goes_on(begun: Begun) -> None:
    pid = begun.parent_of(ENDS)
    assert not ends(pid, 1.0)


def test_and_it_has_time_to_end_by_itself(begun: Begun) -> None:
    pid = begun.parent_of(HAS_TIME)
    begun.kill_parent()
    assert not ends(pid, 1.0)


# The next start


@pytest.fixture
def kit(provisioned: Path, tmp_path: Path) -> Kit:
    return Kit.open(shutil.copytree(provisioned, tmp_path / "consortium") / "kits" / "bank")


def test_a_start_waits_for_the_jobs_of_the_last(kit: Kit, monkeypatch: pytest.MonkeyPatch, begun: Begun) -> None:
    """The site is gone, its job is there, and holds what it inherited."""
    monkeypatch.setattr(starting, "LAST_S", 0.5)
    told: list[str] = []
    looks: list[int] = []

    def waited(stopped: threading.Event) -> bool:
        return starting.await_earlier_processes(
            kit, stopped, lambda: looks.append(1), lambda line: told.append(str(line))
        )

    assert waited(threading.Event())
    assert not told, "there was no last start"
    with starting.lock_kit(kit) as held:
        job = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[held])
    begun.pids.append(job.pid)
    with refused(RunError, code="last-start", party="bank"):
        waited(threading.Event())
    assert len(told) == 1, "it says once that it waits"
    assert len(looks) > 1, "or the site would seem stuck"
    stopped = threading.Event()
    stopped.set()
    assert not waited(stopped), "one that is told to stop does not wait"
    monkeypatch.setattr(starting, "LAST_S", 60.0)
    ending = threading.Timer(0.5, job.kill)
    ending.start()
    assert waited(threading.Event())
    assert job.wait(10)
