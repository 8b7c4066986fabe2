"""Commands for work across organisations, as far as they go without a network."""

import json
import os
import shutil
import socket
from contextlib import nullcontext
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.commands import one_error, usage_error, veilgraph
from tests.errors import refused
from veilgraph.core.errors import DataError, RunError
from veilgraph.core.files import locked
from veilgraph.deploy import control, demo
from veilgraph.deploy.demo import free_port
from veilgraph.deploy.failures import Failure
from veilgraph.deploy.join import JobNews, report_waiting_jobs
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.progress import JobReport, Outcome, SiteJobs
from veilgraph.deploy.project import read_project
from veilgraph.link import identity as private_key
from veilgraph.protocol.consent import JobRequest, Journal, waiting
from veilgraph.protocol.job_file import parse_job

PARTY = "party: {name}\nnodes: {{file: nodes.csv, id: id, features: [{{columns: x}}]}}\nedges: []\n"


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "project.yaml").write_text(
        f"name: fraud\nserver: {{host: localhost, port: {free_port()}}}\n"
        "holders: [bank, shop]\nadministrators: [ops@example.org]\n",
        encoding="utf-8",
    )
    result = veilgraph("net", "provision", folder / "project.yaml", "--out", folder / "consortium")
    assert result.exit_code == 0, result.output
    for name in ("server", "bank", "shop", "ops@example.org", "authority"):
        assert name in result.stdout
    assert "never at the server" in result.stdout
    return folder / "consortium" / "kits"


