"""The dealer's machine: it knows every mask and no message between holders, and sends what holders cannot draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.collectives import receive_as
from veilgraph.mpc import bits as planes
from veilgraph.mpc.sealed import borrow, placement
from veilgraph.mpc.sealed.drawing import Form, Pace, Stream, packed, ready
from veilgraph.mpc.sealed.machine import Bilinear, HiddenGraph, Machine, Ring, portions
from veilgraph.mpc.sealed.noise import rounded_gaussian
from veilgraph.mpc.sealed.opening import Opening
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire, distinct

_ONES_32 = 0xFFFF_FFFF


@dataclass(frozen=True)
class DealtGraph(HiddenGraph):
    """The random permutations that the dealer has in common with the owner."""

    owner: PartyId
    nodes: int
    slots: int
    weight_bits: int
    spread: Tensor
    turn: Tensor
    pick: Tensor
    weight_mask: Tensor | None


class DealerMachine(Machine):
    """The dealer's. All that it draws is of one session, and nothing of it is saved.

    Args:
        link: of the dealer.
        holders: in the job's order.
        secrets: source of the seeds and of noise.
    """

    def __init__(self, link: Link, holders: Sequence[PartyId], secrets: SecretSource) -> None:
        super().__init__(holders, link.party)
        seeds = {holder: secrets(SEED_BYTES) for holder in holders}
        self._link, self._streams = link, {holder: Stream(seed) for holder, seed in seeds.items()}
        self._own, self._secrets = Stream(secrets(SEED_BYTES)), secrets
        self._paces = {holder: Pace() for holder in holders}
        self._operation = -1
        for holder, seed in seeds.items():
            link.send(holder, Tag(Kind.SEED), torch.frombuffer(bytearray(seed), dtype=torch.uint8))

    @override
    def share(self, wire: Wire) -> Tensor:
        return torch.zeros_like(wire.mask)

    @override
    def put(self, owner: PartyId, values: Tensor | None, shape: Sequence[int], bits: int) -> Wire:
        self._next()
        return Wire(None, self._streams[owner].draw([(tuple(shape), torch.int64)])[0], bits, owner)

    @override
    def constant(self, values: Tensor, bits: int = 0) -> Wire:
        return Wire(None, torch.zeros_like(values), bits)

    @override
    def summands(
        self, values: Tensor | None, shape: Sequence[int], bits: int, *, of: PartyId | None = None
    ) -> Summands:
        return Summands(torch.zeros(tuple(shape), dtype=torch.int64), bits)

    @override
    def split(self, wire: Wire) -> Summands:
        return Summands(-wire.mask, wire.bits)

    @override
    def product(self, function: Bilinear, left: Wire, right: Wire) -> Summands:
        part = function(left.mask, right.mask)
        return Summands(part, left.bits + right.bits)

    @override
    def triple(self, left: Wire, middle: Wire, right: Wire) -> Summands:
        self._next()
        wires = left, middle, right
        pairs = [wires[one].mask * wires[other].mask for one, other in distinct(wires)[1]]
        self._correct(pairs, self._drawn([(left.shape, torch.int64)] * len(pairs)))
        return Summands(-(left.mask * middle.mask * right.mask), left.bits + middle.bits + right.bits)

    @override
    def open(self, summands: Summands, shift: int = 0, ring: Ring = 64, *, bits: int | None = None) -> Wire:
        part, result_bits = summands.part, summands.bits - shift if bits is None else bits
        if shift == 0 and ring == 32:
            part = part.to(torch.int32)
        opening = Opening(tuple(part.shape), 8 * part.element_size(), shift, ring, len(self.holders))
        self._next()
        drawn = self._drawn(opening.dealt, opening.own)
        mask = _sum(own[-1] for _, own in drawn.values())
        if opening.by_bits:
            secrets = [part]
            if opening.wraps:
                first, second = (opening.bits_of(own[0]) for _, own in drawn.values())
                secrets.append((first * second).to(opening.dealt[1][1]))
        elif opening.wraps:
            (random,) = self._own.draw(opening.dealt[:1])
            wrap = (random < 0).to(opening.dealt[2][1])
            secrets = [part + random, mask - opening.cut(random).to(mask.dtype), wrap]
        else:
            secrets = [part + (self._above(mask, shift) if shift else mask)]
        self._correct(secrets, drawn)
        return Wire(None, mask, result_bits)

    def _above(self, mask: Tensor, shift: int) -> Tensor:
        """A uniform number whose bits from ``shift`` on are those of a mask of Z_2^32: int64."""
        (random,) = self._own.draw([(tuple(mask.shape), torch.int64)])
        random = random & ~(_ONES_32 << shift if shift < 32 else -(1 << 32))
        return random | ((mask.to(torch.int64) & _ONES_32) << shift)

    @override
    def noised(self, summands: Summands, deviation: float) -> Summands:
        if not deviation:
            return summands
        noise = rounded_gaussian(summands.shape, deviation, summands.bits, self._secrets)
        return Summands(summands.part + noise.to(summands.part.dtype), summands.bits)

    @override
    def negative(self, wire: Wire) -> Bit:
        shape, plan = wire.shape, borrow.levels(wire.ring)
        self._next()
        digits = planes.to_planes(wire.mask.reshape(-1))
        above, words = digits[-1], digits.shape[-1]
        drawn = self._drawn(*borrow.forms(plan, words, shape))
        secret, terms = borrow.grouped(borrow.secret_digits(digits)), []
        for round_, level in enumerate(plan):
            terms.append(borrow.dealt_terms(level, secret))
            opened = planes.xor(own[round_] for _, own in drawn.values())
            secret = opened if level.last else borrow.next_factors(opened)
        sign = planes.from_plane(secret[0, 0] ^ above, wire.mask.numel()).to(torch.int64).reshape(shape)
        self._correct([*terms, sign], drawn, bitwise=len(terms))
        return Bit(None, sign)

    @override
    def value(self, bit: Bit) -> Summands:
        return Summands(torch.zeros_like(bit.mask), 0)

    @override
    def gate(self, bit: Bit, wire: Wire) -> Summands:
        self._next()
        both = wire.mask * bit.mask
        self._correct([both], self._drawn([(wire.shape, torch.int64)]))
        return Summands(torch.zeros_like(wire.mask), wire.bits)

    @override
    def hidden_graph(
        self,
        owner: PartyId,
        edges: Tensor | None,
        nodes: int,
        padded: int,
        weights: Tensor | None = None,
        weight_bits: int = 0,
    ) -> DealtGraph:
        self._next()
        slots = nodes + padded
        spread, turn, pick = map(placement.shuffled, self._streams[owner].draw(placement.orders(slots)))
        mask = self._streams[owner].draw([((slots, 1), torch.int64)])[0] if weight_bits else None
        return DealtGraph(owner, nodes, slots, weight_bits, spread, turn, pick, mask)

    @override
    def hop(self, graphs: Sequence[HiddenGraph], wire: Wire) -> Summands:
        for portion in portions(graphs, wire.shape[1]):
            for graph, columns in portion:
                assert isinstance(graph, DealtGraph)
                self._deal_hop(graph, wire.mask[:, columns])
        return Summands(torch.zeros_like(wire.mask), wire.bits + graphs[0].weight_bits)

    def _deal_hop(self, graph: DealtGraph, mask: Tensor) -> None:
        self._next()
        size = (graph.slots, mask.shape[1])
        forms: list[Form] = [(size, mask.dtype)] * (4 if graph.weight_bits else 3)
        drawn = [self._streams[holder].draw(forms) for holder in self._others(graph.owner)]
        spread_shares, turned, pick_shares, *more = (_sum(parts) for parts in zip(*drawn, strict=True))
        if graph.weight_mask is not None:
            turned = graph.weight_mask * turned - more[0]
        steps = torch.zeros(size, dtype=mask.dtype)
        steps[: graph.nodes] = placement.differences(mask)
        picked = -placement.running(placement.taken(turned, graph.turn))
        first = placement.taken(steps, graph.spread) - spread_shares
        second = placement.taken(picked, graph.pick) - pick_shares
        self._deal(graph.owner, [first, second])

    @override
    def pick(self, owner: PartyId, rows: Tensor | None, count: int, wire: Wire) -> Summands:
        self._next()
        random = placement.shuffled(self._streams[owner].draw([((wire.shape[0],), torch.int64)])[0])
        form = [(wire.shape, wire.mask.dtype)]
        others = _sum(self._streams[holder].draw(form)[0] for holder in self._others(owner))
        self._deal(owner, [placement.taken(wire.mask, random) - others])
        return Summands(torch.zeros((count, *wire.shape[1:]), dtype=wire.mask.dtype), wire.bits)

    @override
    def reveal(self, wire: Wire, to: PartyId) -> None:
        self._next()

    def _next(self) -> None:
        self._operation += 1

    def _others(self, owner: PartyId) -> list[PartyId]:
        return [holder for holder in self.holders if holder != owner]

    def _drawn(
        self, dealt: Sequence[Form], own: Sequence[Form] = ()
    ) -> dict[PartyId, tuple[list[Tensor], list[Tensor]]]:
        """Holder → what it draws in an operation: its shares of what is dealt, but the last, and masks."""
        found = {}
        for holder, stream in self._streams.items():
            shares = [] if holder == self.holders[-1] else dealt
            drawn = stream.draw([*shares, *own])
            found[holder] = drawn[: len(shares)], drawn[len(shares) :]
        return found

    def _correct(
        self,
        secrets: list[Tensor],
        drawn: Mapping[PartyId, tuple[list[Tensor], list[Tensor]]],
        *,
        bitwise: int = 0,
    ) -> None:
        """Gives the last holder its shares of what all have shares of: those of the others are drawn.

        Args:
            secrets: each a tensor.
            drawn: in this operation.
            bitwise: how many of the first are shared by XOR.
        """
        *before, last = self.holders
        corrections = []
        for place, secret in enumerate(secrets):
            share = secret
            for holder in before:
                other = drawn[holder][0][place]
                share = share ^ other if place < bitwise else share - other
            corrections.append(share)
        self._deal(last, corrections)

    def _deal(self, holder: PartyId, parts: list[Tensor]) -> None:
        message, pace = packed(parts), self._paces[holder]
        for stride in pace.due():
            receive_as(self._link, holder, ready(stride), (1,), torch.uint8)
        pace.count(message.numel())
        self._link.send(holder, Tag(Kind.CORRELATION, self._operation), message)


def _sum(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, parts)
