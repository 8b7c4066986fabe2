"""Runs the benchmarks and writes what they gave: ``python -m benchmarks [--out docs/reference/benchmarks.md]``."""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path

import torch

from benchmarks import combine, critical_path, goals, limbs, local_noise, memory, peers, product, secure_max, step
from docs.pages import find_page

STEP_DATASETS = ("cora", "citeseer", "pubmed")
PRODUCT_DATASETS = ("cora", "citeseer", "pubmed")


def main() -> None:
    """Measures everything and writes the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, default=find_page("benchmarks.md"))
    out = parser.parse_args().out
    measured = [
        *_steps(),
        *critical_path.section(),
        *combine.section(),
        *_products(),
        *limbs.section(),
        *peers.section(each=False),
        *local_noise.section(),
        *secure_max.section(secure_max.spu_python(None)),
        *_memory(),
    ]
    lines = [
        "# Benchmarks",
        "",
        "For the engineer who sizes machines, or compares veilgraph with SPU and CrypTen: time, traffic and memory of "
        "a training step and of its secure protocols.",
        "",
        f"Made by `make bench` on {platform.machine()}, {os.cpu_count()} cores, "
        f"{torch.backends.cpu.get_cpu_capability()}, PyTorch {torch.__version__}. All parties run on the one machine; "
        "ratios are taken within one run.",
        "",
        "## Goals",
        "",
        *goals.section(goals.history()),
        *measured,
    ]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(out.read_text(encoding="utf-8"))


def _steps() -> list[str]:
    lines = [
        "## A training step",
        "",
        f"2 holders, d = {step.DIM}, K = {step.HOPS} hops of sage-mean, collaborative, masked mean: forward, backward "
        "and update of all parties, against the pooled plaintext model. `PyG` is the network as a PyG user writes it; "
        "`ours, pooled` multiplies sparse features.",
        "",
        "| data | federated | PyG | ours, pooled | federated / PyG | bytes a step |",
        "|---|---|---|---|---|---|",
    ]
    for name in STEP_DATASETS:
        figures = step.measure(name)
        sent = ", ".join(f"{party} {count / 1e6:.2f} MB" for party, count in figures.sent_bytes.items())
        wanted = ", ".join(f"{party} {count / 1e6:.2f} MB" for party, count in figures.formula_bytes.items())
        lines.append(
            f"| {name} | {figures.federated_ms:.1f} ms | {figures.pyg_ms:.1f} ms | {figures.pooled_ms:.1f} ms | "
            f"{figures.ratio:.2f} | {sent}{'' if wanted == sent else f'; by the formula {wanted}'} |"
        )
    return [*lines, "", "The same by a clock of the CPU, of one thread a party:", "", *step.section(STEP_DATASETS), ""]


def _products() -> list[str]:
    lines = [
        "## The secure product",
        "",
        "One step, 2 holders, d = 64, features with 12 fractional bits: forward product, opening h^0 and backward "
        "product online; then what is computed ahead; milliseconds.",
        "",
        "| data | online, a step | ahead, holder | ahead, dealer | bytes online |",
        "|---|---|---|---|---|",
    ]
    for name in PRODUCT_DATASETS:
        figures = product.measure(name, alone=True)
        lines.append(
            f"| {name} | {figures.online_ms:.1f} | {figures.offline_holder_ms:.1f} | "
            f"{figures.offline_dealer_ms:.1f} | {figures.online_bytes / 1e6:.2f} MB |"
        )
    return [*lines, ""]


def _memory() -> list[str]:
    figures = memory.measure()
    return [
        "## A job of ogbn-arxiv's size",
        "",
        f"{memory.NODES:,} nodes, {memory.EDGES:,} undirected edges, {memory.FEATURES} dense features, 2 holders, "
        "d = 64, K = 2, collaborative, masked mean; all parties in threads of one process.",
        "",
        f"- peak memory: {figures.peak_gib:.2f} GiB (the graphs alone: {figures.graph_gib:.2f} GiB)",
        f"- peak memory of the largest party, each in a process of its own: {figures.party_gib:.2f} GiB",
        f"- seconds per step: {figures.step_seconds:.2f}",
        "",
    ]


if __name__ == "__main__":
    main()
