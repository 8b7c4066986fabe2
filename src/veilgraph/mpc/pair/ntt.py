"""Polynomials modulo x^N + 1 and several primes: transforms, samples, rounding, and residues packed into words.

A polynomial is uint64 [L, N]: its residues modulo L primes p < 2^61, p ≡ 1 mod 2N, all in [0, p). The transform
evaluates it at the N odd powers of a primitive 2N-th root of unity, so that products are taken point by point
(number-theoretic transform with Harvey's lazy butterflies, "Faster arithmetic for number-theoretic transforms", 2014).

We wrote the kernels ourselves: the homomorphic libraries that are packaged for Python offer plaintexts modulo a prime
or approximate ones, and no access to the coefficients of ciphertexts. numba compiles them; it lacks the high word of
a product, for which one intrinsic stands here. No branch and no address depends on secret coefficients, except where
``uniform`` draws again, and where ``add_shifted`` has a matrix's entries: ``blocks`` says what that shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt

from veilgraph.core.errors import ConfigError
from veilgraph.mpc.pair import WITHOUT_COMPILER

try:
    from llvmlite import ir
    from numba import njit, types
    from numba.extending import intrinsic
except ImportError as error:
    raise ConfigError(WITHOUT_COMPILER, code="numba-library", key="trust") from error

Words = npt.NDArray[np.uint64]
Function = TypeVar("Function", bound=Callable[..., Any])

PRIME_BITS: Final = 61
"""Most bits of a prime."""
TERMS: Final = 64
"""How many products of two residues a word pair sums without overflow."""
SPARE: Final = 64
"""Words beyond one a residue that ``sample_uniform`` takes, to draw those again that are not below the prime."""

_WORD: Final = 64
_TILE: Final = 128
_0: Final = np.uint64(0)
_1: Final = np.uint64(1)
_3: Final = np.uint64(3)
_HALF: Final = np.uint64(1 << 63)
_NOISE: Final = np.uint64((1 << 21) - 1)
_NOISE_SHIFT: Final = np.uint64(21)
# Columns of the constants c [L, 7]: p, 2^64, 1 and 1/N with their quotients ⌊2^64·value/p⌋, and a mask of p's bits.
P, W64, W64_Q, W1_Q, INV_N, INV_N_Q, MASK = range(7)


def kernel(function: Function) -> Function:
    """Compile at first use, without the interpreter's lock; what is compiled is kept where numba finds room for it."""
    try:
        return cast(Function, njit(nogil=True, cache=True)(function))
    except RuntimeError:  # neither the package's folder nor the user's cache can be written: compile each time
        return cast(Function, njit(nogil=True)(function))


def _inline(function: Function) -> Function:
    return cast(Function, njit(inline="always")(function))


Lowered = tuple[object, Callable[..., object]]
"""What numba takes for an intrinsic: its signature, and a function that builds its instructions."""


def _build_high(_context: object, _left: object, _right: object) -> Lowered:
    def generate(_context: object, builder: ir.IRBuilder, _signature: object, words: list[ir.Value]) -> ir.Value:
        wide = ir.IntType(2 * _WORD)
        product = builder.mul(builder.zext(words[0], wide), builder.zext(words[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, _WORD)), ir.IntType(_WORD))

    return types.uint64(types.uint64, types.uint64), generate


def _build_ones(_context: object, _word: object) -> Lowered:
    def generate(_context: object, builder: ir.IRBuilder, _signature: object, words: list[ir.Value]) -> ir.Value:
        return builder.ctpop(words[0])

    return types.uint64(types.uint64), generate


high: Final = cast(Callable[[np.uint64, np.uint64], np.uint64], intrinsic(_build_high))
"""The high word of the product of two words."""
_ones: Final = cast(Callable[[np.uint64], np.uint64], intrinsic(_build_ones))
"""How many bits of a word are set."""


@_inline
def by_constant(a: np.uint64, w: np.uint64, wq: np.uint64, p: np.uint64) -> np.uint64:
    """a·w mod p, or p more: any word a, w < p, wq = ⌊2^64·w/p⌋ (Shoup)."""
    return a * w - high(a, wq) * p


@_inline
def below(a: np.uint64, p: np.uint64) -> np.uint64:
    """Reduce a word in [0, 2p) modulo p."""
    return a - p if a >= p else a


@_inline
def reduced(hi: np.uint64, lo: np.uint64, c: Words) -> np.uint64:
    """hi·2^64 + lo modulo the prime with the constants c."""
    p = c[P]
    x = by_constant(hi, c[W64], c[W64_Q], p) + by_constant(lo, _1, c[W1_Q], p)
    return below(below(x, p + p), p)


