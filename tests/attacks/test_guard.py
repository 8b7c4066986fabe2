"""The guard by itself: every request that anybody could make of a cell, with connections made up.

A hostile server, a hostile parent process, a hostile holder: what each may say to each cell is exactly what
``guard.policy`` lists, and the attempt is noted under the name of the connection's other end.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the extra veilgraph[deploy] is not installed")

from nvflare.apis.fl_constant import ReturnCode
from nvflare.fuel.f3 import communicator
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.drivers.driver_manager import DriverManager
from nvflare.fuel.f3.message import Message
from nvflare.fuel.hci.client.file_transfer import FileTransferModule
from nvflare.fuel.hci.file_transfer_defs import PULL_FOLDER_FQN
from nvflare.fuel.hci.reg import CommandSpec
from nvflare.private import admin_defs
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from tests.attacks.known import KNOWN
from veilgraph.deploy import engine
from veilgraph.deploy.guard import commands, hooks, sockets
from veilgraph.deploy.guard.ingress import Guard
from veilgraph.deploy.guard.policy import LOCAL_SCHEME, NOTICE, OURS, RELAY_RULES, RULES, SITE_TOPICS, CellName, Rule
from veilgraph.deploy.guard.sockets import LocalConnection
from veilgraph.deploy.submission import TASK, encode_request
from veilgraph.link.channel import FROM_HEADER
from veilgraph.link.refusals import MAX_KINDS

JOB, OTHER = "aaaaaaaa-1111-4111-8111-111111111111", "bbbbbbbb-2222-4222-8222-222222222222"
ADMIN = f"_admin_{JOB}"
CELLS = ("server", f"server.{JOB}", "A", f"A.{JOB}", f"A.{OTHER}", "C", f"C.{JOB}", f"C.{OTHER}", ADMIN)


class Wire:
    """A connection over TLS, as FLARE shows it."""

    def __init__(self, common_name: str | None) -> None:
        self.common_name, self.closed = common_name, False
        self.context = SimpleNamespace(auth_context=lambda: {"x509_pem_cert": [b"pem"]})

    def get_conn_properties(self) -> dict[str, str]:
        return {} if self.common_name is None else {"peer_cn": self.common_name}

    def close(self) -> None:
        self.closed = True


def local() -> LocalConnection:
    return LocalConnection.__new__(LocalConnection)


class Cell:
    """The little of a cell that the guard asks for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiters: dict[str, Any] = {}
        self.agents = dict.fromkeys(("A", "B", "C"))
        self.told: list[tuple[str, dict[str, str]]] = []
        self.telling = threading.Event()

    def get_fqcn(self) -> str:
        return self.name

    def fire_and_forget(self, channel: str, topic: str, site: str, message: Message, optional: bool) -> None:
        assert (channel, topic, optional) == (OURS, NOTICE, True)
        self.told.append((site, json.loads(message.payload)))
        self.telling.set()


def arrival(at: str, origin: str) -> tuple[str, Any]:
    """The honest way from one cell to another: endpoint and connection."""
    me, sender = CellName.read(at), CellName.read(origin)
    assert me is not None
    assert sender is not None
    if me.who == "server":
        if sender.who == "server job":
            return origin, local()
        return origin, Wire("ops@example.org" if sender.who == "administrator" else sender.site)
    if me.who == "server job":
        return "server", local()
    if sender.site == me.site:
        return origin, local()
    return "server", Wire(None)


def headers(channel: str, topic: str, origin: str, to: str, streamed: bool = False, **others: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "cn__msg_type": "req",
        "cn__channel": channel,
        "cn__topic": topic,
        "cn__origin": origin,
        "cn__destination": to,
        "cn__payload_encoding": "bytes",
    }
    if streamed:
        said |= {"cn__channel": "sm__STREAM", "cn__topic": "sm__DATA", "sm__ch": channel, "sm__tp": topic, "sm__sz": 9}
    return said | others


