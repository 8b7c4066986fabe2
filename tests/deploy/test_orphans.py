"""No process of a site lives on without the one that began it, and the next start waits for those of the last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare", reason="the extra veilgraph[deploy] is not installed")

from nvflare.apis.job_def import RunStatus
from nvflare.private.fed.server.job_runner import JobRunner

from tests import nightly
from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.deploy import site_process as starting
from veilgraph.deploy.guard import ended
from veilgraph.deploy.guard.orphans import PARENT_VARIABLE
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.project import ProjectSettings, provision

PARENT = """
import subprocess, sys, time, os
from veilgraph.deploy.guard import orphans
os.environ.update(orphans.begun_here())
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""
CHILD = """
import time
from veilgraph.deploy.guard import orphans
{before}
orphans.end_with_parent({grace_s}, 0.05)
time.sleep(60)
"""
ENDS = CHILD.format(before="", grace_s=0.2)
LOOKS_LATE = CHILD.format(before="time.sleep(1)", grace_s=0.2)
HAS_TIME = CHILD.format(before="", grace_s=60)
PROGRAM = """
import sys
from types import SimpleNamespace
from veilgraph.deploy.guard import commands, hooks, orphans, program, sockets

orphans.GRACE_S = 0.2
{before}
sockets.register = lambda: None
commands.limit_site = lambda kit: None
program.read_roles = lambda startup: SimpleNamespace(dealer=None)
program.runpy = SimpleNamespace(run_module=lambda *name, **how: run())
hooks.install = lambda *rules, **named: None
sys.argv = ["program", "{role}", "-m", "kit"]
program.main()
"""
TELLS = """
def run():
    import logging
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
    from nvflare.fuel.f3.message import Message
    from nvflare.private.fed.client.client_app_runner import ClientAppRunner
    runner = ClientAppRunner.__new__(ClientAppRunner)
    runner.logger = logging.getLogger()
    nobody = Message({MessageHeaderKey.RETURN_CODE: ReturnCode.COMM_ERROR}, None)
    cell = SimpleNamespace(core_cell=SimpleNamespace(get_fqcn=lambda: "B.job"), send_request=lambda **said: nobody)
    runner.notify_job_status(SimpleNamespace(cell=cell), "job", 2, retry_timeout=60)
"""
COMPUTES = """
def run():
    import time
    time.sleep(60)
"""
BEGINS_A_JOB = """
def run():
    import os, time
    from nvflare.utils.process_utils import spawn_process
    told = spawn_process([sys.executable, "-c", os.environ["JOB"]], dict(os.environ))
    print(told.pid, flush=True)
    time.sleep(60)
"""


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


@pytest.mark.parametrize("role", ["holder-job", "server-job"])
def test_a_job_that_computes_for_long_ends_with_its_site(role: str, begun: Begun) -> None:
    pid = begun.parent_of(COMPUTES + PROGRAM.format(before="", role=role))
    begun.kill_parent()
    assert ends(pid, 60)


def test_what_the_engine_tells_for_ever_ends_with_the_site(begun: Begun) -> None:
    """FLARE's own method, with a cell that reaches nobody."""
    pid = begun.parent_of(TELLS + PROGRAM.format(before="", role="holder-job"))
    begun.kill_parent()
    assert ends(pid, 60)


def test_a_site_ends_with_its_join_and_its_jobs_with_it(begun: Begun) -> None:
    """A job that is begun as FLARE begins it: in a session of its own."""
    job = COMPUTES + PROGRAM.format(before="", role="holder-job")
    site = begun.parent_of(BEGINS_A_JOB + PROGRAM.format(before="", role="holder"), JOB=job)
    pid = begun.said()
    assert not ends(pid, 1.5), "each has its own to watch"
    begun.kill_parent()
    assert ends(site, 60)
    assert ends(pid, 60)


@nightly
@pytest.mark.parametrize("does", [TELLS, COMPUTES], ids=["tells", "computes"])
def test_and_without_the_watch_never(does: str, begun: Begun) -> None:
    before = "orphans.end_with_parent = lambda grace_s: None"
    pid = begun.parent_of(does + PROGRAM.format(before=before, role="holder-job"))
    begun.kill_parent()
    assert not ends(pid, 8)


