"""A site's supervisor over a real broker: who may make it start, stop and tell, and what becomes of its processes."""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.link.brokers import PROJECT, Broker, Kits, needs_broker, wait_until
from tests.link.certificates import DAY, NOW
from veilgraph.deploy import supervisor
from veilgraph.deploy.asking import AdministratorConnection
from veilgraph.deploy.broker import REQUESTS
from veilgraph.deploy.progress import Outcome
from veilgraph.deploy.request import Request, expiry
from veilgraph.deploy.supervisor import MAX_RUNNING, Site, Supervisor, subscribe_to_requests
from veilgraph.link.identity import ADMINISTRATOR, Identity, Trust
from veilgraph.link.nats_client import Connection

OPS = "ops@example.org"
SITES = ("bank", "shop", "fl.example.org")
PROGRAM = """
import json, os, signal, sys, time
folder = sys.argv[1]
asked = json.loads(open(os.path.join(folder, "request"), "rb").read().split(b'"job":', 1)[1].split(b',"project"')[0])
print("2026-01-02 10:00:00,000 - veilgraph - INFO - epoch 3 of at most 60", flush=True)
print("2026-01-02 10:00:00,000 - veilgraph - ERROR - a secret of the tables", flush=True)
print("a word of a library, with a secret", flush=True)
def end(outcome):
    with open(os.path.join(folder, "outcome.json.new"), "w") as file:
        json.dump(outcome, file)
    os.rename(os.path.join(folder, "outcome.json.new"), os.path.join(folder, "outcome.json"))
    sys.exit(0)
if asked["does"] == "well":
    end({})
if asked["does"] == "fails":
    end({"failure": {"kind": "DataError", "lost": "", "error": ""}})
if asked["does"] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
if asked["does"] == "stays":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(0.05)
signal.signal(signal.SIGTERM, lambda *_: end({"failure": {"kind": "PeerFailed", "lost": "", "error": ""}}))
while True:
    time.sleep(0.05)
"""

pytestmark = needs_broker


def trusted(identity: Callable[[], Identity]) -> Trust:
    return Trust(identity().roots, identity().revoked)


class Network:
    """A broker, three sites and an administrator."""

    def __init__(self, folder: Path) -> None:
        self.kits = Kits(*SITES, "absent")
        ops = PROJECT.identity(OPS, role=ADMINISTRATOR)
        self.kits.identities[OPS] = self.kits.put(OPS, ops)
        self.broker = Broker(self.kits)
        self.broker.configure()
        self.broker.start()
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM, encoding="utf-8")
        self.supervisors: dict[str, Supervisor] = {}
        self.folders = {name: folder / name / "jobs" for name in SITES}
        for name in SITES:
            identity = partial(self.kits.identities.__getitem__, name)
            trust, last = partial(trusted, identity), name == SITES[2]
            site = Site(name, "cards", self.folders[name], trust, identity, self._command, tells_log=last)
            self.folders[name].parent.mkdir()
            self.supervisors[name] = Supervisor(site, os.environ)
        attending = zip(SITES, self.supervisors.values(), strict=True)
        self.requests = [subscribe_to_requests(each, name, self.broker.brokers(name)) for name, each in attending]
        self.threads = [threading.Thread(target=each.run) for each in self.requests]
        for thread in self.threads:
            thread.start()

    def _command(self, folder: Path) -> list[str]:
        return [sys.executable, str(self.program), str(folder)]

    def close(self) -> None:
        for requests in self.requests:
            requests.close()
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()
        for each in self.supervisors.values():
            each.close()
        self.broker.kill()

    @contextmanager
    def administrator(self) -> Iterator[AdministratorConnection]:
        with closing(
            AdministratorConnection(OPS, "cards", self.kits.identities[OPS], self.broker.brokers(OPS))
        ) as made:
            yield made


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Iterator[Network]:
    made = Network(tmp_path_factory.mktemp("sites"))
    yield made
    made.close()


def run(ops: AdministratorConnection, does: str, sites: tuple[str, ...] = SITES, **more) -> str:
    answers = ops.ask(sites, 20.0, ask="run", job={"does": does}, work="train", **more)
    assert set(answers) == set(sites)
    assert [answer.refuses for answer in answers.values()] == [""] * len(sites)
    (job_id,) = {answer.content["job"] for answer in answers.values()}
    return str(job_id)


