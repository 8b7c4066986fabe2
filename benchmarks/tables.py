"""Peak memory and time of loading a party's tables: 1 million nodes, 10 million undirected edges.

``python -m benchmarks.tables [--nodes N] [--edges E]`` writes the tables to a temporary folder and loads them, each
format in a fresh process, so that the peak is its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from veilgraph.graph.build import build_graph, read_table
from veilgraph.protocol.party_settings import parse_party_settings
from veilgraph.tables.encode import fit_encoding

NODES, EDGES, NUMBERS = 1_000_000, 10_000_000, 8
FORMATS = ("csv", "csv.gz", "parquet")


@dataclass(frozen=True)
class LoadFigures:
    """Loading one format.

    Attributes:
        file_mb: size of both tables, in 10^6 bytes.
        base_gib: peak resident memory before loading: Python, PyTorch, pyarrow.
        peak_gib: peak resident memory after it.
        graph_gib: size of the graph that was built.
        seconds: from the files to the validated graph.
    """

    file_mb: float
    base_gib: float
    peak_gib: float
    graph_gib: float
    seconds: float


def measure(suffix: str, nodes: int = NODES, edges: int = EDGES) -> LoadFigures:
    """Writes the tables in one format and loads them in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), suffix, nodes, edges)
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.tables", "--load", folder, "--format", suffix]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    base, peak, graph, seconds = map(float, output.split())
    return LoadFigures(size / 1e6, base, peak, graph, seconds)


def _write(folder: Path, suffix: str, nodes: int, edges: int) -> None:
    generator = np.random.default_rng(0)
    ids = pa.array([f"customer-{node}" for node in range(nodes)])
    numbers = {f"n{column}": generator.standard_normal(nodes, np.float32) for column in range(NUMBERS)}
    ends = {end: ids.take(pa.array(generator.integers(0, nodes, edges))) for end in ("payer", "payee")}
    amounts = generator.random(edges).round(3)
    for name, table in (("nodes", {"id": ids, **numbers}), ("edges", {**ends, "amount": amounts})):
        path = folder / f"{name}.{suffix}"
        if suffix == "parquet":
            pa.parquet.write_table(pa.table(table), path)
        else:
            with pa.output_stream(path, compression="detect") as file:
                pa.csv.write_csv(pa.table(table), file)


def _load(folder: Path, suffix: str) -> None:
    settings = parse_party_settings(
        {
            "party": "bank",
            "nodes": {"file": f"nodes.{suffix}", "id": "id", "features": [{"columns": "n*"}]},
            "edges": [{"file": f"edges.{suffix}", "source": "payer", "target": "payee", "weight": "amount"}],
        }
    )
    base = peak_gib()
    start = time.perf_counter()
    table = read_table(settings, folder, None, "none")
    graph = build_graph(settings, folder, table, fit_encoding(table, "none")).graph
    seconds = time.perf_counter() - start
    tensors = (graph.features, graph.edge_index, graph.edge_weight)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)
    print(base, peak_gib(), size / 2**30, seconds)


def peak_gib() -> float:
    """Peak resident memory of this process so far."""
    # Not getrusage: its peak starts at the parent's.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 2**20


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--edges", type=int, default=EDGES)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--format", choices=FORMATS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load is not None:
        _load(arguments.load, arguments.format)
        return
    print("| format | files | seconds | peak memory | of it before loading | the graph itself |")
    print("|---|---:|---:|---:|---:|---:|")
    for suffix in FORMATS:
        figures = measure(suffix, arguments.nodes, arguments.edges)
        print(
            f"| .{suffix} | {figures.file_mb:.0f} MB | {figures.seconds:.1f} | {figures.peak_gib:.2f} GiB | "
            f"{figures.base_gib:.2f} GiB | {figures.graph_gib:.2f} GiB |"
        )


if __name__ == "__main__":
    _main()
