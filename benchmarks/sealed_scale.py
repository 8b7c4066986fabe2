"""Sealed jobs from ten thousand to a million nodes: ``python -m benchmarks.sealed_scale [--nodes N ...]``.

Each graph is made from a seed: 128 features and as many edges a node as ogbn-arxiv has, half of the nodes for training.
``--features 100 --degree 50.5`` makes them like ogbn-products.
Two holders, the dealer and the launcher are processes on this machine, every message sealed between its ends. Writes
``sealed-scale.json`` and ``sealed-scale.svg``.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import goals
from benchmarks.sizes import Figures, Sizes
from benchmarks.wires import LINK, installed
from veilgraph.core.types import PartyId
from veilgraph.graph.party import load_party
from veilgraph.protocol.costs import size_of
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.launch.jobs import RunOptions, train

BATCH, STEPS, BLOCKS = 2048, 300, ["pooled.2"]


def job(nodes: int) -> dict[str, Any]:
    """A whole training in batches of hidden rows, on rows propagated once."""
    return {
        "paradigm": "sealed",
        "model": {"network": "mlp", "blocks": BLOCKS},
        "train": {
            "epochs": STEPS,
            "batch_size": min(BATCH, nodes // 4),
            "checkpoint_every": STEPS,
            "select_by": "last",
        },
    }


def trained(settings: JobSettings, nodes: int, out: Path) -> Figures:
    """With every party in a process of its own, the largest of which has the peak."""
    with installed(settings.data.names):
        started = time.perf_counter()
        result = train(settings, out, options=RunOptions(processes=True, link=LINK))
        total = time.perf_counter() - started
    steps = len(result.metrics) * statistics.median(record["step_seconds"] for record in result.metrics)
    return {
        "total_seconds": total,
        "steps_seconds": steps,
        "peak_gib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20,
        "foreseen_gib": max(foreseen(settings, nodes).values()) / 2**30,
        "sent": result.summary["sent_bytes"],
        "test_accuracy": result.summary["test_accuracy"],
    }


def foreseen(settings: JobSettings, nodes: int) -> Mapping[PartyId, int]:
    """Party → bytes of memory that a plan says."""
    sizes = {name: size_of(load_party(path), settings.inputs) for name, path in (settings.data.graphs or {}).items()}
    costs = paradigm_of(settings).session.costs(settings, nodes, sizes)
    assert costs is not None
    return costs.memory


def draw(figures: list[Figures], path: Path) -> None:
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


def section(figures: list[Figures]) -> list[str]:
    """The table, in Markdown."""
    lines = [
        "| nodes | whole, s | without the steps, s | peak of a party, GiB | foreseen | a holder sends | "
        "the dealer sends | test accuracy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in figures:
        apart = row["total_seconds"] - row["steps_seconds"]
        lines.append(
            f"| {row['nodes']:,} | {row['total_seconds']:.0f} | {apart:.0f} | {row['peak_gib']:.2f} | "
            f"{row['foreseen_gib']:.2f} | "
            f"{row['sent']['A'] / 1e9:.2f} GB | {row['sent']['server'] / 1e9:.2f} GB | {row['test_accuracy']:.3f} |"
        )
    return lines


def keep(figures: list[Figures]) -> None:
    """Seconds of whole jobs."""
    for row in figures:
        goals.keep(f"sealed {row['nodes']}", row["total_seconds"])


SIZES = Sizes(
    module="benchmarks.sealed_scale",
    file="sealed-scale",
    nodes=(10_000, 30_000, 100_000, 169_343, 500_000, 1_000_000),
    features=128,
    mean_degree=13.8,
    job=job,
    train=trained,
    draw=draw,
    section=section,
    keep=keep,
)

if __name__ == "__main__":
    SIZES.main()
