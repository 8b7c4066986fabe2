"""A matrix product of two parties by ring-LWE, block by block: one encrypts the left matrix, the other multiplies.

A block of the left matrix, [a, b], and one of the right, [b, c], with a·b·c ≤ N stand in polynomials as

    P = Σ left[i, κ]·x^(i·b·c + b − 1 − κ)   and   Q = Σ right[κ, j]·x^(j·b + κ)

P·Q modulo x^N + 1 has Σ_κ left[i, κ]·right[κ, j] at the place i·b·c + j·b + b − 1. The products are added along the
inner dimension before they are answered. So ⌈n/a⌉·⌈k/b⌉ encryptions are sent, and ⌈n/a⌉·⌈m/c⌉ answers (Huang, Lu, Hong
and Ding, "Cheetah", 2022, section 3).

**Two ways to multiply.** A dense right matrix is transformed, ⌈k/b⌉·⌈m/c⌉ polynomials, and multiplied point by point. A
sparse one is not: each entry shifts an encryption's coefficients, and is added. What is sent does not depend on the
entries; only the time does that its owner takes. So a sparse matrix's answers are sent when all are computed, or a
gigabyte: one by one, when they come would show how many entries each few columns have, which are edges of a few nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.mpc.pair import ntt
from veilgraph.mpc.pair.lattice import DEGREE, MISS_BITS, Owner, Responder, Scheme, scheme
from veilgraph.mpc.pair.ntt import Words
from veilgraph.mpc.pair.peer import Peer
from veilgraph.mpc.pair.polynomials import Ring

Sizes = tuple[int, int, int]

SECONDS_A_BYTE: Final = 8e-8
"""100 Mbit/s: what a byte costs where we choose between bytes and CPU."""
_SECONDS: Final = {
    "encrypt": 3e-8,
    "receive": 8e-9,
    "transform": 6e-9,
    "multiply": 1e-9,
    "shift": 1.5e-9,
    "answer": 6e-8,
}
"""CPU seconds for one residue of a polynomial, on one core of an AMD EPYC with AVX-512."""
FRESH_AT_ONCE: Final = 32
"""Encryptions in a message."""
COLUMNS_AT_ONCE: Final = 4
"""Columns of blocks in a message of answers; they are multiplied together, as each encryption serves them all."""
HELD_BYTES: Final = 1 << 30
"""Of answers of a sparse matrix, which are sent together; it bounds memory, and how long the other party waits."""
_TERMS_AT_ONCE: Final = 32
_FEW: Final = 64  # one of so many entries of a matrix that is taken for sparse is not zero


@dataclass(frozen=True)
class Plan:
    """How a product [n, k]·[k, m] is cut: blocks [a, b]·[b, c].

    ``shifts``: the right matrix is known to be sparse, so encryptions are sent as coefficients, not transformed.
    """

    sizes: Sizes
    block: Sizes
    scheme: Scheme
    shifts: bool

    @property
    def grid(self) -> Sizes:
        """Blocks along n, k and m."""
        rows, inner, columns = (-(-size // part) for size, part in zip(self.sizes, self.block, strict=True))
        return rows, inner, columns

    @property
    def kept(self) -> int:
        """How many coefficients of a first part are used: with c = 1 and shifts, the first ones, which carry values."""
        a, b, c = self.block
        return a * b if c == 1 and self.shifts else self.scheme.degree

    @property
    def places(self) -> Words:
        """[a·c]: where a product of two blocks has its entries."""
        a, b, c = self.block
        return (np.arange(a)[:, None] * (b * c) + np.arange(c) * b + b - 1).reshape(-1).astype(np.uint64)

    def messages(self) -> list[tuple[int, int]]:
        """Bytes that the encrypting and the answering party send, message by message."""
        rows, inner, columns = self.grid
        fresh = [self.scheme.fresh_words(len(part), self.kept) for part in parts(rows * inner, FRESH_AT_ONCE)]
        wanted = self.block[0] * self.block[2]
        answers = [self.scheme.answer_words(rows * len(part), wanted) for part in parts(columns, COLUMNS_AT_ONCE)]
        return [(8 * size, 0) for size in fresh] + [(0, 8 * size) for size in answers]

    def cost(self, *, sparse: bool = False) -> float:
        """Seconds: of both parties' CPU, save for the entries of a sparse matrix, and of the bytes on the wire.

        ``sparse``: the right matrix is taken for one that few entries of are not zero, though all may be.
        """
        rows, inner, columns = self.grid
        counts = {"encrypt": rows * inner, "receive": rows * inner, "answer": rows * columns}
        if not self.shifts and sparse:
            counts |= {"transform": 2 * rows * inner, "shift": rows * prod(self.sizes[1:]) // _FEW}
        elif not self.shifts:
            counts |= {"transform": inner * columns, "multiply": 2 * rows * inner * columns}
        residues = self.scheme.degree * self.scheme.primes
        seconds = sum(count * residues * _SECONDS[name] for name, count in counts.items())
        wanted = self.block[0] * self.block[2]
        return seconds + SECONDS_A_BYTE * self.scheme.wire_bytes(rows * inner, self.kept, rows * columns, wanted)

    def is_sparse(self, entries: int) -> bool:
        """Tell whether shifts take less time than transforms, for so many entries of a right matrix that is at hand."""
        rows, inner, columns = self.grid
        shifting = rows * (2 * inner * _SECONDS["transform"] + entries * _SECONDS["shift"])
        return self.shifts or shifting < inner * columns * (_SECONDS["transform"] + 2 * rows * _SECONDS["multiply"])


def plans(sizes: Sizes, modulus: int, weight: float, squares: float, *, shifts: bool) -> list[Plan]:
    """List plans of products modulo t with blocks of many shapes, each with as many columns as fit, or with one.

    ``weight``, ``squares``: bounds of Σ|w| and of Σw² over a column of the right matrix. As errors fill a polynomial, a
    result has the noise of all c columns of its block. Answers are whole, or halves of half the degree where these fit.
    """
    n, k, m = sizes
    found = []
    for degree, miss_bits in ((DEGREE, 0), (DEGREE // 2, MISS_BITS)):
        for a in _cuts(n, degree):
            for b in _cuts(k, degree // a):
                most = min(m, degree // (a * b))
                for c in {-(-m // -(-m // most)), *((1,) if shifts else ())}:
                    with suppress(ConfigError):
                        form = scheme(modulus, c * weight, c * squares, miss_bits, degree)
                        found.append(Plan(sizes, (a, b, c), form, shifts))
    return found or [Plan(sizes, (1, 1, 1), scheme(modulus, weight, squares), shifts)]


def _cuts(size: int, most: int) -> list[int]:
    """Lengths of equal parts of ``size``, at most ``most``, in steps of a tenth."""
    counts, count = {size}, max(1, -(-size // most))
    while count <= size:
        counts.add(count)
        count = max(count + 1, count * 11 // 10)
    return sorted({-(-size // count) for count in counts})


def parts(count: int, most: int) -> list[range]:
    """Consecutive ranges of at most ``most``."""
    return [range(start, min(start + most, count)) for start in range(0, count, most)]


def encrypt_matrix(peer: Peer, owner: Owner, plan: Plan, left: Words) -> Words:
    """Do the encrypting party's part with the left matrix [n, k] modulo t, and return its share [n, m]."""
    (a, b, c), (rows, inner, columns) = plan.block, plan.grid
    blocks = _blocks(left, (a, b), (rows, inner)).reshape(rows * inner, a, b)
    for part in parts(len(blocks), FRESH_AT_ONCE):
        polynomials = np.zeros((len(part), plan.scheme.degree), np.uint64)
        polynomials[:, : a * b * c].reshape(len(part), a, c, b)[:, :, 0] = blocks[part.start : part.stop, :, ::-1]
        owner.send(peer, owner.encrypt(polynomials, transformed=not plan.shifts)[:, :, : plan.kept])
    share = np.empty((rows, a, columns, c), np.uint64)
    for part in parts(columns, COLUMNS_AT_ONCE):
        receive = owner.receive_halves if plan.scheme.miss_bits else owner.receive
        answers = receive(peer, len(part) * rows, plan.places).reshape(len(part), rows, a, c)
        share[:, :, part.start : part.stop] = answers.transpose(1, 2, 0, 3)
    return _trimmed(share, plan.sizes)


