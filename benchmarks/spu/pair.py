"""What two parties compute together by CHEETAH; run by the Python of SPU's own environment.

``python -m benchmarks.spu.pair OPERATION values.npz results.npz --repeats K`` prints two lines of
JSON, ``benchmarks.pair_figures.Figures`` of the first run and of the mean of K more, and writes ``result``.
``values.npz`` has the operands in order. Party 0 alone has an array whose name ends in 0, party 1 one in 1, and the
parties share all others. Whole numbers are of Z_2^64; floating ones have 18 of 64 bits after the point.

Each party is a process and an SPU node, linked by SPU's brpc over localhost, with as many threads as SPU chooses.
Operands are shared before any clock starts, and results opened afterwards. CHEETAH needs nobody beside the two
parties: ring-LWE for products, Ferret's silent transfers for bits (Huang, Lu, Hong and Ding, 2022).
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import jax  # type: ignore[import-not-found]
import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np
from spu import Io, Runtime, libspu  # type: ignore[import-not-found]
from spu.utils import frontend  # type: ignore[import-not-found]

from benchmarks.pair_figures import Figures, mean
from benchmarks.spu import maximum

PARTIES: Final = 2
_LINK: Final = re.compile(r"Link details: total send bytes (\d+), recv bytes \d+, send actions (\d+)")


def network(
    x0: jnp.ndarray, x1: jnp.ndarray, a0: jnp.ndarray, a1: jnp.ndarray, v: jnp.ndarray, w: jnp.ndarray
) -> jnp.ndarray:
    """(I + A)·relu((I + A)·X·V)·W, of each party's columns X and edges A."""

    def hop(rows: jnp.ndarray) -> jnp.ndarray:
        return rows + a0 @ rows + a1 @ rows

    return hop(jnp.maximum(hop(x0 @ v[: x0.shape[1]] + x1 @ v[x0.shape[1] :]), 0.0) @ w)


OPERATIONS: Final[dict[str, Callable[..., jnp.ndarray]]] = {
    "matmul": jnp.matmul,
    "inner": lambda left, right: jnp.sum(left * right, axis=0),
    "product": jnp.multiply,
    "negative": lambda value: value < 0,
    "gate": lambda value, other: jnp.where(value < 0, other, 0),
    "network": network,
}


def hold(server: Connection, rank: int, hosts: Sequence[str], arguments: argparse.Namespace, log: Path) -> None:
    """One party: a run for every True of the server, answered by seconds; at the end the result."""
    jax.config.update("jax_enable_x64", True)
    options = libspu.logging.LogOptions()
    options.enable_console_logger, options.system_log_path = False, str(log)
    libspu.logging.setup_logging(options)
    config, link = maximum.node_config("CHEETAH"), maximum.link_holders(hosts, rank)
    config.experimental_enable_colocated_optimization = True  # products with what one party has cost half
    io, runtime = Io(PARTIES, config), Runtime(link, config)
    with np.load(arguments.values, allow_pickle=False) as arrays:
        values = dict(arrays)
    secret = libspu.Visibility.VIS_SECRET
    for name, value in values.items():
        owner = int(name[-1]) if name[-1] in "01" else -1
        if rank == max(owner, 0):
            shares = io.make_shares(value, secret, owner)
            maximum.send_share(link, 1 - rank, shares[1 - rank])
            runtime.set_var(name, shares[rank])
        else:
            runtime.set_var(name, maximum.receive_share(link, max(owner, 0)))
    program, _ = frontend.compile(
        frontend.Kind.JAX,
        OPERATIONS[arguments.operation],
        list(values.values()),
        {},
        list(values),
        [secret] * len(values),
        lambda _: ["result"],
    )
    server.send(None)
    while server.recv():
        began, cpu = time.perf_counter(), time.process_time()
        runtime.run(program)
        server.send((time.perf_counter() - began, time.process_time() - cpu))
    own = runtime.get_var("result")
    maximum.send_share(link, 1 - rank, own)
    both = [own, maximum.receive_share(link, 1 - rank)]
    server.send(io.reconstruct(both) if rank == 0 else None)
    link.stop_link()


def measure(arguments: argparse.Namespace) -> tuple[list[Figures], np.ndarray]:
    """Figures of each run, and the result; ``EOFError``: a party died, and its own error is on stderr."""
    context, hosts = get_context("spawn"), maximum.free_hosts(PARTIES)
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"{rank}.log" for rank in range(PARTIES)]
        parties, processes = [], []
        for rank in range(PARTIES):
            ours, theirs = context.Pipe()
            given = (theirs, rank, hosts, arguments, logs[rank])
            process = context.Process(target=hold, args=given, daemon=True)
            process.start()
            theirs.close()
            parties.append(ours)
            processes.append(process)
        for party in parties:
            party.recv()
        runs = []
        for _ in range(1 + arguments.repeats):
            for party in parties:
                party.send(True)
            seconds, cpu = zip(*(party.recv() for party in parties), strict=True)
            runs.append((max(seconds), sum(cpu)))
        for party in parties:
            party.send(False)
        result, _ = [party.recv() for party in parties]
        for process in processes:
            process.join()
        sent = [[tuple(map(int, found)) for found in _LINK.findall(log.read_text("utf-8"))] for log in logs]
    links = [np.sum(each, axis=0).tolist() for each in zip(*(each[-len(runs) :] for each in sent), strict=True)]
    return [Figures(*run, *link) for run, link in zip(runs, links, strict=True)], result


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operation", choices=OPERATIONS)
    parser.add_argument("values", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    (first, *others), result = measure(arguments)
    np.savez(arguments.results, result=result)
    for figures in (first, mean(others or [first])):
        print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    _main()
