"""What every node has paid so far: a privacy filter for each of them (Feldman & Zrnic 2021), kept as three sums.

Gaussian releases compose, however each is chosen from the outcomes of those before, as one whose μ² is the sum of
theirs, and a filter that stops before that sum exceeds a bound is (ε, δ)-private with the (ε, δ) of that one (Smith &
Thakurta 2022; Koskela, Tobaben & Honkela 2023). Pure ε add up under a filter as well (Rogers, Roth, Ullman & Vadhan
2016). Both together, interleaved in any order: the loss of the pure ones is never above the sum Σε of theirs, so the
Gaussian curve at ε - Σε bounds δ at ε. What a job composes numerically from loss distributions is not known to hold for
choices that depend on outcomes. So of a Laplace release its pure ε counts. So many sampled releases, which have none,
count as what they are no harder to tell apart than (``stand_in``): one that shows all with a probability φ, and is a
Gaussian release else. Where none shows all, the rest is as above, and any of them does with a probability of at most
the sum Σφ of theirs, whatever was chosen. A node's total is ε_Gauss(√Σμ², δ - Σφ) + Σε.

δ is the party's own. No number that a job or a peer chooses is the δ of a total, or a part of it: a job with a δ of
its own choice would else make all jobs before it dearer, for ever. φ is a ten-thousandth of the party's δ. Sampled
releases that cost less than that as Gaussian releases without any φ are charged as these, so that many cheap jobs use
up no more of δ than of ε.

A release about which nodes do not say the same is charged to those alone whose data it depends on. Of data whose nodes
nobody told apart it is charged to everybody: each node there may be any node of any other release.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilgraph.core.threads import made_once
from veilgraph.privacy import accountant
from veilgraph.privacy.accountant import gaussian_delta
from veilgraph.privacy.event import Event

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


Keys = NDArray[np.uint64]
"""Sorted keys of nodes, each once. Two nodes of one key pay together, which is more than either has to."""
EVERYBODY: Final[Keys] = np.array([2**64 - 1], np.uint64)
"""In place of keys: all nodes that ever paid or ever will. Who has this key by chance pays for all, too."""


class Price(NamedTuple):
    """Of releases: the sums of μ², of pure ε of those that are not Gaussian, and of probabilities to show all."""

    squares: float
    pure: float
    failure: float = 0.0

    def times(self, number: int) -> Price:
        """Of so many of them."""
        return Price(*(each * number for each in self))

    def plus(self, other: Price) -> Price:
        """Of both."""
        return Price(*(one + more for one, more in zip(self, other, strict=True)))


NOTHING: Final = Price(0.0, 0.0)
_SHARES: Final = (1e-4, 1e-2)
"""Shares of δ for one job's φ; the larger where the smaller is below what numerical accounting resolves."""


def price(event: Event, count: int, delta: float) -> Price:
    """Return what releases cost a node that they depend on, whatever the δ of their job.

    Args:
        event: of each release.
        count: of releases.
        delta: δ of the party's total.
    """
    mu = event.mu(1)
    if mu:
        return Price(mu * mu * count, 0.0)
    if math.isfinite(event.epsilon) or not event.is_numeric:
        return Price(0.0, event.epsilon * count)
    return _stand_in(event, count, delta)


@made_once(maxsize=1024)
def _stand_in(event: Event, count: int, delta: float) -> Price:
    whole = event.gaussian_bound(count)
    cheapest = Price(whole * whole, 0.0)
    if cheapest.squares <= _SHARES[0] or (composed := accountant.composed(0.0, [(event, count)])) is None:
        return cheapest
    for share in _SHARES:
        mu = stand_in(composed, share * delta)
        if mu * mu + share < cheapest.squares:  # a share of δ weighs as much as that share of μ² = 1
            return Price(mu * mu, 0.0, share * delta)
    return cheapest


def epsilon(of: Price, delta: float) -> float:
    """The total ε at δ; infinite where a release has no price in any sum, or the probabilities leave nothing of δ."""
    if math.isinf(of.pure) or math.isinf(of.squares) or of.failure >= delta:
        return math.inf
    return accountant.gaussian_epsilon(math.sqrt(of.squares), delta - of.failure) + of.pure


def is_everybody(keys: Keys) -> bool:
    """Whether these are all nodes that ever paid or ever will."""
    return bool(len(keys)) and keys[-1] == EVERYBODY[0]


class Costs:
    """The sums of all nodes that have paid anything."""

    def __init__(self) -> None:
        self._everybody = NOTHING
        self._keys: Keys = np.empty(0, np.uint64)
        self._sums = np.empty((0, len(NOTHING)))

    @property
    def nodes(self) -> int:
        """How many have paid for themselves."""
        return len(self._keys)

    @property
    def everybody(self) -> Price:
        """What each node has paid, whoever it is."""
        return self._everybody

    def add(self, keys: Keys, price: Price) -> None:
        """Charges every one of these nodes."""
        if is_everybody(keys):
            self._everybody = self._everybody.plus(price)
            return
        places, known = self._places(keys)
        if not known.all():
            all_keys = np.concatenate([self._keys, keys[~known]])
            order = np.argsort(all_keys, kind="stable")
            sums = np.concatenate([self._sums, np.zeros((len(all_keys) - len(self._keys), len(NOTHING)))])
            self._keys, self._sums = all_keys[order], sums[order]
            places, _ = self._places(keys)
        self._sums[places] += price

    def prices(self, keys: Keys | None = None) -> list[Price]:
        """The different prices that these nodes have paid, or all that have paid; a node that is new is one of them."""
        sums = self._sums
        if keys is not None and not is_everybody(keys):
            places, known = self._places(keys)
            sums = sums[places[known]]
        own = [NOTHING, *(Price(*map(float, row)) for row in np.unique(sums, axis=0))]
        return [each.plus(self._everybody) for each in own]

    def most(self, delta: float, keys: Keys | None = None, more: Price = NOTHING) -> float:
        """The largest total ε of these nodes, or of all, once each has paid ``more``."""
        return max(epsilon(of.plus(more), delta) for of in self.prices(keys))

    def _places(self, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where each of these nodes is among those that have paid, and whether it is."""
        places = np.searchsorted(self._keys, keys)
        known = places < len(self._keys)
        known[known] = self._keys[places[known]] == keys[known]
        return places, known