def admits(at: str, endpoint: str, connection: Any, said: dict[str, Any], payload: bytes = b"x") -> bool:
    return Guard(Cell(at)).admits(SimpleNamespace(name=endpoint), connection, Message(said, payload))


def requests() -> Iterator[tuple[str, str, bool]]:
    topics = {(rule.channel, rule.topic) for rule in RULES}
    topics |= {(channel, topic.replace("*", "abort")) for channel, each in KNOWN.items() for topic in each}
    for channel, topic in sorted(topics - {(OURS, NOTICE)}):
        if channel != "sm__STREAM":
            yield from ((channel, topic, False), (channel, topic, True))


def test_who_was_heard_of_is_who_was_let_in_from_another_machine() -> None:
    heard: list[str] = []

    def hear(at: str, endpoint: str, connection: Any, said: dict[str, Any]) -> bool:
        guard = Guard(Cell(at), heard=heard.append)
        return guard.admits(SimpleNamespace(name=endpoint), connection, Message(said, b"x"))

    beat = ("task", "heart_beat")
    assert hear("server", "A", Wire("A"), headers(*beat, "A", "server"))
    assert hear("A", "server", Wire(None), headers("admin", "admin", "server", "A"))
    assert heard == ["A", "server"]
    heard.clear()
    assert not hear("server", "A", Wire("C"), headers(*beat, "A", "server")), "in another's name"
    assert not hear("A", "server", Wire(None), headers("admin", "shell", "server", "A")), "what is not listed"
    assert hear("server", ADMIN, Wire("ops@example.org"), headers("task", "quit", ADMIN, "server"))
    assert hear("A", f"A.{JOB}", local(), headers("cellnet.channel", "bye", f"A.{JOB}", "A")), "of its own machine"
    assert not heard


@pytest.mark.parametrize("at", CELLS)
def test_a_cell_takes_what_is_listed_and_nothing_else(at: str) -> None:
    """Each request that is registered anywhere, from each cell, on the way on which an honest one would come."""
    me = CellName.read(at)
    assert me is not None
    let_in = set()
    for origin in CELLS:
        if origin == at:
            continue
        endpoint, connection = arrival(at, origin)
        for channel, topic, streamed in requests():
            if admits(at, endpoint, connection, headers(channel, topic, origin, at, streamed)):
                let_in.add((channel, topic, origin, streamed))
    expected = set()
    for origin in CELLS:
        sender = CellName.read(origin)
        assert sender is not None
        for channel, topic, streamed in requests():
            if Rule(me.who, channel, topic, sender.who, streamed) in RULES and _belong(me, sender, channel):
                expected.add((channel, topic, origin, streamed))
    assert let_in == expected


@pytest.mark.cases(5)
@pytest.mark.parametrize("at", CELLS)
def test_where_another_site_deals_the_server_is_no_party(at: str) -> None:
    """All is as where the server deals, but for messages of a job to it and from it."""
    me = CellName.read(at)
    assert me is not None
    for origin in set(CELLS) - {at}:
        sender, (endpoint, connection) = CellName.read(origin), arrival(at, origin)
        assert sender is not None
        for channel, topic, streamed in requests():
            said = headers(channel, topic, origin, at, streamed)
            message = Message(dict(said), b"x")
            relays = Guard(Cell(at), rules=RELAY_RULES).admits(SimpleNamespace(name=endpoint), connection, message)
            party = channel == OURS and "server job" in (me.who, sender.who)
            assert relays == (admits(at, endpoint, connection, said) and not party), (origin, channel, topic)
    for origin, to in ((f"A.{JOB}", f"server.{JOB}"), (f"A.{JOB}", f"C.{JOB}")):
        message = Message(headers(OURS, "frame", origin, to), b"x")
        forwards = Guard(Cell("server"), rules=RELAY_RULES).admits(SimpleNamespace(name="A"), Wire("A"), message)
        assert forwards == (to == f"C.{JOB}")


