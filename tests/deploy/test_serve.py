import http.client
import json
import os
import signal
import socket
import ssl
import threading
import time
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
import torch
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tests.deploy.self_signed import self_signed
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.deploy import https as connections
from veilgraph.deploy.https import (
    MAX_BY_ADDRESS,
    MAX_CONNECTIONS,
    HttpServer,
    make_token_file,
    read_token,
    server_tls,
)
from veilgraph.deploy.metrics.door import read_address
from veilgraph.deploy.serve import MAX_BODY_BYTES, MAX_IDS, NewestInference, create_routes, request_logger, serve
from veilgraph.graph.party import pack_ids
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Predicted
from veilgraph.runtime.store.predictions import save_predictions
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors, save_tensors

IDS = ("C1", "C2", "7")
FIRST = torch.tensor([[0.75, 0.25], [0.125, 0.875], [0.5, 0.5]])
SECOND = FIRST.flip(1)
TOKEN = "0123456789abcdef" * 2 + "-._~+/="


def make_run(path, *, ids=IDS, infer=True, parties=("bank", "shop"), reporter="bank", paradigm="vertical"):
    data = {"holders": list(parties), "label_holder": reporter}
    settings = parse_job({"name": "fraud", "paradigm": paradigm, "data": data})
    run = RunDirectory.create(path, settings)
    store = run.party("bank")  # whose part it is
    if infer:
        store.model_path.write_bytes(b"the label holder's part of the model")
        save_predictions(store, Predicted(FIRST), ids, None if ids is None else ("good", "fraud"))
    return path


def predictions_file(run):
    return run / "parties" / "bank" / "predictions.safetensors"


def infer_anew(run, probabilities=SECOND, ids=IDS):
    save_predictions(RunDirectory.open(run).party("bank"), Predicted(probabilities), ids, ("good", "fraud"))


def facts_now():
    return {"class_names": ["good", "fraud"], "model_version": "abc", "made_at": datetime.now(UTC).isoformat()}


def age(run, **duration):
    path = predictions_file(run)
    tensors, facts = load_tensors(path)
    save_tensors(path, tensors, facts | {"made_at": (datetime.now(UTC) - timedelta(**duration)).isoformat()})


class Caller:
    """Speaks HTTPS with a service whose certificate it trusts."""

    def __init__(self, port, certificate, lines):
        self.port = port
        self.lines = lines
        self.tls = ssl.create_default_context(cafile=certificate)

    def ask(self, method, path, body=None, headers=None, token=TOKEN):
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=self.tls)
        sent = dict(headers or {})
        if token is not None:
            sent.setdefault("Authorization", f"Bearer {token}")
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        before = self.logged()
        try:
            connection.request(method, path, content, sent)
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"null"), response.headers
        finally:
            connection.close()
            self.wait_for_line(before)

    def logged(self):
        return sum(line.endswith(" ms") for line in self.lines)

    def wait_for_line(self, before):
        """A request's line is written after its answer."""
        deadline = time.monotonic() + 5
        while self.logged() == before and time.monotonic() < deadline:
            time.sleep(0.001)

    def predict(self, *ids, token=TOKEN):
        return self.ask("POST", "/predict", {"ids": list(ids)}, token=token)[:2]

    def health(self):
        return self.ask("GET", "/health", token=None)[:2]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return self_signed("127.0.0.1", tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def service(pair, tmp_path_factory):
    with started(pair, make_run(tmp_path_factory.mktemp("served") / "run")) as service:
        yield service


@pytest.fixture
def running(service):
    """A service in a thread, as if it had just started: (caller, run, lines it reported)."""
    caller, run, lines = service
    infer_anew(run, FIRST)
    caller.health()
    lines.clear()
    return caller, run, lines


@contextmanager
def started(pair, run, **options):
    lines: list[str] = []
    routes = create_routes(NewestInference(run, lines.append), TOKEN, **options)
    door = HttpServer(routes, server_tls(*pair), request_logger(lines.append))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=door.run, args=(listener,))
        thread.start()
        try:
            yield Caller(listener.getsockname()[1], pair[0], lines), run, lines
        finally:
            door.close()
            thread.join(10)
            assert not thread.is_alive()


