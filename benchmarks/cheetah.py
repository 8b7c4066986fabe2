"""Sealed computation without a dealer beside SPU's CHEETAH, in one run: ``python -m benchmarks.cheetah [CASE ...]``.

Both parties of either are processes of this machine, ours linked by sockets, SPU's by brpc over localhost. They get the
same operands, and results are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socket
from typing import Final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from benchmarks.pair_figures import Figures, mean
from research.secure_gnn_spu import spu_python
from veilgraph.core.errors import RunError
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import Link, PartyId, Tag
from veilgraph.graph.dataset import load_parties
from veilgraph.link.codec import encoded_size
from veilgraph.link.factory import SocketLink, socket_mesh
from veilgraph.link.wrapper import Wrapper
from veilgraph.mpc.pair.exchange import Exchange
from veilgraph.mpc.ring import matmul
from veilgraph.mpc.sealed.functions import relu
from veilgraph.mpc.sealed.pair import PairMachine
from veilgraph.mpc.sealed.wire import Wire
from veilgraph.paradigms.sealed.settings import sealed
from veilgraph.samples.shipped import shipped_job

Array = np.ndarray
Values = Mapping[str, Array]

NAMES: Final = ("A", "B")
BITS: Final = 18
"""Fractional bits, as SPU's."""
_WEIGHT_BITS: Final = 10
_HIDDEN, _CLASSES = 16, 7
_TOLERANCES: Final = {"product": 2 * 2.0**-BITS, "network": 0.01}
"""Fixed-point results of either are a unit off at most; the network's weights of edges are rounded, and sums add up."""
_ROOT: Final = Path(__file__).parents[1]
_TIMEOUT_S: Final = 1800


def by_spu(operation: str, values: Values, repeats: int = 0) -> tuple[list[Figures], Array]:
    """Figures of CHEETAH's first run and of the mean of ``repeats`` more, and the result.

    ``values``: as ``benchmarks.spu.pair`` says; ``ConfigError``: SPU is not installed.
    """
    with tempfile.TemporaryDirectory() as name:
        given, made = Path(name) / "values.npz", Path(name) / "results.npz"
        np.savez(given, allow_pickle=False, **dict(values))
        program = [str(spu_python().absolute()), "-W", "ignore", "-m", "benchmarks.spu.pair"]
        printed = subprocess.run(
            [*program, operation, given, made, "--repeats", str(repeats)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=name,  # SPU leaves files behind
            env=os.environ | {"PYTHONPATH": str(_ROOT)},
            timeout=_TIMEOUT_S,
        ).stdout
        with np.load(made, allow_pickle=False) as arrays:
            return [Figures(**json.loads(line)) for line in printed.splitlines()[-2:]], arrays["result"]


class Party:
    """One of ours: its operands, half of what both share, and what it computes with."""

    def __init__(self, leads: bool, values: Values, exchange: Exchange, machine: PairMachine) -> None:
        self.leads, self.values, self.exchange, self.machine = leads, values, exchange, machine

    def own(self, name: str) -> Tensor | None:
        """An operand of one party: None at the other."""
        return torch.from_numpy(self.values[name]) if (name[-1] == "0") == self.leads else None

    def share(self, name: str) -> Tensor:
        """A share of an operand of whole numbers, int64."""
        value = torch.from_numpy(self.values[name])
        half = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63, value.shape))
        return half if self.leads else value - half

    def put(self, name: str) -> Wire:
        """An operand of one party, of fixed-point numbers."""
        return self.machine.put(NAMES[int(name[-1])], self.own(name), self.values[name].shape, BITS)

    def wire(self, name: str) -> Wire:
        """Shared fixed-point numbers, as a wire that nobody owns: the sum of two that a party owns each."""
        value = torch.from_numpy(self.values[name])
        half = torch.from_numpy(np.random.default_rng(0).integers(-(2**BITS), 2**BITS, value.shape)) * 2.0**-BITS
        parts = [
            self.machine.put(party, part if self.machine.party == party else None, value.shape, BITS)
            for party, part in zip(NAMES, (half, value - half), strict=True)
        ]
        return parts[0] + parts[1]


