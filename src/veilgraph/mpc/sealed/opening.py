"""How summands are opened, cut or lifted: what all parties know of it, and two holders' cut by one masked bit each.

x₀ + x₁ = v + 2^(n−2) − 1 in Z_2^n, |v| < 2^(n−2), wraps around exactly if a highest bit is set. With n_p = 1 − msb(x_p)
and ≫ on numbers without a sign

    ⌈v / 2^s⌉ = (x₀ ≫ s) + (x₁ ≫ s) − ((2^(n−2) − 1) ≫ s) − 2^(n−s)·(1 − n₀·n₁) + {0, 1}.

The last term is left out: x₀ is uniform, so the result is right on average and off by less than one unit. n₀·n₁ is
shared by Beaver's product with random bits b_p, whose product the dealer deals: holder p sends e_p = n_p ⊕ b_p.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veilgraph.mpc import bits as planes
from veilgraph.mpc.sealed.drawing import Form
from veilgraph.mpc.sealed.machine import DTYPES, GUARD, Ring

_DTYPES = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


@dataclass(frozen=True)
class Opening:
    """What all parties know of one opening.

    Attributes:
        shape: of what is opened.
        width: n of the ring that its summands are of.
        shift: s, bits cut off.
        ring: of the result.
        holders: how many.
    """

    shape: tuple[int, ...]
    width: int
    shift: int
    ring: Ring
    holders: int

    @property
    def wraps(self) -> bool:
        """Whether it counts in the result that the summands' sum wraps around."""
        return self.ring + self.shift > self.width

    @property
    def by_bits(self) -> bool:
        """Whether two holders cut their own summands, and open nothing before the result."""
        return self.holders == 2 and (self.wraps or self.shift > 0)

    @property
    def offset(self) -> int:
        """What makes the value positive; with two holders what makes the cut right on average as well."""
        if not (self.wraps or self.shift):
            return 0
        return (1 << (self.width - GUARD)) - self.by_bits

    @property
    def dealt(self) -> list[Form]:
        """What holders get shares of from the dealer."""
        forms: list[Form] = [(self.shape, DTYPES[self.width])]
        if self.wraps:
            bits = self.ring - (self.width - self.shift)
            wrap = next(dtype for size, dtype in _DTYPES.items() if bits <= size)
            forms += [(self.shape, wrap)] if self.by_bits else [(self.shape, DTYPES[self.ring]), (self.shape, wrap)]
        return forms

    @property
    def plane(self) -> Form:
        """Of one bit of every entry."""
        return (planes.words_for(torch.Size(self.shape).numel()),), torch.int64

    @property
    def own(self) -> list[Form]:
        """What each holder draws: the bits b_p where two holders need them, and the mask of the result."""
        bits = [self.plane] if self.by_bits and self.wraps else []
        return [*bits, (self.shape, DTYPES[self.ring])]

    def cut(self, values: Tensor) -> Tensor:
        """Values ≫ s, as numbers without a sign: int64."""
        wide = values.to(torch.int64)
        if self.width == 32:
            return (wide & 0xFFFF_FFFF) >> self.shift
        return (wide >> self.shift) & ((1 << (64 - self.shift)) - 1) if self.shift else wide

    def bits_of(self, plane: Tensor) -> Tensor:
        """A plane as zeros and ones: int64 of the shape."""
        return planes.from_plane(plane, torch.Size(self.shape).numel()).to(torch.int64).reshape(self.shape)

    def wrap_shares(self, sent: Tensor, received: Tensor, random: Tensor, both: Tensor, *, leads: bool) -> Tensor:
        """A holder's share of 2^(n−s)·(n₀·n₁ − 1).

        Args:
            sent: plane e_p.
            received: the other's.
            random: plane b_p.
            both: its share of b₀·b₁.
            leads: whether it is the one of the two that adds what both know.
        """
        e, f = self.bits_of(sent), self.bits_of(received)
        share = (1 - 2 * e) * (f * self.bits_of(random) + (1 - 2 * f) * both.to(torch.int64))
        return (share + e * f - 1 if leads else share) << (self.width - self.shift)
