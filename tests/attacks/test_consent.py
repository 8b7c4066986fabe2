"""An administrator, or another holder, who wants more of a holder than it consented to.

Whole parties run over memory links, each with folders of its own as in a kit; B is attacked.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import Tensor

from tests import nightly
from tests.errors import refused
from veilgraph.core.errors import ConfigError, PeerFailed, ProtocolError, RunError
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.collectives import tensor_text, text_tensor
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink
from veilgraph.link.wrapper import Wrapper
from veilgraph.mpc.intersect import align_holder
from veilgraph.protocol import agreement, aligning
from veilgraph.protocol import consent as consents
from veilgraph.protocol.consent import (
    REQUESTS,
    Consent,
    Counted,
    JobRequest,
    Journal,
    Waiting,
    all_waiting,
    answer,
    count,
    utc_now,
)
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.party_settings import ConsentSettings
from veilgraph.runtime.launch.site import SiteWork, take_part

Wrap = Callable[[Link], Link]

DATA: dict[str, Any] = {"holders": ["A", "B"], "label_holder": "A"}
NETWORK: dict[str, Any] = {"model": {"dim": 2}, "train": {"epochs": 1, "patience": None}, "timeout_s": 30}

ASK: dict[str, Any] = {"approval": "ask", "approval_wait_s": 60}


def job(name: str = "job", **changes: Any) -> JobSettings:
    return parse_job({"name": name, "data": DATA, **NETWORK, **changes})


@dataclass
class Sites:
    """A, B and the server, each with its own folders."""

    folder: Path
    submitted: int = 0
    sent: dict[PartyId, RecordedLink] = field(default_factory=dict)
    ends: dict[PartyId, BaseException] = field(default_factory=dict)

    def consent(self, party: PartyId = "B") -> Path:
        return self.folder / party / "consent"

    def says(self, party: PartyId = "B", **changes: Any) -> None:
        """Changes the party file."""
        path = self.folder / party / "party.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))

    def submit(
        self,
        settings: JobSettings,
        work: SiteWork = "align",
        *,
        resume: bool = False,
        job_id: str | None = None,
        wraps: dict[PartyId, Wrap] | None = None,
    ) -> None:
        """Runs a job at all parties; raises the cause where one fails."""
        self.submitted += 1
        self.ends = {}
        hub = MemoryHub(["A", "B", SERVER], settings.timeout_s)

        def take(party: PartyId) -> None:
            self.sent[party] = recorder = RecordedLink(hub.link(party))
            link = (wraps or {}).get(party, lambda link: link)(recorder)
            runs, file = self.folder / party / "runs", self.folder / party / "party.yaml"
            options: dict[str, Any] = {
                "party_file": None if party == SERVER else file,
                "resume": resume,
                "job_id": job_id or f"submitted-{self.submitted}",
                "consent": self.consent(party),
                "learning": self.folder / party / "learning",
            }
            try:
                take_part(runs, settings, party, work, link, recorder, **options)
            except BaseException as error:  # noqa: BLE001  (raised again below)
                self.ends[party] = error
                if "refuses the job" not in str(error):  # which every party finds out by itself
                    hub.fail(party, error)

        threads = [threading.Thread(target=take, args=(party,), name=f"party {party}") for party in ("A", "B", SERVER)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        causes = sorted(self.ends.values(), key=lambda error: isinstance(error, PeerFailed))
        if causes:
            raise causes[0]

    def kinds(self, party: PartyId = "B") -> set[Kind]:
        """What the party sent in the newest job."""
        return {row.kind for row in self.sent[party].traffic() if row.direction == "sent"}

    def count(self, what: Counted = "job") -> int:
        return count(Journal(self.consent()).entries(), what)


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    for party, ids in (("A", "abcdef"), ("B", "abcdeg")):
        folder = tmp_path / party
        folder.mkdir()
        rows = [f"{name},{row},{row % 2},{'train' if row < 4 else 'val'}" for row, name in enumerate(ids)]
        (folder / "nodes.csv").write_text("\n".join(["id,x,y,split", *rows]) + "\n")
        nodes: dict[str, Any] = {"file": "nodes.csv", "id": "id", "features": [{"columns": "x"}]}
        if party == "A":
            nodes |= {"label": {"column": "y", "classes": ["0", "1"]}, "split": {"column": "split"}}
        (folder / "party.yaml").write_text(yaml.safe_dump({"party": party, "nodes": nodes, "seed": "job"}))
    return Sites(tmp_path)


def refused_by_all(sites: Sites, says: str, *args: Any, **options: Any) -> None:
    """Every party names the same reason, and B sent nothing but that."""
    with pytest.raises(ConfigError, match=says):
        sites.submit(*args, **options)
    assert {party: str(end) for party, end in sites.ends.items()} == dict.fromkeys(
        ("A", "B", SERVER), str(sites.ends["B"])
    )
    assert sites.kinds() == {Kind.HELLO}


# How many


@pytest.mark.cases(1)
@pytest.mark.parametrize("limits", ["on", "off"])
def test_one_job_more_than_consented_to(sites: Sites, limits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sites.says(consent={"jobs": 3})
    sites.submit(job(), "train")
    sites.submit(job(), "predict")
    sites.submit(job("other"))
    if limits == "off":  # the control: what refuses is the count
        monkeypatch.setattr(consents, "limit_reached", lambda *_: "")
        sites.submit(job("more"))
        return
    for work, name in (("predict", "job"), ("align", "more"), ("align", "other"), ("train", "other")):
        refused_by_all(sites, r"^B refuses the job: consent\.jobs=3 is used up: raise it", job(name), work)
    assert not (sites.folder / "B" / "runs" / "more").exists()
    assert sites.count() == 3
    sites.says(consent={"jobs": 4})
    sites.submit(job("other"), "train")


def test_predictions_count_as_alignments_where_a_holder_has_new_ids(sites: Sites) -> None:
    """Without them no id can become common, whatever else has changed: nothing is told that consent counts."""

    def adds(party: PartyId, row: str) -> None:
        with (sites.folder / party / "nodes.csv").open("a") as file:
            file.write(row)

    def predicts() -> bool:
        sites.submit(job(), "predict")
        return Kind.BLINDED_IDS in sites.kinds()

    sites.says(consent={"alignments": 3})
    sites.submit(job(), "train")
    nodes = sites.folder / "B" / "nodes.csv"
    nodes.write_text(nodes.read_text().replace("a,0,", "a,5,"))
    assert not predicts()
    assert sites.count("alignment") == 1
    for counted, party in enumerate("AB", start=2):
        adds(party, "new,1,1,\n")
        assert predicts()
        assert sites.count("alignment") == counted
    nodes.write_text(nodes.read_text().replace("b,1,", "b,5,"))
    assert not predicts()
    adds("A", "more,1,1,\n")
    refused_by_all(sites, r"^B refuses the job: consent\.alignments=3 is used up", job(), "predict")
    assert sites.count("alignment") == 3


def test_what_the_limits_refuse_leaves_no_trace(sites: Sites) -> None:
    """A journal that every refused job made longer could be made to fill the disk."""
    refused_by_all(sites, r"B refuses the job: limits\.max_rounds=1", job(**{**NETWORK, "model": {"rounds": 2}}))
    assert Journal(sites.consent()).entries() == []


def test_none_at_all(sites: Sites) -> None:
    sites.says(consent={"jobs_per_day": 0})
    refused_by_all(sites, r"consent\.jobs_per_day=0 is used up", job())


def test_only_the_holder_counts_and_only_itself(sites: Sites) -> None:
    sites.says("A", consent={"jobs": 1})
    sites.submit(job())
    assert sites.count() == 1
    assert not sites.consent(SERVER).exists()
    with refused(ConfigError, code="refused", key="consent.jobs", value=1, party="A"):
        sites.submit(job("other"))
    assert sites.count() == 1, "what A refused was nothing of B's"


class Killed(BaseException):
    """Stands for a signal: whoever is killed does nothing more."""


class Altered(Wrapper):
    """A link that does something else with each message before it is sent."""

    def __init__(self, link: Link, alter: Callable[[Tag, Tensor], Tensor]) -> None:
        super().__init__(link)
        self.alter = alter

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        super().send(to, tag, self.alter(tag, tensor))


def altered(party: PartyId, alter: Callable[[Tag, Tensor], Tensor]) -> dict[PartyId, Wrap]:
    return {party: lambda link: Altered(link, alter)}


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While the event is set, nothing reaches B's journal, as a dead process writes nothing."""
    dead, append = threading.Event(), consents.Journal.append

    def alive(held: Any, entry: Any) -> None:
        if dead.is_set() and threading.current_thread().name == "party B":
            raise RunError("dead")
        append(held, entry)

    with monkeypatch.context() as patched:
        patched.setattr(consents.Journal, "append", alive)
        yield dead