def _belong(me: CellName, sender: CellName, channel: str) -> bool:
    """Written out by hand: a job's cells are among themselves, and a parent has its own jobs alone."""
    if me.whole == sender.whole:
        return False
    if {me.who, sender.who} == {"holder", "holder job"} and me.site != sender.site:
        return False
    return not (me.job and sender.job and me.job != sender.job)


@pytest.mark.cases(25)
@pytest.mark.parametrize("at", CELLS)
@pytest.mark.parametrize("through", CELLS)
def test_no_cell_is_believed_to_be_another(at: str, through: str) -> None:
    """What comes through one connection in the name of a cell that is not behind it."""
    endpoint, connection = arrival(at, through)
    behind = {endpoint, through}
    if endpoint == "server" and at != "server":
        behind |= {cell for cell in CELLS if "." in cell or cell in ("A", "C")} - {cell for cell in CELLS if
                   cell.partition(".")[0] == at.partition(".")[0]}  # fmt: skip
    if at == "server" and through in ("A", "C"):
        behind |= {cell for cell in CELLS if cell.startswith(f"{through}.")}
    if "." in at and endpoint == at.partition(".")[0]:
        behind = set(CELLS)  # its own parent has checked it
    for origin in set(CELLS) - behind - {at}:
        for channel, topic, streamed in requests():
            said = headers(channel, topic, origin, at, streamed)
            assert not admits(at, endpoint, connection, said), (origin, channel, topic)


def test_a_certificate_is_for_its_own_cells() -> None:
    said = headers("task", "heart_beat", "A", "server")
    assert admits("server", "A", Wire("A"), said)
    for common_name in ("C", "server", "localhost", "ops@example.org", "", None):
        assert not admits("server", "A", Wire(common_name), said)
        assert not admits("server", "server", Wire(common_name), headers("task", "heart_beat", "server", "server"))
    for common_name in ("C", "server", None):
        assert not admits("server", ADMIN, Wire(common_name), headers("hci_channel", "command", ADMIN, "server", True))
    assert not admits("server", "A", Wire("A"), said | {"client_name": "C"})
    assert not admits(f"server.{JOB}", "server", Wire(None), headers(OURS, "frame", f"A.{JOB}", f"server.{JOB}"))
    assert not admits("A", "C", Wire(None), headers("admin", "admin", "server", "A"))
    between = headers(OURS, "frame", f"C.{JOB}", f"A.{JOB}")
    assert admits(f"A.{JOB}", "server", Wire(None), between)
    assert not admits(f"A.{JOB}", f"C.{JOB}", Wire(None), between)  # holders meet at the server alone


def test_a_revoked_certificate_says_nothing_more_and_is_cut_off() -> None:
    cell, wire = Cell("server"), Wire("A")
    guard = Guard(cell, lambda certificate: "revoked on some day" if certificate == b"pem" else None)
    message = Message(headers("task", "heart_beat", "A", "server"), b"x")
    assert not guard.admits(SimpleNamespace(name="A"), wire, message)
    assert wire.closed
    assert Guard(cell, lambda certificate: None).admits(SimpleNamespace(name="A"), Wire("A"), message)


@pytest.mark.parametrize("header", ["cn__secure", "cn__conn_url", "cn__pass_through"])
def test_headers_that_nobody_uses(header: str) -> None:
    said = headers(OURS, "frame", f"C.{JOB}", f"A.{JOB}")
    assert admits(f"A.{JOB}", "server", Wire(None), said | {header: False})
    assert not admits(f"A.{JOB}", "server", Wire(None), said | {header: "tcp://10.0.0.1:1"})


