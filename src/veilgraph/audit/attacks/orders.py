"""Whether orders that are told say nothing: places relative to random ones, which must be as uniform as words are.

Of different places drawn at random, any two rise or fall by a fair coin, and pairs that have none in common do so
independently. That holds in whatever order they are read, if that order has nothing to do with them: as they stand, by
the places of another order, or by where another one has the same places. Chances of places in common are exact or
bounds. No more is needed to find an order that is not random, or is used for two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, lgamma
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr
from scipy.stats import hypergeom

from veilgraph.core.errors import DataError

Places = NDArray[np.int64]

_FEWEST: Final = 8


@dataclass(frozen=True, eq=False)
class Order:
    """Different places among so many.

    Attributes:
        places: [n], each in [0, size).
        size: of what they are places in.
        told: whether a party told it; else it is a true one, which none that is told may be like.
        in_order: whether the places' order counts, or only which they are.
    """

    places: Places
    size: int
    told: bool = True
    in_order: bool = True


def orders_p_value(orders: Sequence[Order]) -> float:
    """Probability that uniform, independent orders would be as much in order, or like each other, as these are.

    Args:
        orders: those that were told, and true ones to hold them against.

    Returns:
        In [0, 1]; below α with a probability of at most α where all that are told are uniform and independent.

    Raises:
        DataError: none is told, or all are too short.
    """
    told = [each for each in orders if each.told]
    if any(not _is_possible(each) for each in told):
        return 0.0
    found = [p_value for each in told for p_value in _rises(each.places)]
    if not found:
        raise DataError(
            f"places: none of {len(told)} orders has {_FEWEST} of them; whether these are random cannot be told"
        )
    for one, other in combinations(orders, 2):
        if one.size == other.size and (one.told or other.told):
            found += _alike(one, other)
    return float(min(1.0, len(found) * min(found)))


def _is_possible(order: Order) -> bool:
    places = order.places
    return not len(places) or (
        int(places.min()) >= 0 and int(places.max()) < order.size and len(np.unique(places)) == len(places)
    )


def _alike(one: Order, other: Order) -> Iterator[float]:
    """p-values of what two orders have in common."""
    shorter = min(len(one.places), len(other.places))
    common, at_one, at_other = np.intersect1d(one.places, other.places, return_indices=True)
    if one.in_order and other.in_order:
        first, second = one.places[:shorter], other.places[:shorter]
        yield _coincidences(int((first == second).sum()))
        yield from _rises(first[np.argsort(second)])
        yield from _rises(at_one[np.argsort(at_other)])
    if max(len(one.places), len(other.places)) < one.size:
        draws = hypergeom(one.size, len(one.places), len(other.places))
        yield min(1.0, 2 * min(float(draws.sf(len(common) - 1)), float(draws.cdf(len(common)))))


def _rises(places: Places) -> Iterator[float]:
    """Two-sided p-values of how many pairs rise, of places side by side, and of those that half of them lie between."""
    half = len(places) // 2
    if 2 * half >= _FEWEST:
        for rises in (places[: 2 * half : 2] < places[1 : 2 * half : 2], places[:half] < places[half : 2 * half]):
            rising = int(rises.sum())
            yield float(min(1.0, 2 * bdtr(min(rising, half - rising), half, 0.5)))


def _coincidences(count: int) -> float:
    """So many places where two orders are the same have a chance of at most 1/count!."""
    return exp(-lgamma(count + 1))
