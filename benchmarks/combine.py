"""The training step with every maskable combine, masked and in the clear: ``python -m benchmarks.combine``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

from benchmarks import step
from benchmarks.graphs import public
from veilgraph.samples.shipped import with_overrides

DATASETS: Final = ("cora", "pubmed")
STRATEGIES: Final = ("mean", "degree-weighted", "regression")
VARIANTS: Final = tuple((strategy, masked) for strategy in STRATEGIES for masked in (True, False))
"""Strategy, and whether it is masked."""
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
    ratios = [
        statistics.median(one / other for one, other in zip(times[each, True], times[each, False], strict=True))
        for times in map(measure, datasets)
        for each in STRATEGIES
    ]
    *first, last = STRATEGIES
    return [
        "## Combining, masked and in the clear",
        "",
        f"The training step takes {min(ratios):.2f} to {max(ratios):.2f} times as long with masked embeddings as in "
        f"the clear: medians of {REPEATS} repeats on {' and '.join(datasets)}, with {', '.join(first)} and {last}.",
        "",
    ]


if __name__ == "__main__":
    print("\n".join(section()))
