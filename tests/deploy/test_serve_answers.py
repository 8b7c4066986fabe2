"""Answers over HTTPS from a prediction whose shares were kept: the session opens what nobody has asked for before."""

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typing_extensions import override

from tests.deploy.self_signed import self_signed
from tests.paradigms.apart import apart
from tests.paradigms.cutting import CutError
from tests.paradigms.sealed.programs import small_graphs, small_job
from tests.roles.federation import merge
from veilgraph.core.errors import LinkTimeout, RunError
from veilgraph.deploy.https import HttpServer, server_tls
from veilgraph.deploy.serve import NewestInference, create_routes
from veilgraph.paradigms.sealed.answers import AskingHolder
from veilgraph.protocol.job_file import parse_job, read_job
from veilgraph.protocol.judge import ANSWERED, Answers, Predicted
from veilgraph.protocol.messages import revelation_causes
from veilgraph.runtime.session import answering
from veilgraph.runtime.session.answering import answer
from veilgraph.runtime.store.predictions import save_predictions
from veilgraph.runtime.store.run_directory import PartyStore, RunDirectory
from veilgraph.samples.organisations import export_organisations

TOKEN = "0123456789abcdef" * 2
IDS = ("C1", "C2", "C3", "C4")
CHANCES = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875], [1.0, 0.0]], dtype=torch.float64)
FIRST = "first"


class Opens(Answers):
    """Opens what it is asked for, ``most`` nodes in all."""

    def __init__(self, prepared: str = FIRST, most: int = 3) -> None:
        self.prepared, self.most = prepared, most
        self.asked: list[list[int]] = []
        self.stopped = threading.Event()
        self.may = threading.Event()
        self.may.set()
        self.failed = False
        self.waits = threading.Event()

    @override
    def setup(self, held: Sequence[Any]) -> Any:
        return None

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        if self.stopped.wait(0.05):
            raise CutError

    @override
    def backward(self, step: int) -> None:
        raise AssertionError

    @override
    def ask(self, prepared: str, nodes: Sequence[int], wait_s: float) -> Predicted:
        if prepared != self.prepared:
            raise RunError("ask again", code="other-prediction")
        self.waits.set()
        if not self.may.wait(wait_s):
            raise LinkTimeout("ask again")
        if self.failed:
            raise RunError("the session has ended", code="ended")
        if len({node for some in (*self.asked, nodes) for node in some}) > self.most:
            raise RunError("named_nodes=3", code="used-up")
        self.asked.append(list(nodes))
        return Predicted(CHANCES[list(nodes)])

    @override
    def fail(self, error: BaseException) -> None:
        self.failed = True
        self.may.set()


class Notes:
    def note(self) -> None:
        """Nothing."""


def is_open(path: Path) -> bool:
    """Whether somebody listens at a socket; in a path of its folder, as an address has 108 bytes."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as asks:
            return asks.connect_ex(f"/proc/self/fd/{folder}/{path.name}") == 0
    finally:
        os.close(folder)


@contextmanager
def opened_by(store: PartyStore, role: Opens) -> Iterator[None]:
    """The session of a label holder, in a thread."""

    def work() -> None:
        with pytest.raises(CutError):
            answer(role, store, Notes())  # type: ignore[arg-type]

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    deadline = time.monotonic() + 5
    while not any(map(is_open, store.path.glob("*.socket"))):  # it is there before anybody listens
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield
    finally:
        role.stopped.set()
        thread.join(5)
        assert not thread.is_alive()
    assert not list(store.path.glob("*.socket"))


class Caller:
    def __init__(self, port: int, certificate: Path) -> None:
        self.port, self.tls = port, ssl.create_default_context(cafile=certificate)

    def predict(self, *ids: str) -> tuple[int, Any]:
        connection = HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.tls)
        try:
            body = json.dumps({"ids": list(ids)})
            connection.request("POST", "/predict", body, {"Authorization": f"Bearer {TOKEN}"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed("127.0.0.1", tmp_path_factory.mktemp("tls"))


@contextmanager
def service(pair: tuple[Path, Path], run: Path) -> Iterator[Caller]:
    door = HttpServer(create_routes(NewestInference(run, lambda _: None), TOKEN), server_tls(*pair))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=door.run, args=(listener,))
        thread.start()
        try:
            yield Caller(listener.getsockname()[1], pair[0])
        finally:
            door.close()
            thread.join(20)


def kept_run(path: Path, prepared: str = FIRST) -> PartyStore:
    """The label holder's part of a run whose newest prediction was kept."""
    settings = {"name": "fraud", "data": {"holders": ["bank", "shop"], "label_holder": "bank"}}
    run = RunDirectory.open(path) if path.exists() else RunDirectory.create(path, parse_job(settings))
    store = run.party("bank")
    store.model_path.write_bytes(b"the label holder's part of the model")
    predicted = Predicted(CHANCES[:0], nodes=torch.empty(0, dtype=torch.int64), prepared=prepared)
    save_predictions(store, predicted, IDS, ("good", "fraud"))
    return store


