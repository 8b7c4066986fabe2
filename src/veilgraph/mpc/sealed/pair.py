"""Two holders without a dealer: what others are dealt they compute together, from the shares that each has.

A wire is v = Λ − λ_0 − λ_1 as ever, but nothing is opened under masks: Λ is what both know of it, most often zero, and
holder p's share is −λ_p, with Λ at the one that leads. Openings without a cut are no messages, and inputs stay where
they are.

What both compute together is shares of functions of what each has (``Together``): products by encryption, bits by
oblivious transfer (``veilgraph.mpc.pair``). A factor that stays is multiplied by random columns ahead (``Stocks``): it
is a hidden graph, the left matrix of a product, or what every entry of a row or column is multiplied by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal, Protocol

import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.core.types import NOBODY, Link, PartyId
from veilgraph.mpc.ring import column_products, matmul, transposed_matmul
from veilgraph.mpc.sealed.comparison import SHORT_BITS
from veilgraph.mpc.sealed.correlations import Holder, Operation, Result, encoded
from veilgraph.mpc.sealed.hidden_graph import HiddenGraph
from veilgraph.mpc.sealed.hops import Hide
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.opening import Open
from veilgraph.mpc.sealed.pair_stocks import Make, Stocks
from veilgraph.mpc.sealed.picks import Pick
from veilgraph.mpc.sealed.sines import FACTOR_BITS, SUM_BITS, UNIT_BITS, odd_multiples
from veilgraph.mpc.sealed.wire import DTYPES, Bilinear, Bit, Ring, Summands, Wire, concatenate

_DEGREE_BITS: Final = 18  # of the most edges at a node


class Together(Protocol):
    """Shares of functions of what two parties have; both call, each with its own, and neither learns more.

    Shares add up in Z_2^64, int64, unless said otherwise; bits are shared by XOR, bool.
    """

    def matmul(
        self,
        left: Tensor | None,
        right: Tensor | None,
        sizes: tuple[int, int, int],
        multiplies: Literal["left", "right"] | None,
        /,
    ) -> Tensor:
        """``left`` [n, k] of one party times ``right`` [k, m] of the other: [n, m].

        ``multiplies``: whose owner works in plaintext, for less where it has few entries that are not zero.
        """

    def scale(self, factors: Tensor | None, rows: Tensor | None, sizes: tuple[int, int], /) -> Tensor:
        """The other's ``rows`` [n, m], each times its factor of one party, [n]: [n, m]."""

    def masked(self, own: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, /) -> Tensor:
        """What one sends to the other, under masks that are used once: at both, of this shape and dtype."""

    def inner(self, own: Tensor, bits: int = 64, /) -> Tensor:
        """Σ_j x_j·y_j of the first party's x and the second's y, [J, n], below 2^``bits`` unless that is 64: [n]."""

    def hop(
        self,
        matrix: sp.csr_array | None,
        rows: Tensor | None,
        shape: tuple[int, int],
        columns: int,
        ring: Ring,
        bits: int,
        /,
    ) -> Tensor:
        """A sparse ``matrix`` of one party times the other's ``rows``, in ``ring``: [targets, columns].

        Entries of a row of the matrix sum up to 2^bits in magnitude at most.
        """

    def wraps(self, own: Tensor, dtype: torch.dtype, /) -> Tensor:
        """The product of the bits that each has, in the ring of ``dtype``, int32 or int64."""

    def arithmetic(self, share: Tensor, /) -> Tensor:
        """A bit, as a number."""

    def gate(self, bit: Tensor, number: Tensor, /) -> Tensor:
        """A bit times a number."""

    def negative(self, share: Tensor, bits: int = 64, /) -> Tensor:
        """Whether a number of Z_2^``bits`` is below zero: a bit. Higher bits of shares do not count."""


