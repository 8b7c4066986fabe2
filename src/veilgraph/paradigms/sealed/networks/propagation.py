"""Propagation over hidden edges: v ← (1 − α)·P·v + α·x.

P = D^(−1/2)·Ã·D^(−1/2), Ã = I + Σ_i A_i over all holders, whose degrees D nobody learns; or over one of them alone,
which knows its own.

**Double entry.** Where rows are holders' own, an edge between nodes of two of them is put in by both, and must be the
same. With secret numbers s and r of every node, s_i·A_out·r_j, as holder i has its edges to nodes of j, must be
r_j·A_in·s_i, as j has them. Nobody knows s and r, which are sums of what every holder draws, so that whoever puts in an
edge that the other lacks makes the two differ but for a chance of 2^−13. Of every two holders one bit is opened to all:
whether they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import combinations
from operator import add
from types import MappingProxyType
from typing import Final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.memory import give_back_freed_memory
from veilgraph.core.text import listed
from veilgraph.core.types import PartyId
from veilgraph.mpc.ring import matmul
from veilgraph.mpc.sealed.functions import BITS, FINE_BITS, inverse_root, multiply_open
from veilgraph.mpc.sealed.hidden_graph import HiddenGraph
from veilgraph.mpc.sealed.hops import FEWEST_COLUMNS
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Ring, Summands, Wire, concatenate, joined, row_slices
from veilgraph.paradigms.sealed.plan import Context, OwnData

EDGE_BITS: Final = 16  # fractional bits of edges' weights
NARROW_DEGREE: Final = 1 << 13  # largest degree over which entries up to 1 are summed in Z_2^32, with 16 bits or more
DENSE_FROM: Final = 1 << 10  # nodes: of fewer it does not matter
DENSE_UP_TO: Final = 5792  # nodes: a matrix has less than 2^25 numbers
_DENSE_SLOTS: Final = 32  # numbers of a matrix whose products take as long as one slot of a hidden graph
_WIDE_NEAR: Final = 1  # near hops gone on from with α = 1/16: its 4 bits fit with 42 of a product and values below 2^13
_LINE: Final = 8  # columns that fill a line of the cache, at least, in each part of those that hop in turn
COINS: Final = 1 << 14  # bound of a holder's draws: sums of products over 2^24 edges of ten holders fit the ring


class HiddenEdges:
    """One party's side of all holders' hidden edges; each holder's are put in once a session, in each direction.

    Those of a dense graph are a hidden matrix of N² numbers: a hop moves a hidden graph's rows of all its slots, of a
    matrix those of its nodes.
    """

    def __init__(self, machine: Machine, context: Context) -> None:
        self._machine, self._context = machine, context
        self.weight_bits = EDGE_BITS if context.plan.weighted_edges else 0
        self._graphs: dict[tuple[PartyId, bool], HiddenGraph] = {}
        self._matrices: dict[PartyId, Wire] = {}

    def enter(self, holders: Sequence[PartyId], ways: Iterable[bool] = (False,)) -> None:
        """Put in these holders' edges that are not in yet, in the directions ``ways``: True is backwards."""
        for backwards in ways:
            for holder in holders:
                if is_dense(self._context, holder):
                    if holder not in self._matrices:
                        self._matrices[holder] = self._put_in_matrix(holder)
                elif (holder, backwards) not in self._graphs:
                    self._graphs[holder, backwards] = self._put_in_edges(holder, backwards=backwards)

    def _put_in_edges(self, holder: PartyId, *, backwards: bool) -> HiddenGraph:
        own, sizes = self._context.data.get(holder), self._context.sizes
        edges = None if own is None else own.edges_of(backwards=backwards)
        weights = self._context.of(holder, "edge_weights")
        return self._machine.hidden_graph(holder, edges, sizes.nodes, sizes.edges[holder], weights, self.weight_bits)

    def _put_in_matrix(self, holder: PartyId) -> Wire:
        own, nodes = self._context.data.get(holder), self._context.sizes.nodes
        matrix = None if own is None else torch.from_numpy(adjacency(own, nodes).toarray())
        return self._machine.put(holder, matrix, (nodes, nodes), self.weight_bits)

    def of(self, holders: Sequence[PartyId], ways: Iterable[bool] = (False,)) -> list[HiddenGraph]:
        """Return the hidden graphs of these holders in these directions; they must have been entered."""
        return [self._graphs[holder, backwards] for backwards in ways for holder in holders]

    def drop(self, holders: Sequence[PartyId]) -> None:
        """Let go of these holders' edges, which nothing hops over any more."""
        self._graphs = {key: graph for key, graph in self._graphs.items() if key[0] not in holders}
        self._matrices = {holder: matrix for holder, matrix in self._matrices.items() if holder not in holders}

    def sums(self, holders: Sequence[PartyId], ways: Sequence[bool], wire: Wire) -> Summands:
        """Sum rows over these holders' edges in these directions, and add the row itself: Σ_i A_i·v + v."""
        dense = [holder for holder in holders if holder in self._matrices]
        graphs = self.of([holder for holder in holders if holder not in dense], ways)
        alone = self._machine.split(wire).scaled(1.0, self.weight_bits)
        total = self._machine.hop(graphs, wire) if graphs else alone
        for backwards in ways:
            for holder in dense:
                matrix = self._matrices[holder].T if backwards else self._matrices[holder]
                total = total + self._machine.product(matmul, matrix, wire)
        return total