def chances(found: Any) -> dict[str, float]:
    return {each["id"]: each["probabilities"]["good"] for each in found["predictions"]}


def test_what_nobody_asked_for_is_opened_and_the_rest_is_known(pair: tuple[Path, Path], tmp_path: Path) -> None:
    store, role = kept_run(tmp_path / "run"), Opens()
    with service(pair, tmp_path / "run") as caller, opened_by(store, role):
        status, found = caller.predict("C3", "nobody", "C1", "C3")
        assert (status, found["unknown"]) == (200, ["nobody"])
        assert [each["id"] for each in found["predictions"]] == ["C3", "C1", "C3"]
        assert [each["class"] for each in found["predictions"]] == ["fraud", "good", "fraud"]
        assert chances(found) == {"C3": 0.125, "C1": 0.75}
        assert chances(caller.predict("C2", "C1")[1]) == {"C2": 0.5, "C1": 0.75}
        assert role.asked == [[2, 0], [1]]
        status, refusal = caller.predict("C1", "C4")
        assert (status, refusal["detail"]) == (409, "named_nodes=3")
        assert caller.predict("C1", "C2", "C3")[0] == 200
        assert len(role.asked) == 2


def test_without_a_session_there_is_an_answer_for_what_was_opened_alone(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    store = kept_run(tmp_path / "run")
    opened = {"nodes": torch.tensor([3, 1]), "probabilities": CHANCES[[3, 1]]}
    store.keeper.put(ANSWERED, opened, {"prepared": FIRST})
    with service(pair, tmp_path / "run") as caller:
        assert chances(caller.predict("C4", "C2")[1]) == {"C4": 1.0, "C2": 0.5}
        status, refusal = caller.predict("C4", "C1")
        assert status == 503
        assert "--work refresh" in refusal["detail"]
        with opened_by(store, Opens()):
            assert chances(caller.predict("C4", "C1")[1]) == {"C4": 1.0, "C1": 0.75}
        assert chances(caller.predict("C1")[1]) == {"C1": 0.75}, "from memory"
        assert caller.predict("C3")[0] == 503
        kept_run(tmp_path / "run", "second")
        assert caller.predict("C4")[0] == 503, "what was opened is of the first"
        with opened_by(store, Opens()):
            assert caller.predict("C4")[0] == 503, "and so is the session"
        with opened_by(store, Opens("second")):
            assert caller.predict("C4")[0] == 200


def test_a_holder_that_is_away_delays_nobody_else(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "ANSWER_S", 0.5)
    store, role = kept_run(tmp_path / "run"), Opens()
    with service(pair, tmp_path / "run") as caller, opened_by(store, role):
        assert caller.predict("C1")[0] == 200
        role.may.clear()
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(caller.predict, text) for text in ("C2", "C3")]
            began = time.monotonic()
            assert caller.predict("C1")[0] == 200
            assert time.monotonic() - began < 0.4
            assert [each.result()[0] for each in waiting] == [503, 503]
        role.may.set()
        assert caller.predict("C2")[0] == 200
        role.may.clear()
        monkeypatch.setattr(answering, "ANSWER_S", 60)
        with ThreadPoolExecutor(1) as pool:
            role.waits.clear()
            waiting = [pool.submit(caller.predict, "C3")]
            assert role.waits.wait(5)
            role.stopped.set()
            status, found = waiting[0].result(9)
            assert (status, found["detail"]) == (503, "the session has ended")