@_inline
def _signed(word: np.uint64, c: Words) -> np.uint64:
    """A word, read in two's complement, modulo the prime with the constants c."""
    p = c[P]
    negative = word >= _HALF
    size = below(by_constant(_0 - word if negative else word, _1, c[W1_Q], p), p)
    return p - size if negative and size != _0 else size


@kernel
def forward(a: Words, w: Words, wq: Words, c: Words, span: int) -> None:
    """Transform [count, L, N] in place, by factors in bit-reversed order; coefficients from ``span`` on are zero."""
    count, primes, n = a.shape
    for i in range(count):
        for k in range(primes):
            p = c[k, P]
            p2 = p + p
            x = a[i, k]
            for start in range(span, n, span):  # a butterfly with a zero copies its other input
                x[start : start + span] = x[:span]
            t, m = span, n // span
            while m < n:
                t >>= 1
                for block in range(m):
                    f, fq = w[k, m + block], wq[k, m + block]
                    left = x[2 * block * t : 2 * block * t + t]
                    right = x[2 * block * t + t : 2 * block * t + 2 * t]
                    for j in range(t):
                        u = below(left[j], p2)
                        v = by_constant(right[j], f, fq, p)
                        left[j] = u + v
                        right[j] = u + p2 - v
                m <<= 1
            for j in range(n):
                x[j] = below(below(x[j], p2), p)


@kernel
def inverse(a: Words, w: Words, wq: Words, c: Words) -> None:
    """Undo ``forward`` in place."""
    count, primes, n = a.shape
    for i in range(count):
        for k in range(primes):
            p = c[k, P]
            p2 = p + p
            x = a[i, k]
            t, m = 1, n >> 1
            while m >= 1:
                for block in range(m):
                    f, fq = w[k, m + block], wq[k, m + block]
                    left = x[2 * block * t : 2 * block * t + t]
                    right = x[2 * block * t + t : 2 * block * t + 2 * t]
                    for j in range(t):
                        u, v = left[j], right[j]
                        left[j] = below(u + v, p2)
                        right[j] = by_constant(u + p2 - v, f, fq, p)
                t <<= 1
                m >>= 1
            for j in range(n):
                x[j] = below(by_constant(x[j], c[k, INV_N], c[k, INV_N_Q], p), p)


@kernel
def multiply(a: Words, b: Words, c: Words) -> Words:
    """Multiply residues one by one; b may have one polynomial for all of a."""
    out = np.empty_like(a)
    for i in range(a.shape[0]):
        for k in range(a.shape[1]):
            for j in range(a.shape[2]):
                x, y = a[i, k, j], b[i % b.shape[0], k, j]
                out[i, k, j] = reduced(high(x, y), x * y, c[k])
    return out


@kernel
def add(a: Words, b: Words, c: Words) -> None:
    """Add b to a in place."""
    for i in range(a.shape[0]):
        for k in range(a.shape[1]):
            for j in range(a.shape[2]):
                a[i, k, j] = below(a[i, k, j] + b[i, k, j], c[k, P])


@kernel
def subtract(a: Words, b: Words, c: Words) -> None:
    """Subtract b from a in place."""
    for i in range(a.shape[0]):
        for k in range(a.shape[1]):
            for j in range(a.shape[2]):
                a[i, k, j] = below(a[i, k, j] + c[k, P] - b[i, k, j], c[k, P])


@kernel
def uniform(words: Words, c: Words, n: int) -> Words:
    """Uniform residues from words [count, L·N + SPARE]."""
    count, primes = words.shape[0], c.shape[0]
    out = np.empty((count, primes, n), np.uint64)
    for i in range(count):
        spare = primes * n
        for k in range(primes):
            for j in range(n):
                x = words[i, k * n + j] & c[k, MASK]
                while x >= c[k, P] and spare < words.shape[1]:
                    x = words[i, spare] & c[k, MASK]
                    spare += 1
                out[i, k, j] = below(x, c[k, P])
    return out


@kernel
def ternary(words: Words, c: Words) -> Words:
    """Residues of −1, 0 or 1 from words [count, N]."""
    out = np.empty((words.shape[0], c.shape[0], words.shape[1]), np.uint64)
    for i in range(words.shape[0]):
        for k in range(c.shape[0]):
            for j in range(words.shape[1]):
                out[i, k, j] = below(words[i, j] % _3 + c[k, P] - _1, c[k, P])
    return out


@kernel
def noise(words: Words, c: Words) -> Words:
    """Residues of centred binomial numbers, 21 coins less 21 others, from words [count, N]."""
    out = np.empty((words.shape[0], c.shape[0], words.shape[1]), np.uint64)
    for i in range(words.shape[0]):
        for j in range(words.shape[1]):
            word = words[i, j]
            plus, minus = _ones(word & _NOISE), _ones((word >> _NOISE_SHIFT) & _NOISE)
            for k in range(c.shape[0]):
                out[i, k, j] = below(plus + c[k, P] - minus, c[k, P])
    return out