def silent(caller, handshake):
    """A connection that says nothing."""
    raw = socket.create_connection(("127.0.0.1", caller.port), timeout=5)
    return caller.tls.wrap_socket(raw, server_hostname="127.0.0.1") if handshake else raw


@pytest.mark.parametrize("handshake", [True, False], ids=["TLS", "before TLS"])
def test_silent_connections_keep_nobody_out(service, handshake):
    """The attack: 520 silent connections, without a token, gave 503 to everybody."""
    caller, _, _ = service
    opened = [silent(caller, handshake) for _ in range(520)]
    try:
        assert caller.health()[0] == 200
        assert caller.predict("C1")[0] == 200
        limit = MAX_BY_ADDRESS if handshake else MAX_CONNECTIONS
        assert sum(is_open(each) for each in opened) <= limit
    finally:
        for each in opened:
            each.close()


def is_open(connection):
    connection.settimeout(0)
    try:
        return connection.recv(1) != b""
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False


HEADERS = b"Host: x\r\nContent-Length: 9\r\n\r\n{"


@pytest.mark.parametrize("said", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n", b"POST /predict HTTP/1.1\r\n" + HEADERS])
def test_a_connection_without_a_whole_request_ends_in_time(pair, tmp_path, monkeypatch, said):
    """A byte now and then gives no more time."""
    monkeypatch.setattr(connections, "WITHIN_S", 0.2)
    with started(pair, make_run(tmp_path / "run")) as (caller, _, _):
        connection = silent(caller, True)
        connection.sendall(said)
        connection.settimeout(5)
        with suppress(OSError):
            while connection.recv(4096):  # an answer, as 401, may come first
                pass
        connection.close()
        raw = silent(caller, False)
        raw.settimeout(5)
        with suppress(ConnectionResetError):
            assert raw.recv(1) == b""
        raw.close()
        assert caller.health()[0] == 200


def test_answers_in_the_order_asked(running):
    caller, run, _ = running
    status, answer, headers = caller.ask("POST", "/predict", {"ids": ["C2", 7, "C2"]})
    assert status == 200
    _, facts = load_tensors(predictions_file(run))
    assert {key: answer[key] for key in ("model_version", "made_at")} == {
        key: facts[key] for key in ("model_version", "made_at")
    }
    assert 0 <= answer["age_seconds"] < 60
    second = {"id": "C2", "class": "fraud", "probabilities": {"good": 0.125, "fraud": 0.875}}
    third = {"id": "7", "class": "good", "probabilities": {"good": 0.5, "fraud": 0.5}}
    assert answer["predictions"] == [second, third, second]
    assert answer["unknown"] == []
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Server" not in headers


def test_unknown_ids_are_listed_and_probabilities_have_six_digits(running):
    caller, run, _ = running
    status, answer = caller.predict("C9", "C1", " C1", "")
    assert (status, answer["unknown"]) == (200, ["C9", " C1", ""])
    assert [one["id"] for one in answer["predictions"]] == ["C1"]
    assert caller.predict("C9")[1]["predictions"] == []
    infer_anew(run, torch.tensor([[1 / 3, 2 / 3]], dtype=torch.float64), ids=("C1",))
    answer = caller.predict("C1")[1]
    assert answer["predictions"][0]["probabilities"] == {"good": 0.333333, "fraud": 0.666667}


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer \xe9"],
)
def test_without_the_token_nothing_is_told(running, authorization):
    caller, _, lines = running
    headers = {} if authorization is None else {"Authorization": authorization}
    for body in ({"ids": ["C1"]}, b"not JSON", b"x" * (MAX_BODY_BYTES + 1)):
        status, answer, sent = caller.ask("POST", "/predict", body, headers, token=None)
        assert (status, answer) == (401, {"detail": "not authorised"})
        assert (sent["WWW-Authenticate"], sent["Cache-Control"]) == ("Bearer", "no-store")
    assert all("POST /predict 401" in line for line in lines)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "body: Invalid JSON"),
        (b"{", "body: Invalid JSON"),
        (b"[]", "body: must be names with values"),
        ({}, "ids: is needed; add it"),
        ({"ids": ["C1"], "nodes": [1]}, "nodes: is no key here; remove it"),
        ({"ids": "C1"}, "ids: give a list of 1 to 10,000 ids, not something else"),
        ({"ids": []}, "ids: give a list of 1 to 10,000 ids, not 0 ids"),
        (
            {"ids": ["C1"] * (MAX_IDS + 1)},
            "ids: give a list of 1 to 10,000 ids, not 10001 ids; ask for more in several",
        ),
        ({"ids": [True]}, "ids: an id is a string or a whole number"),
        ({"ids": [1.0]}, "ids: an id is a string or a whole number"),
        ({"ids": ["C1", None]}, "ids: an id is a string or a whole number"),
    ],
)
def test_malformed_requests(running, body, said):
    caller, _, _ = running
    status, answer, _ = caller.ask("POST", "/predict", body)
    assert status == 422
    assert answer["detail"].startswith(said)


