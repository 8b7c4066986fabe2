"""How a holder's tables have moved since training: every column and every relation beside what it was then.

The measure is the population stability index (PSI) Σ (p − q)·ln(p/q), where p and q are the shares of nodes in each bin
then and now. Bins are the deciles of training, with bins of their own for values below and above all of training's, for
missing ones and for unseen categories. Nothing of this leaves the holder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, TypeAdapter

from veilgraph.tables.convert import MISSING, OTHER, Codes, Floats
from veilgraph.tables.edges import Counts, EdgeTable
from veilgraph.tables.feature_settings import CategoricalFeatures
from veilgraph.tables.nodes import FeatureColumn, NodeTable

_DECILES = np.arange(1, 10) / 10
_HEAVY = 0.05
"""A value of a larger share of the nodes has a bin of its own, which deciles would not give it."""
_CHANCE = 1e-4
"""So rarely the same distribution is taken for another, of few nodes."""


class Profile(BaseModel):
    """One column, or the numbers of one relation's edges at the nodes, in bins.

    Attributes:
        name: of the column, or of the relation.
        of_edges: whether it is a relation.
        cuts: where the bins of numbers begin, the least value first; one more bin is below them. None of categories.
        levels: categories; none of numbers.
        counts: nodes in each bin, those without a value last; before them, of categories, those of no known one.
        mean: of the values; None where there are none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    of_edges: bool = False
    cuts: tuple[float, ...] = ()
    levels: tuple[str, ...] = ()
    counts: tuple[int, ...]
    mean: float | None = None

    @property
    def nodes(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def words(self) -> str:
        """Its mean, what lies outside the range of training, and what is missing; the most frequent categories."""
        total, missing = max(1, self.nodes), self.counts[-1]
        if self.levels:
            shares = sorted(zip(self.counts, (*self.levels, "unseen"), strict=False), reverse=True)
            said = [f"{name} {count / total:.0%}" for count, name in shares[:3] if count]
        else:
            said = ["no value" if self.mean is None else f"mean {self.mean:.4g}"]
            outside = self.counts[0] + self.counts[len(self.cuts)] if self.cuts else 0
            said += [f"{outside / total:.0%} outside the range of training"] if outside else []
            if self.of_edges:
                without = self.counts[int(np.searchsorted(self.cuts, 0.0, side="right"))]
                said.append(f"{without / total:.0%} of the nodes without an edge")
        return ", ".join([*said, *([f"{missing / total:.0%} missing"] if missing else [])])


PROFILES = TypeAdapter(tuple[Profile, ...])
"""All of a holder's, to JSON and back; every number comes back exactly."""


@dataclass(frozen=True)
class Moved:
    """A column or relation with its PSI, and what it was in training and is now, in words with its values."""

    name: str
    of_edges: bool
    index: float
    then: str
    now: str

    def __str__(self) -> str:
        what = "edges of" if self.of_edges else "column"
        return f"{what} {self.name} (PSI {self.index:.2f}): in training {self.then}; now {self.now}"


def profiles(table: NodeTable, edges: Sequence[EdgeTable], then: Sequence[Profile] = ()) -> tuple[Profile, ...]:
    """Every feature column and relation of a holder's tables; ``then``: in training, whose bins are used if given."""
    known = {(each.of_edges, each.name): each for each in then}
    found = [
        _of_column(column, values, known.get((False, column.title)))
        for column, values in zip(table.columns, table.values, strict=True)
    ]
    none = np.zeros(table.num_nodes, np.int64)
    degrees = {each.name: none for each in then if each.of_edges}
    for name, each in _degrees(table.num_nodes, edges):
        degrees[name] = degrees.get(name, none) + each
    found += [_of_numbers(name, each, known.get((True, name)), of_edges=True) for name, each in degrees.items()]
    return tuple(found)


def moved(then: Sequence[Profile], now: Sequence[Profile], limit: float) -> list[Moved]:
    """What is beyond a limit of the PSI, and beyond what chance makes of so few nodes; the furthest first."""
    before = {(each.of_edges, each.name): each for each in then}
    found = []
    for each in now:
        old = before.get((each.of_edges, each.name))
        if old is not None and (index := _index(old, each)) > max(limit, _by_chance(old, each)):
            found.append(Moved(each.name, each.of_edges, index, old.words(), each.words()))
    return sorted(found, key=lambda each: each.index, reverse=True)


def _of_column(column: FeatureColumn, values: Floats | Codes, then: Profile | None) -> Profile:
    if not isinstance(column.feature, CategoricalFeatures):
        return _of_numbers(column.title, values, then)
    levels = column.feature.categories
    places = np.where(values == MISSING, len(levels) + 1, np.where(values == OTHER, len(levels), values))
    return Profile(
        name=column.title, levels=levels, counts=tuple(np.bincount(places, minlength=len(levels) + 2).tolist())
    )


def _of_numbers(name: str, values: NDArray[np.generic], then: Profile | None, *, of_edges: bool = False) -> Profile:
    wide = values.astype(np.float64)
    known = wide[~np.isnan(wide)]
    cuts = _cuts(known, [0.0] if of_edges else []) if then is None else np.array(then.cuts)
    places = np.searchsorted(cuts, known, side="right")
    counts = (*np.bincount(places, minlength=len(cuts) + 1).tolist(), len(wide) - len(known))
    mean = float(known.mean()) if len(known) else None
    return Profile(name=name, of_edges=of_edges, cuts=tuple(cuts.tolist()), counts=counts, mean=mean)


def _cuts(values: NDArray[np.float64], alone: Sequence[float]) -> NDArray[np.float64]:
    """Where bins begin: the least value, deciles, above the largest; frequent values and ``alone`` are bins."""
    if not len(values):
        return values
    each, count = np.unique(values, return_counts=True)
    alone = [*alone, *each[count > _HEAVY * len(values)]]
    deciles = np.quantile(values, _DECILES, method="higher")
    above = np.nextafter([*alone, each[-1]], np.inf)
    return np.unique(np.concatenate([each[:1], deciles, alone, above]))


def _degrees(nodes: int, tables: Sequence[EdgeTable]) -> Iterator[tuple[str, Counts]]:
    """Each relation's rows at every node, whichever end it is: [N]."""
    for table in tables:
        for place, name in enumerate(table.settings.reaches):
            mine = slice(None) if table.relation is None else table.relation == place
            ends = np.concatenate([table.source[mine], table.target[mine]])
            yield name, np.bincount(ends, minlength=nodes)


def _index(then: Profile, now: Profile) -> float:
    p, q = ((np.array(each.counts) + 0.5) / (each.nodes + 0.5 * len(each.counts)) for each in (then, now))
    return float(((p - q) * np.log(p / q)).sum())


def _by_chance(then: Profile, now: Profile) -> float:
    """What the PSI of two samples of one distribution hardly ever exceeds: about χ²·(1/n + 1/m)."""
    from scipy.stats import chi2  # noqa: PLC0415 - slow to import, and most sessions compare nothing

    bins = sum(1 for counts in zip(then.counts, now.counts, strict=True) if any(counts))
    return float(chi2.isf(_CHANCE, max(1, bins - 1))) * (1 / max(1, then.nodes) + 1 / max(1, now.nodes))
