"""Products of two parties' numbers, entry by entry, whose results they share: by ring-LWE, without a dealer.

Modulo a prime t ≡ 1 mod 2N a polynomial stands for N slots, its values at the roots of x^N + 1, and a product of
polynomials for the products of their slots (Smart and Vercauteren, 2014). One party encrypts its x_j in slots, and the
other one answers with halves of V = Σ_j x_j·y_j, of at most 2^6 terms: both then have shares modulo t. Where entries
are fewer than slots, several j lie side by side in a polynomial, and parties add their shares of these at home.

Where one party's numbers are factors of rows, ``scale``, it encrypts each once, for all columns of the other's rows.

Three primes t of 58 bits hold that integer, |V| ≤ 2^132. Shares are uniform modulo their product T ≈ 2^174. As integers
around zero they add up to V unless V less one of them is beyond ±T/2, or one is within T·2^-61 of it, as fractions have
64 bits: a chance of |V|/T + 2^-60, at most 2^-42 an entry, 2^-47 of two terms. A coefficient that halves make wrong
(``lattice``) spoils all entries of its polynomial. Shares are taken modulo 2^64 at the end.

Sums known to be below 2^55 need one prime. Its shares add up to V or, where a bit tells it, to V less t (``exchange``).
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
from veilgraph.mpc.pair.lattice import DEGREE, MISS_BITS, Keys, Owner, Responder, Scheme, scheme
from veilgraph.mpc.pair.ntt import Words
from veilgraph.mpc.pair.peer import Peer
from veilgraph.mpc.pair.polynomials import Ring, primes_below

PRIME_BITS: Final = 58
MOST_TERMS: Final = 1 << 6
NARROW_BITS: Final = 55
"""log2 of a sum that one prime holds, as four times it is below the prime."""
_PRIMES: Final = 3  # of numbers of 64 bits
_AT_ONCE: Final = 8  # polynomials of each prime in a message
_MOST_PARTS: Final = 16  # more than rows need at least, that are tried
_PLACES: Final = np.arange(DEGREE, dtype=np.uint64)

Ciphertexts = tuple[Words, Words]
"""First and second parts, [count, L, N] or [1, L, N] for all."""


@dataclass(frozen=True)
class Plan:
    """How J terms of n entries lie in polynomials: ``beside`` terms side by side, and ``rows`` of them, that are added.

    ``primes``: 1 or 3.
    """

    terms: int
    entries: int
    primes: int

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
        primes = range(self.primes)
        fresh = [8 * self.scheme.fresh_words(self.rows * len(group)) for group in self.groups for _ in primes]
        answers = [8 * self.scheme.answer_words(len(group), 0) for group in self.groups for _ in primes]
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
        fresh = [8 * self.scheme.fresh_words(1)] * _PRIMES * self.parts
        answers = [8 * self.scheme.answer_words(len(group), 0) for group in self.groups for _ in range(_PRIMES)]
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
    return Plan(terms, entries, 1 if bits <= NARROW_BITS else _PRIMES)


def widths(terms: int, entries: int) -> list[int]:
    """Cut the entries of sums of so many terms into one part or two, whichever leaves fewer slots empty."""
    half = DEGREE // 2
    whole = entries // half * half
    cuts = [[entries]] + [[whole, entries - whole]] * (0 < whole < entries)

    def size(cut: list[int]) -> int:
        plans = [plan_of(len(part), width, 64) for width in cut for part in parts(terms, MOST_TERMS)]
        return sum(sum(map(sum, plan.messages())) for plan in plans)

    return min(cuts, key=size)


def inner(keys: Keys, own: Tensor, bits: int = 64, *, encrypts: bool) -> Tensor:
    """Return this party's share of Σ_j x_j·y_j, int64 [n]: modulo 2^64, or of a narrow sum modulo ``narrow_prime``.

    Args:
        keys: of this party's session with the other one.
        own: its x or y, int64 [J, n], J at most ``MOST_TERMS``.
        bits: public; the sum is narrow if it is below 2^bits in magnitude for ``NARROW_BITS`` or less.
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
        owner, ring = keys.owner(plan.scheme), _slots(_PRIMES)
        _send_slots(keys.peer, owner, ring, plan.factors(factors))
        shares = [
            _receive_slots(keys.peer, owner, ring, len(group)) for _ in range(plan.parts) for group in plan.groups
        ]
    else:
        assert rows is not None
        responder, ring = keys.responder(plan.scheme), _slots(_PRIMES)
        received = [[responder.receive(keys.peer, 1) for _ in ring.primes] for _ in range(plan.parts)]
        shares = [
            _answer_slots(keys.peer, responder, ring, own[group.start : group.stop], 1, iter(ciphertexts))
            for own, ciphertexts in zip(plan.slots(rows), received, strict=True)
            for group in plan.groups
        ]
    return plan.entries(np.concatenate(shares).reshape(plan.parts, plan.answers, DEGREE))