@pytest.mark.parametrize(
    "change",
    [{"cn__payload_encoding": "fobs"}, {"cn__payload_encoding": None}, {"cn__msg_type": "REQ"}, {"cn__msg_type": None},
     {"cn__origin": 7}, {"cn__destination": "A.x"}, {"cn__channel": None}, {"cn__topic": ["frame"]},
     {"cn__origin": f"C.{JOB}\n"}, {"cn__origin": f"C.{JOB.upper()}x"}],
)  # fmt: skip
def test_what_is_malformed_is_refused(change: dict[str, Any]) -> None:
    said = headers(OURS, "frame", f"C.{JOB}", f"A.{JOB}")
    assert not admits(f"A.{JOB}", "server", Wire(None), said | change)


def test_headers_that_are_none() -> None:
    strange: list[Any] = [None, {}, {1: 2}, [1], "text"]
    for said in strange:
        assert not admits("A", "server", Wire(None), said)
    guard = Guard(Cell("A"))
    assert not guard.admits(None, Wire(None), Message({}, b""))
    assert not guard.admits(SimpleNamespace(name="server"), None, Message({}, b""))


def test_control_messages_are_small() -> None:
    said = headers("admin", "admin", "server", "A")
    assert admits("A", "server", Wire(None), said)
    assert not admits("A", "server", Wire(None), said, bytes(17 << 20))
    stream = headers("aux_communication", "__end_run__", f"server.{JOB}", f"A.{JOB}", True)
    assert admits(f"A.{JOB}", "server", Wire(None), stream)
    for size in (1 << 30, "9", None, 1e400):
        assert not admits(f"A.{JOB}", "server", Wire(None), stream | {"sm__sz": size})


def test_an_answer_is_let_in_where_it_was_asked_for() -> None:
    cell = Cell(f"A.{JOB}")
    cell.waiters["asked"] = SimpleNamespace(targets=[f"C.{JOB}"])
    guard = Guard(cell)

    def answer(origin: str, kind: str = "reply", **others: Any) -> bool:
        said = headers(OURS, "frame", origin, f"A.{JOB}", cn__msg_type=kind, cn__req_id="asked") | others
        return guard.admits(SimpleNamespace(name="server"), Wire(None), Message(said, b""))

    assert answer(f"C.{JOB}")
    assert not answer(f"C.{OTHER}")
    assert not answer(f"server.{JOB}")
    assert not answer(f"C.{JOB}", cn__req_id="never")
    assert not answer(f"C.{JOB}", cn__req_id=["asked", "never"])
    for nothing in (None, "", [], {}, 0, 1.5, {"asked": 1}, [["asked"]], b"asked"):
        assert not answer(f"C.{JOB}", cn__req_id=nothing), nothing
        assert not answer("C", "return", cn__original_headers={"cn__destination": f"C.{JOB}"}, cn__req_id=nothing)
    returned = {"cn__original_headers": {"cn__destination": f"C.{JOB}"}}
    assert answer("C", "return", **returned)
    assert answer("server", "return", **returned)
    assert not answer("B", "return", **returned)
    assert not answer("C", "return", cn__original_headers={"cn__destination": f"B.{JOB}"})
    assert not answer("C", "return")


def test_a_streamed_answer_is_to_a_stream_of_that_kind() -> None:
    def answer(what: str, origin: str = f"server.{JOB}") -> bool:
        said = headers("return_only", what, origin, f"A.{JOB}", True)
        return admits(f"A.{JOB}", "server", Wire(None), said)

    assert answer("server_command:get_task")
    assert not answer("server_command:app_command")
    assert not answer("aux_communication:__end_run__")
    assert not answer("server_command:get_task", f"C.{JOB}")
    notice = headers("sm__STREAM", "sm__ACK", f"server.{JOB}", f"A.{JOB}")
    assert admits(f"A.{JOB}", "server", Wire(None), notice)
    assert not admits(f"A.{JOB}", "server", Wire(None), notice | {"cn__origin": f"C.{JOB}"})
    assert not admits("A", "server", Wire(None), notice | {"cn__origin": "server", "cn__destination": "A"})


