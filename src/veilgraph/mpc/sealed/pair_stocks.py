"""Random columns that two holders without a dealer have multiplied by a factor before they need them.

A factor F of one holder, such as its edges or its own columns, is multiplied by many columns of the other in a session,
a few at a time. A product's bytes grow with the square root of its columns (``veilgraph.mpc.pair.products``), so both
make shares of F·R beside those of the first columns, for random columns R that the other draws. Of later columns x it
sends x − R, and

    F·x = F·(x − R) + F·R.

No column of R is used twice, so what F's holder sees is uniform. R is of one session, and is never saved.

A session's columns follow from public sizes: the program, run on shapes, counts them beforehand. Columns that were not
foreseen are as the first ones are: multiplied at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import ref

import torch
from torch import Tensor

MOST_ENTRIES: Final = 1 << 23
"""Of the random columns of a stock, to save memory."""

Make = Callable[[Tensor | None, int], Tensor]
"""Computes this holder's share of a factor times so many columns: [k, columns] at who has them, None at the other."""


class Passes(Protocol):
    """What stocks ask of both holders together."""

    def masked(self, own: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, /) -> Tensor:
        """Send ``own`` to the other holder, and return it; or return what the other sends, of this shape and dtype."""


@dataclass
class _Stock:
    """Random columns [k, m], None at the factor's holder, and this holder's share of their product, [n, m]."""

    random: Tensor | None
    share: Tensor

    def take(self, count: int) -> _Stock:
        """Remove the first columns, which nobody uses again."""
        taken = _Stock(None if self.random is None else self.random[:, :count], self.share[:, :count])
        self.random = None if self.random is None else self.random[:, count:]
        self.share = self.share[:, count:]
        return taken


class Stocks:
    """A holder's stocks of a session, which both use in the same order.

    ``asked``: columns that each factor was multiplied by, factors in the order of their first use.
    """

    def __init__(
        self,
        passes: Passes,
        draw: Callable[[tuple[int, ...], torch.dtype], Tensor],
        foresee: Callable[[], Sequence[int]],
    ) -> None:
        """``draw`` gives uniform numbers that the other holder lacks, ``foresee`` all that will have been ``asked``."""
        self.asked = list[int]()
        self._passes, self._draw, self._foresee = passes, draw, foresee
        self._foreseen: Sequence[int] | None = None
        self._places: dict[tuple[int, Hashable], tuple[ref[object], int]] = {}
        self._stocks: dict[int, _Stock] = {}

    def multiply(
        self, factor: object, kind: Hashable, columns: Tensor, make: Make, *, has_factor: bool
    ) -> tuple[Tensor | None, Tensor]:
        """Multiply a factor of one holder by columns of the other.

        Args:
            factor: what stays, the same object each time; compared by identity.
            kind: what tells apart the functions of it.
            columns: [k, m], those of the holder that lacks the factor; at the other one any of this shape and dtype.
            make: computes shares of the factor times columns.
            has_factor: whether this holder has the factor.

        Returns:
            what the factor's holder multiplies by it at home, [k, m] or None, and a share of all else, [n, m].
        """
        place, count = self._place_of(factor, kind), columns.shape[1]
        more = self._to_come(place) - count
        self.asked[place] += count
        stock = self._stocks.pop(place, None)
        if stock is None or stock.share.shape[1] < count:
            more = max(0, min(more, MOST_ENTRIES // columns.shape[0]))
            random = None if has_factor else self._draw((columns.shape[0], more), columns.dtype)
            share = make(None if random is None else torch.cat([columns, random], 1), count + more)
            self._keep(place, _Stock(random, share[:, count:]))
            return None, share[:, :count]
        taken = stock.take(count)
        self._keep(place, stock)
        own = None if taken.random is None else (columns - taken.random).contiguous()
        told = self._passes.masked(own, tuple(columns.shape), columns.dtype)
        return told if has_factor else None, taken.share

    def _keep(self, place: int, stock: _Stock) -> None:
        """Keep what is left of a stock."""
        if stock.share.shape[1]:
            self._stocks[place] = stock

    def _place_of(self, factor: object, kind: Hashable) -> int:
        """Number factors by their first use; one that is gone may leave its address to another."""
        key = id(factor), kind
        known = self._places.get(key)
        if known is None or known[0]() is not factor:
            self._places[key] = known = ref(factor), len(self.asked)
            self.asked.append(0)
        return known[1]

    def _to_come(self, place: int) -> int:
        """Return how many columns the factor at ``place`` will still be multiplied by, as far as was foreseen."""
        if self._foreseen is None:
            self._foreseen = self._foresee()
        return self._foreseen[place] - self.asked[place] if place < len(self._foreseen) else 0
