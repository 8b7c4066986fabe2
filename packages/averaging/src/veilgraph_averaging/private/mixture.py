"""The privacy loss of a sampled sum of clipped terms with Gaussian noise, of which one unit changes several at once.

``event.SampledEvent`` says which two mixtures no neighbouring data sets are easier to tell apart than. log P/Q grows
with the value, so every hockey-stick divergence is that of a half-line, and the distribution is that of "connect the
dots" (Doroshenko et al. 2022), which is above it.

Imported at first use, for it loads ``dp_accounting``.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
from dp_accounting.pld import pld_pmf as masses
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom

from veilgraph.core.threads import locked_cache

Values = NDArray[np.float64]

TAIL: Final = 1e-15  # How much of one release's probability is beyond the losses that are looked at, and counts as δ.
_TABLE: Final = 20_000
_MOST_CELLS: Final = 2e4
_NEWTON: Final = 4
_LARGEST_LOSS: Final = 700.0  # e to the power of more is beyond every float
# More numbers of sampled terms are told apart in groups only: time and memory grow with them.
_MOST_COUNTS: Final = 256
_FAR: Final = 60.0  # standard deviations beyond which nothing is looked for


class Mixture:
    """P = Σ_j Bin(j; removed, q)·N(j, σ²) against Q = Σ_k Bin(k; inserted, q)·N(−k, σ²), σ over the clip.

    ``removed`` ≥ 1 and ``inserted`` ≥ 0: how many terms one unit changes in either data set; ``rate``: q.
    """

    def __init__(self, deviation: float, rate: float, removed: int, inserted: int) -> None:
        self._deviation = deviation
        self._up, self._log_up = _sampled_counts(removed, rate)
        self._down, self._log_down = _sampled_counts(inserted, rate)
        self._down = -self._down
        low = float(self._down.min()) - _FAR * deviation
        high = float(self._up.max()) + _FAR * deviation
        # Where no more than TAIL of either lies beyond: of P above, of Q below.
        self._high = _bisect_falling(lambda x: self._sf(x, self._up, self._log_up), low, high, TAIL)
        self._low = -_bisect_falling(lambda x: self._sf(x, -self._down, self._log_down), -high, -low, TAIL)

    def largest_loss(self) -> float:
        """Return the largest privacy loss, of P from Q or Q from P, outside tails of probability 1e-15."""
        low, high = self.losses(np.array([self._low, self._high]))[0]
        return float(max(abs(low), abs(high)))

    def losses(self, x: Values) -> tuple[Values, Values]:
        """Return log P/Q and its derivative at values ``x`` [n]: [n] each."""
        up, up_mean = self._log_density(x, self._up, self._log_up)
        down, down_mean = self._log_density(x, self._down, self._log_down)
        return up - down, (up_mean - down_mean) / self._deviation**2

    def deltas(self, epsilons: Values) -> tuple[Values, Values]:
        """Return upper bounds of δ(ε) of P from Q, and of Q from P, for increasing ε [n]: [n] each."""
        factors = np.exp(epsilons)
        at = self._values_at(epsilons)
        forth = self._sf(at, self._up, self._log_up) - factors * self._sf(at, self._down, self._log_down)
        at = self._values_at(-epsilons)
        back = self._cdf(at, self._down, self._log_down) - factors * self._cdf(at, self._up, self._log_up)
        return _valid(forth, epsilons), _valid(back, epsilons)

    def distribution(self, interval: float) -> PrivacyLossDistribution:
        """Return the privacy loss distribution of one release, in cells of ``interval``, rounded towards more loss."""
        most = math.ceil(self.largest_loss() / interval)
        forth, back = self.deltas(interval * np.arange(-most, most + 1, dtype=np.float64))
        found = [
            masses.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -most, most, each) for each in (forth, back)
        ]
        return PrivacyLossDistribution(*found)

    def _values_at(self, losses: Values) -> Values:
        """Return the values x [n] at which the loss is ``losses`` [n], clipped to the range between the tails."""
        table = np.linspace(self._low, self._high, _TABLE)
        known, _ = self.losses(table)
        known = np.maximum.accumulate(known)
        place = np.clip(np.searchsorted(known, losses), 1, _TABLE - 1)
        left, right = table[place - 1], table[place]
        x: Values = np.clip(np.interp(losses, known, table), left, right)
        for _ in range(_NEWTON):
            found, slope = self.losses(x)
            x = np.clip(x - (found - losses) / np.maximum(slope, 1e-300), left, right)
        return x

    def _log_density(self, x: Values, centres: Values, logs: Values) -> tuple[Values, Values]:
        # A row for each count: reductions over long rows are several times as fast as over short ones.
        exponents = logs[:, None] + (x * centres[:, None] - centres[:, None] ** 2 / 2) / self._deviation**2
        largest = exponents.max(axis=0)
        parts = np.exp(exponents - largest)
        total = parts.sum(axis=0)
        return largest + np.log(total), centres @ parts / total

    def _sf(self, x: Values, centres: Values, logs: Values) -> Values:
        """Return P[X > x], [n], of the Gaussian mixture with log weights ``logs`` [k] at ``centres`` [k]."""
        found: Values = ndtr((centres - np.asarray(x)[..., None]) / self._deviation) @ np.exp(logs)
        return found

    def _cdf(self, x: Values, centres: Values, logs: Values) -> Values:
        found: Values = ndtr((np.asarray(x)[..., None] - centres) / self._deviation) @ np.exp(logs)
        return found


@locked_cache(maxsize=64)
def distribution_of(
    deviation: float, rate: float, removed: int, inserted: int, interval: float
) -> PrivacyLossDistribution:
    """Return ``Mixture.distribution`` for these arguments, from a cache."""
    return Mixture(deviation, rate, removed, inserted).distribution(interval)


@lru_cache(maxsize=256)
def interval_of(deviation: float, rate: float, removed: int, inserted: int, finest: float) -> float:
    """Return the cell width, ``finest`` or wider, that gives at most 20,000 cells; infinite if losses overflow."""
    largest = Mixture(deviation, rate, removed, inserted).largest_loss()
    return max(finest, 2 * largest / _MOST_CELLS) if largest <= _LARGEST_LOSS else math.inf


def _sampled_counts(terms: int, rate: float) -> tuple[Values, Values]:
    """Return how many of ``terms`` may be sampled, [k], and the log probability of each number, [k].

    Less than TAIL² is left out, which is less than what ``_valid`` adds. Groups count as their largest: the further
    both sums move, the easier they are to tell apart.
    """
    unlikely = -2 * math.log(TAIL)
    mean, reach = terms * rate, math.sqrt(2 * unlikely * terms * rate * (1 - rate)) + unlikely  # Bernstein's inequality
    j = np.arange(max(0, math.floor(mean - reach)), min(terms, math.ceil(mean + reach)) + 1, dtype=np.float64)
    logs = binom.logpmf(j, terms, rate)
    kept = logs > -unlikely
    j, logs = j[kept], logs[kept]
    if len(j) <= _MOST_COUNTS:
        return j, logs
    first = np.arange(0, len(j), math.ceil(len(j) / _MOST_COUNTS))
    return np.maximum.reduceat(j, first), np.logaddexp.reduceat(logs, first)


def _bisect_falling(above: object, low: float, high: float, wanted: float) -> float:
    """Return where a falling function reaches a value, by bisection of [low, high], rounded up."""
    for _ in range(80):
        middle = (low + high) / 2
        if float(above(np.array([middle]))[0]) > wanted:  # type: ignore[operator]
            low = middle
        else:
            high = middle
    return high


def _valid(deltas: Values, epsilons: Values) -> Values:
    """Add the tails to δ [n], and make them valid despite rounding: within [max(0, 1 − e^ε), 1] and falling in ε."""
    bounded = np.clip(deltas + TAIL, np.maximum(0.0, -np.expm1(np.minimum(epsilons, 0.0))), 1.0)
    found: Values = np.maximum.accumulate(bounded[::-1])[::-1]
    return found