def test_ids_and_bytes_are_taken_up_to_the_limit(running):
    caller, _, _ = running
    status, answer = caller.predict(*(["C1"] * MAX_IDS))
    assert (status, len(answer["predictions"])) == (200, MAX_IDS)
    padding = b" " * (MAX_BODY_BYTES - len(b'{"ids":["C1"]}'))
    assert caller.ask("POST", "/predict", b'{"ids":["C1"]}' + padding)[0] == 200
    status, answer, headers = caller.ask("POST", "/predict", b'{"ids":["C1"]}' + padding + b" ")
    assert (status, headers["Cache-Control"]) == (413, "no-store")
    assert answer["detail"].startswith("a request has at most 1,048,576 bytes")


def test_a_new_inference_is_noticed(running):
    caller, run, lines = running
    assert caller.predict("C1")[1]["predictions"][0]["class"] == "good"
    infer_anew(run, ids=("C3", "C1", "C2"))
    status, answer = caller.predict("C3", "7")
    assert (status, answer["unknown"]) == (200, ["7"])
    assert answer["predictions"] == [{"id": "C3", "class": "fraud", "probabilities": {"good": 0.25, "fraud": 0.75}}]
    assert sum("now serving the joint inference of" in line for line in lines) == 1


def saved(tensors, facts=None):
    """Puts something else in the place of the predictions."""
    return lambda run: save_tensors(predictions_file(run), tensors, facts_now() if facts is None else facts)