@pytest.mark.parametrize("at", ["server", "A"])
def test_what_is_forwarded(at: str) -> None:
    """Between the processes of one job, what their receivers take; a holder's parent for its own jobs alone."""

    def forwards(said: dict[str, Any]) -> bool:
        endpoint, connection = arrival(at, said["cn__origin"])
        return admits(at, endpoint, connection, said)

    assert forwards(headers(OURS, "frame", f"C.{JOB}", f"A.{JOB}"))
    assert forwards(headers("server_command", "get_task", f"A.{JOB}", f"server.{JOB}", True))
    assert not forwards(headers(OURS, "frame", f"C.{JOB}", f"A.{OTHER}"))
    assert not forwards(headers(OURS, "frame", f"C.{JOB}", "A" if at == "server" else "C"))
    assert not forwards(headers(OURS, NOTICE, f"C.{JOB}", f"A.{JOB}"))
    assert not forwards(headers("cellnet.channel", "bye", "server" if at == "A" else f"C.{JOB}", f"A.{JOB}"))
    assert not forwards(headers("client_command", "abort", f"C.{JOB}", f"A.{JOB}"))
    assert not forwards(headers("admin", "admin", f"A.{JOB}", "C"))
    assert forwards(headers(OURS, "frame", f"C.{JOB}", f"B.{JOB}")) == (at == "server")
    assert forwards(headers(OURS, "frame", f"C.{JOB}", f"A.{JOB}", cn__msg_type="reply"))
    assert not forwards(headers("admin", "admin", f"C.{JOB}", f"A.{JOB}", cn__msg_type="reply"))
    assert not forwards(headers(OURS, "frame", f"C.{JOB}", f"A.{OTHER}", cn__msg_type="reply"))
    others: list[Any] = ["x" * 3000, "", None, 5, ["frame"], NOTICE]
    for topic in others:  # FLARE would keep a statistic for each, for ever
        assert not forwards(headers(OURS, topic, f"C.{JOB}", f"A.{JOB}", cn__msg_type="reply")), topic

    def returns(channel: object, topic: object) -> bool:
        of = {"cn__channel": channel, "cn__topic": topic}
        return forwards(headers(OURS, "frame", f"C.{JOB}", f"A.{JOB}", cn__msg_type="return", cn__original_headers=of))

    assert returns(OURS, "frame")
    assert returns("sm__STREAM", "sm__DATA")
    unsent: list[tuple[object, object]] = [
        (OURS, "x"),
        ("x", "frame"),
        ("server_command", "get_task"),
        (None, None),
        (5, []),
    ]
    assert not [pair for pair in unsent if returns(*pair)]
    strange: list[object] = [None, "x", [], 5]
    for of in strange:
        said = headers(OURS, "frame", f"C.{JOB}", f"A.{JOB}", cn__msg_type="return", cn__original_headers=of)
        assert not forwards(said)


def test_without_the_guard_flare_keeps_what_a_stranger_writes() -> None:
    """A statistic for each name of a route, and an exception for each answer to nothing."""
    kept: list[str] = []
    cell = CoreCell.__new__(CoreCell)
    cell.my_info, cell.logger = SimpleNamespace(fqcn=f"A.{JOB}"), logging.getLogger("a cell alone")
    cell.msg_travel_stats_pool = SimpleNamespace(record_value=lambda category, value: kept.append(category))
    cell.received_msg_counter_pool = SimpleNamespace(increment=lambda category, counter_name: kept.append(category))
    for number in range(3):
        said = headers(OURS, f"topic {number}", f"C.{JOB}", f"A.{JOB}", cn__route=[[f"name {number}", 0.0]])
        with suppress(Exception):
            cell._process_received_msg(SimpleNamespace(name="server"), None, Message(said, b""))
    assert {f"name {number}#req:{OURS}:topic {number}" for number in range(3)} <= set(kept)
    answer = Message(headers(OURS, "frame", f"C.{JOB}", f"A.{JOB}", cn__msg_type="reply"), b"")
    with pytest.raises(RuntimeError, match="reply does not have REQ_ID header"):
        cell._process_reply(f"C.{JOB}", answer, "reply")


