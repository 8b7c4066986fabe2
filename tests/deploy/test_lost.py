"""Who of a consortium is lost: what the server's log says of a job that lost a party, and what the status says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the extra veilgraph[deploy] is not installed")

from nvflare.fuel.flare_api.api_spec import ClientInfo
from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.proto import MetaKey
from nvflare.private.fed.server.training_cmds import TrainingCommandModule

from tests.deploy.course import JOB_ID, Course, logged
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError, LinkError, LinkTimeout, PeerFailed, RunError
from veilgraph.core.types import SERVER
from veilgraph.deploy import engine, submit
from veilgraph.deploy.failures import CONSEQUENCES, LOST, Failure, errors_of
from veilgraph.deploy.guard import commands
from veilgraph.deploy.kit import ITS_LOG_SAYS, Kit
from veilgraph.deploy.presence import LOST_S, Presence, presences
from veilgraph.deploy.project import ProjectSettings, provision
from veilgraph.deploy.roles import Roles
from veilgraph.protocol.job_file import parse_job

ROLES = Roles(project="fraud", server="localhost", holders=("bank", "shop", "telco"))
SITES = ROLES.holders
HERE = ROLES.deals
SECRET = "/srv/secret"
LOST_SHOP = Failure.of(LinkTimeout("shop gave no sign of life for 20 s", party="shop"), "bank")
LOST_BANK = Failure.of(PeerFailed("server cannot receive from bank: bank closed its link", party="bank"), SERVER)
STOPPED = Failure.of(PeerFailed("the job was stopped"), SERVER)


# What the server's log says, where the server deals.


def test_who_lost_a_party_is_not_blamed_for_it() -> None:
    for failures in ({"bank": LOST_SHOP}, {"bank": LOST_SHOP, HERE: LOST_BANK}, {HERE: LOST_BANK, "bank": LOST_SHOP}):
        (error,) = errors_of(failures, SITES, ROLES)
        assert (type(error), error.code, error.party) == (PeerFailed, LOST, "shop")
        assert str(error).startswith("bank lost shop: is its site running?")


def test_what_a_site_did_itself_goes_before_who_misses_whom() -> None:
    """A bug, too, whose kind is none of ours; and a site that says nothing of why has done nothing."""
    for kind in ("DataError", "ZeroDivisionError"):
        (error,) = errors_of({"bank": LOST_SHOP, "telco": Failure(kind=kind)}, SITES, ROLES, "shop")
        assert (error.code, error.party) == (ITS_LOG_SAYS, "telco")
    (error,) = errors_of({"bank": LOST_SHOP, "telco": Failure()}, SITES, ROLES)
    assert error.party == "shop"


def test_a_process_that_ended_without_a_word_is_said_to_have_done_so() -> None:
    (error,) = errors_of({"bank": LOST_SHOP, HERE: STOPPED}, SITES, ROLES, "shop")
    assert (error.code, error.party) == (LOST, "shop")
    assert "its process of the job ended without a word" in str(error)
    (error,) = errors_of({"bank": LOST_SHOP}, SITES, ROLES, "bank")
    assert error.party == "shop", "the bank said something: its process ended after that"
    (error,) = errors_of({"bank": LOST_SHOP}, SITES, ROLES, "stranger")
    assert error.party == "shop"


def test_where_nobody_is_silent_those_that_miss_nobody_are_named() -> None:
    spoke = {"bank": LOST_SHOP, "shop": Failure(kind="PeerFailed"), HERE: LOST_BANK}
    (error,) = errors_of(spoke, SITES, ROLES)
    assert (error.code, error.party) == (ITS_LOG_SAYS, "shop")
    (error,) = errors_of({HERE: STOPPED}, SITES, ROLES)
    assert (type(error), error.code, error.party) == (PeerFailed, ITS_LOG_SAYS, HERE)
    round_ = {"bank": LOST_SHOP, "shop": Failure(kind="PeerFailed", lost="bank")}
    assert [error.party for error in errors_of(round_, SITES, ROLES)] == ["bank", "shop"]


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Kit]:
    project = {"name": "fraud", "server": {"host": HERE}, "holders": ["bank", "shop"], "administrators": ["o@b.org"]}
    made = provision(ProjectSettings.model_validate(project), tmp_path_factory.mktemp("project") / "out")
    return {name: Kit.open(path) for name, path in made.items()}


@pytest.fixture
def course(kits: Mapping[str, Kit], monkeypatch: pytest.MonkeyPatch) -> Course:
    return Course(kits[SERVER], monkeypatch)


def test_the_log_names_the_party_that_was_lost(course: Course, caplog: pytest.LogCaptureFixture) -> None:
    """The bank misses the shop and closes its link, and that is all that the server's own part sees."""
    course.own = lambda stopped: LOST_BANK
    course.run(("bank", LOST_SHOP))
    (error,) = logged(caplog)
    assert (type(error), error.code, error.party) == (PeerFailed, LOST, "shop")
    assert course.panics == [str(error)]
    assert course.unsaid == CONSEQUENCES, "else the bank's closed link would be in the log as well"


