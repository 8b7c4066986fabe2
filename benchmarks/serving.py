"""Answers over HTTPS, opened jointly and known: ``python -m benchmarks.serving [--nodes N] [--requests R]``.

Two holders, the server and its broker, ``net serve`` and its callers are processes of this machine. A caller has one
connection, and asks for one node after the other. Twice: as it is, and with a proxy before the broker by which a
message takes ``DELAY_MS`` from one holder to the other. Under load a holder's process is killed, the tables change and
are refreshed, and the service is restarted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle, pairwise, takewhile
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.graphs import random_parties
from benchmarks.proxy import Proxy
from veilgraph.core.errors import VeilgraphError
from veilgraph.core.types import PartyId
from veilgraph.deploy.control import stop
from veilgraph.deploy.demo import LocalNetwork, free_port, local_network
from veilgraph.deploy.kit import PROXY_VARIABLE, Kit
from veilgraph.deploy.progress import site_processes
from veilgraph.deploy.project import ProjectSettings, provision
from veilgraph.deploy.submit import refresh, submit
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job, read_job
from veilgraph.protocol.messages import revelation_causes
from veilgraph.runtime.store.predictions import load_predictions
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_organisations

DELAY_MS: Final = 40.0
"""From one holder to the other; there and back takes twice as long."""
CALLERS: Final = (1, 8, 64)
_FEATURES, _CLASSES, _EDGES_A_NODE = 16, 2, 3
_LOAD: Final = 8
"""Callers while something is restarted."""


@dataclass
class Load:
    """What callers got: seconds of each answer, statuses, and how often a connection ended without an answer."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    unanswered: int = 0
    took_s: float = 0.0
    longest_gap_s: float = 0.0

    def line(self, what: str, callers: int) -> str:
        """A row of the table."""
        ms = sorted(1000 * each for each in self.seconds)
        middle, high = statistics.median(ms), ms[min(len(ms) - 1, int(0.99 * len(ms)))]
        return f"| {what} | {callers} | {len(ms) / self.took_s:,.0f} | {middle:.1f} | {high:.1f} |"


class _Callers:
    """Ask a service over TLS, each caller over one connection that is kept."""

    def __init__(self, port: int, certificate: Path, token: str) -> None:
        self._port, self._tls = port, ssl.create_default_context(cafile=certificate)
        self._head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: "

    def ask(self, ids: Iterable[str], callers: int, *, again: bool = False) -> Load:
        """Ask for each id once; ``again``: until it is answered, over a new connection where one ends."""
        return asyncio.run(self._ask(ids, callers, again=again))

    async def _ask(self, ids: Iterable[str], callers: int, *, again: bool) -> Load:
        load, left, began = Load(), iter(ids), time.perf_counter()
        answered = [began]

        async def one() -> None:
            with suppress(OSError):
                reader, writer = await self._connected()
                for text in left:
                    while True:
                        asked = time.perf_counter()
                        try:
                            status = await self._exchange(reader, writer, text)
                        except (OSError, asyncio.IncompleteReadError):
                            load.unanswered += 1
                            if not again:
                                raise
                            reader, writer = await self._connected()
                            continue
                        load.statuses[status] += 1
                        if status == 200:
                            answered.append(time.perf_counter())
                            load.seconds.append(answered[-1] - asked)
                            break
                        if not again:
                            break
                        await asyncio.sleep(0.2)
                writer.close()

        await asyncio.gather(*(one() for _ in range(callers)))
        load.took_s = time.perf_counter() - began
        load.longest_gap_s = max((after - before for before, after in pairwise(answered)), default=0.0)
        return load

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in range(300):
            with suppress(OSError):
                return await asyncio.open_connection("localhost", self._port, ssl=self._tls)
            await asyncio.sleep(0.1)
        raise OSError("nobody answers")

    def await_new(self, text: str) -> float:
        """Ask for an id, about ten times a second, until it is predicted; return when."""

        async def until() -> float:
            reader, writer = await self._connected()
            while True:
                with suppress(IndexError):  # unknown as yet
                    if await self._exchange(reader, writer, text) == 200:
                        return time.perf_counter()
                await asyncio.sleep(0.1)

        return asyncio.run(until())

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str) -> int:
        body = json.dumps({"ids": [text]})
        writer.write(f"{self._head}{len(body)}\r\n\r\n{body}".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"(?i)content-length: (\d+)", head)
        assert size is not None
        found = await reader.readexactly(int(size[1]))
        status = int(head[9:12])
        assert status != 200 or json.loads(found)["predictions"][0]["id"] == text
        return status


