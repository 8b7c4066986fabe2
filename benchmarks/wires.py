"""A wire for measuring: local sockets whose messages are sealed between all parties and may pass as on a slow network.

``installed`` makes it a link of every process that is started with its environment, under the name ``LINK``.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from torch import Tensor
from typing_extensions import override
from veilgraph_testing.sealed_link import SealedLink

from veilgraph.core.errors import LinkError
from veilgraph.core.types import SERVER, Link, PartyId, Tag
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.project import ProjectSettings, provision
from veilgraph.link.channel import ChannelContext
from veilgraph.link.codec import encoded_size
from veilgraph.link.factory import SocketFactory
from veilgraph.link.wrapper import Wrapper

LINK: Final = "measured"
_ROOT: Final = Path(__file__).parents[1]
_KITS, _SPEED, _WAIT = "VEILGRAPH_BENCH_KITS", "VEILGRAPH_BENCH_MBIT", "VEILGRAPH_BENCH_ROUND_TRIP_MS"


class SlowLink(Wrapper):
    """A link whose messages leave one after the other at a bandwidth, and arrive half a round trip later.

    Args:
        link: carries the messages.
        mbit: megabits that this party sends in a second, to all others together.
        round_trip_ms: milliseconds there and back.
    """

    def __init__(self, link: Link, mbit: float, round_trip_ms: float) -> None:
        super().__init__(link)
        self._seconds_a_byte, self._latency = 8e-6 / mbit, round_trip_ms / 2000
        self._free = 0.0
        self._waiting: queue.SimpleQueue[tuple[float, PartyId, Tag, Tensor] | None] = queue.SimpleQueue()
        self._failure: LinkError | None = None
        self._carrier = threading.Thread(target=self._carry, daemon=True)
        self._carrier.start()

    @override
    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        if self._failure is not None:
            raise self._failure
        self._free = max(self._free, time.perf_counter()) + encoded_size(tensor) * self._seconds_a_byte
        self._waiting.put((self._free + self._latency, to, tag, tensor))

    @override
    def close(self) -> None:
        self._waiting.put(None)
        self._carrier.join()
        super().close()

    def _carry(self) -> None:
        while (message := self._waiting.get()) is not None:
            due, to, tag, tensor = message
            time.sleep(max(0.0, due - time.perf_counter()))
            try:
                self._link.send(to, tag, tensor)
            except LinkError as error:  # the next send says so; what waits is for nobody
                self._failure = error


class MeasuredFactory(SocketFactory):
    """Processes of which every two have a socket and a sealed channel."""

    @override
    def join(self, party: PartyId, arguments: Sequence[str], timeout_s: float) -> Link:
        link = super().join(party, arguments, timeout_s)
        if _SPEED in os.environ:
            link = SlowLink(link, float(os.environ[_SPEED]), float(os.environ[_WAIT]))
        if not (kits := os.environ.get(_KITS)):
            return link
        peers = [each.rsplit("=", 1)[0] for each in arguments]
        session = ChannelContext("benchmark", tuple(sorted([party, *peers])))
        return SealedLink(link, Kit.open(Path(kits) / party).identity(), peers, session)


MEASURED = MeasuredFactory()


@contextmanager
def installed(
    holders: Sequence[PartyId], *, mbit: float | None = None, round_trip_ms: float = 0.0, sealed: bool = True
) -> Iterator[None]:
    """While it is open, jobs may be run with ``link=LINK, processes=True``.

    Args:
        holders: beside the server; they get certificates.
        mbit: bandwidth of every party; None: as fast as this machine.
        round_trip_ms: with ``mbit``.
        sealed: whether messages are encrypted between all parties.
    """
    with TemporaryDirectory() as folder:
        facts = Path(folder) / "measured-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: measured\nVersion: 1.0\n", encoding="utf-8")
        (facts / "entry_points.txt").write_text(
            f"[veilgraph.links]\n{LINK} = benchmarks.wires:MEASURED\n", encoding="utf-8"
        )
        added = {"PYTHONPATH": os.pathsep.join([folder, str(_ROOT), os.environ.get("PYTHONPATH", "")])}
        if sealed:
            project = ProjectSettings.model_validate(
                {
                    "name": "benchmark",
                    "holders": list(holders),
                    "server": {"host": "localhost"},
                    "administrators": ["bench@example.org"],
                }
            )
            kits = provision(project, Path(folder) / "project")
            added[_KITS] = str(kits[SERVER].parent)
        if mbit is not None:
            added |= {_SPEED: str(mbit), _WAIT: str(round_trip_ms)}
        before = {name: os.environ.get(name) for name in added}
        sys.path.insert(0, folder)
        os.environ.update(added)
        try:
            yield
        finally:
            with suppress(ValueError):
                sys.path.remove(folder)
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
