"""A holder's machine: Λ that it shares with the other holders, its shares of λ, and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.secrets import SEED_BYTES
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.collectives import broadcast, exchange, gather, receive_as
from veilgraph.mpc import bits as planes
from veilgraph.mpc.ring import encode
from veilgraph.mpc.sealed import borrow, placement
from veilgraph.mpc.sealed.drawing import Form, Pace, Stream, ready, size_of, unpacked
from veilgraph.mpc.sealed.machine import Bilinear, HiddenGraph, Machine, Ring, portions
from veilgraph.mpc.sealed.opening import Opening
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire, distinct, paired

_SCALE = "lower sealed.bits, or scale the columns of the tables"


@dataclass(frozen=True)
class HeldGraph(HiddenGraph):
    """What a holder has of hidden edges.

    Attributes:
        spread, turn, pick: the steps relative to random permutations, which all holders know.
        masked_weights: E [n, 1] of ``placement``, which all holders know.
        own: the owner's own steps, edges and the random turn that it shares with the dealer.
    """

    owner: PartyId
    nodes: int
    slots: int
    weight_bits: int
    spread: Tensor
    turn: Tensor
    pick: Tensor
    masked_weights: Tensor | None = None
    own: OwnEdges | None = None


@dataclass(frozen=True)
class OwnEdges:
    """What the owner alone has."""

    steps: placement.Steps
    random_turn: Tensor
    adjacency: sp.csr_array
    weights: Tensor | None
    """Of slots in the order of their targets: [n, 1]."""


class HolderMachine(Machine):
    """One holder's.

    Args:
        link: of the holder.
        holders: all of them, in the job's order.
        dealer: who deals.
    """

    def __init__(self, link: Link, holders: Sequence[PartyId], dealer: PartyId = SERVER) -> None:
        super().__init__(holders, link.party)
        self._link, self._dealer = link, dealer
        self._others = [holder for holder in holders if holder != link.party]
        self._leads, self._last = link.party == self.holders[0], link.party == self.holders[-1]
        seed = receive_as(link, dealer, Tag(Kind.SEED), (SEED_BYTES,), torch.uint8)
        self._stream = Stream(seed.numpy().tobytes())
        self._operation, self._pace = -1, Pace()

    @override
    def share(self, wire: Wire) -> Tensor:
        return _known(wire.public) - wire.mask if self._leads else -wire.mask

    @override
    def put(self, owner: PartyId, values: Tensor | None, shape: Sequence[int], bits: int) -> Wire:
        tag, size = self._next(Kind.MASKED_WIRE), tuple(shape)
        if self.party != owner:
            public = receive_as(self._link, owner, tag, size, torch.int64)
            return Wire(public, torch.zeros((), dtype=torch.int64).expand(size), bits, owner)
        (mask,) = self._stream.draw([(size, torch.int64)])
        public = self._encoded(values, size, bits) + mask
        broadcast(self._link, self._others, tag, public)
        return Wire(public, mask, bits, owner)

    @override
    def constant(self, values: Tensor, bits: int = 0) -> Wire:
        return Wire(values, torch.zeros_like(values), bits)

    @override
    def summands(
        self, values: Tensor | None, shape: Sequence[int], bits: int, *, of: PartyId | None = None
    ) -> Summands:
        if values is None or of not in (None, self.party):
            return Summands(torch.zeros(tuple(shape), dtype=torch.int64), bits)
        return Summands(self._encoded(values, tuple(shape), bits), bits)

    @override
    def split(self, wire: Wire) -> Summands:
        public = _known(wire.public)
        return Summands(public if self._leads else torch.zeros_like(public), wire.bits)

    @override
    def product(self, function: Bilinear, left: Wire, right: Wire) -> Summands:
        bits, (a, b) = left.bits + right.bits, (_known(left.public), _known(right.public))
        leader = left.owner or right.owner or self.holders[0]
        if self.party == leader:
            if left.owner == leader:
                part = function(a - left.mask, b)
                return Summands(part if right.owner not in (None, leader) else part - function(a, right.mask), bits)
            return Summands(function(a, b - right.mask) - function(left.mask, b), bits)
        parts = [
            function(*factors)
            for factors, owner in (((a, right.mask), right.owner), ((left.mask, b), left.owner))
            if owner in (None, self.party)
        ]
        return Summands(-sum(parts[1:], start=parts[0]) if parts else function(left.mask, b), bits)

    @override
    def triple(self, left: Wire, middle: Wire, right: Wire) -> Summands:
        self._next(Kind.CORRELATION)
        factors, pairs = distinct((left, middle, right))
        shares, _ = self._randomness([(left.shape, torch.int64)] * len(pairs))
        dealt = dict(zip(pairs, shares, strict=True))
        a, b, c = (_known(wire.public) for wire in (left, middle, right))
        masks = left.mask, middle.mask, right.mask
        part = torch.zeros_like(a)
        if self._leads:
            part += a * b * c
        for known, hidden in ((b * c, 0), (a * c, 1), (a * b, 2)):
            part -= known * masks[hidden]
        for known, one, other in ((c, 0, 1), (b, 0, 2), (a, 1, 2)):
            part += known * dealt[paired(factors[one], factors[other])]
        return Summands(part, left.bits + middle.bits + right.bits)

    @override
    def open(self, summands: Summands, shift: int = 0, ring: Ring = 64, *, bits: int | None = None) -> Wire:
        part, result_bits = summands.part, summands.bits - shift if bits is None else bits
        if shift == 0 and ring == 32:
            part = part.to(torch.int32)
        opening = Opening(tuple(part.shape), 8 * part.element_size(), shift, ring, len(self.holders))
        tag = self._next(Kind.MASKED_WIRE)
        dealt, (*random, mask) = self._randomness(opening.dealt, opening.own)
        blinded = part + dealt[0] + (opening.offset if self._leads else 0)
        if opening.by_bits:
            share = self.cut_by_bits(opening, tag, blinded, dealt, random)
            return Wire(self._opened(tag, share.to(mask.dtype) + mask), mask, result_bits)
        opened = self._opened(tag, blinded)
        if not (opening.wraps or shift):
            return Wire(opened, mask, result_bits)
        whole = (opening.cut(opened) - (opening.offset >> shift)).to(mask.dtype)
        if not opening.wraps:
            return Wire(whole, mask, result_bits)
        wraps = (dealt[2].to(torch.int64) << (opening.width - shift)).to(mask.dtype)
        again = dealt[1] + torch.where(opened >= 0, wraps, 0)
        public = self._opened(Tag(tag.kind, tag.step, 1), again + whole if self._leads else again)
        return Wire(public, mask, result_bits)

    def cut_by_bits(
        self, opening: Opening, tag: Tag, summand: Tensor, dealt: Sequence[Tensor], random: Sequence[Tensor]
    ) -> Tensor:
        """One of two holders' summands of the value cut or lifted: int64."""
        share = opening.cut(summand)
        if self._leads:
            share = share - (opening.offset >> opening.shift)
        if not opening.wraps:
            return share
        sent = planes.to_plane(summand >= 0) ^ random[0]
        (received,) = exchange(self._link, self._others, Tag(Kind.MASKED_BITS, tag.step), sent).values()
        return share + opening.wrap_shares(sent, received, random[0], dealt[1], leads=self._leads)

    @override
    def noised(self, summands: Summands, deviation: float) -> Summands:
        return summands

    @override
    def negative(self, wire: Wire) -> Bit:
        shape, public = wire.shape, _known(wire.public)
        tag, plan = self._next(Kind.MASKED_BITS), borrow.levels(wire.ring)
        words = planes.words_for(public.numel())
        (*terms, sign_mask), masks = self._randomness(*borrow.forms(plan, words, shape))
        digits = planes.to_planes(public.reshape(-1))
        above, factors = digits[-1], borrow.grouped(borrow.first_factors(digits))
        for round_, (level, share, mask) in enumerate(zip(plan, terms, masks, strict=True)):
            joined = borrow.joined_shares(level, factors, share, leads=self._leads) ^ mask
            pieces = exchange(self._link, self._others, Tag(tag.kind, tag.step, round_), joined)
            opened = planes.xor([joined, *pieces.values()])
            factors = opened if level.last else borrow.next_factors(opened)
        sign = planes.from_plane(factors[0, 0] ^ above, public.numel())
        return Bit(sign.reshape(shape), sign_mask)

    @override
    def value(self, bit: Bit) -> Summands:
        flag = _known(bit.public)
        share = torch.where(flag, -bit.mask, bit.mask)
        return Summands(share + flag.to(torch.int64) if self._leads else share, 0)

    @override
    def gate(self, bit: Bit, wire: Wire) -> Summands:
        self._next(Kind.CORRELATION)
        (both,), _ = self._randomness([(wire.shape, torch.int64)])
        flag, public = _known(bit.public), _known(wire.public)
        signed = torch.where(flag, both - public * bit.mask, public * bit.mask - both)
        clear = public - wire.mask if self._leads else -wire.mask
        return Summands(signed + torch.where(flag, clear, 0), wire.bits)

    @override
    def hidden_graph(
        self,
        owner: PartyId,
        edges: Tensor | None,
        nodes: int,
        padded: int,
        weights: Tensor | None = None,
        weight_bits: int = 0,
    ) -> HeldGraph:
        tag, slots = self._next(Kind.PLACEMENT), nodes + padded
        lengths = [slots, slots, nodes, *([slots] if weight_bits else [])]
        if self.party != owner:
            relative = receive_as(self._link, owner, tag, (sum(lengths),), torch.int64)
            _check_places(relative[: 2 * slots + nodes], slots, owner)
            spread, turn, pick, *masked = torch.split(relative, lengths)
            return HeldGraph(
                owner, nodes, slots, weight_bits, spread, turn, pick, masked[0][:, None] if masked else None
            )
        if edges is None or edges.shape[1] > padded:
            count = 0 if edges is None else edges.shape[1]
            raise ConfigError(f"padded={padded}: {owner} has {count:,} edges; raise it", key="padded", value=padded)
        steps = placement.steps_of(edges, nodes, padded)
        spread, turn, pick = map(placement.shuffled, self._stream.draw(placement.orders(slots)))
        parts = (
            placement.before(steps.spread, spread),
            placement.after(steps.turn, turn),
            placement.before(steps.pick, pick),
        )
        counts, own_weights, masked_weights = np.ones(edges.shape[1], np.int32), None, None
        if weight_bits:
            whole = torch.full((edges.shape[1],), 1 << weight_bits)
            if weights is not None:
                whole = encode(weights, weight_bits, f"{owner}'s edge weights", _SCALE)
            counts, own_weights = whole.numpy(), placement.weights_of(steps, edges, whole, 1 << weight_bits)[:, None]
            (mask,) = self._stream.draw([((slots, 1), torch.int64)])
            masked_weights = placement.taken(own_weights, placement.inverse(turn)) - mask
        told = [*parts, *([] if masked_weights is None else [masked_weights[:, 0]])]
        broadcast(self._link, self._others, tag, torch.cat(told))
        adjacency = sp.csr_array((counts, (edges[1].numpy(), edges[0].numpy())), shape=(nodes, nodes))
        own = OwnEdges(steps, turn, adjacency, own_weights)
        return HeldGraph(owner, nodes, slots, weight_bits, *parts, masked_weights, own)

    @override
    def hop(self, graphs: Sequence[HiddenGraph], wire: Wire) -> Summands:
        public, weight_bits = _known(wire.public), graphs[0].weight_bits
        total = ((len(graphs) - 1) << weight_bits) * wire.mask
        if self._leads:
            total += public << weight_bits
        for graph in graphs:
            assert isinstance(graph, HeldGraph)
            if graph.own is not None:
                total += torch.from_numpy(graph.own.adjacency @ public.numpy())
        for portion in portions(graphs, wire.shape[1]):
            parts = [(self._next(Kind.MASKED_ROWS), *part) for part in portion]
            # What others wait for goes out before anything is waited for.
            for tag, graph, columns in sorted(parts, key=lambda part: part[1].owner == self.party):
                assert isinstance(graph, HeldGraph)
                form: Form = (graph.slots, len(range(*columns.indices(wire.shape[1])))), public.dtype
                total[:, columns] -= (self._own_hop if graph.own else self._other_hop)(graph, tag, form)
        return Summands(total, wire.bits + weight_bits)

    def _own_hop(self, graph: HeldGraph, tag: Tag, form: Form) -> Tensor:
        """The owner's share of (A + I)·λ."""
        assert graph.own is not None
        first, second = self._dealt([form] * 2, tag.step)
        weights, (size, dtype) = graph.own.weights, form
        shape = size if weights is None else (2, *size)
        received = gather(self._link, self._others, tag, shape, dtype)
        rows = placement.running(placement.taken(first, graph.spread))
        rows = placement.taken(rows, graph.own.steps.turn)
        for masked in received.values():
            rows += placement.taken(masked if weights is None else masked[0], graph.own.random_turn)
        if weights is not None:
            rows *= weights
            for masked in received.values():
                rows -= placement.taken(masked[1], graph.own.random_turn)
        picked = placement.taken(placement.running(rows), graph.own.steps.pick)
        return placement.differences(picked + placement.taken(second, graph.pick))

    def _other_hop(self, graph: HeldGraph, tag: Tag, form: Form) -> Tensor:
        """Another holder's share of it."""
        spread, mask, picked, *more = self._stream.draw([form] * (4 if graph.weight_bits else 3))
        rows = placement.running(placement.taken(spread, graph.spread))
        masked = placement.taken(rows, graph.turn) + mask
        if graph.masked_weights is not None:
            masked = torch.stack([masked, graph.masked_weights * mask + more[0]])
        self._link.send(graph.owner, tag, masked)
        return placement.differences(placement.taken(picked, graph.pick))

    @override
    def pick(self, owner: PartyId, rows: Tensor | None, count: int, wire: Wire) -> Summands:
        tag, dtype = self._next(Kind.PLACEMENT), wire.mask.dtype
        if self.party != owner:
            relative = receive_as(self._link, owner, tag, (count,), torch.int64)
            _check_places(relative, wire.shape[0], owner)
            return Summands(-placement.taken(self._stream.draw([(wire.shape, dtype)])[0], relative), wire.bits)
        if rows is None:
            raise ConfigError(f"{owner} chooses rows and gives none: give {count}")
        if tuple(rows.shape) != (count,) or len(set(rows.tolist())) < count:
            raise ConfigError(
                f"{owner} chooses rows {list(rows.shape)}: give {count} different ones, as all know", key="rows"
            )
        random = placement.shuffled(self._stream.draw([((wire.shape[0],), torch.int64)])[0])
        relative = placement.before(rows, random)
        broadcast(self._link, self._others, tag, relative)
        (dealt,) = self._dealt([(wire.shape, dtype)])
        picked = placement.taken(_known(wire.public), rows) - placement.taken(dealt, relative)
        return Summands(picked, wire.bits)

    @override
    def reveal(self, wire: Wire, to: PartyId) -> Tensor | None:
        tag = self._next(Kind.MASK_SHARE)
        if self.party != to:
            self._link.send(to, tag, wire.mask.contiguous())
            return None
        shares = gather(self._link, self._others, tag, wire.shape, wire.mask.dtype)
        value = _known(wire.public) - wire.mask - sum(shares.values())
        return value.to(torch.float64) * 2.0**-wire.bits

    def _next(self, kind: Kind) -> Tag:
        self._operation += 1
        return Tag(kind, self._operation)

    def _encoded(self, values: Tensor | None, shape: tuple[int, ...], bits: int) -> Tensor:
        if values is None or tuple(values.shape) != shape:
            found = None if values is None else list(values.shape)
            raise ConfigError(f"{self.party} puts in {found}, and {list(shape)} is what all know")
        if not values.is_floating_point():
            return values.to(torch.int64) << bits
        return encode(values, bits, f"{self.party}'s input", _SCALE)

    def _opened(self, tag: Tag, part: Tensor) -> Tensor:
        return sum(exchange(self._link, self._others, tag, part).values(), start=part)

    def _randomness(self, dealt: Sequence[Form], own: Sequence[Form] = ()) -> tuple[list[Tensor], list[Tensor]]:
        """This holder's shares of what is dealt in an operation, and masks: all but the last draw their shares."""
        if self._last:
            return self._dealt(dealt), self._stream.draw(own)
        drawn = self._stream.draw([*dealt, *own])
        return drawn[: len(dealt)], drawn[len(dealt) :]

    def _dealt(self, forms: Sequence[Form], operation: int | None = None) -> list[Tensor]:
        size = size_of(forms)
        tag = Tag(Kind.CORRELATION, self._operation if operation is None else operation)
        parts = unpacked(receive_as(self._link, self._dealer, tag, (size,), torch.uint8), forms)
        for stride in self._pace.count(size):
            self._link.send(self._dealer, ready(stride), torch.ones(1, dtype=torch.uint8))
        return parts


def _check_places(places: Tensor, below: int, sender: PartyId) -> None:
    """Refuses places that are not there.

    Raises:
        ProtocolError: one is negative, or too large.
    """
    if places.numel() and not (int(places.min()) >= 0 and int(places.max()) < below):
        raise ProtocolError(f"{sender} sent places outside of the {below} that there are; ask what it runs")


def _known(public: Tensor | None) -> Tensor:
    if public is None:
        raise TypeError("a wire of another machine: its Λ is not known here")
    return public
