"""Comparisons: whether Λ − λ is below zero, from Λ that is public and bits of λ that are secret.

The sign of v = Λ − λ mod 2^n is msb(Λ) ⊕ msb(λ) ⊕ [Λ' < λ'], with the lower n − 1 bits Λ' and λ'. With

    p_k = 1 ⊕ Λ_k ⊕ λ_k   (bit k agrees)        g_k = (1 ⊕ Λ_k)·λ_k   (bit k decides for λ)

four neighbours, the highest first, join into p = p3·p2·p1·p0 and g = g3 ⊕ p3·g2 ⊕ p3·p2·g1 ⊕ p3·p2·p1·g0, and so on
up a tree: three levels for 64 bits. Every level is a sum of products of factors a ⊕ m with a public and m a secret bit
of a mask: expanded, it is linear in the products of m over sets of factors, which the dealer, who knows m, deals as
XOR shares. So a level costs one opening of p and g under masks, which are the m of the next level.

Of v below 2^n in magnitude bit n is the sign, and the 36 bits below it decide, by sixes in two levels: what lies under
these is left out of Λ and of λ, which moves v by less than 2^(n − 36). Where 25 bits tell enough, they go by fives.

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
from veilgraph.mpc import bits as planes
from veilgraph.mpc.sealed.correlations import Dealer, Holder, Operation, Round, size_of
from veilgraph.mpc.sealed.kept_bytes import Form
from veilgraph.mpc.sealed.wire import Bit, Wire

Array: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

SHORT_BITS: Final = 36  # below the sign, of a comparison in two levels
_SHORTEST_BITS: Final = 25  # likewise, of one by a bound and to a few bits below the point


@dataclass(frozen=True, eq=False)
class Level:
    """Groups of neighbours become one: what p and g of each are sums of, products of factors a ⊕ m multiplied out.

    Sets of factors are of two numbers: a set of the p of a group, as bits, and 1 + k for g_k or 0 for none.

    Attributes:
        groups: how many.
        arity: how many neighbours are in a group.
        outputs: planes that are opened for each group: p and g, in the last level g alone.
        terms: sets of secret bits whose products are dealt: [terms, 2].
        known: for every summand the set of public factors before it: [summands, 2].
        places: for every summand the dealt product, or −1 for none: [summands].
        starts: where the summands of each output begin.
    """

    groups: int
    arity: int
    outputs: int
    terms: Array
    known: Array
    places: Array
    starts: Array


def _level(groups: int, arity: int, *, first: bool = False, last: bool = False) -> Level:
    """Build a level of so many groups of neighbours: summands of their g and, but in the ``last`` level, p.

    In the ``first`` level factors are bits of Λ and λ.
    """
    parts = 1 << arity
    products = [] if last else [[(parts - 1, 0)]]
    products.append([(parts - (2 << k), 1 + k) for k in range(arity)])
    found: dict[tuple[int, int], int] = {}
    known, places, starts = list[tuple[int, int]](), list[int](), list[int]()
    for output in products:
        starts.append(len(known))
        for above, below in output:
            for hidden in (part for part in range(parts) if part & ~above == 0):
                for hides in ((True,) if first and below else (False, True)) if below else (False,):
                    # In the first level g_k = a_k·m_k is of the same secret bit as p_k, and has no part without it.
                    own = 1 << (below - 1) if first and below else 0
                    secret = (hidden | own, 0) if own else (hidden, below if hides else 0)
                    rest = above & ~hidden
                    known.append((rest | own, 0) if own else (rest, 0 if hides else below))
                    places.append(-1 if secret == (0, 0) else found.setdefault(secret, len(found)))
    tables = map(np.array, (list(found), known, places, starts))
    return Level(groups, arity, len(products), *tables)


Levels: TypeAlias = tuple[Level, ...]
LONG: Final[Levels] = (_level(16, 4, first=True), _level(4, 4), _level(1, 4, last=True))  # of 64 bits
SHORT: Final[Levels] = (_level(6, 6, first=True), _level(1, 6, last=True))  # of SHORT_BITS
SHORTEST: Final[Levels] = (_level(5, 5, first=True), _level(1, 5, last=True))  # of _SHORTEST_BITS


def levels_for(whole_bits: int | None, fine_bits: int | None, *, few: bool) -> Levels:
    """Return the levels that compare as ``Machine.negative`` says; of many entries those of 36 bits cost most."""
    if whole_bits is None:
        return LONG
    if fine_bits is not None and whole_bits + fine_bits <= _SHORTEST_BITS:
        return SHORTEST
    return SHORT if few else LONG


def forms(levels: Levels, words: int, shape: tuple[int, ...]) -> tuple[list[Form], list[Form]]:
    """Return forms of what a comparison deals (terms of every level, the sign's mask), and of the masks drawn."""
    dealt: list[Form] = [((len(level.terms), level.groups, words), torch.int64) for level in levels]
    own: list[Form] = [((level.outputs, level.groups, words), torch.int64) for level in levels]
    return [*dealt, (shape, torch.int64)], own


def _products(level: Level, factors: Tensor, sets: Array) -> Array:
    """AND the factors, planes [arity or twice that, groups, words], of each set: [sets, groups, words]."""
    bits = factors.numpy()
    ones = np.full((1, *bits.shape[1:]), -1, np.int64)
    of_parts = ones
    for factor in bits[: level.arity]:
        of_parts = np.concatenate([of_parts, of_parts & factor])
    found = of_parts[sets[:, 0]]
    if len(bits) > level.arity:
        found &= np.concatenate([ones, bits[level.arity :]])[sets[:, 1]]
    return found


def _joined_shares(level: Level, public: Tensor, shares: Tensor, *, leads: bool) -> Tensor:
    """A holder's XOR share of p and g of every group, or of g alone: [outputs, groups, words].

    ``public`` are planes a of the factors: [arity, groups, words] of 1 ⊕ Λ in the first level, else twice as many.
    """
    constant = np.full((1, *shares.shape[1:]), -1 if leads else 0, np.int64)
    summands = _products(level, public, level.known)
    summands &= np.concatenate([shares.numpy(), constant])[level.places]
    return torch.from_numpy(np.bitwise_xor.reduceat(summands, level.starts, axis=0))


def _grouped(neighbours: Tensor, level: Level) -> Tensor:
    """Group planes by neighbours, the lowest first: [k, words] → [place in a group, groups, words]."""
    return neighbours.reshape(-1, level.arity, neighbours.shape[-1]).transpose(0, 1)


def _factors(levels: Levels, opened: Sequence[Tensor]) -> Tensor:
    """Factors of the next of the levels, [twice its arity, groups, words], or after the last g: [1, 1, words].

    Of planes of p and g, [2, groups, words], that were ``opened`` in each level before.
    """
    if len(opened) == len(levels):
        return opened[-1]
    level = levels[len(opened)]
    return torch.cat([_grouped(planes, level) for planes in opened[-1]])


@dataclass(frozen=True, eq=False)
class Negative(Operation[Bit]):
    """``Machine.negative`` as an operation."""

    wire: Wire
    levels: Levels = LONG
    whole_bits: int | None = None

    @property
    def _sign(self) -> int:
        """The bit that tells the sign."""
        return 63 if self.levels is LONG or self.whole_bits is None else min(63, self.whole_bits + self.wire.bits)

    @property
    def _forms(self) -> tuple[list[Form], list[Form]]:
        return forms(self.levels, planes.words_for(prod(self.wire.shape)), self.wire.shape)

    def _digits(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Planes of the bits that decide, zeros above them, by groups of the first level; and the sign's."""
        first, found, sign = self.levels[0], planes.to_planes(numbers.reshape(-1)), self._sign
        lower = found[max(0, sign - first.groups * first.arity) : sign]
        above = torch.zeros((first.groups * first.arity - len(lower), lower.shape[1]), dtype=torch.int64)
        return _grouped(torch.cat([lower, above]), first), found[sign]

    @override
    def rounds(self, holders: Sequence[PartyId]) -> Sequence[Round]:
        return [[(holders, holders, size_of([form]))] for form in self._forms[1]]

    @override
    def hold(self, holder: Holder) -> Bit:
        """Open p and g of each level under masks; return the sign's Λ, and this holder's share of its λ."""
        tag, public, levels = holder.next(Kind.MASKED_BITS), self.wire.known, self.levels
        (*terms, sign_mask), masks = holder.shared(tag, *self._forms)
        digits, sign = self._digits(public)
        factors, opened = ~digits, list[Tensor]()
        for round_, (level, share, mask) in enumerate(zip(levels, terms, masks, strict=True)):
            joined = _joined_shares(level, factors, share, leads=holder.leads) ^ mask
            pieces = holder.exchange(Tag(tag.kind, tag.step, round_), joined)
            opened.append(planes.xor([joined, *pieces.values()]))
            factors = _factors(levels, opened)
        below = planes.from_plane(factors[0, 0] ^ sign, public.numel())
        return Bit(below.reshape(public.shape), sign_mask)

    @override
    def deal(self, dealer: Dealer) -> Bit:
        dealer.next()
        (dealt, own), mask, levels = self._forms, self.wire.mask, self.levels
        draws = dealer.draws(dealt, own)

        def make() -> list[Tensor]:
            (secret, sign), terms, opened = self._digits(mask), list[Tensor](), list[Tensor]()
            for round_, level in enumerate(levels):
                terms.append(torch.from_numpy(_products(level, secret, level.terms)))
                opened.append(planes.xor(drawn[round_] for _, drawn in draws.values()))
                secret = _factors(levels, opened)
            below = planes.from_plane(secret[0, 0] ^ sign, mask.numel())
            return [*terms, below.to(torch.int64).reshape(self.wire.shape)]

        *_, sign = dealer.correct(dealt, make, draws, bitwise=len(own))
        return Bit(None, sign)

    @override
    def plain(self) -> Bit:
        return Bit(self.wire.known < 0, self.wire.mask)