def test_the_way_that_a_message_claims_to_have_come_is_taken_off() -> None:
    """FLARE keeps a statistic for every cell that was ever named there."""
    routes: list[object] = [[["x" * 3000, 0.0]], [5], "x", {"a": 1}]
    for route in routes:
        said = headers(OURS, "frame", f"C.{JOB}", f"A.{JOB}", cn__route=route)
        assert admits(f"A.{JOB}", "server", Wire(None), said)
        assert "cn__route" not in said


def test_nothing_passes_a_process_of_a_job() -> None:
    for at in (f"A.{JOB}", f"server.{JOB}", ADMIN):
        for origin in CELLS:
            endpoint, connection = arrival(at, origin)
            assert not admits(at, endpoint, connection, headers(OURS, "frame", origin, f"B.{JOB}"))


def test_the_certified_name_is_stamped_whatever_was_written_there() -> None:
    said = headers(OURS, "frame", f"C.{JOB}", f"A.{JOB}") | {FROM_HEADER: "A"}
    assert admits("server", f"C.{JOB}", Wire("C"), said)
    assert said[FROM_HEADER] == "C"


def test_an_attempt_is_told_of_at_the_attacked_site_with_the_certified_name(caplog: pytest.LogCaptureFixture) -> None:
    cell = Cell("server")
    guard = Guard(cell)
    with caplog.at_level(logging.WARNING, "veilgraph"):
        for _ in range(12):
            said = headers("admin", "sys.shell", "server", "A")
            assert not guard.admits(SimpleNamespace(name="C"), Wire("C"), Message(said, b""))
    assert cell.telling.wait(5)
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "refused admin/sys.shell from C, which claims to be server, for A"
    ]  # the first; the others are counted a minute later
    site, notice = cell.told[0]
    assert site == "A"
    caplog.clear()
    with caplog.at_level(logging.WARNING, "veilgraph"):
        attacked = headers(OURS, NOTICE, "server", "A")
        assert not admits("A", "server", Wire(None), attacked, json.dumps(notice).encode())
        assert not admits("A", "server", Wire(None), attacked, json.dumps({"refused": "x\nforged line"}).encode())
    assert "admin/sys.shell from C, which claims to be server" in caplog.records[0].message
    assert "\n" not in caplog.records[1].message
    for origin, endpoint in ((f"C.{JOB}", "server"), ("C", "server")):
        assert not admits("A", endpoint, Wire(None), headers(OURS, NOTICE, origin, "A"), b"{}")


def test_an_attempt_cannot_be_written_so_that_nobody_is_told() -> None:
    """Of the longest names in the widest letters: a notice that did not fit would be cut, and could not be read."""
    cell, wide = Cell("server"), "\U00020000" * 500
    said = headers(wide, '"' * 500, wide, f"A.{JOB}", cn__msg_type=wide)
    assert not Guard(cell).admits(SimpleNamespace(name="C"), Wire("C"), Message(said, b""))
    assert cell.telling.wait(5)
    ((site, notice),) = cell.told
    assert site == "A"
    assert "from C, which claims to be" in notice["refused"]
    heard = logging.getLogger("veilgraph")
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr(heard, "warning", lambda text, *parts: lines.append(text % parts))
        content = json.dumps(notice, ensure_ascii=False).encode()
        assert not admits("A", "server", Wire(None), headers(OURS, NOTICE, "server", "A"), content)
    assert lines == [f"the server refused what was meant for here: {notice['refused']}"]


