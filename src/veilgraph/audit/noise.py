"""Tests of what runs claim, on arrays: noise in releases, draws of terms of sums, orders of rows, low bits of sums.

None of them looks at the data: each p-value is exact, or a bound for any data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, chi2, chisquare, hypergeom, kruskal, random_table, spearmanr

from veilgraph.core.errors import DataError
from veilgraph.protocol.evidence import Noisy
from veilgraph.protocol.view import Floats

_MOST: Final = 60
"""Releases of which all pairs are compared: the first half and the newest."""


@dataclass(frozen=True)
class Level:
    """What the releases of a series say of their noise.

    Attributes:
        p_value: of all tests together.
        share: of the noise, that is there: an estimate, the least of all releases and pairs, which data make larger.
        excess: how much longer than the clip the longest row is, at least, over C; 0 where none is.
    """

    p_value: float
    share: float
    excess: float


def noise_level(releases: Sequence[Noisy]) -> Level:
    """Tests releases of one adversary's view against the noise that is claimed: at least one of them.

    A released matrix is x + n, n of independent N(0, s²) entries, and every row of x is at most C long. Whatever x is,

    - ‖x + n‖² is stochastically at least ‖n‖² ~ s²·χ². Less is the mark of noise that is too small, or not there;
    - so is ‖(x + n) − (x' + n')‖², with 2s² in place of s²: what is small there is noise that came twice, over other
      data as well. The same holds of pairs of rows in one release;
    - ‖(x + n)_v‖ ≤ C + ‖n_v‖. More is the mark of a row that was not clipped, and is seen best in the mean of releases.

    Where rows were trained on what was released before, they depend on its noise, by way of a few weights: too little
    to make a difference small.
    """
    half = _MOST // 2
    kept = list(releases) if len(releases) <= _MOST else [*releases[:half], *releases[-half:]]
    squares, counts = list[float](), list[int]()
    for each in kept:
        scaled = each.scaled
        even = scaled[: len(scaled) // 2 * 2]
        for values in (scaled, (even[::2] - even[1::2]) / np.sqrt(2)):
            squares.append(float((values**2).sum()))
            counts.append(values.size)
    for one, other in combinations(kept, 2):
        if one.rows.shape == other.rows.shape:
            squares.append(float(((one.scaled - other.scaled) ** 2).sum()) / 2)
            counts.append(one.rows.size)
    low = chi2.cdf(squares, counts)
    high, excess = zip(*(_rows_too_long(series) for series in _series(kept)), strict=True)
    tests = len(low) + len(high)
    shares = np.sqrt(np.asarray(squares) / np.asarray(counts))
    return Level(float(min(1.0, tests * min(low.min(), *high))), float(shares.min()), float(max(excess)))


def _series(releases: Sequence[Noisy]) -> list[Sequence[Noisy]]:
    """Every release by itself, and those of the same rows and noise together."""
    alike: dict[tuple[object, ...], list[Noisy]] = {}
    for each in releases:
        alike.setdefault((each.rows.shape, each.deviation, each.clip), []).append(each)
    return [*([each] for each in releases), *(some for some in alike.values() if len(some) > 1)]


def _rows_too_long(series: Sequence[Noisy]) -> tuple[float, float]:
    """p-value of the longest row in the mean of some releases, and by how much it is too long, in clips."""
    first = series[0]
    rows = np.mean([each.rows for each in series], axis=0)
    deviation, width = first.deviation / np.sqrt(len(series)), rows.shape[1]
    longest = float(np.linalg.norm(rows, axis=1).max())
    beyond = max(0.0, longest - first.clip)
    p_value = min(1.0, len(rows) * float(chi2.sf((beyond / deviation) ** 2, width)))
    noise = deviation * float(np.sqrt(chi2.isf(0.01 / len(rows), width)))
    return p_value, max(0.0, beyond - noise) / first.clip


_MOST_SUMS: Final = 30
"""Sums of which all pairs are compared: the first half and the newest."""
_NEAR: Final = 0.25
"""Standard deviations: how near to N·q the size of a sum is nearly that."""

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Sampling:
    """What sums say of how their terms were drawn.

    Attributes:
        p_value: of all tests together.
        rate: the share of terms that is in a sum, over all of them.
        oddest: which test has the least p-value, in words.
    """

    p_value: float
    rate: float
    oddest: str


def sampling(sums: Sequence[NDArray[np.uint8]], rate: float) -> Sampling:
    """Tests sums of one holder against the rate that is accounted.

    Of R sums over the same N terms, each in with probability q whatever else is in, all of this is exact:

    - R·N draws together, k of one sum, and in how many sums one term is, are binomial: more or fewer is another rate;
    - so is in how many sums k is nearly N·q, and in how many pairs of sums it is the same: samples of a fixed size are
      more alike than chance makes them, and terms that come and go together less;
    - what two sums of k and l terms have in common is hypergeometric: the same sample again has too much in common, and
      the next part of a shuffled list too little.

    Each p-value is two-sided but for the last of sizes, and all are bounded together.

    Args:
        sums: of each, [N], how often each term is in it; at least one.
        rate: q, above 0 and at most 1.

    Raises:
        DataError: there is none, or none has a term.
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
    return Sampling(min(1.0, len(found) * least), float(drawn / terms), oddest)


