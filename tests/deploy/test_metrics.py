"""What a site and a service say of themselves to who watches them, and what the door takes at which they say it."""

from __future__ import annotations

import gc
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.small_project import bank_and_shop
from tests.errors import refused
from tests.link.brokers import needs_broker
from veilgraph.core.errors import ConfigError
from veilgraph.deploy import https as door
from veilgraph.deploy import join as joining
from veilgraph.deploy.failures import Failure
from veilgraph.deploy.https import MAX_HEAD_BYTES, Page
from veilgraph.deploy.kit import Kit, SiteFile
from veilgraph.deploy.metrics import exposed
from veilgraph.deploy.metrics.door import Address, read_address, serve_pages
from veilgraph.deploy.metrics.exposed import InferenceState, Requests, WatchedService, pages
from veilgraph.deploy.metrics.site import WatchedSite
from veilgraph.deploy.progress import DONE, STATES, STOPPED, Outcome, SiteJobs, epsilon_of, site_processes, traffic_of
from veilgraph.deploy.site_process import STUCK_S, SiteWatch

JOBS = [f"{digit:x}" * 32 for digit in range(9)]
HERE = read_address("127.0.0.1:0", beyond=False)
SAYS = "2026-01-31 04:00:12,345 - veilgraph - {} - {}\n"


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kit]:
    return bank_and_shop(tmp_path_factory.mktemp("metrics") / "consortium")


@pytest.fixture
def bank(kits: dict[str, Kit], tmp_path: Path) -> Kit:
    """A holder's kit, as a site that has joined leaves it."""
    return joined(kits["bank"], tmp_path)


def joined(kit: Kit, folder: Path) -> Kit:
    copy = shutil.copytree(kit.path, folder / kit.name)
    opened = Kit.open(copy)
    opened.prepare(SiteFile(runs=opened.runs))
    return opened


def deployed(kit: Kit, job_id: str, *lines: tuple[str, str], name: str = "scores", submitted: float = 1.0) -> Path:
    folder = kit.jobs / job_id
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"name": name, "submitted": submitted}))
    if lines:
        (folder / "log.txt").write_text("".join(SAYS.format(*line) for line in lines))
        if lines[-1] == ("INFO", DONE):
            Outcome().write(folder)
        if lines[-1][0] == "ERROR":
            Outcome(failure=Failure(kind="DataError")).write(folder)
    return folder


