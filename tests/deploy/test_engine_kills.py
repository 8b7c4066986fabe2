"""Every role's job process killed at random moments over the real engine: minutes, so at night only.

``VEILGRAPH_ENGINE_KILLS`` says how many kills per role; 0 or nothing skips.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.deploy.consortium import HOLDERS, JOB, Consortium, job, job_processes
from tests.deploy.processes import processes_of
from tests.deploy.same_here import assert_same_here
from veilgraph.core.errors import VeilgraphError
from veilgraph.core.types import SERVER
from veilgraph.deploy.demo import join_site
from veilgraph.protocol.job import JobSettings

KILLS = int(os.environ.get("VEILGRAPH_ENGINE_KILLS", "0"))
pytestmark = pytest.mark.skipif(not KILLS, reason="VEILGRAPH_ENGINE_KILLS is not set: a kill takes about a minute")
LATEST_S = 20.0


def submitted(consortium: Consortium, settings: JobSettings) -> tuple[threading.Thread, list[VeilgraphError]]:
    """Submits in a thread; what fails in spite of ``retries`` is in the list."""
    failures: list[VeilgraphError] = []

    def work() -> None:
        try:
            consortium.submit(settings, retries=3)
        except VeilgraphError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, failures


@pytest.mark.parametrize("seed", range(max(1, KILLS)))
@pytest.mark.parametrize("party", [SERVER, *HOLDERS[:2]])
def test_a_kill_at_any_moment_is_survived(consortium: Consortium, tmp_path: Path, party: str, seed: int) -> None:
    """From before the job's process exists to after the last epoch; ``retries`` goes on by itself."""
    delay_s = random.Random(f"{party}/{seed}").uniform(3.0, LATEST_S)
    settings = job(f"{party}-{seed}", train={**JOB["train"], "epochs": 60})
    submitting, failures = submitted(consortium, settings)
    time.sleep(delay_s)
    killed = job_processes(consortium, party)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    submitting.join(400)
    assert not submitting.is_alive(), f"hangs after a kill of {party} at {delay_s:.1f} s"
    assert not failures, f"{failures[0]} after a kill of {party} at {delay_s:.1f} s ({len(killed)} processes)"
    assert_same_here(consortium.network, settings, HOLDERS, tmp_path)


@pytest.mark.parametrize("party", [HOLDERS[1], SERVER])
def test_a_site_that_is_killed_and_started_again_is_survived(
    consortium: Consortium, tmp_path: Path, party: str
) -> None:
    """The site with all its processes, as when its machine loses power in the middle of a training."""
    settings = job(f"power-{party}", train={**JOB["train"], "epochs": 400})
    submitting, failures = submitted(consortium, settings)
    checkpoints = consortium.network.runs("A") / settings.name / "parties" / "A" / "checkpoints"
    deadline = time.monotonic() + 120
    while not list(checkpoints.glob("epoch-*.safetensors")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    kit = consortium.network.kits[party]
    site = consortium.network.sites[party]
    for pid in [site.pid, *processes_of(kit)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    site.wait()
    time.sleep(3)
    party_file = None if party == SERVER else consortium.out / "tables" / party / "party.yaml"
    consortium.network.sites[party] = join_site(kit, party_file, 1)
    submitting.join(600)
    assert not submitting.is_alive()
    assert not failures, str(failures[0])
    assert_same_here(consortium.network, settings, HOLDERS, tmp_path)
