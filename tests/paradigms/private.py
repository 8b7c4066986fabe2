"""Private jobs, and what was paid, sent and kept for them."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.paradigms.runs import saved_job
from tests.roles.federation import Settings
from veilgraph.core.errors import BudgetSpent, ConfigError, PeerFailed
from veilgraph.core.types import SERVER, PartyId
from veilgraph.paradigms.vertical.settings import plan
from veilgraph.privacy import accountant
from veilgraph.privacy.event import AggregationEvent, Event, GaussianEvent
from veilgraph.privacy.plan import Plan
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.store.run_directory import RunDirectory

LABEL_HOLDER, OTHER = "A", "B"


LAST: Settings = {"train": {"select_by": "last"}}


NOISE, DELTA = 2.0, 1e-4


_COMPOSED = {"gaussian": GaussianEvent, "aggregation": AggregationEvent, "joint-gaussian": GaussianEvent}
_TO_SERVER = {
    "embedding": "embeddings",
    "masked": "embeddings",
    "gradient": "gradients",
    "masked_gradient": "gradients",
}


INDIVIDUAL: Settings = {"model": {"initial": {"method": "individual"}}}
"""Where a ledger counts what its holder sends, and nothing of the others."""


def private_job(folder: Path, *changes: Settings, holders: int = 2, **privacy: Any) -> JobSettings:
    return saved_job(
        folder,
        LAST,
        INDIVIDUAL,
        {"privacy": {"unit": "row", "schedule": "every-step", "delta": DELTA} | privacy},
        *changes,
        holders=holders,
    )


def planned(settings: JobSettings, party: PartyId) -> Plan:
    found = plan(settings, party)
    assert found is not None
    return found


def ledger(run: Path, party: PartyId) -> Path:
    return run / "parties" / party / "ledger.jsonl"


def entries(run: Path, party: PartyId) -> list[dict[str, Any]]:
    """A ledger's lines but the first; a line that a kill left unfinished is none."""
    path = ledger(run, party)
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    return [json.loads(line) for line in lines[1:] if line.endswith(b"\n")]


def paid(run: Path, party: PartyId) -> Counter[str]:
    """Channel → releases that the party's ledger counts."""
    found = Counter[str]()
    for entry in entries(run, party):
        found[entry["channel"]] += entry["count"]
    return found


def spent_total(run: Path, party: PartyId) -> float:
    """Total ε of the ledger, composed anew from what its lines say; its own last total must say the same."""
    found = entries(run, party)
    events: dict[Event, int] = {}
    for entry in found:
        event = entry["event"]
        release = _COMPOSED[event["kind"]](event["noise_multiplier"], event["neighbours"], event["unit"])
        events[release] = events.get(release, 0) + entry["count"]
    total = accountant.total(events, DELTA)
    assert total == pytest.approx(found[-1]["total"] if found else 0.0, rel=1e-12)
    return total


def cost(releases: int, noise: float = NOISE) -> float:
    return accountant.total({GaussianEvent(noise): releases}, DELTA)


def sent(run: Path, party: PartyId, work: str = "traffic.json") -> Counter[str]:
    """Channel → messages with rows that went to the server in the newest session, as the party recorded them."""
    return _counted(run, party, work, "sent", SERVER)


def arrived(run: Path, party: PartyId) -> Counter[str]:
    """The same, as the server recorded them."""
    return _counted(run, SERVER, "traffic.json", "received", party)


def _counted(run: Path, party: PartyId, work: str, direction: str, peer: PartyId) -> Counter[str]:
    path = run / "parties" / party / work
    found = Counter[str]()
    for row in json.loads(path.read_text()) if path.is_file() else ():
        if row["direction"] == direction and row["peer"] == peer and row["kind"] in _TO_SERVER:
            found[_TO_SERVER[row["kind"]]] += row["messages"]
    return found


def kinds_sent(run: Path, party: PartyId, work: str = "traffic.json") -> set[str]:
    rows = json.loads((run / "parties" / party / work).read_text())
    return {row["kind"] for row in rows if row["direction"] == "sent"}


@contextmanager
def errors_of_all() -> Iterator[dict[PartyId, BaseException]]:
    """What every party fails with, not the first cause alone."""
    found: dict[PartyId, BaseException] = {}
    original = jobs.__dict__["run_simulated"]

    def run(of: RunDirectory, party: PartyId, *rest: Any) -> None:
        try:
            original(of, party, *rest)
        except BaseException as error:
            found[party] = error
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "run_simulated", run)
        yield found


def refused_by_all(do: Callable[[], object], message: str) -> str:
    """Every party ends, with the same refusal on one line or, where it was slower, because another has ended so."""
    with errors_of_all() as errors, pytest.raises((ConfigError, BudgetSpent), match=message) as caught:
        do()
    refusal = str(caught.value)
    assert {LABEL_HOLDER, OTHER, SERVER} <= errors.keys()
    assert all(str(error) == refusal or isinstance(error, PeerFailed) for error in errors.values())
    assert "\n" not in refusal
    return refusal
