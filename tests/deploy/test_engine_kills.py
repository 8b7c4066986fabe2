"""Every role's job process killed at random moments over the real engine: minutes, so at night only.

``VEILGRAPH_ENGINE_KILLS`` says how many kills per role; 0 or nothing skips.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.deploy.consortium import HOLDERS, JOB, Consortium, job, job_processes
from tests.deploy.processes import processes_of
from tests.deploy.same_here import assert_same_here
from veilgraph.core.errors import LinkError, VeilgraphError
from veilgraph.core.types import SERVER
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.store.records import verify

KILLS = int(os.environ.get("VEILGRAPH_ENGINE_KILLS", "0"))
pytestmark = pytest.mark.skipif(not KILLS, reason="VEILGRAPH_ENGINE_KILLS is not set: a kill takes about a minute")
LATEST_S = 20.0


def submitted(
    consortium: Consortium, settings: JobSettings, retries: int = 3
) -> tuple[threading.Thread, list[VeilgraphError]]:
    """Submits in a thread; what fails in spite of ``retries`` is in the list."""
    failures: list[VeilgraphError] = []

    def work() -> None:
        try:
            consortium.submit(settings, retries=retries)
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


def await_checkpoint(consortium: Consortium, settings: JobSettings) -> None:
    checkpoints = consortium.network.runs("A") / settings.name / "parties" / "A" / "checkpoints"
    deadline = time.monotonic() + 120
    while not list(checkpoints.glob("epoch-*.safetensors")):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("party", [HOLDERS[1], SERVER])
def test_a_site_that_is_killed_and_started_again_is_survived(
    consortium: Consortium, tmp_path: Path, party: str
) -> None:
    """The site with all its processes, as when its machine loses power in the middle of a training."""
    settings = job(f"power-{party}", train={**JOB["train"], "epochs": 400})
    submitting, failures = submitted(consortium, settings)
    await_checkpoint(consortium, settings)
    kill(consortium, party, processes_of(consortium.network.kits[party]))
    time.sleep(3)
    consortium.join(party)
    submitting.join(600)
    assert not submitting.is_alive()
    assert not failures, str(failures[0])
    assert_same_here(consortium.network, settings, HOLDERS, tmp_path)


def kill(consortium: Consortium, party: str, pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    site = consortium.network.sites[party]
    if site.pid in pids:
        site.wait()


@pytest.mark.parametrize("party", [HOLDERS[1], SERVER])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_site_whose_jobs_outlive_it_is_survived(
    consortium: Consortium, tmp_path: Path, party: str, number: signal.Signals
) -> None:
    """Its job's process is left alive. The next start is never beside it."""
    settings = job(f"{number.name.lower()}-{party}", train={**JOB["train"], "epochs": 400})
    submitting, failures = submitted(consortium, settings)
    await_checkpoint(consortium, settings)
    join = consortium.network.sites[party].pid
    old = set(processes_of(consortium.network.kits[party]))
    assert job_processes(consortium, party)
    kill(consortium, party, [join], number)
    time.sleep(1)
    consortium.join(party)
    submitting.join(400)
    assert not submitting.is_alive(), f"hangs after a kill of {party}"
    assert not failures, str(failures[0])
    assert not (old - {join}) & processes_of(consortium.network.kits[party]).keys()
    assert_same_here(consortium.network, settings, HOLDERS, tmp_path)
    for holder in HOLDERS:
        assert verify(consortium.run(holder, settings.name))


@pytest.mark.parametrize(("retries", "within_s"), [(0, 45), (3, 200)])
def test_a_site_that_is_killed_and_not_started_again_is_named(
    consortium: Consortium, retries: int, within_s: float
) -> None:
    party = HOLDERS[1]
    settings = job(f"gone-{retries}", train={**JOB["train"], "epochs": 400})
    submitting, failures = submitted(consortium, settings, retries)
    await_checkpoint(consortium, settings)
    kit = consortium.network.kits[party]
    try:
        kill(consortium, party, [consortium.network.sites[party].pid])
        submitting.join(within_s)
        assert not submitting.is_alive()
        (failure,) = failures
        assert isinstance(failure, LinkError)
        assert failure.party == party
        assert not processes_of(kit), "nothing of it is left"
    finally:
        consortium.join(party)
        submitting.join(300)
