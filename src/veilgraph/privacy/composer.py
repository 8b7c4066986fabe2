"""The numerical accountant. Imported at first use, for it loads ``dp_accounting``."""

from __future__ import annotations

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray

Values = NDArray[np.float64]


class Composer(PLDAccountant):  # type: ignore[misc]  # dp_accounting has no types
    """``dp_accounting``'s PLD accountant, in cells of ``interval``; it also composes distributions without an event."""

    def __init__(self, interval: float) -> None:
        super().__init__(NeighboringRelation.REPLACE_SPECIAL, interval)

    def add(self, distribution: PrivacyLossDistribution) -> None:
        """Compose with a privacy loss distribution of the same interval."""
        self._pld: PrivacyLossDistribution = self._pld.compose(distribution)

    def deltas(self, epsilons: Values) -> Values:
        """Return δ at every ε ≥ 0, either way: [n]. The library takes one ε in numpy, and many cell by cell."""
        return np.array([self._pld.get_delta_for_epsilon(epsilon) for epsilon in epsilons.tolist()], dtype=np.float64)
