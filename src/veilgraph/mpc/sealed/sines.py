"""Sums of sines of a secret number: what a periodic function of a wire costs is shares that the dealer sends.

Of x = Λ − λ and ω_k = 2π·k / P, sin(ω_k·x) = sin(ω_k·Λ)·cos(ω_k·λ) − cos(ω_k·Λ)·sin(ω_k·λ). All holders know Λ, and get
shares of the sines and cosines of λ. P is a power of two, so what λ wraps around in the ring is whole periods.

A public factor multiplies shares, which are uniform: it must be the same at all holders to the last bit, whatever
library of sines they have. So angles are turned in whole numbers, by the tables of ``circle``, whose entries no
library's error changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, reduce
from itertools import accumulate, islice, repeat
from typing import Final

import torch
from torch import Tensor

from veilgraph.mpc.sealed.kept_bytes import Kept

UNIT_BITS: Final = 30  # fractional bits of sines and cosines
FACTOR_BITS: Final = 22  # of a coefficient times a public one
SUM_BITS: Final = UNIT_BITS + FACTOR_BITS
RAISED_BITS: Final = 8  # by which shares are raised, so that fewer bytes of them matter: Σ |b_j| < 3 stays below 2^62
TABLE_BITS: Final = 12  # of an angle that one table turns by


@cache
def circle(level: int) -> Tensor:
    """Cosines and sines of i / 2^(12·(level + 1)) turns for i < 2^12, rounded to ``UNIT_BITS``: int64 [2, 2^12]."""
    turns = [2 * math.pi * place * 2.0 ** (-TABLE_BITS * (level + 1)) for place in range(1 << TABLE_BITS)]
    one = 1 << UNIT_BITS
    return torch.tensor([[round(part(turn) * one) for turn in turns] for part in (math.cos, math.sin)])


def odd_multiples(numbers: Tensor, turn_bits: int, count: int) -> Iterator[Tensor]:
    """Yield cosine and sine, int64 [2, …], of 1, 3, … times an angle of ``numbers`` / 2^``turn_bits`` turns."""
    tables = -(-turn_bits // TABLE_BITS)
    angle = (numbers & ((1 << turn_bits) - 1)) << (tables * TABLE_BITS - turn_bits)
    turns = [angle >> (tables - 1 - level) * TABLE_BITS & ((1 << TABLE_BITS) - 1) for level in range(tables)]
    point = reduce(_turn, (circle(level)[:, places] for level, places in enumerate(turns)))
    twice = _turn(point, point)
    return islice(accumulate(repeat(twice), _turn, initial=point), count)


def kept_of(factor: float) -> Kept:
    """Bytes of a raised share that matter, with this b_j up to 1: what is rounded off changes no term by 2^-22."""
    octets = 6 if abs(factor) > 2.0**-8 else 5
    return 64 - 8 * octets, octets


def _turn(point: Tensor, angle: Tensor) -> Tensor:
    """Product of two complex numbers of length 1, [2, …] each, up to two units."""
    (a, b), (c, d) = point, angle
    return torch.stack([(a * c - b * d) >> UNIT_BITS, (a * d + b * c) >> UNIT_BITS])


def share_of_sum(factors: Sequence[float], known: Iterable[Tensor], dealt: Iterable[Tensor]) -> Tensor:
    """Σ_j b_j·(sin(ω_j·Λ)·c_j − cos(ω_j·Λ)·s_j), with ``SUM_BITS``, of Λ's cosines and sines and shares (c_j, s_j)."""
    total = torch.zeros((), dtype=torch.int64)
    for factor, (cosine, sine), (c, s) in zip(factors, known, dealt, strict=True):
        whole, half = round(factor * 2.0**FACTOR_BITS), 1 << UNIT_BITS - 1
        total = total + (sine * whole + half >> UNIT_BITS) * c - (cosine * whole + half >> UNIT_BITS) * s
    return total
