"""Asking the sites of a job beforehand, without an engine: at the server, and at an administrator."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.commands import usage_error, veilgraph
from tests.errors import refused

pytest.importorskip("nvflare", reason="the extra veilgraph[deploy] is not installed")

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from tests.deploy.asked import job
from tests.deploy.course import JOB_ID
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.types import SERVER
from veilgraph.deploy import checking, control, engine
from veilgraph.deploy.answers import ANSWER
from veilgraph.deploy.checking import SiteCheck, check_sites, judged
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.presence import LOST_S, Presence
from veilgraph.deploy.progress import SiteJobs
from veilgraph.deploy.project import ProjectSettings, provision
from veilgraph.deploy.submission import CHECK, encode_request
from veilgraph.deploy.submit import write_submission
from veilgraph.protocol.agreement import PROTOCOL_VERSION
from veilgraph.runtime.launch.site import Checked

ADMINISTRATOR, DEALER = "ops@example.org", "croupier"
FINE = Checked(version=PROTOCOL_VERSION, job=job().hash())
LINE = "2026-01-01 00:00:00,000 - veilgraph - INFO - answer of {}: {}\n"


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str | None, Mapping[str, Kit]]:
    """Kits of a project without, and of one with, a dealer."""

    def made(dealer: str | None) -> Mapping[str, Kit]:
        project = {"name": "fraud", "server": {"host": "localhost"}, "holders": ["bank", "shop"], "dealer": dealer}
        settings = ProjectSettings.model_validate(project | {"administrators": [ADMINISTRATOR]})
        kits = provision(settings, tmp_path_factory.mktemp("project") / "out")
        return {name: Kit.open(path) for name, path in kits.items()}

    return {dealer: made(dealer) for dealer in (None, DEALER)}


# At the server


class Asking:
    """A check at the server's controller, with an engine made up: ``there`` are the sites that it has a process of."""

    def __init__(self, kit: Kit, monkeypatch: pytest.MonkeyPatch, there: Sequence[str]) -> None:
        kit.prepare(None, kit.runs)
        clients = [SimpleNamespace(name=name) for name in there]
        self.context = SimpleNamespace(
            get_workspace=lambda: SimpleNamespace(get_root_dir=lambda: str(kit.path)),
            get_prop=lambda _: JOB_ID,
            get_engine=lambda: SimpleNamespace(get_clients=lambda: clients),
        )
        self.controller = engine.ServerController(encode_request(job().model_dump(mode="json"), CHECK, resume=False))
        self.targets: list[str] = []
        self.replies: dict[str, object] = {}
        monkeypatch.setattr(engine, "installed", lambda: True)
        monkeypatch.setattr(engine, "ABORT_POLL_S", 0.001)
        monkeypatch.setattr(engine, "run_part", lambda *_, **__: pytest.fail("it took part"))
        monkeypatch.setattr(self.controller, "broadcast", self._broadcast)
        monkeypatch.setattr(self.controller, "system_panic", lambda why, _: pytest.fail(why))

    def _broadcast(self, task: object, context: object, targets: list[str], min_responses: int) -> None:
        self.targets = targets
        assert min_responses == len(targets)
        for name, reply in self.replies.items():
            self.controller._finished(SimpleNamespace(client=SimpleNamespace(name=name), result=reply), None)

    def run(self, *, aborted: bool = False) -> None:
        looks = iter(range(200))

        class Stopped:
            @property
            def triggered(self) -> bool:
                return aborted or (next(looks, None) is None and pytest.fail("it waits for nobody"))

        self.controller.control_flow(Stopped(), self.context)


def reply(checked: Checked) -> object:
    return make_reply(ReturnCode.OK, headers={ANSWER: checked.model_dump_json()})


