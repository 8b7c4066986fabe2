"""Three organisations with tables of their own over the real engine: separate processes, mutual TLS, on this machine.

Everything here shares one provisioned project whose sites run while the tests do: starting them takes seconds, and so
does every job, in a process of its own at every site.
"""

import json
import os
import signal
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests import nightly
from tests.deploy.consortium import HOLDERS, JOB, WORDS, Consortium, await_quiet, job, job_processes
from tests.deploy.processes import listening, processes_of, read
from tests.deploy.same_here import assert_same_here
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError, LinkError, VeilgraphError
from veilgraph.core.types import SERVER
from veilgraph.deploy.authority import Authority, issue, read_certificate
from veilgraph.deploy.certificates import request_certificate, sign_certificate
from veilgraph.deploy.control import logs, status, stop
from veilgraph.deploy.kit import ITS_LOG_SAYS, Kit, admit
from veilgraph.deploy.progress import SiteJobs
from veilgraph.deploy.project import ProjectSettings, provision
from veilgraph.deploy.site_process import PARENT_VARIABLE
from veilgraph.graph.party import unpack_ids
from veilgraph.link.nats_client import Brokers, client_tls
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.jobs import predict
from veilgraph.runtime.store.run_directory import load_tensors

DEALER: Final = "D"
"""The server of this project only relays: a job of two holders is of four machines."""
PAIR = ("A", "B")
"""Those of the job that all tests share; each process of a job takes seconds to start."""


@pytest.fixture(scope="module")
def whole(consortium: Consortium) -> JobSettings:
    """A job that has been trained, by way of a killed party."""
    settings = job("whole", data={**JOB["data"], "holders": list(PAIR)}, train={**JOB["train"], "epochs": 30})
    train_with_a_kill(consortium, settings)
    return settings


def test_a_job_from_tables_with_a_killed_party_ends_as_the_run_in_one_process(
    consortium: Consortium, whole: JobSettings, tmp_path: Path
) -> None:
    graphs = {party: consortium.run(party, "whole").party(party) for party in PAIR}
    assert_same_here(consortium.network, whole, PAIR, tmp_path)

    # Ids: everyone's first rows are the same nodes in the same order, and nobody names its other nodes.
    ids = {
        party: unpack_ids(load_tensors(store.path / "nodes.safetensors")[0]) or [] for party, store in graphs.items()
    }
    common = json.loads((graphs["A"].path / "alignment.json").read_text())["common_nodes"]
    assert common == 337
    assert len({tuple(every[:common]) for every in ids.values()}) == 1
    assert all(len(every) > common for every in ids.values())

    # Only the label holder has predictions, and the relay no part of anything; each party has a record of what it sent.
    assert {party for party in PAIR if (graphs[party].path / "predictions.csv").exists()} == {"A"}
    assert not Kit.open(consortium.network.kits[SERVER]).runs.exists()
    assert all((graphs[party].path / "disclosures.jsonl").exists() for party in PAIR)
    sealed = [json.loads(line) for line in (graphs["B"].path / "disclosures.jsonl").read_text().splitlines()]
    assert {"blinded_ids", "share"} <= {record["kind"] for record in sealed}


@nightly
def test_a_prediction_is_made_anew_for_all_nodes_and_read_by_id_at_the_label_holder(
    consortium: Consortium, whole: JobSettings
) -> None:
    before = predict(consortium.run("A", "whole").path)
    consortium.submit(whole, "predict")
    after = predict(consortium.run("A", "whole").path, ids=list(before.ids or ())[:5])
    assert after.ids == (before.ids or ())[:5]
    assert torch.equal(after.classes, before.classes[:5])
    assert after.made_at >= before.made_at


def test_a_protected_key_is_on_no_disk_and_its_passphrase_with_join_alone(
    consortium: Consortium, whole: JobSettings
) -> None:
    """What ran here ran with these keys: at the server, a holder and the administrator."""
    processes: dict[str, list[Path]] = {name: [] for name in (SERVER, "B")}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended
            command = (process / "cmdline").read_bytes()
            assert WORDS not in command
            for name, found in processes.items():
                if str(consortium.network.kits[name]).encode() in command.split(b"\0"):
                    found.append(process)
    for name, found in processes.items():
        kit = Kit.open(consortium.network.kits[name])
        assert found
        for process in found:
            told = WORDS in (process / "environ").read_bytes()
            assert told == (process.name == str(consortium.network.sites[name].pid))
        body = kit.key_file.plain.read_bytes().splitlines()[4]
        assert len(body) == 64
        files = [path for path in kit.path.rglob("*") if path.is_file() and not path.is_symlink()]
        assert kit.key_file.sealed in files
        assert not [path for path in files if body in (content := path.read_bytes()) or WORDS in content]