@pytest.fixture
def party(tmp_path: Path) -> Path:
    (tmp_path / "nodes.csv").write_text("id,x\na,1\n", encoding="utf-8")
    file = tmp_path / "party.yaml"
    file.write_text(PARTY.format(name="bank"), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("holders: [bank]", "holders"),
        ("holders: [bank, bank]", "'bank' is named twice"),
        ("holders: [bank, server]", "a holder may not be called 'server'"),
        ("dealer: server", "a holder may not be called 'server', nor the dealer"),
        ("dealer: bank", "'bank' is named twice"),
        ("dealer: localhost", "'localhost' is named twice"),
        ("holders: [bank, 'a b']", "holders.1='a b'"),
        ("administrators: [ops]", "administrators.0='ops'"),
        ("holder: [bank, shop]", "holder is not a setting"),
    ],
)
def test_a_project_that_breaks_a_rule_is_refused(tmp_path: Path, changed: str, said: str) -> None:
    key = changed.partition(":")[0]
    lines = {
        "name": "name: fraud",
        "server": "server: {host: localhost}",
        "holders": "holders: [bank, shop]",
        "administrators": "administrators: [ops@example.org]",
    }
    (tmp_path / "project.yaml").write_text("\n".join({**lines, key: changed}.values()), encoding="utf-8")
    assert said in one_error(veilgraph("net", "provision", tmp_path / "project.yaml", "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_project_is_provisioned_once(kits: Path) -> None:
    project = kits.parents[1] / "project.yaml"
    assert "exists and is not an empty directory" in one_error(
        veilgraph("net", "provision", project, "--out", kits.parent)
    )


def test_a_key_of_ones_own_by_commands(kits: Path, tmp_path: Path) -> None:
    request, certificate = tmp_path / "shop.csr", tmp_path / "shop.crt"
    asked = veilgraph("cert", "request", kits / "shop", "--out", request)
    signed = veilgraph("cert", "sign", request, "--authority", kits.parent / "authority", "--out", certificate)
    assert asked.stdout.splitlines()[0] == signed.stdout.splitlines()[0]
    assert "shop: SHA-256 of the public key " in asked.stdout
    assert "installed; valid until 20" in veilgraph("cert", "install", kits / "shop", certificate).stdout
    assert "no certificate was requested" in one_error(veilgraph("cert", "install", kits / "shop", certificate))


def test_a_stolen_kit_is_revoked_by_commands(kits: Path, party: Path, tmp_path: Path) -> None:
    authority = shutil.copytree(kits.parent / "authority", tmp_path / "authority")
    bank = shutil.copytree(kits / "bank", tmp_path / "bank")
    said = veilgraph("cert", "revoke", "bank", "--authority", authority).stdout.splitlines()
    assert said[0].startswith("revoked ")
    assert said[1].startswith("list 1, 1 revoked, next one by 20")
    assert said[1].endswith(f": {authority / 'revoked.pem'}")
    installed = veilgraph("cert", "install", bank, authority / "revoked.pem").stdout
    assert installed.startswith("list 1 is installed: 1 revoked")
    assert "was revoked on 20" in one_error(veilgraph("net", "join", bank, "--party", party))
    serial = said[0].split()[1].removesuffix(",")
    anew = veilgraph("cert", "revoke", "bank", "--serial", serial, "--days", "7", "--authority", authority)
    assert "list 2, 1 revoked" in anew.stdout
    assert "no serial number" in usage_error(veilgraph("cert", "revoke", "--serial", "x", "--authority", authority))
    assert "bnak" in one_error(veilgraph("cert", "revoke", "bnak", "--authority", authority))


def test_a_site_may_insist_on_a_current_list(kits: Path, party: Path, tmp_path: Path) -> None:
    bank = shutil.copytree(kits / "bank", tmp_path / "bank")
    said = one_error(veilgraph("net", "join", bank, "--party", party, "--current-list"))
    assert "has no list of revoked certificates; get one from the authority: veilgraph cert install" in said


def test_a_passphrase_comes_from_a_file_the_environment_or_a_prompt(
    kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_key, "COST", 16)
    bank = shutil.copytree(kits / "bank", tmp_path / "bank")
    secret = tmp_path / "passphrase"
    secret.write_text("four words of a dictionary\n", encoding="utf-8")
    secret.chmod(0o644)
    seal = ("cert", "passphrase", bank, "--passphrase-file", secret)
    assert f"others can read it, too (mode 644); chmod 600 {secret}" in one_error(veilgraph(*seal))
    secret.chmod(0o600)
    assert veilgraph(*seal).stdout.startswith("sealed; ")
    secret.write_text("\nfour words of a dictionary\n", encoding="utf-8")
    unseal = ("cert", "passphrase", bank, "--remove")
    assert "its first line is empty" in one_error(veilgraph(*unseal, "--passphrase-file", secret))
    assert "nobody can type it here; give --passphrase-file, or set VEILGRAPH_PASSPHRASE" in one_error(
        veilgraph(*unseal)
    )
    monkeypatch.setenv("VEILGRAPH_PASSPHRASE", "four words of a dictionari")
    wrong = one_error(veilgraph(*unseal))
    assert "has another passphrase" in wrong
    assert "dictionari" not in wrong
    monkeypatch.setenv("VEILGRAPH_PASSPHRASE", "four words of a dictionary")
    assert "in the clear again" in veilgraph(*unseal).stdout
    monkeypatch.delenv("VEILGRAPH_PASSPHRASE")

    typed = iter(["a first passphrase", "a second passphrase", "a passphrase", "a passphrase", "a passphrase"])
    passphrase = import_module("veilgraph.cli.app")  # the package has another ``app``
    monkeypatch.setattr(passphrase, "getpass", lambda prompt: next(typed))
    monkeypatch.setattr(passphrase, "at_a_terminal", lambda: True)
    request = ("cert", "request", bank, "--out", tmp_path / "bank.csr", "--passphrase")
    assert "the two passphrases differ" in one_error(veilgraph(*request))
    assert "SHA-256" in veilgraph(*request).stdout
    certificate = tmp_path / "bank.crt"
    veilgraph("cert", "sign", tmp_path / "bank.csr", "--authority", kits.parent / "authority", "--out", certificate)
    assert "installed" in veilgraph("cert", "install", bank, certificate).stdout
    assert not list(typed)
    assert (bank / "startup" / "client.sealed.key").exists()
    assert not (bank / "startup" / "client.key").exists()


def test_join_takes_a_kit_and_its_own_party_file(kits: Path, party: Path, tmp_path: Path) -> None:
    assert "is not a start-up kit" in one_error(veilgraph("net", "join", tmp_path, "--party", party))
    assert "--party is missing: bank brings its tables" in one_error(veilgraph("net", "join", kits / "bank"))
    assert "the server has no data" in one_error(veilgraph("net", "join", kits / "server", "--party", party))
    assert "an administrator's kit" in one_error(veilgraph("net", "join", kits / "ops@example.org"))
    assert "party='bank', and the kit is shop's" in one_error(veilgraph("net", "join", kits / "shop", "--party", party))
    damaged = tmp_path / "kit"
    (damaged / "startup").mkdir(parents=True)
    (damaged / "startup" / "kit.json").write_text("{}")
    assert "roles.json: cannot be read" in one_error(veilgraph("net", "join", damaged, "--party", party))


def test_status_says_who_deals_and_who_is_there(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roles = Kit.open(kits / "ops@example.org").roles.model_copy(update={"dealer": "notary"})
    sites: dict[str, control.State] = {"bank": "connected", "shop": "not connected", "notary": "connected"}
    jobs = (control.JobStatus("1", "fraud", "answer", "running", "2026-01-01", "epoch 3", 3, 8),)
    monkeypatch.setattr(control, "status", lambda kit: control.ProjectStatus(sites, roles, jobs))
    said = veilgraph("net", "status", "--kit", kits / "ops@example.org").stdout
    deals = "notary deals, localhost relays and takes no part in jobs"
    assert f"connected: bank, notary; {deals}" in said
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines()]
    assert ["shop", "not connected"] in rows
    assert ["1", "fraud", "answer", "running", "2026-01-01", "epoch 3"] in rows
    told = json.loads(veilgraph("net", "status", "--kit", kits / "ops@example.org", "--json").stdout)
    assert (told["project"], told["server"], told["dealer"]) == ("fraud", "localhost", "notary")
    assert told["sites"][1] == {"name": "shop", "state": "not connected"}
    facts = {"job_id": "1", "name": "fraud", "work": "answer", "status": "running", "submitted": "2026-01-01"}
    assert told["jobs"] == [{**facts, "says": "epoch 3", "epoch": 3, "epochs": 8}]
    monkeypatch.setattr(control, "status", lambda kit: control.ProjectStatus({"shop": "not connected"}, roles, ()))
    assert f"connected: nobody; {deals}" in veilgraph("net", "status", "--kit", kits / "ops@example.org").stdout


def test_the_status_of_a_running_job_says_how_far_it_is(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def word(job: str, **more: Any) -> JobReport:
        told: dict[str, Any] = {"name": "fraud", "state": "running", "submitted": 1.0} | more
        return JobReport(job=job * 32, **told)

    said = {
        "localhost": [
            word("1", work="train", epoch=10, epochs=40, says="shop waits for a person"),
            word("2", work="predict", submitted=2.0),
        ],
        "bank": [word("1"), word("2", state="failed", submitted=2.0)],
    }
    ops = SimpleNamespace(jobs=lambda *_: said)
    monkeypatch.setattr(control, "administrator", lambda kit: nullcontext(ops))
    found = control.status(Kit.open(kits / "ops@example.org"))
    assert found.sites == {"bank": "connected", "shop": "not connected", "localhost": "connected"}
    failed, running = found.jobs
    assert (running.epoch, running.epochs, running.says) == (10, 40, "shop waits for a person")
    assert (failed.job_id, failed.status, failed.says) == ("2" * 32, "failed", "")
    assert (running.work, failed.work) == ("train", "predict")


def test_the_status_of_a_sites_own_jobs_asks_nobody(
    kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(control, "status", lambda kit: pytest.fail("the server was asked"))
    bank = shutil.copytree(kits / "bank", tmp_path / "bank")
    job_id = "1" * 32
    folder = bank / "jobs" / job_id
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"name": "scores", "work": "predict", "submitted": 1.5}))
    Outcome(failure=Failure(kind="DataError")).write(folder)
    said = ("INFO - training begins after epoch 0", "INFO - epoch 10 of at most 40", "ERROR - {}")
    (folder / "log.txt").write_text("".join(f"2026-01-31 04:00:12,345 - veilgraph - {line}\n" for line in said))
    shown = veilgraph("net", "status", "--kit", bank).stdout
    assert "bank: 0 of 1 jobs run" in shown
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines()]
    assert [job_id, "scores", "predict", "failed", "10 of 40", ""] in rows
    told = json.loads(veilgraph("net", "status", "--kit", bank, "--json").stdout)
    assert (told["site"], told["kind"]) == ("bank", "holder")
    (job,) = told["jobs"]
    assert (job["job_id"], job["state"], job["epoch"], job["epochs"]) == (job_id, "failed", 10, 40)