@nightly
def test_a_process_killed_at_any_moment_was_counted(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = 0
    with dying(monkeypatch) as dead:
        while True:
            dead.clear()
            left = itertools.count(killed, -1)

            def kill(tag: Tag, tensor: Tensor, left: Iterator[int] = left) -> Tensor:
                """In place of this message the process dies, and leaves nothing behind but its files."""
                if next(left) == 0:
                    dead.set()
                    raise Killed
                return tensor

            try:
                sites.submit(job(f"job{killed}"), wraps=altered("B", kill))
            except Killed:
                killed += 1
                assert sites.count() == killed, "a job for nothing"
                continue
            break
    assert killed > 10
    assert sites.count() == killed + 1
    sites.says(consent={"jobs": killed + 1})
    refused_by_all(sites, r"consent\.jobs=\d+ is used up", job("more"))


def test_what_was_counted_is_on_the_disk_before_the_first_message(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, send = os.fsync, RecordedLink.send

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        if Path(f"/proc/self/fd/{descriptor}").readlink() == sites.consent() / "jobs.jsonl":
            order.append("journal")

    def sent(link: RecordedLink, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        if link.party == "B":
            order.append(str(tag))
        send(link, to, tag, tensor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(RecordedLink, "send", sent)
    sites.submit(job())
    assert order[0] == "journal"
    ids = next(place for place, what in enumerate(order) if what.startswith("blinded_ids"))
    assert order[:ids].count("journal") == 2, "the alignment was not counted before the ids left"


PROCESS = """
import sys, time
from pathlib import Path
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.consent import ConsentSettings
from veilgraph.protocol.consent import JobRequest
from veilgraph.protocol.consent import Consent
folder, limit = Path(sys.argv[1]), ConsentSettings(approval="ask")
request = JobRequest(job="killed", work="train", resume=False, settings=parse_job({}))
consent = Consent(limit, folder, request, folder / "runs")
with consent.job() as refuses:
    assert not refuses and consent.answer(0) is None
    print("waits", flush=True)
    time.sleep(600)
"""


def test_a_process_that_is_really_killed_has_taken_its_job_and_waits_no_more(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", PROCESS, str(tmp_path / "consent")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"waits\n"
        (shown,) = all_waiting(tmp_path / "consent")
        assert shown.request.job == "killed"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert count(Journal(tmp_path / "consent").entries(), "job") == 1
    assert (tmp_path / "consent" / REQUESTS / "killed.json").exists()
    assert all_waiting(tmp_path / "consent") == []


def request(settings: JobSettings | None = None, **changes: Any) -> JobRequest:
    return JobRequest(**{"job": "1", "work": "train", "resume": False, "settings": settings or job(), **changes})


def consent_to(folder: Path, asked: JobRequest | None = None, **settings: Any) -> Consent:
    return Consent(ConsentSettings(**settings), folder / "consent", asked or request(), folder / "runs")


@pytest.mark.parametrize("lock", ["held", "not held"])
def test_two_jobs_at_once_for_one_place(tmp_path: Path, lock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    both, used_up = threading.Barrier(2), consents.limit_reached

    def judged(*args: Any) -> str:
        found = used_up(*args)
        with suppress(threading.BrokenBarrierError):  # the other comes here only if nobody holds the journal
            both.wait(0.2 if lock == "held" else 20)
        return found

    monkeypatch.setattr(consents, "limit_reached", judged)
    if lock == "not held":
        monkeypatch.setattr("veilgraph.protocol.consent.fcntl.flock", lambda *_: None)

    def take(name: str) -> str:
        with consent_to(tmp_path, request(job=name), jobs=1).job() as refuses:
            return refuses

    with ThreadPoolExecutor(2) as pool:
        refusals = list(pool.map(take, "12"))
    assert refusals.count("") == (1 if lock == "held" else 2)


def test_a_clock_that_is_set_back_gives_no_new_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = utc_now()

    def at(moment: datetime) -> str:
        monkeypatch.setattr(consents, "utc_now", lambda: moment)
        with consent_to(tmp_path, request(job=f"{moment.timestamp():.0f}"), jobs_per_day=1).job() as refuses:
            return refuses

    assert at(now) == ""
    for hours in (-24 * 365, -25, -1, 1, 23.99):
        assert at(now + timedelta(hours=hours)).startswith("consent.jobs_per_day=1 is used up"), hours
    assert at(now + timedelta(hours=24.01)) == ""


@pytest.mark.parametrize("damage", ["torn", "garbage", "emptied"])
def test_a_damaged_journal_gives_nothing_back(tmp_path: Path, damage: str) -> None:
    for name in "12":
        with consent_to(tmp_path, request(job=name)).job():
            pass
    path = tmp_path / "consent" / "jobs.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 2
    path.write_bytes({"torn": lines[0] + lines[1][:30], "garbage": b"\0\0\n" + lines[1], "emptied": b"\0" * 9}[damage])
    limit = 1 if damage == "emptied" else 2
    with consent_to(tmp_path, request(job="3"), jobs=limit).job() as refuses:
        assert refuses == f"consent.jobs={limit} is used up: raise it, or ask for no more"
    with consent_to(tmp_path, request(job="4"), alignments_per_day=1).alignment() as refuses:
        assert refuses == "consent.alignments_per_day=1 is used up: wait for at most 24 hours, or raise it"
    with consent_to(tmp_path, request(job="5"), jobs=limit + 1).job() as refuses:
        assert refuses == "", "what follows a torn line is on a line of its own"
    assert count(Journal(tmp_path / "consent").entries(), "job") == limit + 1


def test_a_journal_that_is_gone_is_noticed_where_there_are_runs(sites: Sites) -> None:
    sites.says(consent={"jobs": 2})
    sites.submit(job())
    (sites.consent() / "jobs.jsonl").unlink()
    with pytest.raises(RunError, match=r"jobs\.jsonl is missing and there are runs in .*: touch "):
        sites.submit(job("other"))
    (sites.consent() / "jobs.jsonl").touch(0o600)
    sites.submit(job("other"))


def test_others_of_the_machine_read_nothing(sites: Sites) -> None:
    before = os.umask(0)
    try:
        sites.says(consent=ASK)
        with submitted(sites, job()) as (shown, _):
            modes = {path.name: path.stat().st_mode & 0o777 for path in sites.consent().rglob("*")}
            answer(sites.consent(), shown, approved=True)
    finally:
        os.umask(before)
    assert modes == {"jobs.jsonl": 0o600, REQUESTS: 0o700, f"{shown.request.job}.json": 0o600}
    assert sites.consent().stat().st_mode & 0o777 == 0o700
    (sites.consent() / "jobs.jsonl").chmod(0o644)
    with pytest.raises(RunError, match=r"jobs\.jsonl is open to other accounts; close it: chmod go= "):
        sites.submit(job("other"))


# Going on with a run


def test_a_run_is_gone_on_with_so_often_and_then_it_counts(tmp_path: Path) -> None:
    def take(name: str, **changes: Any) -> str:
        with consent_to(tmp_path, request(job=name, **changes), jobs=2, resumes=2).job() as refuses:
            return refuses

    assert take("0", work="align") == ""
    assert take("1", resume=True) == "", "an alignment is no training that could be gone on with: this is a job"
    assert count(Journal(tmp_path / "consent").entries(), "job") == 2
    shutil.rmtree(tmp_path / "consent")
    assert take("1") == ""
    assert [take(name, resume=True) for name in "234"] == ["", "", ""], "two that go on, and one that is a job"
    assert count(Journal(tmp_path / "consent").entries(), "job") == 2
    assert [take(name, resume=True) for name in "567"][:2] == ["", ""]
    for name, changes in (
        ("a", {"resume": True}),
        ("b", {"resume": False}),
        ("c", {"resume": True, "work": "predict"}),
        ("d", {"resume": True, "work": "align"}),
        ("e", {"resume": True, "settings": job("other")}),
    ):
        assert take(name, **changes).startswith("consent.jobs=2 is used up"), changes


# Asking a person


@contextmanager
def submitted(sites: Sites, *args: Any, **options: Any) -> Iterator[tuple[Waiting, Future[Any]]]:
    """A job that has come as far as the question at B."""
    with ThreadPoolExecutor(1) as pool:
        ends = pool.submit(sites.submit, *args, **options)
        deadline = time.monotonic() + 30
        while not (found := all_waiting(sites.consent())):
            assert time.monotonic() < deadline
            assert not ends.done(), ends.exception()
            time.sleep(0.01)
        yield found[0], ends


def test_nothing_but_the_agreement_is_sent_before_a_person_approves(sites: Sites) -> None:
    sites.says(consent=ASK)
    with submitted(sites, job(), "train") as (shown, ends):
        assert shown.request.settings == job()
        assert shown.request.work == "train"
        for party in ("A", "B", SERVER):
            assert sites.kinds(party) == {Kind.HELLO}
            assert not (sites.folder / party / "runs" / "job").exists()
        answer(sites.consent(), shown, approved=True)
        ends.result(60)
    assert Kind.BLINDED_IDS in sites.kinds()
    assert all_waiting(sites.consent()) == []
    assert sites.count() == 1


def test_a_person_refuses_and_all_know_why(sites: Sites) -> None:
    sites.says(consent={**ASK, "jobs": 1})
    with submitted(sites, job()) as (shown, ends):
        answer(sites.consent(), shown, approved=False, reason="not before May")
        with pytest.raises(ConfigError, match=r"^B refuses the job: a person there decided so: not before May$"):
            ends.result(60)
    assert {str(end) for end in sites.ends.values()} == {str(sites.ends["B"])}
    assert sites.kinds() == {Kind.HELLO}
    assert sites.count() == 0, "nothing was sent, so it is not counted"
    for reason in ("x" * 201, "two\nlines"):
        with refused(ConfigError, key="reason"):
            answer(sites.consent(), shown, approved=False, reason=reason)


def test_nobody_is_asked_about_a_job_that_is_refused_anyway(sites: Sites) -> None:
    sites.says("A", consent={"jobs": 0})
    sites.says("B", consent=ASK)
    with refused(ConfigError, code="refused", key="consent.jobs", value=0, party="A"):
        sites.submit(job())
    assert not (sites.consent() / REQUESTS).exists()
    assert sites.count() == 0


def unanswered(sites: Sites, *args: Any, **options: Any) -> None:
    sites.says(consent={**ASK, "approval_wait_s": 0.3})
    refused_by_all(sites, r"B refuses the job: consent\.approval=ask and nobody approved it within", *args, **options)


def approve(sites: Sites, settings: JobSettings, job_id: str, work: SiteWork = "align") -> Waiting:
    sites.says(consent=ASK)
    with submitted(sites, settings, work, job_id=job_id) as (shown, ends):
        answer(sites.consent(), shown, approved=True)
        ends.result(60)
    return shown


def test_an_approval_is_of_one_job_once(sites: Sites) -> None:
    shown = approve(sites, job(), "first")
    unanswered(sites, job(), job_id="second")
    unanswered(sites, job(), job_id="first")
    answer(sites.consent(), shown, approved=True)  # said again, when another waits under the same name
    unanswered(sites, job(), job_id="first")
    with submitted(sites, job("seen"), job_id="seen") as (shown, ends):
        answer(sites.consent(), replace(shown, fingerprint="00" * 32), approved=True)  # something else was shown
        with refused(ConfigError, code="refused", key="consent.approval", value="ask", party="B"):
            ends.result(60)
    path = sites.consent() / "jobs.jsonl"
    approved = next(line for line in path.read_text().splitlines() if '"approved"' in line)
    for name in ("third", "first"):
        with path.open("a") as file:  # as if the answer to one could be copied to another
            file.write(json.dumps(json.loads(approved) | {"job": name}) + "\n")
        unanswered(sites, job(), job_id=name)


@pytest.mark.cases(1)
@pytest.mark.parametrize("names", ["checked", "not checked"])
def test_settings_swapped_between_the_look_and_the_answer(
    sites: Sites, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine ends the job that a person looks at and starts another under its id."""
    monkeypatch.setattr(agreement, "TELL_EVERY_S", 0.1)
    sites.says(consent=ASK)
    stop = threading.Event()

    class Stopped(Wrapper):
        def receive(self, sender: PartyId, tag: Tag) -> Tensor:
            if stop.is_set():
                raise Killed
            return super().receive(sender, tag)

    with submitted(sites, job(), job_id="swapped", wraps={"B": Stopped}) as (shown, ends):
        stop.set()
        with pytest.raises(Killed):
            ends.result(30)
    other = job(**{**NETWORK, "model": {"dim": 3}})
    if names == "not checked":  # the control: the id is all that a person repeats
        held = consents.Journal.held

        @contextmanager
        def forgets_settings(self: consents.Journal) -> Iterator[list[consents.Entry]]:
            with held(self) as entries:
                yield [each.model_copy(update={"settings": ""}) for each in entries]

        monkeypatch.setattr(consents.Journal, "held", forgets_settings)
        with submitted(sites, other, job_id="swapped") as (swapped, ends):
            assert swapped.request.job == shown.request.job
            answer(sites.consent(), shown, approved=True)  # of what was looked at: no answer to what waits now
            assert not ends.done()
            answer(sites.consent(), swapped, approved=True)
            ends.result(30)
        return
    sites.says(consent={**ASK, "approval_wait_s": 0.3})
    for swapped_for, work, resume in ((other, "align", False), (job(), "train", False), (job(), "align", True)):
        says = "job swapped was here with other settings"
        refused_by_all(sites, says, swapped_for, work, resume=resume, job_id="swapped")


def test_an_approved_run_is_gone_on_with_unasked_and_no_other_is(tmp_path: Path) -> None:
    def take(name: str, *, approved: bool = False, **changes: Any) -> bool:
        """Whether a person is asked."""
        consent = consent_to(tmp_path, request(job=name, **changes), approval="ask", resumes=2)
        with suppress(Killed), consent.job() as refuses:
            assert refuses == ""
            if not consent.asks:
                return False
            assert consent.answer(0) is None
            if approved:
                answer(tmp_path / "consent", all_waiting(tmp_path / "consent")[0], approved=True)
                assert consent.answer(0) == ""
        return True

    assert take("0", approved=True, work="align")
    assert take("1", resume=True), "what was approved is an alignment"
    assert take("2", resume=True), "the first was never approved"
    assert take("3", approved=True)
    assert not take("4", resume=True)
    assert take("5", resume=True, settings=job(seed=7)), "other settings"
    assert take("6", resume=True, work="predict"), "other work"
    assert take("7"), "from the start"
    assert take("8", resume=True), "the newest of these settings is that which was not approved"
    assert take("9", approved=True)
    assert [take(name, resume=True) for name in "abc"] == [False, False, True]


def test_a_job_that_names_a_file_elsewhere(sites: Sites) -> None:
    with refused(ConfigError, key="job", value="../../party"):
        sites.submit(job(), job_id="../../party")


# Alignments


def test_one_alignment_more_than_consented_to(sites: Sites) -> None:
    sites.says(consent={"alignments": 1})
    sites.submit(job())
    sites.submit(job(), "train")
    assert Kind.BLINDED_IDS not in sites.kinds(), "the alignment is kept"
    sites.submit(job(), "predict")
    assert (sites.count(), sites.count("alignment")) == (3, 1)
    nodes = sites.folder / "A" / "nodes.csv"
    nodes.write_text(nodes.read_text().replace("f,5", "g,5"))  # A tries another id
    refused_by_all(sites, r"^B refuses the job: consent\.alignments=1 is used up", job(), "predict")
    stated: list[str] = []

    def seen(tag: Tag, tensor: Tensor) -> Tensor:
        if tag.kind == Kind.HELLO and tag.round == aligning._TABLES:
            stated.append(tensor_text(tensor))
        return tensor

    says = r"^B refuses the job: consent\.alignments=1 is used up"
    refused_by_all(sites, says, job("other"), wraps=altered("B", seen))
    assert {json.loads(text)["ids"] for text in stated} == {0}, "who refuses does not say how many it has"
    assert sites.count("alignment") == 1


def brings_more(sites: Sites, ids: str) -> None:
    nodes = sites.folder / "A" / "nodes.csv"
    nodes.write_text(nodes.read_text() + "".join(f"{name},1,1,\n" for name in ids))


def test_a_peer_that_brings_too_many_ids(sites: Sites) -> None:
    sites.says(limits={"max_peer_ids": 6})
    sites.submit(job("few"))
    brings_more(sites, "ghi")
    for most in (6, 8):
        sites.says(limits={"max_peer_ids": most})
        says = (
            rf"^B refuses the job: limits\.max_peer_ids={most} and A brings 9: let it bring fewer, or raise the limit"
        )
        refused_by_all(sites, says, job(f"many{most}"))
    assert sites.count("alignment") == 1, "no id has left"
    sites.says(limits={"max_peer_ids": 9})
    sites.says("A", limits={"max_peer_ids": 6})  # of others': its own are as many as it likes
    sites.submit(job("many"))


@pytest.mark.parametrize("held_to_it", [True, False])
def test_a_peer_that_states_few_ids_and_brings_many(
    sites: Sites, *, held_to_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites.says(limits={"max_peer_ids": 6})
    brings_more(sites, "ghi")

    def lie(tag: Tag, tensor: Tensor) -> Tensor:
        if tag.kind == Kind.HELLO and tag.round == aligning._TABLES:
            return text_tensor(tensor_text(tensor).replace('"ids":9', '"ids":6'))
        return tensor

    wraps = altered("A", lie)
    if not held_to_it:  # the control: what is stated alone binds nobody
        monkeypatch.setattr(aligning, "align_holder", lambda link, holders, ids, **_: align_holder(link, holders, ids))
        sites.submit(job(), wraps=wraps)
        return
    with refused(ProtocolError, code="too-many-ids", key="A", value=9, party="A"):
        sites.submit(job(), wraps=wraps)
    (row,) = (row for row in sites.sent["B"].traffic() if row.kind == Kind.BLINDED_IDS and row.direction == "sent")
    assert row.messages == 1, "B's own, and none of A's"
