"""Predictions from tables that changed: ``python -m benchmarks.refresh [--nodes N …] [--overlap S …]``.

Two holders and the server are threads of this machine. Beside each change stands the control: the same prediction where
one holder has lost the alignment before, so that all ids are aligned in full. ``--overlap`` is the share of a holder's
nodes that are common. Processor's seconds are of all parties together, and depend little on what else runs. Bytes are
a holder's, in the alignment and in all that follows.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.graphs import random_parties
from veilgraph.core.files import read_json
from veilgraph.core.types import Kind, PartyId
from veilgraph.protocol.job_file import parse_job, read_job
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_organisations

NODES: Final = (12_000, 100_000)
_FEATURES, _CLASSES, _EDGES_A_NODE = 16, 2, 3
_FEW: Final[dict[str, Any]] = {"epochs": 3, "select_by": "last", "checkpoint_every": 1000, "patience": None}
_JOBS: Final[dict[str, dict[str, Any]]] = {
    "vertical": {},
    "sealed": {"model": {"blocks": ["own", "pooled.1"]}, "output": "margins"},
}
_ALIGNING: Final = {Kind.BLINDED_IDS.name.lower(), Kind.ID_TOKENS.name.lower(), Kind.ROW_ORDER.name.lower()}

Tables = dict[PartyId, Path]


def _rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def _edge_goes(tables: Tables) -> None:
    _rewrite(tables["A"] / "edges.parquet", lambda edges: edges.slice(1))


def _customer_comes(tables: Tables) -> None:
    def more(nodes: pa.Table) -> pa.Table:
        new = nodes.slice(0, 1).set_column(0, "id", pa.array([f"new {len(nodes)}"]))
        return pa.concat_tables([nodes, new])

    for folder in tables.values():
        _rewrite(folder / "nodes.parquet", more)


def _customer_goes(tables: Tables) -> None:
    """The last to come, which has no edges."""
    _rewrite(tables["A"] / "nodes.parquet", lambda nodes: nodes.slice(0, len(nodes) - 1))


_CHANGES: Final[dict[str, Callable[[Tables], None]]] = {
    "an edge goes at A": _edge_goes,
    "a customer comes to both": _customer_comes,
    "a customer leaves A": _customer_goes,
}


def measure(paradigm: str, nodes: int, overlap: float) -> list[str]:
    """Rows of the table of one job."""
    job = parse_job({"name": "served", "paradigm": paradigm, "train": _FEW, **_JOBS[paradigm]})
    graphs = random_parties(nodes, _EDGES_A_NODE * nodes, _FEATURES, _CLASSES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = export_organisations(graphs, folder / "tables", overlap=overlap, seed=0, format="parquet", job=job)
        tables = {party: file.parent for party, file in files.items()}
        train(read_job(folder / "tables" / "job.yaml"), folder / "run")
        rows = [_row(paradigm, nodes, overlap, "nothing", folder / "run", changed=False)]
        for what, change in _CHANGES.items():
            change(tables)
            rows.append(_row(paradigm, nodes, overlap, what, folder / "run", changed=True))
    return rows


def _row(paradigm: str, nodes: int, overlap: float, what: str, run: Path, *, changed: bool) -> str:
    times, aligned, rest = _predicted(run)
    in_full = ""
    if changed:
        (RunDirectory.open(run).party_path("B") / "aligned.safetensors").unlink()
        in_full = _predicted(run)[0]
    sent = f"{aligned / 1e6:.1f} + {rest / 1e6:.1f}"
    row = f"| {paradigm} | {nodes:,} | {overlap:.0%} | {what} | {times} | {in_full} | {sent} |"
    print(row, flush=True)
    return row


def _predicted(run: Path) -> tuple[str, int, int]:
    """Seconds of a prediction, and of the processor; bytes that B sent in its alignment, and in the rest of it."""
    began, worked = time.perf_counter(), time.process_time()
    predict(run)
    times = f"{time.perf_counter() - began:.1f} ({time.process_time() - worked:.1f})"
    rows = read_json(RunDirectory.open(run).party_path("B") / "prediction_traffic.json", list[dict[str, Any]], "")
    sent = [row for row in rows if row["direction"] == "sent"]
    aligned = sum(row["bytes"] for row in sent if row["kind"] in _ALIGNING)
    return times, aligned, sum(row["bytes"] for row in sent) - aligned


def main() -> None:
    """Measures everything, and prints it as docs/guides/serving.md has it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.refresh", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--overlap", type=float, nargs="+", default=[1.0])
    given = parser.parse_args()
    warnings.filterwarnings("ignore", "Sparse CSR")
    logging.getLogger("veilgraph").setLevel(logging.ERROR)
    print(f"{platform.machine()}, {os.cpu_count()} cores")
    print("| job | nodes | common | what changed | seconds (processor's) | in full | MB: aligned + rest |")
    print("|---|---:|---:|---|---:|---:|---:|")
    for nodes in given.nodes:
        for overlap in given.overlap:
            for paradigm in _JOBS:
                measure(paradigm, nodes, overlap)


if __name__ == "__main__":
    main()
