"""Whether Λ − λ is below zero, from Λ that is public and bits of λ that are secret.

The sign of v = Λ − λ mod 2^n is msb(Λ) ⊕ msb(λ) ⊕ [Λ' < λ'], with the lower n − 1 bits Λ' and λ'. With

    p_k = 1 ⊕ Λ_k ⊕ λ_k   (bit k agrees)        g_k = (1 ⊕ Λ_k)·λ_k   (bit k decides for λ)

four neighbours, the highest first, join into p = p3·p2·p1·p0 and g = g3 ⊕ p3·g2 ⊕ p3·p2·g1 ⊕ p3·p2·p1·g0, and so on
up a tree: three levels for 64 bits. Every level is a sum of products of factors a ⊕ m with a public and m a secret bit of a
mask: expanded, it is linear in the products of m over sets of factors, which the dealer, who knows m, deals as XOR
shares. So a level costs one opening of p and g under masks, which are the m of the next level.

Bits are in planes: int64 words with one bit of 64 entries each (``mpc.bits``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Final, TypeAlias

import torch
from torch import Tensor

Members: TypeAlias = frozenset[int]
"""Which secret bits are multiplied, by their number in a group."""
ARITY: Final = 4


@dataclass(frozen=True)
class Level:
    """Groups of four neighbours join into one.

    Attributes:
        groups: how many there are after it.
        first: whether its factors are bits of Λ and λ, not p and g of a level before.
        last: whether only g is needed.
    """

    groups: int
    first: bool
    last: bool

    @property
    def outputs(self) -> int:
        """Planes that are opened for each group."""
        return 1 if self.last else 2

    @property
    def terms(self) -> tuple[Members, ...]:
        """The products of secret bits that are dealt, in order."""
        return _terms(self.first, self.last)


def levels(width: int) -> list[Level]:
    """Those of the comparison of numbers of 32 or 64 bits."""
    plan, groups = list[Level](), width
    while groups > 1:
        groups = -(-groups // ARITY)
        plan.append(Level(groups, not plan, groups == 1))
    return plan


@cache
def _terms(first: bool, last: bool) -> tuple[Members, ...]:
    """Subsets of the factors of every product: four p, and p's above each g with that g."""
    found = set[Members]()
    for product in _products(last):
        # In the first level p_k and g_k are of one secret bit, number k; later g_k is bit number 4 + k.
        names = [number % ARITY if first else number for number in product]
        must = {names[-1]} if first and product[-1] >= ARITY else set[int]()  # g_k has no part without λ_k
        for size in range(1, len(names) + 1):
            found.update(frozenset(each) for each in combinations(names, size) if must <= set(each))
    return tuple(sorted(found, key=lambda each: (len(each), sorted(each))))


def _products(last: bool) -> Iterator[tuple[int, ...]]:
    """Factors of each product: p_k is number k, g_k number 4 + k."""
    if not last:
        yield tuple(range(ARITY))
    for below in range(ARITY):
        yield (*range(below + 1, ARITY), ARITY + below)


def dealt_terms(level: Level, secret: Tensor) -> Tensor:
    """The dealer's: products of secret bits.

    Args:
        level: which.
        secret: planes of the masks' bits, [4 or 8, groups, words].

    Returns:
        [terms, groups, words].
    """
    rows = []
    for term in level.terms:
        members = sorted(term)
        plane = secret[members[0]]
        for member in members[1:]:
            plane = plane & secret[member]
        rows.append(plane)
    return torch.stack(rows)


def joined_shares(level: Level, public: Tensor, shares: Tensor, *, leads: bool) -> Tensor:
    """A holder's XOR share of p and g of every group, or of g alone.

    Args:
        level: which.
        public: planes a of the factors: [4, groups, words] of 1 ⊕ Λ in the first level, else [8, groups, words].
        shares: its shares of ``dealt_terms``.
        leads: whether this holder adds what is public.

    Returns:
        [outputs, groups, words].
    """
    share_of = dict(zip(level.terms, shares, strict=True))
    outputs = [] if level.last else [_evaluated([tuple(range(ARITY))], level, public, share_of, leads=leads)]
    outputs.append(_evaluated(list(_products(last=True)), level, public, share_of, leads=leads))
    return torch.stack(outputs)


def _evaluated(
    products: Sequence[tuple[int, ...]], level: Level, public: Tensor, shares: Mapping[Members, Tensor], *, leads: bool
) -> Tensor:
    total = torch.zeros_like(public[0])
    for product in products:
        for members, coefficient in _expanded(product, level, public).items():
            if members:
                total ^= shares[members] if coefficient is None else coefficient & shares[members]
            elif leads and coefficient is not None:
                total ^= coefficient
    return total


def _expanded(product: tuple[int, ...], level: Level, public: Tensor) -> dict[Members, Tensor | None]:
    """A product of factors a ⊕ m as sums of products of m → the public factor before it; None is 1."""
    expanded: dict[Members, Tensor | None] = {frozenset(): None}
    for number in product:
        known, more = public[number % ARITY if level.first else number], dict[Members, Tensor | None]()
        for members, coefficient in expanded.items():
            with_known = known if coefficient is None else coefficient & known
            if level.first:
                bit = members | {number % ARITY}
                more[bit] = with_known if number >= ARITY else coefficient
                if number < ARITY:
                    more[members] = with_known
            else:
                more[members], more[members | {number}] = with_known, coefficient
        expanded = more
    return expanded


def first_factors(digits: Tensor) -> Tensor:
    """Planes of 1 ⊕ Λ: [n, words]. The highest bit is no part of the comparison; there both numbers are said to agree."""
    factors = ~digits
    factors[-1] = -1
    return factors


def secret_digits(digits: Tensor) -> Tensor:
    """The planes of λ that go with them."""
    secret = digits.clone()
    secret[-1] = 0
    return secret


def grouped(planes: Tensor) -> Tensor:
    """Planes of neighbours, the lowest first, by their place in groups of four: [k, words] → [4, groups, words]."""
    return planes.reshape(-1, ARITY, planes.shape[-1]).transpose(0, 1)


def next_factors(opened: Tensor) -> Tensor:
    """Planes of p and g of a level, [2, groups, words], as factors of the next: [8, groups / 4, words]."""
    return torch.cat([grouped(opened[0]), grouped(opened[1])])
