"""Measures the secure product beside SPU's and CrypTen's.

Ours runs in threads of this process (``benchmarks.product``) and its messages once more over sockets; each peer, on the
same features in the same run, in processes of the Python that has it (``make bench-peers`` makes both).
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch

from benchmarks import memory, product
from benchmarks.graphs import public, random_parties
from benchmarks.product_check import PeerFigures
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.types import Kind, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.collectives import exchange
from veilgraph.link.factory import SocketLink, socket_mesh

SHAPES: Final = {"cora": 2, "citeseer": 2, "pubmed": 2, "arxiv": 1}
"""Shape → rounds in which all are measured in turn."""
REPEATS: Final = 2
LIMIT_S: Final = 180
"""For one run of a peer, start and sharing of the features included."""
ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Peer:
    """A program that runs in an environment of its own.

    Attributes:
        module: run with ``-m``.
        options: of the program.
        variable: of the environment; names the interpreter.
        folder: of the environment that ``make bench-peers`` makes.
    """

    module: str
    options: tuple[str, ...]
    variable: str
    folder: str

    def python(self) -> Path | None:
        """The interpreter that the variable names, else the one that was made, else none.

        Raises:
            ConfigError: the variable names one that does not exist.
        """
        named = os.environ.get(self.variable)
        python = Path(named) if named else ROOT / self.folder / "bin" / "python"
        if named and not python.is_file():
            raise ConfigError(f"{self.variable}={named}: no such interpreter; make bench-peers makes one")
        return python if python.is_file() else None


_SPU = ("VEILGRAPH_SPU_PYTHON", ".venv-spu")
PEERS: Final = {
    "SPU": Peer("benchmarks.spu.product", (), *_SPU),
    "SPU, x cached": Peer("benchmarks.spu.product", ("--cached",), *_SPU),
    "CrypTen": Peer("benchmarks.crypten.product", (), "VEILGRAPH_CRYPTEN_PYTHON", ".venv-crypten"),
}
OURS: Final = "veilgraph"


def holders(shape: str) -> list[PartyGraph]:
    """Two holders' features: of a public data set, or dense ones of ogbn-arxiv's size."""
    if shape == "arxiv":
        return random_parties(memory.NODES, 2, memory.FEATURES, memory.CLASSES)
    return public(shape)


def save_values(parties: Sequence[PartyGraph], path: Path) -> None:
    """What ``product_check.load`` reads: the holders' features, random weights and gradients."""
    nodes, columns = parties[0].num_nodes, sum(graph.num_features for graph in parties)
    generator = np.random.default_rng(0)
    arrays = {"w": 0.1 * generator.standard_normal((columns, product.DIM), np.float32)}
    for number, graph in enumerate(parties):
        arrays[f"x{number}"] = graph.features.to_dense().numpy()
        arrays[f"g{number}"] = 0.01 * generator.standard_normal((nodes, product.DIM), np.float32)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def measure_ours(shape: str, parties: Sequence[PartyGraph]) -> PeerFigures:
    """Ours; ahead and online added up as if nothing ran beside anything, messages over sockets added to both."""
    figures = product.measure(shape, parties)
    wire = sockets_seconds(parties)
    online = figures.online_ms / 1e3 + wire
    # docs/explanation/protocol.md
    dealt = 8 * product.DIM * sum(graph.num_nodes + graph.num_features for graph in parties)
    seconds = online + (figures.offline_holder_ms + figures.offline_dealer_ms) / 1e3
    return PeerFigures(seconds, online, int(figures.online_bytes), dealt, 0.0)


def sockets_seconds(parties: Sequence[PartyGraph]) -> float:
    """Median seconds that both holders take to exchange the online messages of a step over sockets."""
    names = [graph.party for graph in parties]
    mesh, meet = socket_mesh(names), threading.Barrier(len(names))
    seconds: list[float] = []
    rows = parties[0].num_nodes, parties[0].num_nodes, min(graph.num_features for graph in parties)

    def swap(link: SocketLink) -> None:
        others = [name for name in names if name != link.party]
        for step in range(product.STEPS):
            meet.wait()
            started = time.perf_counter()
            for number, count in enumerate(rows):
                exchange(link, others, Tag(Kind.SHARE, step, number), torch.ones(count, product.DIM, dtype=torch.int64))
            meet.wait()
            if link.party == names[0]:
                seconds.append(time.perf_counter() - started)

    links = [SocketLink(name, mesh[name], LIMIT_S) for name in names]
    threads = [threading.Thread(target=swap, args=(link,)) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for link in links:
        link.close()
    return statistics.median(seconds)


def measure_peer(python: Path, peer: Peer, path: Path, repeats: int, limit_s: float = LIMIT_S) -> PeerFigures | None:
    """Runs the peer's program; None if it is not done within the limit.

    Args:
        python: interpreter of its environment.
        peer: its program.
        path: of the values.
        repeats: steps after a first one.
        limit_s: of all of it.

    Raises:
        RunError: it failed, or printed no figures.
    """
    command = [str(python), "-W", "ignore", "-m", peer.module, str(path), "--repeats", str(repeats), *peer.options]
    try:
        # In a session of its own, so that its parties end with it, and beside the values, as SPU leaves files behind.
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            cwd=path.parent,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
    except OSError as error:
        raise RunError(f"{peer.module} with {python} cannot be started: {error}") from error
    try:
        printed, _ = process.communicate(timeout=limit_s)
        if process.returncode:
            raise ValueError(f"status {process.returncode}")
        return PeerFigures(**json.loads(printed.splitlines()[-1]))  # native code may log before
    except subprocess.TimeoutExpired:
        return None
    except (ValueError, LookupError, TypeError) as error:
        raise RunError(
            f"{peer.module} with {python} gave no figures: {error}", code="no-figures", key=python
        ) from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def measure(shape: str, rounds: int, repeats: int = REPEATS) -> dict[str, PeerFigures | None]:
    """Medians over rounds, in each of which everything is measured in turn.

    Returns:
        System → its figures, or None where it was not done in time; peers that are not installed are left out.
    """
    parties = holders(shape)
    pythons = {name: python for name, peer in PEERS.items() if (python := peer.python())}
    results: dict[str, list[PeerFigures | None]] = {name: [] for name in (OURS, *pythons)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.npz"
        save_values(parties, path)
        for _ in range(rounds):
            results[OURS].append(measure_ours(shape, parties))
            for name, python in pythons.items():
                if None not in results[name]:
                    results[name].append(measure_peer(python, PEERS[name], path, repeats))
    return {name: _median(several) for name, several in results.items()}


def _median(several: Sequence[PeerFigures | None]) -> PeerFigures | None:
    done = [figures for figures in several if figures is not None]
    if len(done) < len(several):
        return None
    return PeerFigures(
        statistics.median(figures.seconds for figures in done),
        statistics.median(figures.online_seconds for figures in done),
        done[-1].sent_bytes,
        done[-1].ahead_bytes,
        max(figures.error for figures in done),
    )