@kernel
def residues(words: Words, c: Words) -> Words:
    """Residues [count, L, n] of words [count, n] in two's complement."""
    out = np.empty((words.shape[0], c.shape[0], words.shape[1]), np.uint64)
    for i in range(words.shape[0]):
        for k in range(c.shape[0]):
            for j in range(words.shape[1]):
                out[i, k, j] = _signed(words[i, j], c[k])
    return out


@kernel
def wide_residues(hi: Words, lo: Words, c: Words, signed: bool) -> Words:
    """Residues [count, L, n] of hi·2^64 + lo, read in two's complement if ``signed``."""
    out = np.empty((hi.shape[0], c.shape[0], hi.shape[1]), np.uint64)
    for i in range(hi.shape[0]):
        for k in range(c.shape[0]):
            p = c[k, P]
            for j in range(hi.shape[1]):
                x = reduced(hi[i, j], lo[i, j], c[k])
                if signed and hi[i, j] >= _HALF:  # 2^128 less
                    x = below(x + p - below(by_constant(c[k, W64], c[k, W64], c[k, W64_Q], p), p), p)
                out[i, k, j] = x
    return out


@kernel
def by_constants(a: Words, w: Words, wq: Words, c: Words) -> None:
    """Multiply a in place by one w for each prime."""
    for i in range(a.shape[0]):
        for k in range(a.shape[1]):
            for j in range(a.shape[2]):
                a[i, k, j] = below(by_constant(a[i, k, j], w[k], wq[k], c[k, P]), c[k, P])


@kernel
def fractions(a: Words, inverse: Words, half: int) -> tuple[Words, Words]:
    """Σ_k a_k/p_k modulo 1, plus 2^(half − 128), as two words; inverse [L, 3]: ⌊2^192/p⌋, its high word first."""
    hi, lo = np.empty((a.shape[0], a.shape[2]), np.uint64), np.empty((a.shape[0], a.shape[2]), np.uint64)
    first = _1 << np.uint64(half - 64) if half >= 64 else _0
    second = _1 << np.uint64(half) if half < 64 else _0
    for i in range(a.shape[0]):
        for j in range(a.shape[2]):
            x1, x0 = first, second
            for k in range(a.shape[1]):
                y = a[i, k, j]
                x1 += y * inverse[k, 0] + high(y, inverse[k, 1])
                for part in (y * inverse[k, 1], high(y, inverse[k, 2])):
                    x0 += part
                    x1 += _1 if x0 < part else _0
            hi[i, j], lo[i, j] = x1, x0
    return hi, lo


@kernel
def shifted(hi: Words, lo: Words, by: int) -> tuple[Words, Words]:
    """(hi·2^64 + lo) >> by, for 0 < by < 128."""
    if by >= 64:
        return np.zeros_like(hi), hi >> np.uint64(by - 64)
    return hi >> np.uint64(by), (lo >> np.uint64(by)) | (hi << np.uint64(64 - by))


@kernel
def integers(a: Words, inverse: Words, basis: Words, q: Words) -> tuple[Words, Words]:
    """Σ_k a_k·basis_k − round(Σ_k a_k/p_k)·q modulo 2^128, as two words; basis [L, 2] and q [2]: high word first."""
    hi, lo = np.empty((a.shape[0], a.shape[2]), np.uint64), np.empty((a.shape[0], a.shape[2]), np.uint64)
    for i in range(a.shape[0]):
        for j in range(a.shape[2]):
            x1, x0, turns, before = _0, _0, _0, _0
            for k in range(a.shape[1]):
                y = a[i, k, j]
                part = y * basis[k, 1]
                x0 += part
                x1 += high(y, basis[k, 1]) + y * basis[k, 0] + (_1 if x0 < part else _0)
                ahead = before + y * inverse[k, 0] + high(y, inverse[k, 1])
                turns += _1 if ahead < before else _0
                before = ahead
            turns += _1 if before >= _HALF else _0
            part = turns * q[1]
            x1 -= high(turns, q[1]) + turns * q[0] + (_1 if x0 < part else _0)
            hi[i, j], lo[i, j] = x1, x0 - part
    return hi, lo