@contextmanager
def _serving(run: Path, folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """``net serve`` of a run, as a process, once it listens."""
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    certificate, key = folder / "service.pem", folder / "service.key"
    if not certificate.exists():
        named = ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        subprocess.run([*made, *named, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    words = ["--certificate", certificate, "--key", key, "--token-file", folder / "token", "--port", port]
    log = folder / "serve.log"
    with log.open("wb") as said:
        command = [sys.executable, "-m", "veilgraph", "net", "serve", str(run), *map(str, words)]
        serving = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
    try:
        while "https://" not in log.read_text(encoding="utf-8"):
            if serving.poll() is not None:
                raise SystemExit(log.read_text(encoding="utf-8"))
            time.sleep(0.1)
        yield serving
    finally:
        serving.terminate()
        serving.wait(30)


class _Session:
    """A session that opens kept shares, submitted again by the administrator where a party is lost."""

    def __init__(self, network: LocalNetwork, job: JobSettings) -> None:
        self._network, self._job = network, job
        self._thread = threading.Thread(target=self._submit, daemon=True)
        self._thread.start()

    def _submit(self) -> None:
        with suppress(VeilgraphError):
            submit(self._network.administrator, self._job, "answer", resume=False, wait=True, retries=9, report=print)

    def processes(self, party: PartyId) -> list[int]:
        """Those of a party's part in it."""
        return [each.pid for each in site_processes(Kit.open(self._network.kits[party])) if each.job_id]

    def end(self) -> None:
        """Has the administrator stop it."""
        stop(self._network.administrator, None)
        self._thread.join(60)


def _consortium(folder: Path, nodes: int) -> tuple[JobSettings, dict[PartyId, Path]]:
    """A job of two holders that may open every node, and their party files."""
    graphs = random_parties(nodes, _EDGES_A_NODE * nodes, _FEATURES, _CLASSES)
    few = {"epochs": 20, "select_by": "last", "checkpoint_every": 1000}
    usual = parse_job({"name": "served", "paradigm": "sealed", "model": {"blocks": ["own"]}, "train": few})
    files = export_organisations(graphs, folder / "tables", overlap=1.0, seed=0, format="parquet", job=usual)
    content = read_job(folder / "tables" / "network-job.yaml").model_dump(mode="json")
    job = parse_job({**content, "online": True, "named_nodes": nodes, "output": "margins"})
    for party, file in files.items():
        limits = {"limits": {"leakage": list(revelation_causes(job, party))}}
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text(encoding="utf-8")), **limits}))
    return job, files


