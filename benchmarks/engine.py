"""A training step over the engine against the same job in one process: ``python -m benchmarks.engine [--out FILE]``.

Every party is a process of its own; what parties send each other is sealed, and the server relays it between holders,
over mutual TLS on this machine's loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.graphs import random_parties
from benchmarks.memory import CLASSES, EDGES, FEATURES, NODES
from veilgraph.core.types import SERVER
from veilgraph.deploy.demo import free_port, local_network
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

CASES: dict[str, tuple[Callable[[], list[PartyGraph]], int, int]] = {
    "Cora, d = 64": (lambda: load_parties(DataSettings(dataset="cora"), 0), 64, 40),
    f"{NODES:,} nodes, d = 128": (lambda: random_parties(NODES, EDGES, FEATURES, CLASSES), 128, 4),
}
"""Name → graphs, d, epochs."""


@dataclass(frozen=True)
class EngineFigures:
    """Seconds per training step, the median over the epochs, and bytes that each party sent in a step."""

    threads_s: float
    sockets_s: float
    engine_s: float
    bytes_per_step: dict[str, float]


def measure(graphs: list[PartyGraph], dim: int, epochs: int) -> EngineFigures:
    """Trains one job three ways: in threads, in processes over local sockets, and over the engine."""
    job = parse_job(
        {
            "name": "engine",
            "preset": "paper",
            "model": {"dim": dim},
            "train": {"epochs": epochs, "patience": None, "checkpoint_every": epochs + 1, "evaluate_every": epochs},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        files = export_organisations(graphs, out / "tables", overlap=1.0, seed=0, format="parquet", job=job)
        here = read_job(out / "tables" / "job.yaml")
        threads, sockets = (
            train(here, out / name, options=RunOptions(processes=processes)).summary["seconds_per_step"]
            for name, processes in (("threads", False), ("sockets", True))
        )
        project = ProjectSettings.model_validate(
            {
                "name": "engine",
                "server": {"host": "localhost", "port": free_port()},
                "holders": tuple(files),
                "administrators": ["ops@example.org"],
            }
        )
        with local_network(provision(project, out / "project"), files, report=print) as network:
            settings = read_job(out / "tables" / "network-job.yaml")
            submit(network.administrator, settings, "train", resume=False, wait=True, report=print)
            runs = {party: RunDirectory.open(network.runs(party) / settings.name) for party in (*files, SERVER)}
            engine = runs[settings.data.label_party].summary or {}
            sent = {party: _sent(run, party, settings) for party, run in runs.items()}
        return EngineFigures(threads, sockets, engine["seconds_per_step"], sent)


def _sent(run: RunDirectory, party: str, settings: JobSettings) -> float:
    """Bytes that a party sent in the whole training, setup and alignment apart, by its steps."""
    rows = json.loads((run.party(party).path / "traffic.json").read_text(encoding="utf-8"))
    once = {"hello", "key", "seed", "static_difference", "blinded_ids", "id_tokens", "common_ids"}
    total = sum(row["bytes"] for row in rows if row["direction"] == "sent" and row["kind"] not in once)
    return float(total) / settings.train.epochs


def main() -> None:
    """Measures everything and writes the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/engine-benchmarks.md"))
    out = parser.parse_args().out
    lines = [
        "# A step over the engine",
        "",
        f"Made by `python -m benchmarks.engine` on {platform.machine()}, {os.cpu_count()} cores for all parties "
        f"together, PyTorch {torch.__version__}. 2 holders, collaborative, masked mean, K = 2. Threads: one process, "
        "in memory. Sockets: a process per party, local sockets. Engine: a NATS broker over mutual TLS on loopback, "
        "messages sealed. Seconds are the median training step. Bytes are "
        "what a party sends in a step, evaluations of the run shared out over its steps.",
        "",
        "| job | threads | sockets | engine | engine / threads | bytes a step |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, (graphs, dim, epochs) in CASES.items():
        figures = measure(graphs(), dim, epochs)
        sent = ", ".join(f"{party} {count / 1e6:.1f} MB" for party, count in figures.bytes_per_step.items())
        lines.append(
            f"| {name} | {figures.threads_s:.3f} s | {figures.sockets_s:.3f} s | {figures.engine_s:.3f} s | "
            f"{figures.engine_s / figures.threads_s:.1f} | {sent} |"
        )
        print(lines[-1], flush=True)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
