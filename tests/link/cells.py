"""A FLARE network whose parties are forks of one process: ``python -m tests.link.cells PORT KITS OUT``.

The server only relays, and keeps what it relays between holders in ``OUT/relayed``. ``bank`` sends ``shop`` a marked
tensor over their link, and another one past it, in the clear, so that a test can tell that what is relayed is kept at
all. The command ends with 0 when both have what was sent.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import torch
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.message import Message

from veilgraph.core.types import Kind, Tag
from veilgraph.deploy.kit import Kit
from veilgraph.link.channel import ChannelContext
from veilgraph.link.flare import FlareLink

SEALED = torch.full((3_000_000,), 0x5EA1ED_C0FFEE, dtype=torch.int64)  # 24 MB: several pieces
CLEAR = torch.full((100,), 0x0C1EA7_BADCAB, dtype=torch.int64)


def cell_of(party: str, port: int, kits: Path) -> CoreCell:
    startup = kits / party / "startup"
    kind = "server" if party == "server" else "client"
    credentials = {
        "ca_cert": str(startup / "rootCA.pem"),
        f"{kind}_cert": str(startup / f"{kind}.crt"),
        f"{kind}_key": str(startup / f"{kind}.key"),
    }
    return CoreCell(party, f"grpc://localhost:{port}", True, credentials)


def relay(port: int, kits: Path, out: Path) -> None:
    cell = cell_of("server", port, kits)
    forward = cell._forward

    def keep(endpoint, origin, destination, msg_type, message):
        with (out / "relayed").open("ab") as file:
            file.write(bytes(message.payload or b""))
        return forward(endpoint, origin, destination, msg_type, message)

    cell._forward = keep
    cell.start()
    (out / "up").touch()
    threading.Event().wait()


def holder(party: str, port: int, kits: Path) -> None:
    cell = cell_of(party, port, kits)
    cell.start()
    peer = "shop" if party == "bank" else "bank"
    came = threading.Event()

    def arrived(_: Message) -> Message:
        came.set()
        return Message({}, b"")

    cell.register_request_cb("past", "the link", arrived)
    link = FlareLink(
        party, cell, {peer: peer}, Kit.open(kits / party).identity(), ChannelContext("a job", ("bank", "shop")), 60
    )
    sealed = Tag(Kind.SHARE, 0)
    if party == "bank":
        link.send(peer, sealed, SEALED)
        link.receive(peer, Tag(Kind.CONTROL))
        cell.send_request("past", "the link", peer, Message({}, CLEAR.numpy().tobytes()), timeout=30)
        times = []
        for step in range(20):
            start = time.perf_counter()
            link.send(peer, Tag(Kind.SHARE, 1 + step), torch.zeros(8))
            link.receive(peer, Tag(Kind.SHARE, 1 + step))
            times.append(time.perf_counter() - start)
        sys.stdout.write(f"round trip {sorted(times)[10]}\n")
    else:
        assert torch.equal(link.receive(peer, sealed), SEALED)
        link.send(peer, Tag(Kind.CONTROL), torch.ones(1))
        for step in range(20):
            link.send(peer, Tag(Kind.SHARE, 1 + step), link.receive(peer, Tag(Kind.SHARE, 1 + step)))
        assert came.wait(30)
    link.close()
    sys.stdout.flush()
    os._exit(0)  # FLARE's own threads would keep the process for seconds


def main(port: int, kits: Path, out: Path) -> bool:
    torch.set_num_threads(1)  # OpenMP's other threads do not survive a fork, and who needs them waits for ever
    forks = multiprocessing.get_context("fork")
    server = forks.Process(target=relay, args=(port, kits, out))
    server.start()
    while server.is_alive() and not (out / "up").exists():
        time.sleep(0.05)
    holders = [forks.Process(target=holder, args=(party, port, kits)) for party in ("bank", "shop")]
    for process in holders:
        process.start()
    for process in holders:
        process.join()
    server.kill()
    return all(process.exitcode == 0 for process in holders)


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])))
