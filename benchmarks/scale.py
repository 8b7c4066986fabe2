"""Graphs from ten thousand to five million nodes, two holders on one machine: seconds and memory of an epoch.

``python -m benchmarks.scale [--nodes N ...] [--out docs/figures]`` makes each graph from a seed, trains one epoch in
batches with all parties in threads of one fresh process, and writes ``scale.json`` and ``scale.svg``.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import goals
from benchmarks.sizes import Figures, Sizes
from veilgraph.graph.party import load_party
from veilgraph.nn.neighbourhood import Sampler
from veilgraph.nn.propagate import Adjacency
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.jobs import train

BATCH, FANOUT = 16_384, 5


def job(_: int) -> dict[str, Any]:
    """One epoch in batches: collaborative, masked mean, K = 2 hops of sage-mean, d = 64."""
    return {
        "model": {"dim": 64, "local": {"model": "sage-mean", "hops": 2, "fanout": FANOUT}},
        "train": {"epochs": 1, "patience": None, "batch_size": BATCH},
    }


def trained(settings: JobSettings, nodes: int, out: Path) -> Figures:
    """With all parties in threads of this process, whose peak is then that of the parties."""
    started = time.perf_counter()
    result = train(settings, out)
    total = time.perf_counter() - started
    (record,) = result.metrics
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "epoch_seconds": record["step_seconds"] * -(-nodes // BATCH),
        "rows_of_a_node": rows_of_a_node(settings),
        "total_seconds": total,
        "peak_gib": peak,
        "test_accuracy": result.summary["test_accuracy"],
    }


def rows_of_a_node(settings: JobSettings) -> float:
    """Rows that a step computes at holder A, for each of its targets."""
    graph = load_party((settings.data.graphs or {})["A"])
    adjacency = Adjacency.of_edges(graph.edge_index, graph.edge_weight, graph.num_nodes, torch.float32)
    draws = torch.Generator().manual_seed(0)
    targets = torch.randperm(graph.num_nodes, generator=draws)[:BATCH]
    return len(Sampler(adjacency, 2, FANOUT).around(targets, draws).nodes) / len(targets)


def draw(figures: list[Figures], path: Path) -> None:
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


def section(figures: list[Figures]) -> list[str]:
    """The table, in Markdown."""
    lines = [
        "| nodes | edges | epoch, s | µs a node | rows a node | making the graph, s | all, s | peak, GiB | "
        "test accuracy |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in figures:
        lines.append(
            f"| {row['nodes']:,} | {row['edges']:,} | {row['epoch_seconds']:.1f} | "
            f"{1e6 * row['epoch_seconds'] / row['nodes']:.1f} | {row['rows_of_a_node']:.1f} | "
            f"{row['seconds_to_make']:.0f} | {row['total_seconds']:.1f} | {row['peak_gib']:.2f} | "
            f"{row['test_accuracy']:.3f} |"
        )
    return lines


def keep(figures: list[Figures]) -> None:
    """Growth of the time for a node, between the goal's sizes."""
    of_a_node = {row["nodes"]: row["epoch_seconds"] / row["nodes"] for row in figures}
    if {10_000, 5_000_000} <= of_a_node.keys():
        goals.keep("growth", of_a_node[5_000_000] / of_a_node[10_000], 1)


SIZES = Sizes(
    module="benchmarks.scale",
    file="scale",
    nodes=(10_000, 30_000, 100_000, 300_000, 1_000_000, 5_000_000),
    features=64,
    mean_degree=20,
    job=job,
    train=trained,
    draw=draw,
    section=section,
    keep=keep,
)

if __name__ == "__main__":
    SIZES.main()
