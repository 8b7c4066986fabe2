"""Products of two parties' numbers in Z_2^64, whose results they share: by ring-LWE, without a dealer.

Both parties call a function together, each with what it has; each gets a uniform additive share of the result and
learns nothing else (``lattice`` says why, for semi-honest parties).

**Matrices.** A block of the left matrix, [a, b], and one of the right, [b, c], with a·b·c ≤ N stand in polynomials as

    P = Σ left[i, κ]·x^(i·b·c + b − 1 − κ)   and   Q = Σ right[κ, j]·x^(j·b + κ)

P·Q modulo x^N + 1 has Σ_κ left[i, κ]·right[κ, j] at the place i·b·c + j·b + b − 1. One party encrypts its blocks, the
other one multiplies and adds along the inner dimension before it answers. So the encryptions sent are
⌈n/a⌉·⌈k/b⌉, the answers ⌈n/a⌉·⌈m/c⌉, and the polynomials to transform ⌈k/b⌉·⌈m/c⌉ (Huang, Lu, Hong and Ding,
"Cheetah", 2022, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.mpc.pair import ntt
from veilgraph.mpc.pair.lattice import AT_ONCE, Owner, Responder, Scheme, scheme
from veilgraph.mpc.pair.ntt import Words
from veilgraph.mpc.pair.peer import Peer
from veilgraph.mpc.pair.polynomials import Ring

Sizes = tuple[int, int, int]
Messages = list[tuple[int, int]]
"""Bytes of data that each of two parties sends, message by message: one of the two is 0."""

WORD: Final = 64
SECONDS_A_BYTE: Final = 8e-8
"""100 Mbit/s: what a byte costs where we choose between bytes and CPU."""
_SECONDS_A_POINT: Final = {"encrypt": 3e-8, "receive": 8e-9, "transform": 6e-9, "multiply": 2.5e-9, "answer": 6e-8}
"""CPU seconds of one residue of a polynomial, measured on one core of an AMD EPYC."""
_COLUMNS: Final = 4
"""Columns of blocks that are multiplied at a time, as each encryption that is read serves them all."""


@dataclass(frozen=True)
class MatrixPlan:
    """How a product [n, k]·[k, m] is cut: blocks [a, b]·[b, c]; its left side is encrypted."""

    sizes: Sizes
    block: Sizes
    scheme: Scheme

    @property
    def grid(self) -> Sizes:
        """Blocks along n, k and m."""
        rows, inner, columns = (-(-size // part) for size, part in zip(self.sizes, self.block, strict=True))
        return rows, inner, columns

    @property
    def places(self) -> Words:
        """[a·c]: where a product of two blocks has its entries."""
        a, b, c = self.block
        return (np.arange(a)[:, None] * (b * c) + np.arange(c) * b + b - 1).reshape(-1).astype(np.uint64)

    def messages(self) -> tuple[list[int], list[int]]:
        """Bytes of each message of the encrypting party, and of the answering one after it."""
        rows, inner, columns = self.grid
        fresh = [SEED_BYTES, 8 * self.scheme.fresh_words(1)]
        fresh += [8 * self.scheme.fresh_words(len(part)) for part in parts(rows * inner, AT_ONCE)]
        answers = [self.scheme.answer_words(rows * len(part), len(self.places)) for part in parts(columns, _COLUMNS)]
        return fresh, [8 * size for size in answers]

    def cost(self) -> float:
        """Seconds: of both parties' CPU, and of the bytes on the wire."""
        rows, inner, columns = self.grid
        counts = {
            "encrypt": rows * inner,
            "receive": rows * inner,
            "transform": inner * columns,
            "multiply": 2 * rows * inner * columns,
            "answer": rows * columns,
        }
        points = self.scheme.degree * self.scheme.primes
        seconds = sum(count * points * _SECONDS_A_POINT[name] for name, count in counts.items())
        sent = self.scheme.wire_bytes(rows * inner, self.scheme.degree, rows * columns, self.block[0] * self.block[2])
        return seconds + SECONDS_A_BYTE * sent


@lru_cache(256)
def plan_matmul(sizes: Sizes, bits: int) -> tuple[bool, MatrixPlan]:
    """Choose blocks, and who encrypts: True if the owner of the left matrix, else the product is transposed."""
    n, k, m = sizes
    plans = [
        (left, plan)
        for left, turned, factor in ((True, (n, k, m), min(bits, WORD - 1)), (False, (m, k, n), WORD - 1))
        for plan in _plans(turned, scheme(1 << WORD, float(k) * 2.0**factor, float(k) * 4.0**factor))
    ]
    return min(plans, key=lambda plan: plan[1].cost())


