"""A holder's hops on several machines of its own: ``python -m benchmarks.machines [--nodes N] [--dim D] [MACHINES …]``.

For each graph, of how many nodes the rows pass between machines before a hop, as METIS divides them and as they stand
in the tables. Then, on a block model with 10 edges into a node, the peak memory that two training passes take at each
machine above what it had before, and the bytes that pass over loopback in one, others' too. Every machine is a process
of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn
from torch.distributed import FileStore
from veilgraph_datasets.block_model import block_model_data
from veilgraph_datasets.settings import BlockModelSettings
from veilgraph_machines.blocks import cut, metis
from veilgraph_machines.local import distribute
from veilgraph_machines.machine import LOOPBACK
from veilgraph_machines.passes import serve
from veilgraph_machines.rendezvous import follow, lead

from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.dataset import load_parties
from veilgraph.graph.settings import DataSettings
from veilgraph.nn.local.build import build_local, local_settings
from veilgraph.nn.propagate import Adjacency
from veilgraph.protocol.role import LocalPart
from veilgraph.runtime.launch.processes import keep_freed_memory

WAIT_S = 600.0


def in_order(incoming: sp.csr_array, machines: int) -> np.ndarray:
    """Contiguous blocks of as many nodes and edges each. A ``Partition``."""
    cost = (np.diff(incoming.indptr) + 1).cumsum()
    found: np.ndarray = (cost - 1) * machines // cost[-1]
    return found


def passing(adjacency: Adjacency, machines: int) -> str:
    """Nodes whose rows pass before a hop, by METIS and in order: a row of a table."""
    found = [
        sum(sum(block.receive_counts) for block in cut(adjacency, divide(adjacency.incoming, machines), machines))
        for divide in (metis, in_order)
    ]
    return f"{adjacency.num_nodes:,} | {adjacency.incoming.nnz:,} | {machines} | {found[0]:,} | {found[1]:,} |"


def made(nodes: int) -> Adjacency:
    """What one of two holders has of a block model, drawn from a seed."""
    data = block_model_data(BlockModelSettings(nodes=nodes, mean_degree=20, features=1), 0)
    edges = data.edge_index
    half = torch.rand(edges.shape[1], generator=torch.Generator().manual_seed(0)) < 1 / 2
    return Adjacency.of_edges(edges[:, half], None, nodes, torch.float32)


def part_of(adjacency: Adjacency, dim: int) -> LocalPart:
    """K = 2 hops of sage-mean."""
    settings = local_settings({"model": "sage-mean", "hops": 2, "dropout": 0.5})
    streams = LearningStreams(1, "A")
    model = build_local(settings, dim, 2, last_round=True, streams=streams, round=1, dtype=torch.float32)
    return LocalPart(nn.ModuleList([model]), adjacency, settings, dim, 2)


def passes(part: LocalPart, dim: int) -> int:
    """Run two training passes; returns the bytes that passed in the second."""
    h = torch.randn(part.adjacency.num_nodes, dim, requires_grad=True)
    before = 0
    for _ in range(2):
        before = sent_bytes()
        t = part.local[0](h, h, part.adjacency, torch.Generator().manual_seed(1))
        t.backward(torch.ones_like(t))
    return sent_bytes() - before


def sent_bytes() -> int:
    """Over loopback, since it is there."""
    (line,) = [line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")]
    return int(line.split()[9])


def memory_mib(key: str) -> int:
    """``VmRSS``, what this process has, or ``VmHWM``, the most that it had."""
    found = re.search(rf"{key}:\s+(\d+)", Path("/proc/self/status").read_text())
    return 0 if found is None else int(found[1]) >> 10


def lead_passes(nodes: int, dim: int, machines: int, store: str) -> None:
    """The joining machine's process: prints what it took, and the bytes that passed."""
    part, sent = part_of(made(nodes), dim), 0
    keep_freed_memory()
    Path("/proc/self/clear_refs").write_text("5")  # the most from here on
    before = memory_mib("VmRSS")
    if machines == 1:
        passes(part, dim)
    else:
        with closing(lead(FileStore(store), machines, LOOPBACK, timeout_s=WAIT_S, idle_s=WAIT_S)) as group:
            several = distribute(part, group)
            sent = passes(part, dim)
            several.close()
    print(memory_mib("VmHWM") - before, sent)


def follow_passes(rank: int, machines: int, store: str) -> None:
    """A further machine's process."""
    keep_freed_memory()
    before = memory_mib("VmRSS")
    with closing(follow(FileStore(store), rank, machines, LOOPBACK)) as group:
        serve(group)
    print(memory_mib("VmHWM") - before)


def measure(nodes: int, dim: int, machines: int) -> str:
    """Memory and bytes of one number of machines: a row of a table."""
    with tempfile.TemporaryDirectory() as folder:
        of = [str(nodes), str(dim), str(machines), f"{folder}/store"]
        started = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "benchmarks.machines", "--rank", str(rank), *of],
                stdout=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(machines)
        ]
        said = [process.communicate()[0].split() for process in started]
    (own, sent), others = said[0], [int(words[0]) for words in said[1:]]
    return f"{nodes:,} | {dim} | {machines} | {own.decode()} | {max(others, default=0)} | {int(sent) / 1e6:.1f} |"


def main(words: Sequence[str] | None = None) -> None:
    """Measure everything, or be one of the machines that are measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.machines", description=__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("machines", nargs="*", default=["1", "2", "4"])
    given = parser.parse_args(words)
    if given.rank is not None:
        nodes, dim, machines, store = given.machines
        if given.rank:
            follow_passes(given.rank, int(machines), store)
        else:
            lead_passes(int(nodes), int(dim), int(machines), store)
        return
    several = [int(count) for count in given.machines if int(count) > 1]
    print("| graph | nodes | edges | machines | rows that pass, METIS | in order |\n|---|---:|---:|---:|---:|---:|")
    for name in ("cora", "pubmed"):
        graph = Adjacency.from_graph(load_parties(DataSettings(dataset=name, holders=2), 0)[0], torch.float32)
        for count in several:
            print(f"| {name} | {passing(graph, count)}", flush=True)
    blocks = made(given.nodes)
    for count in several:
        print(f"| block model | {passing(blocks, count)}", flush=True)
    print("\n| nodes | d | machines | joining one, MiB | largest other, MiB | MB a pass |\n" + 6 * "|---:" + "|")
    for count in map(int, given.machines):
        print(f"| {measure(given.nodes, given.dim, count)}", flush=True)


if __name__ == "__main__":
    main()