def test_a_sites_own_log_is_found_by_the_beginning_of_one_jobs_id(kits: Path, tmp_path: Path) -> None:
    bank = shutil.copytree(kits / "bank", tmp_path / "bank")
    with refused(RunError, key="job_id"):
        control.logs(Kit.open(bank), None)
    ids = ("1" * 32, "12" * 16, "3" * 32)
    for age, job_id in enumerate(ids):
        log = bank / "jobs" / job_id / "log.txt"
        log.parent.mkdir(parents=True)
        log.write_text(f"2026-01-31 04:00:12,345 - veilgraph - INFO - of {job_id}\n", encoding="utf-8")
        os.utime(log, (1000 - age, 1000 - age))
    for named, found in ((None, ids[0]), (ids[0], ids[0]), ("12", ids[1]), ("3", ids[2])):
        assert control.logs(Kit.open(bank), named).endswith(f"of {found}\n")
    for named in ("1", "2", "*", "[3]", "../jobs/3"):
        with refused(RunError, key="job_id", value=named):
            control.logs(Kit.open(bank), named)


def test_join_gives_up_where_there_is_no_server(kits: Path, party: Path) -> None:
    said = one_error(veilgraph("net", "join", kits / "bank", "--party", party, "--connect", "1"))
    assert said.startswith("bank could not connect in 1 s; is the server running")


