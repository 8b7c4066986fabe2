"""A participant that does what FLARE lets it: ``python -m tests.attacks.attacker KIT URL NAME`` with one kit alone.

Takes one attempt per line of standard input and answers each with a line. An attempt is a JSON object: channel,
topic, target; ``headers``, by FLARE's own names, that replace or (null) take away those that an honest sender
would have, the origin among them; ``admin`` for a command of FLARE's, or ``payload``, hexadecimal; ``timeout_s`` for
an answer, none without; ``past_the_cell``: with headers that the attacker's own cell would act upon before it sends.

``tracer`` lets ``serve`` do the same in the process of a job, as whoever runs that process could.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.message import Message
from nvflare.private import admin_defs
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize


def cell_of(kit: Path, url: str, name: str) -> CoreCell:
    startup = kit / "startup"
    kind = "server" if (startup / "server.crt").exists() else "client"
    credentials = {
        "ca_cert": str(startup / "rootCA.pem"),
        f"{kind}_cert": str(startup / f"{kind}.crt"),
        f"{kind}_key": str(startup / f"{kind}.key"),
    }
    return arm(CoreCell(name, url, True, credentials))


class Replaced(threading.local):
    """Headers of an attempt; what other threads of the process send stays as it is."""

    headers: Mapping[str, Any] = MappingProxyType({})

    def replace(self, message: Message) -> None:
        for key, value in self.headers.items():
            if value is None:
                message.remove_header(key)
            else:
                message.set_header(key, value)


def arm(cell: CoreCell) -> CoreCell:
    cell.replaced = Replaced()
    cell.add_outgoing_request_filter("*", "*", cell.replaced.replace)
    return cell


def serve(cell: CoreCell, door: Path) -> None:
    """Makes the attempts of whoever connects to a socket, through a cell that has other work to do."""
    arm(cell)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(door.with_suffix(".new")))
        listener.listen()
        door.with_suffix(".new").rename(door)
        end, _ = listener.accept()
        with end, end.makefile("rw", encoding="utf-8") as lines:
            for line in lines:
                print(json.dumps(answer_to(cell, line)), file=lines, flush=True)


def message_of(attempt: dict[str, Any]) -> Message:
    if "admin" in attempt:
        command = admin_defs.Message(topic=attempt["admin"]["topic"], body=attempt["admin"].get("body", ""))
        for key, value in attempt["admin"].get("headers", {}).items():
            command.set_header(key, value)
        return Message({}, command)
    return Message({}, bytes(attempt["zeros"]) if "zeros" in attempt else bytes.fromhex(attempt.get("payload", "")))


NAMES = [
    *("A", "B", "C", "server", "", ".", "A.", "A.x", "server.x", "_admin_x", "\x00", "A" * 4000, "A/../B", "é"),
    *(f"{site}.{uuid.uuid4()}" for site in ("A", "B", "server")),
    f"_admin_{uuid.uuid4()}",
]
CHANNELS = [
    *("admin", "veilgraph", "task", "hci_channel", "aux_communication", "server_command", "client_command"),
    *("cellnet.channel", "_net_manager", "credential_manager", "return_only", "sm__STREAM", "", "*", "x" * 3000),
]
TOPICS = [
    *("admin", "hello", "frame", "refused", "register", "challenge", "heart_beat", "command", "get_task"),
    *("bye", "bulk", "stop_cell", "sm__DATA", "sm__ACK", "sm__ERROR", "*", "", "\n", "y" * 3000),
]
HEADERS = [
    *("cn__msg_type", "cn__origin", "cn__destination", "cn__channel", "cn__topic", "cn__req_id", "cn__route"),
    *("cn__secure", "cn__conn_url", "cn__pass_through", "cn__reply_expected", "cn__payload_encoding", "cn__from"),
    *("cn__original_headers", "sm__ch", "sm__tp", "sm__id", "sm__dt", "sm__sz", "sm__sq", "sm__os", "sm__ri"),
    *("client_name", "__token__", "__token_signature__", "ssid", "job_id", "veilgraph-from"),
]


def strange(random: Random) -> Any:
    return random.choice(
        [
            None,
            True,
            False,
            0,
            -1,
            2**63,
            1e308,
            "",
            "x",
            "A",
            "server",
            [],
            {},
            [[]],
            {"a": 1},
            b"\x00",
            "req",
            "reply",
        ]
    )


def connection_of(cell: CoreCell) -> Any:
    """The newest with the server, once there is one: an attacker whose connection is ended comes again."""
    deadline = time.monotonic() + 60
    while True:
        endpoint = cell.communicator.conn_manager.sfm_endpoints.get("server")
        if endpoint is not None and endpoint.connections:
            return endpoint.connections[-1]
        if time.monotonic() > deadline:
            raise TimeoutError("the server lets nobody in any more")
        time.sleep(0.02)


def request_headers(cell: CoreCell, target: str, channel: str, topic: str) -> dict[str, Any]:
    """Those of a request, as its sender's cell would write them."""
    return {
        "cn__msg_type": "req",
        "cn__origin": cell.get_fqcn(),
        "cn__destination": target,
        "cn__channel": channel,
        "cn__topic": topic,
        "cn__route": [[cell.get_fqcn(), 0.0]],
    }


