"""Gaussian noise on whole numbers of a ring, as the dealer adds it to its summand.

What is noised are whole numbers v, so multiples of the grid g ≤ 1 of ``privacy.noise``: v + n, n = g·Z, is a release of
that module's, with nothing rounded before. It is rounded to 2^-b: round(v + n) = v + round(n), for v is an even number
of units of 2^-b where b ≥ 1 (ties go to even). So v + round(n) follows from the release alone, and costs no more.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor, int64

from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import SecretSource
from veilgraph.privacy.noise import gaussian

LARGEST_DEVIATION: Final = 2.0**17
"""With 13.2 of them, the most that is ever drawn, numbers of Z_2^32 with eight fractional bits do not wrap around."""


def rounded_gaussian(shape: tuple[int, ...], deviation: float, bits: int, source: SecretSource) -> Tensor:
    """Independent N(0, deviation²) values in units of 2^-bits, rounded: int64 tensor of ``shape``.

    Args:
        shape: of the result.
        deviation: standard deviation of one value.
        bits: fractional bits, at least 1.
        source: of the seed that the values are expanded from.

    Raises:
        ConfigError: the deviation is beyond ``LARGEST_DEVIATION``, or out of the range of ``privacy.noise``.
        ValueError: there are no fractional bits.
    """
    if bits < 1:
        raise ValueError(f"bits={bits}: rounding to whole numbers is not the same before and after a sum; give one")
    if deviation > LARGEST_DEVIATION:
        raise ConfigError(
            f"privacy: noise of deviation {deviation:g} does not fit the ring, whose most is {LARGEST_DEVIATION:g}: "
            "raise privacy.epsilon_total, or leave the release out",
            key="privacy",
            value=deviation,
        )
    return gaussian(shape, deviation, source).mul_(2.0**bits).round_().to(int64)