# The next start


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    content = {"name": "fraud", "server": {"host": "localhost"}, "holders": ["bank", "shop"]}
    project = ProjectSettings.model_validate({**content, "administrators": ["ops@example.org"]})
    kit = Kit.open(provision(project, tmp_path / "consortium")["server"])
    kit.prepare(None, kit.runs)
    return kit


def test_a_start_waits_for_the_jobs_of_the_last(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: Begun
) -> None:
    """The site is gone, its job is there. The job is begun as FLARE begins it, and knows of no lock."""
    site = "import sys, os\nfrom types import SimpleNamespace\nJOB = 'import time; time.sleep(60)'\n"
    site += f"os.environ['JOB'] = JOB\nprint(os.environ['{PARENT_VARIABLE}'], flush=True)\n"
    site += BEGINS_A_JOB.replace("time.sleep(60)", "return") + "run()\n"
    (tmp_path / "begins.py").write_text(site, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(starting, "PROGRAM", "begins")
    monkeypatch.setattr(starting, "LAST_S", 0.5)
    told: list[str] = []
    looks: list[int] = []

    def waited(stopped: threading.Event) -> bool:
        return starting.last_ended(kit, stopped, lambda: looks.append(1), lambda line: told.append(str(line)))

    assert waited(threading.Event())
    assert not told, "there was no last start"
    with starting.site_process(kit) as process:
        assert process.wait(60) == 0
    parent, job = map(int, starting.site_log(kit).read_text(encoding="utf-8").splitlines())
    assert parent == os.getpid(), "it knows whose it is"
    begun.pids.append(job)
    assert is_there(job)
    with refused(RunError, code="last-start", party="server"):
        waited(threading.Event())
    assert len(told) == 1, "it says once that it waits"
    assert len(looks) > 1, "or the site would seem stuck"
    with pytest.raises(RunError), starting.site_process(kit):
        pass
    stopped = threading.Event()
    stopped.set()
    assert not waited(stopped), "one that is told to stop does not wait"
    monkeypatch.setattr(starting, "LAST_S", 60.0)
    ending = threading.Timer(0.5, os.kill, (job, signal.SIGKILL))
    ending.start()
    assert waited(threading.Event())
    assert not is_there(job)


# What a killed server left


def test_jobs_that_a_server_left_as_running_have_ended_when_it_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLARE's own runner and what its store is asked for; without this they run for ever."""
    begun = {"left": RunStatus.RUNNING, "deployed": RunStatus.DISPATCHED, "waits": RunStatus.SUBMITTED}
    jobs = dict(begun)

    def by_status(wanted: list[RunStatus], fl_ctx: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(job_id=name) for name, status in jobs.items() if status in wanted]

    manager = SimpleNamespace(
        get_jobs_by_status=by_status, set_status=lambda name, status, fl_ctx: jobs.update({name: status})
    )
    engine = SimpleNamespace(get_component=lambda name: manager)
    fl_ctx = SimpleNamespace(get_engine=lambda: engine)
    runner = JobRunner("nowhere")
    runner.ask_to_stop = True
    engines, at_work = JobRunner.run, []

    def run(runner: JobRunner, fl_ctx: object) -> None:
        engines(runner, fl_ctx)
        at_work.append(dict(jobs))

    monkeypatch.setattr(JobRunner, "run", run)
    runner.run(fl_ctx)
    assert at_work.pop() == jobs == begun, "the attack: FLARE forgets them"
    ended.end_unfinished()
    runner.run(fl_ctx)
    assert at_work == [jobs], "before it does anything else"
    assert runner.client_outcome_wait_timeout == ended.OUTCOME_S, "and it waits for a site's last word no longer"
    over = RunStatus.FINISHED_ABNORMAL
    assert jobs == {"left": over, "deployed": over, "waits": RunStatus.SUBMITTED}
