"""A Gaussian release in place of what was composed numerically, so that it can be added up under a filter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from veilgraph.privacy.accountant import gaussian_delta

if TYPE_CHECKING:
    from dp_accounting.pld import PLDAccountant

_STEPS: Final = 300


def stand_in(composed: PLDAccountant, failure: float) -> float:
    """μ of a Gaussian release that is no harder to tell apart, but for a probability ``failure``.

    For all ε: δ(ε) ≤ failure + (1 − failure)·δ_μ(ε). So whatever is released is no more than a release that shows all
    with that probability and is a Gaussian one of μ else. The Gaussian's divergences are symmetric, and both directions
    are held against it, so ε ≥ 0 is all there is to look at. Between two places that are looked at
    the left one's δ is held against the right one's.

    Args:
        composed: of all that is released.
        failure: in (0, 1).

    Returns:
        μ; infinite where there is none.
    """
    last = float(composed.get_epsilon(failure))
    if math.isinf(last):
        return math.inf
    places = np.linspace(0.0, last, _STEPS + 1)
    needed = [(composed.get_delta(place) - failure) / (1 - failure) for place in places]

    def enough(mu: float) -> bool:
        return all(
            need <= 0 or need <= gaussian_delta(float(right), mu)
            for need, right in zip(needed[:-1], places[1:], strict=True)
        )

    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
