"""Trade-offs that a ledger's releases claim, of which an audit looks for the largest that is refuted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from veilgraph.privacy.accountant import gaussian_epsilon

Level = Callable[[float], float]
"""Power of a test → the least level that it has, by a trade-off: F⁻¹."""


class Claims(Protocol):
    """Trade-off functions by privacy loss, of which an audit looks for the largest that is refuted."""

    def level(self, loss: float) -> Level:
        """Return F⁻¹, power → least level, of a loss above 0; a larger loss never raises a level."""

    def epsilon(self, loss: float, delta: float) -> float:
        """Return the ε of a loss at δ; a larger loss never lowers it."""


class GaussianClaims:
    """Trade-offs of Gaussian differential privacy; a ``loss`` is its parameter μ."""

    def level(self, loss: float) -> Level:
        """Power of a test → the least level that it has under μ = ``loss``; see ``Claims``."""
        from scipy.special import ndtr, ndtri  # noqa: PLC0415 - slow to import, and an audit alone asks

        return lambda power: float(ndtr(ndtri(power) - loss))

    def epsilon(self, loss: float, delta: float) -> float:
        """The ε of μ = ``loss`` at ``delta``; see ``Claims``."""
        return gaussian_epsilon(loss, delta)