def _plans(sizes: Sizes, form: Scheme) -> list[MatrixPlan]:
    """All plans that differ in their grids, the rest of a polynomial going to the right side's columns."""
    n, k, m = sizes
    plans = []
    for a, b in product(cuts(n, form.degree), cuts(k, form.degree)):
        if a * b <= form.degree:
            most = min(m, form.degree // (a * b))
            plans.append(MatrixPlan(sizes, (a, b, ceil(m / ceil(m / most))), form))
    return plans


def cuts(size: int, most: int) -> list[int]:
    """Lengths of equal parts of ``size``, at most ``most``, in steps of a tenth."""
    counts, count = [], max(1, -(-size // most))
    while count <= size:
        counts.append(count)
        count = max(count + 1, count * 11 // 10)
    return sorted({-(-size // count) for count in [*counts, size]})


def matmul_messages(sizes: Sizes, bits: int) -> Messages:
    """Bytes that the owners of the left and of the right matrix send in ``matmul``, message by message."""
    left, plan = plan_matmul(sizes, bits)
    fresh, answers = plan.messages()
    pairs = [(size, 0) for size in fresh] + [(0, size) for size in answers]
    return pairs if left else [(other, one) for one, other in pairs]


def matmul(
    peer: Peer, secrets: SecretSource, left: Tensor | None, right: Tensor | None, sizes: Sizes, bits: int
) -> Tensor:
    """Return this party's share of left @ right modulo 2^64: int64 [n, m].

    Args:
        peer: the other party.
        secrets: source of secret bytes.
        left: int64 [n, k], a uniform mask, at its owner; None at the other party.
        right: int64 [k, m] at its owner, with entries below 2^bits in magnitude; None at the other party.
        sizes: (n, k, m).
        bits: public; 64 if ``right`` is a mask.

    """
    encrypts, plan = plan_matmul(sizes, bits)
    own = left if left is not None else right
    if own is None or (left is not None and right is not None):
        raise ValueError("each party gives either `left` or `right`")
    if left is None and bits < WORD and own.numel() and int(own.abs().max()) >> bits:
        raise ValueError(f"`right` has entries of 2^{bits} and more in magnitude; raise `bits`")
    values = own.numpy().view(np.uint64) if encrypts else own.numpy().view(np.uint64).T
    if encrypts == (left is not None):
        result = _encrypt_matrix(peer, Owner(plan.scheme, secrets), plan, values)
    else:
        result = _multiply_matrix(peer, Responder(plan.scheme, secrets, peer), plan, values)
    return torch.from_numpy(np.ascontiguousarray(result if encrypts else result.T).view(np.int64))


def _encrypt_matrix(peer: Peer, owner: Owner, plan: MatrixPlan, left: Words) -> Words:
    """The encrypting party's part: its share [n, m]."""
    (a, b, c), (rows, inner, columns) = plan.block, plan.grid
    blocks = _blocks(left, (a, b), (rows, inner)).reshape(rows * inner, a, b)
    owner.begin(peer)
    for part in parts(len(blocks), AT_ONCE):
        polynomials = np.zeros((len(part), plan.scheme.degree), np.uint64)
        polynomials[:, : a * b * c].reshape(len(part), a, c, b)[:, :, 0] = blocks[part.start : part.stop, :, ::-1]
        owner.send(peer, owner.encrypt(polynomials))
    share = np.empty((rows, a, columns, c), np.uint64)
    for part in parts(columns, _COLUMNS):
        answers = owner.receive(peer, len(part) * rows, plan.places).reshape(len(part), rows, a, c)
        share[:, :, part.start : part.stop] = answers.transpose(1, 2, 0, 3)
    return _trimmed(share, plan.sizes)


def _multiply_matrix(peer: Peer, responder: Responder, plan: MatrixPlan, right: Words) -> Words:
    """The answering party's part: its share [n, m]."""
    (a, b, c), (rows, inner, columns) = plan.block, plan.grid
    polynomials = plan.scheme.ring
    received = [np.empty((rows * inner, plan.scheme.primes, plan.scheme.degree), np.uint64) for _ in range(2)]
    for part in parts(rows * inner, AT_ONCE):
        for whole, some in zip(received, responder.receive(peer, len(part)), strict=True):
            whole[part.start : part.stop] = some
    shape = (plan.scheme.primes, plan.scheme.degree)
    encrypted = [whole.reshape(rows, inner, *shape) for whole in received]
    blocks = _blocks(right, (b, c), (inner, columns))
    share = np.empty((rows, a, columns, c), np.uint64)
    for part in parts(columns, _COLUMNS):
        sums = [np.zeros((len(part), rows, *shape), np.uint64) for _ in range(2)]
        for terms in parts(inner, ntt.TERMS):
            some = blocks[terms.start : terms.stop, part.start : part.stop].transpose(1, 0, 3, 2)
            plain = _transformed(polynomials, some.reshape(len(part) * len(terms), c * b))
            for total, ciphertexts in zip(sums, encrypted, strict=True):
                ntt.accumulate(
                    total,
                    ciphertexts[:, terms.start : terms.stop],
                    plain.reshape(len(part), len(terms), *shape),
                    polynomials.constants,
                )
        own = responder.draw(len(part) * rows, a * c)
        first, second = (total.reshape(len(part) * rows, *shape) for total in sums)
        responder.answer(peer, first, second, plan.places, own)
        share[:, :, part.start : part.stop] = own.reshape(len(part), rows, a, c).transpose(1, 2, 0, 3)
    return _trimmed(share, plan.sizes)


def _transformed(polynomials: Ring, values: Words) -> Words:
    """Transform polynomials whose first coefficients are ``values`` [count, n], in two's complement."""
    whole = np.zeros((len(values), len(polynomials.primes), polynomials.degree), np.uint64)
    whole[:, :, : values.shape[1]] = polynomials.residues(values)
    return polynomials.transform(whole, values.shape[1])


def _blocks(matrix: Words, block: tuple[int, int], grid: tuple[int, int]) -> Words:
    """Cut a matrix into a grid of blocks, filled up with zeros: [*grid, *block]."""
    padded = np.zeros((block[0] * grid[0], block[1] * grid[1]), np.uint64)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded.reshape(grid[0], block[0], grid[1], block[1]).transpose(0, 2, 1, 3)


def _trimmed(share: Words, sizes: Sizes) -> Words:
    """[rows, a, columns, c] → [n, m]."""
    rows, a, columns, c = share.shape
    return share.reshape(rows * a, columns * c)[: sizes[0], : sizes[2]]


def parts(count: int, most: int) -> list[range]:
    """Consecutive ranges of at most ``most``."""
    return [range(start, min(start + most, count)) for start in range(0, count, most)]
