"""What a program costs: it runs on shapes alone and counts every message that it would send, to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.secrets import SEED_BYTES
from veilgraph.core.types import PartyId
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.mpc.bits import words_for
from veilgraph.mpc.sealed import borrow
from veilgraph.mpc.sealed.drawing import STRIDE_BYTES, Form, size_of
from veilgraph.mpc.sealed.machine import DTYPES, Bilinear, HiddenGraph, Machine, Ring, portions
from veilgraph.mpc.sealed.opening import Opening
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire, distinct

_SHAPES: Final = {32: torch.float32, 64: torch.float64}
"""Numbers without content have to be floating; those of a ring of n bits take n bits."""


@dataclass
class Cost:
    """Of a part of a program.

    Attributes:
        rounds: messages between holders that wait for the ones before.
        sent: party → bytes that it sends, headers included.
    """

    rounds: int = 0
    sent: Counter[PartyId] = field(default_factory=Counter)


@dataclass(frozen=True)
class CountedGraph(HiddenGraph):
    """Sizes of hidden edges."""

    owner: PartyId
    nodes: int
    slots: int
    weight_bits: int


class CountingMachine(Machine):
    """Counts.

    Args:
        holders: in the job's order.
        dealer: the dealer's name.

    Attributes:
        costs: place in the program → its cost.
        widest: entries of the largest tensor that is opened.
        dealt: holder → messages that the dealer sends it.
    """

    def __init__(self, holders: Sequence[PartyId], dealer: PartyId) -> None:
        super().__init__(holders, dealer)
        self.costs: dict[str, Cost] = {}
        self.widest = 0
        self.dealt = Counter(dict.fromkeys(holders, 1))
        self._dealt_bytes: Counter[PartyId] = Counter()
        self.at("")
        for _ in holders:
            self._sent(dealer, SEED_BYTES)

    @override
    def at(self, place: str) -> None:
        self._here = self.costs.setdefault(place, Cost())

    @override
    def share(self, wire: Wire) -> Tensor:
        return wire.mask

    @override
    def put(self, owner: PartyId, values: Tensor | None, shape: Sequence[int], bits: int) -> Wire:
        self._broadcast([owner], 8 * prod(shape))
        return _wire(shape, bits, owner=owner)

    @override
    def constant(self, values: Tensor, bits: int = 0) -> Wire:
        return _wire(values.shape, bits)

    @override
    def summands(
        self, values: Tensor | None, shape: Sequence[int], bits: int, *, of: PartyId | None = None
    ) -> Summands:
        return Summands(_nothing(shape), bits)

    @override
    def split(self, wire: Wire) -> Summands:
        return Summands(wire.mask, wire.bits)

    @override
    def product(self, function: Bilinear, left: Wire, right: Wire) -> Summands:
        return Summands(function(left.mask, right.mask), left.bits + right.bits)

    @override
    def triple(self, left: Wire, middle: Wire, right: Wire) -> Summands:
        self._correct([(left.shape, torch.int64)] * len(distinct((left, middle, right))[1]))
        return Summands(left.mask, left.bits + middle.bits + right.bits)

    @override
    def open(self, summands: Summands, shift: int = 0, ring: Ring = 64, *, bits: int | None = None) -> Wire:
        shape, width = summands.shape, 8 * summands.part.element_size()
        if shift == 0 and ring == 32:
            width = 32
        self.widest = max(self.widest, prod(shape))
        opening = Opening(shape, width, shift, ring, len(self.holders))
        if not opening.by_bits:
            self._broadcast(self.holders, prod(shape) * width // 8)
        elif opening.wraps:
            self._broadcast(self.holders, size_of([opening.plane]))
        if opening.by_bits or opening.wraps:
            self._broadcast(self.holders, prod(shape) * ring // 8)
        self._correct(opening.dealt)
        return _wire(shape, summands.bits - shift if bits is None else bits, ring)

    @override
    def noised(self, summands: Summands, deviation: float) -> Summands:
        return summands

    @override
    def negative(self, wire: Wire) -> Bit:
        words = words_for(prod(wire.shape))
        plan = borrow.levels(wire.ring)
        dealt, own = borrow.forms(plan, words, wire.shape)
        self._correct(dealt)
        for form in own:
            self._broadcast(self.holders, size_of([form]))
        return Bit(None, wire.mask)

    @override
    def value(self, bit: Bit) -> Summands:
        return Summands(bit.mask, 0)

    @override
    def gate(self, bit: Bit, wire: Wire) -> Summands:
        self._correct([(wire.shape, torch.int64)])
        return Summands(wire.mask, wire.bits)

    @override
    def hidden_graph(
        self,
        owner: PartyId,
        edges: Tensor | None,
        nodes: int,
        padded: int,
        weights: Tensor | None = None,
        weight_bits: int = 0,
    ) -> CountedGraph:
        slots = nodes + padded
        self._broadcast([owner], 8 * (2 * slots + nodes + (slots if weight_bits else 0)))
        return CountedGraph(owner, nodes, slots, weight_bits)

    @override
    def hop(self, graphs: Sequence[HiddenGraph], wire: Wire) -> Summands:
        nodes, columns = wire.shape
        waits = len({graph.owner for graph in graphs}) > 1  # an owner for others' portions before it sends its own
        for place, portion in enumerate(portions(graphs, columns)):
            self._here.rounds += waits or not place
            for graph, part in portion:
                rows: Form = ((graph.slots, len(range(*part.indices(columns)))), DTYPES[wire.ring])
                self._deal(graph.owner, [rows, rows])
                for holder in self.holders:
                    if holder != graph.owner:
                        self._sent(holder, (2 if graph.weight_bits else 1) * wire.ring // 8 * prod(rows[0]))
        return Summands(_nothing((nodes, columns), wire.ring), wire.bits + graphs[0].weight_bits)

    @override
    def pick(self, owner: PartyId, rows: Tensor | None, count: int, wire: Wire) -> Summands:
        self._broadcast([owner], 8 * count)
        self._deal(owner, [(wire.shape, torch.int32 if wire.ring == 32 else torch.int64)])
        return Summands(_nothing((count, *wire.shape[1:]), wire.ring), wire.bits)

    @override
    def reveal(self, wire: Wire, to: PartyId) -> None:
        self._here.rounds += 1
        for holder in self.holders:
            if holder != to:
                self._sent(holder, prod(wire.shape) * wire.ring // 8)

    def _sent(self, sender: PartyId, size: int) -> None:
        self._here.sent[sender] += HEADER_BYTES + size

    def _broadcast(self, senders: Iterable[PartyId], size: int) -> None:
        self._here.rounds += 1
        for sender in senders:
            for _ in self.holders[1:]:
                self._sent(sender, size)

    def _correct(self, forms: Sequence[Form]) -> None:
        self._deal(self.holders[-1], forms)

    def _deal(self, holder: PartyId, forms: Sequence[Form]) -> None:
        size, before = size_of(forms), self._dealt_bytes[holder] // STRIDE_BYTES
        self.dealt[holder] += 1
        self._dealt_bytes[holder] += size
        self._sent(self.party, size)
        for _ in range(before, self._dealt_bytes[holder] // STRIDE_BYTES):
            self._sent(holder, 1)


def _nothing(shape: Sequence[int], ring: int = 64) -> Tensor:
    return torch.empty(tuple(shape), dtype=_SHAPES[ring], device="meta")


def _wire(shape: Sequence[int], bits: int, ring: int = 64, owner: PartyId | None = None) -> Wire:
    return Wire(None, _nothing(shape, ring), bits, owner)
