"""What every node has paid so far: a privacy filter for each of them (Feldman & Zrnic 2021), kept as three sums.

Gaussian releases add up in μ², others in their pure ε. Sampled releases, which have none, count as one that shows all
with a probability φ and is a Gaussian release else (``stand_in``). A node's total is ε_Gauss(√Σμ², δ - Σφ) + Σε,
however each release is chosen from the outcomes of those before: docs/explanation/proofs.md#a-total-for-life.

δ is the party's own. No number that a job or a peer chooses is the δ of a total, or a part of it: a job with a δ of
its own choice would else make all jobs before it dearer, for ever. φ is a ten-thousandth of the party's δ. Sampled
releases that cost less than that as Gaussian releases without any φ are charged as these, so that many cheap jobs use
up no more of δ than of ε. Releases that are priced by a share of δ alone (``Event.needs_share``) take a tenth of it.

A release about which nodes do not say the same is charged to those alone whose data it depends on. Of data whose nodes
nobody told apart it is charged to everybody: each node there may be any node of any other release.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilgraph.core.threads import locked_cache
from veilgraph.privacy import accountant
from veilgraph.privacy.accountant import gaussian_delta
from veilgraph.privacy.event import Event

if TYPE_CHECKING:
    from dp_accounting.pld import PLDAccountant

_STEPS: Final = 300
_LARGEST: Final = 2.0**20  # μ from which on no Gaussian release is looked for: its δ is 1 at every ε that is asked for


def stand_in(composed: PLDAccountant, failure: float) -> float:
    """μ of a Gaussian release that is no harder to tell apart than ``composed``, but for a probability ``failure``.

    For all ε: δ(ε) ≤ failure + (1 − failure)·δ_μ(ε); μ is infinite where there is none. The Gaussian's divergences are
    symmetric, and both directions are held against it, so ε ≥ 0 is all there is to look at. Between two places that are
    looked at the left one's δ is held against the right one's.
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
    return accountant.bisected(low, high, enough, 1e-6)[1]


Keys = NDArray[np.uint64]
"""Sorted keys of nodes, each once. Two nodes of one key pay together, which is more than either has to."""
# In place of keys: all nodes that ever paid or ever will. Who has this key by chance pays for all, too.
EVERYBODY: Final[Keys] = np.array([2**64 - 1], np.uint64)


def keyed_hashes(key: bytes, texts: Iterable[str]) -> NDArray[np.uint64]:
    """Eight bytes of each text's HMAC-SHA-256, in the order of the texts."""
    hashed = b"".join(hmac.digest(key, text.encode(), "sha256")[:_KEY_BYTES] for text in texts)
    return np.frombuffer(hashed, "<u8").astype(np.uint64)


def places_among(keys: Keys, wanted: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each of the wanted is among sorted keys, and whether it is there at all."""
    places = np.searchsorted(keys, wanted)
    known = places < len(keys)
    known[known] = keys[places[known]] == wanted[known]
    return places, known


class Price(NamedTuple):
    """Cost of releases: the sums of μ², of pure ε of those that are not Gaussian, and of probabilities to show all."""

    squares: float
    pure: float
    failure: float = 0.0

    def times(self, number: int) -> Price:
        """Return the price of so many of them."""
        return Price(*(each * number for each in self))

    def plus(self, other: Price) -> Price:
        """Return the price of both together."""
        return Price(*(one + more for one, more in zip(self, other, strict=True)))


NOTHING: Final = Price(0.0, 0.0)
_KEY_BYTES: Final = 8
# Shares of δ for one job's φ; the larger where the smaller is below what numerical accounting resolves.
_SHARES: Final = (1e-4, 1e-2)
# Share of δ for a release that has no other price: nine fit, and ε at it is near that at the job's own δ.
_WHOLE_SHARE: Final = 0.1


def price(event: Event, count: int, delta: float) -> Price:
    """Return what so many releases cost a node that they depend on, at δ of the party's total, whatever their job's."""
    mu = event.mu(1)
    if mu:
        return Price(mu * mu * count, 0.0)
    if event.needs_share:
        share = _WHOLE_SHARE * delta
        return Price(0.0, accountant.epsilon_at(event, share), share).times(count)
    if math.isfinite(event.epsilon) or not event.is_numeric:
        return Price(0.0, event.epsilon * count)
    return _sampled_price(event, count, delta)


@locked_cache(maxsize=1024)
def _sampled_price(event: Event, count: int, delta: float) -> Price:
    """Return the cheaper of a Gaussian bound's price and one by ``stand_in`` with a share of δ."""
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
    """Whether these keys stand for all nodes that ever paid or ever will."""
    return bool(len(keys)) and keys[-1] == EVERYBODY[0]


class Costs:
    """What each node has paid so far."""

    def __init__(self) -> None:
        self.everybody = NOTHING
        """What each node has paid, whoever it is."""
        self._keys: Keys = np.empty(0, np.uint64)
        self._sums = np.empty((0, len(NOTHING)))

    @property
    def nodes(self) -> int:
        """Number of nodes that have paid by a key of their own."""
        return len(self._keys)

    def add(self, keys: Keys, price: Price) -> None:
        """Add a price to what each of these nodes has paid, or everybody."""
        if is_everybody(keys):
            self.everybody = self.everybody.plus(price)
            return
        places, known = places_among(self._keys, keys)
        if not known.all():
            everyone = np.union1d(self._keys, keys)
            sums = np.zeros((len(everyone), len(NOTHING)))
            sums[np.searchsorted(everyone, self._keys)] = self._sums
            self._keys, self._sums, places = everyone, sums, np.searchsorted(everyone, keys)
        self._sums[places] += price

    def prices(self, keys: Keys | None = None) -> list[Price]:
        """The different prices that these nodes have paid, or all that have paid; a node that is new is one of them."""
        sums = self._sums
        if keys is not None and not is_everybody(keys):
            places, known = places_among(self._keys, keys)
            sums = sums[places[known]]
        own = [NOTHING, *(Price(*map(float, row)) for row in np.unique(sums, axis=0))]
        return [each.plus(self.everybody) for each in own]

    def most(self, delta: float, keys: Keys | None = None, more: Price = NOTHING) -> float:
        """The largest total ε of these nodes, or of all, once each has paid ``more``."""
        return max(epsilon(of.plus(more), delta) for of in self.prices(keys))