def _matmul(party: Party) -> Tensor:
    left, right = party.values["left0"].shape, party.values["right1"].shape
    return party.exchange.matmul(party.own("left0"), party.own("right1"), (*left, right[1]))


def _inner(party: Party) -> Tensor:
    own = party.own("left0" if party.leads else "right1")
    assert own is not None
    return party.exchange.inner(own)


def _gate(party: Party) -> Tensor:
    return party.exchange.gate(party.exchange.negative(party.share("value")), party.share("other"))


def _product(party: Party) -> Tensor:
    product = party.machine.product(torch.mul, party.wire("left"), party.wire("right"))
    return party.machine.share(party.machine.open(product, BITS))


def _network(party: Party) -> Tensor:
    machine, nodes = party.machine, len(party.values["x0"])
    graphs = []
    for place, owner in enumerate(NAMES):
        dense, edges, weights = party.own(f"a{place}"), None, None
        if dense is not None:
            targets, sources = dense.nonzero(as_tuple=True)
            edges, weights = torch.stack([sources, targets]), dense[targets, sources]
        padded = int(np.count_nonzero(party.values[f"a{place}"]))
        graphs.append(machine.hidden_graph(owner, edges, nodes, padded, weights, _WEIGHT_BITS))

    def hop(rows: Wire) -> Wire:
        return machine.open(machine.hop(graphs, rows), _WEIGHT_BITS)

    v, columns = party.wire("v"), party.values["x0"].shape[1]
    first = machine.product(matmul, party.put("x0"), v[:columns]) + machine.product(
        matmul, party.put("x1"), v[columns:]
    )
    hidden, _ = relu(machine, hop(machine.open(first, BITS)))
    return machine.share(hop(machine.open(machine.product(matmul, hidden, party.wire("w")), BITS)))


OPERATIONS: Final[dict[str, Callable[[Party], Tensor]]] = {
    "matmul": _matmul,
    "inner": _inner,
    "product": _product,
    "negative": lambda party: party.exchange.negative(party.share("value")),
    "gate": _gate,
    "network": _network,
}


class Counted(Wrapper):
    """A link that counts bytes on the wire, and messages."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.sent = (0, 0)

    @override
    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        self.sent = self.sent[0] + encoded_size(tensor), self.sent[1] + 1
        super().send(to, tag, tensor)


def _hold(server: Connection, ends: list[socket], operation: str, values: Values, repeats: int, *, leads: bool) -> None:
    """Be one of our parties: a run that compiles, then as many as SPU's; the costs of each, and the last one's share.

    ``ends``: of connections with the other party, one for the run that compiles and one for the others.
    """
    torch.set_num_threads(1)
    name, other = NAMES if leads else NAMES[::-1]
    for end, runs in zip(ends, (1, 1 + repeats), strict=True):
        link, party = Counted(SocketLink(name, {other: end}, _TIMEOUT_S)), None
        for _ in range(runs):
            server.recv()
            before, began, cpu = link.sent, time.perf_counter(), time.process_time()
            if party is None:
                exchange = Exchange(link, NAMES, system_secrets)
                party = Party(leads, values, exchange, PairMachine(link, NAMES, exchange))
            share = OPERATIONS[operation](party)
            took = time.perf_counter() - began, time.process_time() - cpu
            server.send((*took, *(after - first for after, first in zip(link.sent, before, strict=True))))
    server.send(share.numpy())
    server.recv()


def by_us(operation: str, values: Values, repeats: int = 0) -> tuple[list[Figures], Array]:
    """As ``by_spu``; keys and base transfers are in the first run's figures, compiling is in none."""
    context, meshes = get_context("spawn"), [socket_mesh(NAMES) for _ in range(2)]
    parties, processes = [], []
    for name, other in (NAMES, NAMES[::-1]):
        ours, theirs = context.Pipe()
        given = (theirs, [mesh[name][other] for mesh in meshes], operation, values, repeats)
        process = context.Process(target=_hold, args=given, kwargs={"leads": name == NAMES[0]}, daemon=True)
        process.start()
        theirs.close()
        parties.append(ours)
        processes.append(process)
    for mesh in meshes:
        for ends in mesh.values():
            for end in ends.values():
                end.close()
    runs = []
    for _ in range(2 + repeats):
        for party in parties:
            party.send(True)
        seconds, *sums = zip(*(party.recv() for party in parties), strict=True)
        runs.append(Figures(max(seconds), *map(sum, sums)))
    first, second = (party.recv() for party in parties)
    for party in parties:
        party.send(False)
    for process in processes:
        process.join()
    result = first ^ second if first.dtype == bool else first + second
    is_fixed = any(value.dtype.kind == "f" for value in values.values())
    return [runs[1], mean(runs[2:] or runs[1:])], result * 2.0**-BITS if is_fixed else result