DAMAGES = {
    "cut short": lambda run: predictions_file(run).write_bytes(predictions_file(run).read_bytes()[:100]),
    "missing": lambda run: predictions_file(run).unlink(),
    "something else": saved({"weights": FIRST}, {}),
    "without a time": saved({"probabilities": FIRST}, {}),
    "no numbers": lambda run: infer_anew(run, FIRST * float("nan")),
    "too few ids": saved({"probabilities": FIRST, **pack_ids(("C1",))}),
    "too many names": saved({"probabilities": FIRST[:, :1], **pack_ids(IDS)}),
    "no ids": lambda run: save_predictions(RunDirectory.open(run).party("bank"), Predicted(SECOND)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_inference_leaves_the_one_before(running, damage):
    caller, run, lines = running
    before = caller.predict("C1")[1]
    damage(run)
    assert caller.health()[1]["status"] == "damaged"
    status, answer = caller.predict("C1")
    assert (status, answer["predictions"]) == (200, before["predictions"])
    assert sum("still serving the joint inference of" in line for line in lines) == 1
    infer_anew(run)
    assert caller.health()[1]["status"] == "ok"
    assert caller.predict("C1")[1]["predictions"][0]["class"] == "fraud"


def test_health_needs_no_token_and_says_nothing_of_the_nodes(running):
    caller, run, _ = running
    status, answer = caller.health()
    assert (status, set(answer)) == (200, {"status", "model_version", "made_at", "age_seconds"})
    assert answer["status"] == "ok"
    age(run, days=3)
    assert 3 * 86_400 <= caller.health()[1]["age_seconds"] < 3 * 86_400 + 60


def test_an_old_inference_is_not_served(pair, tmp_path):
    run = make_run(tmp_path / "run")
    age(run, days=40)
    with started(pair, run, max_age_s=30 * 86_400) as (caller, _, _):
        status, answer = caller.predict("C1")
        assert status == 503
        assert answer["detail"] == (
            "the newest joint inference is 40 days old, limit 30 days; let the parties predict anew"
        )
        status, answer = caller.health()
        assert (status, answer["status"]) == (503, "too-old")
        infer_anew(run)
        assert caller.predict("C1")[0] == 200
        assert caller.health()[1]["status"] == "ok"


def test_nothing_else_is_offered(running):
    caller, _, _ = running
    for path in ("/", "/docs", "/redoc", "/openapi.json", "/predict/", "/health/"):
        status, _, headers = caller.ask("GET", path)
        assert (status, headers["Cache-Control"]) == (404, "no-store")
    assert caller.ask("GET", "/predict")[0] == 405
    assert caller.ask("POST", "/health", {})[0] == 405


def test_the_log_has_no_ids_and_no_token(running):
    caller, _, lines = running
    caller.predict("C1", "C9")
    caller.ask("POST", "/predict?ids=C1", {"ids": ["C1"]})
    caller.ask("GET", f"/C1/{TOKEN}", token=None)
    assert [line.split()[1:5] for line in lines] == [
        ["127.0.0.1", "POST", "/predict", "200"],
        ["127.0.0.1", "POST", "/predict", "200"],
        ["127.0.0.1", "GET", "(other)", "404"],
    ]
    assert "C1" not in "".join(lines)


def test_the_service_connects_to_nobody(running, monkeypatch):
    """What is asked is told to no other party: the service answers from its own disk."""
    caller, run, _ = running
    connect, threads = socket.socket.connect, []

    def noted(self, address):
        threads.append(threading.current_thread())
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", noted)
    caller.predict("C1", "C9")
    infer_anew(run)
    caller.predict("C1")
    caller.health()
    assert threads == [threading.current_thread()] * 3, "the caller's own three, and none of the service's"


def test_one_connection_serves_several_requests_of_every_legal_form(running):
    caller, _, lines = running
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: bearer {TOKEN}\r\n"
    whole = head + 'Content-Length: 14\r\n\r\n{"ids":["C1"]}'
    chunked = head + 'Transfer-Encoding: chunked\r\n\r\n7\r\n{"ids":\r\n7\r\n["C1"]}\r\n0\r\n\r\n'
    with (
        socket.create_connection(("127.0.0.1", caller.port), timeout=5) as plain,
        caller.tls.wrap_socket(plain, server_hostname="127.0.0.1") as one,
    ):

        def answer(sent):
            one.sendall(sent.encode())
            response = http.client.HTTPResponse(one)
            response.begin()
            return response.status, json.loads(response.read())["predictions"][0]["id"]

        assert [answer(each) for each in (whole, chunked, whole)] == [(200, "C1")] * 3
        one.sendall((head + "Content-Length: 14\r\nExpect: 100-continue\r\n\r\n").encode())
        assert one.recv(4096).startswith(b"HTTP/1.1 100 ")
        assert answer('{"ids":["C1"]}') == (200, "C1")
        one.sendall(f"GET /health HTTP/1.1\r\nHost: x\r\n\r\n{whole}".encode())  # the second before the first's answer
        while sum(line.endswith(" ms") for line in lines) < 6:
            assert one.recv(4096)
    assert [line.split()[2:5] for line in lines[:4]] == [["POST", "/predict", "200"]] * 4


@pytest.mark.parametrize(
    "said",
    [
        "Content-Length: 14\r\nContent-Length: 15\r\n",
        "Content-Length: 14\r\nTransfer-Encoding: gzip\r\n",
        "Content-Length: -1\r\n",
        "Content Length: 14\r\n",
        "Host: y\r\n",
    ],
)
def test_a_head_that_can_be_read_in_two_ways_is_refused(running, said):
    caller, _, _ = running
    with (
        socket.create_connection(("127.0.0.1", caller.port), timeout=5) as plain,
        caller.tls.wrap_socket(plain, server_hostname="127.0.0.1") as one,
    ):
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n{said}\r\n"
        one.sendall(head.encode() + b'{"ids":["C1"]}GET /health HTTP/1.1\r\nHost: x\r\n\r\n')
        found = b""
        while piece := one.recv(4096):
            found += piece
    assert found.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 "))
    assert found.count(b"HTTP/1.1 ") == 1
    assert caller.predict("C1")[0] == 200


def test_plain_http_is_refused(running):
    caller, _, _ = running
    with socket.create_connection(("127.0.0.1", caller.port), timeout=5) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            received = plain.recv(1000)
        except ConnectionResetError:
            received = b""
    assert b"HTTP" not in received
    assert caller.health()[0] == 200


def test_old_tls_is_refused(running):
    caller, _, _ = running
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    tls.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        tls.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        tls.minimum_version = ssl.TLSVersion.TLSv1
    with socket.create_connection(("127.0.0.1", caller.port), timeout=5) as plain, pytest.raises(ssl.SSLError):
        tls.wrap_socket(plain)


def test_a_caller_that_leaves_midway_harms_nobody(running):
    caller, _, lines = running
    with (
        socket.create_connection(("127.0.0.1", caller.port), timeout=5) as plain,
        caller.tls.wrap_socket(plain, server_hostname="127.0.0.1") as one,
    ):
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 100\r\n\r\n"
        one.sendall(head.encode() + b'{"ids"')
    caller.wait_for_line(0)
    assert "POST /predict 400" in lines[0]
    assert caller.predict("C1")[0] == 200


# ---- the command's work


def arguments(tmp_path, pair, **changed):
    """What ``serve`` is called with when all is well, but for ``changed``."""
    token_file = tmp_path / "token"
    if not token_file.exists():
        make_token_file(token_file)
    usual = {"host": "127.0.0.1", "port": 0, "certificate": pair[0], "key": pair[1], "token_file": token_file}
    return usual | {"report": lambda _line: None} | changed


def test_serves_until_it_is_told_to_stop_with_metrics_and_a_log_of_objects(pair, tmp_path):
    pytest.importorskip("prometheus_client")
    run, seen, lines = make_run(tmp_path / "run"), {}, []
    listening = threading.Event()

    def report(line):
        lines.append(line)
        if line.name == "listening":
            listening.set()

    def fetched(path):
        connection = http.client.HTTPConnection(lines[0].facts["address"], timeout=5)
        with closing(connection):
            connection.request("GET", path)
            with connection.getresponse() as response:
                return response.status, response.read().decode()

    def visit():
        if not listening.wait(10):
            return
        try:
            caller = Caller(lines[-1].facts["port"], pair[0], lines)
            statuses = [caller.predict("C1", token=token)[0] for token in (read_token(tmp_path / "token"), "0" * 40)]
            seen["asked"] = [*statuses, caller.ask("GET", "/C1secret?id=C1secret")[0]]
            time.sleep(1.1)
            seen["answers"] = [fetched(path) for path in ("/metrics", "/ready", "/healthz", "/predict", "/health")]
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    visitor = threading.Thread(target=visit)
    visitor.start()
    serve(run, **arguments(tmp_path, pair, report=report, metrics=read_address("127.0.0.1:0", beyond=False)))
    visitor.join(10)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert seen["asked"] == [200, 401, 404]
    metrics = seen["answers"][0][1]
    assert [status for status, _ in seen["answers"]] == [200, 200, 200, 404, 404]
    for path, status in (("/predict", 200), ("/predict", 401), ("(other)", 404)):
        assert f'veilgraph_serve_requests_total{{path="{path}",status="{status}"}} 1.0' in metrics
    assert "C1" not in metrics
    requests = [line.facts for line in lines if line.name == "request"]
    assert [(facts["path"], facts["status"]) for facts in requests] == [
        ("/predict", 200),
        ("/predict", 401),
        ("(other)", 404),
    ]
    assert "C1" not in repr([vars(line) for line in lines])


@pytest.mark.parametrize(
    "address", [{"port": 70_000}, {"port": -1}, {"host": "192.0.2.1"}, {"host": "a..b"}, {"host": "127.0.0.1"}], ids=str
)
def test_no_such_address_or_a_port_in_use(pair, tmp_path, address):
    ((key, value),) = address.items()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        in_use = {"port": taken.getsockname()[1]} if value == "127.0.0.1" else {}
        with refused(ConfigError, key=f"--{key}", value=value):
            serve(make_run(tmp_path / "run"), **arguments(tmp_path, pair, **address, **in_use))


def quiet(_line: str) -> None:
    """Nobody listens."""


def test_runs_that_cannot_be_served(tmp_path):
    begun, graphs = make_run(tmp_path / "begun", infer=False), make_run(tmp_path / "graphs", ids=None)
    elsewhere, damaged = make_run(tmp_path / "elsewhere"), make_run(tmp_path / "damaged")
    (elsewhere / "parties" / "bank").rename(elsewhere / "parties" / "shop")
    predictions_file(damaged).write_bytes(b"nothing")
    vertical = make_run(tmp_path / "vertical", reporter="shop")
    for run, kind, key in (
        (tmp_path, RunError, tmp_path),
        (begun, RunError, begun / "parties" / "bank"),
        (graphs, ConfigError, predictions_file(graphs)),
        (elsewhere, RunError, elsewhere),
        (damaged, RunError, predictions_file(damaged)),
        (vertical, RunError, vertical),
    ):
        with refused(kind, key=key):
            NewestInference(run, quiet)
    assert not (elsewhere / "parties" / "bank").exists()
    horizontal = make_run(tmp_path / "horizontal", reporter="shop", paradigm="horizontal")
    assert NewestInference(horizontal, quiet).get().predictions.ids is not None, "every holder serves its own"


@pytest.mark.parametrize("age_s", [0, -1, float("inf"), float("nan")])
def test_ages_that_are_none(tmp_path, age_s):
    with refused(ConfigError, key="max_age_s"):
        create_routes(NewestInference(make_run(tmp_path / "run"), quiet), TOKEN, age_s)


@pytest.mark.parametrize("token", ["", "short", "x" * 31, "x" * 600, "x" * 32 + " y", "ü" * 40])
def test_tokens_that_are_none(tmp_path, token):
    with refused(ConfigError, key="token") as caught:
        create_routes(NewestInference(make_run(tmp_path / "run"), quiet), token)
    assert not token or token not in str(caught.value)


def test_token_files(tmp_path):
    path = tmp_path / "token"
    with refused(ConfigError, key="--token-file"):
        read_token(path)
    make_token_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    token = read_token(path)
    assert len(token) == 43
    for there in (path, tmp_path / "none" / "token"):
        with refused(RunError, key=there):
            make_token_file(there)
    assert read_token(path) == token
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with refused(ConfigError, key="--token-file") as caught:
            read_token(path)
        assert "chmod 600 it" in str(caught.value)
    path.chmod(0o600)
    path.write_text("a secret too short")
    with refused(ConfigError, key="--token-file") as caught:
        read_token(path)
    assert "secret" not in str(caught.value).replace(str(path), "")


def test_certificates_and_keys(pair, tmp_path):
    certificate, key = pair
    other = self_signed("service.example", tmp_path / "other")
    locked = tmp_path / "locked.pem"
    private = load_pem_private_key(key.read_bytes(), None)
    locked.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word")))
    locked.chmod(0o600)
    for paths, kind, named in (
        ((certificate, other[1]), DataError, "--key"),
        ((tmp_path / "none", key), ConfigError, "--certificate"),
        ((certificate, tmp_path / "none"), ConfigError, "--key"),
        ((key, key), DataError, "--certificate"),
        ((certificate, locked), DataError, "--key"),
    ):
        with refused(kind, key=named):
            server_tls(*paths)
    other[1].chmod(0o604)
    with pytest.raises(ConfigError, match=r"everyone may use it \(mode 604\); chmod 600 it"):
        server_tls(*other)


def test_elsewhere_than_in_the_main_thread(pair, tmp_path):
    refused = []

    def call():
        try:
            serve(make_run(tmp_path / "run"), **arguments(tmp_path, pair))
        except ConfigError as error:
            refused.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(10)
    assert "main thread" in refused[0]
