"""Sums of floating-point numbers as whole numbers: exact, so that neither order nor division among holders matters."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

FRACTION_BITS: Final = 300
"""A number v is the integer v·2^300, which holds every float32 and every square of one exactly."""

AT_ONCE: Final = 1 << 24
"""Sums of so many pieces of 28 bits are exact in float64."""

_HIGH_BITS, _DIGITS = 27, 53


def exact_sums(places: NDArray[np.int64], values: NDArray[np.floating | np.integer], width: int) -> list[int]:
    """The sum of the values at each place, times 2^300.

    Args:
        places: [n], each in 0 … ``width`` − 1.
        values: [n] finite; what is below 2^−300 of a float64 is rounded down.
        width: number of places.
    """
    sums = [0] * width
    for start in range(0, len(values), AT_ONCE):
        at, piece = places[start : start + AT_ONCE], values[start : start + AT_ONCE].astype(np.float64)
        fractions, exponents = np.frexp(piece)
        lowest = int(exponents.min())
        span = int(exponents.max()) - lowest + 1
        keys = at * span + (exponents - lowest)
        scaled = fractions * 2.0**_HIGH_BITS
        high = np.trunc(scaled)
        low = (scaled - high) * 2.0 ** (_DIGITS - _HIGH_BITS)
        for part, digits in ((high, _HIGH_BITS), (low, _DIGITS)):
            by_exponent = np.bincount(keys, weights=part, minlength=width * span)
            for key in np.flatnonzero(by_exponent).tolist():
                place, exponent = divmod(key, span)
                sums[place] += _shifted(int(by_exponent[key]), exponent + lowest - digits + FRACTION_BITS)
    return sums


def exact(value: float) -> int:
    """A finite number times 2^300, rounded down."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << FRACTION_BITS) // denominator


def mean_of(total: int, count: int) -> float:
    """The mean of ``count`` > 0 numbers whose exact sum is ``total``: the nearest float64."""
    return total / (count << FRACTION_BITS)


def _shifted(number: int, bits: int) -> int:
    return number << bits if bits >= 0 else number >> -bits
