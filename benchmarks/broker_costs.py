"""What a byte costs between two parties by a broker: ``python -m benchmarks.broker_costs``.

Two processes send each other messages of one size in turn, or one sends and the other takes. Core time is what the
kernel counted for each of the three processes.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Final

import torch

from tests.link.brokers import Broker, Kits
from veilgraph.core.types import Kind, PartyId, Tag
from veilgraph.link.channel import ChannelContext
from veilgraph.link.nats import NatsLink
from veilgraph.link.nats_client import Brokers

SESSION: Final = ChannelContext("costs", ("A", "B"))
CASES: Final = ((64, 1000, True), (700_000, 200, True), (4 << 20, 100, False))
"""Bytes of a message, how many, and whether each is answered by one of the same size."""
Costs = tuple[PartyId, float, float]
"""A party, seconds, and seconds of core time."""


def part(me: PartyId, kits: Kits, there: Brokers, case: tuple[int, int, bool], found: Queue[Costs]) -> None:
    """What a party does: the first message goes both ways and is not counted, as is the last."""
    torch.set_num_threads(1)
    size, count, answered = case
    peer = "B" if me == "A" else "A"
    link = NatsLink(me, there, {peer: peer}, kits.identities[me], SESSION, 60.0)
    data = torch.zeros(size, dtype=torch.uint8)

    def turn(step: int, *, both: bool) -> None:
        tag = Tag(Kind.SHARE, step)
        if me == "A":
            link.send(peer, tag, data)
            if both:
                link.receive(peer, tag)
        else:
            link.receive(peer, tag)
            if both:
                link.send(peer, tag, data)

    turn(0, both=True)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for step in range(1, count + 1):
        turn(step, both=answered or step == count)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    found.put((me, took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    link.close()


def core_s(process: int) -> float:
    """Seconds of core time that another process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def main(cases: Sequence[tuple[int, int, bool]] = CASES) -> None:
    """Measures everything and prints it."""
    kits, forks = Kits(), multiprocessing.get_context("fork")
    for name in SESSION.parties:
        kits.issue(name)
    broker = Broker(kits)
    broker.configure()
    broker.start()
    assert broker.process is not None
    for case in cases:
        size, count, answered = case
        found: Queue[Costs] = forks.Queue()
        before = core_s(broker.process.pid)
        parts = [forks.Process(target=part, args=(me, kits, broker.brokers(me), case, found)) for me in SESSION.parties]
        for each in parts:
            each.start()
        (_, took, first), (_, _, second) = sorted(found.get() for _ in parts)
        between = core_s(broker.process.pid) - before
        for each in parts:
            each.join()
        crossed = size * count * (2 if answered else 1) / 1e6
        way = "in turn" if answered else "one way"
        sys.stdout.write(
            f"{size:,} bytes {way}: {took / count * 1e3:.2f} ms a message, {crossed / took:.0f} MB/s; core time a MB: "
            + ", ".join(
                f"{name} {spent / crossed * 1e3:.2f} ms"
                for name, spent in (("A", first), ("B", second), ("broker", between))
            )
            + "\n"
        )
    broker.kill()


if __name__ == "__main__":
    main()