class PairMachine(Machine):
    """The machine of one of two holders, to whom nobody deals.

    ``secrets`` gives the seeds of its streams, ``foresee`` the columns that this session multiplies by each factor.
    """

    def __init__(
        self,
        link: Link,
        holders: Sequence[PartyId],
        together: Together,
        secrets: SecretSource = system_secrets,
        foresee: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        super().__init__(holders, link.party, NOBODY)
        self._together, self._holder = together, Holder(link, self.computing, NOBODY, secrets, shares_stream=True)
        self._stocks = Stocks(together, lambda shape, dtype: self._holder.drawn([(shape, dtype)])[0], foresee)

    @property
    def _leads(self) -> bool:
        return self.party == self.holders[0]

    @override
    def run(self, operation: Operation[Result]) -> Result:
        return operation.hold(self._holder)

    def _own(self, wire: Wire) -> Tensor:
        """This holder's share of a wire. Who owns a wire has all of it: also what was added since, which both know."""
        adds = self._leads if wire.owner is None else self.party == wire.owner
        return wire.public - wire.mask if adds and wire.public is not None else -wire.mask

    @staticmethod
    def _wire(share: Tensor, bits: int, owner: PartyId | None = None) -> Wire:
        return Wire(share.new_zeros(()).expand(share.shape), -share, bits, owner)

    def _zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Uniform numbers that the two holders' are zero together."""
        (drawn,) = self._holder.drawn_in_pair([(tuple(shape), dtype)])
        return drawn if self._leads else -drawn

    @override
    def put(self, owner: PartyId, values: Tensor | None, shape: Sequence[int], bits: int) -> Wire:
        size = tuple(shape)
        if self.party == owner:
            return self._wire(encoded(owner, values, size, bits), bits, owner)
        return self._wire(torch.zeros((), dtype=torch.int64).expand(size), bits, owner)

    @override
    def split(self, wire: Wire) -> Summands:
        return Summands(self._own(wire), wire.bits)

    def _linear(
        self,
        factor: object,
        kind: str,
        holders: Sequence[PartyId],
        columns: Tensor,
        home: Callable[[Tensor], Tensor],
        make: Make,
    ) -> Tensor:
        """Multiply a factor that ``holders`` have shares of by columns [k, m]: this party's share, [n, m].

        ``home`` multiplies this party's share of the factor, ``make`` one party's by the other's columns.
        """
        seen, rest = columns, list[Tensor]()
        for holder in holders:
            has = holder == self.party
            told, share = self._stocks.multiply(factor, (kind, holder), columns, make, has_factor=has)
            seen = seen if told is None else seen + told
            rest.append(share)
        return sum(rest, start=home(seen))

    def _meets(self, left: Wire, right: Wire) -> list[PartyId]:
        """Holders whose share of ``left`` meets the other's of ``right``: what somebody owns is its alone."""
        first, second = self.holders
        return [
            holder
            for holder, peer in ((first, second), (second, first))
            if left.owner in (None, holder) and right.owner in (None, peer)
        ]

    @override
    def product(self, function: Bilinear, left: Wire, right: Wire) -> Summands:
        bits, meets = left.bits + right.bits, self._meets(left, right)
        if not meets:
            return Summands(function(self._own(left), self._own(right)), bits)
        if function is torch.mul:
            return Summands(self._entries(left, right, meets), bits)
        if function is column_products:
            own, other = self._own(left), self._own(right)
            if left is right:
                return Summands(function(own, own) + 2 * self._together.inner(own)[None], bits)
            terms = torch.cat([own if holder == self.party else other for holder in meets])
            return Summands(function(own, other) + self._together.inner(terms)[None], bits)
        if function is not matmul and function is not transposed_matmul:
            raise TypeError(f"{function}: two holders without a dealer multiply entries, columns and matrices alone")
        one, other = self._own(left), self._own(right)
        one = one.T if function is transposed_matmul else one
        # What a holder put in may be sparse, a share never is.
        multiplies: Literal["left", "right"] | None = "left" if left.owner else "right" if right.owner else None

        def make(columns: Tensor | None, count: int) -> Tensor:
            sizes = one.shape[0], one.shape[1], count
            own = one if columns is None else None
            return self._together.matmul(own, columns, sizes, multiplies)

        kind = function.__name__
        return Summands(self._linear(left, kind, meets, other, lambda seen: matmul(one, seen), make), bits)

    def _entries(self, left: Wire, right: Wire, meets: Sequence[PartyId]) -> Tensor:
        """Multiply entry by entry. One factor of each row or column is multiplied by all of it."""
        for factor, of in ((left, right), (right, left)):
            for turned, shape in ((False, (*of.shape[:-1], 1)), (True, (1, *of.shape[1:]))):
                if len(of.shape) == 2 and factor.shape == shape != of.shape:
                    return self._scaled(factor, of, turned=turned)
        one, other = self._own(left), self._own(right)
        own = one * other
        flat, others = (part.broadcast_to(own.shape).reshape(-1) for part in (one, other))
        if left is right:
            return own + 2 * self._together.inner(flat[None]).reshape(own.shape)
        factors = [flat if holder == self.party else others for holder in meets]
        return own + self._together.inner(torch.stack(factors)).reshape(own.shape)

    def _scaled(self, factor: Wire, of: Wire, *, turned: bool) -> Tensor:
        """Multiply rows of a wire [n, m] each by its factor [n, 1] or, ``turned``, columns by [1, m]."""
        own, columns = self._own(factor), self._own(of)
        own, columns = (own.T, columns.T) if turned else (own, columns)

        def make(rows: Tensor | None, count: int) -> Tensor:
            return self._together.scale(own[:, 0] if rows is None else None, rows, (len(own), count))

        meets = self._meets(factor, of)
        found = self._linear(factor, f"scale {turned}", meets, columns, lambda seen: own * seen, make)
        return found.T if turned else found

    @override
    def triple(self, left: Wire, middle: Wire, right: Wire) -> Summands:
        two = self.product(torch.mul, left, middle)
        return self.product(torch.mul, self._wire(two.part, two.bits), right)

    @override
    def sines(self, wire: Wire, period_bits: int, factors: Sequence[float]) -> Summands:
        """Add up sin(x_0)·cos(x_1) + cos(x_0)·sin(x_1) of two shares, each of which its holder knows."""
        own, count = self._own(wire).reshape(-1), len(factors)
        if own.is_meta:
            told = own.expand(2 * count, -1)
        else:
            cosines, sines = torch.stack([*odd_multiples(own, period_bits + wire.bits, count)]).unbind(1)
            if self._leads:
                told = torch.cat([sines, cosines])
            else:  # the factors are multiplied in by the second holder
                half = 1 << UNIT_BITS - 1
                whole = torch.tensor([round(factor * 2.0**FACTOR_BITS) for factor in factors])[:, None]
                told = torch.cat([part * whole + half >> UNIT_BITS for part in (cosines, sines)])
        bits = SUM_BITS + 1 + math.ceil(math.log2(sum(map(abs, factors))))  # a sine times a cosine, twice
        return Summands(self._together.inner(told, bits).reshape(wire.shape), SUM_BITS)

    @override
    def open(self, summands: Summands, shift: int = 0, ring: Ring = 64, *, bits: int | None = None) -> Wire:
        """Cut or lift the holders' own summands: nothing is opened, and the result is a wire of new shares."""
        cut = Open(summands, shift, ring, bits, by_two=True)
        part = summands.part.to(DTYPES[cut.width])
        if not cut.by_bits:
            return self._wire(part.to(DTYPES[ring]), cut.result_bits)
        part = part + self._zeros(cut.shape, part.dtype) + (cut.offset if self._leads else 0)
        share = cut.cut(part)
        if cut.wraps:
            # Bits of the product beyond those that the result has left after the shift do not count.
            dtype = torch.int32 if ring - (cut.width - shift) <= 32 else torch.int64
            wraps = self._together.wraps(part >= 0, dtype).to(torch.int64) - int(self._leads)
            share = share + (wraps << (cut.width - shift))
        if self._leads:
            share = share - (cut.offset >> shift)
        return self._wire(share.to(DTYPES[ring]), cut.result_bits)

    @override
    def noised(self, summands: Summands, epsilon: float) -> Summands:
        if math.isinf(epsilon):
            return summands
        raise ConfigError("trust=nobody: nobody draws noise that no holder knows; take trust=dealer", key="trust")

    @override
    def negative(self, wire: Wire, whole_bits: int | None = None, fine_bits: int | None = None) -> Bit:
        """Compare the bits that a bound on entries and ``fine_bits`` leave, and 64 without them."""
        sign = 63 if whole_bits is None else min(63, whole_bits + wire.bits)
        shift = max(
            0 if whole_bits is None else sign - SHORT_BITS, 0 if fine_bits is None else wire.bits - fine_bits, 0
        )
        own = self._own(wire)
        # One share is rounded down and the other one up, so that what is not below zero is never found to be.
        cut = own >> shift if self._leads else -(-own >> shift)
        share = self._together.arithmetic(self._together.negative(cut, sign - shift + 1))
        return Bit(torch.zeros((), dtype=torch.bool, device=share.device).expand(share.shape), share)

    @override
    def gate(self, bit: Bit, wire: Wire) -> Summands:
        own = (bit.mask & 1).to(torch.bool)  # two shares of 0 or 1 differ in their last bits where it is 1
        if self._leads and bit.public is not None:
            own = own ^ bit.public
        number = self._own(wire)
        return Summands(self._together.gate(own.expand_as(number), number), wire.bits)

    @override
    def hidden_graph(
        self,
        owner: PartyId,
        edges: Tensor | None,
        nodes: int,
        padded: int,
        weights: Tensor | None = None,
        weight_bits: int = 0,
    ) -> HiddenGraph:
        """Keep directed edges at their owner. No message."""
        hidden = Hide(owner, edges, nodes, padded, weights, weight_bits)
        return hidden.own_edges()[0] if self.party == owner else hidden.graph

    @override
    def hop(self, graphs: Sequence[HiddenGraph], wire: Wire) -> Summands:
        own, weight_bits = self._own(wire), graphs[0].weight_bits
        ring: Ring = 32 if wire.ring == 32 else 64
        total = own << weight_bits
        for graph in graphs:
            total = total + self._linear(
                graph,
                f"hop {ring}",
                [graph.owner],
                own,
                partial(_sums, graph.adjacency if self.party == graph.owner else None),
                partial(self._hop, graph, ring),
            )
        return Summands(total, wire.bits + weight_bits)

    def _hop(self, graph: HiddenGraph, ring: Ring, rows: Tensor | None, count: int) -> Tensor:
        """Share of a graph's sums over so many columns, int [N, count]."""
        # A node has at most all edges that there are, each of which counts 1 unless it has a weight.
        edges = (graph.slots - graph.nodes).bit_length()
        bits = _DEGREE_BITS + graph.weight_bits if graph.weight_bits else min(edges, _DEGREE_BITS)
        matrix = graph.adjacency if rows is None else None
        return self._together.hop(matrix, rows, (graph.nodes, graph.nodes), count, ring, bits)

    @override
    def pick(self, owner: PartyId, rows: Tensor | None, count: int, *wires: Wire) -> Summands:
        wire = concatenate(wires, 1)
        own, nodes = self._own(wire), wire.shape[0]
        shape = count, nodes
        if self.party != owner:
            return Summands(self._together.hop(None, own, shape, own.shape[1], 64, 0), wire.bits)
        chosen = Pick(owner, rows, count, wires).chosen()
        ones = torch.ones(count, dtype=torch.int32).numpy()
        matrix = sp.csr_array((ones, (torch.arange(count).numpy(), chosen.numpy())), shape=shape)
        found = self._together.hop(matrix, None, shape, own.shape[1], 64, 0)
        return Summands(own[chosen] + found, wire.bits)


def _sums(matrix: sp.csr_array | None, rows: Tensor) -> Tensor:
    """Sum rows at the owner of a matrix; zeros at others."""
    return torch.zeros_like(rows) if matrix is None else torch.from_numpy(matrix @ rows.numpy())
