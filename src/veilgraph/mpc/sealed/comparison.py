"""Comparisons: whether Λ − λ is below zero, from Λ that is public and bits of λ that are secret.

The sign of v = Λ − λ mod 2^n is msb(Λ) ⊕ msb(λ) ⊕ [Λ' < λ'], with the lower n − 1 bits Λ' and λ'. With

    p_k = 1 ⊕ Λ_k ⊕ λ_k   (bit k agrees)        g_k = (1 ⊕ Λ_k)·λ_k   (bit k decides for λ)

four neighbours, the highest first, join into p = p3·p2·p1·p0 and g = g3 ⊕ p3·g2 ⊕ p3·p2·g1 ⊕ p3·p2·p1·g0, and so on
up a tree: three levels for 64 bits. Every level is a sum of products of factors a ⊕ m with a public and m a secret bit
of a mask: expanded, it is linear in the products of m over sets of factors, which the dealer, who knows m, deals as
XOR shares. So a level costs one opening of p and g under masks, which are the m of the next level.

Bits are in planes: int64 words with one bit of 64 entries each (``mpc.bits``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.types import Kind, PartyId, Tag
from veilgraph.link.collectives import exchange
from veilgraph.mpc import bits as planes
from veilgraph.mpc.sealed.correlations import Dealer, Form, Holder, Operation, Round, size_of
from veilgraph.mpc.sealed.wire import Bit, Wire

Array: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

ARITY: Final = 4
_PARTS: Final = 1 << ARITY  # sets of the four p of a group, as bits of a number


@dataclass(frozen=True, eq=False)
class Level:
    """Groups of four neighbours become one: what p and g of each are sums of, products of factors a ⊕ m multiplied out.

    Sets of factors are of two numbers: a set of the four p, as bits, and 1 + k for g_k or 0 for none.

    Attributes:
        groups: how many.
        outputs: planes that are opened for each group: p and g, in the last level g alone.
        terms: sets of secret bits whose products are dealt: [terms, 2].
        known: for every summand the set of public factors before it: [summands, 2].
        places: for every summand the dealt product, or −1 for none: [summands].
        starts: where the summands of each output begin.
    """

    groups: int
    outputs: int
    terms: Array
    known: Array
    places: Array
    starts: Array


def _level(groups: int, *, first: bool = False, last: bool = False) -> Level:
    """Build a level of so many groups of four neighbours: summands of their g and, but in the ``last`` level, p.

    In the ``first`` level factors are bits of Λ and λ.
    """
    products = [] if last else [[(_PARTS - 1, 0)]]
    products.append([(_PARTS - (2 << k), 1 + k) for k in range(ARITY)])
    found: dict[tuple[int, int], int] = {}
    known, places, starts = list[tuple[int, int]](), list[int](), list[int]()
    for output in products:
        starts.append(len(known))
        for above, below in output:
            for hidden in (part for part in range(_PARTS) if part & ~above == 0):
                for hides in ((True,) if first and below else (False, True)) if below else (False,):
                    # In the first level g_k = a_k·m_k is of the same secret bit as p_k, and has no part without it.
                    own = 1 << (below - 1) if first and below else 0
                    secret = (hidden | own, 0) if own else (hidden, below if hides else 0)
                    rest = above & ~hidden
                    known.append((rest | own, 0) if own else (rest, 0 if hides else below))
                    places.append(-1 if secret == (0, 0) else found.setdefault(secret, len(found)))
    tables = map(np.array, (list(found), known, places, starts))
    return Level(groups, len(products), *tables)


LEVELS: Final = (_level(16, first=True), _level(4), _level(1, last=True))  # of numbers of 64 bits


def forms(words: int, shape: tuple[int, ...]) -> tuple[list[Form], list[Form]]:
    """Return forms of what a comparison deals (terms of every level, the sign's mask), and of the masks drawn."""
    dealt: list[Form] = [((len(level.terms), level.groups, words), torch.int64) for level in LEVELS]
    own: list[Form] = [((level.outputs, level.groups, words), torch.int64) for level in LEVELS]
    return [*dealt, (shape, torch.int64)], own


def _products(factors: Tensor, sets: Array) -> Array:
    """AND the factors, planes [4 or 8, groups, words], of each set: [sets, groups, words]."""
    bits = factors.numpy()
    ones = np.full((1, *bits.shape[1:]), -1, np.int64)
    of_parts = ones
    for factor in bits[:ARITY]:
        of_parts = np.concatenate([of_parts, of_parts & factor])
    found = of_parts[sets[:, 0]]
    if len(bits) > ARITY:
        found &= np.concatenate([ones, bits[ARITY:]])[sets[:, 1]]
    return found


def _joined_shares(level: Level, public: Tensor, shares: Tensor, *, leads: bool) -> Tensor:
    """A holder's XOR share of p and g of every group, or of g alone: [outputs, groups, words].

    ``public`` are planes a of the factors: [4, groups, words] of 1 ⊕ Λ in the first level, else [8, groups, words].
    """
    constant = np.full((1, *shares.shape[1:]), -1 if leads else 0, np.int64)
    summands = _products(public, level.known)
    summands &= np.concatenate([shares.numpy(), constant])[level.places]
    return torch.from_numpy(np.bitwise_xor.reduceat(summands, level.starts, axis=0))


def _grouped(neighbours: Tensor) -> Tensor:
    """Regroup planes by fours, the lowest first: [k, words] → [place in a group, groups, words]."""
    return neighbours.reshape(-1, ARITY, neighbours.shape[-1]).transpose(0, 1)


def _next_factors(opened: Tensor) -> Tensor:
    """Planes of p and g of a level, [2, groups, words] → factors of the next, [8, groups / 4, words]; g alone stays."""
    return opened if len(opened) == 1 else torch.cat([_grouped(opened[0]), _grouped(opened[1])])


@dataclass(frozen=True, eq=False)
class Negative(Operation[Bit]):
    """Whether each entry of a wire of Z_2^64 is below zero."""

    wire: Wire

    @property
    def _forms(self) -> tuple[list[Form], list[Form]]:
        return forms(planes.words_for(prod(self.wire.shape)), self.wire.shape)

    @override
    def rounds(self, holders: Sequence[PartyId]) -> Sequence[Round]:
        return [[(holders, holders, size_of([form]))] for form in self._forms[1]]

    @override
    def hold(self, holder: Holder) -> Bit:
        """Open p and g of each level under masks; return the sign's Λ, and this holder's share of its λ."""
        tag, public = holder.next(Kind.MASKED_BITS), self.wire.known
        (*terms, sign_mask), masks = holder.shared(tag, *self._forms)
        digits = planes.to_planes(public.reshape(-1))
        factors = ~digits
        factors[-1] = -1  # the highest bit is no part of the comparison: both are said to agree there
        factors = _grouped(factors)
        for round_, (level, share, mask) in enumerate(zip(LEVELS, terms, masks, strict=True)):
            joined = _joined_shares(level, factors, share, leads=holder.leads) ^ mask
            pieces = exchange(holder.link, holder.others, Tag(tag.kind, tag.step, round_), joined)
            opened = planes.xor([joined, *pieces.values()])
            factors = _next_factors(opened)
        sign = planes.from_plane(factors[0, 0] ^ digits[-1], public.numel())
        return Bit(sign.reshape(self.wire.shape), sign_mask)

    @override
    def deal(self, dealer: Dealer) -> Bit:
        dealer.next()
        (dealt, own), mask = self._forms, self.wire.mask
        draws = dealer.draws(dealt, own)

        def make() -> list[Tensor]:
            digits, terms = planes.to_planes(mask.reshape(-1)), list[Tensor]()
            secret = digits.clone()
            secret[-1] = 0
            secret = _grouped(secret)
            for round_, level in enumerate(LEVELS):
                terms.append(torch.from_numpy(_products(secret, level.terms)))
                opened = planes.xor(drawn[round_] for _, drawn in draws.values())
                secret = _next_factors(opened)
            sign = planes.from_plane(secret[0, 0] ^ digits[-1], mask.numel())
            return [*terms, sign.to(torch.int64).reshape(self.wire.shape)]

        *_, sign = dealer.correct(dealt, make, draws, bitwise=len(own))
        return Bit(None, sign)

    @override
    def plain(self) -> Bit:
        return Bit(self.wire.known < 0, self.wire.mask)
