r"""Two-sided geometric noise on whole numbers: P(z) ∝ α^|z| with α = e^−ε, drawn exactly.

Proof: docs/explanation/proofs.md#noise-on-whole-numbers.

z = x − y, of two independent geometric numbers, P(x ≥ k) = α^k. The binary digits of such a number are independent:
digit j is 1 with probability p_j = 1/(1 + e^(ε·2^j)). So J digits are J biased bits, and what is left above them is a
geometric number again, of α^(2^J).

A biased bit is u < p for a uniform real u, whose digits are drawn 63 at a time until they differ from those of p. They
do at once, but for a chance of 2^-63. Digits of p are computed as far as they are needed. So every probability is
exact: there is no rounding that ε would have to pay for, and no value that cannot be drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource

LEAST_EPSILON, _MOST_EPSILON = 2.0**-40, 2.0**20
"""Less is no use, and noise of it would not fit the whole numbers of 64 bits; of more, noise is as of this."""
_WORD: Final = 63  # bits
_SURE: Final = 64.0  # digits are drawn up to where the next one would be 1 with a chance of e^-64
_DIGITS: Final = 40  # decimal, beyond those that a word needs


@torch.no_grad()
def two_sided(shape: tuple[int, ...], epsilon: float, source: SecretSource) -> Tensor:
    """Draw independent two-sided geometric numbers: int64 of ``shape``, expanded from a seed of ``source``.

    Raises ``ConfigError``: ε is not finite, or below ``LEAST_EPSILON``.
    """
    if not LEAST_EPSILON <= epsilon < math.inf:
        raise ConfigError(
            f"epsilon={epsilon!r} of noise on whole numbers must be finite and at least {LEAST_EPSILON:g}; raise it",
            key="epsilon",
            value=epsilon,
        )
    words, drawn = Words(source(SEED_BYTES)), min(epsilon, _MOST_EPSILON)
    return _draw_geometric(shape, drawn, words) - _draw_geometric(shape, drawn, words)


class Words:
    """Uniform words of 63 bits, each drawn once."""

    def __init__(self, seed: bytes) -> None:
        self._seed, self._drawn = seed, 0

    def take(self, shape: tuple[int, ...]) -> Tensor:
        """Draw the next words: uniform int64 in [0, 2^63), of ``shape``."""
        self._drawn += 1
        return expand(self._seed, f"geometric/{self._drawn}", shape).bitwise_and_((1 << _WORD) - 1)


def _draw_geometric(shape: tuple[int, ...], epsilon: float, words: Words) -> Tensor:
    """Draw independent geometric numbers, P(x ≥ k) = e^(−ε·k): int64 of ``shape``."""
    count = math.prod(shape)
    digits = max(0, math.ceil(math.log2(_SURE / epsilon)))
    found = torch.zeros(count, dtype=torch.int64)
    for digit in range(digits):
        found += biased(Chance(epsilon, digit, 1), words.take((count,)), words) << digit
    # All of the rest is 0 but for a chance of e^-64 an entry: one more draw, and so every value takes the same steps.
    left = torch.arange(count)
    while len(left):
        more = biased(Chance(epsilon, digits, 0), words.take((len(left),)), words)
        left = left[more.bool()]
        found[left] += 1 << digits
    return found.reshape(shape)


@dataclass(frozen=True)
class Chance:
    """The real number 1/(``beside`` + e^(ε·2^digit)), below 1."""

    epsilon: float
    digit: int
    beside: int

    def word(self, place: int) -> int:
        """Return the number's place-th 63 binary digits after the point, from 0, as an integer."""
        return _binary_digits(self, place) & ((1 << _WORD) - 1)


@lru_cache(maxsize=256)
def _binary_digits(chance: Chance, place: int) -> int:
    """⌊p·2^(63·(place + 1))⌋: both ends of an interval around p have it, or p is computed to more digits."""
    scale, precision = 1 << (_WORD * (place + 1)), 20 * (place + 1) + _DIGITS
    while True:
        with localcontext(prec=precision, Emax=10**15, Emin=-(10**15)):
            p = 1 / (chance.beside + (Decimal(chance.epsilon) * (1 << chance.digit)).exp())
            error = p * Decimal(10) ** (10 - precision)
            low, high = (math.floor((p + side) * scale) for side in (-error, error))
        if low == high:
            return low
        precision *= 2


def biased(chance: Chance, first: Tensor, words: Words) -> Tensor:
    """Draw bits that are 1 with that chance, int64 [n], by uniform first words [n], and more words where these tie."""
    least = chance.word(0)
    found = (first < least).to(torch.int64)
    equal, place = (first == least).nonzero()[:, 0], 1
    while len(equal):
        more, least = words.take((len(equal),)), chance.word(place)
        found[equal] = (more < least).to(torch.int64)
        equal, place = equal[more == least], place + 1
    return found


def variance(epsilon: float) -> float:
    """Return the variance of two-sided noise, 2·α/(1 − α)²; 0 where ε is infinite."""
    return 1 / (2 * math.sinh(epsilon / 2) ** 2) if epsilon < _SURE else 2 * math.exp(-epsilon)