def states(ops: AdministratorConnection, job_id: str) -> dict[str, dict[str, Any]]:
    answers = ops.ask(SITES, 20.0, ask="status")
    return {
        site: next((job for job in answer.content["jobs"] if job["job"] == job_id), {})
        for site, answer in answers.items()
    }


def await_states(ops: AdministratorConnection, job_id: str, state: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}

    def holds() -> bool:
        found.update(states(ops, job_id))
        return all(each.get("state") == state for each in found.values())

    wait_until(holds, lambda: str(found), 20.0)
    return found


def test_a_job_is_run_at_all_sites_and_its_end_told(network: Network) -> None:
    with network.administrator() as ops:
        job_id = run(ops, "well")
        found = await_states(ops, job_id, "done")
        assert {name: each["says"] for name, each in found.items()} == {
            "bank": "",
            "shop": "",
            "fl.example.org": "epoch 3 of at most 60",
        }
        failed = await_states(ops, run(ops, "fails"), "failed")
        assert failed["bank"]["failure"]["kind"] == "DataError"
        await_states(ops, run(ops, "dies"), "ended")


def test_a_log_of_who_has_data_stays_there_and_of_the_other_progress_is_told(network: Network) -> None:
    with network.administrator() as ops:
        job_id = run(ops, "well")
        await_states(ops, job_id, "done")
        answers = ops.ask(SITES, 20.0, ask="log", about=job_id)
        assert [bool(answers[site].refuses) for site in SITES] == [True, True, False]
        assert answers[SITES[2]].content["log"].splitlines() == [
            "2026-01-02 10:00:00,000 - veilgraph - INFO - epoch 3 of at most 60"
        ]
        assert not any("secret" in answer.model_dump_json() for answer in answers.values())


def test_a_job_is_stopped_and_a_second_time_refused(network: Network) -> None:
    with network.administrator() as ops:
        job_id = run(ops, "waits")
        await_states(ops, job_id, "running")
        answers = ops.ask(SITES, 20.0, ask="stop", about=job_id)
        assert [answer.refuses for answer in answers.values()] == ["", "", ""]
        await_states(ops, job_id, "stopped")
        assert all(each.refuses for each in ops.ask(SITES, 20.0, ask="stop", about=job_id).values())


def test_the_same_request_twice_starts_one_process(network: Network) -> None:
    identity = network.kits.identities[OPS]
    request = Request(
        project="cards",
        sites=["bank"],
        expires=expiry(datetime.now(UTC)),
        ask="run",
        job={"does": "waits"},
        work="train",
    )
    message, before = request.signed(identity), network.supervisors["bank"].running()
    ops = Connection(network.broker.address, network.kits.tls(OPS), f"vg.{OPS.replace('.', '~')}.*.*")
    for _ in range(3):
        ops.publish(f"vg.bank.{OPS.replace('.', '~')}.{REQUESTS}", message)
    came = [next(messages) for messages in [ops.messages()] for _ in range(3)]
    ops.drop()
    assert len(came) == 3
    assert network.supervisors["bank"].running() == before + 1
    with network.administrator() as again:
        again.ask(["bank"], 20.0, ask="stop", about=request.id)


@pytest.mark.parametrize(
    ("signer", "sender", "changed"),
    [
        ("bank", "bank", {}),
        (OPS, "bank", {}),
        (OPS, OPS, {}),
        ("bank", "bank", {"project": "loans"}),
        (OPS, OPS, {"sites": ["bank"]}),
        (OPS, OPS, {"expires": 1}),
        (OPS, OPS, {"project": "loans"}),
        ("old", OPS, {}),
    ],
    ids=str,
)
def test_a_process_is_started_for_an_administrators_own_fresh_request_alone(
    network: Network, signer: str, sender: str, changed: dict[str, Any]
) -> None:
    """``OPS`` with nothing changed is the control. A stolen request may come through anybody's connection."""
    identities = {
        **network.kits.identities,
        "old": PROJECT.identity(OPS, start=NOW - 3 * DAY, end=NOW - DAY, role=ADMINISTRATOR),
    }
    fields = {"project": "cards", "sites": ["shop"], "expires": expiry(datetime.now(UTC)), "ask": "run"}
    made = Request.model_validate({**fields, "job": {"does": "well"}, "work": "train", **changed})
    folder = network.folders["shop"] / made.id
    through = Connection(network.broker.address, network.kits.tls(sender), f"vg.{sender.replace('.', '~')}.*.x")
    through.publish(f"vg.shop.{sender.replace('.', '~')}.{REQUESTS}", made.signed(identities[signer]))
    own = signer == OPS and not changed
    with network.administrator() as ops:
        if own:
            wait_until(folder.exists)
        else:
            ops.ask(["shop"], 20.0, ask="status")
            time.sleep(0.1)
    through.drop()
    assert folder.exists() == own


