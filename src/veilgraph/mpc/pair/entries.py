"""Products of two parties' numbers, entry by entry, whose results they share: by ring-LWE, without a dealer.

Modulo a prime t ≡ 1 mod 2N a polynomial stands for N slots, its values at the roots of x^N + 1, and a product of
polynomials for the products of their slots (Smart and Vercauteren, 2014). One party encrypts its x_j in slots, and the
other one answers with V − Z for V = Σ_j x_j·y_j, of at most 2^8 terms. Where entries are fewer than slots, several j
lie side by side in a polynomial, and parties add their shares of these at home.

Where one party's numbers are factors of rows, ``scale``, it encrypts each once, for all columns of the other's rows.

Primes t of 60 bits hold that integer: three for numbers of 64 bits, |V| ≤ 2^134, two for 32 bits, |V| ≤ 2^70. Z, the
answering party's share, is uniform modulo their product T ≈ 2^180 or 2^120, so V − Z says nothing. As integers around
zero, V − Z and Z add up to V unless V − Z is beyond ±T/2, or one of both is within T·2^-61 of it, as fractions have 64
bits: a chance of |V|/T + 2^-60, at most 2^-45 an entry, 2^-52 of two terms. Shares are taken modulo 2^64 at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
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
_MOST_PARTS: Final = 16  # more than rows need at least, that are tried
_PLACES: Final = np.arange(DEGREE, dtype=np.uint64)

Ciphertexts = tuple[Words, Words]
"""First and second parts, [count, L, N] or [1, L, N] for all."""


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


@dataclass(frozen=True)
class ScalePlan:
    """How n factors of rows with m columns lie in polynomials: equal ``parts`` of rows, as many columns as fit.

    Parts are as many as cost least: each takes an encryption, and fewer slots stay empty.
    """

    rows: int
    columns: int
    parts: int

    @property
    def size(self) -> int:
        """How many rows a part has."""
        return -(-self.rows // self.parts)

    @property
    def beside(self) -> int:
        """How many columns of a part lie side by side."""
        return DEGREE // self.size

    @property
    def answers(self) -> int:
        """How many polynomials hold all columns of a part."""
        return -(-self.columns // self.beside)

    @property
    def groups(self) -> list[range]:
        """Answers of a part that are computed together."""
        return parts(self.answers, _AT_ONCE)

    @property
    def scheme(self) -> Scheme:
        """As of an ``inner`` product of one term."""
        return _scheme(1)

    def messages(self) -> list[tuple[int, int]]:
        """Bytes that the encrypting and the answering party send, message by message."""
        fresh = [8 * self.scheme.fresh_words(1)] * _PRIMES[64] * self.parts
        answers = [
            8 * self.scheme.answer_words(len(group), DEGREE) for group in self.groups for _ in range(_PRIMES[64])
        ]
        return [(size, 0) for size in fresh] + [(0, size) for size in answers * self.parts]

    def factors(self, own: Tensor) -> Words:
        """Lay factors [n] out in slots, those of a part once for each column beside: [parts, N]."""
        padded = np.zeros((self.parts, self.size), np.uint64)
        padded.reshape(-1)[: self.rows] = own.contiguous().numpy().view(np.uint64)
        laid = np.zeros((self.parts, DEGREE), np.uint64)
        laid[:, : self.beside * self.size] = np.tile(padded, self.beside)
        return laid

    def slots(self, own: Tensor) -> Words:
        """Lay numbers [n, m] out in slots: [parts, answers, N]."""
        padded = np.zeros((self.answers * self.beside, self.parts * self.size), np.uint64)
        padded[: self.columns, : self.rows] = own.T.numpy().view(np.uint64)
        laid = np.zeros((self.parts, self.answers, DEGREE), np.uint64)
        for part, to in enumerate(laid):
            columns = padded[:, part * self.size : (part + 1) * self.size]
            to[:, : self.beside * self.size] = columns.reshape(self.answers, -1)
        return laid

    def entries(self, share: Words) -> Tensor:
        """Take the numbers of a share [parts, answers, N] out of their slots: int64 [n, m]."""
        own = share[:, :, : self.beside * self.size].reshape(self.parts, -1, self.size)
        rows = own.transpose(0, 2, 1).reshape(self.parts * self.size, -1)
        return torch.from_numpy(np.ascontiguousarray(rows[: self.rows, : self.columns]).view(np.int64))


@lru_cache(256)
def plan_scale(rows: int, columns: int) -> ScalePlan:
    """Plan a ``scale`` of rows [n, m]; ``ValueError``: there are none."""
    if not (rows > 0 and columns > 0):
        raise ValueError(f"[{rows}, {columns}] numbers: give one row or more, and one column or more")
    least = -(-rows // DEGREE)
    plans = [ScalePlan(rows, columns, count) for count in range(least, min(rows, least + _MOST_PARTS) + 1)]
    return min(plans, key=lambda plan: sum(map(sum, plan.messages())))


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


def scale(keys: Keys, factors: Tensor | None, rows: Tensor | None, sizes: tuple[int, int]) -> Tensor:
    """Return this party's share of rows [n, m], each times its factor, modulo 2^64: int64 [n, m].

    Args:
        keys: of this party's session with the other one.
        factors: int64 [n] at their owner; None at the other party.
        rows: int64 [n, m] at their owner; None at the other party.
        sizes: (n, m), at least 1.

    """
    if (factors is None) == (rows is None):
        raise ValueError("a party gives one of factors and rows, and None for what the other party has")
    plan = plan_scale(*sizes)
    if factors is not None:
        owner, ring = keys.owner(plan.scheme), _slots(_PRIMES[64])
        _send_slots(keys.peer, owner, ring, plan.factors(factors))
        shares = [
            _receive_slots(keys.peer, owner, ring, len(group)) for _ in range(plan.parts) for group in plan.groups
        ]
    else:
        assert rows is not None
        responder, ring = keys.responder(plan.scheme), _slots(_PRIMES[64])
        received = [[responder.receive(keys.peer, 1) for _ in ring.primes] for _ in range(plan.parts)]
        shares = [
            _answer_slots(keys.peer, responder, ring, own[group.start : group.stop], 1, iter(ciphertexts))
            for own, ciphertexts in zip(plan.slots(rows), received, strict=True)
            for group in plan.groups
        ]
    return plan.entries(np.concatenate(shares).reshape(plan.parts, plan.answers, DEGREE))


def _encrypt(peer: Peer, owner: Owner, plan: Plan, slots: Words) -> Words:
    """Do the encrypting party's part with its numbers [answers, rows, N], and return its share [answers, N]."""
    ring = _slots(_PRIMES[plan.bits])
    for group in plan.groups:
        _send_slots(peer, owner, ring, slots[group.start : group.stop].reshape(-1, DEGREE), together=True)
    return np.concatenate([_receive_slots(peer, owner, ring, len(group)) for group in plan.groups])