def _encrypt(peer: Peer, owner: Owner, plan: Plan, slots: Words) -> Words:
    """Do the encrypting party's part with its numbers [answers, rows, N], and return its share [answers, N]."""
    ring = _slots(plan.primes)
    for group in plan.groups:
        _send_slots(peer, owner, ring, slots[group.start : group.stop].reshape(-1, DEGREE), together=True)
    return np.concatenate([_receive_slots(peer, owner, ring, len(group)) for group in plan.groups])


def _answer(peer: Peer, responder: Responder, plan: Plan, slots: Words) -> Words:
    """Do the other party's part, likewise."""
    ring, shares = _slots(plan.primes), []
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
    """Receive so many answers modulo each prime, and return the share of what is in their slots: [count, N]."""
    return _in_slots(ring, [owner.receive_halves(peer, count, _PLACES, modulus) for modulus in ring.primes])


def _answer_slots(
    peer: Peer, responder: Responder, own_ring: Ring, slots: Words, rows: int, received: Iterator[Ciphertexts]
) -> Words:
    """Answer with slots [count·rows, N] times what was ``received`` modulo each prime, each ``rows`` of them added up.

    Returns this party's share [count, N] modulo 2^64.
    """
    ring, plain = responder.scheme.ring, own_ring.untransform(own_ring.residues(slots))
    shares = []
    for place, (modulus, ciphertexts) in enumerate(zip(own_ring.primes, received, strict=True)):
        around_zero = plain[:, place] - np.where(plain[:, place] > modulus // 2, np.uint64(modulus), np.uint64(0))
        weights = ring.transform(ring.residues(around_zero))
        first, second = (_summed(ring, ring.multiply(weights, part), rows) for part in ciphertexts)
        message, share = responder.halve((first, second), _PLACES, modulus=modulus)
        peer.tell(message)
        shares.append(share)
    return _in_slots(own_ring, shares)


def _summed(ring: Ring, products: Words, rows: int) -> Words:
    """Sums of each ``rows`` polynomials."""
    total = products[::rows].copy()
    for row in range(1, rows):
        ring.add(total, np.ascontiguousarray(products[row::rows]))
    return total


def _in_slots(ring: Ring, shares: list[Words]) -> Words:
    """Return the integers around zero in the slots of polynomials modulo each prime, as words: [count, N]."""
    return ring.integers(ring.transform(np.stack(shares, axis=1)))[1]


def narrow_prime() -> int:
    """Return the modulus of shares of narrow sums."""
    return _slots(1).primes[0]


@cache
def _slots(primes: int) -> Ring:
    """Slots modulo so many primes, which are none of a scheme's."""
    return Ring(DEGREE, primes_below(PRIME_BITS, 6, DEGREE)[3 : 3 + primes])


@lru_cache(64)
def _scheme(rows: int) -> Scheme:
    half = 2.0 ** (PRIME_BITS - 1)
    return scheme(_slots(1).primes[0], rows * DEGREE * half, rows * DEGREE * half * half, MISS_BITS)