def measure(nodes: int, requests: int) -> list[str]:
    """The rows of both tables."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job, files = _consortium(folder, nodes)
        project = {
            "name": "serving",
            "server": {"host": "localhost", "port": free_port()},
            "holders": tuple(files),
            "administrators": ["ops@example.org"],
        }
        kits = provision(ProjectSettings.model_validate(project), folder / "project")
        rows, left = list[str](), list[str]()
        for where, delay_ms in (("one machine", 0.0), (f"{DELAY_MS:g} ms apart", DELAY_MS)):
            if delay_ms:  # a message passes it twice on its way, once at each holder
                os.environ[PROXY_VARIABLE] = Proxy(delay_s=delay_ms / 2000).address
            with local_network(kits, files, report=print) as network:
                run = network.runs(job.data.label_party) / job.name
                if not left:
                    submit(network.administrator, job, "train", resume=False, wait=True, report=print)
                    submit(network.administrator, job, "predict", resume=False, wait=True, report=print)
                    left = list(load_predictions(RunDirectory.open(run).party(job.data.label_party)).askable)
                rows += _measure(network, job, run, files, folder, where, left, requests)
            os.environ.pop(PROXY_VARIABLE, None)
    return rows


def _measure(
    network: LocalNetwork,
    job: JobSettings,
    run: Path,
    files: dict[PartyId, Path],
    folder: Path,
    where: str,
    left: list[str],
    requests: int,
) -> list[str]:
    """Rows of one network; takes the ids that it asks for from ``left``."""
    port, rows, known = free_port(), list[str](), list[str]()
    session = _Session(network, job)
    with _serving(run, folder, port):
        callers = _Callers(port, folder / "service.pem", (folder / "token").read_text(encoding="utf-8").strip())
        callers.ask([left.pop()], 1, again=True)  # until the session is there
        for count in CALLERS:
            asked = [left.pop() for _ in range(requests if count > 1 else requests // 4)]
            rows.append(_row(callers.ask(asked, count), f"opened, {where}", count))
            known += asked
        for count in CALLERS if where == "one machine" else ():
            rows.append(_row(callers.ask(known * (1 if count == 1 else 4), count), "known already", count))
        if where == "one machine":
            rows += _restarts(session, callers, [left.pop() for _ in range(3 * requests)], job)
    session.end()
    if where == "one machine":
        with _serving(run, folder, port) as serving:
            rows.append(_restarted_service(serving, callers, known, run, folder, port))
        session = _Session(network, job)
        with _serving(run, folder, port):
            callers.ask([left.pop()], 1, again=True)
            rows.append(_refreshed(network, callers, known, job, files))
        session.end()
    return rows


def _row(load: Load, what: str, callers: int) -> str:
    assert not load.unanswered
    assert set(load.statuses) == {200}, load.statuses
    row = load.line(what, callers)
    print(row, flush=True)
    return row


def _restarts(session: _Session, callers: _Callers, asked: Sequence[str], job: JobSettings) -> list[str]:
    """Kill the process of the other holder while callers ask, each until it is answered."""
    other = next(party for party in job.data.names if party != job.data.label_party)
    (process,) = session.processes(other)
    killer = threading.Timer(1.0, os.kill, (process, signal.SIGKILL))
    killer.start()
    load = callers.ask(asked, _LOAD, again=True)
    killer.join()
    refused = sum(count for status, count in load.statuses.items() if status != 200)
    row = (
        f"{other}'s process killed: {load.statuses[200]} of {len(asked)} answered, after {refused} answers of "
        f"{sorted(set(load.statuses) - {200})}; {load.unanswered} connections without an answer; nothing was opened "
        f"for {load.longest_gap_s:.0f} s"
    )
    print(row, flush=True)
    return [row]


def _refreshed(
    network: LocalNetwork, callers: _Callers, known: Sequence[str], job: JobSettings, files: dict[PartyId, Path]
) -> str:
    """Have a customer come to both holders, and refresh, while callers ask for known ones."""
    for file in files.values():
        path = file.parent / "nodes.parquet"
        nodes = pq.read_table(path)
        new = nodes.slice(0, 1).set_column(0, "id", pa.array(["new"]))
        pq.write_table(pa.concat_tables([nodes, new]), path)
    found, answered = list[Load](), threading.Event()

    def again() -> Iterator[str]:
        yield from takewhile(lambda _: not answered.is_set(), cycle(known[:_LOAD]))

    asking = threading.Thread(target=lambda: found.append(callers.ask(again(), _LOAD, again=True)))
    asking.start()
    began = time.perf_counter()
    refresh(network.administrator, job, wait=False, report=print)
    took = callers.await_new("new") - began
    answered.set()
    asking.join()
    row = (
        f"refreshed: a new customer is answered {took:.1f} s after the command; of those known before "
        f"{found[0].statuses[200]} were answered meanwhile, with a gap of {found[0].longest_gap_s:.1f} s and "
        f"{found[0].unanswered} connections ended without an answer"
    )
    print(row, flush=True)
    return row


def _restarted_service(
    serving: subprocess.Popen[bytes], callers: _Callers, known: list[str], run: Path, folder: Path, port: int
) -> str:
    """Stop the service by SIGTERM while callers ask, and begin it anew."""
    found: list[Load] = []
    asking = threading.Thread(target=lambda: found.append(callers.ask(known * 8, _LOAD, again=True)))
    asking.start()
    time.sleep(1.0)
    serving.terminate()
    serving.wait(30)
    with _serving(run, folder, port):
        asking.join()
    row = (
        f"service restarted: {found[0].statuses[200]} of {8 * len(known)} answered, "
        f"{found[0].unanswered} connections ended without an answer; a gap of {found[0].longest_gap_s:.1f} s"
    )
    print(row, flush=True)
    return row


def main() -> None:
    """Measures everything, and prints it as docs/guides/serving.md has it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--nodes", type=int, default=12_000)
    parser.add_argument("--requests", type=int, default=1_000)
    given = parser.parse_args()
    rows = measure(given.nodes, given.requests)
    print(f"{platform.machine()}, {os.cpu_count()} cores", *rows, sep="\n")


if __name__ == "__main__":
    main()
