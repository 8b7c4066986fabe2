"""Propagation over all holders' hidden edges: v ← (1 − α)·P·v + α·x.

P = D^(−1/2)·Ã·D^(−1/2) or D^(−1)·Ã, Ã = I + Σ_i A_i over all holders, whose degrees D nobody learns; or over one of
them alone, which knows its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.functions import FINE_BITS, inverse_root, times
from veilgraph.mpc.sealed.machine import HiddenGraph, Machine, Ring
from veilgraph.mpc.sealed.wire import Summands, Wire, joined, side_by_side
from veilgraph.paradigms.sealed.plan import Context

EDGE_BITS: Final = 16
"""Of edges' weights."""
NARROW_DEGREE: Final = 1 << 13
"""The largest degree over which entries up to 1 are summed in Z_2^32, where they have 16 fractional bits or more."""
AT_ONCE: Final = 1 << 21
"""Entries of the columns that go on together."""


class Propagation:
    """One party's part in it, over the edges of some holders.

    Args:
        machine: of the party.
        context: of the job.
        holders: whose edges; where it is one alone, it knows the degrees.

    Attributes:
        roots: D^(−1/2), [N, 1] with ``FINE_BITS``; None before they are computed.
    """

    def __init__(self, machine: Machine, context: Context, holders: Sequence[PartyId]) -> None:
        self._machine, self._context, self._holders = machine, context, tuple(holders)
        self._graphs: dict[bool, list[HiddenGraph]] = {}
        self._weight_bits = EDGE_BITS if context.plan.weighted_edges else 0
        self.roots: Wire | None = None
        self._scaling: dict[bool, tuple[Wire, Wire, Wire, Wire]] = {}

    def enter(self, *, transposed: bool) -> None:
        """The holders put their edges in; once a session.

        Args:
            transposed: whether Pᵀ is needed as well. Of edges that go both ways, with weights alike, it has the same.
        """
        self._graphs[False] = [self._entered(holder) for holder in self._holders]
        self._graphs[True] = self._graphs[False]
        if transposed and self._context.plan.directed:
            self._graphs[True] = [self._entered(holder, transposed=True) for holder in self._holders]

    def _entered(self, holder: PartyId, *, transposed: bool = False) -> HiddenGraph:
        edges, sizes = self._context.of(holder, "edges"), self._context.sizes
        weights = self._context.of(holder, "edge_weights")
        if edges is not None and transposed:
            edges = edges.flip(0)
        return self._machine.hidden_graph(holder, edges, sizes.nodes, sizes.edges[holder], weights, self._weight_bits)

    def neighbours(self, wire: Wire) -> Summands:
        """Sums over every target's sources, without the node itself, and nothing normalised.

        Args:
            wire: [N, d] of Z_2^32.
        """
        return self._machine.hop(self._graphs[False], wire) - self._machine.split(wire)

    def enter_roots(self) -> None:
        """The roots of a single holder, which knows them."""
        (owner,) = self._holders
        own, nodes = self._context.data.get(owner), self._context.sizes.nodes
        roots = None if own is None else (1 + own.degrees(nodes)).rsqrt()[:, None]
        self.roots = self._machine.put(owner, roots, (nodes, 1), FINE_BITS)

    def compute_roots(self) -> None:
        """The roots of several holders together."""
        self.roots = inverse_root(self._machine, self._degrees(), self._context.sizes.max_degree)[:, None]

    def _degrees(self) -> Summands:
        """Of all of them together, the node itself counted once."""
        nodes = self._context.sizes.nodes
        total = torch.zeros(nodes, dtype=torch.float64)
        for holder in self._holders:
            own = self._context.data.get(holder)
            if own is not None:
                total += own.degrees(nodes) + (holder == self._holders[0])
        return self._machine.summands(total, (nodes,), self._weight_bits)

    def __call__(
        self,
        columns: Sequence[Wire],
        hops: int,
        teleport: float = 0.0,
        *,
        transposed: bool = False,
        narrow: bool = False,
    ) -> Wire:
        """What x is after K times v ← (1 − α)·P·v + α·x, or with Pᵀ: [N, d] with as many fractional bits.

        Columns go on by themselves, as many at a time as keep what is in hand small.

        Args:
            columns: of x, side by side.
            hops: K.
            teleport: α.
            transposed: whether with Pᵀ.
            narrow: whether no entry of x is above 1 in magnitude. Then no sum over a node's edges is above its degree
                (D^(−1)·Ã has rows that add up to 1, Ã·D^(−1) columns), and sums are made in Z_2^32.
        """
        narrow = narrow and not self._weight_bits and self._context.sizes.max_degree <= NARROW_DEGREE
        total = sum(part.shape[1] for part in columns)
        width = max(1, AT_ONCE // columns[0].shape[0])
        if total <= width or not hops:
            columns = [joined(columns, 1)]
        if not hops:
            return columns[0]
        if transposed not in self._scaling:
            self._scaling[transposed] = self._scales(teleport, transposed=transposed)
        scales = self._scaling[transposed]
        blocks = (part[:, start : start + width] for part in columns for start in range(0, part.shape[1], width))
        return side_by_side(
            (
                self._hops(block, hops, teleport, scales, self._graphs[transposed], 32 if narrow else 64)
                for block in blocks
            ),
            total,
        )

    def _hops(
        self,
        wire: Wire,
        hops: int,
        teleport: float,
        scales: tuple[Wire, Wire, Wire, Wire],
        graphs: Sequence[HiddenGraph],
        ring: Ring,
    ) -> Wire:
        machine, (first, between, last, brought) = self._machine, scales
        coarser = max(0, wire.bits - self._narrow_bits) if ring == 32 else 0
        scaled = machine.product(torch.mul, wire, first)
        for hop in range(hops):
            narrowed = machine.open(scaled, FINE_BITS + coarser, ring)
            summed = machine.open(machine.hop(graphs, narrowed), self._weight_bits)
            summed = summed.times(1 << coarser).halved(coarser)
            ends = hop == hops - 1
            scaled = machine.product(torch.mul, summed, last if ends else between)
            if teleport and ends:
                scaled = scaled + machine.split(wire).scaled(teleport, FINE_BITS)
            elif teleport:
                scaled = scaled + machine.product(torch.mul, wire, brought)
        return machine.open(scaled, FINE_BITS)

    @property
    def _narrow_bits(self) -> int:
        """Of entries up to 1 whose sums over the largest degree are below 2^30."""
        return 30 - self._context.sizes.max_degree.bit_length()

    def _scales(self, teleport: float, *, transposed: bool) -> tuple[Wire, Wire, Wire, Wire]:
        """What rows are multiplied by before the first hop, between hops, after the last, and where α brings them back.

        Once a session: 1 − α and α are multiplied into these, so that rows keep 22 bits above the point.
        """
        machine, symmetric = self._machine, self._context.plan.symmetric
        assert self.roots is not None
        inverse = times(machine, self.roots, self.roots, FINE_BITS)
        one = machine.constant(torch.full(self.roots.shape, 1 << FINE_BITS), FINE_BITS)
        into, out = (self.roots, self.roots) if symmetric else (inverse, one) if transposed else (one, inverse)
        if not teleport:
            return into, inverse, out, into
        parts = [machine.split(part) for part in (inverse, out, into)]
        shares = [
            part.scaled(share, FINE_BITS) for part, share in zip(parts, (1 - teleport,) * 2 + (teleport,), strict=True)
        ]
        between, last, brought = (machine.open(share, FINE_BITS) for share in shares)
        return into, between, last, brought