def _part_of_cora(nodes: int) -> Values:
    """Columns of so many nodes of the shipped sealed job, and edges between them; those of a node weigh 1 together."""
    job = sealed(shipped_job("cora-sealed"))
    rng, values, columns = np.random.default_rng(0), {}, 0
    for place, graph in enumerate(load_parties(job.data, job.seed)):
        sources, targets = graph.edge_index[:, (graph.edge_index < nodes).all(0)].numpy()
        dense = np.zeros((nodes, nodes))
        np.add.at(dense, (targets, sources), 1)
        values[f"x{place}"] = graph.features.to_dense()[:nodes].double().numpy()
        values[f"a{place}"] = dense / np.maximum(dense.sum(1, keepdims=True), 1)
        columns += values[f"x{place}"].shape[1]
    sizes = {"v": (columns, _HIDDEN), "w": (_HIDDEN, _CLASSES)}
    weights = {name: rng.normal(size=size) / size[0] ** 0.5 for name, size in sizes.items()}
    return {name: values[name] for name in ("x0", "x1", "a0", "a1")} | weights


def _whole(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(-(2**63), 2**63, shape)


def _fixed(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(-(2**28), 2**28, shape) * 2.0**-BITS


def _matrices(n: int, k: int, m: int) -> Values:
    return {"left0": _whole(n, k, seed=1), "right1": _whole(k, m, seed=2)}


CASES: Final[dict[str, tuple[str, int, Callable[[], Values]]]] = {
    "matrices 140 × 2708 × 16": ("matmul", 5, lambda: _matrices(140, 2708, 16)),
    "matrices 140 × 1433 × 32": ("matmul", 5, lambda: _matrices(140, 1433, 32)),
    "100,000 comparisons": ("negative", 5, lambda: {"value": _whole(100_000, seed=3)}),
    "100,000 products, cut": (
        "product",
        5,
        lambda: {"left": _fixed(100_000, seed=4), "right": _fixed(100_000, seed=5)},
    ),
    "two layers, 1,000 nodes": ("network", 2, lambda: _part_of_cora(1000)),
}
"""Operation, repetitions, and operands."""


def _check(operation: str, ours: Array, theirs: Array) -> None:
    """``RunError``: whole numbers differ, or fixed-point ones by more than rounding does."""
    tolerance = _TOLERANCES.get(operation, 0.0)
    if not (np.allclose(ours, theirs, rtol=0, atol=tolerance) if tolerance else np.array_equal(ours, theirs)):
        raise RunError(f"{operation}: our result is not CHEETAH's; is this SPU the pinned version?", code="differ")


def section(names: Sequence[str]) -> list[str]:
    """The table, in Markdown."""
    lines = [
        "| computed | by | CPU, s | the first run | seconds | MB | messages |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        operation, repeats, make = CASES[name]
        values = make()
        ours, theirs = by_us(operation, values, repeats), by_spu(operation, values, repeats)
        _check(operation, ours[1], theirs[1])
        for who, (first, again) in (("`nobody`", ours[0]), ("CHEETAH", theirs[0])):
            lines.append(
                f"| {name} | {who} | {again.cpu_seconds:.2f} | {first.cpu_seconds:.2f} | {again.seconds:.2f} | "
                f"{again.sent_bytes / 1e6:,.1f} | {again.messages:,.0f} |"
            )
    return lines


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cheetah", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    names = parser.parse_args().cases or list(CASES)
    if unknown := set(names) - set(CASES):
        parser.error(f"{', '.join(sorted(unknown))}: no such case; there are {', '.join(CASES)}")
    print("\n".join(section(names)))


if __name__ == "__main__":
    main()
