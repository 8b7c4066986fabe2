"""What a network of a sealed job is, and propagation over all holders' hidden edges: v ← (1 − α)·P·v + α·x.

P = D^(−1/2)·Ã·D^(−1/2) or D^(−1)·Ã, Ã = I + Σ_i A_i over all holders, whose degrees D nobody learns; or over one of
them alone, which knows its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.mpc.ring import matmul, transposed_matmul
from veilgraph.mpc.sealed.functions import BITS, FINE_BITS, inverse_root, relu, times
from veilgraph.mpc.sealed.hops import HiddenGraph
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Bit, Ring, Summands, Wire, joined, side_by_side
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


Parts = dict[str, tuple[slice, slice]]
"""Name → rows and columns of the first weights."""


_FEW: Final = 140
"""Training rows on which decays were chosen."""


@dataclass(frozen=True)
class Suits:
    """What suits a network where the job leaves it open.

    Attributes:
        hops: K.
        learning_rate: of SGD with momentum on unit rows.
        weight_decay: of L2, with up to ``_FEW`` training rows.
        teleport: α.
    """

    hops: int
    learning_rate: float
    weight_decay: float
    teleport: float = 0.1

    def decay(self, rows: int) -> float:
        """Of L2 with T training rows: the more there are, the less a prior on the weights counts."""
        return self.weight_decay * min(1, _FEW / max(rows, 1))


@dataclass(frozen=True)
class Kept:
    """A wire that a training which is gone on with has again.

    Attributes:
        owner, attribute: where it is; None where it is not computed yet.
        shape: of it.
        bits: its fractional bits.
        predicts: whether a prediction needs it as well.
    """

    owner: object
    attribute: str
    shape: tuple[int, ...]
    bits: int
    predicts: bool = False

    @property
    def wire(self) -> Wire | None:
        """As it is."""
        found: Wire | None = getattr(self.owner, self.attribute)
        return found


@dataclass(frozen=True)
class Passed:
    """What a forward pass leaves for the backward one.

    Attributes:
        logits: [B, C], of the wanted training rows.
        wanted: which rows these are.
        inner: what the network itself needs.
    """

    logits: Wire
    wanted: slice
    inner: Sequence[Wire | Bit]


class Network(ABC):
    """One party's part in a network.

    Args:
        machine: of the party.
        context: of the job.
    """

    suits: ClassVar[Suits]
    words: ClassVar[str]
    """What it is, for people, with ``{hops}``, ``{own_hops}`` and ``{hidden}`` in it."""

    def __init__(self, machine: Machine, context: Context) -> None:
        self.machine, self.context = machine, context
        holders = list(context.sizes.edges)
        groups = [[holder] for holder in holders] if context.plan.each and context.plan.hops else [holders]
        self.relations = [Propagation(machine, context, group) for group in groups]
        """What is propagated over: all holders' edges together, or each one's by themselves."""
        self.watched: list[Wire] = []
        """What was opened since its range was last tested: all that is not bounded by what was tested before."""
        self.columns: list[Wire] = []
        """Of every holder, [N, F_i], in the job's order."""

    @property
    @abstractmethod
    def shapes(self) -> list[tuple[int, int]]:
        """Of the weights."""

    @abstractmethod
    def parts(self, holder: PartyId) -> Parts:
        """Where the first weights of a holder's own columns are, by what these are when they are multiplied.

        ``columns``: as they were put in; ``own.k``: after k hops over its own edges; ``pooled``: after K hops over all
        edges together; ``pooled.B``: over holder B's. Later layers have no part that is one holder's.
        """

    @property
    def blocks(self) -> int:
        """Of as many columns each, that a holder puts in side by side: its own, and their hops over its own edges."""
        return 1 + self.context.plan.own_hops

    def place(self, holder: PartyId) -> slice:
        """Where a holder's columns are among those of all, counted in one of its blocks."""
        start, columns = 0, self.context.sizes.columns
        for other, width in columns.items():
            if other == holder:
                break
            start += width // self.blocks
        return slice(start, start + columns[holder] // self.blocks)

    @property
    def relation_names(self) -> list[str]:
        """Of what was propagated over each."""
        if len(self.relations) == 1:
            return ["pooled"]
        return [f"pooled.{holder}" for holder in self.context.sizes.edges]

    def enter(self, *, trains: bool) -> None:
        """Every holder puts its columns and its edges in; once a session."""
        sizes = self.context.sizes
        self.columns = [
            self.machine.put(holder, self.context.of(holder, "features"), (sizes.nodes, columns), BITS)
            for holder, columns in sizes.columns.items()
        ]
        for relation in self.relations if self.context.plan.hops else []:
            relation.enter(transposed=trains)
            if self.context.plan.each:
                relation.enter_roots()

    def normalise(self) -> None:
        """What hops need, once a session."""
        if self._computes_roots and self.relations[0].roots is None:
            self.machine.at("degrees")
            self.relations[0].compute_roots()

    @property
    def _computes_roots(self) -> bool:
        return bool(self.context.plan.hops) and not self.context.plan.each

    def prepare(self) -> None:
        """What training needs once, beyond that."""
        self.normalise()

    def kept(self) -> dict[str, Kept]:
        """What is made once and kept with the weights, by name, in the order in which it becomes wires again."""
        if not self._computes_roots:
            return {}
        return {"roots": Kept(self.relations[0], "roots", (self.context.sizes.nodes, 1), FINE_BITS)}

    def resume(self) -> None:  # noqa: B027 - most do nothing
        """A training that is gone on with has again what is kept."""

    def arrive(self, step: int, weights: Sequence[Wire]) -> None:  # noqa: B027 - most do nothing
        """Before a step of the job, counted from 0, with the weights as they are."""

    @abstractmethod
    def forward(self, weights: Sequence[Wire], wanted: slice) -> Passed:
        """Logits of some of the training rows."""

    @abstractmethod
    def backward(self, weights: Sequence[Wire], passed: Passed, error: Wire) -> list[Summands]:
        """Gradients of the weights, from that of the logits [B, C]."""

    @abstractmethod
    def predict(self, weights: Sequence[Wire]) -> Wire:
        """Logits of every node: [N, C]."""

    def moved(self, blocks: Wire) -> Wire:
        """Σ_r P_r^K·B_r of one block of columns for each relation: [N, R·d] → [N, d]."""
        width = blocks.shape[1] // len(self.relations)
        total: Wire | None = None
        for place, relation in enumerate(self.relations):
            found = self.spread(relation, blocks[:, place * width : (place + 1) * width])
            total = found if total is None else total + found
        assert total is not None
        return total

    def moved_back(self, error: Wire, *, narrow: bool = False) -> Wire:
        """What ``moved`` does to gradients: [N, d] → [N, R·d]; ``narrow`` as in ``Propagation``."""
        return joined([self.spread(each, error, transposed=True, narrow=narrow) for each in self.relations], 1)

    def spread(self, relation: Propagation, *columns: Wire, transposed: bool = False, narrow: bool = False) -> Wire:
        """P_r^K·B of columns side by side, or with Pᵀ; ``narrow`` as in ``Propagation``, else it is watched."""
        plan = self.context.plan
        found = relation(columns, plan.hops, plan.teleport, transposed=transposed, narrow=narrow)
        self.watched.extend([] if narrow else [found])
        return found

    def glorot(self, bits: int) -> list[Tensor]:
        """Initial weights, which are public: int64."""
        generator = torch.Generator().manual_seed(self.context.plan.seed)
        return [
            torch.empty(shape, dtype=torch.float64)
            .uniform_(-1, 1, generator=generator)
            .mul_((6 / sum(shape)) ** 0.5 * 2.0**bits)
            .round_()
            .to(torch.int64)
            for shape in self.shapes
        ]

    def initial(self, bits: int) -> list[Tensor]:
        """As ``glorot``, where the network does not say otherwise."""
        return self.glorot(bits)

    def hidden_training_rows(self, wanted: slice) -> tuple[PartyId, Tensor | None, int]:
        """Who knows the wanted training rows, which they are, and how many."""
        context = self.context
        rows = context.of(context.label_party, "rows")
        count = len(range(*wanted.indices(context.sizes.training)))
        return context.label_party, None if rows is None else rows[wanted], count

    def linear(self, left: Wire, weight: Wire) -> Wire:
        """left·W, opened."""
        return self.opened(self.machine.product(matmul, left, weight))

    def opened(self, summands: Summands, bits: int = BITS) -> Wire:
        """With so many fractional bits, and watched."""
        self.watched.append(self.machine.open(summands, summands.bits - bits))
        return self.watched[-1]

    def from_columns(self, columns: Sequence[Wire], weight: Wire) -> Wire:
        """Σ_i X_i·W_i over the holders' columns: [N, d]."""
        return self.opened(self.sum_of_columns(columns, weight))

    def sum_of_columns(self, columns: Sequence[Wire], weight: Wire) -> Summands:
        """The same before it is opened."""
        start, total = 0, None
        for part in columns:
            product = self.machine.product(matmul, part, weight[start : start + part.shape[1]])
            start, total = start + part.shape[1], product if total is None else total + product
        assert total is not None
        return total

    def gradient_of_columns(self, columns: Sequence[Wire], error: Wire) -> Summands:
        """Xᵀ·E of all holders' columns, one below the other: [F, d]."""
        parts = [self.machine.product(transposed_matmul, part, error) for part in columns]
        return Summands(torch.cat([part.part for part in parts]), parts[0].bits)

    def hidden_error(self, error: Wire, weight: Wire, gate: Bit) -> Wire:
        """The gradient below a ReLU, of the one above the weights that follow it."""
        back = self.opened(self.machine.product(matmul, error, weight.T), error.bits)
        return self.machine.open(self.machine.gate(gate, back))

    def activated(self, wire: Wire) -> tuple[Wire, Bit]:
        """ReLU, and where it lets through."""
        return relu(self.machine, wire)


def one_hot(places: Tensor, size: int) -> Tensor:
    """float64 [n, size]."""
    return torch.nn.functional.one_hot(places, size).to(torch.float64)
