"""SecureGNN under SPU, run by the Python of SPU's own environment.

``python program.py train FOLDER`` trains the plaintext twin and writes ``twin.npz``, ``network.train``'s arrays.
``python program.py hold FOLDER RANK`` is one of two holders, each a process and an SPU node, linked by brpc. FOLDER has

    task.json       ``network.Task``
    shared.npz      ``labels`` [T, C] and the first weights ``weight0``, ``weight1``, …; holder 0 shares the labels
    holder<i>.npz   ``features`` [N, F_i] float32 and ``edge_index`` [2, E_i] of each holder, the T training nodes first

Shared among the holders once: features, adjacency matrices, labels, weights. Then, all in SPU:

    set up     columns side by side, the sum of the adjacency matrices, and of every node 1 / max(degree, 1)
    epochs     ``network.step``, once each; nothing is opened
    open       the weights, to holder 0, for comparison with the twin

A holder writes ``held<rank>.npz``: ``seconds``, ``cpu_seconds`` and ``sent_bytes`` of every epoch, ``setup_seconds``
with the sharing, ``peak_bytes`` of memory, and at holder 0 the weights ``weight0``, ….

Values are fixed-point numbers of 64 bits, 18 of them after the point. SEMI2K as it comes (``TrustedFirstParty``): the
correlated randomness is holder 0's, which could unmask all. Which nodes are for training is public.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np
from network import Task, load, numbered, step, train  # type: ignore[import-not-found]
from spu import Io, Runtime, libspu  # type: ignore[import-not-found]
from spu.utils import frontend  # type: ignore[import-not-found]

TIMEOUT_MS = 600_000
FRACTION_BITS = 18
_SENT = re.compile(r"Link details: total send bytes (\d+)")


class Holder:
    """One SPU node and what it holds shares of.

    Args:
        hosts: of all holders.
        rank: of this one.
        log: file for what SPU's profiler says.
    """

    def __init__(self, hosts: Sequence[str], rank: int, log: Path) -> None:
        options = libspu.logging.LogOptions()
        options.enable_console_logger, options.system_log_path = False, str(log)
        libspu.logging.setup_logging(options)
        config = libspu.RuntimeConfig(
            protocol=libspu.ProtocolKind.SEMI2K, field=libspu.FieldType.FM64, fxp_fraction_bits=FRACTION_BITS
        )
        config.enable_pphlo_profile = True
        description = libspu.link.Desc()
        description.recv_timeout_ms = TIMEOUT_MS
        for number, host in enumerate(hosts):
            description.add_party(f"holder{number}", host)
        self.rank, self._log, self._count = rank, log, len(hosts)
        self.link = libspu.link.create_brpc(description, rank)
        self._io, self._runtime = Io(len(hosts), config), Runtime(self.link, config)
        self._visibility: dict[str, libspu.Visibility] = {}

    def share(self, name: str, owner: int, value: np.ndarray | None, *, public: bool = False) -> None:
        """Makes shares of the owner's value and sends every other holder its own.

        Args:
            name: under which the shares are kept.
            owner: rank of who has the value.
            value: float32; None at all but the owner.
            public: whether all get the value itself.
        """
        visibility = libspu.Visibility.VIS_PUBLIC if public else libspu.Visibility.VIS_SECRET
        self._visibility[name] = visibility
        if value is None:
            self._runtime.set_var(name, self._receive(owner))
            return
        for other, share in enumerate(self._io.make_shares(value, visibility)):
            if other == self.rank:
                self._runtime.set_var(name, share)
            else:
                self._send(other, share)

    def open(self, name: str, to: int) -> np.ndarray | None:
        """The value at the holder that it is opened to, None at the others."""
        own = self._runtime.get_var(name)
        if self.rank != to:
            self._send(to, own)
            return None
        shares = [own if other == to else self._receive(other) for other in range(self._count)]
        return np.asarray(self._io.reconstruct(shares))

    def compile(
        self, function: Callable[..., object], arguments: dict[str, np.ndarray], outputs: Sequence[str], *, public: bool
    ) -> libspu.Executable:
        """A program over values by their names.

        Args:
            function: of as many arrays as there are arguments; returns as many as there are outputs.
            arguments: name → an array of the value's shape.
            outputs: names that the results are kept under; replaces values of that name.
            public: whether the results are.
        """
        program, _ = frontend.compile(
            frontend.Kind.JAX,
            function,
            list(arguments.values()),
            {},
            list(arguments),
            [self._visibility[name] for name in arguments],
            lambda flat: list(outputs),
        )
        visibility = libspu.Visibility.VIS_PUBLIC if public else libspu.Visibility.VIS_SECRET
        self._visibility |= dict.fromkeys(outputs, visibility)
        return program

    def run(self, program: libspu.Executable) -> tuple[float, float, int]:
        """Runs a program; returns seconds, this process's CPU seconds and bytes sent.

        Raises:
            RuntimeError: SPU's log does not say how many bytes.
        """
        start, cpu_start = time.perf_counter(), time.process_time()
        self._runtime.run(program)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        sent = _SENT.findall(self._log.read_text(encoding="utf-8"))
        if not sent:
            raise RuntimeError("SPU's log has no link details; is this the pinned version?")
        return seconds, cpu_seconds, int(sent[-1])

    def forget(self, names: Sequence[str]) -> None:
        """Frees values that are not needed any more."""
        for name in names:
            self._runtime.del_var(name)

    def _send(self, rank: int, share: libspu.Share) -> None:
        parts = [share.meta, *share.share_chunks]
        self.link.send(rank, str(len(parts)))
        for part in parts:
            self.link.send(rank, part)

    def _receive(self, rank: int) -> libspu.Share:
        share = libspu.Share()
        share.meta, *chunks = [self.link.recv(rank) for _ in range(int(self.link.recv(rank)))]
        share.share_chunks = chunks
        return share


def hold(task: Task, folder: Path, rank: int) -> dict[str, Any]:
    """One holder: shares what it has, trains with the others, opens the weights; returns what it writes."""
    shared, own = load(folder / "shared.npz"), load(folder / f"holder{rank}.npz")
    nodes, widths, public = len(own["features"]), task.widths, task.public_adjacency
    holder = Holder(task.hosts, rank, folder / f"spu{rank}.log")
    start = time.perf_counter()
    adjacency = np.zeros((nodes, nodes), np.float32)
    np.add.at(adjacency, (own["edge_index"][1], own["edge_index"][0]), 1)
    for other in range(len(widths)):
        mine = other == rank
        holder.share(f"features{other}", other, own["features"] if mine else None)
        holder.share(f"edges{other}", other, adjacency if mine else None, public=public)
    weights = numbered(shared)
    state = {f"{kind}{number}": weight for kind in ("weight", "velocity") for number, weight in enumerate(weights)}
    state_and_labels = {"labels": shared["labels"], **state}
    for name, value in state_and_labels.items():
        first = np.zeros_like(value) if name.startswith("velocity") else value
        holder.share(name, 0, first if rank == 0 else None)

    blocks = {f"features{other}": np.zeros((nodes, width), np.float32) for other, width in enumerate(widths)}
    holder.run(holder.compile(_side_by_side, blocks, ["features"], public=False))
    edges = {f"edges{other}": adjacency for other in range(len(widths))}
    holder.run(holder.compile(_united, edges, ["adjacency", "inverse"], public=public))
    holder.forget([*blocks, *edges])

    def one_epoch(
        features: jnp.ndarray, adjacency: jnp.ndarray, inverse: jnp.ndarray, labels: jnp.ndarray, *state: jnp.ndarray
    ) -> tuple[jnp.ndarray, ...]:
        half = len(state) // 2
        new, velocity = step(task, lambda h: inverse * (adjacency @ h), features, labels, state[:half], state[half:])
        return (*new, *velocity)

    inputs = {
        "features": np.zeros((nodes, sum(widths)), np.float32),
        "adjacency": adjacency,
        "inverse": np.zeros((nodes, 1), np.float32),
    }
    program = holder.compile(one_epoch, inputs | state_and_labels, list(state), public=False)
    setup_seconds = time.perf_counter() - start
    seconds, cpu_seconds, sent = zip(*(holder.run(program) for _ in range(task.epochs)), strict=True)
    opened = [holder.open(f"weight{number}", 0) for number in range(len(weights))]
    holder.link.stop_link()
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "sent_bytes": sent,
        "setup_seconds": setup_seconds,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        **{f"weight{number}": weight for number, weight in enumerate(opened) if weight is not None},
    }


def _side_by_side(*blocks: jnp.ndarray) -> jnp.ndarray:
    return jnp.concatenate(blocks, axis=1)


def _united(*matrices: jnp.ndarray) -> tuple[jnp.ndarray, jnp.ndarray]:
    adjacency = sum(matrices[1:], matrices[0])
    return adjacency, 1 / jnp.maximum(jnp.sum(adjacency, axis=1, keepdims=True), 1)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["train", "hold"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("rank", type=int, nargs="?", default=0)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    task = Task(**json.loads((folder / "task.json").read_text(encoding="utf-8")))
    if arguments.work == "hold":
        np.savez(folder / f"held{arguments.rank}.npz", **hold(task, folder, arguments.rank))
        return
    holders = [load(folder / f"holder{rank}.npz") for rank in range(len(task.hosts))]
    np.savez(folder / "twin.npz", **train(task, holders, load(folder / "shared.npz")))


if __name__ == "__main__":
    _main()
