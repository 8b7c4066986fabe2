"""What every node has paid so far: a privacy filter for each of them (Feldman & Zrnic 2021), kept as two sums.

Gaussian releases compose, however each is chosen from the outcomes of those before, as one whose μ² is the sum of
theirs, and a filter that stops before that sum exceeds a bound is (ε, δ)-private with the (ε, δ) of that one (Smith &
Thakurta 2022; Koskela, Tobaben & Honkela 2023). Pure ε add up under a filter as well (Rogers, Roth, Ullman & Vadhan
2016). Both together, interleaved in any order: the loss of the pure ones is never above the sum Σε of theirs, so the
Gaussian curve at ε - Σε bounds δ at ε. A node's total is ε_Gauss(√Σμ², δ) + Σε. What a job composes numerically from
loss distributions is not known to hold for choices that depend on outcomes, and is no part of this.

A release about which nodes do not say the same is charged to those alone whose data it depends on.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilgraph.privacy import accountant
from veilgraph.privacy.event import Event

Keys = NDArray[np.uint64]
"""Sorted keys of nodes, each once. Two nodes of one key pay together, which is more than either has to."""


class Price(NamedTuple):
    """Of releases: the sum of μ², and of the pure ε of those that are not Gaussian."""

    squares: float
    pure: float


NOTHING: Final = Price(0.0, 0.0)


def price(event: Event, count: int) -> Price:
    """What so many releases with that event cost a node that they depend on."""
    mu = event.mu(1)
    return Price(mu * mu * count, 0.0) if mu else Price(0.0, event.epsilon * count)


def epsilon(of: Price, delta: float) -> float:
    """The total ε at δ; infinite where a release has no price in either sum."""
    if math.isinf(of.pure) or math.isinf(of.squares):
        return math.inf
    return accountant.gaussian_epsilon(math.sqrt(of.squares), delta) + of.pure


class Costs:
    """The sums of all nodes that have paid anything."""

    def __init__(self) -> None:
        self._keys: Keys = np.empty(0, np.uint64)
        self._squares = np.empty(0)
        self._pure = np.empty(0)

    @property
    def nodes(self) -> int:
        """How many have paid."""
        return len(self._keys)

    def add(self, keys: Keys, price: Price) -> None:
        """Charges every one of these nodes."""
        places = np.searchsorted(self._keys, keys)
        known = places < len(self._keys)
        known[known] = self._keys[places[known]] == keys[known]
        if not known.all():
            self._insert(keys[~known])
            places = np.searchsorted(self._keys, keys)
        self._squares[places] += price.squares
        self._pure[places] += price.pure

    def prices(self, keys: Keys | None = None) -> list[Price]:
        """The different prices that these nodes have paid, or all that have paid; nothing counts as one of them."""
        if keys is None:
            squares, pure = self._squares, self._pure
        else:
            places = np.searchsorted(self._keys, keys)
            known = places < len(self._keys)
            known[known] = self._keys[places[known]] == keys[known]
            squares, pure = self._squares[places[known]], self._pure[places[known]]
        pairs = np.unique(np.stack([squares, pure], axis=1), axis=0)
        return [NOTHING, *(Price(float(one), float(other)) for one, other in pairs)]

    def most(self, delta: float, keys: Keys | None = None, more: Price = NOTHING) -> float:
        """The largest total ε of these nodes, or of all, once each has paid ``more``."""
        return max(epsilon(Price(of.squares + more.squares, of.pure + more.pure), delta) for of in self.prices(keys))

    def _insert(self, new: Keys) -> None:
        keys = np.concatenate([self._keys, new])
        order = np.argsort(keys, kind="stable")
        nothing = np.zeros(len(new))
        self._keys = keys[order]
        self._squares = np.concatenate([self._squares, nothing])[order]
        self._pure = np.concatenate([self._pure, nothing])[order]