def test_a_word_that_comes_a_moment_later_is_waited_for(
    course: Course, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CAUSE_S", 60.0)
    waits = []

    def wait(event: object, seconds: float) -> None:
        waits.append(seconds)
        course.answer("shop", Failure.of(DataError("nodes.csv: line 3"), "shop"))

    monkeypatch.setattr(threading, "Event", lambda: SimpleNamespace(wait=lambda s: wait(None, s), is_set=bool))
    course.own = lambda stopped: LOST_BANK
    course.run(("bank", LOST_SHOP))
    (error,) = logged(caplog)
    assert (type(error), error.party, len(waits)) == (DataError, "shop", 1), "and then for nothing more"


def test_a_part_of_the_server_that_does_not_notice_is_ended(course: Course, caplog: pytest.LogCaptureFixture) -> None:
    """That it was is not why the job ended."""

    def own(stopped):
        deadline = time.monotonic() + 20
        while not stopped():
            assert time.monotonic() < deadline
        return STOPPED

    course.own = own
    course.run(("bank", LOST_SHOP), ("shop", Failure(kind="LinkTimeout", lost="bank")))
    assert [error.party for error in logged(caplog)] == ["bank", "shop"]


def test_what_the_server_did_itself_is_said_at_once(course: Course, caplog: pytest.LogCaptureFixture) -> None:
    """Whole where every party has the same error, and otherwise its kind."""
    agreed = ConfigError("bank refuses the job", code="refused")
    for error, told in ((agreed, str(agreed)), (ConfigError(SECRET), f"{HERE} failed; its own log says why")):
        caplog.clear()
        course.own = lambda stopped, error=error: Failure.of(error, SERVER)
        course.run()
        (found,) = logged(caplog)
        assert (type(found), str(found)) == (ConfigError, told)
        assert course.panics.pop() == told
        assert SECRET not in caplog.text


def test_the_servers_part_says_its_own_errors_and_leaves_losses_to_be_judged(
    course: Course, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(error):
        def installed():
            raise error

        monkeypatch.setattr(engine, "installed", installed)
        return engine.run_part({}, "train", False, course.context, bool, unsaid=CONSEQUENCES)

    assert fails(PeerFailed("bank closed its link", party="bank")).lost == "bank"
    assert logged(caplog) == []
    assert fails(DataError("damaged")).kind == "DataError"
    assert [str(error) for error in logged(caplog)] == ["damaged"]


def test_a_job_that_all_end_well_ends_well(course: Course, caplog: pytest.LogCaptureFixture) -> None:
    course.own = lambda stopped: None
    course.run(("bank", None), ("shop", None))
    assert (course.panics, logged(caplog), course.targets) == ([], [], ["bank", "shop"])


def test_a_job_that_was_stopped_is_said_to_be(course: Course, caplog: pytest.LogCaptureFixture) -> None:
    course.own = lambda stopped: STOPPED if stopped() else None
    course.run(aborted=True)
    (error,) = logged(caplog)
    assert (type(error), error.code, error.party) == (PeerFailed, ITS_LOG_SAYS, HERE)


def test_who_ended_without_a_word_is_named_where_the_server_deals(
    course: Course, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "ended_first", lambda kit, job_id: {JOB_ID: "shop"}[job_id])
    course.own = lambda stopped: STOPPED
    course.run(aborted=True)
    (error,) = logged(caplog)
    assert (error.code, error.party) == (LOST, "shop")


# What the status says.


def session_with(**heard_s: float) -> SimpleNamespace:
    clients = [ClientInfo(name, -ago) for name, ago in heard_s.items()]
    return SimpleNamespace(get_system_info=lambda: SimpleNamespace(client_info=clients))


def test_a_site_that_misses_three_signs_of_life_is_lost() -> None:
    found = presences(session_with(shop=LOST_S + 0.1, bank=LOST_S, stranger=1.0), ROLES)
    assert [(site.name, site.state) for site in found] == [
        ("bank", "connected"),
        ("shop", "lost"),
        ("telco", "not connected"),
    ]
    (_, dealer) = presences(session_with(notary=-0.2), ROLES.model_copy(update={"holders": ("a",), "dealer": "notary"}))
    assert dealer == Presence("notary", 0.0)


def test_a_job_waits_for_who_is_lost() -> None:
    """FLARE would take it: it lists a site for ten minutes after its last sign of life."""
    with refused(LinkError, code="not-connected", party="shop"):
        submit._await_sites(session_with(bank=1.0, shop=40.0), ("bank", "shop"), ROLES, -1.0, anew=False)
    submit._await_sites(session_with(bank=1.0, shop=2.0), ("bank", "shop"), ROLES, -1.0, anew=False)


class Clock:
    """In place of ``time``, for what waits; a site that is there gives a sign of life every ten seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gone: Callable[[float], bool], *course: str) -> None:
        self.now, self.gone, self.course = 0.0, gone, list(course)
        self.aborted, self.submitted = list[str](), list[float]()
        monkeypatch.setattr(submit, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def get_system_info(self) -> Any:
        """The shop's newest sign of life was 8 s before the beginning, the bank's 3 s."""
        signs = [moment for moment in range(-8, int(self.now) + 1, 10) if moment < 0 or not self.gone(moment)]
        return session_with(bank=(self.now + 3) % 10, shop=self.now - signs[-1]).get_system_info()

    def submit_job(self, folder: str) -> str:
        self.submitted.append(self.now)
        return JOB_ID

    def get_job_meta(self, job_id: str) -> dict[str, str]:
        return {"status": self.course.pop(0) if len(self.course) > 1 else self.course[0]}

    def get_job_logs(self, job_id: str) -> dict[str, dict[str, str]]:
        return {"logs": {"server": ""}}

    def abort_job(self, job_id: str) -> None:
        self.aborted.append(job_id)


def test_a_job_that_lost_a_site_is_submitted_again_when_that_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shop was killed 8 s ago, or a moment after that, and counts as connected for 22 s more."""
    clock = Clock(monkeypatch, lambda moment: moment < 45)
    submit._await_sites(clock, ("bank", "shop"), ROLES, 120.0, anew=False)
    assert clock.now == 0, "the attack: FLARE would be given a job of which a site is gone"
    submit._await_sites(clock, ("bank", "shop"), ROLES, 120.0, anew=True)
    assert 52 <= clock.now < 55
    there = Clock(monkeypatch, lambda moment: False)
    submit._await_sites(there, ("bank", "shop"), ROLES, 120.0, anew=True)
    assert there.now < 10, "the others' next sign of life is all that it costs"
    never = Clock(monkeypatch, lambda moment: True)
    with refused(LinkError, code="not-connected", party="shop"):
        submit._await_sites(never, ("bank", "shop"), ROLES, 120.0, anew=True)
    assert 120 <= never.now < 123


def test_a_job_that_cannot_begin_for_want_of_a_site_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLARE would try for 40 minutes. One that waits for others to end is left where it is."""
    gone = Clock(monkeypatch, lambda moment: True, "SUBMITTED")
    with refused(LinkTimeout, code="not-connected", party="shop"):
        submit._await_end(gone, JOB_ID, lambda line: None, ("bank", "shop"), ROLES, 60.0)
    assert gone.aborted == [JOB_ID]
    assert 22 + 60 <= gone.now < 22 + 60 + 8
    returns = Clock(monkeypatch, lambda moment: moment % 100 < 70, *["SUBMITTED"] * 1000, "FINISHED:COMPLETED")
    submit._await_end(returns, JOB_ID, lambda line: None, ("bank", "shop"), ROLES, 60.0)
    assert returns.aborted == []
    runs = Clock(monkeypatch, lambda moment: True, *["RUNNING"] * 1000, "FINISHED:COMPLETED")
    submit._await_end(runs, JOB_ID, lambda line: None, ("bank", "shop"), ROLES, 60.0)
    assert runs.aborted == [], "its parties notice by themselves"


def test_what_a_server_left_as_running_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``retries``; and not before each site has given a sign of life."""
    settings = parse_job({"name": "fraud", "data": {"holders": ["bank", "shop"], "label_holder": "bank"}})
    said: list[str] = []

    def submitted(clock: Clock, retries: int) -> list[float]:
        monkeypatch.setattr(submit, "admin_session", lambda kit, connect_s: nullcontext(clock))
        kit: Any = SimpleNamespace(roles=ROLES)
        submit.submit(kit, settings, "train", resume=False, wait=True, report=said.append, retries=retries)
        return clock.submitted

    course = ("RUNNING", "FINISHED:ABNORMAL", "FINISHED:COMPLETED")
    first, second = submitted(Clock(monkeypatch, lambda moment: moment < 45, *course), 1)
    assert (first, 52 <= second < 55) == (0, True)
    assert any("the server's site was started again" in line for line in said)
    with refused(RunError, code="ended"):
        submitted(Clock(monkeypatch, lambda moment: moment < 45, *course), 0)


def test_the_server_says_how_long_ago_it_heard_of_a_site(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(module: object, conn: Connection, args: list[str]) -> None:
        table = conn.append_table(["client"], name=MetaKey.CLIENTS) if args[1] == "server" else None
        if table is not None:
            meta = {MetaKey.CLIENT_NAME: "shop", MetaKey.CLIENT_LAST_CONNECT_TIME: time.time() - 42}
            table.add_row(["shop"], meta=meta)

    monkeypatch.setattr(TrainingCommandModule, "check_status", check)
    commands.tell_ages()
    said = Connection()
    TrainingCommandModule.check_status(None, said, ["check_status", "server"])
    (told,) = said.buffer.meta[MetaKey.CLIENTS]
    assert told[MetaKey.CLIENT_NAME] == "shop"
    assert -43 < told[MetaKey.CLIENT_LAST_CONNECT_TIME] <= -42
    nobody = Connection()
    TrainingCommandModule.check_status(None, nobody, ["check_status", "client"])
    assert MetaKey.CLIENTS not in nobody.buffer.meta
