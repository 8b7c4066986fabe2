"""A party that hangs: the others wait no longer than the job's timeout, and the error names who fell silent."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests import nightly
from tests.faults.host import Host, Order
from tests.faults.runs import LABEL_HOLDER, OTHER, assert_undisturbed, graph_job
from tests.paradigms.cutting import alive, lines_of, wait_for
from veilgraph.core.types import SERVER, PartyId
from veilgraph.runtime.launch.processes import GRACE_S

TIMEOUT_S = 10.0
BUSY_S = 12.0
"""For a machine with other things to do."""


@pytest.mark.parametrize(("role", "epochs"), [(SERVER, 3), (OTHER, 0), (LABEL_HOLDER, 5)])
@nightly
def test_a_stopped_party(tmp_path: Path, host: Host, role: PartyId, epochs: int) -> None:
    settings, run = graph_job(tmp_path / "data", {"timeout_s": TIMEOUT_S}), tmp_path / "run"
    pids = host.begin(Order(settings, run))
    wait_for(lambda: lines_of(run) >= epochs, 30, f"{epochs} epochs")
    os.kill(pids[role], signal.SIGSTOP)
    stopped = time.monotonic()
    outcome = host.end()
    assert time.monotonic() - stopped < TIMEOUT_S + GRACE_S + BUSY_S
    assert (outcome.error, outcome.code) == ("LinkTimeout", "silent")
    assert outcome.message.startswith(f"nothing more came from {role}; ")
    assert f"{TIMEOUT_S:g} s" in outcome.message
    assert "\n" not in outcome.message
    assert outcome.silent == [role]
    assert all(error in {"LinkTimeout", "PeerFailed"} for error, _ in outcome.failures.values())
    assert alive(pids) == []
    assert not (run / "summary.json").exists()
    outcome = host.do(Order(None, run))
    assert outcome.error == "", outcome
    assert_undisturbed(run, tmp_path / "undisturbed")


def test_a_pause_below_the_timeout_disturbs_nothing(tmp_path: Path, host: Host) -> None:
    run = tmp_path / "run"
    pids = host.begin(Order(graph_job(tmp_path / "data"), run))
    for role in pids:
        os.kill(pids[role], signal.SIGSTOP)
        time.sleep(0.1)
        os.kill(pids[role], signal.SIGCONT)
    outcome = host.end()
    assert outcome.error == "", outcome
    assert_undisturbed(run, tmp_path / "undisturbed")