def is_dense(context: Context, holder: PartyId) -> bool:
    """Whether a holder's edges are put in as a matrix: there are so many that hops of it are cheaper."""
    sizes = context.sizes
    if sizes.blocks or context.plan.votes is not None or not DENSE_FROM <= sizes.nodes <= DENSE_UP_TO:
        return False
    return sizes.nodes**2 <= _DENSE_SLOTS * (sizes.nodes + sizes.edges[holder])


def adjacency(own: OwnData, nodes: int) -> sp.csr_array:
    """What each of a holder's edges counts, target by source: float64 [N, N]."""
    counts = np.ones(own.edges.shape[1]) if own.edge_weights is None else own.edge_weights.to(torch.float64).numpy()
    return sp.csr_array((counts, (own.edges[1].numpy(), own.edges[0].numpy())), shape=(nodes, nodes))


class Propagation:
    """One party's part in propagation over the edges of some holders, in some directions (``ways``: backwards or not).

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
        """Whether some holder knows each node's degree in the clear: the only one with edges, or the row's owner."""
        sizes = self._context.sizes
        return len(self.holders) == 1 or (bool(sizes.blocks) and len(sizes.owners) == len(sizes.blocks))

    def enter(self, *, transposed: bool) -> None:
        """Put in edges, if directed and ``transposed`` also backwards for Pᵀ, and degrees known to a holder; once."""
        context = self._context
        both = transposed and context.plan.directed and not context.sizes.blocks
        self._edges.enter(self.holders, (False, True) if both else self._ways)
        if self.is_owned:
            everywhere = {self.holders[0]: slice(0, context.sizes.nodes)}
            rows = {holder: block.rows for holder, block in context.sizes.owners.items()} or everywhere
            self.roots = concatenate([self._own_roots(holder, at) for holder, at in rows.items()])

    def _own_roots(self, holder: PartyId, rows: slice) -> Wire:
        """Put in D^(−1/2) of these rows, which the holder computes at home."""
        own = self._context.data.get(holder)
        roots = None if own is None else (1 + own.degrees(self._context.sizes.nodes, self._ways)[rows]).rsqrt()[:, None]
        return self._machine.put(holder, roots, (rows.stop - rows.start, 1), FINE_BITS)

    def normalise(self) -> None:
        """Compute ``roots`` from the holders' secret degrees, unless they are there; once a session."""
        if self.roots is None:
            self._machine.at("degrees")
            self.roots = inverse_root(self._machine, self._degrees(), self._context.sizes.max_degree)[:, None]

    def _degrees(self) -> Summands:
        """Sum the holders' degrees with 1 for the node itself: [N], a secret."""
        nodes = self._context.sizes.nodes
        total = torch.zeros(nodes, dtype=torch.float64)
        for holder in self.holders:
            own = self._context.data.get(holder)
            if own is not None:
                total += own.degrees(nodes, self._ways) + (holder == self.holders[0])
        return self._machine.summands(total, (nodes,), self._edges.weight_bits)

    def __call__(
        self,
        columns: Sequence[Wire],
        hops: int,
        teleport: float = 0.0,
        *,
        nearer: Mapping[int, Wire] = MappingProxyType({}),
        transposed: bool = False,
        narrow: bool = False,
    ) -> Wire:
        """Propagate ``columns`` x, side by side: K times v ← (1 − α)·P·v + α·x, or with Pᵀ: [N, d], bits as before.

        α is ``teleport``. ``nearer`` is k → P^k·x that is known already, with α for all k from 1 on: fewer hops are
        made. Columns are propagated in slices, to save memory. ``narrow``: no entry of x is above 1 in magnitude, so
        sums over edges are at most degrees, and are made in Z_2^32.
        """
        narrow = narrow and not self._edges.weight_bits and self._context.sizes.max_degree <= NARROW_DEGREE
        narrow = narrow and not any(is_dense(self._context, holder) for holder in self.holders)
        total = sum(part.shape[1] for part in columns)
        (together, *more) = row_slices((total, columns[0].shape[0]))
        width = max(FEWEST_COLUMNS, together.stop)
        if not more:
            columns = [concatenate(columns, 1)]
        self.scale(teleport)
        ways = [True] if transposed and self._context.plan.directed else self._ways
        scales = self._scaling[teleport]
        ring: Ring = 32 if narrow else 64
        done = max(nearer, default=0)
        if teleport and not narrow:
            done = min(done, _WIDE_NEAR)

        def slices() -> Iterator[Wire]:
            begin = 0
            for part in columns:
                for start in range(0, part.shape[1], width):
                    wire = part[:, start : start + width]
                    end = begin + wire.shape[1]
                    begun = _after(done, teleport, wire, {near: of[:, begin:end] for near, of in nearer.items()})
                    yield self._hops(wire, begun, hops - done, teleport, scales, ways, ring)
                    begin = end

        return joined(slices(), total, 1)

    def sum_powers(self, made: Mapping[int, Wire]) -> Wire:
        """Σ_k P^k·B_k of k → B_k [N, d], k > 0, as P·(B_1 + P·(B_2 + …)): [N, d], bits as theirs."""
        self.scale(0.0)
        hops, (nodes, columns) = max(made), next(iter(made.values())).shape
        width = max(FEWEST_COLUMNS, row_slices((columns, nodes))[0].stop)

        def slices() -> Iterator[Wire]:
            for start in range(0, columns, width):
                joining = {near: of[:, start : start + width] for near, of in made.items()}
                begun = joining.pop(hops)
                yield self._hops(begun, begun, hops, 0.0, self._scaling[0.0], self._ways, 64, joining)

        return joined(slices(), columns, 1)

    def in_turn(
        self,
        columns: list[Wire],
        hops: int,
        teleport: float,
        *,
        nearer: Mapping[int, Wire],
        narrow: bool,
    ) -> list[Wire]:
        """Propagate columns as a call does, and let go of them as they hop: wires side by side, the list is emptied."""
        nodes, found, start = self._context.sizes.nodes, list[Wire](), 0
        together, *more = row_slices((sum(wire.shape[1] for wire in columns), nodes))
        if not more:
            return [self(columns, hops, teleport, nearer=nearer, narrow=narrow)]
        parts = _cut(columns, -(-_LINE // together.stop) * together.stop)
        while parts:
            end = start + parts[0].shape[1]
            near = {each: of[:, start:end] for each, of in nearer.items()}
            found.append(self([parts.pop(0)], hops, teleport, nearer=near, narrow=narrow))
            start = end
            give_back_freed_memory()  # or what parts leave between one another adds up
        return found

    def put(self, columns: Tensor | None, hops: int, count: int) -> Wire:
        """Put in (Pᵀ)^K·x that the only holder with edges computes at home, of ``columns`` x as in ``__call__``.

        x is float64 [N, ``count``], None at other holders; α is as the number of hops says.
        """
        (holder,), nodes = self.holders, self._context.sizes.nodes
        found, own, back = columns, self._context.data.get(holder), self._context.plan.teleport(hops)
        if columns is not None and found is not None and own is not None:
            roots = (1 + own.degrees(nodes, self._ways)).rsqrt().numpy()
            backwards = adjacency(own, nodes).T + sp.eye_array(nodes)
            matrix = sp.diags_array(roots) @ backwards @ sp.diags_array(roots)
            for _ in range(hops):
                found = (1 - back) * torch.from_numpy(matrix @ found.numpy()) + back * columns
        return self._machine.put(holder, found, (nodes, count), BITS)

    def _hops(
        self,
        wire: Wire,
        begun: Wire,
        hops: int,
        teleport: float,
        scales: tuple[Wire, Wire, Wire, Wire],
        ways: Sequence[bool],
        ring: Ring,
        joining: Mapping[int, Wire] = MappingProxyType({}),
    ) -> Wire:
        """Propagate one slice of columns, given the factors of ``_scales``, for so many ``hops`` after ``begun``.

        Sums over edges are made in ``ring``. ``joining``: columns that join where so many hops are left.
        """
        machine, (first, between, last, brought) = self._machine, scales
        narrow_bits = 30 - self._context.sizes.max_degree.bit_length()  # sums of entries up to 1 stay below 2^30
        coarser = max(0, wire.bits - narrow_bits) if ring == 32 else 0
        scaled = machine.product(torch.mul, begun, first)
        # What α brings back is the same after every hop but the last.
        back = machine.product(torch.mul, wire, brought) if teleport and hops > 1 else None
        for hop in range(hops):
            narrowed = machine.open(scaled, scaled.bits - wire.bits + coarser, ring)
            summed = machine.open(self._edges.sums(self.holders, ways, narrowed), self._edges.weight_bits)
            summed = summed.times(1 << coarser).halved(coarser)
            ends = hop == hops - 1
            scaled = machine.product(torch.mul, summed, last if ends else between)
            if teleport and ends:
                scaled = scaled + machine.split(wire).scaled(teleport, FINE_BITS)
            elif back is not None:
                scaled = scaled + back
            if (left := hops - hop - 1) in joining:
                scaled = scaled + machine.product(torch.mul, joining[left], first)
        return machine.open(scaled, FINE_BITS)

    def scale(self, teleport: float) -> None:
        """Compute the factors of rows with this α, unless they are there; once a session."""
        if teleport not in self._scaling:
            self._scaling[teleport] = self._scales(teleport)

    def _scales(self, teleport: float) -> tuple[Wire, Wire, Wire, Wire]:
        """Factors [N, 1] of rows before the first hop, between hops, after the last, and of x where α brings it back.

        1 − α and α are multiplied into these, so that rows keep 22 bits above the point.
        """
        machine = self._machine
        assert self.roots is not None
        inverse = multiply_open(machine, self.roots, self.roots, FINE_BITS)
        if not teleport:
            return self.roots, inverse, self.roots, self.roots
        parts = [machine.split(part) for part in (inverse, self.roots, self.roots)]
        shares = [
            part.scaled(share, FINE_BITS) for part, share in zip(parts, (1 - teleport,) * 2 + (teleport,), strict=True)
        ]
        between, last, brought = (machine.open(share, FINE_BITS) for share in shares)
        return self.roots, between, last, brought


def _cut(wires: list[Wire], width: int) -> list[Wire]:
    """Cut wires to so many columns, in memory apart, and empty the list: none of the wires is needed any more."""
    found = list[Wire]()
    while wires:
        wire = wires.pop(0)
        found += [wire[:, start : start + width].copied() for start in range(0, wire.shape[1], width)]
    return found


def _after(done: int, teleport: float, wire: Wire, nearer: Mapping[int, Wire]) -> Wire:
    """What ``wire`` x is after the hops that are ``done``, of k → P^k·x: with α ≠ 0, some bits longer, exactly."""
    if not (teleport and done):
        return nearer[done] if done else wire
    whole = round(1 / teleport) ** done
    powers = [wire, *(nearer[near] for near in range(1, done + 1))]
    shares = [teleport * (1 - teleport) ** near for near in range(done)]
    factors = [round(whole * share) for share in (*shares, (1 - teleport) ** done)]
    parts = [power.times(factor) for power, factor in zip(powers, factors, strict=True)]
    return reduce(add, parts).halved(whole.bit_length() - 1)


def check_double_entry(
    machine: Machine, context: Context, into: Sequence[HiddenGraph], out: Sequence[HiddenGraph]
) -> None:
    """Check that every two holders put in the same edges between their nodes; once a session.

    ``into`` and ``out`` are all holders' edges into their own nodes, and out of them, reversed. Raises ``DataError`` at
    every holder, with the names of the pairs of holders whose edges differ.
    """
    machine.at("double entry")
    blocks, nodes = context.sizes.blocks, context.sizes.nodes
    drawn = [machine.put(holder, context.of(holder, "coins"), (nodes, 2), 0) for holder in blocks]
    total = drawn[0]
    for each in drawn[1:]:
        total = total + each
    sums = []
    for place, graphs in enumerate((into, out)):
        wide = total[:, place : place + 1].map(partial(_by_holder, [block.rows for block in blocks.values()]))
        spread = machine.open(machine.hop(graphs, wide) - machine.split(wide))
        weights = total[:, 1 - place : 2 - place].map(partial(repeat_column, columns=len(blocks)))
        sums.append(machine.product(torch.mul, spread, weights))
    pairs, found = list(combinations(blocks, 2)), []
    columns = {holder: column for column, holder in enumerate(blocks)}

    def of(which: int, at: PartyId, column: PartyId) -> Wire:  # over one holder's rows, of another's column: [1, 1]
        part = sums[which][blocks[at].rows, columns[column] : columns[column] + 1]
        return machine.open(part.map(lambda rows: rows.sum(0, keepdim=True)))

    for one, other in pairs:
        differences = concatenate([of(0, other, one) - of(1, one, other), of(0, one, other) - of(1, other, one)])
        found.append(machine.value(machine.negative(differences)) + machine.value(machine.negative(-differences)))
    counts = [each.map(lambda rows: rows.sum(0, keepdim=True)) for each in found]
    differs = machine.value(machine.negative(-concatenate([machine.open(each) for each in counts])))
    told = [machine.reveal(machine.open(differs), holder) for holder in blocks]
    bits = next((each for each in told if each is not None), None)
    if bits is not None and bool((bits > 0).any()):
        named = [f"{one} and {other}" for (one, other), bit in zip(pairs, bits[:, 0].tolist(), strict=True) if bit > 0]
        raise DataError(
            f"double entry: {listed(named)} put in edges between their nodes that are not the same; this program puts "
            "in those alone that both have, so that one of them runs another: ask them what they run",
            code="double-entry",
            key="edges",
            party=named[0].split(" and ")[0],
        )


def _by_holder(rows: Sequence[slice], part: Tensor) -> Tensor:
    """Spread a column [N, 1] over one column for each holder, zero outside that holder's rows: [N, holders]."""
    found = part.new_zeros((part.shape[0], len(rows)))
    for column, block in enumerate(rows):
        found[block, column] = part[block, 0]
    return found


def repeat_column(part: Tensor, columns: int) -> Tensor:
    """Repeat a column [N, 1] without copying it: [N, columns]."""
    return part.expand(-1, columns)


def one_hot(places: Tensor, size: int) -> Tensor:
    """One-hot rows of n places below ``size``: float64 [n, size]."""
    return torch.nn.functional.one_hot(places, size).to(torch.float64)