def fuzz(cell: CoreCell, attempt: dict[str, Any]) -> dict[str, Any]:
    """Sends so many hostile messages of one kind, past what an honest sender's cell would check."""
    random = Random(attempt["seed"])
    endpoint = cell.agents["server"].endpoint
    for _ in range(attempt["cases"]):
        addressed = (random.choice(NAMES[:4] + NAMES[-4:]), random.choice(CHANNELS), random.choice(TOPICS))
        said = attempt["headers"] | request_headers(cell, *addressed)
        payload = random.randbytes(random.choice([0, 1, 20, 60, 1000]))
        match attempt["fuzz"]:
            case "headers":
                for header in random.sample(HEADERS, random.randint(1, 6)):
                    said[header] = strange(random)
            case "channels":
                said |= {"cn__origin": random.choice(NAMES), "cn__destination": random.choice(NAMES)}
            case "payloads":
                said |= {"cn__channel": "veilgraph", "cn__payload_encoding": random.choice(["fobs", "bytes", None])}
                payload = random.randbytes(random.choice([20, 100_000]))
            case "streams":
                said |= {
                    "cn__channel": "sm__STREAM",
                    "sm__ch": random.choice(CHANNELS),
                    "sm__tp": random.choice(TOPICS),
                }
                said |= {f"sm__{key}": strange(random) for key in ("id", "dt", "sz", "sq", "os", "ri", "cs")}
            case "answers":
                said |= {"cn__msg_type": random.choice(["reply", "return"]), "cn__req_id": strange(random)}
                said["cn__original_headers"] = strange(random)
        if attempt["fuzz"] == "frames":
            connection = connection_of(cell)
            length = random.choice([0, 15, 16, 17, 2**31, len(payload) + 16])
            kind = random.randrange(8)
            frame = struct.pack(">IHBBHHHH", length, random.choice([0, 5, 65535]), kind, 0, 0, 1, 1, 1)
            with suppress(CommError):  # it was ended for what came before
                connection.conn.send_frame(frame + payload)
        else:
            cell.communicator.send(endpoint, CoreCell.APP_ID, Message(said, payload))
    return {"sent": attempt["cases"]}


def attack(cell: CoreCell, attempt: dict[str, Any]) -> dict[str, Any]:
    if "fuzz" in attempt:
        return fuzz(cell, attempt)
    channel, topic, target = attempt["channel"], attempt["topic"], attempt["target"]
    if attempt.get("past_the_cell"):
        headers = request_headers(cell, target, channel, topic) | attempt["headers"]
        endpoint = cell.agents["server"].endpoint
        cell.communicator.send(endpoint, CoreCell.APP_ID, Message(headers, bytes.fromhex(attempt["payload"])))
        return {"sent": True}
    cell.replaced.headers = attempt.get("headers", {})
    timeout = attempt.get("timeout_s")
    if timeout is None:
        return {"sent": cell.fire_and_forget(channel, topic, target, message_of(attempt), optional=True)}
    reply = cell.send_request(channel, topic, target, message_of(attempt), timeout=timeout, optional=True)
    body = getattr(reply.payload, "body", reply.payload)
    return {"code": str(reply.get_header("cn__return_code", "ok")), "body": str(body)}


def answer_to(cell: CoreCell, line: str) -> dict[str, Any]:
    try:
        return attack(cell, json.loads(line))
    except Exception as error:  # noqa: BLE001  (told to the test)
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    logging.disable(logging.CRITICAL)
    nvflare_fobs_initialize()
    kit, url, name = sys.argv[1:]
    cell = cell_of(Path(kit), url, name)
    cell.start()
    while not cell.agents:
        time.sleep(0.02)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer_to(cell, line)), flush=True)
    os._exit(0)  # FLARE's threads need not be waited for


if __name__ == "__main__":
    main()