def _answer(peer: Peer, responder: Responder, plan: Plan, slots: Words) -> Words:
    """Do the other party's part, likewise."""
    ring, shares = _slots(_PRIMES[plan.bits]), []
    for group in plan.groups:
        own = slots[group.start : group.stop].reshape(-1, DEGREE)
        received = (responder.receive(peer, len(own)) for _ in ring.primes)
        shares.append(_answer_slots(peer, responder, ring, own, plan.rows, received))
    return np.concatenate(shares)


def _send_slots(peer: Peer, owner: Owner, ring: Ring, slots: Words, *, together: bool = False) -> None:
    """Encrypt slots [count, N] modulo each prime; ``together``: all of a prime in one message, else each by itself."""
    messages = ring.untransform(ring.residues(slots))
    for part in [messages] if together else messages[:, None]:
        for place, modulus in enumerate(ring.primes):
            owner.send(peer, owner.encrypt(np.ascontiguousarray(part[:, place]), modulus=modulus))


def _receive_slots(peer: Peer, owner: Owner, ring: Ring, count: int) -> Words:
    """Receive so many answers modulo each prime, and return the numbers in their slots modulo 2^64: [count, N]."""
    answers = [owner.receive(peer, count, _PLACES, modulus) for modulus in ring.primes]
    return ring.integers(ring.transform(np.stack(answers, axis=1)))[1]


def _answer_slots(
    peer: Peer, responder: Responder, own_ring: Ring, slots: Words, rows: int, received: Iterator[Ciphertexts]
) -> Words:
    """Answer with slots [count·rows, N] times what was ``received`` modulo each prime, each ``rows`` of them added up.

    Returns this party's share [count, N] modulo 2^64.
    """
    ring, plain = responder.scheme.ring, own_ring.untransform(own_ring.residues(slots))
    own, masks = _draw_masks(responder, own_ring, len(slots) // rows)
    for place, (modulus, ciphertexts) in enumerate(zip(own_ring.primes, received, strict=True)):
        around_zero = plain[:, place] - np.where(plain[:, place] > modulus // 2, np.uint64(modulus), np.uint64(0))
        weights = ring.transform(ring.residues(around_zero))
        first, second = (_summed(ring, ring.multiply(weights, part), rows) for part in ciphertexts)
        mask = np.ascontiguousarray(masks[:, place])
        peer.tell(responder.answer((first, second), _PLACES, mask, modulus=modulus))
    return own


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
