"""Milliseconds of an exact product mod 2^64: PyTorch's int64 kernel against int8 and float64 limbs.

A part of ``python -m benchmarks``, or ``python -m benchmarks.limbs``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor

from veilgraph.mpc.ring import FLOAT64, INT8, StaticOperand, dense_operand, device_of, limb_operand

DIM: Final = 64
SHAPES: Final = {"Cora": (2708, 717), "PubMed": (19717, 250), "ogbn-arxiv": (169343, 64)}
"""Nodes, and features of one of two holders."""
REPEATS: Final = 3


def section() -> list[str]:
    """The lines of the page."""
    device = device_of("auto")
    ways: dict[str, Callable[[Tensor], StaticOperand]] = {"int64, cpu": dense_operand}
    for place in dict.fromkeys([torch.device("cpu"), device]):
        for name, limbs in (("int8", INT8), ("float64", FLOAT64)):
            ways[f"{name} limbs, {place.type}"] = partial(limb_operand, device=place, limbs=limbs)
    gpu = f"GPU: {torch.cuda.get_device_name(device)}." if device.type == "cuda" else "No GPU was there."
    return [
        "## Exact products by limbs",
        "",
        f"Milliseconds of A·B and Aᵀ·B mod 2^64, d = {DIM}, for A [N, F] of one of two holders, full-range and "
        f"prepared once; medians of {REPEATS}; on a GPU with B taken there and the result back. The CPU uses its int64 "
        f"kernel; limbs are for devices without one. {gpu}",
        "",
        f"| data | product | {' | '.join(ways)} |",
        f"|---|---|{'---|' * len(ways)}",
        *(line for name, shape in SHAPES.items() for line in _rows(name, shape, list(ways.values()))),
        "",
    ]


def _rows(name: str, shape: tuple[int, int], ways: list[Callable[[Tensor], StaticOperand]]) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    nodes, features = shape
    matrix, right, tall = (
        torch.randint(-(2**63), 2**63 - 1, size, generator=generator) for size in (shape, (features, DIM), (nodes, DIM))
    )
    forward, backward = [], []
    for way in ways:
        operand = way(matrix)
        forward.append(_milliseconds(operand.times, right))
        backward.append(_milliseconds(operand.transposed_times, tall))
    return [
        f"| {name} [{nodes}, {features}] | {product} | {' | '.join(f'{each:.1f}' for each in times)} |"
        for product, times in (("A·B", forward), ("Aᵀ·B", backward))
    ]


def _milliseconds(multiply: Callable[[Tensor], Tensor], right: Tensor) -> float:
    multiply(right)
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        multiply(right)
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


if __name__ == "__main__":
    print("\n".join(section()))
