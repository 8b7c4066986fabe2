"""Cubic polynomials in place of tanh and the sigmoid: sums and products are all that secret sharing computes cheaply.

VFGNN (4.2) takes the Taylor expansion of degree 3; here it is the least squares fit on an interval, which errs less
where values are not small and has the same price.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]
_POINTS = 4001


@dataclass(frozen=True)
class Cubic:
    """offset + linear·x + cubic·x³, for a function that is odd about its value at 0.

    Attributes:
        offset: value at 0.
        linear: coefficient of x.
        cubic: coefficient of x³.
        radius: it is fitted on [−radius, radius]; outside it leaves the function for ±∞.
        error: the largest deviation from the function on that interval.
    """

    offset: float
    linear: float
    cubic: float
    radius: float
    error: float

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """Offset, linear, cubic."""
        return self.offset, self.linear, self.cubic


def fit_cubic(function: Function, radius: float) -> Cubic:
    """The least squares fit on an even grid over [−radius, radius].

    Args:
        function: odd about its value at 0, as tanh and the sigmoid are; on float64 arrays.
        radius: above 0.
    """
    x = np.linspace(-radius, radius, _POINTS)
    powers, offset = np.stack([x, x**3], axis=1), float(function(np.zeros(1))[0])
    wanted = function(x) - offset
    (linear, cubic), *_ = np.linalg.lstsq(powers, wanted, rcond=None)
    error = float(np.abs(powers @ np.array([linear, cubic]) - wanted).max())
    return Cubic(offset, float(linear), float(cubic), radius, error)


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + e⁻ˣ)."""
    return 1 / (1 + np.exp(-x))
