"""A job between organisations in which a holder has two machines: ``python -m benchmarks.two_machines [--nodes N]``.

The machines are network namespaces that one wire joins, which takes root. In the first are the broker, the server and
both holders' sites, in the second ``veilgraph net machine`` alone. Tables are read, ids aligned, and two epochs
trained in batches; inferences are of both machines. Nodes are of eight communities; each holder has 4 columns and as
many edges as nodes. Prints seconds, memory, and the bytes on the wire.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packages.machines.tests.namespaces import HOME, ip, sent, two_machines, within
from veilgraph.deploy.demo import free_port, local_network
from veilgraph.deploy.project import ProjectSettings, provision
from veilgraph.deploy.submit import submit
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.store.run_directory import RunDirectory

COMMUNITIES, COLUMNS, DIM = 8, 4, 8
_INSIDE: Final = "--inside"
_MACHINES: Final = f'machines: {{count: 2, address: "{HOME}:29500"}}\n'
_PARTY: Final = """party: {party}
nodes:
  file: nodes.parquet
  id: id
  features: [{{columns: "x*"}}]
{label}
edges: [{{file: edges.parquet, source: source, target: target, directed: false}}]
{machines}"""
_LABEL: Final = """  label: {column: label, classes: ["0", "1", "2", "3", "4", "5", "6", "7"]}
  split: {column: split, train: train, val: val, test: test}"""


def write_tables(nodes: int, out: Path) -> dict[str, Path]:
    """Both holders' tables and party files."""
    draws = np.random.default_rng(0)
    community = draws.integers(0, COMMUNITIES, nodes)
    members = [np.flatnonzero(community == number) for number in range(COMMUNITIES)]
    ids = pa.array([f"C{number:08d}" for number in range(nodes)])
    files = {}
    for party in "AB":
        folder = out / party
        folder.mkdir()
        means = draws.standard_normal((COMMUNITIES, COLUMNS))
        columns = {"id": ids}
        for number in range(COLUMNS):
            columns[f"x{number}"] = pa.array((means[community, number] + draws.standard_normal(nodes)).astype("f4"))
        if party == "A":
            columns["label"] = pa.array([str(number) for number in range(COMMUNITIES)]).take(pa.array(community))
            split = draws.choice(3, nodes, p=(0.1, 0.1, 0.8))
            columns["split"] = pa.array(["train", "val", "test"]).take(pa.array(split))
        pq.write_table(pa.table(columns), folder / "nodes.parquet")
        source, target = draws.integers(0, nodes, nodes), draws.integers(0, nodes, nodes)
        for number, own in enumerate(members):  # seven of eight edges stay within a community
            rows = np.flatnonzero((community[source] == number) & (draws.random(nodes) < 7 / 8))
            target[rows] = own[draws.integers(0, len(own), len(rows))]
        pq.write_table(pa.table({"source": ids.take(source), "target": ids.take(target)}), folder / "edges.parquet")
        label, machines = (_LABEL, _MACHINES) if party == "A" else ("", "")
        files[party] = folder / "party.yaml"
        files[party].write_text(_PARTY.format(party=party, label=label, machines=machines), encoding="utf-8")
    return files


def run(nodes: int, out: Path) -> None:
    """Train over a broker, with everyone but the second machine in this namespace."""
    started = time.perf_counter()
    files = write_tables(nodes, out)
    print(f"tables: {time.perf_counter() - started:.0f} s", flush=True)
    content = {"name": "large", "server": {"host": "localhost", "port": free_port()}, "holders": list("AB")}
    kits = provision(
        ProjectSettings.model_validate({**content, "administrators": ["ops@example.org"]}), out / "project"
    )
    job = parse_job(
        {
            "name": "large",
            "data": {"holders": list("AB"), "label_holder": "A", "feature_scaling": "standard"},
            "model": {"dim": DIM, "local": {"hops": 2, "fanout": 10}},
            "train": {"epochs": 2, "batch_size": 65_536, "patience": None, "learning_rate": 0.05},
            "timeout_s": 7200,
        }
    )
    with local_network(kits, files, report=lambda line: None) as network:
        started = time.perf_counter()
        submit(network.administrator, job, "train", resume=False, wait=True, report=_say)
        print(f"the job: {time.perf_counter() - started:.0f} s", flush=True)
        summary = RunDirectory.open(network.runs("A") / job.name).result()
        print({key: summary[key] for key in ("nodes", "test_accuracy", "seconds_per_step", "sent_bytes")})


def _say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


class Memory(threading.Thread):
    """The most that each party's process, and each further machine's, ever held, swapped pages included."""

    def __init__(self, namespaces: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.namespaces, self.peaks = namespaces, Counter[str]()
        self.start()

    def run(self) -> None:
        """Look every other second."""
        while True:
            for machine, name in enumerate(self.namespaces):
                with suppress(OSError):  # a process has ended, or all have
                    for process in (Path("/proc", pid) for pid in ip("netns", "pids", name).split()):
                        party = re.search(r"kits/(\w+)/jobs", (process / "cmdline").read_text())
                        key = f"machine {machine}: {party[1] if party else 'others'}"
                        held = re.findall(r"(?:RssAnon|VmSwap):\s+(\d+) kB", (process / "status").read_text())
                        self.peaks[key] = max(self.peaks[key], sum(map(int, held)))
            time.sleep(2)


def main() -> None:
    """Make the namespaces, start both machines in them, and print what was measured."""
    if sys.argv[1:2] == [_INSIDE]:
        run(int(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.two_machines")
    parser.add_argument("--nodes", type=int, default=10_000_000)
    nodes = parser.parse_args().nodes
    with tempfile.TemporaryDirectory() as folder, two_machines() as (home, further):
        file = Path(folder) / "party.yaml"
        file.write_text(_PARTY.format(party="A", label=_LABEL, machines=_MACHINES), encoding="utf-8")
        worker = within(further, "-m", "veilgraph", "net", "machine", "--party", str(file), "--rank", "1")
        memory = Memory((home, further))
        try:
            site = within(home, "-W", "ignore", "-m", "benchmarks.two_machines", _INSIDE, str(nodes), folder)
            code = site.wait()
            for name, machine in ((home, "first"), (further, "second")):
                print(f"the {machine} machine put {sent(name) / 1e6:,.0f} MB on the wire")
        finally:
            worker.terminate()
            worker.wait()
        for process, peak in sorted(memory.peaks.items()):
            print(f"{process}, {peak / 2**20:.2f} GiB")
    sys.exit(code)


if __name__ == "__main__":
    main()
