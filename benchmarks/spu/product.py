"""One step of products with static features under SPU; run by the Python of SPU's own environment.

``python -m benchmarks.spu.product values.npz --repeats K [--cached]`` prints one line of JSON,
``benchmarks.product_check.PeerFigures``; ``values.npz`` is as its ``load`` says.

Two holders are a process and an SPU node each, linked by SPU's brpc over localhost. X, W and g are shared before any
clock starts. One step, all of it timed and counted:

    forward   X·W, both holders send each other their share of h⁰ and add them up
    backward  Xᵀ·g; the result stays shared

Values are fixed-point numbers of 64 bits, 18 of them after the point. With ``--cached`` X is a cached variable: SPU
then keeps its mask and opens X minus the mask once for all products that it is in.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np
from spu import Io, Runtime, libspu  # type: ignore[import-not-found]
from spu.experimental import make_cached_var  # type: ignore[import-not-found]
from spu.utils import frontend  # type: ignore[import-not-found]

from benchmarks.product_check import PeerFigures, check, load
from benchmarks.spu import maximum

HOLDERS = 2
PROTOCOL = "SEMI2K"
RUNS = 2
"""Of SPU in a step: forward and backward."""


class Node:
    """One holder's SPU node.

    Args:
        rank: of this holder.
        hosts: ``address:port`` of every holder.
        log: file for what SPU's profiler says.
    """

    def __init__(self, rank: int, hosts: Sequence[str], log: Path) -> None:
        options = libspu.logging.LogOptions()
        options.enable_console_logger, options.system_log_path = False, str(log)
        libspu.logging.setup_logging(options)
        config = maximum.node_config(PROTOCOL)
        self._other, self._rank = 1 - rank, rank
        self.link = maximum.link_holders(hosts, rank)
        self._io, self._runtime = Io(HOLDERS, config), Runtime(self.link, config)

    def share(self, name: str, value: np.ndarray, owner: int) -> None:
        """Makes a secret variable of a value that both are given here and only the owner's counts."""
        if self._rank == owner:
            shares = self._io.make_shares(value, libspu.Visibility.VIS_SECRET)
            maximum.send_share(self.link, self._other, shares[self._other])
            self._runtime.set_var(name, shares[self._rank])
        else:
            self._runtime.set_var(name, maximum.receive_share(self.link, self._other))

    def compile(
        self, function: Callable[..., jnp.ndarray], inputs: dict[str, np.ndarray], output: str
    ) -> libspu.Executable:
        """The function of these secret variables, as a program that makes another one."""
        secret = [libspu.Visibility.VIS_SECRET] * len(inputs)
        values, names = list(inputs.values()), list(inputs)
        return frontend.compile(frontend.Kind.JAX, function, values, {}, names, secret, lambda _: [output])[0]

    def run(self, program: libspu.Executable) -> None:
        """Runs with the other node."""
        self._runtime.run(program)

    def open(self, name: str) -> tuple[np.ndarray, int]:
        """The variable's value, at both holders, and the bytes sent for it."""
        own = self._runtime.get_var(name)
        sent = maximum.send_share(self.link, self._other, own)
        received = maximum.receive_share(self.link, self._other)
        both = [own, received] if self._rank == 0 else [received, own]
        return self._io.reconstruct(both), sent


def hold(server: Connection, rank: int, hosts: Sequence[str], path: Path, cached: bool, log: Path) -> None:
    """One holder: a step for every word of the server; the bytes sent to open h⁰ are the answer, the results the last.

    Args:
        server: gives the word.
        rank: of this holder.
        hosts: ``address:port`` of every holder.
        path: of the values.
        cached: whether X is a cached variable.
        log: file for what SPU's profiler says.
    """
    values = load(path)
    node = Node(rank, hosts, log)
    for holder in range(HOLDERS):
        node.share(f"x{holder}", values[f"x{holder}"], holder)
        node.share(f"g{holder}", values[f"g{holder}"], holder)
    node.share("w", values["w"], 0)

    def beside(*blocks: jnp.ndarray) -> jnp.ndarray:
        x = jnp.concatenate(blocks, axis=1)
        return make_cached_var(x) if cached else x

    blocks = {f"x{holder}": values[f"x{holder}"] for holder in range(HOLDERS)}
    gradients = {f"g{holder}": values[f"g{holder}"] for holder in range(HOLDERS)}
    x, g = np.concatenate(list(blocks.values()), axis=1), values["g0"]
    node.run(node.compile(beside, blocks, "x"))
    node.run(node.compile(lambda *gradients: sum(gradients), gradients, "g"))
    forward = node.compile(jnp.matmul, {"x": x, "w": values["w"]}, "h0")
    backward = node.compile(lambda x, g: x.T @ g, {"x": x, "g": g}, "update")
    server.send(True)
    h0 = None
    while server.recv():
        node.run(forward)
        h0, sent = node.open("h0")
        node.run(backward)
        server.send(sent)
    update, _ = node.open("update")
    if rank == 0:
        server.send((h0, update))
    node.link.stop_link()


def measure(path: Path, repeats: int, *, cached: bool) -> PeerFigures:
    """Starts the holders, times one step after another and checks the last one's results.

    Args:
        path: of the values.
        repeats: steps after a first one.
        cached: whether X is a cached variable.

    Raises:
        RuntimeError: if results are wrong.
        EOFError: if a holder died; its own error is on stderr.
    """
    context, hosts = get_context("spawn"), maximum.free_hosts(HOLDERS)
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"{rank}.log" for rank in range(HOLDERS)]
        holders, processes = [], []
        for rank in range(HOLDERS):
            ours, theirs = context.Pipe()
            process = context.Process(target=hold, args=(theirs, rank, hosts, path, cached, logs[rank]), daemon=True)
            process.start()
            theirs.close()
            holders.append(ours)
            processes.append(process)
        for holder in holders:
            holder.recv()
        seconds = []
        for _ in range(1 + repeats):
            started = time.perf_counter()
            for holder in holders:
                holder.send(True)
            opened = [holder.recv() for holder in holders]
            seconds.append(time.perf_counter() - started)
        for holder in holders:
            holder.send(False)
        error = check(load(path), *holders[0].recv())
        for process in processes:
            process.join()
        inside = [maximum.runtime_bytes(log.read_text(encoding="utf-8"), RUNS) for log in logs]
    median = statistics.median(seconds[1:])
    sent = max(run + other for run, other in zip(inside, opened, strict=True))
    return PeerFigures(median, median, sent, 0, error)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("values", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cached", action="store_true")
    arguments = parser.parse_args()
    print(json.dumps(asdict(measure(arguments.values, arguments.repeats, cached=arguments.cached))))


if __name__ == "__main__":
    _main()
