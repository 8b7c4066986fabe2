"""Whom a consortium lost: what an administrator is told of a job that lost a party."""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import permutations
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError, LinkTimeout, PeerFailed, ProtocolError
from veilgraph.core.types import SERVER
from veilgraph.deploy import submit as submitting
from veilgraph.deploy.failures import LOST, Failure, errors_of
from veilgraph.deploy.kit import ITS_LOG_SAYS, Kit
from veilgraph.deploy.progress import JobReport, State
from veilgraph.deploy.roles import Roles
from veilgraph.deploy.submit import cause
from veilgraph.protocol.job_file import parse_job

ROLES = Roles(project="fraud", server="localhost", holders=("bank", "shop", "telco"))
SITES = ROLES.holders
HERE = ROLES.deals
LOST_SHOP = Failure.of(LinkTimeout("shop gave no sign of life for 20 s", party="shop"), "bank")
LOST_BANK = Failure.of(PeerFailed("server cannot receive from bank: bank closed its link", party="bank"), SERVER)
STOPPED = Failure.of(PeerFailed("the job was stopped", party=SERVER), SERVER)


FEW = Failure.of(ProtocolError("2 of 3 holders are left, and the sum needs 3", code="too-few"), SERVER)
OWN = Failure(kind="DataError")
BUG = Failure(kind="ZeroDivisionError")
SILENT_SHOP = Failure.of(PeerFailed("shop gave no sign of life for 20 s", code="silent", party="shop"), "bank")
HEARD_STOP = Failure.of(PeerFailed("bank stopped; its own log says why", code="stopped", party="bank"), "shop")
BOTH = [(ITS_LOG_SAYS, "bank"), (ITS_LOG_SAYS, "shop")]
MISSES_NOBODY = Failure(kind="PeerFailed")
GONE_SHOP = Failure(kind="PeerFailed", lost="shop")
LATE = Failure(kind="LinkTimeout", lost="bank")
LOST_NOBODY = Failure(kind="LinkTimeout", lost="stranger")


@pytest.mark.parametrize(
    ("failures", "ended", "told"),
    [
        ({"bank": LOST_SHOP}, None, [(LOST, "shop")]),
        ({"bank": LOST_SHOP, HERE: LOST_BANK}, None, [(LOST, "shop")]),
        ({HERE: LOST_BANK, "bank": LOST_SHOP}, None, [(LOST, "shop")]),
        # What a site did itself goes before who misses whom, a bug too; who says nothing of why has done nothing.
        ({"bank": LOST_SHOP, "telco": OWN}, "shop", [(ITS_LOG_SAYS, "telco")]),
        ({"bank": LOST_SHOP, "telco": BUG}, "shop", [(ITS_LOG_SAYS, "telco")]),
        ({"bank": LOST_SHOP, "telco": Failure()}, None, [(LOST, "shop")]),
        # A process that ended without a word; the bank said something, and the stranger is none of the job's.
        ({"bank": LOST_SHOP, HERE: STOPPED}, "shop", [(LOST, "shop")]),
        ({"bank": LOST_SHOP}, "bank", [(LOST, "shop")]),
        ({"bank": LOST_SHOP}, "stranger", [(LOST, "shop")]),
        # Where nobody is silent, those that miss nobody are named, else all.
        ({"bank": LOST_SHOP, "shop": MISSES_NOBODY, HERE: LOST_BANK}, None, [(ITS_LOG_SAYS, "shop")]),
        ({HERE: STOPPED}, None, [(ITS_LOG_SAYS, HERE)]),
        ({"shop": HEARD_STOP, HERE: LOST_BANK}, None, [(LOST, "bank")]),
        ({"bank": Failure(kind="PeerFailed", lost="shop"), "shop": HEARD_STOP}, None, BOTH),
        # Who came late, when others had waited in vain, lost those that had given it up.
        ({"bank": LOST_SHOP, "shop": HEARD_STOP}, None, [(LOST, "shop")]),
        ({"bank": SILENT_SHOP, "telco": SILENT_SHOP, "shop": HEARD_STOP, HERE: SILENT_SHOP}, None, [(LOST, "shop")]),
        ({"bank": LOST_SHOP, "shop": Failure(kind="LinkTimeout", lost="bank")}, None, [(LOST, "bank"), (LOST, "shop")]),
        ({"bank": LOST_SHOP, "shop": HEARD_STOP, "telco": OWN}, None, [(ITS_LOG_SAYS, "telco")]),
        # Where all miss somebody, whom most miss was lost; a site that was stopped with the rest is not named for it.
        ({"bank": GONE_SHOP, "shop": HEARD_STOP, HERE: GONE_SHOP}, None, [(LOST, "shop")]),
        ({"shop": LATE, "telco": LATE, "bank": LOST_SHOP}, None, [(LOST, "bank")]),
        ({HERE: STOPPED, "bank": GONE_SHOP, "shop": STOPPED}, None, [(ITS_LOG_SAYS, "shop")]),
        # A site may say that it lost what is no site.
        ({"bank": LOST_NOBODY}, None, [(ITS_LOG_SAYS, "bank")]),
        ({"bank": LOST_NOBODY, "shop": HEARD_STOP}, None, [(LOST, "bank")]),
        # A sum that lacks a holder is no cause.
        ({"bank": LOST_SHOP, HERE: FEW}, "shop", [(LOST, "shop")]),
        ({"bank": LOST_SHOP, HERE: FEW, "shop": OWN}, None, [(ITS_LOG_SAYS, "shop")]),
    ],
)
def test_who_was_lost_is_named_and_not_who_noticed(
    failures: dict[str, Failure], ended: str | None, told: list[tuple[str, str]]
) -> None:
    found = errors_of(failures, SITES, ROLES, ended)
    assert [(error.code, error.party) for error in found] == told
    known = {site: word("failed", failure) for site, failure in failures.items()}
    known |= {ended: word("ended")} if ended in SITES and ended not in failures else {}
    error = cause(known, (*SITES, HERE), ROLES)
    assert error is not None
    assert (error.code, error.party) == told[0]
    assert isinstance(error, PeerFailed | LinkTimeout) == ("go on with --resume" in str(error))


