"""Sums of products of two parties' numbers, entry by entry, whose results they share: by ring-LWE, without a dealer.

Modulo a prime t ≡ 1 mod 2N a polynomial stands for N slots, its values at the roots of x^N + 1, and a product of
polynomials for the products of their slots (Smart and Vercauteren, 2014). One party encrypts its x_j in slots, and the
other one answers with V − Z for V = Σ_j x_j·y_j, of at most 2^8 terms. Where entries are fewer than slots, several j
lie side by side in a polynomial, and parties add their shares of these at home.

Primes t of 60 bits hold that integer: three for numbers of 64 bits, |V| ≤ 2^134, two for 32 bits, |V| ≤ 2^70. Z, the
answering party's share, is uniform modulo their product T ≈ 2^180 or 2^120, so V − Z says nothing. As integers around
zero, V − Z and Z add up to V unless V − Z is beyond ±T/2, or one of both is within T·2^-61 of it, as fractions have 64
bits: a chance of |V|/T + 2^-60, at most 2^-45 an entry, 2^-52 of two terms. Shares are taken modulo 2^64 at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.mpc.pair.blocks import parts
from veilgraph.mpc.pair.lattice import DEGREE, Keys, Owner, Responder, Scheme, scheme
from veilgraph.mpc.pair.ntt import Words
from veilgraph.mpc.pair.peer import Peer
from veilgraph.mpc.pair.polynomials import Ring, primes_below

PRIME_BITS: Final = 60
MOST_TERMS: Final = 1 << 8
NARROW_BITS: Final = 32
_PRIMES: Final = {32: 2, 64: 3}
_AT_ONCE: Final = 8  # polynomials of each prime in a message
_PLACES: Final = np.arange(DEGREE, dtype=np.uint64)


@dataclass(frozen=True)
class Plan:
    """How J terms of n entries lie in polynomials: ``beside`` terms side by side, and ``rows`` of them, that are added.

    ``bits``: 32 or 64, of the numbers.
    """

    terms: int
    entries: int
    bits: int

    @property
    def beside(self) -> int:
        """How many terms lie side by side."""
        return min(self.terms, max(1, DEGREE // self.entries))

    @property
    def rows(self) -> int:
        """How many polynomials are added for one answer."""
        return -(-self.terms // self.beside)

    @property
    def answers(self) -> int:
        """How many polynomials hold the entries of a row."""
        return -(-self.beside * self.entries // DEGREE)

    @property
    def groups(self) -> list[range]:
        """Answers of which each message's encryptions are, of one prime."""
        return parts(self.answers, max(1, _AT_ONCE // self.rows))

    @property
    def scheme(self) -> Scheme:
        """The scheme of sums of messages times polynomials with coefficients up to t/2."""
        return _scheme(1 << (self.rows - 1).bit_length())

    def messages(self) -> list[tuple[int, int]]:
        """Bytes that the encrypting and the answering party send, message by message."""
        primes = range(_PRIMES[self.bits])
        fresh = [8 * self.scheme.fresh_words(self.rows * len(group)) for group in self.groups for _ in primes]
        answers = [8 * self.scheme.answer_words(len(group), DEGREE) for group in self.groups for _ in primes]
        return [(size, 0) for size in fresh] + [(0, size) for size in answers]

    def slots(self, own: Tensor) -> Words:
        """Lay [J, n] numbers out in slots: [answers, rows, N]."""
        laid = np.zeros((self.rows, self.answers * DEGREE), np.uint64)
        padded = np.zeros((self.rows * self.beside, self.entries), np.uint64)
        padded[: self.terms] = own.contiguous().numpy().view(np.uint64)
        laid[:, : self.beside * self.entries] = padded.reshape(self.rows, -1)
        return np.ascontiguousarray(laid.reshape(self.rows, self.answers, DEGREE).transpose(1, 0, 2))

    def added(self, share: Words) -> Tensor:
        """Add what lies side by side in a share [answers, N]: int64 [n]."""
        terms = share.reshape(-1)[: self.beside * self.entries].reshape(self.beside, self.entries)
        return torch.from_numpy(terms.sum(0, dtype=np.uint64).view(np.int64))


def plan_of(terms: int, entries: int, bits: int) -> Plan:
    """Plan a sum of so many terms; ``ValueError``: of none, or of more than ``MOST_TERMS``."""
    if not (1 <= terms <= MOST_TERMS and entries):
        raise ValueError(f"[{terms}, {entries}] numbers: give 1 to {MOST_TERMS} terms of one entry or more")
    return Plan(terms, entries, NARROW_BITS if bits <= NARROW_BITS else 64)


def inner(keys: Keys, own: Tensor, bits: int = 64, *, encrypts: bool) -> Tensor:
    """Return this party's share of Σ_j x_j·y_j modulo 2^64: int64 [n].

    Args:
        keys: of this party's session with the other one.
        own: its x or y, int64 [J, n], J at most ``MOST_TERMS``.
        bits: public; all numbers are below 2^(bits − 1) in magnitude.
        encrypts: whether this party encrypts, and the other one answers.

    """
    terms, entries = own.shape
    plan = plan_of(terms, entries, bits)
    slots = plan.slots(own)
    if encrypts:
        return plan.added(_encrypt(keys.peer, keys.owner(plan.scheme), plan, slots))
    return plan.added(_answer(keys.peer, keys.responder(plan.scheme), plan, slots))


def _encrypt(peer: Peer, owner: Owner, plan: Plan, slots: Words) -> Words:
    """Do the encrypting party's part with its numbers [answers, rows, N], and return its share [answers, N]."""
    ring = _slots(_PRIMES[plan.bits])
    for group in plan.groups:
        messages = ring.untransform(ring.residues(slots[group.start : group.stop].reshape(-1, DEGREE)))
        for place, modulus in enumerate(ring.primes):
            owner.send(peer, owner.encrypt(np.ascontiguousarray(messages[:, place]), modulus=modulus))
    shares = []
    for group in plan.groups:
        answers = [owner.receive(peer, len(group), _PLACES, modulus) for modulus in ring.primes]
        shares.append(ring.integers(ring.transform(np.stack(answers, axis=1)))[1])
    return np.concatenate(shares)


def _answer(peer: Peer, responder: Responder, plan: Plan, slots: Words) -> Words:
    """Do the other party's part, likewise."""
    ring, own_ring, shares = responder.scheme.ring, _slots(_PRIMES[plan.bits]), []
    for group in plan.groups:
        plain = own_ring.untransform(own_ring.residues(slots[group.start : group.stop].reshape(-1, DEGREE)))
        own, masks = _draw_masks(responder, own_ring, len(group))
        shares.append(own)
        for place, modulus in enumerate(own_ring.primes):
            around_zero = plain[:, place] - np.where(plain[:, place] > modulus // 2, np.uint64(modulus), np.uint64(0))
            weights = ring.transform(ring.residues(around_zero))
            received = responder.receive(peer, plan.rows * len(group))
            first, second = (_summed(ring, ring.multiply(part, weights), plan.rows) for part in received)
            mask = np.ascontiguousarray(masks[:, place])
            peer.tell(responder.answer((first, second), _PLACES, mask, modulus=modulus))
    return np.concatenate(shares)


def _summed(ring: Ring, products: Words, rows: int) -> Words:
    """Sums of each ``rows`` polynomials."""
    total = products[::rows].copy()
    for row in range(1, rows):
        ring.add(total, np.ascontiguousarray(products[row::rows]))
    return total


def _draw_masks(responder: Responder, ring: Ring, count: int) -> tuple[Words, Words]:
    """Draw Z, modulo 2^64 [count, N], and as polynomials with these slots [count, primes, N]."""
    masks = responder.draw_polynomials(ring, count)
    return ring.integers(ring.transform(masks.copy()))[1], masks


@cache
def _slots(primes: int) -> Ring:
    """Slots modulo so many primes, which are none of a scheme's."""
    return Ring(DEGREE, primes_below(PRIME_BITS, 6, DEGREE)[3 : 3 + primes])


@lru_cache(64)
def _scheme(rows: int) -> Scheme:
    half = 2.0 ** (PRIME_BITS - 1)
    return scheme(_slots(1).primes[0], rows * DEGREE * half, rows * DEGREE * half * half)