def test_join_refuses_a_kit_and_a_folder_of_runs_that_others_may_use(kits: Path, party: Path, tmp_path: Path) -> None:
    bank, runs = shutil.copytree(kits / "bank", tmp_path / "bank"), tmp_path / "runs"
    runs.mkdir(mode=0o700)
    for folder in (bank, runs):
        folder.chmod(0o750)
        said = one_error(veilgraph("net", "join", bank, "--party", party, "--runs", runs, "--connect", "1"))
        assert said.startswith(f"{folder}: ")
        assert "chmod" in said
        folder.chmod(0o700)


def test_join_removes_the_link_to_a_key_that_a_killed_site_left(
    kits: Path, party: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_key, "COST", 16)
    monkeypatch.setenv("VEILGRAPH_PASSPHRASE", "four words of a dictionary")
    bank = shutil.copytree(kits / "bank", tmp_path / "bank")
    assert veilgraph("cert", "passphrase", bank).exit_code == 0
    Kit.open(bank).key_file.plain.symlink_to("/proc/self/fd/0")
    said = one_error(veilgraph("net", "join", bank, "--party", party, "--connect", "1"))
    assert said.startswith("bank could not connect in 1 s")


def test_metrics_are_for_this_machine_unless_others_are_let_in(kits: Path, party: Path) -> None:
    before = sorted(kits.rglob("*"))
    join = ("net", "join", kits / "bank", "--party", party)
    said = one_error(veilgraph(*join, "--metrics", "0.0.0.0:0"))
    assert said.startswith("--metrics 0.0.0.0:0: other machines could read the metrics there")
    assert said.endswith("or say --metrics-open as well")
    assert "--metrics-open" in usage_error(veilgraph(*join, "--metrics-open"))
    assert one_error(veilgraph(*join, "--metrics", "nine")).startswith("--metrics nine: give HOST:PORT")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "cannot be listened at" in one_error(veilgraph(*join, "--metrics", f"127.0.0.1:{port}"))
    assert sorted(kits.rglob("*")) == before


def test_a_site_logs_json_where_it_is_asked_to(kits: Path, party: Path, tmp_path: Path) -> None:
    bank = shutil.copytree(kits / "bank", tmp_path / "bank")
    words = ("--log-format", "json", "--metrics", "127.0.0.1:0", "--connect", "1")
    result = veilgraph("net", "join", bank, "--party", party, *words)
    assert (result.exit_code, result.stdout) == (1, "")
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [("metrics", "info"), ("error", "error")]
    assert all(line["job"] is None for line in lines)
    assert all(datetime.fromisoformat(line["time"]).tzinfo is not None for line in lines)
    assert lines[-1]["message"].startswith("bank could not connect in 1 s")
    errors = veilgraph("net", "join", tmp_path, "--log-format", "json")
    told = json.loads(errors.stderr)
    assert (told["event"], told["code"], told["party"]) == ("error", "config", None)
    assert one_error(veilgraph("net", "join", tmp_path)), "and the next command speaks to people again"


