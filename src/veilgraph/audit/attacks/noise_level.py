"""Whether released rows have the noise that they should have: as much, in every release anew, and over clipped rows.

A released matrix is x + n, n of independent N(0, s²) entries, and every row of x is at most C long. Whatever x is,

- ‖x + n‖² is stochastically at least ‖n‖² ~ s²·χ². Less is the mark of noise that is too small, or not there;
- so is ‖(x + n) − (x' + n')‖², with 2s² in place of s²: what is small there is noise that came twice, over other data
  as well. The same holds of pairs of rows in one release;
- ‖(x + n)_v‖ ≤ C + ‖n_v‖. More is the mark of a row that was not clipped, and is seen best in the mean of releases.

So all p-values are bounds for any data, and none of these tests needs to know them. Where rows were trained on what was
released before, they depend on its noise, by way of a few weights: too little to make a difference small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from scipy.stats import chi2

from veilgraph.audit.roc import Floats

_MOST: Final = 60
"""Releases of which all pairs are compared: the first half and the newest."""


@dataclass(frozen=True, eq=False)
class Noisy:
    """One release, as somebody has it.

    Attributes:
        rows: [N, d].
        deviation: s, of the noise on an entry.
        clip: C, the longest that a row may be before the noise.
    """

    rows: Floats
    deviation: float
    clip: float

    @property
    def scaled(self) -> Floats:
        """In units of the noise."""
        return self.rows / self.deviation


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
    """Tests releases of one adversary's view against the noise that is claimed.

    Args:
        releases: at least one; those of one shape are compared with each other.
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
