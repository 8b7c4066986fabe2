"""What a program computes with: every party runs the same program, each on a machine of its own.

A program (``functions``, or a network) calls the operations below in an order that depends on public sizes alone. Each
machine runs its part of them: a holder's on Λ and shares of λ, the dealer's on λ, the twin's on the numbers themselves,
and the counter's on nothing but shapes. Where a holder deals, the others compute: they have Λ, and it has not.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.core.types import Kind, PartyId
from veilgraph.link.collectives import broadcast, gather, receive_as
from veilgraph.mpc.sealed.comparison import Negative, levels_for
from veilgraph.mpc.sealed.correlations import (
    Dealer,
    Holder,
    LinkedDealer,
    Operation,
    Result,
    Step,
    encoded,
    size_of,
    sum_parts,
)
from veilgraph.mpc.sealed.hidden_graph import HiddenGraph
from veilgraph.mpc.sealed.hops import Hide, Hop
from veilgraph.mpc.sealed.kept_bytes import Form
from veilgraph.mpc.sealed.opening import Open
from veilgraph.mpc.sealed.picks import Pick
from veilgraph.mpc.sealed.sines import RAISED_BITS, SUM_BITS, kept_of, odd_multiples, share_of_sum
from veilgraph.mpc.sealed.wire import (
    Bilinear,
    Bit,
    Ring,
    Summands,
    Wire,
    joined,
    plain_wire,
    row_slices,
    to_float64,
)
from veilgraph.privacy.geometric import two_sided

Value = TypeVar("Value")
Other = TypeVar("Other")

_LEAST_COMPUTING: Final = 2  # beside a holder that deals
FEW_COMPARED: Final = 1 << 13
"""Entries up to which a round takes longer than what it saves: two rounds deal a quarter more, and compute more."""
COMPARED_AT_ONCE: Final = 1 << 20  # entries: for each, holders have more than 60 bytes in hand


class Machine(ABC):
    """One party's machine, which runs its part of a program.

    Attributes:
        holders: those with data, in the job's order.
        party: which it is.
        dealer: who deals, one of the holders or a party without data.
        computing: the holders that do not deal.
        noise: source of the noise that this party adds for all; None at those that add none.
    """

    noise: SecretSource | None = None

    def __init__(self, holders: Sequence[PartyId], party: PartyId, dealer: PartyId) -> None:
        self.holders, self.party, self.dealer = tuple(holders), party, dealer
        self.computing = tuple(holder for holder in holders if holder != dealer)
        if dealer in holders and len(self.computing) < _LEAST_COMPUTING:
            raise ValueError(f"dealer={dealer!r} is one of {len(self.holders)} holders: it takes two others or more")

    def at(self, place: str) -> None:  # noqa: B027 - only what counts or reports needs it
        """Name the part of the program that begins; nothing that is computed depends on it."""

    @abstractmethod
    def run(self, operation: Operation[Result]) -> Result:
        """Run this party's part of an operation, and return its result."""

    def share(self, wire: Wire) -> Tensor:
        """Return this party's additive share of a wire, in its ring, to be saved: all holders' add up to it."""
        return self.run(
            Step(
                hold=lambda holder: wire.known - wire.mask if holder.leads else -wire.mask,
                deal=lambda _: torch.zeros_like(wire.mask),
                plain=lambda: to_float64(wire.known * 2.0**wire.bits).round().to(torch.int64),
            )
        )

    def put(self, owner: PartyId, values: Tensor | None, shape: Sequence[int], bits: int) -> Wire:
        """Input the owner's floating or whole numbers, None at others, as a wire of Z_2^64 with ``bits``. One round."""
        size = tuple(shape)
        forms: list[Form] = [(size, torch.int64)]

        def hold(holder: Holder) -> Wire:
            tag = holder.next(Kind.MASKED_WIRE)
            if owner == holder.dealer:  # a wire of all others' masks, which it knows, is nobody's
                (mask,) = holder.drawn(forms)
                return Wire(holder.told(tag, size), mask, bits)
            if holder.party != owner:
                holder.turn()
                public = receive_as(holder.link, owner, tag, size, torch.int64)
                return Wire(public, torch.zeros((), dtype=torch.int64).expand(size), bits, owner)
            (mask,) = holder.drawn(forms)
            public = encoded(owner, values, size, bits) + mask
            broadcast(holder.link, holder.others, tag, public)
            holder.turn()
            return Wire(public, mask, bits, owner)

        def deal(dealer: Dealer) -> Wire:
            dealer.next()
            if owner != dealer.party:
                return Wire(None, dealer.draw(owner, forms)[0], bits, owner)
            mask = sum_parts(dealer.draw(holder, forms)[0] for holder in dealer.holders)
            public = dealer.own(lambda _: encoded(owner, values, size, bits) + mask)
            dealer.tell(Kind.MASKED_WIRE, dealer.holders, size, public)
            return Wire(None, mask, bits)

        messages = [] if owner == self.dealer else [[((owner,), self.computing, size_of(forms))]]
        return self.run(Step(hold, deal, lambda: plain_wire(to_float64(values), bits), messages))

    def constant(self, values: Tensor, bits: int = 0) -> Wire:
        """Make public whole numbers, int64 in units of 2^−bits, a wire of Z_2^64. No message."""
        return self.run(
            Step(
                hold=lambda _: Wire(values, torch.zeros_like(values), bits),
                deal=lambda dealer: Wire(None, dealer.zeros(values.shape), bits),
                plain=lambda: plain_wire(to_float64(values) * 2.0**-bits, bits),
            )
        )

    def summands(
        self, values: Tensor | None, shape: Sequence[int], bits: int, *, of: PartyId | None = None
    ) -> Summands:
        """Input each holder's ``values`` (None: zeros), or those ``of`` one, as summands of their sum. No message."""
        size = tuple(shape)

        def own(party: PartyId) -> Tensor:
            if values is None or of not in (None, party):
                return torch.zeros(size, dtype=torch.int64)
            return encoded(party, values, size, bits)

        def deal(dealer: Dealer) -> Summands:
            part = dealer.own(lambda _: own(dealer.party))
            return Summands(dealer.zeros(size) if part is None else part, bits)

        return self.run(
            Step(
                hold=lambda holder: Summands(own(holder.party), bits),
                deal=deal,
                plain=lambda: Summands(to_float64(torch.zeros(size) if values is None else values), bits),
            )
        )

    def split(self, wire: Wire) -> Summands:
        """Turn a wire into summands: Λ at the holder that leads, −λ at the dealer. No message."""
        return self.run(
            Step(
                hold=lambda holder: Summands(wire.known if holder.leads else torch.zeros_like(wire.known), wire.bits),
                deal=lambda _: Summands(-wire.mask, wire.bits),
                plain=lambda: Summands(wire.known, wire.bits),
            )
        )

    def product(self, function: Bilinear, left: Wire, right: Wire) -> Summands:
        """Return f of two wires of Z_2^64, for a bilinear function f, as summands. No message.

        f(l, r) = f(Λ_l, Λ_r − λ_r) − f(λ_l, Λ_r) + f(λ_l, λ_r), of which the last is the dealer's summand.
        """
        bits, owner = left.bits + right.bits, left.owner or right.owner

        def hold(holder: Holder) -> Summands:
            a, b = left.known, right.known
            # What all know is added by a factor's owner, which saves it a product, else by the holder that leads.
            if holder.leads if owner is None else holder.party == owner:
                if owner is None or left.owner != owner:
                    return Summands(function(a, b - right.mask) - function(left.mask, b), bits)
                part = function(a - left.mask, b)
                return Summands(part - function(a, right.mask) if right.owner in (None, owner) else part, bits)
            parts = [
                function(*factors)
                for factors, whose in (((a, right.mask), right.owner), ((left.mask, b), left.owner))
                if whose in (None, holder.party)
            ]
            return Summands(-sum_parts(parts) if parts else function(left.mask, b), bits)

        return self.run(
            Step(
                hold,
                deal=lambda _: Summands(function(left.mask, right.mask), bits),
                plain=lambda: Summands(function(left.known, right.known), bits),
            )
        )

    def triple(self, left: Wire, middle: Wire, right: Wire) -> Summands:
        """Return left·middle·right, of wires of Z_2^64 of one shape, entry by entry. No message but the dealer's.

        Holders get shares of the products of two masks; the product of three is the dealer's.
        """
        wires, bits = (left, middle, right), left.bits + middle.bits + right.bits
        places = [next(at for at, same in enumerate(wires) if same is wire) for wire in wires]
        twos = [tuple(sorted((places[one], places[other]))) for one, other in ((0, 1), (0, 2), (1, 2))]
        pairs = sorted(set(twos))
        forms: list[Form] = [(left.shape, torch.int64)] * len(pairs)

        def hold(holder: Holder) -> Summands:
            dealt, _ = holder.shared(holder.next(Kind.CORRELATION), forms)
            a, b, c = (wire.known for wire in wires)
            part = a * b * c if holder.leads else torch.zeros_like(a)
            for known, wire in zip((b * c, a * c, a * b), wires, strict=True):
                part -= known * wire.mask
            for known, two in zip((c, b, a), twos, strict=True):
                part += known * dealt[pairs.index(two)]
            return Summands(part, bits)

        def deal(dealer: Dealer) -> Summands:
            dealer.next()
            a, b, c = masks = [wire.mask for wire in wires]
            dealer.correct(forms, lambda: [masks[one] * masks[other] for one, other in pairs], dealer.draws(forms))
            return Summands(-(a * b * c), bits)

        return self.run(Step(hold, deal, lambda: Summands(left.known * middle.known * right.known, bits)))

    def sines(self, wire: Wire, period_bits: int, factors: Sequence[float]) -> Summands:
        """Return Σ_j b_j·sin((2j + 1)·2π·x / 2^p) of a wire x of Z_2^64. No message but the dealer's.

        p is ``period_bits``, b ``factors``, public, Σ |b_j| < 3; the result is exact to some 2^-20.
        """
        turn_bits, count = period_bits + wire.bits, len(factors)
        forms: list[Form] = [((2, *wire.shape), torch.int64)] * count
        kept = [*map(kept_of, factors)]

        def hold(holder: Holder) -> Summands:
            dealt, _ = holder.shared(holder.next(Kind.CORRELATION), forms, kept=kept)
            found = share_of_sum(factors, odd_multiples(wire.known, turn_bits, count), dealt)
            return Summands(found, SUM_BITS + RAISED_BITS)

        def deal(dealer: Dealer) -> Summands:
            dealer.next()
            draws = dealer.draws(forms)

            def raised() -> list[Tensor]:
                return [point << RAISED_BITS for point in odd_multiples(wire.mask, turn_bits, count)]

            dealer.correct(forms, raised, draws, kept=kept)
            return Summands(dealer.zeros(wire.shape), SUM_BITS + RAISED_BITS)

        def plain() -> Summands:
            turns = wire.known * (2 * math.pi * 2.0**-period_bits)
            sines = [factor * torch.sin((2 * place + 1) * turns) for place, factor in enumerate(factors)]
            return Summands(torch.stack(sines).sum(0), SUM_BITS + RAISED_BITS)

        return self.run(Step(hold, deal, plain))

    def open(self, summands: Summands, shift: int = 0, ring: Ring = 64, *, bits: int | None = None) -> Wire:
        """Open summands as a wire of ``ring``, ``shift`` bits cut off: the value is opened under a fresh mask.

        One round where they have ``ring + shift`` bits, else two: their sum may wrap around. They are of Z_2^n, below
        2^(n − GUARD) in magnitude where bits are cut off or the ring changes; the result is exact to one unit, of two
        holders to one and a half, and right on average. ``bits`` are the result's, by default theirs less ``shift``;
        others divide by a power of two as well. More than ``AT_ONCE`` entries are opened slice by slice, in as many
        times the rounds.
        """
        by_two, shape = len(self.computing) == 2, summands.shape
        slices = [slice(None)] if len(whole := row_slices(shape)) == 1 else whole
        opened = (self.run(Open(summands[rows], shift, ring, bits, by_two=by_two)) for rows in slices)
        return joined(opened, shape[0])

    def noised(self, summands: Summands, epsilon: float) -> Summands:
        """Add the dealer's two-sided geometric noise to whole numbers of Z_2^64; none where ε is infinite. No message.

        That sums wrap around in the ring costs no ε: it follows from the noisy sum.
        """
        if math.isinf(epsilon):
            return summands
        summands = replace(summands, of_holders=False)
        if self.noise is None:
            return summands
        if summands.bits:
            raise ValueError(f"bits={summands.bits}: noise is whole numbers, so bits must be 0; give whole numbers")
        return replace(summands, part=summands.part + two_sided(summands.shape, epsilon, self.noise))

    def negative(self, wire: Wire, whole_bits: int | None = None, fine_bits: int | None = None) -> Bit:
        """Whether each entry of a wire of Z_2^64 is below zero. Three rounds; of few with ``whole_bits`` n two.

        Every entry is then below 2^n in magnitude, or what is said of it is wrong; one between zero and −2^(n − 36)
        may count as not below zero. With ``whole_bits`` and fractional bits up to 36 together that is no entry.
        ``fine_bits``: how many bits below the point are enough, so that an entry between zero and −2^−fine_bits may
        count as not below zero. With ``whole_bits`` up to 25 together fewer are compared, in two rounds. Rounds are of
        ``COMPARED_AT_ONCE`` entries each.
        """
        levels = levels_for(whole_bits, fine_bits, few=prod(wire.shape) <= FEW_COMPARED)
        slices = row_slices(wire.shape, COMPARED_AT_ONCE)
        if len(slices) == 1:
            return self.run(Negative(wire, levels, whole_bits))
        bits = [self.run(Negative(wire[rows], levels, whole_bits)) for rows in slices]
        publics = [bit.public for bit in bits if bit.public is not None]
        return Bit(torch.cat(publics) if publics else None, torch.cat([bit.mask for bit in bits]))

    def abreast(self, parts: Sequence[Callable[[], Value]]) -> list[Value]:
        """Run parts of the program that do not wait for one another, in the rounds of the longest."""
        return [part() for part in parts]

    def both(self, one: Callable[[], Value], other: Callable[[], Other]) -> tuple[Value, Other]:
        """Run two parts ``abreast``."""
        found: list[Any] = self.abreast([one, other])
        return found[0], found[1]

    def value(self, bit: Bit) -> Summands:
        """Turn a bit into summands of 0 or 1: Λ + (1 − 2Λ)·λ. No message."""

        def hold(holder: Holder) -> Summands:
            share = torch.where(bit.known, -bit.mask, bit.mask)
            return Summands(share + bit.known.to(torch.int64) if holder.leads else share, 0, of_holders=True)

        return self.run(
            Step(
                hold,
                deal=lambda _: Summands(torch.zeros_like(bit.mask), 0, of_holders=True),
                plain=lambda: Summands(to_float64(bit.known), 0),
            )
        )

    def gate(self, bit: Bit, wire: Wire) -> Summands:
        """Return the wire where the bit is set, else 0. No message but the dealer's: shares of the product of masks."""
        forms: list[Form] = [(wire.shape, torch.int64)]

        def hold(holder: Holder) -> Summands:
            ((both,), _) = holder.shared(holder.next(Kind.CORRELATION), forms)
            signed = torch.where(bit.known, both - wire.known * bit.mask, wire.known * bit.mask - both)
            clear = wire.known - wire.mask if holder.leads else -wire.mask
            return Summands(signed + torch.where(bit.known, clear, 0), wire.bits, of_holders=True)

        def deal(dealer: Dealer) -> Summands:
            dealer.next()
            dealer.correct(forms, lambda: [wire.mask * bit.mask], dealer.draws(forms))
            return Summands(torch.zeros_like(wire.mask), wire.bits, of_holders=True)

        return self.run(Step(hold, deal, lambda: Summands(torch.where(bit.known, wire.known, 0.0), wire.bits)))

    def choose(self, bit: Bit, left: Wire, right: Wire) -> Summands:
        """Return ``left`` where the bit is set, ``right`` elsewhere, entry by entry. No message but the dealer's."""
        return self.gate(bit, left - right) + self.split(right)

    def hidden_graph(
        self,
        owner: PartyId,
        edges: Tensor | None,
        nodes: int,
        padded: int,
        weights: Tensor | None = None,
        weight_bits: int = 0,
    ) -> HiddenGraph:
        """Input directed edges of one holder, [2, E] sources and targets, None at others. One message to every other.

        ``padded`` ≥ E is the number that all are told, as are the bits of ``weights``, [E] floating; 0: there are none.
        """
        return self.run(Hide(owner, edges, nodes, padded, weights, weight_bits))

    def hop(self, graphs: Sequence[HiddenGraph], wire: Wire) -> Summands:
        """Sum over the sources of every target's edges, and add the node itself: Σ_i A_i·v + v.

        Duplicates count in each graph; all have weights of the same bits, or none. The wire is [N, d] of the ring that
        sums are made in, with weights Z_2^64; their bits are added to its own.
        """
        return self.run(Hop(graphs, wire))

    def pick(self, owner: PartyId, rows: Tensor | None, count: int, *wires: Wire) -> Summands:
        """Pick ``count`` different rows of wires [N, ·] side by side: ``owner`` chooses ``rows``, a secret.

        Columns of ``AT_ONCE`` entries are dealt together.
        """
        return self.run(Pick(owner, rows, count, wires))

    def reveal(self, wire: Wire, to: PartyId) -> Tensor | None:
        """Return a wire's numbers at one holder, float64; None at all others. One round."""

        def hold(holder: Holder) -> Tensor | None:
            tag = holder.next(Kind.MASK_SHARE)
            if to == holder.dealer:  # which knows the mask
                if holder.leads:
                    holder.link.send(to, tag, wire.known.contiguous())
                holder.turn()
                return None
            if holder.party != to:
                holder.link.send(to, tag, wire.mask.contiguous())
            holder.turn()
            if holder.party != to:
                return None
            shares = gather(holder.link, holder.others, tag, wire.shape, wire.mask.dtype)
            return to_float64(wire.known - wire.mask - sum_parts(shares.values())) * 2.0**-wire.bits

        def learned(dealer: LinkedDealer) -> Tensor:
            public = dealer.receive(dealer.holders[0], Kind.MASK_SHARE, (wire.shape, wire.mask.dtype))
            return to_float64(public - wire.mask) * 2.0**-wire.bits

        def deal(dealer: Dealer) -> Tensor | None:
            dealer.next()
            return dealer.own(learned) if to == dealer.party else None

        senders = self.computing[:1] if to == self.dealer else self.computing
        sent = senders, (to,), prod(wire.shape) * wire.ring // 8
        return self.run(Step[Tensor | None](hold, deal, lambda: wire.known, [[sent]]))


class PlainMachine(Machine):
    """The twin's machine: it runs a program on floating numbers in one place, nothing secret and nothing rounded."""

    def __init__(self, holders: Sequence[PartyId], noise: SecretSource = system_secrets) -> None:
        super().__init__(holders, "", "")
        self.noise = noise

    @override
    def run(self, operation: Operation[Result]) -> Result:
        return operation.plain()

    @override
    def choose(self, bit: Bit, left: Wire, right: Wire) -> Summands:
        """Select ``left`` or ``right`` entry by entry, for (l − r) + r may differ from l in floating point."""
        return Summands(torch.where(bit.known, left.known, right.known), left.bits)
