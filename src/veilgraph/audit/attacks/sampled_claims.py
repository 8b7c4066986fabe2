"""What a ledger of sampled sums claims in full, for ``epsilon.one_run_epsilon`` to refute.

Such a ledger does not say of one δ what ε is, but of every ε what δ is: the hockey-stick divergences of T sums, either
way, from their privacy loss distribution, rounded towards more loss. A test of level a has no more power than

    F(a) = min over ε ≥ 0 of min(δ(ε) + e^ε·a, 1 − e^(−ε)·(1 − δ(ε) − a)),

the tangents of the trade-off (Dong, Roth & Su 2022, proposition 6), of which a part may be left out. One that has power
y has at least the level F⁻¹(y) = max over ε of max(e^(−ε)·(y − δ(ε)), 1 − δ(ε) − e^ε·(1 − y)).

Less noise is more loss, so the trade-offs of σ/ℓ, ℓ > 0, are ordered by ℓ, and at ℓ = 1 is the claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from veilgraph.audit.attacks.epsilon import Level
from veilgraph.audit.roc import Floats
from veilgraph.privacy import accountant
from veilgraph.privacy.sampled_event import SampledEvent

_EPSILONS: Final[Floats] = np.concatenate([np.arange(0, 2, 0.02), np.geomspace(2, 40, 120)])
_STEP: Final = 2 ** (1 / 16)
_SLACK: Final = 1e-9
"""Trade-offs are those of the next larger loss of a grid, so that few have to be found."""
_LEAST: Final = 1 / 64
"""Smaller losses are taken to be this one: their distributions would have too fine cells."""


@dataclass(frozen=True)
class SampledClaims:
    """So many sampled sums with less and less noise.

    Attributes:
        event: what each does.
        releases: T ≥ 1.
    """

    event: SampledEvent
    releases: int

    def level(self, loss: float) -> Level:
        """F⁻¹ of noise that is so many times smaller; see ``epsilon.Claims``."""
        deltas = _deltas(self._event(_STEP ** math.ceil(math.log(loss, _STEP) - _SLACK)), self.releases)
        factors = np.exp(_EPSILONS)

        def least(power: float) -> float:
            return float(max(0.0, ((power - deltas) / factors).max(), (1 - deltas - factors * (1 - power)).max()))

        return least

    def epsilon(self, loss: float, delta: float) -> float:
        """The ledger's total with that noise; see ``epsilon.Claims``."""
        return accountant.total({self._event(loss): self.releases}, delta)

    def _event(self, loss: float) -> SampledEvent:
        return replace(self.event, noise_multiplier=self.event.noise_multiplier / max(loss, _LEAST))


@lru_cache(maxsize=256)
def _deltas(event: SampledEvent, releases: int) -> Floats:
    """δ at every ε of the grid, 1 where none can be found."""
    found = accountant.composed(0.0, [(event, releases)])
    if found is None:
        return np.ones_like(_EPSILONS)
    return found.deltas(_EPSILONS)