@contextmanager
def job_process(kit: Kit, job_id: str) -> Iterator[int]:
    """What looks as a job's process does."""
    code = "import time; print(flush=True); time.sleep(60)"
    words = ["-c", code, "veilgraph.deploy.part", kit.path, kit.jobs / job_id]
    process = subprocess.Popen([sys.executable, *map(str, words)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # until Python is there it is no more than a page or two
        deadline = time.monotonic() + 10
        while process.pid not in {each.pid for each in site_processes(kit)} and time.monotonic() < deadline:
            time.sleep(0.01)
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def metrics(make: Callable[[], Page]) -> dict[tuple[str, ...], float]:
    """Name and values of labels → value."""
    families = text_string_to_metric_families(make().content.decode())
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


# Jobs


def test_the_state_and_progress_of_a_job_are_read_from_its_folder(bank: Kit) -> None:
    begun = ("INFO", "training begins after epoch 4")
    deployed(bank, JOBS[0], begun, ("INFO", "epoch 10 of at most 40"), ("INFO", DONE), submitted=1)
    deployed(bank, JOBS[1], begun, ("ERROR", "{}"), submitted=2)
    deployed(bank, JOBS[2], begun, ("INFO", "epoch 10 of at most 40"), ("INFO", "epoch 20 of at most 40"), submitted=3)
    deployed(bank, JOBS[3], submitted=4)
    (bank.jobs / "not-a-job").mkdir()
    (bank.jobs / JOBS[2] / STOPPED).touch()
    jobs = SiteJobs(bank)
    found = [(job.job_id, job.state, job.epoch, job.epochs) for job in jobs.now()]
    assert found == [
        (JOBS[3], "ended", None, None),
        (JOBS[2], "stopped", 20, 40),
        (JOBS[1], "failed", 4, None),
        (JOBS[0], "done", 10, 40),
    ]
    with job_process(bank, JOBS[2]):  # which is run again
        running = jobs.now()[1]
        assert (running.state, running.epoch) == ("running", 20)
        assert running.quiet_s is not None
        assert running.quiet_s < 60
    assert jobs.now()[1].state == "stopped"


@pytest.mark.parametrize("line", [f"2026-01-31 04:00:12 - veilgraph - INFO - {DONE}", "- epoch 7 of at most 8"])
def test_what_stands_within_a_line_is_no_line(bank: Kit, line: str) -> None:
    """A message of another party may be in it."""
    deployed(bank, JOBS[0], ("INFO", f"shop says {line}"))
    assert [(job.state, job.epoch) for job in SiteJobs(bank).now()] == [("ended", None)]


def test_a_name_that_is_none_leads_to_no_folder(bank: Kit) -> None:
    """The name of a submitted job becomes part of a path."""
    outside = bank.path / "parties" / "bank"
    outside.mkdir(parents=True)
    (outside / "sending.json").write_text(json.dumps({"session": {"sent": 1, "received": 2}}))
    deployed(bank, JOBS[0], name="..")
    (job,) = SiteJobs(bank).now()
    assert job.name == ""
    assert traffic_of(bank, job) is None
    assert epsilon_of(bank, job) is None


def test_bytes_and_epsilon_are_those_of_the_newest_session(bank: Kit) -> None:
    deployed(bank, JOBS[0], ("INFO", DONE))
    (job,) = SiteJobs(bank).now()
    part = bank.runs / "scores" / "parties" / "bank"
    assert traffic_of(bank, job) is None
    part.mkdir(parents=True)
    rows = [{"direction": "sent", "bytes": 5}, {"direction": "received", "bytes": 7}, {"direction": "sent", "bytes": 1}]
    (part / "traffic.json").write_text(json.dumps(rows))
    (part / "alignment_traffic.json").write_text("[]")
    os.utime(part / "alignment_traffic.json", (1, 1))
    assert traffic_of(bank, job) == {"sent": 6, "received": 7}
    (part / "sending.json").write_text(json.dumps({"traffic": [], "session": {"sent": 70, "received": 80}}))
    assert traffic_of(bank, job) == {"sent": 70, "received": 80}
    assert epsilon_of(bank, job) is None
    ledger = part / "ledger.jsonl"
    ledger.write_text('{"ledger": 1, "job": "x", "delta": 1e-6}\n')
    assert epsilon_of(bank, job) == 0
    with ledger.open("a") as file:
        file.write('{"total": 1.5}\n{"total": 2.5}\n{"total": 3')
    assert epsilon_of(bank, job) == 2.5, "a line that is being written does not count"


# A site


def watched(kit: Kit, **changes: object) -> tuple[SiteWatch, dict[str, Callable[[], Page]]]:
    watch = SiteWatch(**changes)  # type: ignore[arg-type]
    return watch, dict(pages(WatchedSite(kit, kit.runs, watch)))


@pytest.fixture(autouse=True)
def _every_answer_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposed, "KEPT_S", 0.0)


def test_a_site_is_ready_while_it_is_connected_and_alive_while_somebody_looks_after_it(bank: Kit) -> None:
    watch, found = watched(bank)
    for is_up, status, word in ((False, 503, "not ready: no connection with the broker"), (True, 200, "ready")):
        watch.is_up = is_up
        page = found["/ready"]()
        assert (page.status, page.content.decode().strip()) == (status, word)
        assert metrics(found["/metrics"])["veilgraph_connected",] == is_up
    for late_s, status, words in ((0.0, 200, b"alive\n"), (STUCK_S + 1, 503, b"stuck\n")):
        watch.looked -= late_s
        assert (found["/healthz"]().status, found["/healthz"]().content) == (status, words)
    watch.look()
    assert found["/healthz"]().status == 200


def test_the_running_jobs_metrics(bank: Kit) -> None:
    deployed(bank, JOBS[0], ("INFO", DONE), submitted=1)
    folder = deployed(bank, JOBS[1], ("INFO", "epoch 20 of at most 40"), submitted=2)
    deployed(bank, JOBS[2], submitted=3)
    part = bank.runs / "scores" / "parties" / "bank"
    part.mkdir(parents=True)
    (part / "sending.json").write_text(json.dumps({"session": {"sent": 70, "received": 80}}))
    (part / "ledger.jsonl").write_text('{"total": null}\n')
    an_hour_ago = time.time() - 3600
    os.utime(folder / "log.txt", (an_hour_ago, an_hour_ago))
    _, found = watched(bank, is_up=True, restarts=3)
    with job_process(bank, JOBS[1]):
        values = metrics(found["/metrics"])
        assert values["veilgraph_site_processes",] == 1
        assert values["veilgraph_site_resident_memory_bytes",] > 1 << 20
    counts = {state: values["veilgraph_jobs", state] for state in STATES}
    assert counts == {"running": 1, "done": 1, "failed": 0, "stopped": 0, "ended": 1}
    assert (values["veilgraph_job_epoch",], values["veilgraph_job_epochs",]) == (20, 40)
    assert 3599 < values["veilgraph_job_quiet_seconds",] < 3700
    assert (values["veilgraph_job_bytes", "sent"], values["veilgraph_job_bytes", "received"]) == (70, 80)
    assert values["veilgraph_job_epsilon_spent",] == float("inf")
    assert values["veilgraph_site_restarts_total",] == 3
    assert values["veilgraph_jobs_waiting_for_approval",] == 0
    assert values["veilgraph_disk_free_bytes",] > 0
    assert values["veilgraph_certificate_expiry_timestamp_seconds",] > time.time() + 300 * 86400
    assert values["process_resident_memory_bytes",] > 0
    after = metrics(found["/metrics"])
    assert after["veilgraph_jobs", "running"] == 0
    assert ("veilgraph_job_epoch",) not in after
    assert ("veilgraph_job_quiet_seconds",) not in after


def kill_broker(server: Kit) -> None:
    configured = str(server.path / "broker" / "broker.conf").encode()
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if configured in command.read_bytes():
                os.kill(int(command.parent.name), signal.SIGKILL)


@needs_broker
def test_join_says_how_its_site_is(kits: dict[str, Kit], tmp_path: Path) -> None:
    """The server's, whose broker is killed and started again."""
    server = joined(kits["server"], tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (server.path / "broker" / "listen").write_text(f"127.0.0.1:{port}", encoding="ascii")
    kit_file = server.path / "startup" / "kit.json"
    kit_file.write_text(json.dumps(json.loads(kit_file.read_text()) | {"brokers": [f"localhost:{port}"]}))
    said: list[str] = []
    words: list[str] = []
    last: list[dict[tuple[str, ...], float]] = []

    def visit() -> None:
        deadline = time.monotonic() + 40
        try:
            while time.monotonic() < deadline and not (last and last[-1]["veilgraph_site_restarts_total",] == 1):
                time.sleep(0.05)
                if not said:
                    continue
                host, _, port = said[0].removeprefix("metrics at http://").removesuffix("/metrics").rpartition(":")
                at = Address(host, int(port), socket.AF_INET)
                found = ask(at)[1].decode().strip()
                if words[-1:] != [found]:
                    words.append(found)
                    if found == "ready":
                        kill_broker(server)
                page = ask(at, path="/metrics")[1]
                last.append(metrics(lambda page=page: Page(page)))  # type: ignore[misc]
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    visitor = threading.Thread(target=visit)
    visitor.start()
    joining.join(server, None, None, report=said.append, metrics=HERE)
    visitor.join(10)
    assert words[:2] == ["not ready: no connection with the broker", "ready"]
    assert last[-1]["veilgraph_site_restarts_total",] == 1
    assert any("the broker has ended; starting it again" in line for line in said)


SECRET = "secretword"


def test_no_metric_has_an_id_a_name_or_anything_of_the_data(bank: Kit) -> None:
    """Names of jobs, columns and nodes, in every file that is read; labels are words of this program."""
    lines = (("INFO", f"{SECRET} begins"), ("INFO", "epoch 1 of at most 2"), ("ERROR", f'{{"key": "{SECRET}"}}'))
    for job_id in JOBS[:2]:
        deployed(bank, job_id, *lines, name=SECRET)
    part = bank.runs / SECRET / "parties" / "bank"
    part.mkdir(parents=True)
    (part / "sending.json").write_text(json.dumps({SECRET: SECRET, "session": {"sent": 1, "received": 1}}))
    (part / "ledger.jsonl").write_text(json.dumps({"total": 1.0, "channel": SECRET}) + "\n")
    _, found = watched(bank, is_up=True)
    with job_process(bank, JOBS[1]):
        text = found["/metrics"]().content.decode()
    assert "veilgraph_job_bytes" in text
    assert "veilgraph_job_epsilon_spent" in text
    assert "veilgraph_job_epoch " in text
    for word in (SECRET, "bank", "shop", "fraud", "scores", *JOBS, str(bank.path)):
        assert word not in text
    labels = {
        (key, value)
        for family in text_string_to_metric_families(text)
        for one in family.samples
        for key, value in one.labels.items()
    }
    words = {("state", state) for state in STATES} | {("direction", "sent"), ("direction", "received")}
    assert {label for label in labels if label[0] != "version"} == words | {("role", "holder")}


def test_files_that_are_damaged_leave_the_rest_to_be_read(bank: Kit) -> None:
    folder = deployed(bank, JOBS[0], ("INFO", DONE))
    for content in (b"\xff\x00[", b"[]", b'{"name": 5, "submitted": "x"}'):
        (folder / "meta.json").write_bytes(content)
        (bank.path / "startup" / "revoked.pem").write_bytes(content)
        _, found = watched(bank, is_up=True)
        values = metrics(found["/metrics"])
        assert values["veilgraph_jobs", "done"] == 1
        assert ("veilgraph_job_bytes", "sent") not in values


# A service


def test_a_service_counts_as_its_log_does() -> None:
    requests, now = Requests(), SimpleNamespace(of=InferenceState(5.0, False, False))
    found = pages(WatchedService(lambda: now.of, requests))
    requests.count("/predict", 200, 0.5)
    requests.count("/predict", 200, 0.25)
    requests.count("(other)", 404, 0.1)
    values = metrics(found["/metrics"])
    assert values["veilgraph_serve_requests_total", "/predict", "200"] == 2
    assert values["veilgraph_serve_requests_total", "(other)", "404"] == 1
    assert values["veilgraph_serve_request_seconds_total", "/predict"] == 0.75
    assert values["veilgraph_inference_age_seconds",] == 5
    assert values["veilgraph_inference_too_old",] == values["veilgraph_inference_damaged",] == 0
    assert (found["/ready"]().status, found["/healthz"]().status) == (200, 200)
    now.of = InferenceState(9.0, True, True)
    values = metrics(found["/metrics"])
    assert values["veilgraph_inference_too_old",] == values["veilgraph_inference_damaged",] == 1
    assert (found["/ready"]().status, found["/healthz"]().status) == (503, 200)


# The address


@pytest.mark.parametrize("text", ["0.0.0.0:9464", "[::]:9464", "192.0.2.1:9464", "[2001:db8::1]:1", "127.8.9.10:65535"])
def test_others_may_be_served_only_where_that_is_said(text: str) -> None:
    assert read_address(text, beyond=True).port == int(text.rpartition(":")[2])
    if text.startswith("127."):
        assert read_address(text, beyond=False) == read_address(text, beyond=True)
        return
    with refused(ConfigError, key="--metrics", value=text):
        read_address(text, beyond=False)


NONE = "there.is.no.such.name.invalid:1"


@pytest.mark.parametrize("text", ["", "9464", ":9464", "localhost", "localhost:65536", "a b:1", "::1:80", NONE])
def test_what_is_no_address(text: str) -> None:
    with refused(ConfigError, key="--metrics", value=text):
        read_address(text, beyond=True)


# The door


@contextmanager
def opened(**made: Callable[[], Page]) -> Iterator[Address]:
    with serve_pages(
        HERE, {f"/{name}": make for name, make in made.items()} or {"/ready": lambda: Page(b"yes\n")}
    ) as at:
        yield at


def ask(at: Address, method: str = "GET", path: str = "/ready") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(at.host, at.port, timeout=10)
    try:
        connection.request(method, path)
        with connection.getresponse() as response:
            return response.status, response.read()
    finally:
        connection.close()


def raw(at: Address, sent: bytes, wait_s: float = 10.0) -> bytes:
    """All that comes back for some bytes, until the other end closes; nothing where it breaks off."""
    with socket.create_connection((at.host, at.port), timeout=wait_s) as connection:
        found = b""
        with suppress(ConnectionError):
            connection.sendall(sent)
            while piece := connection.recv(4096):
                found += piece
        return found


def test_a_path_is_answered_and_nothing_else() -> None:
    with opened() as at:
        assert ask(at) == (200, b"yes\n")
        for method, path in [
            ("GET", "/"), ("GET", "/ready/"), ("GET", "/../ready"), ("GET", "//ready"),
            ("GET", "http://127.0.0.1/ready"), ("GET", "/%72eady"),
        ]:  # fmt: skip
            assert ask(at, method, path)[0] == 404, (method, path)
        for method in ("POST", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "get"):
            assert ask(at, method)[0] == 405, method
        for request in (
            b"GET /ready",
            b"GET  /ready HTTP/1.1",
            b"GET /ready HTTP/2",
            b"\xff\x00",
            b"",
            b"GET /ready X",
        ):
            assert raw(at, request + b"\r\n\r\n").startswith(b"HTTP/1.1 400 "), request


def test_no_body_is_waited_for_where_none_is_taken() -> None:
    with opened() as at:
        before = time.monotonic()
        head = b"POST /ready HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n"
        assert raw(at, head).startswith(b"HTTP/1.1 405 ")
        assert time.monotonic() - before < door.WITHIN_S


def test_a_head_that_does_not_end_is_cut_off() -> None:
    with opened() as at:
        found = raw(at, b"GET /ready HTTP/1.1\r\nHost: x\r\nX: " + b"x" * (1 << 20))
        assert b" 200 " not in found
        fits = (
            b"GET /ready HTTP/1.1\r\nHost: x\r\nX: " + b"x" * (MAX_HEAD_BYTES - 100) + b"\r\nConnection: close\r\n\r\n"
        )
        assert raw(at, fits).startswith(b"HTTP/1.1 200 ")
        assert ask(at) == (200, b"yes\n")


def test_who_says_a_letter_now_and_then_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "WITHIN_S", 0.4)
    with opened() as at, socket.create_connection((at.host, at.port), timeout=5) as slow:
        before = time.monotonic()
        with pytest.raises(ConnectionError):  # noqa: PT012 - whichever write finds it closed
            while time.monotonic() - before < 5:
                slow.sendall(b"x")
                time.sleep(0.02)
        assert time.monotonic() - before < 4


def test_who_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "WITHIN_S", 0.3)
    with (
        opened(large=lambda: Page(b"x" * (1 << 25)), ready=lambda: Page(b"yes\n")) as at,
        socket.create_connection((at.host, at.port), timeout=5) as greedy,
    ):
        greedy.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.8)
        monkeypatch.setattr(door, "WITHIN_S", 60.0)
        assert ask(at) == (200, b"yes\n")
        found = 0
        with suppress(ConnectionError):
            while piece := greedy.recv(1 << 20):
                found += len(piece)
        assert found < 1 << 25


