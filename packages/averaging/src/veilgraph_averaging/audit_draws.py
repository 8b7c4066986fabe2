"""Whether terms of a private training's sums were drawn at the rate that is accounted, by who is in each sum.

Functions do not look at the data: each p-value is exact, or a bound for any data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, hypergeom

from veilgraph.core.errors import DataError
from veilgraph.protocol.view import Floats

_MOST_SUMS: Final = 30  # sums of which all pairs are compared: the first half and the newest

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class _Sampling:
    """Result of ``sampling``: p-value of all tests together, observed rate, and the words of the most unlikely test."""

    p_value: float
    rate: float
    oddest: str


def sampling(sums: Sequence[NDArray[np.uint8]], rate: float) -> _Sampling:
    """Test whether a holder's sums drew their terms independently at the rate that its ledger counts.

    Of R sums over the same N terms, each in with probability q whatever else is in, all of this is exact:

    - R·N draws together, k of one sum, and in how many sums one term is, are binomial: more or fewer is another rate;
    - so is in how many sums k is nearly N·q, and in how many pairs of sums it is the same: samples of a fixed size are
      more alike than chance makes them, and terms that come and go together less;
    - what two sums of k and l terms have in common is hypergeometric: the same sample again has too much in common, and
      the next part of a shuffled list too little.

    Each p-value is two-sided but for equal sizes; the result combines all by Bonferroni.

    Args:
        sums: of each, [N], how often each term is in it; at least one.
        rate: q, above 0 and at most 1.
    """
    of_size: dict[int, list[NDArray[np.uint8]]] = {}
    for each in sums:
        of_size.setdefault(len(each), []).append(each)
    of_size.pop(0, None)
    if not of_size:
        raise DataError("sums: none has a term that could be drawn; give one at least")
    found = [test for some in of_size.values() for test in _tests(np.stack(some).astype(np.int64), rate)]
    least, oddest = min(found)
    drawn, terms = (sum(size(each) for some in of_size.values() for each in some) for size in (np.sum, len))
    return _Sampling(min(1.0, len(found) * least), float(drawn / terms), oddest)


def _tests(sums: Counts, rate: float) -> list[tuple[float, str]]:
    """(p-value, what is odd where it is small) of sums [R, N] over the same terms."""
    rounds, terms = sums.shape
    if sums.max() > 1:
        return [(0.0, "a term is in one sum twice")]
    sizes = sums.sum(axis=1)
    total = _combined_p_value(_binomial(np.array([sums.sum()]), sums.size, rate))
    each = _combined_p_value(_binomial(sizes, terms, rate))
    often = _combined_p_value(_binomial(sums.sum(axis=0), rounds, rate))
    return [
        (total, "more or fewer terms are in the sums than that"),
        (each, "one sum has more or fewer terms than that"),
        (often, "one term is in more or fewer sums than that"),
        (_test_near_mean_size(sizes, terms, rate), "sums are more or less alike in size than that"),
        (_test_equal_sizes(sizes, terms, rate), "sums have the same size too often"),
        (_test_overlap(sums, sizes), "two sums have more or fewer terms in common than sizes like theirs"),
    ]


def _binomial(found: Counts, draws: int, chance: float) -> Floats:
    """Two-sided p-values of counts of so many draws."""
    return _two_sided(binom.cdf(found, draws, chance), binom.sf(found - 1, draws, chance))


def _two_sided(below: Floats, above: Floats) -> Floats:
    return np.asarray(np.minimum(1.0, 2 * np.minimum(below, above)))


def _combined_p_value(p_values: Floats) -> float:
    """Combine p-values by Bonferroni: the least times their number, at most 1."""
    return float(min(1.0, len(p_values) * p_values.min()))


def _test_near_mean_size(sizes: Counts, terms: int, rate: float) -> float:
    """Return the p-value of how many sums have nearly N·q terms."""
    width = max(1.0, float(np.sqrt(terms * rate * (1 - rate))) / 4)  # nearly: within a quarter of the deviation
    low, high = np.ceil(terms * rate - width), np.floor(terms * rate + width)
    chance = float(binom.cdf(high, terms, rate) - binom.cdf(low - 1, terms, rate))
    near = int(((sizes >= low) & (sizes <= high)).sum())
    return float(_binomial(np.array([near]), len(sizes), min(1.0, chance))[0])


def _test_equal_sizes(sizes: Counts, terms: int, rate: float) -> float:
    """Return the p-value of how many disjoint pairs of consecutive sums have the same size."""
    pairs = len(sizes) // 2
    same = int((sizes[: 2 * pairs : 2] == sizes[1 : 2 * pairs : 2]).sum())
    chance = float((binom.pmf(np.arange(terms + 1), terms, rate) ** 2).sum())
    return float(binom.sf(same - 1, pairs, min(1.0, chance))) if pairs else 1.0


def _test_overlap(sums: Counts, sizes: Counts) -> float:
    """Return the least p-value, corrected, of how many terms two sums have in common, over pairs of some sums."""
    half, rounds = _MOST_SUMS // 2, len(sums)
    kept = range(rounds) if rounds <= _MOST_SUMS else [*range(half), *range(rounds - half, rounds)]
    pairs = np.array(list(combinations(kept, 2)))
    if not len(pairs):
        return 1.0
    one, other = pairs.T
    common = (sums[one] * sums[other]).sum(axis=1)
    about = (sums.shape[1], sizes[one], sizes[other])
    return _combined_p_value(_two_sided(hypergeom.cdf(common, *about), hypergeom.sf(common - 1, *about)))
