"""The ring Z_q[x]/(x^N + 1) for q a product of primes: what ``ntt`` computes, with its tables."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache
from math import prod
from typing import Final

import numpy as np

from veilgraph.core.randomness import Keystream
from veilgraph.mpc.pair import ntt
from veilgraph.mpc.pair.ntt import Words

_WITNESSES: Final = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""Miller and Rabin's test with these errs for no number below 2^64 (Sorenson and Webster, 2017)."""
_TABLES: Final = 64
_LOW: Final = (1 << 64) - 1


def is_prime(number: int) -> bool:
    """Tell whether an odd number from 41 to 2^64 is a prime."""
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    for witness in _WITNESSES:
        power = pow(witness, number >> twos, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


@lru_cache(_TABLES)
def primes_below(bits: int, count: int, degree: int) -> tuple[int, ...]:
    """The ``count`` largest primes p < 2^bits with p ≡ 1 mod 2·degree."""
    candidates = range((1 << bits) + 1 - 2 * degree, 1, -2 * degree)
    found = (candidate for candidate in candidates if is_prime(candidate))
    return tuple(next(found) for _ in range(count))


def words(stream: Keystream, *shape: int) -> Words:
    """Uniform words of a keystream."""
    return stream.take(8 * prod(shape)).numpy().view(np.uint64).reshape(shape)


class Ring:
    """Arithmetic on batches uint64 [count, L, N] of residues of polynomials, of coefficients or transformed."""

    def __init__(self, degree: int, primes: tuple[int, ...]) -> None:
        self.degree, self.primes, self.modulus = degree, primes, prod(primes)
        self.bits = max(primes).bit_length()
        self._constants = _table(_constants(p, degree) for p in primes)
        roots = [_root(p, degree) for p in primes]
        self._forward = self._powers(roots)
        self._inverse = self._powers([pow(root, -1, p) for root, p in zip(roots, primes, strict=True)])

    def _powers(self, roots: list[int]) -> tuple[Words, Words]:
        """Each root's powers in bit-reversed order, and their quotients."""
        digits = self.degree.bit_length() - 1
        order = [int(f"{place:0{digits}b}"[::-1], 2) for place in range(self.degree)]
        rows = []
        for root, p in zip(roots, self.primes, strict=True):
            powers = [1]
            for _ in range(self.degree - 1):
                powers.append(powers[-1] * root % p)
            rows.append([powers[place] for place in order])
        quotients = [[(value << 64) // p for value in row] for row, p in zip(rows, self.primes, strict=True)]
        return _table(rows), _table(quotients)

    @property
    def constants(self) -> Words:
        """[L, 7]: ``ntt``'s constants of each prime."""
        return self._constants

    def transform(self, polynomials: Words, span: int | None = None) -> Words:
        """Transform in place; coefficients from ``span``, a power of two, on are taken for zeros."""
        ntt.forward(polynomials, *self._forward, self._constants, span or self.degree)
        return polynomials

    def untransform(self, polynomials: Words) -> Words:
        """Undo ``transform`` in place."""
        ntt.inverse(polynomials, *self._inverse, self._constants)
        return polynomials

    def multiply(self, left: Words, right: Words) -> Words:
        """Products of transformed polynomials; ``right`` may be one for all."""
        return ntt.multiply(left, right, self._constants)

    def add(self, to: Words, other: Words) -> Words:
        """Add in place."""
        ntt.add(to, other, self._constants)
        return to

    def subtract(self, of: Words, other: Words) -> Words:
        """Subtract in place."""
        ntt.subtract(of, other, self._constants)
        return of

    def uniform(self, stream: Keystream, count: int) -> Words:
        """Uniform polynomials; two that have the same stream draw the same."""
        drawn = words(stream, count, len(self.primes) * self.degree + ntt.SPARE)
        return ntt.uniform(drawn, self._constants, self.degree)

    def ternary(self, stream: Keystream, count: int) -> Words:
        """Coefficients −1, 0 and 1, a third each up to 2^-63."""
        return ntt.ternary(words(stream, count, self.degree), self._constants)

    def noise(self, stream: Keystream, count: int) -> Words:
        """Coefficients of the centred binomial distribution of variance 10.5: at most 21 in magnitude."""
        return ntt.noise(words(stream, count, self.degree), self._constants)

    def residues(self, values: Words) -> Words:
        """[count, n] words in two's complement: their residues [count, L, n]."""
        return ntt.residues(np.ascontiguousarray(values), self._constants)

    def wide_residues(self, hi: Words, lo: Words, *, signed: bool) -> Words:
        """[count, n] integers hi·2^64 + lo, of 128 bits: their residues [count, L, n]."""
        return ntt.wide_residues(hi, lo, self._constants, signed)

    def scaled(self, messages: Words, modulus: int) -> Words:
        """Residues of q·m/t rounded to the next integer, for messages m [count, n] modulo t.

        With r ≡ q·m mod t, |r| ≤ t/2, it is (q·m − r)/t, which is −r/t modulo q. t is a power of two or a prime.
        """
        if modulus & (modulus - 1):
            rest = _mod_t(modulus).by_constants(messages[:, None].copy(), [self.modulus])[:, 0]
            rest = np.where(rest > modulus // 2, rest - np.uint64(modulus), rest)
        else:
            left = np.uint64(65 - modulus.bit_length())
            rest = messages * np.uint64(self.modulus & _LOW) << left
            rest = (rest.view(np.int64) >> left.astype(np.int64)).view(np.uint64)
        return self.by_constants(self.residues(rest), [-pow(modulus, -1, p) for p in self.primes])

    def by_constants(self, values: Words, factors: list[int]) -> Words:
        """Multiply in place by one constant for each prime."""
        rows = [factor % p for factor, p in zip(factors, self.primes, strict=True)]
        quotients = [(row << 64) // p for row, p in zip(rows, self.primes, strict=True)]
        ntt.by_constants(values, np.array(rows, np.uint64), np.array(quotients, np.uint64), self._constants)
        return values

    def factors(self, values: Words) -> tuple[Words, Words]:
        """Words in two's complement [n] as constants: residues [n, L] and their quotients ⌊2^64·residue/p⌋."""
        residues = np.ascontiguousarray(self.residues(values[None])[0].T)
        distinct, places = np.unique(residues, axis=0, return_inverse=True)
        quotients = _table([(int(x) << 64) // p for x, p in zip(row, self.primes, strict=True)] for row in distinct)
        return residues, quotients.reshape(-1, len(self.primes))[places.reshape(-1)]

    @cached_property
    def _inverses(self) -> Words:
        """[L, 3]: ⌊2^192/p⌋, its high word first."""
        return _table([(1 << 192) // p >> shift & _LOW for shift in (128, 64, 0)] for p in self.primes)

    def _digits(self, values: Words) -> Words:
        """Digits y with Σ_k y_k·q/p_k ≡ x mod q, for x [count, L, n]."""
        return self.by_constants(values.copy(), [pow(self.modulus // p, -1, p) for p in self.primes])

    def switched(self, values: Words, bits: int) -> tuple[Words, Words]:
        """x·2^bits/q rounded, modulo 2^bits, for x [count, L, n]: the high and the low word of each [count, n]."""
        hi, lo = ntt.fractions(self._digits(values), self._inverses, 127 - bits)
        return ntt.shifted(hi, lo, 128 - bits)

    def integers(self, values: Words) -> tuple[Words, Words]:
        """The integers around zero that are x modulo q, modulo 2^128, for x [count, L, n]: high and low words."""
        basis = _table([self.modulus // p >> 64 & _LOW, self.modulus // p & _LOW] for p in self.primes)
        q = np.array([self.modulus >> 64 & _LOW, self.modulus & _LOW], np.uint64)
        return ntt.integers(self._digits(values), self._inverses, basis, q)


@lru_cache(_TABLES)
def ring(degree: int, bits: int, count: int) -> Ring:
    """The ring of the ``count`` largest primes of so many bits; tables are made once."""
    return Ring(degree, primes_below(bits, count, degree))


@lru_cache(_TABLES)
def _mod_t(modulus: int) -> Ring:
    """Arithmetic modulo one prime."""
    return Ring(1, (modulus,))


def _constants(p: int, degree: int) -> list[int]:
    word, inverse = (1 << 64) % p, pow(degree, -1, p)
    return [p, word, (word << 64) // p, (1 << 64) // p, inverse, (inverse << 64) // p, (1 << p.bit_length()) - 1]


def _root(p: int, degree: int) -> int:
    """A primitive 2·degree-th root of unity."""
    base = next(base for base in range(2, p) if pow(base, (p - 1) // 2, p) == p - 1)
    return pow(base, (p - 1) // (2 * degree), p)


def _table(rows: Iterable[list[int]]) -> Words:
    return np.array(list(rows), np.uint64)
