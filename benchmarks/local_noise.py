"""Seconds to perturb 100 million features locally (20,000 nodes × 5,000 features, one in a hundred of them 1).

A part of ``python -m benchmarks``, or ``python -m benchmarks.local_noise [--rows N] [--columns D]``.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch
from veilgraph_node_dp.mechanisms import AnalyticGaussian, FeatureMechanism, LocalLaplace, MultiBit

from veilgraph.core.secrets import system_secrets
from veilgraph.privacy.randomised_response import LabelResponse

ROWS, COLUMNS = 20_000, 5_000
DENSITY = 0.01
LABELS = 1_000_000


def mechanisms(columns: int) -> dict[str, FeatureMechanism]:
    """What is measured, by name."""
    some = {f"multi-bit, m = {m}": MultiBit(1.0, 0.0, 1.0, columns, m) for m in (1, columns // 20, columns // 2)}
    return {
        **some,
        "one-bit, m = d": MultiBit(1.0, 0.0, 1.0, columns, columns),
        "analytic Gaussian": AnalyticGaussian(1.0, 0.0, 1.0, columns, 1e-6),
        "Laplace": LocalLaplace(1.0, 0.0, 1.0, columns),
    }


def section(rows: int = ROWS, columns: int = COLUMNS) -> list[str]:
    """The lines of the page."""
    generator = torch.Generator().manual_seed(0)
    dense = torch.empty(rows, columns).bernoulli_(DENSITY, generator=generator)
    sparse = dense.to_sparse_csr()
    lines = [
        "## Local perturbation",
        "",
        f"Seconds to perturb {rows * columns:,} features ({rows:,} nodes × {columns:,}, one in a hundred of them 1) at "
        "ε = 1, given dense or sparse.",
        "",
        "| mechanism | dense x | sparse x |",
        "|---|---|---|",
    ]
    for name, mechanism in mechanisms(columns).items():
        lines.append(f"| {name} | {_seconds(mechanism, dense):.2f} s | {_seconds(mechanism, sparse):.2f} s |")
    labels = torch.randint(10, (LABELS,), generator=generator)
    started = time.perf_counter()
    LabelResponse(1.0, 10).release(labels, system_secrets)
    return [*lines, "", f"{LABELS:,} labels of 10 classes: {time.perf_counter() - started:.3f} s.", ""]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local_noise", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    given = parser.parse_args()
    print("\n".join(section(given.rows, given.columns)))
    print(f"peak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def _seconds(mechanism: FeatureMechanism, x: torch.Tensor) -> float:
    started = time.perf_counter()
    mechanism.release(x, system_secrets)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
