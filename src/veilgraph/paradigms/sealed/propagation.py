"""Propagation over all holders' hidden edges: v ← (1 − α)·P·v + α·x.

P = D^(−1/2)·Ã·D^(−1/2) or D^(−1)·Ã, Ã = I + Σ_i A_i over all holders, whose degrees D nobody learns.
"""

from __future__ import annotations

from typing import Final

import torch

from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.functions import BITS, FINE_BITS, inverse_root, times
from veilgraph.mpc.sealed.machine import HiddenGraph, Machine
from veilgraph.mpc.sealed.wire import Summands, Wire
from veilgraph.paradigms.sealed.plan import Context

_TELEPORT_BITS: Final = 8


class Propagation:
    """One party's part in it.

    Args:
        machine: of the party.
        context: of the job.

    Attributes:
        roots: D^(−1/2), [N, 1] with ``FINE_BITS``; None before they are computed.
    """

    def __init__(self, machine: Machine, context: Context) -> None:
        self._machine, self._context = machine, context
        self._graphs: dict[bool, list[HiddenGraph]] = {}
        self.roots: Wire | None = None

    def enter(self, *, transposed: bool) -> None:
        """Every holder puts its edges in; once a session.

        Args:
            transposed: whether Pᵀ is needed as well. Of edges that go both ways it has the same.
        """
        self._graphs[False] = [self._entered(holder) for holder in self._context.sizes.edges]
        self._graphs[True] = self._graphs[False]
        if transposed and self._context.plan.directed:
            self._graphs[True] = [self._entered(holder, transposed=True) for holder in self._context.sizes.edges]

    def _entered(self, holder: PartyId, *, transposed: bool = False) -> HiddenGraph:
        edges, sizes = self._context.of(holder, "edges"), self._context.sizes
        if edges is not None and transposed:
            edges = edges.flip(0)
        return self._machine.hidden_graph(holder, edges, sizes.nodes, sizes.edges[holder])

    def normalise(self) -> None:
        """Computes the roots, once."""
        if self.roots is None:
            self._machine.at("degrees")
            self.roots = inverse_root(self._machine, self._degrees(), self._context.sizes.max_degree)[:, None]

    def _degrees(self) -> Summands:
        """Of all holders together, the node itself counted once."""
        nodes, first = self._context.sizes.nodes, next(iter(self._context.sizes.columns))
        total = torch.zeros(nodes, dtype=torch.int64)
        for holder, data in self._context.data.items():
            total += torch.bincount(data.edges[1], minlength=nodes) + (holder == first)
        return self._machine.summands(total, (nodes,), 0)

    def __call__(self, wire: Wire, hops: int, teleport: float = 0.0, *, transposed: bool = False) -> Wire:
        """What x is after K times v ← (1 − α)·P·v + α·x, or with Pᵀ: [N, d] with ``BITS``."""
        machine = self._machine
        if not hops:
            return wire
        first, between, last = self._scales(transposed=transposed)
        start = machine.product(torch.mul, wire, first)
        scaled, kept = start, start.scaled(teleport, _TELEPORT_BITS) if teleport and hops > 1 else start
        for hop in range(hops):
            wide = machine.open(scaled, scaled.bits - BITS, 32)
            summed = machine.open(machine.hop(self._graphs[transposed], wide))
            ends = hop == hops - 1
            scaled = machine.product(torch.mul, summed, last if ends else between)
            if teleport:
                own = machine.split(wire.times(1 << FINE_BITS).halved(FINE_BITS)).scaled(teleport, _TELEPORT_BITS)
                scaled = scaled.scaled(1 - teleport, _TELEPORT_BITS) + (own if ends else kept)
        return machine.open(scaled, scaled.bits - BITS)

    def _scales(self, *, transposed: bool) -> tuple[Wire, Wire, Wire]:
        """What rows are multiplied by before the first hop, between hops, and after the last."""
        machine = self._machine
        assert self.roots is not None
        inverse = times(machine, self.roots, self.roots, FINE_BITS)
        if self._context.plan.symmetric:
            return self.roots, inverse, self.roots
        one = machine.constant(torch.full((1, 1), 1 << FINE_BITS), FINE_BITS)
        return (inverse, inverse, one) if transposed else (one, inverse, inverse)