def multiply_matrix(peer: Peer, responder: Responder, plan: Plan, right: Words | sp.csr_matrix) -> Words:
    """Do the answering party's part, and return its share [n, m].

    ``right``: words in two's complement, [k, m] as an array or, of int64, its transpose [m, k] as a sparse matrix.
    """
    (a, _, c), (rows, inner, columns) = plan.block, plan.grid
    shape = plan.scheme.primes, plan.scheme.degree
    received = (
        np.empty((rows * inner, shape[0], plan.kept), np.uint64),
        np.empty((rows * inner, *shape), np.uint64),
    )
    for part in parts(rows * inner, FRESH_AT_ONCE):
        for whole, some in zip(received, responder.receive(peer, len(part), plan.kept), strict=True):
            whole[part.start : part.stop] = some
    sparse = sp.issparse(right) or plan.is_sparse(int(np.count_nonzero(right)))
    if sparse and not plan.shifts:
        for whole in received:
            plan.scheme.ring.untransform(whole)
    first, second = (whole.reshape(rows, inner, shape[0], -1) for whole in received)
    multiply = (_by_shifts if sparse else _by_transforms)(plan, (first, second), right)
    share, held = np.empty((rows, a, columns, c), np.uint64), list[Tensor]()
    for part in parts(columns, COLUMNS_AT_ONCE):
        sums = multiply(part)
        if plan.scheme.miss_bits:
            message, own = responder.halve(sums, plan.places, transformed=not sparse)
        else:
            own = responder.draw(len(part) * rows, a * c) & np.uint64(plan.scheme.modulus - 1)
            message = responder.answer(sums, plan.places, own, transformed=not sparse)
        held.append(message)
        share[:, :, part.start : part.stop] = own.reshape(len(part), rows, a, c).transpose(1, 2, 0, 3)
        if not sparse or part.stop == columns or len(held) * held[0].nbytes >= HELD_BYTES:
            while held:
                peer.tell(held.pop(0))
    return _trimmed(share, plan.sizes)