@pytest.mark.parametrize("dealer", [None, DEALER])
def test_the_servers_log_has_the_answer_of_each_site_by_the_name_that_it_is_certified_by(
    projects: Mapping[str | None, Mapping[str, Kit]],
    dealer: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sites = ["bank", "shop", *([] if dealer is None else [dealer])]
    asking = Asking(projects[dealer][SERVER], monkeypatch, [*sites, "telecom"])
    asking.replies = {
        "bank": reply(FINE.model_copy(update={"refuses": "limits.max_rounds=1"})),
        "shop": make_reply(ReturnCode.EXECUTION_EXCEPTION),  # as an older release, which knows no check
    } | ({} if dealer is None else {dealer: reply(FINE)})
    with caplog.at_level(logging.INFO, "veilgraph"):
        asking.run()
    assert asking.targets == sites
    said = dict(line.removeprefix("answer of ").split(": ", 1) for line in caplog.messages if "answer of" in line)
    assert json.loads(said["bank"])["refuses"] == "limits.max_rounds=1"
    assert json.loads(said["shop"])["unsaid"] is True
    assert json.loads(said[dealer or SERVER]) == FINE.model_dump()
    assert set(said) == {*sites, dealer or SERVER}


def test_nobody_waits_for_a_site_that_is_not_there_or_for_one_that_is_stopped(
    projects: Mapping[str | None, Mapping[str, Kit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = Asking(projects[None][SERVER], monkeypatch, ["shop"])
    asking.replies = {"shop": reply(FINE)}
    asking.run()
    assert asking.targets == ["shop"]
    silent = Asking(projects[None][SERVER], monkeypatch, ["bank", "shop"])
    silent.run(aborted=True)


def test_the_dealer_is_asked_whether_the_name_is_free(
    projects: Mapping[str | None, Mapping[str, Kit]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kit = projects[None][SERVER]
    (kit.runs / "fraud").mkdir(parents=True)
    (kit.runs / "fraud" / "job.yaml").write_text(json.dumps(job(seed=9).model_dump(mode="json")))
    asking = Asking(kit, monkeypatch, [])
    with caplog.at_level(logging.INFO, "veilgraph"):
        asking.run()
    assert "another job is here" in caplog.text


# At an administrator


class Session:
    """The server, as an administrator meets it; time goes on by itself.

    Args:
        heard: site → seconds since it was heard of.
        course: what the job's status and the server's log are, one after the other; the last stays.
    """

    def __init__(self, heard: Mapping[str, float], *course: tuple[str, str]) -> None:
        self.heard, self.course = heard, list(course)
        self.submitted: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.now = 0.0

    def submit_job(self, folder: str) -> str:
        self.submitted.append(json.loads((Path(folder) / "meta.json").read_text()))
        return JOB_ID

    def get_job_meta(self, job_id: str) -> dict[str, str]:
        return {"status": self.course[0][0]}

    def get_job_logs(self, job_id: str) -> dict[str, dict[str, str]]:
        found = self.course[0][1]
        if len(self.course) > 1:
            self.course.pop(0)
        return {"logs": {"server": found}}

    def abort_job(self, job_id: str) -> None:
        self.aborted.append(job_id)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def ask(kit: Kit, session: Session, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, SiteCheck]:
    @contextmanager
    def opened(given: Kit, connect_s: float) -> Iterator[Session]:
        yield session

    monkeypatch.setattr(checking, "admin_session", opened)
    monkeypatch.setattr(
        checking,
        "presences",
        lambda _, roles: [Presence(name, session.heard.get(name)) for name in ("bank", "shop", DEALER)],
    )
    monkeypatch.setattr(checking, "time", SimpleNamespace(monotonic=lambda: session.now, sleep=session.sleep))
    return {each.site: each for each in check_sites(kit, job(), **options)}


def test_every_site_has_a_line(
    projects: Mapping[str | None, Mapping[str, Kit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = projects[None][ADMINISTRATOR]
    said = LINE.format("bank", FINE.model_dump_json())
    both = said + LINE.format(SERVER, FINE.model_copy(update={"refuses": "a run is here"}).model_dump_json())
    session = Session({"bank": 1.0, "shop": LOST_S + 1}, ("RUNNING", ""), ("RUNNING", said), ("RUNNING", both))
    found = ask(kit, session, monkeypatch)
    assert list(found) == ["bank", "shop", "localhost"]
    assert [each.state for each in found.values()] == ["accepts", "not connected", "refuses"]
    assert found["localhost"].says == "a run is here"
    (meta,) = session.submitted
    assert meta["name"] == "fraud (check)"
    assert meta["deploy_map"] == {"veilgraph": ["server", "bank"]}
    assert (meta["min_clients"], meta["mandatory_clients"]) == (1, [])
    assert session.aborted == [], "it ends by itself once all have answered"


def test_a_site_that_does_not_answer_is_not_waited_for_longer_than_was_said(
    projects: Mapping[str | None, Mapping[str, Kit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, there = projects[DEALER][ADMINISTRATOR], {"bank": 1.0, "shop": 1.0, DEALER: 1.0}
    session = Session(there, ("RUNNING", LINE.format("bank", FINE.model_dump_json())))
    found = ask(kit, session, monkeypatch, within_s=7.0)
    assert [each.state for each in found.values()] == ["accepts", "no answer", "no answer"]
    assert "7 s" in found["shop"].says
    assert session.now == pytest.approx(7.0, abs=1.0)
    assert session.aborted == [JOB_ID]


def test_a_check_that_ended_is_not_waited_for(
    projects: Mapping[str | None, Mapping[str, Kit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, there = projects[DEALER][ADMINISTRATOR], {"bank": 1.0, "shop": 1.0}
    one = LINE.format("bank", FINE.model_dump_json())
    session = Session(there, ("FINISHED:ABORTED", one))
    assert [each.state for each in ask(kit, session, monkeypatch).values()] == ["accepts", "no answer", "not connected"]
    assert session.now < 2
    assert session.aborted == []
    with refused(RunError, code="not-asked"):
        ask(kit, Session(there, ("FINISHED:EXECUTION_EXCEPTION", "")), monkeypatch)
    error = ConfigError("work='check' is not one of align, train; submit with the same release")
    log = f"2026-01-01 00:00:00,000 - veilgraph - ERROR - {error.to_json()}\n"
    with refused(ConfigError, key="work", value="check"):
        ask(kit, Session(there, ("FINISHED:EXECUTION_EXCEPTION", log)), monkeypatch)


def test_where_nobody_is_connected_nothing_is_submitted(
    projects: Mapping[str | None, Mapping[str, Kit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session({})
    found = ask(projects[None][ADMINISTRATOR], session, monkeypatch)
    assert [each.state for each in found.values()] == ["not connected", "not connected", "no answer"]
    assert session.submitted == []


@pytest.mark.parametrize(
    ("changes", "state", "said"),
    [
        ({}, "accepts", ""),
        ({"waits": True}, "waits for approval", "net consent"),
        ({"refuses": "limits.max_rounds=1"}, "refuses", "limits.max_rounds=1"),
        ({"refuses": "consent.jobs=0", "waits": True}, "refuses", "consent.jobs=0"),
        ({"unsaid": True}, "refuses", "its operator sees why in its log"),
        ({"version": 7}, "refuses", "speaks protocol version 7"),
        ({"version": PROTOCOL_VERSION + 1, "unsaid": True}, "refuses", "speaks protocol version"),
        ({"job": "0" * 64}, "refuses", "reads other settings"),
        ({"job": ""}, "refuses", "reads other settings"),
    ],
)
def test_what_an_answer_says(changes: dict[str, Any], state: str, said: str) -> None:
    found = judged("bank", job(), FINE.model_copy(update=changes), 1.0)
    assert found.state == state
    assert said in found.says
    assert bool(found.says) == (state != "accepts")


def test_a_check_names_no_run_at_a_site(tmp_path: Path, projects: Mapping[str | None, Mapping[str, Kit]]) -> None:
    """Its name at a site is none of a run's, whose traffic or ledger would be taken for its."""
    submission = write_submission(tmp_path, job(), CHECK, resume=False, sites=["bank"])
    name = json.loads((submission / "meta.json").read_text())["name"]
    kit = projects[DEALER]["bank"]
    for job_id, said in ((JOB_ID, name), (JOB_ID.replace("a", "b"), "../fraud (check)")):
        (kit.path / job_id).mkdir()
        (kit.path / job_id / "meta.json").write_text(json.dumps({"name": said}))
    assert {each.name for each in SiteJobs(kit).now(())} == {"fraud (check)", ""}


def test_the_status_of_a_check_shows_no_answers(
    projects: Mapping[str | None, Mapping[str, Kit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session({}, ("RUNNING", LINE.format("bank", FINE.model_dump_json())))

    @contextmanager
    def opened(*_: object) -> Iterator[Any]:
        listed = [{"job_id": JOB_ID, "job_name": "fraud (check)", "status": "RUNNING", "submit_time": ""}]
        yield SimpleNamespace(list_jobs=lambda: listed, get_job_logs=session.get_job_logs)

    monkeypatch.setattr(control, "admin_session", opened)
    monkeypatch.setattr(control, "presences", lambda *_: ())
    (found,) = control.status(projects[None][ADMINISTRATOR]).jobs
    assert (found.name, found.says) == ("fraud (check)", "")


# The command


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text("name: fraud\ndata: {holders: [bank, shop], label_holder: bank}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("state", ["accepts", "refuses", "waits for approval", "not connected", "no answer"])
def test_the_command_shows_a_line_for_each_and_ends_well_only_if_all_accept(
    projects: Mapping[str | None, Mapping[str, Kit]], job_file: Path, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def asked(kit: Kit, settings: Any, *, within_s: float) -> tuple[SiteCheck, ...]:
        given.append((kit.name, settings.name, within_s))
        return SiteCheck("bank", "accepts"), SiteCheck("shop", state, "because [of] this")

    monkeypatch.setattr(checking, "check_sites", asked)
    kit = projects[None][ADMINISTRATOR].path
    shown = veilgraph("check", job_file, "--net", kit)
    assert shown.exit_code == (state != "accepts")
    assert all(word in shown.stdout for word in ("bank", "shop", state, "because [of] this", "is a valid job"))
    told = veilgraph("check", job_file, "--net", kit, "--json", "--within", "5")
    assert told.exit_code == (state != "accepts")
    found = json.loads(told.stdout)
    assert found["accepted"] == (state == "accepts")
    assert found["sites"][1] == {"site": "shop", "state": state, "says": "because [of] this"}
    assert given == [(ADMINISTRATOR, "fraud", 120.0), (ADMINISTRATOR, "fraud", 5.0)]


def test_the_command_refuses_what_it_would_ignore(
    projects: Mapping[str | None, Mapping[str, Kit]], job_file: Path, tmp_path: Path
) -> None:
    kit = projects[None][ADMINISTRATOR].path
    assert "--net" in usage_error(veilgraph("check", job_file, "--within", "5"))
    assert "--net" in usage_error(veilgraph("check", job_file, "--passphrase-file", tmp_path / "words"))
    other = veilgraph("check", job_file, "--net", projects[None]["bank"].path)
    assert other.exit_code == 1
    assert "give an administrator's" in other.stderr
    for own in ("data={dataset: synthetic, holders: 2}", "data.holders=[bank, stranger]"):
        of_others = veilgraph("check", job_file, "--set", own, "--net", kit)
        assert of_others.exit_code == 1
        assert "error: data.holders" in of_others.stderr
