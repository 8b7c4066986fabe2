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
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilgraph.core.made_once import made_once
from veilgraph.privacy import accountant
from veilgraph.privacy.event import Event
from veilgraph.privacy.lifetime.stand_in import stand_in

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
        self._squares = np.empty(0)
        self._pure = np.empty(0)
        self._failure = np.empty(0)

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
        places = np.searchsorted(self._keys, keys)
        known = places < len(self._keys)
        known[known] = self._keys[places[known]] == keys[known]
        if not known.all():
            self._insert(keys[~known])
            places = np.searchsorted(self._keys, keys)
        self._squares[places] += price.squares
        self._pure[places] += price.pure
        self._failure[places] += price.failure

    def prices(self, keys: Keys | None = None) -> list[Price]:
        """The different prices that these nodes have paid, or all that have paid; a node that is new is one of them."""
        sums = np.stack([self._squares, self._pure, self._failure], axis=1)
        if keys is not None and not is_everybody(keys):
            places = np.searchsorted(self._keys, keys)
            known = places < len(self._keys)
            known[known] = self._keys[places[known]] == keys[known]
            sums = sums[places[known]]
        own = [NOTHING, *(Price(*map(float, row)) for row in np.unique(sums, axis=0))]
        return [each.plus(self._everybody) for each in own]

    def most(self, delta: float, keys: Keys | None = None, more: Price = NOTHING) -> float:
        """The largest total ε of these nodes, or of all, once each has paid ``more``."""
        return max(epsilon(of.plus(more), delta) for of in self.prices(keys))

    def _insert(self, new: Keys) -> None:
        keys = np.concatenate([self._keys, new])
        order = np.argsort(keys, kind="stable")
        nothing = np.zeros(len(new))
        self._keys = keys[order]
        self._squares = np.concatenate([self._squares, nothing])[order]
        self._pure = np.concatenate([self._pure, nothing])[order]
        self._failure = np.concatenate([self._failure, nothing])[order]