def test_a_check_has_not_the_name_of_a_run(network: Network) -> None:
    with network.administrator() as ops:
        names = []
        for work in ("train", "check"):
            job = {"does": "well", "name": "fraud"}
            (answer,) = ops.ask(["bank"], 20.0, ask="run", job=job, work=work).values()
            names.append(states(ops, str(answer.content["job"]))["bank"]["name"])
        assert names == ["fraud", "fraud (check)"]


def test_no_more_than_so_many_jobs_at_once(network: Network) -> None:
    wait_until(lambda: network.supervisors["bank"].running() == 0)  # what other tests have told to stop
    with network.administrator() as ops:
        taken = [run(ops, "waits", ("bank",)) for _ in range(MAX_RUNNING)]
        answers = ops.ask(["bank"], 20.0, ask="run", job={"does": "well"}, work="train")
        assert "already" in answers["bank"].refuses
        for job_id in taken:
            ops.ask(["bank"], 20.0, ask="stop", about=job_id)
        wait_until(lambda: network.supervisors["bank"].running() == 0)
        run(ops, "well", ("bank",))


def test_a_broker_that_restarts_is_found_again_and_a_job_goes_on(network: Network) -> None:
    with network.administrator() as ops:
        job_id = run(ops, "waits")
    network.broker.kill()
    network.broker.start()
    with network.administrator() as ops:
        await_states(ops, job_id, "running")
        assert set(ops.ask(SITES, 20.0, ask="stop", about=job_id)) == set(SITES)
        await_states(ops, job_id, "stopped")


def test_a_site_that_is_not_there_is_left_out(network: Network) -> None:
    with network.administrator() as ops:
        assert set(ops.ask([*SITES, "absent"], 1.0, ask="status")) == set(SITES)


def test_an_end_of_the_site_ends_its_processes(tmp_path: Path) -> None:
    identity, ops = PROJECT.identity("bank"), PROJECT.identity(OPS, role=ADMINISTRATOR)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    site = Site(
        "bank",
        "cards",
        tmp_path / "jobs",
        lambda: trusted(lambda: identity),
        lambda: identity,
        lambda at: [sys.executable, str(program), str(at)],
    )
    own = Supervisor(site, os.environ)
    made = Request(
        project="cards",
        sites=["bank"],
        expires=expiry(NOW),
        ask="run",
        job={"does": "waits"},
        work="train",
    )
    assert own.answer("ops", made.signed(ops), NOW) is not None
    assert own.running() == 1
    log = tmp_path / "jobs" / made.id / "log.txt"
    wait_until(lambda: b"epoch" in log.read_bytes())
    own.close()
    assert own.running() == 0
    outcome = Outcome.read(tmp_path / "jobs" / made.id)
    assert outcome is not None
    assert outcome.failure is not None


def test_a_process_that_does_not_stop_is_killed(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "GRACE_S", 0.5)
    with network.administrator() as ops:
        job_id = run(ops, "stays", ("bank",))
        log = network.folders["bank"] / job_id / "log.txt"
        wait_until(lambda: b"library" in log.read_bytes())
        time.sleep(0.2)
        ops.ask(["bank"], 20.0, ask="stop", about=job_id)
        wait_until(lambda: states(ops, job_id)["bank"]["state"] == "stopped")


def test_an_answer_has_room_for_the_newest_jobs(network: Network) -> None:
    folder = network.folders["shop"]
    made = [folder / f"{number:032x}" for number in range(2000)]
    for number, each in enumerate(made):
        each.mkdir()
        facts = {"name": "n" * 60, "work": "train", "submitted": 1e10 + number}
        (each / "meta.json").write_text(json.dumps(facts), encoding="utf-8")
    with network.administrator() as ops:
        (answer,) = ops.ask(["shop"], 20.0, ask="status").values()
    for each in made:
        shutil.rmtree(each)
    jobs = [job["job"] for job in answer.content["jobs"]]
    assert 100 < len(jobs) < 2000
    assert jobs == [each.name for each in made[::-1][: len(jobs)]]
