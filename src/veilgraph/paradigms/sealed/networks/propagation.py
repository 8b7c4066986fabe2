"""Propagation over hidden edges: v ← (1 − α)·P·v + α·x.

P = D^(−1/2)·Ã·D^(−1/2), Ã = I + Σ_i A_i over all holders, whose degrees D nobody learns; or over one of them alone,
which knows its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.functions import FINE_BITS, inverse_root, times
from veilgraph.mpc.sealed.hops import HiddenGraph
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Ring, Summands, Wire, joined, side_by_side
from veilgraph.paradigms.sealed.plan import Context

EDGE_BITS: Final = 16
"""Of edges' weights."""
NARROW_DEGREE: Final = 1 << 13
"""The largest degree over which entries up to 1 are summed in Z_2^32, where they have 16 fractional bits or more."""
AT_ONCE: Final = 1 << 21
"""Entries of the columns that go on together."""


class HiddenEdges:
    """All holders' edges in one party's hands: each holder's are put in once a session, whatever goes over them."""

    def __init__(self, machine: Machine, context: Context) -> None:
        self._machine, self._context = machine, context
        self.weight_bits = EDGE_BITS if context.plan.weighted_edges else 0
        self._graphs: dict[tuple[PartyId, bool], HiddenGraph] = {}

    def enter(self, holders: Sequence[PartyId], ways: Iterable[bool] = (False,)) -> None:
        """These holders put their edges in, those that have not, in some ways: backwards or not."""
        for backwards in ways:
            for holder in holders:
                if (holder, backwards) not in self._graphs:
                    self._graphs[holder, backwards] = self._entered(holder, backwards=backwards)

    def _entered(self, holder: PartyId, *, backwards: bool) -> HiddenGraph:
        own, sizes = self._context.data.get(holder), self._context.sizes
        edges = None if own is None else own.edges_of(backwards=backwards)
        weights = self._context.of(holder, "edge_weights")
        return self._machine.hidden_graph(holder, edges, sizes.nodes, sizes.edges[holder], weights, self.weight_bits)

    def of(self, holders: Sequence[PartyId], ways: Iterable[bool] = (False,)) -> list[HiddenGraph]:
        """Theirs, in some ways together."""
        return [self._graphs[holder, backwards] for backwards in ways for holder in holders]