def _tests(sums: Counts, rate: float) -> list[tuple[float, str]]:
    """(p-value, what is odd where it is small) of sums [R, N] over the same terms."""
    rounds, terms = sums.shape
    if sums.max() > 1:
        return [(0.0, "a term is in one sum twice")]
    sizes = sums.sum(axis=1)
    total = _least(_binomial(np.array([sums.sum()]), sums.size, rate))
    each = _least(_binomial(sizes, terms, rate))
    often = _least(_binomial(sums.sum(axis=0), rounds, rate))
    return [
        (total, "more or fewer terms are in the sums than that"),
        (each, "one sum has more or fewer terms than that"),
        (often, "one term is in more or fewer sums than that"),
        (_near(sizes, terms, rate), "sums are more or less alike in size than that"),
        (_alike(sizes, terms, rate), "sums have the same size too often"),
        (_common(sums, sizes), "two sums have more or fewer terms in common than sizes like theirs"),
    ]


def _binomial(found: Counts, draws: int, chance: float) -> Floats:
    """Two-sided p-values of counts of so many draws."""
    return _two_sided(binom.cdf(found, draws, chance), binom.sf(found - 1, draws, chance))


def _two_sided(below: Floats, above: Floats) -> Floats:
    return np.asarray(np.minimum(1.0, 2 * np.minimum(below, above)))


def _least(p_values: Floats) -> float:
    return float(min(1.0, len(p_values) * p_values.min()))


def _near(sizes: Counts, terms: int, rate: float) -> float:
    """In how many sums the size is nearly N·q."""
    width = max(1.0, _NEAR * float(np.sqrt(terms * rate * (1 - rate))))
    low, high = np.ceil(terms * rate - width), np.floor(terms * rate + width)
    chance = float(binom.cdf(high, terms, rate) - binom.cdf(low - 1, terms, rate))
    near = int(((sizes >= low) & (sizes <= high)).sum())
    return float(_binomial(np.array([near]), len(sizes), min(1.0, chance))[0])


def _alike(sizes: Counts, terms: int, rate: float) -> float:
    """In how many pairs of sums, one after the other and each in one pair, the size is the same."""
    pairs = len(sizes) // 2
    same = int((sizes[: 2 * pairs : 2] == sizes[1 : 2 * pairs : 2]).sum())
    chance = float((binom.pmf(np.arange(terms + 1), terms, rate) ** 2).sum())
    return float(binom.sf(same - 1, pairs, min(1.0, chance))) if pairs else 1.0


def _common(sums: Counts, sizes: Counts) -> float:
    """How many terms any two of some sums have in common."""
    half, rounds = _MOST_SUMS // 2, len(sums)
    kept = range(rounds) if rounds <= _MOST_SUMS else [*range(half), *range(rounds - half, rounds)]
    pairs = np.array(list(combinations(kept, 2)))
    if not len(pairs):
        return 1.0
    one, other = pairs.T
    common = (sums[one] * sums[other]).sum(axis=1)
    about = (sums.shape[1], sizes[one], sizes[other])
    return _least(_two_sided(hypergeom.cdf(common, *about), hypergeom.sf(common - 1, *about)))


_FEWEST: Final = 50
_DRAWS: Final = 20_000


