"""Openings, which cut or lift: docs/explanation/sealed.md has the formulas, and why they show nothing.

Two holders do it by one masked bit each: their summands wrap around exactly if a highest bit is set, and n₀·n₁ of
n_p = 1 − msb(x_p) is shared by Beaver's product with random bits b_p, whose product the dealer deals: holder p sends
e_p = n_p ⊕ b_p. What the second holder's share of the dealer's summand has below bit s, it draws itself; the dealer
rounds to nearest what is missing, and sends bytes that count in the result. So low bits of both shares are uniform: the
result is right on average, and off by less than one unit and a half.

Two holders whose dealer has no summand open theirs under their own masks, if nothing is cut: the dealer sends nothing
but shares of b₀·b₁ where they lift. Of more holders each would show its summand to who is told the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.types import NOBODY, Kind, PartyId, Tag
from veilgraph.mpc import bits as planes
from veilgraph.mpc.sealed.correlations import Dealer, Holder, LinkedDealer, Operation, Round, size_of, sum_parts
from veilgraph.mpc.sealed.kept_bytes import Form, Kept
from veilgraph.mpc.sealed.wire import DTYPES, Ring, Summands, Wire, plain_wire

GUARD: Final = 2
"""What is cut or lifted of Z_2^n is below 2^(n − GUARD) in magnitude, of two holders by half a unit of the result."""
_LEAST_ROUNDED: Final = 8
"""Bits cut off: of fewer nothing is rounded, for to nearest is too large by half of the ring's unit on average."""
_ONES_32: Final = 0xFFFF_FFFF
_SMALLEST: Final = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


