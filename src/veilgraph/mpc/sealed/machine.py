"""What a program computes with: every party runs the same program, each on a machine of its own.

A program (``functions``, or a network) calls the operations below in an order that depends on public sizes alone. A
holder's machine does them on Λ and shares of λ, the dealer's on λ, the twin's on the numbers themselves, and the
counter's on nothing but shapes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import ClassVar, Final, Literal

import torch
from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire

Bilinear = Callable[[Tensor, Tensor], Tensor]
"""A bilinear function of two tensors."""
Ring = Literal[32, 64]
DTYPES: Final[dict[int, torch.dtype]] = {32: torch.int32, 64: torch.int64}
GUARD: Final = 2
"""An opened value of Z_2^n with truncation is below 2^(n − GUARD) in magnitude."""

CHUNK_BYTES: Final = 8 << 20
"""Of the rows of a hop that are in hand at a time."""


def chunks(rows: int, columns: int) -> Iterator[slice]:
    """Columns that are summed over edges at a time, the same at all parties."""
    width = max(1, CHUNK_BYTES // (4 * rows))
    return (slice(start, min(start + width, columns)) for start in range(0, columns, width))


class HiddenGraph(ABC):
    """Directed edges that one holder knows, of a public padded number; what each party has of them is its own."""

    owner: PartyId
    nodes: int
    """N."""
    slots: int
    """N and the padded number of edges."""
    weight_bits: int
    """Fractional bits of the edges' weights, which are hidden as well; 0: every edge counts once."""


def portions(graphs: Sequence[HiddenGraph], columns: int) -> Iterator[list[tuple[HiddenGraph, slice]]]:
    """Graphs with the columns that are summed over their edges at a time, side by side as far as they go.

    Raises:
        ValueError: there is none, or their weights have not the same bits.
    """
    if len({graph.weight_bits for graph in graphs}) != 1:
        raise ValueError("a hop is over one graph or more, with edge weights of as many bits; take a hop for each")
    for parts in zip_longest(*(chunks(graph.slots, columns) for graph in graphs)):
        yield [(graph, part) for graph, part in zip(graphs, parts, strict=True) if part is not None]


class Machine(ABC):
    """One party's.

    Attributes:
        holders: in the job's order.
        party: which it is.
        exact: whether numbers are in fixed point; False in the twin.
    """

    exact: ClassVar[bool] = True

    def __init__(self, holders: Sequence[PartyId], party: PartyId) -> None:
        self.holders, self.party = tuple(holders), party

    def at(self, place: str) -> None:  # noqa: B027 - only what counts or reports needs it
        """Names the part of the program that begins; nothing that is computed depends on it."""

    @abstractmethod
    def share(self, wire: Wire) -> Tensor:
        """This party's summand of a wire, to be kept; those of all holders add up to it."""

    @abstractmethod
    def put(self, owner: PartyId, values: Tensor | None, shape: Sequence[int], bits: int) -> Wire:
        """What one holder knows becomes a wire of Z_2^64. One round.

        Args:
            owner: who knows it.
            values: floating or integers; None at all others.
            shape: of it, which all know.
            bits: fractional bits.
        """

    @abstractmethod
    def constant(self, values: Tensor, bits: int = 0) -> Wire:
        """What everybody knows, whole numbers of 2^−bits, as a wire of Z_2^64. No message.

        Args:
            values: int64, the numbers times 2^bits.
            bits: fractional bits.
        """

    @abstractmethod
    def summands(
        self, values: Tensor | None, shape: Sequence[int], bits: int, *, of: PartyId | None = None
    ) -> Summands:
        """What every holder knows a summand of, or ``of`` one of them all. No message.

        Args:
            values: this holder's, floating or integers; None: it has none.
            shape: of it.
            bits: fractional bits.
            of: the only one that has any.
        """

    @abstractmethod
    def split(self, wire: Wire) -> Summands:
        """A wire as summands. No message."""

    @abstractmethod
    def product(self, function: Bilinear, left: Wire, right: Wire) -> Summands:
        """A bilinear function of two wires of Z_2^64. No message."""

    @abstractmethod
    def triple(self, left: Wire, middle: Wire, right: Wire) -> Summands:
        """left·middle·right of wires of Z_2^64 of one shape, entry by entry. No message but the dealer's."""

    @abstractmethod
    def open(self, summands: Summands, shift: int = 0, ring: Ring = 64, *, bits: int | None = None) -> Wire:
        """Summands become a wire: what is opened is the value under a fresh mask.

        One round where the summands have ``ring + shift`` bits, else two: the sum of summands may wrap around.

        Args:
            summands: of Z_2^n, below 2^(n − GUARD) in magnitude where they are shifted or lifted to another ring.
            shift: bits cut off; the result is exact to one unit, and right on average.
            ring: of the result.
            bits: fractional bits that the result is said to have, where a power of two is divided by as well.
        """

    @abstractmethod
    def noised(self, summands: Summands, deviation: float) -> Summands:
        """With Gaussian noise on every entry, which the dealer draws and no holder ever has. No message.

        Args:
            summands: whole numbers, with fractional bits that are 0: the noise is rounded to these bits.
            deviation: standard deviation of the noise on one entry; 0: there is none.
        """

    @abstractmethod
    def negative(self, wire: Wire) -> Bit:
        """Whether each entry of a wire of Z_2^64 is below zero. Three rounds."""

    @abstractmethod
    def value(self, bit: Bit) -> Summands:
        """A bit as a number. No message."""

    @abstractmethod
    def gate(self, bit: Bit, wire: Wire) -> Summands:
        """bit·wire, entry by entry. No message but the dealer's."""

    def choose(self, bit: Bit, left: Wire, right: Wire) -> Summands:
        """Entries of ``left`` where the bit is set, of ``right`` elsewhere. No message but the dealer's."""
        return self.gate(bit, left - right) + self.split(right)

    @abstractmethod
    def hidden_graph(
        self,
        owner: PartyId,
        edges: Tensor | None,
        nodes: int,
        padded: int,
        weights: Tensor | None = None,
        weight_bits: int = 0,
    ) -> HiddenGraph:
        """Directed edges that one holder knows. One message to every other holder.

        Args:
            owner: who knows them.
            edges: [2, E] sources and targets, E ≤ padded; None at all others.
            nodes: N.
            padded: number of edges that all are told.
            weights: [E] of the edges, floating; None at all others, and where there are none.
            weight_bits: of the weights, which all are told; 0: there are none.
        """

    @abstractmethod
    def hop(self, graphs: Sequence[HiddenGraph], wire: Wire) -> Summands:
        """Sums over the sources of every target's edges, and the node itself: Σ_i A_i·v + v.

        Args:
            graphs: whose edges count, each one with its duplicates; all with weights of the same bits, or none.
            wire: [N, d] of the ring that sums are made in, with weights Z_2^64; their bits are added to its own.
        """

    @abstractmethod
    def pick(self, owner: PartyId, rows: Tensor | None, count: int, wire: Wire) -> Summands:
        """Rows of a wire that one holder chooses and nobody else knows.

        Args:
            owner: who chooses.
            rows: [count] different ones; None at all others.
            count: how many.
            wire: [N, d].
        """

    @abstractmethod
    def reveal(self, wire: Wire, to: PartyId) -> Tensor | None:
        """A wire's numbers at one holder, float64; None at all others. One round."""
