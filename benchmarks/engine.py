"""Training over the engine against local sockets: ``python -m benchmarks.engine [--cases …] [--out FILE]``.

Over sockets every two parties are joined directly and nothing is sealed. Over the engine every message is sealed and
passes a NATS broker of this machine over mutual TLS. Both run in turn, so that a ratio is of one run. The last case has
a slow network: sockets sealed and delayed by ``benchmarks.wires``, the engine by a proxy before the broker.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.graphs import random_parties
from benchmarks.memory import CLASSES, EDGES, FEATURES, NODES
from benchmarks.proxy import Proxy
from benchmarks.wires import LINK, installed
from docs.pages import find_page
from veilgraph.core.types import SERVER
from veilgraph.deploy.demo import LocalNetwork, free_port, local_network
from veilgraph.deploy.kit import PROXY_VARIABLE
from veilgraph.deploy.project import ProjectSettings, provision
from veilgraph.deploy.submit import submit
from veilgraph.graph.dataset import load_parties
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.settings import DataSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job, read_job
from veilgraph.runtime.launch.jobs import RunOptions, train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_organisations

MBIT, ROUND_TRIP_MS = 100.0, 40.0


@dataclass(frozen=True)
class Case:
    """What is trained: its graphs, its settings, how often both ways, and whether the network is slow."""

    graphs: Callable[[], list[PartyGraph]]
    settings: Mapping[str, Any]
    rounds: int
    slow: bool = False


def _vertical(dim: int, epochs: int) -> dict[str, Any]:
    train = {"epochs": epochs, "patience": None, "checkpoint_every": epochs + 1, "evaluate_every": epochs}
    return {"model": {"dim": dim}, "train": train}


def _cora(holders: int) -> list[PartyGraph]:
    return load_parties(DataSettings(dataset="cora", holders=holders), 0)


_SEALED: Final = {"paradigm": "sealed", "model": {"blocks": ["own"]}, "train": {"epochs": 20, "checkpoint_every": 1000}}
CASES: Final = {
    "Cora": Case(partial(_cora, 2), _vertical(64, 40), 3),
    "Cora, 10 holders": Case(partial(_cora, 10), _vertical(64, 20), 2),
    f"{NODES:,} nodes": Case(partial(random_parties, NODES, EDGES, FEATURES, CLASSES), _vertical(128, 4), 1),
    "Cora, sealed": Case(partial(_cora, 2), _SEALED, 1),
    "Cora, sealed, slow": Case(partial(_cora, 2), _SEALED, 1, slow=True),
}


@dataclass(frozen=True)
class EngineFigures:
    """Seconds of the median step, medians over the rounds; bytes that the party that sends most sends in a step."""

    case: str
    sockets_s: float
    engine_s: float
    sent_bytes: float
    load: float


def measure(name: str, case: Case) -> EngineFigures:
    """Trains one job both ways, in turn."""
    job = parse_job({"name": "engine", "preset": "paper", "timeout_s": 900, **case.settings})
    sockets, engine = [], []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        files = export_organisations(case.graphs(), out / "tables", overlap=1.0, seed=0, format="parquet", job=job)
        here, there = read_job(out / "tables" / "job.yaml"), read_job(out / "tables" / "network-job.yaml")
        with joined(out / "project", files, slow=case.slow) as network:
            for number in range(case.rounds):
                with installed(here.data.names, mbit=MBIT, round_trip_ms=ROUND_TRIP_MS) if case.slow else ExitStack():
                    options = RunOptions(processes=True, link=LINK) if case.slow else RunOptions(processes=True)
                    run = train(here, out / f"sockets-{number}", options=options)
                sockets.append(_step_s(run.metrics))
                settings = there.model_copy(update={"name": f"engine-{number}"})
                submit(network.administrator, settings, "train", resume=False, wait=True, report=print)
                found = RunDirectory.open(network.runs(settings.data.label_party) / settings.name)
                engine.append(_step_s(found.metrics()))
            sent = max(_sent(network, settings, party) for party in (*files, SERVER))
    steps = max(1, job.train.epochs)
    load = os.getloadavg()[1]
    return EngineFigures(name, statistics.median(sockets), statistics.median(engine), sent / steps, load)


@contextmanager
def joined(out: Path, files: Mapping[str, Path], *, slow: bool) -> Iterator[LocalNetwork]:
    """A project's sites, whose way to the broker is as slow as that of a party's socket."""
    project = ProjectSettings.model_validate(
        {
            "name": "engine",
            "server": {"host": "localhost", "port": free_port()},
            "holders": tuple(files),
            "administrators": ["ops@example.org"],
        }
    )
    if slow:  # a message passes it twice on its way, once at each party
        os.environ[PROXY_VARIABLE] = Proxy(MBIT, ROUND_TRIP_MS / 4000).address
    try:
        with local_network(provision(project, out), files, report=print) as network:
            yield network
    finally:
        os.environ.pop(PROXY_VARIABLE, None)


def _step_s(metrics: list[dict[str, Any]]) -> float:
    return float(statistics.median(record["step_seconds"] for record in metrics))


def _sent(network: LocalNetwork, settings: JobSettings, party: str) -> float:
    """Bytes that a party sent in the whole training, setup and alignment apart."""
    run = RunDirectory.open(network.runs(party) / settings.name)
    rows = json.loads((run.party(party).path / "traffic.json").read_text(encoding="utf-8"))
    once = {"hello", "key", "seed", "static_difference", "blinded_ids", "id_tokens", "common_ids"}
    return float(sum(row["bytes"] for row in rows if row["direction"] == "sent" and row["kind"] not in once))


def page(found: list[EngineFigures]) -> str:
    """What is published."""
    lines = [
        "# Training over the engine",
        "",
        "For the engineer who wants to know what the network engine adds to a training step.",
        "",
        f"Made by `python -m benchmarks.engine` on {platform.machine()}, {os.cpu_count()} cores for all parties "
        f"together, PyTorch {torch.__version__}, otherwise idle. *Load* is the mean number of processes that wanted a "
        "core in the last five minutes.",
        "",
        "- *Sockets*: a process per party, joined directly, not sealed.",
        "- *Engine*: a NATS broker over mutual TLS on loopback, every message sealed.",
        f"- *Slow*: each party sends {MBIT:g} Mbit/s, and a round trip between two parties takes {ROUND_TRIP_MS:g} ms; "
        "the sockets are sealed there, too.",
        "- Seconds are the median step, bytes those of the party that sends most.",
        "",
        "| job | sockets | engine | engine / sockets | MB a step | load |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for each in found:
        lines.append(
            f"| {each.case} | {each.sockets_s:.3f} s | {each.engine_s:.3f} s | {each.engine_s / each.sockets_s:.2f} | "
            f"{each.sent_bytes / 1e6:.1f} | {each.load:.1f} |"
        )
    if missing := [name for name in CASES if name not in {each.case for each in found}]:
        lines += ["", f"Not measured, for want of free cores: {'; '.join(missing)}."]
    lines += [
        "",
        "What the engine adds is core time: `python -m benchmarks.broker_costs`. Two cores cannot come below 1.4 on "
        "Cora.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures everything and writes the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--kept", type=Path, help="figures so far, a line of JSON each; the page has these, too")
    parser.add_argument("--out", type=Path, default=find_page("engine-benchmarks.md"))
    given = parser.parse_args()
    found: dict[str, EngineFigures] = {}
    if given.kept is not None and given.kept.exists():
        kept = map(json.loads, given.kept.read_text(encoding="utf-8").splitlines())
        found = {each["case"]: EngineFigures(**each) for each in kept}
    for name in given.cases:
        found[name] = measure(name, CASES[name])
        if given.kept is not None:
            with given.kept.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(asdict(found[name]))}\n")
        print(found[name], flush=True)
    given.out.write_text(page([found[name] for name in CASES if name in found]), encoding="utf-8")


if __name__ == "__main__":
    main()
