"""The training step with every combine, masked and in the clear: ``python -m benchmarks.combine``."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from typing import Any, Final

from benchmarks import step
from benchmarks.graphs import public
from veilgraph.samples.shipped import with_overrides

DATASETS: Final = ("cora", "pubmed")
VARIANTS: Final = (
    ("mean", True),
    ("mean", False),
    ("degree-weighted", True),
    ("degree-weighted", False),
    ("regression", True),
    ("regression", False),
    ("concat", False),
)
"""Strategy, and whether it is masked; concat cannot be."""
REPEATS: Final = 3


def measure(dataset: str, repeats: int = REPEATS, steps: int = step.STEPS) -> dict[tuple[str, bool], list[float]]:
    """Median milliseconds per step of every variant in each repeat; all variants in turn, several times."""
    graphs = public(dataset)
    times: dict[tuple[str, bool], list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(repeats):
        for strategy, masked in VARIANTS:
            changes: dict[str, Any] = {"model.combine.strategy": strategy, "model.combine.masked": masked}
            times[strategy, masked].append(step.federated_ms(graphs, with_overrides(step.job(steps), changes)))
    return times


def section(datasets: Sequence[str] = DATASETS) -> list[str]:
    """Lines of Markdown."""
    measured = {dataset: measure(dataset) for dataset in datasets}
    lines = [
        "## Combining, masked and in the clear",
        "",
        "The training step above with every way to combine; medians over steps, then over "
        f"{REPEATS} repeats in which all were measured in turn; the ratio is the median of the repeats' ratios. Masked "
        "embeddings are sent as 64-bit ring elements, others as float32. concat needs every embedding by itself. "
        f"15-minute load average at the end: {os.getloadavg()[2]:.1f} on {os.cpu_count()} cores.",
        "",
        "| data | combine | masked | in the clear | masked / clear |",
        "|---|---|---|---|---|",
    ]
    for dataset, times in measured.items():
        for strategy in dict.fromkeys(strategy for strategy, _ in VARIANTS):
            clear = times[strategy, False]
            masked = times.get((strategy, True))
            hidden, ratio = "–", "–"
            if masked is not None:
                hidden = f"{statistics.median(masked):.1f} ms"
                ratio = f"{statistics.median(one / other for one, other in zip(masked, clear, strict=True)):.2f}"
            lines.append(f"| {dataset} | {strategy} | {hidden} | {statistics.median(clear):.1f} ms | {ratio} |")
    return [*lines, ""]


if __name__ == "__main__":
    print("\n".join(section()))
