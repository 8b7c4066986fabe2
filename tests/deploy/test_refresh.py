"""``net submit --work refresh``: a prediction in place of the one before, and of a session that answers from it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from tests.errors import refused
from veilgraph.cli import app
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.types import PartyId
from veilgraph.deploy import control
from veilgraph.deploy import submit as submitting
from veilgraph.deploy.failures import Failure
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.progress import STATES, JobReport
from veilgraph.deploy.roles import Roles
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.site import SiteWork

ROLES = Roles(project="fraud", server="localhost", holders=("bank", "shop"))
SITES = ("bank", "shop", ROLES.deals)
KIT = cast("Kit", SimpleNamespace(roles=ROLES))
DATA = {"holders": ["bank", "shop"], "label_holder": "bank"}
ONLINE = parse_job({"name": "fraud", "paradigm": "sealed", "data": DATA, "named_nodes": 9, "online": True})
CLOSED = parse_job({"name": "fraud", "data": DATA})


_PREDICTS = 3


class Sites:
    """Sites that run jobs until they are stopped, unless deaf; a prediction is refused, or runs for some polls."""

    def __init__(self, *running: tuple[str, str], failing: bool = False, deaf: bool = False) -> None:
        self.asked: list[tuple[str, str]] = []
        self._failing, self._deaf = failing, deaf
        self._polls = 0
        self._jobs = [
            JobReport(job=f"{number}" * 32, name=name, work=work, state="running")
            for number, (name, work) in enumerate(running)
        ]

    def jobs(self, sites: Sequence[PartyId], _within_s: float) -> dict[PartyId, list[JobReport]]:
        found = dict.fromkeys(sites, self._jobs)
        self._polls += any(each.work == "predict" for each in self._jobs)
        if self._polls == _PREDICTS:
            done = {"state": "done"}
            self._jobs = [each.model_copy(update=done) if each.work == "predict" else each for each in self._jobs]
        return found

    def ask(self, sites: Sequence[PartyId], _within_s: float, **what: Any) -> dict[PartyId, Any]:
        assert tuple(sites) == SITES
        self.asked.append((what["ask"], what.get("work") or what["about"][:1]))
        refuses = "consent.jobs=1 is used up" if self._failing and what.get("work") == "predict" else ""
        if what["ask"] == "stop" and not self._deaf:
            self._jobs = [each for each in self._jobs if each.job != what["about"]]
        if what["ask"] == "run" and not refuses:
            assert all(each.state == "done" for each in self._jobs if each.work == "predict"), "one after the other"
            self._jobs.append(JobReport(job=what["id"], name="fraud", work=what["work"], state="running"))
        return dict.fromkeys(sites, SimpleNamespace(refuses=refuses))


def refreshed(sites: Sites, settings: JobSettings, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    monkeypatch.setattr(submitting, "administrator", lambda *_: nullcontext(sites))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    submitting.refresh(KIT, settings, wait=False, report=lambda _: None)
    return sites.asked


def test_a_session_that_answers_is_stopped_and_a_new_one_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this job alone; a training of it, and sessions of others, go on."""
    sites = Sites(("fraud", "answer"), ("other", "answer"), ("fraud", "train"))
    assert refreshed(sites, ONLINE, monkeypatch) == [("stop", "0"), ("run", "predict"), ("run", "answer")]


def test_without_a_session_one_begins_and_jobs_that_open_at_once_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refreshed(Sites(), ONLINE, monkeypatch) == [("run", "predict"), ("run", "answer")]
    sites = Sites(("other", "answer"))
    assert refreshed(sites, CLOSED, monkeypatch) == [("run", "predict")]