class Open(Operation[Wire]):
    """``Machine.open`` as an operation; ``by_two``: two holders cut their own summands, and open nothing before."""

    def __init__(self, summands: Summands, shift: int, ring: Ring, bits: int | None, *, by_two: bool) -> None:
        self.summands, self.shift, self.ring, self.shape = summands, shift, ring, summands.shape
        self.result_bits = summands.bits - shift if bits is None else bits
        # N of the ring of the summands: without a cut there is no need for more of them than the result has.
        self.width = 32 if shift == 0 and ring == 32 else 8 * summands.part.element_size()
        self.wraps = ring + shift > self.width  # it counts in the result that the summands' sum wraps around
        self.by_bits = by_two and (self.wraps or shift > 0)  # two holders cut their own summands
        # What makes the value positive; with two holders what makes the cut right on average as well.
        self.offset = (1 << (self.width - GUARD)) - self.by_bits if self.wraps or shift else 0
        self.plane: Form = (planes.words_for(prod(self.shape)),), torch.int64
        # What holders get shares of, and what each draws: the mask of the result, before it perhaps the bits b_p.
        self.alone = by_two and summands.of_holders and shift == 0
        self.dealt: list[Form] = [] if self.alone else [(self.shape, DTYPES[self.width])]
        self.own: list[Form] = [(self.shape, DTYPES[ring])]
        if self.wraps:
            lost = ring - (self.width - shift)
            wrap: Form = self.shape, next(dtype for size, dtype in _SMALLEST.items() if lost <= size)
            self.dealt += [wrap] if self.by_bits else [*self.own, wrap]
            if self.by_bits:
                self.own.insert(0, self.plane)
        self.kept: list[Kept] = []
        if self.by_bits:
            # Bits above which nothing counts in the result, then bits of the product of both b_p that do.
            above, lost = min(self.width, ring + shift), ring + shift - self.width
            octets = -(-(above - shift * (shift >= _LEAST_ROUNDED)) // 8)
            self.kept = [(max(0, above - 8 * octets), octets), (0, -(-lost // 8))][self.alone : self.wraps + 1]
        self.low = self.kept[0][0] if self.kept else 0

    @property
    def _low_forms(self) -> list[Form]:
        return [(self.shape, DTYPES[32 if self.low <= 32 else 64])]

    def _low_bits(self, drawn: Sequence[Tensor]) -> Tensor:
        """Numbers below 2^low, of the summands' ring, from uniform ones."""
        return (drawn[0].to(torch.int64) & ((1 << self.low) - 1)).to(DTYPES[self.width])

    @property
    def _part(self) -> Tensor:
        return self.summands.part.to(DTYPES[self.width])

    @override
    def rounds(self, holders: Sequence[PartyId]) -> Sequence[Round]:
        entries = prod(self.shape)
        first = size_of([self.plane]) if self.by_bits else entries * self.width // 8
        result = entries * self.ring // 8
        sizes = [first, result] if self.wraps else [result if self.by_bits else first]
        return [[(holders, holders, size)] for size in sizes]

    @override
    def hold(self, holder: Holder) -> Wire:
        """Open this holder's summands under masks, cut or lift the value, and return it as a wire."""
        tag = holder.next(Kind.MASKED_WIRE)
        dealt, (*random, mask) = holder.shared(tag, self.dealt, self.own, self.kept)
        blinded = self._part + (mask if not self.by_bits else 0) if self.alone else self._part + dealt[0]
        blinded = blinded + (self.offset if holder.leads else 0)
        if self.low and holder.is_second:
            blinded += self._low_bits(holder.drawn(self._low_forms))
        if self.by_bits:
            share = self.cut_by_bits(holder, tag, blinded, dealt, random)
            return Wire(holder.opened(tag, share.to(mask.dtype) + mask), mask, self.result_bits)
        opened = holder.opened(tag, blinded)
        if not (self.wraps or self.shift):
            return Wire(opened, mask, self.result_bits)
        whole = (self.cut(opened) - (self.offset >> self.shift)).to(mask.dtype)
        if not self.wraps:
            return Wire(whole, mask, self.result_bits)
        wraps = (dealt[2].to(torch.int64) << (self.width - self.shift)).to(mask.dtype)
        again = dealt[1] + torch.where(opened >= 0, wraps, 0)
        public = holder.opened(Tag(tag.kind, tag.step, 1), again + whole if holder.leads else again)
        return Wire(public, mask, self.result_bits)

    def cut_by_bits(
        self, holder: Holder, tag: Tag, summand: Tensor, dealt: Sequence[Tensor], random: Sequence[Tensor]
    ) -> Tensor:
        """Return this holder's summand, int64, of the value cut or lifted: of two holders, by one masked bit."""
        share = self.cut(summand)
        if holder.leads:
            share = share - (self.offset >> self.shift)
        if not self.wraps:
            return share
        sent = planes.to_plane(summand >= 0) ^ random[0]
        (received,) = holder.exchange(Tag(Kind.MASKED_BITS, tag.step), sent).values()
        # A share of 2^(n−s)·(n₀·n₁ − 1), from e_p that both know, b_p, and a share of b₀·b₁.
        e, f, own = (self.bits_of(plane) for plane in (sent, received, random[0]))
        wraps = (1 - 2 * e) * (f * own + (1 - 2 * f) * dealt[-1].to(torch.int64))
        return share + ((wraps + e * f - 1 if holder.leads else wraps) << (self.width - self.shift))

    @override
    def deal(self, dealer: Dealer) -> Wire:
        """Deal shares of the masked summand and, where the sum may wrap around, of what makes up for that."""
        dealer.next()
        draws = dealer.draws(self.dealt, self.own)
        mask = sum_parts(own[-1] for _, own in draws.values())
        below = dealer.draw(dealer.holders[1], self._low_forms) if self.low else []

        def make() -> list[Tensor]:
            if self.by_bits:
                parts = [] if self.alone else [self._part - self._low_bits(below) if below else self._part]
                if self.wraps:
                    first, second = (self.bits_of(own[0]) for _, own in draws.values())
                    parts.append((first * second).to(self.dealt[-1][1]))
                return parts
            if self.wraps:
                (random,) = dealer.draw(NOBODY, self.dealt[:1])
                wrap = (random < 0).to(self.dealt[2][1])
                return [self._part + random, mask - self.cut(random).to(mask.dtype), wrap]
            if not self.shift:
                return [self._part + mask]
            # A uniform number whose bits from ``shift`` on are those of a mask of Z_2^32.
            (random,) = dealer.draw(NOBODY, [(self.shape, torch.int64)])
            random &= ~(_ONES_32 << self.shift if self.shift < 32 else -(1 << 32))
            return [self._part + (random | ((mask.to(torch.int64) & _ONES_32) << self.shift))]

        if self.alone:
            dealer.own(self._check_no_summand)
        if self.dealt:
            dealer.correct(self.dealt, make, draws, kept=self.kept)
        return Wire(None, mask, self.result_bits)

    def _check_no_summand(self, _: LinkedDealer) -> None:
        if bool(self.summands.part.any()):  # it would be left out, and a dealer's noise with it
            raise ValueError(
                "of_holders=True: the dealer has a summand, so it must be False; set it where that is added"
            )

    @override
    def plain(self) -> Wire:
        """Return the twin's wire of the value divided as the shift and the result's bits say."""
        values = self.summands.part * 2.0 ** (self.summands.bits - self.shift - self.result_bits)
        return plain_wire(values, self.result_bits, self.ring)

    def cut(self, values: Tensor) -> Tensor:
        """Shift values right by s as unsigned numbers of the summands' ring: int64."""
        wide = values.to(torch.int64)
        if self.width == 32:
            return (wide & _ONES_32) >> self.shift
        return (wide >> self.shift) & ((1 << (64 - self.shift)) - 1) if self.shift else wide

    def bits_of(self, plane: Tensor) -> Tensor:
        """Unpack a plane into zeros and ones, int64 of the value's shape."""
        return planes.from_plane(plane, prod(self.shape)).to(torch.int64).reshape(self.shape)