def test_a_refusal_is_told_whole_whoever_is_heard_first_and_data_never() -> None:
    refused = ConfigError("shop refuses the job: limits.max_rounds=1", code="refused", party="shop")
    failures = {
        site: Failure.of(refused, party) for site, party in (("bank", "bank"), ("shop", "shop"), (HERE, SERVER))
    }
    for order in permutations(failures):
        error = errors_of({site: failures[site] for site in order}, SITES, ROLES)[0]
        assert (error.code, str(error)) == ("refused", str(refused))
    (error,) = errors_of({"shop": Failure.of(DataError("nodes.csv"), "shop")}, SITES, ROLES)
    assert (type(error), error.code, error.party) == (DataError, ITS_LOG_SAYS, "shop")
    assert "nodes.csv" not in str(error)


def word(state: State, failure: Failure | None = None) -> JobReport:
    return JobReport(job="0" * 32, state=state, failure=failure)


def test_a_job_that_was_stopped_or_ended_well_has_no_cause() -> None:
    assert cause({"bank": word("done"), "shop": word("done")}, ("bank", "shop"), ROLES) is None
    assert cause({"bank": word("stopped", STOPPED), "shop": word("stopped")}, ("bank", "shop"), ROLES) is None


class Unheard:
    """Sites that were connected, of which none answers from then on."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[str, ...], str]] = []

    def jobs(self, sites: Sequence[str], _within_s: float) -> dict[str, list[JobReport]]:
        return {site: [] for site in sites}

    def ask(self, sites: Sequence[str], _within_s: float, **what: Any) -> dict[str, object]:
        self.asked.append((what["ask"], tuple(sites), what.get("id") or what["about"]))
        return {}


def test_sites_whose_answer_is_lost_are_told_to_stop_and_the_job_is_gone_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may have begun it. The administrator's own network was cut, or silent, in the middle."""
    there = Unheard()
    monkeypatch.setattr(submitting, "administrator", lambda *_: nullcontext(there))
    settings = parse_job({"name": "fraud", "data": {"holders": ["bank", "shop"], "label_holder": "bank"}})
    said: list[str] = []
    kit = cast("Kit", SimpleNamespace(roles=ROLES))
    with refused(LinkTimeout, party="bank"):
        submitting.submit(kit, settings, "train", resume=False, wait=True, report=said.append, retries=1)
    (first, stopped), (second, _) = there.asked[:2], there.asked[2:]
    sites = ("bank", "shop", HERE)
    assert first == ("run", sites, stopped[2])
    assert stopped == ("stop", sites, first[2])
    assert second[0] == "run"
    assert second[2] != first[2]
    assert said[0].endswith("go on with --resume; going on")


class Busy(Unheard):
    """Sites that begin a job; what they say of it takes longer at every poll but the last."""

    def __init__(self, takes_s: Sequence[float]) -> None:
        super().__init__()
        self.waited: list[float] = []
        self._takes_s = takes_s

    def ask(self, sites: Sequence[str], _within_s: float, **what: Any) -> dict[str, Any]:
        super().ask(sites, _within_s, **what)
        return dict.fromkeys(sites, SimpleNamespace(refuses=""))

    def jobs(self, sites: Sequence[str], within_s: float) -> dict[str, list[JobReport]]:
        if not self.asked:
            return super().jobs(sites, within_s)
        self.waited.append(within_s)
        late = within_s < self._takes_s[len(self.waited) - 1]
        state: State = "done" if len(self.waited) == len(self._takes_s) else "running"
        job = self.asked[0][2]
        return {site: [JobReport(job=job, state=state)] for site in (sites[:1] if late else sites)}


def test_who_waits_for_a_job_waits_longer_for_busy_sites_and_no_longer_than_it_must(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With ten holders on two cores answers came after three seconds, and an administrator gave its sites up."""
    there = Busy([1, 20, 20, 20, 20, 1, 1])
    monkeypatch.setattr(submitting, "administrator", lambda *_: nullcontext(there))
    monkeypatch.setattr("time.sleep", lambda _: None)
    settings = parse_job({"name": "fraud", "data": {"holders": ["bank", "shop"], "label_holder": "bank"}})
    kit = cast("Kit", SimpleNamespace(roles=ROLES))
    submitting.submit(kit, settings, "train", resume=False, wait=True, report=lambda _: None)
    assert there.waited == [3, 3, 6, 12, 12, 12, 3]