def train_with_a_kill(consortium: Consortium, settings: JobSettings) -> None:
    """Trains until B's process is killed between two epochs, and goes on."""
    failure: list[VeilgraphError] = []

    def work() -> None:
        try:
            consortium.submit(settings)
        except VeilgraphError as error:
            failure.append(error)

    submitting = threading.Thread(target=work)
    submitting.start()
    await_running(consortium, settings.name)
    checkpoints = consortium.network.runs("B") / settings.name / "parties" / "B" / "checkpoints"
    deadline = time.monotonic() + 120
    while len(list(checkpoints.glob("epoch-*.safetensors"))) < 2:
        assert time.monotonic() < deadline
        assert submitting.is_alive(), failure
        time.sleep(0.02)
    (pid,) = job_processes(consortium, "B")
    status, environment = (Path(f"/proc/{pid}/{name}").read_text() for name in ("status", "environ"))
    (site,) = [line.split()[1] for line in status.splitlines() if line.startswith("PPid:")]
    assert f"{PARENT_VARIABLE}={site}" in environment.split("\0"), "it does not know whose it is"
    os.kill(pid, signal.SIGKILL)
    submitting.join(120)
    assert failure, "the job went on without B"
    assert "resume" in str(failure[0])
    consortium.submit(settings, resume=True)
    summary = json.loads((consortium.run("A", settings.name).path / "summary.json").read_text())
    assert summary["started_at"] > 0


def await_running(consortium: Consortium, name: str) -> None:
    """What an administrator is told of a job while its processes start."""
    deadline = time.monotonic() + 60
    while True:
        found = status(consortium.network.administrator)
        assert found.connected == (*HOLDERS, DEALER)
        if found.jobs and (found.jobs[0].name, found.jobs[0].status) == (name, "running"):
            return
        assert time.monotonic() < deadline, found


@nightly
def test_an_error_of_one_party_reaches_the_administrator_by_name_and_no_further(consortium: Consortium) -> None:
    nodes = consortium.out / "tables" / "C" / "nodes.csv"
    whole = nodes.read_text(encoding="utf-8")
    try:
        nodes.write_text(whole + whole.splitlines()[-1] + "\n", encoding="utf-8")
        with refused(DataError, code=ITS_LOG_SAYS, party="C") as caught:
            consortium.submit(job("twice"), retries=1)
    finally:
        nodes.write_text(whole, encoding="utf-8")
    named = whole.splitlines()[-1].split(",")[0].strip('"')
    assert named not in str(caught.value)
    assert named not in logs(consortium.network.administrator, None, everything=True)
    assert "nodes.csv" in logs(Kit.open(consortium.network.kits["C"]), None)


@nightly
def test_a_site_that_falls_silent_is_lost_and_comes_back(consortium: Consortium) -> None:
    silent = list(processes_of(consortium.network.kits["C"]))

    def told(missing: tuple[str, ...]) -> None:
        deadline = time.monotonic() + 90
        there = tuple(name for name in (*HOLDERS, DEALER) if name not in missing)
        while (found := status(consortium.network.administrator)).connected != there:
            assert time.monotonic() < deadline, found
            time.sleep(1)

    try:
        for pid in silent:
            os.kill(pid, signal.SIGSTOP)
        told(("C",))
        with refused(LinkError, code="not-connected", party="C"):
            consortium.submit(job("without"), connect_s=2.0)
    finally:
        for pid in silent:
            os.kill(pid, signal.SIGCONT)
    told(())


@nightly
def test_status_and_stop(consortium: Consortium) -> None:
    consortium.submit(job("stopped", train={**JOB["train"], "epochs": 100_000}), wait=False)
    found = status(consortium.network.administrator)
    assert found.connected == (*HOLDERS, DEALER)
    assert found.jobs[0].name == "stopped"
    deadline = time.monotonic() + 90
    metrics = consortium.network.runs("A") / "stopped" / "metrics.jsonl"
    while not metrics.exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert stop(consortium.network.administrator, found.jobs[0].job_id[:8]) == found.jobs[0].job_id
    while status(consortium.network.administrator).jobs[0].status == "running":
        assert time.monotonic() < deadline + 60
        time.sleep(1)


