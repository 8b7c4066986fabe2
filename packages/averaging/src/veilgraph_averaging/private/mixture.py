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

from veilgraph.core.threads import made_once

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

    Of terms of one data set that the unit is in, ``removed`` ≥ 1, and of the other that differ, ``inserted`` ≥ 0.
    """

    def __init__(self, deviation: float, rate: float, removed: int, inserted: int) -> None:
        self._deviation = deviation
        self._up, self._log_up = _counts(removed, rate)
        self._down, self._log_down = _counts(inserted, rate)
        self._down = -self._down
        low = float(self._down.min()) - _FAR * deviation
        high = float(self._up.max()) + _FAR * deviation
        # Where no more than TAIL of either lies beyond: of P above, of Q below.
        self._high = _crossing(lambda x: self._above(x, self._up, self._log_up), low, high, TAIL)
        self._low = -_crossing(lambda x: self._above(x, -self._down, self._log_down), -high, -low, TAIL)

    def largest_loss(self) -> float:
        """The largest loss, either way, within the tails."""
        low, high = self.losses(np.array([self._low, self._high]))[0]
        return float(max(abs(low), abs(high)))

    def losses(self, x: Values) -> tuple[Values, Values]:
        """Log P/Q at values, and how fast it grows there: two [n]."""
        up, up_mean = self._density(x, self._up, self._log_up)
        down, down_mean = self._density(x, self._down, self._log_down)
        return up - down, (up_mean - down_mean) / self._deviation**2

    def deltas(self, epsilons: Values) -> tuple[Values, Values]:
        """Hockey-stick divergences at ε: of P from Q, and of Q from P; of increasing ε, each [n]."""
        factors = np.exp(epsilons)
        at = self._where(epsilons)
        forth = self._above(at, self._up, self._log_up) - factors * self._above(at, self._down, self._log_down)
        at = self._where(-epsilons)
        back = self._below(at, self._down, self._log_down) - factors * self._below(at, self._up, self._log_up)
        return _proper(forth, epsilons), _proper(back, epsilons)

    def distribution(self, interval: float) -> PrivacyLossDistribution:
        """Of one release, rounded towards more loss."""
        most = math.ceil(self.largest_loss() / interval)
        forth, back = self.deltas(interval * np.arange(-most, most + 1, dtype=np.float64))
        found = [
            masses.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -most, most, each) for each in (forth, back)
        ]
        return PrivacyLossDistribution(*found)

    def _where(self, losses: Values) -> Values:
        """The values at which the loss is so much, as far as there are any within the tails."""
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

    def _density(self, x: Values, centres: Values, logs: Values) -> tuple[Values, Values]:
        # A row for each count: reductions over long rows are several times as fast as over short ones.
        exponents = logs[:, None] + (x * centres[:, None] - centres[:, None] ** 2 / 2) / self._deviation**2
        largest = exponents.max(axis=0)
        parts = np.exp(exponents - largest)
        total = parts.sum(axis=0)
        return largest + np.log(total), centres @ parts / total

    def _above(self, x: Values, centres: Values, logs: Values) -> Values:
        found: Values = ndtr((centres - np.asarray(x)[..., None]) / self._deviation) @ np.exp(logs)
        return found

    def _below(self, x: Values, centres: Values, logs: Values) -> Values:
        found: Values = ndtr((np.asarray(x)[..., None] - centres) / self._deviation) @ np.exp(logs)
        return found


@made_once(maxsize=64)
def distribution_of(
    deviation: float, rate: float, removed: int, inserted: int, interval: float
) -> PrivacyLossDistribution:
    """``Mixture.distribution``, made once."""
    return Mixture(deviation, rate, removed, inserted).distribution(interval)


@lru_cache(maxsize=256)
def interval_of(deviation: float, rate: float, removed: int, inserted: int, finest: float) -> float:
    """Width of a cell with which one release has not too many of them; infinite where its losses are beyond numbers."""
    largest = Mixture(deviation, rate, removed, inserted).largest_loss()
    return max(finest, 2 * largest / _MOST_CELLS) if largest <= _LARGEST_LOSS else math.inf


def _counts(terms: int, rate: float) -> tuple[Values, Values]:
    """How many may be sampled, and with which logarithms of probabilities.

    Less than TAIL² is left out, which is less than what ``_proper`` adds. Groups count as their largest: the further
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


def _crossing(above: object, low: float, high: float, wanted: float) -> float:
    """Where a falling function comes down to a value, from its right."""
    for _ in range(80):
        middle = (low + high) / 2
        if float(above(np.array([middle]))[0]) > wanted:  # type: ignore[operator]
            low = middle
        else:
            high = middle
    return high


def _proper(deltas: Values, epsilons: Values) -> Values:
    """As divergences are: within [max(0, 1 − e^ε), 1], and falling, whatever was rounded; with what is in the tails."""
    bounded = np.clip(deltas + TAIL, np.maximum(0.0, -np.expm1(np.minimum(epsilons, 0.0))), 1.0)
    found: Values = np.maximum.accumulate(bounded[::-1])[::-1]
    return found