def test_a_site_tells_of_its_jobs_as_they_begin_and_end(kits: Path, tmp_path: Path) -> None:
    kit = Kit.open(shutil.copytree(kits / "bank", tmp_path / "bank"))
    told: list[Any] = []

    def tell(job_id: str, failure: Failure | None) -> None:
        folder = kit.jobs / job_id
        folder.mkdir(parents=True, exist_ok=True)
        if failure is not None:
            Outcome(failure=failure).write(folder)
        news.tell(told.append)

    news = JobNews(kit, every_s=0)
    tell("0" * 32, Failure(kind="DataError"))
    assert not told, "what was there before the site began is no news"
    tell(job_id := "1" * 32, None)
    tell(job_id, None)
    tell(job_id, Failure(kind="DataError"))
    assert [(each.name, each.level, each.job) for each in told] == [
        ("job-ended", "error", job_id),
        ("job-failed", "error", job_id),
    ]


@pytest.mark.parametrize(
    ("name", "shown"), [("fraud", "fraud"), ("fraud (check)", "fraud (check)"), ("../x", "unknown"), (None, "unknown")]
)
def test_a_site_names_jobs_and_checks(name: str | None, shown: str, kits: Path, tmp_path: Path) -> None:
    kit = Kit.open(shutil.copytree(kits / "bank", tmp_path / "bank"))
    news, told = JobNews(kit, every_s=0), list[Any]()
    news.tell(told.append)
    folder = kit.jobs / ("1" * 32)
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({} if name is None else {"name": name}))
    news.tell(told.append)
    (event,) = told
    assert f"({shown}): " in str(event)
    (job,) = SiteJobs(kit).now()
    assert job.name == (name if name == "fraud" else ""), "of a check nothing is taken from a run of that name"


def test_a_demonstration_that_failed_gives_way_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(settings: object, folder: Path, **_: object) -> dict[str, Path]:
        assert not folder.exists()
        folder.mkdir()
        raise DataError("the disk is small")

    monkeypatch.setattr(demo, "export_dataset", written)
    for _ in range(2):
        assert one_error(veilgraph("demo", "network", "--out", tmp_path / "demo")) == "the disk is small"
        assert (tmp_path / "demo" / "organisations").is_dir()
    (tmp_path / "mine" / "organisations").mkdir(parents=True)
    said = one_error(veilgraph("demo", "network", "--out", tmp_path / "mine"))
    assert "exists and is not an empty directory" in said
    (tmp_path / "mine" / "organisations").rmdir()
    (tmp_path / "file").write_text("")
    assert "file: cannot be written" in one_error(veilgraph("demo", "network", "--out", tmp_path / "file"))
    with locked(tmp_path / "demo", "held"):
        assert "is in use by another demonstration" in one_error(
            veilgraph("demo", "network", "--out", tmp_path / "demo")
        )


