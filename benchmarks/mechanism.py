"""Milliseconds of one release on one thread: ``python -m benchmarks.mechanism``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from veilgraph.core.randomness import system_secrets
from veilgraph.privacy.mechanism import MECHANISMS

SHAPES = ((2708, 64), (19717, 64))  # one embedding of Cora and of PubMed
_WARM_UP, _RUNS = 3, 20


def measure(name: str, shape: tuple[int, int]) -> float:
    """Median milliseconds of a release of float32 rows by the mechanism of that name, on one thread."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    mechanism = MECHANISMS[name](1.0, 1.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _median_ms(lambda: mechanism.release(x, system_secrets))
    finally:
        torch.set_num_threads(threads)


def _median_ms(run: Callable[[], object]) -> float:
    times = []
    for _ in range(_WARM_UP + _RUNS):
        started = time.perf_counter()
        run()
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times[_WARM_UP:])


def main() -> None:
    print("| mechanism | " + " | ".join(f"[{rows}, {columns}]" for rows, columns in SHAPES) + " |")
    print("|---|" + "---|" * len(SHAPES))
    for name in MECHANISMS:
        print(f"| {name} | " + " | ".join(f"{measure(name, shape):.1f} ms" for shape in SHAPES) + " |")


if __name__ == "__main__":
    main()