def test_where_the_prediction_is_refused_the_one_before_is_answered_from(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = Sites(("fraud", "answer"), failing=True)
    with pytest.raises(RunError, match=r"consent\.jobs=1 is used up"):
        refreshed(sites, ONLINE, monkeypatch)
    stop, predict, refusal, *more = sites.asked
    assert (stop, predict, refusal[0]) == (("stop", "0"), ("run", "predict"), "stop")
    assert more == [("run", "answer")]
    sites = Sites(failing=True)
    with pytest.raises(RunError, match=r"consent\.jobs=1 is used up"):
        refreshed(sites, ONLINE, monkeypatch)
    assert ("run", "answer") not in sites.asked, "none was there before"


@pytest.mark.parametrize("work", ["answer", "predict", "train"])
def test_beside_a_session_that_answers_no_other_job_of_the_run_begins(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sites would wait for the run, and fail with words in their own logs alone."""
    sites = Sites(("other", "answer"), ("fraud", "answer"))
    monkeypatch.setattr(submitting, "administrator", lambda *_: nullcontext(sites))

    def submitted() -> None:
        submitting.submit(KIT, ONLINE, cast("SiteWork", work), resume=False, wait=False, report=lambda _: None)

    with refused(RunError, code="in-use") as error:
        submitted()
    assert f"job {'1' * 32} answers from this run" in str(error.value)
    assert sites.asked == []
    ended = {"state": "stopped"}
    known = sites.jobs
    monkeypatch.setattr(
        sites,
        "jobs",
        lambda *of: {name: [each.model_copy(update=ended) for each in told] for name, told in known(*of).items()},
    )
    submitted()
    assert sites.asked == [("run", work)]


def test_who_submits_is_told_who_deals_in_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr(submitting, "administrator", lambda *_: nullcontext(Sites()))
    for settings, roles in ((ONLINE, str(ROLES)), (CLOSED, "localhost relays and is party server")):
        job_id = submitting.submit(KIT, settings, "train", resume=False, wait=False, report=said.append)
        assert said.pop() == f"submitted fraud (train) as {job_id}; {roles}"


def test_a_lost_session_goes_on_beside_what_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sites, lost = Sites(), Failure(kind="PeerFailed", lost="shop")
    told: list[dict[str, Any]] = [{}, {"state": "failed", "failure": lost}, {"state": "running"}, {"state": "done"}]

    def jobs(names: Sequence[PartyId], _within_s: float) -> dict[PartyId, list[JobReport]]:
        said = told.pop(0)
        return {name: [each.model_copy(update=said) for each in of] for name, of in known(names, 0.0).items()}

    known = sites.jobs
    monkeypatch.setattr(sites, "jobs", jobs)
    monkeypatch.setattr(submitting, "administrator", lambda *_: nullcontext(sites))
    submitting.submit(KIT, ONLINE, "answer", resume=False, wait=True, report=lambda _: None, retries=1)
    assert sites.asked == [("run", "answer")] * 2
    assert told == []


def test_a_session_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 15))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    sites = Sites(("fraud", "answer"), deaf=True)
    with pytest.raises(RunError, match=r"^0{32} still answers 40 s after"):
        refreshed(sites, ONLINE, monkeypatch)
    assert sites.asked == [("stop", "0")], "once"


def test_a_job_that_names_files_and_a_refresh_that_goes_on_are_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"^data\.holders: a submitted job names its holders"):
        submitting.refresh(KIT, parse_job({"data": {"dataset": "synthetic"}}), wait=True, report=lambda _: None)
    job = tmp_path / "job.yaml"
    job.write_text("name: fraud\ndata: {holders: [bank, shop], label_holder: bank}\n")
    words = ["net", "submit", str(job), "--kit", str(tmp_path), "--work", "refresh", "--resume"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 2
    assert "--resume" in found.output


@pytest.mark.parametrize(("work", "way"), [("train", "--resume"), ("predict", "submit it again"), ("answer", "again")])
def test_who_waits_for_what_is_stopped_reads_how_to_go_on(
    work: SiteWork, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh is not gone on with."""
    sites, ends = Sites(), {"state": "stopped"}
    monkeypatch.setattr(submitting, "administrator", lambda *_: nullcontext(sites))
    jobs = Sites.jobs
    stopped = lambda *_: {name: [each.model_copy(update=ends) for each in of] for name, of in jobs(*_).items()}  # noqa: E731
    monkeypatch.setattr(Sites, "jobs", stopped)
    with pytest.raises(RunError) as found:
        submitting.submit(KIT, ONLINE, work, resume=False, wait=True, report=lambda _: None)
    assert way in str(found.value)


def test_stop_is_of_the_newest_job_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of answers runs on while other jobs are submitted, and end."""
    sites = Sites(("fraud", "answer"))
    monkeypatch.setattr(control, "administrator", lambda *_: nullcontext(sites))
    ended = [JobReport(job="a" * 32, name="fraud", work="train", state=state, submitted=9) for state in STATES[1:]]
    jobs = Sites.jobs
    monkeypatch.setattr(Sites, "jobs", lambda *_: {name: [*of, *ended] for name, of in jobs(*_).items()})
    assert control.stop(KIT, None) == "0" * 32
    with pytest.raises(RunError):
        control.stop(KIT, None)