def test_what_fails_is_told_without_words_and_goes_on() -> None:
    def failing() -> Page:
        raise RuntimeError(SECRET)

    with opened(failing=failing, ready=lambda: Page(b"yes\n")) as at:
        assert ask(at, path="/failing") == (500, b'{"detail": "failed"}')
        assert ask(at) == (200, b"yes\n")


def test_it_listens_no_longer_than_the_block() -> None:
    with opened() as at, socket.create_connection((at.host, at.port), timeout=5):
        threads = {thread.name for thread in threading.enumerate()}
        assert "metrics" in threads
    with pytest.raises(ConnectionRefusedError):
        ask(at)
    assert "metrics" not in {thread.name for thread in threading.enumerate()}


def test_who_is_just_being_let_in_when_it_ends_is_closed_too() -> None:
    """A socket that is left open is an error here (``filterwarnings``)."""
    for number in range(40):
        with ExitStack() as stack, opened() as at:
            for _ in range(number % 7):
                stack.enter_context(socket.create_connection((at.host, at.port), timeout=5))
    gc.collect()


def test_an_answer_is_not_made_anew_for_each_who_asks(bank: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposed, "KEPT_S", 60.0)
    watch, found = watched(bank)
    first = found["/metrics"]()
    watch.restarts = 7
    assert found["/metrics"]() is first
    monkeypatch.setattr(exposed, "KEPT_S", 0.0)
    assert b"site_restarts_total 7" in found["/metrics"]().content
