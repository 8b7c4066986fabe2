"""Killing one party of a run, and what must become of the others."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from tests.faults.host import Host, Order, Outcome
from tests.paradigms.cutting import alive
from veilgraph.core.types import PartyId
from veilgraph.runtime.launch.processes import PROCESS_DIED

KILLS = int(os.environ.get("VEILGRAPH_KILLS", "1"))


OWN_END_S = 30.0
"""The launcher here waits so long for the others: who has not ended by itself by then was not told."""


NOTICE_S = 15.0
"""Within this the others must end by themselves, on a busy machine too; below a second when there is nothing else."""


@dataclass(frozen=True)
class Moment:
    """When a party is killed: so many seconds after the start, or in the middle of its n-th write."""

    seconds: float = 0.0
    write: int = 0


def run_and_kill(host: Host, order: Order, role: PartyId, when: Moment) -> Outcome:
    dies = (role, when.write) if when.write else None
    pids = host.begin(Order(order.settings, order.run, grace_s=OWN_END_S, dies=dies))
    if not when.write and not host.ends_within(when.seconds):
        with suppress(ProcessLookupError):
            os.kill(pids[role], signal.SIGKILL)
    outcome = host.end()
    assert alive(pids) == []
    return outcome


def assert_stopped_cleanly(outcome: Outcome, role: PartyId) -> None:
    """The launcher names who died; every other party ended by itself, soon, with an error of its own that says why."""
    assert (outcome.error, outcome.code) == ("PeerFailed", PROCESS_DIED)
    assert outcome.message.startswith(f"{role}'s process was killed by signal 9 (Killed)")
    assert "\n" not in outcome.message
    assert outcome.silent == []
    assert outcome.notice_s < NOTICE_S
    for party, (error, message) in outcome.failures.items():
        assert party == role or error == "PeerFailed", (party, error, message)
