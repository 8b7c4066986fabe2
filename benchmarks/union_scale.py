"""Unions from a hundred thousand to a million accounts: ``python -m benchmarks.union_scale [--sizes SIZE ...]``.

Three banks, the dealer and the launcher are processes on this machine, every message sealed between its ends. Accounts
and payments are drawn from a seed, ten payments an account, some accounts with very many: a linear model of holders'
columns and these after two hops, 50 steps of 2,048 rows. Writes ``union-scale.json`` in ``docs/figures``, and what a
plan foresees beside what was measured. Sizes are ``NODESxCOLUMNS``. With ``--defaults`` jobs have the default networks
and steps, with ``--majority`` the last bank deals, with ``--nobody`` two banks have no dealer, and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch_geometric.data import Data

from benchmarks.wires import LINK, installed
from docs.pages import FIGURES
from veilgraph.core.types import SERVER
from veilgraph.graph.partition import split_at_home
from veilgraph.graph.party import PartyGraph, load_party, load_party_ids, pairs_once, save_party
from veilgraph.graph.pooling import POOLED
from veilgraph.protocol.costs import size_of
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.launch.jobs import RunOptions, train

SIZES: Final = ("100000x4", "100000x13", "300000x4", "1000000x4")
BANKS, PAIR = "ABC", "AB"
_SHARES: Final = (0.44, 0.75)  # of all accounts, up to the second and the third bank's
_PAYMENTS, _SKEW = 10, 1.5
STEPS, BATCH = 50, 2048
_MAKE, _TRAIN = "--make", "--train"
_FLAGS = ("defaults", "majority", "nobody")


def job_of(folder: Path, flags: Collection[str]) -> JobSettings:
    """One trial, whose steps are not judged; or a job that says nothing of its network."""
    small = {
        "model": {"network": "linear", "blocks": ["own", "pooled.2"]},
        "train": {"epochs": STEPS, "batch_size": BATCH, "select_by": "last", "checkpoint_every": STEPS},
    }
    graphs = {path.stem: str(path) for path in sorted(folder.glob("?.safetensors"))}
    return parse_job(
        {
            "name": "union-scale",
            "paradigm": "union",
            "timeout_s": 3600,
            "data": {"graphs": graphs, "feature_scaling": "standard"},
            **({} if "defaults" in flags else small),
            "trust": next((trust for trust in ("majority", "nobody") if trust in flags), "dealer"),
        }
    )


def make(nodes: int, columns: int, folder: Path, banks: str) -> None:
    """Draws accounts and payments, and saves what each bank has of them."""
    rng = np.random.default_rng(0)
    ends = [rng.permutation(nodes)[(rng.random(_PAYMENTS * nodes) ** _SKEW * nodes).astype(np.int64)] for _ in range(2)]
    edges, _ = pairs_once(torch.from_numpy(np.stack(ends)))
    labels = torch.from_numpy((rng.random(nodes) < 0.1).astype(np.int64))
    columns_of = torch.from_numpy(rng.standard_normal((nodes, columns)).astype(np.float32)) + labels[:, None] / 2
    whole = Data(x=columns_of, edge_index=edges[:, edges[0] != edges[1]], y=labels)
    place = torch.from_numpy(rng.random(nodes))
    whole.train_mask, whole.val_mask, whole.test_mask = place < 0.5, (place >= 0.5) & (place < 0.6), place >= 0.6
    home = torch.from_numpy(np.searchsorted(_SHARES[: len(banks) - 1], rng.random(nodes)))
    for graph, ids in split_at_home(PartyGraph.from_data(POOLED, whole), banks, home):
        save_party(graph, folder / f"{graph.party}.safetensors", ids)


def trained(folder: Path, flags: Collection[str]) -> dict[str, Any]:
    """What it took, and what a plan foresees of it."""
    job = job_of(folder, flags)
    paths = {name: folder / f"{name}.safetensors" for name in job.data.names}
    with installed(job.data.names):
        started = time.perf_counter()
        summary = train(job, folder / "run", options=RunOptions(processes=True, link=LINK)).summary
        seconds = time.perf_counter() - started
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    parts = {name: (load_party(path), load_party_ids(path) or ()) for name, path in paths.items()}
    costs = paradigm_of(job).session.costs(
        job, 0, {n: size_of(part, job.inputs, ids) for n, (part, ids) in parts.items()}
    )
    assert costs is not None
    return {
        "edges": sum(int((part.edge_index[1] < part.common).sum()) for part, _ in parts.values()),
        "seconds": seconds,
        "core_seconds": spent.ru_utime + spent.ru_stime,
        "peak_gib": spent.ru_maxrss / 2**20,
        "foreseen_gib": max(costs.memory.values()) / 2**30,
        "sent": summary["sent_bytes"],
        "foreseen": costs.sent(),
        "test_auc": summary["test_auc"],
    }


def measured(size: str, *more: str) -> dict[str, Any]:
    """Of one size, made and trained in fresh processes."""
    nodes, columns = map(int, size.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.union_scale"]
        banks = PAIR if "--nobody" in more else BANKS
        subprocess.run([*command, _MAKE, str(nodes), str(columns), folder, banks], check=True)
        output = subprocess.run([*command, _TRAIN, folder, *more], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {"nodes": nodes, "columns": columns, "load": os.getloadavg()[0], **json.loads(output.splitlines()[-1])}


def section(figures: list[dict[str, Any]]) -> list[str]:
    """The table, in Markdown."""
    lines = [
        "| accounts | pairs that pay | columns | whole, s | of a core, s | peak of a party, GiB | foreseen | "
        "a bank sends, GB | beyond the plan, bytes | the dealer sends, GB |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in figures:
        most = max(row["foreseen"].keys() - {SERVER}, key=row["sent"].__getitem__)
        sent, foreseen, dealt = row["sent"][most], row["foreseen"][most], row["sent"][SERVER]
        lines.append(
            f"| {row['nodes']:,} | {row['edges']:,} | {row['columns']} | {row['seconds']:.0f} | "
            f"{row['core_seconds']:.0f} | {row['peak_gib']:.2f} | {row['foreseen_gib']:.2f} | "
            f"{sent / 1e9:.2f} | {sent - foreseen:,} | {dealt / 1e9:.2f} |"
        )
    return lines


def main() -> None:
    """See the head of the file."""
    if sys.argv[1:2] == [_MAKE]:
        make(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
        return
    if sys.argv[1:2] == [_TRAIN]:
        print(json.dumps(trained(Path(sys.argv[2]), [name for name in _FLAGS if f"--{name}" in sys.argv])))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.union_scale", description=__doc__)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES))
    parser.add_argument("--out", type=Path, default=FIGURES)
    for name in _FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    asked = parser.parse_args()
    more = [f"--{name}" for name in _FLAGS if getattr(asked, name)]
    figures = []
    for size in asked.sizes:
        figures.append(measured(size, *more))
        print(json.dumps(figures[-1]), flush=True)
        if more:
            continue
        (asked.out / "union-scale.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print("\n".join(section(figures)))


if __name__ == "__main__":
    main()
