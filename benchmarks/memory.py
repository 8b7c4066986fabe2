"""Peak memory and seconds per step of a job of ogbn-arxiv's size, every party in a process of its own."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.graphs import random_parties
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import RunOptions, train

NODES, EDGES, FEATURES, CLASSES = 169_343, 1_166_243, 128, 40
STEPS = 4


@dataclass(frozen=True)
class MemoryFigures:
    """Peak resident memory of one process that runs all parties in threads, and its step; and of the largest of three.

    ``party_gib`` is the most that one party takes where every party has a process of its own.
    """

    peak_gib: float
    step_seconds: float
    graph_gib: float
    party_gib: float


def measure() -> MemoryFigures:
    """Runs the job in a fresh process, so that the peak is its own."""
    output = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.memory"], check=True, capture_output=True, text=True
    ).stdout
    return MemoryFigures(*map(float, output.split()[-4:]))


def _job(**data: object) -> JobSettings:
    return parse_job(
        {
            "name": "arxiv-sized",
            "preset": "paper",
            "data": data,
            "model": {"dim": 64, "local": {"model": "sage-mean", "hops": 2}, "initial": {"learning_rate": 0.001}},
            "train": {"epochs": STEPS, "patience": None, "evaluate_every": STEPS, "checkpoint_every": STEPS},
        }
    )


def _apart(folder: Path) -> None:
    """All parties in processes of their own, on the graphs of the run in ``folder``: the peak of the largest."""
    graphs = {name: str(folder / "run" / "parties" / name / "graph.safetensors") for name in "AB"}
    train(_job(parties=graphs, label_holder="A"), folder / "apart", options=RunOptions(processes=True))
    print(_peak_gib(resource.RUSAGE_CHILDREN))


def _main() -> None:
    if sys.argv[1:]:
        _apart(Path(sys.argv[1]))
        return
    graphs, settings = random_parties(NODES, EDGES, FEATURES, CLASSES), _job()
    before = _peak_gib()
    with tempfile.TemporaryDirectory() as folder:
        result = train(settings, Path(folder) / "run", parties=graphs)
        apart = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", folder],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    seconds = min(record["step_seconds"] for record in result.metrics)
    print(_peak_gib(), seconds, before, apart.split()[-1])


def _peak_gib(whose: int = resource.RUSAGE_SELF) -> float:
    return resource.getrusage(whose).ru_maxrss / 2**20


if __name__ == "__main__":
    _main()
