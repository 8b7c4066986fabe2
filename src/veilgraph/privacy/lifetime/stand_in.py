"""A Gaussian release in place of what was composed numerically, so that it can be added up under a filter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from veilgraph.privacy.accountant import gaussian_delta

if TYPE_CHECKING:
    from dp_accounting.pld import PLDAccountant

_STEPS: Final = 300
_LARGEST: Final = 2.0**20
"""μ from which on no Gaussian release is looked for: its δ is 1 at every ε that is asked for."""


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
    needed = [min(1.0, (composed.get_delta(place) - failure) / (1 - failure)) for place in places[:-1]]
    pairs = [(need, float(right)) for need, right in zip(needed, places[1:], strict=True) if need > 0]

    def enough(mu: float) -> bool:
        for place, (need, right) in enumerate(pairs):
            if need > gaussian_delta(right, mu):
                pairs.insert(0, pairs.pop(place))  # most likely what refuses the next μ as well
                return False
        return True

    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
        if high > _LARGEST:
            return math.inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