Multiply = Callable[[range], tuple[Words, Words]]
"""From columns of blocks: sums of ciphertexts' first and second parts, [columns·rows, L, …] as ``Responder.answer``."""


def _by_transforms(plan: Plan, ciphertexts: tuple[Words, Words], right: Words) -> Multiply:
    """Multiply transformed ciphertexts [rows, inner, L, N] by a dense matrix [k, m]."""
    (_, b, c), (rows, inner, columns) = plan.block, plan.grid
    ring, shape = plan.scheme.ring, (plan.scheme.primes, plan.scheme.degree)
    blocks = _blocks(right, (b, c), (inner, columns))
    room = np.empty((COLUMNS_AT_ONCE * min(inner, _TERMS_AT_ONCE), *shape), np.uint64)  # used again and again

    def multiply(part: range) -> tuple[Words, Words]:
        first, second = (np.zeros((len(part), rows, *shape), np.uint64) for _ in range(2))
        for terms in parts(inner, _TERMS_AT_ONCE):
            values = blocks[terms.start : terms.stop, part.start : part.stop].transpose(1, 0, 3, 2).reshape(-1, c * b)
            plain = _transform(ring, values, room[: len(values)]).reshape(len(part), len(terms), *shape)
            for total, ciphertext in zip((first, second), ciphertexts, strict=True):
                ntt.accumulate(total, ciphertext[:, terms.start : terms.stop], plain, ring.constants)
        return first.reshape(-1, *shape), second.reshape(-1, *shape)

    return multiply


def _by_shifts(plan: Plan, ciphertexts: tuple[Words, Words], right: Words | sp.csr_matrix) -> Multiply:
    """Multiply ciphertexts' coefficients [rows, inner, L, …] by a matrix of few entries."""
    (_, b, c), (rows, _, _), places = plan.block, plan.grid, plan.places
    ring, shape = plan.scheme.ring, (plan.scheme.primes, plan.scheme.degree)
    entries: sp.csr_matrix = sp.csr_matrix(right.T.view(np.int64)) if isinstance(right, np.ndarray) else right
    at = np.repeat(np.arange(entries.shape[0]), np.diff(entries.indptr))
    blocks, shifts = entries.indices // b, at % c * b + entries.indices % b
    factors, quotients = ring.factors(entries.data.view(np.uint64))

    def multiply(part: range) -> tuple[Words, Words]:
        first = np.zeros((len(part), rows, shape[0], len(places)), np.uint64)
        second = np.zeros((len(part), rows, *shape), np.uint64)
        for place, column in enumerate(part):
            own = slice(*entries.indptr[[column * c, min((column + 1) * c, entries.shape[0])]])
            ntt.add_shifted(
                first[place],
                second[place],
                ciphertexts,
                places,
                (blocks[own].astype(np.uint64), shifts[own].astype(np.uint64)),
                (factors[own], quotients[own]),
                ring.constants,
            )
        return first.reshape(-1, shape[0], len(places)), second.reshape(-1, *shape)

    return multiply


def _transform(ring: Ring, values: Words, out: Words) -> Words:
    """Transform polynomials whose first coefficients are ``values`` [count, n], in two's complement, into ``out``."""
    span = 1 << (values.shape[1] - 1).bit_length()
    out[:, :, :span] = 0
    out[:, :, : values.shape[1]] = ring.residues(values)
    return ring.transform(out, span)


def _blocks(matrix: Words, block: tuple[int, int], grid: tuple[int, int]) -> Words:
    """Cut a matrix into a grid of blocks, filled up with zeros: [*grid, *block]."""
    padded = np.zeros((block[0] * grid[0], block[1] * grid[1]), np.uint64)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded.reshape(grid[0], block[0], grid[1], block[1]).transpose(0, 2, 1, 3)


def _trimmed(share: Words, sizes: Sizes) -> Words:
    """[rows, a, columns, c] → [n, m]."""
    rows, a, columns, c = share.shape
    return share.reshape(rows * a, columns * c)[: sizes[0], : sizes[2]]