@pytest.mark.parametrize("who", ["another project", "expired", "renewed", "the real one"])
def test_only_a_valid_certificate_of_the_project_is_let_in(consortium: Consortium, tmp_path: Path, who: str) -> None:
    """What the broker itself answers, whatever the joining side checks before."""
    kit = Kit.open(consortium.network.kits["C"])
    certificate, key = kit.certified.certificate, kit.key_file.plain
    if who == "another project":
        project = ProjectSettings.model_validate(
            {"name": "consortium", "server": {"host": "localhost"}, "holders": HOLDERS, "administrators": ["a@b.org"]}
        )
        other = Kit.open(provision(project, tmp_path / "other")["C"])
        certificate, key = other.certified.certificate, other.key_file.plain
    elif who == "expired":
        certificate = expired(consortium, kit, tmp_path)
    elif who == "renewed":
        request_certificate(kit, tmp_path / "C.csr")
        authority = consortium.out / "project" / "authority"
        certificate, key = tmp_path / "C.crt", kit.path / "startup" / "new.key"
        sign_certificate(tmp_path / "C.csr", authority, certificate, datetime.now(UTC))
        assert not let_in(kit, certificate, key), "the broker has not been told of it"
        admit(consortium.network.kits[SERVER], read_certificate(certificate))
        deadline = time.monotonic() + 20
        while not let_in(kit, certificate, key):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert let_in(kit, certificate, key) == (who in ("the real one", "renewed"))


def let_in(kit: Kit, certificate: Path, key: Path) -> bool:
    brokers = kit.brokers()
    tls = client_tls(kit.path / "startup" / "brokersCA.pem", certificate, key)
    try:
        Brokers(brokers.addresses, tls).connect("vg.C.*.x", threading.Event()).drop()
    except LinkError:
        return False
    return True


def expired(consortium: Consortium, kit: Kit, folder: Path) -> Path:
    """A certificate as the project's own authority signed it, but for a time that is over, known to the broker."""
    authority = Authority(consortium.out / "project" / "authority")
    valid, now = read_certificate(kit.certified.certificate), datetime.now(UTC)
    public = valid.public_key()
    assert isinstance(public, rsa.RSAPublicKey)
    root = authority.root().subject
    made = issue(valid.subject, public, root, authority.key(), [], now - timedelta(days=2), now - timedelta(days=1))
    path = folder / "expired.crt"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    admit(consortium.network.kits[SERVER], made)
    return path


def test_the_kit_keeps_its_secrets_to_itself(consortium: Consortium) -> None:
    for kit in consortium.network.kits.values():
        assert not [path for path in kit.rglob("*") if path.name in ("rootCA.key", "brokersCA.key")]
    authority = consortium.out / "project" / "authority"
    roots = {"rootCA.pem", "rootCA.key", "brokersCA.pem", "brokersCA.key"}
    assert {path.name for path in authority.iterdir()} == roots | {"issued", "roles.json"}
    assert (authority / "rootCA.key").stat().st_mode & 0o077 == 0
    with refused(ConfigError, key=consortium.out):
        Kit.open(consortium.out)


def test_a_site_knows_a_killed_job_by_its_own_kit(consortium: Consortium, whole: JobSettings) -> None:
    """Nobody is asked."""
    kits = {party: Kit.open(consortium.network.kits[party]) for party in (*HOLDERS, DEALER, SERVER)}
    await_quiet(consortium)
    found = {party: [each for each in SiteJobs(kit).now() if each.name == whole.name] for party, kit in kits.items()}
    states = {party: tuple(each.state for each in jobs[-2:]) for party, jobs in found.items() if party != SERVER}
    assert states.pop("C") == (), "it takes no part in this job"
    assert states.pop("B") == ("done", "ended"), "newest first; its process was killed the first time"
    assert set(states.values()) <= {("done", "failed"), ("done", "stopped")}, "it saw the loss itself"
    assert found[SERVER] == [], "who only relays knows of no job"
    for party in (*PAIR, DEALER):
        (trained, *_) = [each for each in found[party] if each.epoch]
        assert (trained.epoch, trained.epochs) == (30, 30)


def test_every_file_of_every_site_is_private_whatever_the_umask(consortium: Consortium, whole: JobSettings) -> None:
    """After a job, and one that was killed: requests, logs, runs; and the administrator's kit."""
    kits = consortium.network.kits.values()
    found = [path for kit in kits for path in (kit, *kit.rglob("*"))]
    links = [path for path in found if path.is_symlink()]
    assert {path.name for path in links} <= {"client.key", "server.key"}, "keys that are in memory while the site runs"
    assert {"request", "log.txt", "join.log", "client.key"} <= {path.name for path in found}
    assert [str(path) for path in found if path not in links and path.lstat().st_mode & 0o077] == []


def test_no_site_listens_but_the_broker_at_its_one_port(consortium: Consortium) -> None:
    ports = {name: listening(list(processes_of(consortium.network.kits[name]))) for name in (*HOLDERS, DEALER, SERVER)}
    broker = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if str(consortium.network.kits[SERVER] / "broker" / "broker.conf").encode() in read(path)
    ]
    assert ports == {name: set() for name in (*HOLDERS, DEALER, SERVER)}
    assert listening(broker) == {consortium.port}
