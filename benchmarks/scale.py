"""Graphs from ten thousand to five million nodes, two holders on one machine: seconds and memory of an epoch.

``python -m benchmarks.scale [--nodes N ...] [--out docs]`` makes each graph from a seed, trains one epoch in batches
with all parties in threads of one fresh process, and writes ``scale.json`` and ``scale.svg``.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from veilgraph.graph.datasets import load_parties
from veilgraph.graph.party import save_party
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.run.jobs import train

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 5_000_000)
BATCH, FANOUT, MEAN_DEGREE, FEATURES = 16_384, 5, 20, 64
_ONE = "--one"


def job(nodes: int, data: Path | None = None) -> JobSettings:
    """One epoch in batches: collaborative, masked mean, K = 2 hops of sage-mean, d = 64."""
    where: dict[str, Any] = {
        "dataset": "block-model",
        "block_model": {"nodes": nodes, "features": FEATURES, "mean_degree": MEAN_DEGREE},
    }
    if data is not None:
        where = {"graphs": {name: str(data / f"{name}.safetensors") for name in "AB"}, "label_holder": "A"}
    return parse_job(
        {
            "name": "scale",
            "timeout_s": 3600,
            "data": where,
            "model": {"dim": 64, "local": {"model": "sage-mean", "hops": 2, "fanout": FANOUT}},
            "train": {"epochs": 1, "patience": None, "batch_size": BATCH},
        }
    )


def measure(nodes: int) -> dict[str, Any]:
    """The graph is made in one process and trained on in another, whose peak is then that of the parties."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        _run("--make", nodes, folder)
        made = time.perf_counter() - started
        output = _run(_ONE, nodes, folder)
    figures: dict[str, Any] = json.loads(output.splitlines()[-1])
    return {"nodes": nodes, "edges": nodes * MEAN_DEGREE // 2, "seconds_to_make": made, **figures}


def _run(what: str, nodes: int, folder: str) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.scale", what, str(nodes), folder]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _make(nodes: int, folder: Path) -> None:
    for graph in load_parties(job(nodes).data, 0):
        save_party(graph, folder / f"{graph.party}.safetensors")


def _one(nodes: int, folder: Path) -> None:
    started = time.perf_counter()
    result = train(job(nodes, folder), folder / "run")
    total = time.perf_counter() - started
    (record,) = result.metrics
    steps = -(-nodes // BATCH)
    figures = {
        "epoch_seconds": record["step_seconds"] * steps,
        "total_seconds": total,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "test_accuracy": result.summary["test_accuracy"],
    }
    print(json.dumps(figures))


def draw(figures: list[dict[str, Any]], path: Path) -> None:
    """Seconds of an epoch and peak memory over the number of nodes, with the line of linear growth."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - seconds to import

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    nodes = [row["nodes"] for row in figures]
    for axes, key, words in zip(
        figure.subplots(1, 2), ("epoch_seconds", "peak_gib"), ("seconds of an epoch", "peak memory, GiB"), strict=True
    ):
        axes.loglog(nodes, [row[key] for row in figures], marker="o", label="all parties, one machine")
        if key == "epoch_seconds":
            slope = figures[len(figures) // 2][key] / nodes[len(figures) // 2]
            axes.loglog(nodes, [slope * count for count in nodes], linestyle=":", color="grey", label="linear")
        axes.set_xlabel("nodes")
        axes.set_ylabel(words)
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend()
    figure.savefig(path)


def section(figures: list[dict[str, Any]]) -> list[str]:
    """The table, in Markdown."""
    lines = [
        "| nodes | edges | epoch, s | µs a node | making the graph, s | all, s | peak, GiB | test accuracy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in figures:
        lines.append(
            f"| {row['nodes']:,} | {row['edges']:,} | {row['epoch_seconds']:.1f} | "
            f"{1e6 * row['epoch_seconds'] / row['nodes']:.1f} | {row['seconds_to_make']:.0f} | "
            f"{row['total_seconds']:.1f} | {row['peak_gib']:.2f} | {row['test_accuracy']:.3f} |"
        )
    return lines


def main() -> None:
    """Measures every size, printing as it goes."""
    if sys.argv[1:2] in ([_ONE], ["--make"]):
        work = _one if sys.argv[1] == _ONE else _make
        work(int(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--out", type=Path, default=Path("docs"))
    asked = parser.parse_args()
    figures = []
    for nodes in asked.nodes:
        figures.append(measure(nodes))
        print(json.dumps(figures[-1]), flush=True)
        (asked.out / "scale.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    draw(figures, asked.out / "scale.svg")
    print("\n".join(section(figures)))


if __name__ == "__main__":
    main()
