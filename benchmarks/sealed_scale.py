"""Sealed jobs from ten thousand to half a million nodes: ``python -m benchmarks.sealed_scale [--nodes N ...]``.

Each graph is made from a seed: 128 features and as many edges a node as ogbn-arxiv has, half of the nodes for training.
Two holders, the dealer and the launcher are processes on this machine, every message sealed between its ends. Writes
``sealed-scale.json`` and ``sealed-scale.svg``.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.wires import LINK, installed
from veilgraph.graph.datasets import load_parties
from veilgraph.graph.party import save_party
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.run.jobs import train

SIZES = (10_000, 30_000, 100_000, 169_343, 500_000)
FEATURES, MEAN_DEGREE, BATCH, STEPS, HOPS = 128, 13.8, 2048, 300, 2
_ONE, _MAKE = "--one", "--make"


def job(nodes: int, data: Path | None = None) -> JobSettings:
    """A whole training in batches of hidden rows, on rows propagated once."""
    where: dict[str, Any] = {
        "dataset": "block-model",
        "block_model": {"nodes": nodes, "features": FEATURES, "mean_degree": MEAN_DEGREE},
    }
    if data is not None:
        where = {"graphs": {name: str(data / f"{name}.safetensors") for name in "AB"}, "label_holder": "A"}
    return parse_job(
        {
            "name": "sealed-scale",
            "paradigm": "sealed",
            "timeout_s": 3600,
            "data": where,
            "model": {"hops": HOPS},
            "train": {"epochs": STEPS, "batch_size": min(BATCH, nodes // 4), "checkpoint_every": STEPS},
        }
    )


def measure(nodes: int) -> dict[str, Any]:
    """The graph is made in one process and trained on in others, the largest of which has the peak."""
    with tempfile.TemporaryDirectory() as folder:
        _run(_MAKE, nodes, folder)
        output = _run(_ONE, nodes, folder)
    figures: dict[str, Any] = json.loads(output.splitlines()[-1])
    return {"nodes": nodes, "edges": round(nodes * MEAN_DEGREE / 2), **figures}


def _run(what: str, nodes: int, folder: str) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.sealed_scale", what, str(nodes), folder]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _make(nodes: int, folder: Path) -> None:
    for graph in load_parties(job(nodes).data, 0):
        save_party(graph, folder / f"{graph.party}.safetensors")


def _one(nodes: int, folder: Path) -> None:
    asked = job(nodes, folder)
    with installed(asked.data.names):
        started = time.perf_counter()
        result = train(asked, folder / "run", processes=True, link=LINK)
        total = time.perf_counter() - started
    steps = len(result.metrics) * statistics.median(record["step_seconds"] for record in result.metrics)
    figures = {
        "total_seconds": total,
        "steps_seconds": steps,
        "peak_gib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20,
        "sent": result.summary["sent_bytes"],
        "test_accuracy": result.summary["test_accuracy"],
    }
    print(json.dumps(figures))


def draw(figures: list[dict[str, Any]], path: Path) -> None:
    """Seconds and peak memory over the number of nodes, with lines of linear growth."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - seconds to import

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    nodes = [row["nodes"] for row in figures]
    setup = [row["total_seconds"] - row["steps_seconds"] for row in figures]
    left, right = figure.subplots(1, 2)
    left.loglog(nodes, [row["total_seconds"] for row in figures], marker="o", label="whole")
    left.loglog(nodes, setup, marker="o", label="without the steps")
    left.loglog(nodes, [setup[-1] / nodes[-1] * count for count in nodes], linestyle=":", color="grey", label="linear")
    left.set_ylabel("seconds, all parties on one machine")
    right.loglog(nodes, [row["peak_gib"] for row in figures], marker="o", label="the largest party")
    right.set_ylabel("peak memory, GiB")
    for axes in (left, right):
        axes.set_xlabel("nodes")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend()
    figure.savefig(path)


def section(figures: list[dict[str, Any]]) -> list[str]:
    """The table, in Markdown."""
    lines = [
        "| nodes | edges | whole, s | without the steps, s | µs a node | peak of a party, GiB | a holder sends | "
        "the dealer sends | test accuracy |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in figures:
        apart = row["total_seconds"] - row["steps_seconds"]
        lines.append(
            f"| {row['nodes']:,} | {row['edges']:,} | {row['total_seconds']:.0f} | {apart:.0f} | "
            f"{1e6 * apart / row['nodes']:.0f} | {row['peak_gib']:.2f} | {row['sent']['A'] / 1e9:.2f} GB | "
            f"{row['sent']['server'] / 1e9:.2f} GB | {row['test_accuracy']:.3f} |"
        )
    return lines


def main() -> None:
    """Measures every size, printing as it goes."""
    if sys.argv[1:2] in ([_ONE], [_MAKE]):
        work = _one if sys.argv[1] == _ONE else _make
        work(int(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sealed_scale", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--out", type=Path, default=Path("docs"))
    asked = parser.parse_args()
    figures = []
    for nodes in asked.nodes:
        figures.append(measure(nodes))
        print(json.dumps(figures[-1]), flush=True)
    (asked.out / "sealed-scale.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    draw(figures, asked.out / "sealed-scale.svg")
    print("\n".join(section(figures)))


if __name__ == "__main__":
    main()