class Propagation:
    """One party's part in it, over the edges of some holders; one alone knows the degrees.

    ``roots`` are D^(−1/2), [N, 1] with ``FINE_BITS``; None before they are computed.
    """

    def __init__(
        self,
        machine: Machine,
        context: Context,
        edges: HiddenEdges,
        holders: Sequence[PartyId],
        ways: Sequence[bool] = (False,),
    ) -> None:
        self._machine, self._context, self._edges = machine, context, edges
        self.holders, self._ways = tuple(holders), tuple(ways)
        self.roots: Wire | None = None
        self._scaling: dict[float, tuple[Wire, Wire, Wire, Wire]] = {}

    @property
    def is_owned(self) -> bool:
        """Whether every node's degree is known to a holder: the one with edges, or the one whose own row it is."""
        return len(self.holders) == 1 or bool(self._context.sizes.blocks)

    def enter(self, *, transposed: bool) -> None:
        """The holders put their edges in, and the degrees that they know; once a session.

        Pᵀ of edges both ways, with weights alike, is P.
        """
        context = self._context
        both = transposed and context.plan.directed and not context.sizes.blocks
        self._edges.enter(self.holders, (False, True) if both else self._ways)
        if self.is_owned:
            everywhere = {self.holders[0]: slice(0, context.sizes.nodes)}
            rows = {holder: block.rows for holder, block in context.sizes.blocks.items()} or everywhere
            self.roots = joined([self._own_roots(holder, at) for holder, at in rows.items()])

    def _own_roots(self, holder: PartyId, rows: slice) -> Wire:
        own = self._context.data.get(holder)
        roots = None if own is None else (1 + own.degrees(self._context.sizes.nodes, self._ways)[rows]).rsqrt()[:, None]
        return self._machine.put(holder, roots, (rows.stop - rows.start, 1), FINE_BITS)

    def normalise(self) -> None:
        """The degrees of several holders together, once a session."""
        if self.roots is None:
            self._machine.at("degrees")
            self.roots = inverse_root(self._machine, self._degrees(), self._context.sizes.max_degree)[:, None]

    def _degrees(self) -> Summands:
        """Of all of them together, the node itself counted once."""
        nodes = self._context.sizes.nodes
        total = torch.zeros(nodes, dtype=torch.float64)
        for holder in self.holders:
            own = self._context.data.get(holder)
            if own is not None:
                total += own.degrees(nodes) + (holder == self.holders[0])
        return self._machine.summands(total, (nodes,), self._edges.weight_bits)

    def neighbours(self, wire: Wire) -> Summands:
        """Sums over every target's sources of a wire [N, d] of Z_2^32, without the node, not normalised."""
        return self._machine.hop(self._edges.of(self.holders), wire) - self._machine.split(wire)

    def __call__(
        self,
        columns: Sequence[Wire],
        hops: int,
        teleport: float = 0.0,
        *,
        transposed: bool = False,
        narrow: bool = False,
    ) -> Wire:
        """What x, side by side, is after K times v ← (1 − α)·P·v + α·x, or with Pᵀ: [N, d] with as many fractional
        bits.

        As many columns go on at a time as keep what is in hand small. Where x is ``narrow``, no entry above 1 in
        magnitude, no sum over a node's edges is above its degree, and sums are made in Z_2^32.
        """
        narrow = narrow and not self._edges.weight_bits and self._context.sizes.max_degree <= NARROW_DEGREE
        total = sum(part.shape[1] for part in columns)
        width = max(1, AT_ONCE // columns[0].shape[0])
        if total <= width:
            columns = [joined(columns, 1)]
        if teleport not in self._scaling:
            self._scaling[teleport] = self._scales(teleport)
        ways = [True] if transposed and self._context.plan.directed else self._ways
        scales, graphs = self._scaling[teleport], self._edges.of(self.holders, ways)
        blocks = (part[:, start : start + width] for part in columns for start in range(0, part.shape[1], width))
        return side_by_side(
            (self._hops(block, hops, teleport, scales, graphs, 32 if narrow else 64) for block in blocks), total
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
        narrow_bits = 30 - self._context.sizes.max_degree.bit_length()  # sums of entries up to 1 stay below 2^30
        coarser = max(0, wire.bits - narrow_bits) if ring == 32 else 0
        scaled = machine.product(torch.mul, wire, first)
        for hop in range(hops):
            narrowed = machine.open(scaled, FINE_BITS + coarser, ring)
            summed = machine.open(machine.hop(graphs, narrowed), self._edges.weight_bits)
            summed = summed.times(1 << coarser).halved(coarser)
            ends = hop == hops - 1
            scaled = machine.product(torch.mul, summed, last if ends else between)
            if teleport and ends:
                scaled = scaled + machine.split(wire).scaled(teleport, FINE_BITS)
            elif teleport:
                scaled = scaled + machine.product(torch.mul, wire, brought)
        return machine.open(scaled, FINE_BITS)

    def _scales(self, teleport: float) -> tuple[Wire, Wire, Wire, Wire]:
        """What rows are multiplied by before the first hop, between hops, after the last, and where α brings them back.

        Once a session: 1 − α and α are multiplied into these, so that rows keep 22 bits above the point.
        """
        machine = self._machine
        assert self.roots is not None
        inverse = times(machine, self.roots, self.roots, FINE_BITS)
        if not teleport:
            return self.roots, inverse, self.roots, self.roots
        parts = [machine.split(part) for part in (inverse, self.roots, self.roots)]
        shares = [
            part.scaled(share, FINE_BITS) for part, share in zip(parts, (1 - teleport,) * 2 + (teleport,), strict=True)
        ]
        between, last, brought = (machine.open(share, FINE_BITS) for share in shares)
        return self.roots, between, last, brought


def one_hot(places: Tensor, size: int) -> Tensor:
    """float64 [n, size]."""
    return torch.nn.functional.one_hot(places, size).to(torch.float64)
