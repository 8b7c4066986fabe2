"""A job's process that tells its site that it has begun does not do so for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import nightly

SITE = """
import subprocess, sys, time
from veilgraph.deploy.guard import orphans
orphans.name_site()
job = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
print(job.pid, flush=True)
time.sleep(float(sys.argv[2]))
"""
JOB = """
import time
from veilgraph.deploy.guard import orphans
{before}
with orphans.ends_with_site({grace_s}, 0.05):
    time.sleep({tells_s})
time.sleep(60)
"""
ENGINE = """
import sys
from types import ModuleType, SimpleNamespace
from veilgraph.deploy.guard import hooks, orphans, program

def tell():
    import logging
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
    from nvflare.fuel.f3.message import Message
    from nvflare.private.fed.client.client_app_runner import ClientAppRunner
    runner = ClientAppRunner.__new__(ClientAppRunner)
    runner.logger = logging.getLogger()
    nobody = Message({{MessageHeaderKey.RETURN_CODE: ReturnCode.COMM_ERROR}}, None)
    cell = SimpleNamespace(core_cell=SimpleNamespace(get_fqcn=lambda: "B.job"), send_request=lambda **said: nobody)
    runner.notify_job_status(SimpleNamespace(cell=cell), "job", 2, retry_timeout=60)

orphans.limit_job.__defaults__ = (0.2, 0.05)
{before}
program.read_roles = lambda startup: SimpleNamespace(dealer=None)
program.runpy = SimpleNamespace(run_module=lambda *name, **how: tell())
hooks.install = lambda **rules: None
sys.argv = ["program", "holder-job", "-m", "kit"]
program.main()
"""
TELLS = JOB.format(before="", grace_s=0.2, tells_s=60)
LOOKS_LATE = JOB.format(before="time.sleep(1)", grace_s=0.2, tells_s=60)
HAS_TOLD = JOB.format(before="", grace_s=0.2, tells_s=0)
TELLS_IN_TIME = JOB.format(before="", grace_s=60, tells_s=1)


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


@pytest.fixture
def started() -> Iterator[list[int]]:
    """Processes of jobs, which end with the test."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def site_of(job: str, pids: list[int], lives_s: float = 60.0) -> tuple[subprocess.Popen[bytes], int]:
    site = subprocess.Popen([sys.executable, "-c", SITE, job, str(lives_s)], stdout=subprocess.PIPE)
    assert site.stdout is not None
    with site.stdout as told:
        pids.append(int(told.readline()))
    return site, pids[-1]


@pytest.mark.parametrize("job", [TELLS, LOOKS_LATE], ids=["before it tells", "before it looks"])
def test_a_job_that_tells_a_site_that_is_gone_ends(job: str, started: list[int]) -> None:
    site, pid = site_of(job, started)
    site.kill()
    site.wait()
    assert ends(pid)


@pytest.mark.parametrize("job", [HAS_TOLD, TELLS_IN_TIME], ids=["that has told it", "that tells it in time"])
def test_another_one_goes_on(job: str, started: list[int]) -> None:
    site, pid = site_of(job, started)
    time.sleep(0.5)
    site.kill()
    site.wait()
    assert not ends(pid, 1.5)


def test_what_the_engine_tells_for_ever_ends_with_the_site(started: list[int]) -> None:
    """FLARE's own method, with a cell that reaches nobody, in a process begun as a site begins it."""
    pytest.importorskip("nvflare", reason="the extra veilgraph[deploy] is not installed")
    site, pid = site_of(ENGINE.format(before=""), started)
    site.kill()
    site.wait()
    assert ends(pid, 60)


@nightly
def test_and_without_the_limit_never(started: list[int]) -> None:
    pytest.importorskip("nvflare", reason="the extra veilgraph[deploy] is not installed")
    site, pid = site_of(ENGINE.format(before="orphans.limit_job = lambda: None"), started)
    site.kill()
    site.wait()
    assert not ends(pid, 8)
