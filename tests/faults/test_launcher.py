"""The command itself, with a worker that is killed while it starts as a user's do; and the launcher killed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests import nightly
from tests.faults.host import Host, Order
from tests.faults.runs import OTHER, ROLES, assert_undisturbed, graph_job
from tests.paradigms.cutting import alive, lines_of, one_thread, wait_for, workers
from veilgraph.protocol.job import write_job
from veilgraph.runtime.launch.jobs import resume

NOTICE_S = 15.0
LONG = 150


@nightly
def test_a_worker_killed_in_its_start(tmp_path: Path) -> None:
    job, run = tmp_path / "job.yaml", tmp_path / "run"
    write_job(graph_job(tmp_path / "data"), job)
    delay_s = random.Random(3).uniform(0, 1)
    command = [sys.executable, "-m", "veilgraph", "train", str(job), "--out", str(run), "--processes"]
    with subprocess.Popen(
        command, env=one_thread(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as training:
        wait_for(lambda: len(workers(run)) == len(ROLES), 120, "the workers")
        pids = workers(run)
        time.sleep(delay_s)
        os.kill(pids[OTHER], signal.SIGKILL)
        killed = time.monotonic()
        _, messages = training.communicate(timeout=60)
    assert time.monotonic() - killed < NOTICE_S
    assert training.returncode == 1
    assert alive(pids) == []
    (said,) = [line for line in messages.splitlines() if "error" in line]
    assert f"error: {OTHER}'s process was killed by signal 9 (Killed)" in said
    resume(run)
    assert_undisturbed(run, tmp_path / "undisturbed")


@nightly
def test_a_killed_launcher(tmp_path: Path) -> None:
    run, host = tmp_path / "run", Host()
    try:
        pids = host.begin(Order(graph_job(tmp_path / "data", {"train": {"epochs": LONG}}), run))
        wait_for(lambda: lines_of(run) >= 2, 30, "two epochs")
    finally:
        host.close()
    wait_for(lambda: not alive(pids), NOTICE_S, "the workers to end by themselves")
    assert lines_of(run) < LONG
    resume(run)
    assert_undisturbed(run, tmp_path / "undisturbed")