def test_the_socket_answers_questions_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is this account's; what is no question, or is cut off, ends nothing."""
    store = kept_run(tmp_path / "run")
    with opened_by(store, Opens()):
        (path,) = store.path.glob("*.socket")
        monkeypatch.chdir(store.path)  # an address has 108 bytes
        assert oct(path.stat().st_mode)[-3:].endswith("00"), "nobody else may"
        for line in (
            b"",
            b"{}\n",
            b'{"prepared": 1, "nodes": [1]}\n',
            b'{"prepared": "first", "nodes": []}\n',
            b"\xff\n",
        ):
            with socket.socket(socket.AF_UNIX) as asks:
                asks.connect(str(path.relative_to(Path.cwd())))
                asks.sendall(line)
                asks.shutdown(socket.SHUT_WR)
                with asks.makefile() as said:
                    assert json.loads(said.read())["code"] == "question"


def test_a_job_across_organisations_answers_over_https(pair: tuple[Path, Path], tmp_path: Path) -> None:
    online = {"named_nodes": 2, "online": True}
    files = export_organisations(small_graphs(), tmp_path / "tables", overlap=1, seed=1, job=small_job(2))
    usual = read_job(tmp_path / "tables" / "network-job.yaml").model_dump(mode="json")
    settings = parse_job(merge(usual, online, {"output": "margins"}))
    for party, path in files.items():
        limits = {"limits": {"leakage": [*revelation_causes(settings, party)]}}
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | limits))
    apart(tmp_path, files, settings, "train")
    runs = apart(tmp_path, files, settings, "predict")
    stop, forward = threading.Event(), AskingHolder.forward

    def until(self: AskingHolder, step: int, epoch: int | None) -> None:
        if stop.is_set():
            raise CutError
        forward(self, step, epoch)

    def session() -> None:
        with pytest.raises(CutError):
            apart(tmp_path, files, settings, "answer")

    one, two = service(pair, runs["A"]), service(pair, runs["A"])
    with pytest.MonkeyPatch.context() as patch, one as caller, two as replica:
        patch.setattr(AskingHolder, "forward", until)
        assert caller.predict("C000003")[0] == 503
        thread = threading.Thread(target=session)
        thread.start()
        deadline = time.monotonic() + 30
        while (answered := caller.predict("C000003"))[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        found = answered[1]
        assert found["predictions"][0]["id"] == "C000003"
        assert sum(found["predictions"][0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert replica.predict("C000003", "C000020")[0] == 200
        assert caller.predict("C000020")[0] == 200
        assert caller.predict("C000004")[0] == 409
        patch.setattr("veilgraph.runtime.launch.site.LAST_JOB_S", 0.1)
        with pytest.raises(RunError, match="in use by another"):  # two sessions would count by one file
            apart(tmp_path, files, settings, "answer")
        stop.set()
        thread.join(30)
        assert not thread.is_alive()
        for each in (caller, replica):
            assert each.predict("C000003", "C000020")[1]["predictions"][0] == found["predictions"][0]
    lines = (runs["B"] / "parties" / "B" / "disclosures.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    assert {name for each in told if each["work"] == "answer" for name in each["reveals"]} == {
        "named-classes",
        "named-margins",
    }
    told = [json.loads(line) for line in (runs["A"] / "parties" / "A" / "disclosures.jsonl").read_text().splitlines()]
    assert {name for each in told for name in each["reveals"]} == {"answer-times"}