def test_the_server_hands_no_token_to_a_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLARE's relay puts the server's own on what it passes on; without the guard each holder has it."""
    sent: list[dict[str, Any]] = []
    dispatch = CoreCell.process_message
    monkeypatch.setattr(CoreCell, "_send_to_endpoint", lambda cell, to, message: sent.insert(0, message.headers))
    monkeypatch.setattr(CoreCell, "process_message", dispatch)
    monkeypatch.setattr(CoreCell, "veilgraph_guarded", False, raising=False)

    def given(at: str, to: str) -> bool:
        message = Message({"__token__": "t", "__token_signature__": "s", "kept": 1}, b"")
        CoreCell._send_to_endpoint(Cell(at), SimpleNamespace(name=to), message)
        assert sent[0]["kept"] == 1
        return bool({"__token__", "__token_signature__"} & set(sent[0]))

    holders = ("A", f"A.{JOB}")
    assert all(given("server", to) for to in holders)
    hooks.install()
    assert not any(given("server", to) for to in holders)
    assert given("server", ADMIN)
    assert given("server", f"server.{JOB}")
    assert all(given(at, "server") for at in holders)


def test_an_administrators_cells_are_guarded_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[str] = []
    monkeypatch.setattr(CoreCell, "process_message", lambda cell, *rest: reached.append(cell.name))
    for flag in ("veilgraph_guarded", "veilgraph_administrators_guarded"):
        monkeypatch.setattr(CoreCell, flag, False, raising=False)
    for name in ("pull_folder", "pull_binary_file"):
        monkeypatch.setattr(FileTransferModule, name, getattr(FileTransferModule, name))
    hooks.install_for_administrators()
    once = CoreCell.process_message
    hooks.install_for_administrators()
    assert CoreCell.process_message is once
    for name in (ADMIN, "A"):
        said = headers("_net_manager", "stop", "server", name)
        CoreCell.process_message(Cell(name), SimpleNamespace(name="server"), Wire(None), 1, Message(said, b""))
    assert reached == ["A"]


def test_a_server_has_an_administrator_download_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """FLARE's client takes from the server which of its functions a command is, and one unpacks what a server sends."""
    asked: list[str] = []

    def execute(command: str, **_: object) -> dict[str, object]:
        asked.append(command)
        if "pull_binary_file" in command:
            return {}
        return {"status": "SUCCESS", "meta": {"files": [["x.zip", "1"]], "tx_id": "1", "source_fqcn": "server"}}

    def command() -> dict[str, object]:
        module = FileTransferModule(str(tmp_path), str(tmp_path))
        told = CommandSpec("list_jobs", "", "", handler_func=None, client_cmd=PULL_FOLDER_FQN)
        told.scope_name = "job_mgmt"
        (made,) = module.generate_module_spec(told).cmd_specs
        api = SimpleNamespace(server_execute=execute, debug=print, do_command=execute)
        context = SimpleNamespace(
            get_command_entry=lambda: SimpleNamespace(full_command_name=lambda: "list_jobs"), get_api=lambda: api
        )
        return dict(made.handler_func(["list_jobs", "x"], context))

    command()
    assert any("pull_binary_file" in each for each in asked), "without the guard"
    asked.clear()
    for flag in ("veilgraph_guarded", "veilgraph_administrators_guarded"):
        monkeypatch.setattr(CoreCell, flag, False, raising=False)
    monkeypatch.setattr(CoreCell, "process_message", CoreCell.process_message)
    for name in ("pull_folder", "pull_binary_file"):
        monkeypatch.setattr(FileTransferModule, name, getattr(FileTransferModule, name))
    hooks.install_for_administrators()
    assert "refused" in str(command())
    assert not asked


def test_a_jobs_part_runs_in_no_process_without_a_guard(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine, "take_part", lambda *given, **named: pytest.fail("it took part"))
    monkeypatch.setattr(CoreCell, "veilgraph_guarded", False, raising=False)
    executor = engine.PartyExecutor(encode_request({}, "train", resume=False))
    context = SimpleNamespace(get_identity_name=lambda: "A")
    reply = executor.execute(TASK, None, context, None)
    assert reply.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert "this process is not guarded" in caplog.text