def order_p_value(degrees: NDArray[Any], labels: NDArray[Any] | None) -> tuple[float, float]:
    """Whether the places of rows tell of degrees (Spearman) or labels (Kruskal and Wallis), both tests together.

    Args:
        degrees: [N], in the order of the rows.
        labels: [N], −1 where unknown; None where there are none.

    Returns:
        The p-value, and the rank correlation of places with degrees or, if that is more, the share η of places that
        classes explain: 0 where the order says nothing.

    Raises:
        DataError: there are too few rows.
    """
    if len(degrees) < _FEWEST:
        raise DataError(f"degrees: {len(degrees)} rows are too few to tell whether their order says something")
    places = np.arange(len(degrees))
    p_values, figures = [1.0], [0.0]
    if len(np.unique(degrees)) > 1:
        found = spearmanr(places, degrees)
        p_values.append(float(found.pvalue))
        figures.append(abs(float(found.statistic)))
    groups = [] if labels is None else [places[labels == each] for each in np.unique(labels[labels >= 0])]
    groups = [each for each in groups if len(each) >= _FEWEST // 10]
    if len(groups) > 1:
        p_values.append(float(kruskal(*groups).pvalue))
        everything = np.concatenate(groups)
        between = sum(len(each) * (each.mean() - everything.mean()) ** 2 for each in groups)
        figures.append(float(np.sqrt(between / ((everything - everything.mean()) ** 2).sum())))
    return min(1.0, len(p_values[1:]) * min(p_values)), max(figures)


def split_p_value(split: NDArray[Any], labels: NDArray[Any], *, seed: int) -> tuple[float, float]:
    """Whether a split is more, or less, alike over the classes than one that was drawn without the labels.

    A split by classes is too even, and so many nodes of each class are too uneven where classes are not alike. Tables
    with the same margins are drawn at random, which makes the test exact.

    Args:
        split: [N], which part each labelled node is in.
        labels: [N].
        seed: of the draws.

    Returns:
        The p-value of both directions together, and the share of random splits that are at least as even.
    """
    parts, classes = np.unique(split, return_inverse=True)[1], np.unique(labels, return_inverse=True)[1]
    table = np.zeros((parts.max() + 1, classes.max() + 1))
    np.add.at(table, (parts, classes), 1)
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    if min(table.shape) < 2:
        raise DataError("classes: there is one class, or one part of the split, alone")
    expected = np.outer(rows, columns) / table.sum()
    drawn = random_table(rows.astype(int), columns.astype(int)).rvs(size=_DRAWS, random_state=seed)
    distances = ((drawn - expected) ** 2 / expected).sum(axis=(1, 2))
    found = ((table - expected) ** 2 / expected).sum()
    even, uneven = ((1 + (side <= 1e-9).sum()) / (1 + _DRAWS) for side in (distances - found, found - distances))
    return float(min(1.0, 2 * min(even, uneven))), float(even)


_LOW: Final = 4
_FEWEST_SUMS: Final = 320
_DIGITS: Final = 23
_SLACK: Final = 4


def low_bits_p_value(sums: Iterable[NDArray[np.int64]], *, bits: int, summands: int) -> tuple[float, float]:
    """χ² test of the lowest four bits of opened sums of float32 numbers.

    Secret rounding makes them uniform, whatever the summands are. Without it a sum has as many trailing zeros as its
    smallest summand (``mpc.mask``). Equal summands are rounded equally, so that equal sums count once.

    Args:
        sums: int64 of any shape.
        bits: fractional bits.
        summands: how many were added up, of which the largest says how many low bits are uniform.

    Returns:
        The p-value, and the share of sums that end in four zeros: 1/16 where the bits say nothing.

    Raises:
        DataError: too few different sums are large enough for four bits.
    """
    least = summands * 2.0 ** (_LOW + _DIGITS - _SLACK + 1)  # so that the largest summand is moved by 2^4 or more
    distinct = np.unique(np.concatenate([np.unique(each) for each in sums]))
    chosen = distinct[np.abs(distinct.astype(np.float64)) >= least]
    if len(chosen) < _FEWEST_SUMS:
        raise DataError(
            f"sums: {len(chosen)} different ones are of {least * 2.0**-bits:.2g} or more; of {_FEWEST_SUMS} it can be "
            "told whether their low bits are uniform"
        )
    counts = np.bincount(chosen & ((1 << _LOW) - 1), minlength=1 << _LOW)
    return float(chisquare(counts).pvalue), float(counts[0] / len(chosen))
