"""A participant that does what FLARE lets it: ``python -m tests.attacks.attacker KIT URL NAME`` with one kit alone.

Takes one attempt per line of standard input and answers each with a line. An attempt is a JSON object: channel,
topic, target; ``headers``, by FLARE's own names, that replace or (null) take away those that an honest sender
would have, the origin among them; ``admin`` for a command of FLARE's, or ``payload``, hexadecimal; ``timeout_s`` for
an answer, none without.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
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
    cell = CoreCell(name, url, True, credentials)
    replaced: dict[str, Any] = {}

    def replace(message: Message) -> None:
        for key, value in replaced.items():
            if value is None:
                message.remove_header(key)
            else:
                message.set_header(key, value)

    cell.add_outgoing_request_filter("*", "*", replace)
    cell.replaced = replaced
    return cell


def message_of(attempt: dict[str, Any]) -> Message:
    if "admin" in attempt:
        command = admin_defs.Message(topic=attempt["admin"]["topic"], body=attempt["admin"].get("body", ""))
        for key, value in attempt["admin"].get("headers", {}).items():
            command.set_header(key, value)
        return Message({}, command)
    return Message({}, bytes.fromhex(attempt.get("payload", "")))


def attack(cell: CoreCell, attempt: dict[str, Any]) -> dict[str, Any]:
    cell.replaced.clear()
    cell.replaced.update(attempt.get("headers", {}))
    channel, topic, target = attempt["channel"], attempt["topic"], attempt["target"]
    timeout = attempt.get("timeout_s")
    if timeout is None:
        return {"sent": cell.fire_and_forget(channel, topic, target, message_of(attempt), optional=True)}
    reply = cell.send_request(channel, topic, target, message_of(attempt), timeout=timeout, optional=True)
    body = getattr(reply.payload, "body", reply.payload)
    return {"code": str(reply.get_header("cn__return_code", "ok")), "body": str(body)}


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
        try:
            answer = attack(cell, json.loads(line))
        except Exception as error:  # noqa: BLE001  (told to the test)
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    os._exit(0)  # FLARE's threads need not be waited for


if __name__ == "__main__":
    main()