def test_submit_takes_an_administrators_kit_and_a_job_of_names(kits: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("data: {holders: [bank, shop]}\n", encoding="utf-8")
    assert "is the kit of bank; give an administrator's" in one_error(
        veilgraph("net", "submit", job, "--kit", kits / "bank")
    )
    job.write_text("data: {parties: {bank: a.yaml, shop: b.yaml}}\n", encoding="utf-8")
    assert "names its holders and nothing of their files" in one_error(
        veilgraph("net", "submit", job, "--kit", kits / "ops@example.org")
    )
    assert "holders: [bank, shop]" in one_error(veilgraph("check", job, "--net", kits / "ops@example.org"))
    job.write_text("data: {dataset: digits}\n", encoding="utf-8")
    assert "data.holders" in one_error(veilgraph("net", "submit", job, "--kit", kits / "ops@example.org"))
    assert "--work" in usage_error(veilgraph("net", "submit", job, "--kit", kits / "bank", "--work", "dance"))


@pytest.mark.parametrize("command", ["status", "stop"])
def test_a_server_that_does_not_answer_is_named(kits: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilgraph.deploy.asking.administrator.__wrapped__.__defaults__", (1.0,))
    said = one_error(veilgraph("net", command, "--kit", kits / "ops@example.org"))
    assert "ops@example.org cannot reach the server at localhost: is it running? (no broker can be reached" in said


def test_serve_needs_a_complete_run(tmp_path: Path) -> None:
    options: list[str | Path] = [
        "--certificate",
        tmp_path / "c.pem",
        "--key",
        tmp_path / "k.pem",
        "--token-file",
        tmp_path / "token",
    ]
    assert "is not a run directory" in one_error(veilgraph("net", "serve", tmp_path, *options))
    assert not (tmp_path / "token").exists(), "nothing is made where nothing is served"


def test_the_person_at_a_site_sees_and_answers(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no job waits for approval" in veilgraph("net", "consent", "--kit", kits / "shop").stdout
    said = veilgraph("net", "consent", "--kit", kits / "shop").stdout
    assert said.startswith("jobs: 0 in all, 0 in the last 24 hours; alignments: 0 in all, ")
    assert "'3f' names 0 waiting jobs, not one" in one_error(
        veilgraph("net", "consent", "refuse", "3f", "--kit", kits / "shop")
    )
    assert "give the job's id" in usage_error(veilgraph("net", "consent", "approve", "--kit", kits / "shop"))
    for wrong in (["show", "3f"], ["approve", "3f", "--reason", "late"]):
        assert "leave it out" in usage_error(veilgraph("net", "consent", *wrong, "--kit", kits / "shop"))
    for other in ("server", "ops@example.org"):
        assert "has no data to consent for; give a holder's" in one_error(
            veilgraph("net", "consent", "--kit", kits / other)
        )
    consent = Kit.open(kits / "shop").consent
    asked = JobRequest(
        job="3f2a",
        work="predict",
        resume=True,
        settings=parse_job({"data": {"holders": ["bank", "shop"]}, "record": {"purpose": "to find\nfraud"}}),
    )
    with waiting(consent, asked, "1") as shown:
        seen = veilgraph("net", "consent", "--kit", kits / "shop").stdout
        assert "3f2a: job, predict, going on with a run, settings " in seen
        assert "reveals output-embeddings: The label holder sees" in seen
        assert "localhost relays and is party server" in seen
        assert "  purpose: to find fraud\n" in seen
        assert f"approve it with: veilgraph net consent approve 3f2a --kit {kits / 'shop'}" in seen
        told_of = json.loads(veilgraph("net", "consent", "--kit", kits / "shop", "--json").stdout)
        assert told_of["taken_part"] == {what: {"all": 0, "day": 0} for what in ("job", "alignment")}
        (one,) = told_of["waiting"]
        assert (one["job"], one["work"], one["settings"]["name"]) == ("3f2a", "predict", "job")
        assert "output-embeddings" in one["reveals"]
        said_by_join: list[str] = []
        told = report_waiting_jobs(Kit.open(kits / "shop"), frozenset(), said_by_join.append)
        assert report_waiting_jobs(Kit.open(kits / "shop"), told, said_by_join.append) == told
        assert said_by_join == [
            f"job (predict) waits for approval: veilgraph net consent approve 3f2a --kit {kits / 'shop'}"
        ], "each once"
        monkeypatch.chdir(kits / "shop")
        assert "approved 3f2a" in veilgraph("net", "consent", "approve", "3f").stdout
        assert "refused 3f2a" in veilgraph("net", "consent", "refuse", "3f2a", "--reason", "too late").stdout
        assert "reason=" in one_error(veilgraph("net", "consent", "refuse", "3f2a", "--reason", "x" * 201))
    entries = Journal(consent).entries()
    assert [(entry.what, entry.of, entry.request, entry.reason) for entry in entries] == [
        ("approved", "1", shown.fingerprint, ""),
        ("refused", "1", shown.fingerprint, "too late"),
    ]
    assert "no job waits" in veilgraph("net", "consent").stdout


def test_a_project_file_is_written_that_kits_are_made_of(tmp_path: Path) -> None:
    out = tmp_path / "project.yaml"
    words = ("net", "init", "bank", "shop", "--administrator", "ops@example.org", "--out", out)
    apart = ("--dealer", "notary", "--server", "fl.example.org", "--port", "7000")
    result = veilgraph(*words, *apart, "--name", "fraud")
    assert result.exit_code == 0, result.output
    found = read_project(out)
    assert (found.name, found.holders, found.dealer) == ("fraud", ("bank", "shop"), "notary")
    assert found.administrators == ("ops@example.org",)
    assert (found.server.host, found.server.port) == ("fl.example.org", 7000)
    assert "--replace" in one_error(veilgraph(*words))
    assert veilgraph(*words, "--replace").exit_code == 0
    assert read_project(out).server.host == "localhost"