@kernel
def messages(hi: Words, lo: Words, hi_too: Words, lo_too: Words, bits: int, modulus: np.uint64) -> Words:
    """round(x·t/2^bits) modulo t for x = the sum of two integers of word pairs; ``modulus``: t, or 0 for t = 2^64."""
    out = np.empty(hi.shape, np.uint64)
    up = 128 - bits
    for i in range(hi.shape[0]):
        for j in range(hi.shape[1]):
            x0 = lo[i, j] + lo_too[i, j]
            x1 = hi[i, j] + hi_too[i, j] + (_1 if x0 < lo[i, j] else _0)
            if up >= 64:
                x1, x0 = x0 << np.uint64(up - 64), _0
            else:
                x1, x0 = (x1 << np.uint64(up)) | (x0 >> np.uint64(64 - up)), x0 << np.uint64(up)
            if modulus == _0:
                out[i, j] = x1 + (x0 >> np.uint64(63))
            else:
                whole, part, carry = high(x1, modulus), x1 * modulus, high(x0, modulus)
                part += carry
                whole += _1 if part < carry else _0
                whole += _1 if part >= _HALF else _0
                out[i, j] = whole - modulus if whole >= modulus else whole
    return out


@kernel
def accumulate(sums: Words, polynomials: Words, plain: Words, c: Words) -> None:
    """sums[j, i] += Σ_k polynomials[i, k]·plain[j, k], all transformed, over at most ``TERMS`` k.

    sums [J, I, L, N], polynomials [I, K, L, N], plain [J, K, L, N].
    """
    columns, terms = plain.shape[0], plain.shape[1]
    hi, lo = np.empty(_TILE, np.uint64), np.empty(_TILE, np.uint64)
    for i in range(polynomials.shape[0]):
        for k in range(sums.shape[2]):
            for start in range(0, sums.shape[3], _TILE):
                for j in range(columns):
                    hi[:] = _0
                    lo[:] = _0
                    for term in range(0, terms - 1, 2):  # two at a time, as both sums are read and written for each
                        x, y = polynomials[i, term, k, start : start + _TILE], plain[j, term, k, start : start + _TILE]
                        u = polynomials[i, term + 1, k, start : start + _TILE]
                        v = plain[j, term + 1, k, start : start + _TILE]
                        for point in range(_TILE):
                            one, other = x[point] * y[point], u[point] * v[point]
                            above = high(x[point], y[point]) + high(u[point], v[point])
                            both = one + other
                            total = lo[point] + both
                            lo[point] = total
                            hi[point] += above + (_1 if both < other else _0) + (_1 if total < both else _0)
                    if terms % 2:
                        x = polynomials[i, terms - 1, k, start : start + _TILE]
                        y = plain[j, terms - 1, k, start : start + _TILE]
                        for point in range(_TILE):
                            one = x[point] * y[point]
                            total = lo[point] + one
                            lo[point] = total
                            hi[point] += high(x[point], y[point]) + (_1 if total < one else _0)
                    out = sums[j, i, k, start : start + _TILE]
                    for point in range(_TILE):
                        out[point] = below(out[point] + reduced(hi[point], lo[point], c[k]), c[k, P])


@kernel
def add_shifted(
    first: Words,
    second: Words,
    ciphertexts: tuple[Words, Words],
    places: Words,
    entries: tuple[Words, Words],
    factors: tuple[Words, Words],
    c: Words,
) -> None:
    """Add Σ_e f_e·x^(s_e)·ciphertext[i, k_e] for every i: coefficients, not transformed.

    first [I, L, P] at the places, second [I, L, N]; ciphertexts: [I, K, L, kept] and [I, K, L, N]; entries: k and s
    [E]; factors: residues [E, L] and their quotients.
    """
    blocks, shifts = entries
    n = second.shape[2]
    for i in range(second.shape[0]):
        for k in range(second.shape[1]):
            p = c[k, P]
            p2 = p + p
            out, out_first = second[i, k], first[i, k]
            for e in range(blocks.size):
                f, fq, shift = factors[0][e, k], factors[1][e, k], np.int64(shifts[e])
                x, x_first = ciphertexts[1][i, blocks[e], k], ciphertexts[0][i, blocks[e], k]
                if f == _1:  # most edges' weight
                    for j in range(shift):
                        out[j] = below(out[j] + p2 - x[n - shift + j], p2)
                    for j in range(n - shift):
                        out[shift + j] = below(out[shift + j] + x[j], p2)
                else:
                    for j in range(shift):
                        out[j] = below(out[j] + p2 - by_constant(x[n - shift + j], f, fq, p), p2)
                    for j in range(n - shift):
                        out[shift + j] = below(out[shift + j] + by_constant(x[j], f, fq, p), p2)
                for j in range(places.size):
                    place = np.int64(places[j]) - shift
                    y = by_constant(x_first[place if place >= 0 else place + n], f, fq, p)
                    out_first[j] = below(out_first[j] + (y if place >= 0 else p2 - y), p2)
            for j in range(n):
                out[j] = below(out[j], p)
            for j in range(places.size):
                out_first[j] = below(out_first[j], p)