def test_a_flood_of_different_attempts_hides_no_revoked_certificate(caplog: pytest.LogCaptureFixture) -> None:
    """The attack: 12,000 kinds of attempts, and then a certificate that was stolen and revoked leaves no line."""
    faults: list[str | None] = [None]
    cell = Cell("server")
    guard = Guard(cell, revoked=lambda _: faults[0])

    def attempt(topic: str) -> None:
        said = headers("admin", topic, "A", "B")
        assert not guard.admits(SimpleNamespace(name="A"), Wire("A"), Message(said, b""))

    with caplog.at_level(logging.WARNING, "veilgraph"):
        for number in range(12_000):
            attempt(str(number))
        assert len(caplog.records) == MAX_KINDS
        caplog.clear()
        faults[0] = "was revoked on 2026-01-02"
        attempt("sys.shell")
        (line,) = (record.message for record in caplog.records)
        assert "sys.shell from A (certificate not accepted)" in line
        assert "was revoked on 2026-01-02" in line
        caplog.clear()
        guard._refusals._log.close()
        (line,) = (record.message for record in caplog.records)
        assert line.startswith(f"refused {12_000 - MAX_KINDS} more of A for B, the last: ")
    sites = {site for site, _ in cell.told}
    assert sites == {"B"}


def test_a_process_of_a_site_has_two_transports(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLARE by itself has HTTP, TCP and files as well: all that they do is load, and be there for whoever asks."""
    monkeypatch.setattr(communicator, "driver_mgr", DriverManager())
    monkeypatch.setattr(communicator, "load_comm_drivers", communicator.load_comm_drivers)
    sockets.register()
    for _ in range(2):  # as FLARE does for every connection
        communicator.load_comm_drivers()
    assert {scheme.removeprefix("a").removesuffix("s") for scheme in communicator.driver_mgr.drivers} == {
        "grpc",
        LOCAL_SCHEME,
    }


# Commands of a site


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FedAdminAgent:
    monkeypatch.setattr(FedAdminAgent, "register_processor", FedAdminAgent.register_processor)
    monkeypatch.setattr(FedAdminAgent, "_dispatch_request", FedAdminAgent._dispatch_request)
    commands.limit_site(tmp_path)
    made = FedAdminAgent.__new__(FedAdminAgent)
    made.processors, made.auditor = {}, None
    for processor in ClientRequestProcessors.request_processors:
        made.register_processor(processor)
    return made


def test_a_site_has_no_command_that_nobody_needs(agent: FedAdminAgent) -> None:
    assert set(agent.processors) == SITE_TOPICS
    assert {type(made).__name__ for made in agent.processors.values()} == {
        "CheckResourceProcessor",
        "CancelResourceProcessor",
        "DeployProcessor",
        "StartJobProcessor",
        "AbortAppProcessor",
        "NotifyJobStatusProcessor",
    }, "what FLARE does there has to be read first"


@pytest.mark.parametrize("job_id", ["startup", "..", "../..", f"{JOB} --set x=y", "", None, JOB.upper(), f"{JOB}\n"])
def test_a_jobs_id_is_no_path_and_no_argument(agent: FedAdminAgent, job_id: str | None) -> None:
    """``train.deploy`` removes the folder of that name first; ``train.start_job`` puts it into a command line."""
    for topic in sorted(SITE_TOPICS):
        request = admin_defs.Message(topic=topic, body=b"")
        request.set_header("job_id", job_id)
        reply = agent._dispatch_request(Message({}, request)).payload
        assert str(reply.body).startswith(f"refused: {topic} for a job whose id is none"), (topic, reply.body)


def test_the_engine_is_the_one_that_was_read() -> None:
    """The hooks hold in this release; another one is read anew first."""
    assert version("nvflare") == "2.9.0"
    assert callable(CoreCell.process_message)
    assert callable(CoreCell._send_to_endpoint)
