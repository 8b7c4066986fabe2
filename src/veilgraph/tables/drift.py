"""How columns and relations of a holder have moved since training.

Each is set beside what it was then. The measure is the population stability index (PSI) Σ (p − q)·ln(p/q), where p and
q are the shares of nodes in each bin then and now. Bins are the deciles of training, with bins of their own for values
below and above all of training's, for missing ones and for unseen categories. Nothing of this leaves the holder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, TypeAdapter

from veilgraph.tables.column_settings import CategoricalFeatures
from veilgraph.tables.edges import Counts, EdgeTable
from veilgraph.tables.nodes import FeatureColumn, NodeTable
from veilgraph.tables.source import MISSING, OTHER, Codes, Floats

_HEAVY = 0.05  # A value of a larger share of the nodes has a bin of its own, which deciles would not give it
_CHANCE = 1e-4  # so rarely the same distribution is taken for another, of few nodes


class Profile(BaseModel):
    """The histogram of one feature column, or of all nodes' degrees in one relation.

    Attributes:
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
        """How many nodes were counted."""
        return sum(self.counts)

    def words(self) -> str:
        """Describe it: mean and share outside training's range, or the three top categories; and the share missing."""
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
class Drift:
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
    """Profile all feature columns and relations of a holder; ``then``: profiles of training, whose bins are reused."""
    known = {(each.of_edges, each.name): each for each in then}
    found = [
        _bin_column(column, values, known.get((False, column.title)))
        for column, values in zip(table.columns, table.values, strict=True)
    ]
    none = np.zeros(table.num_nodes, np.int64)
    degrees = {each.name: none for each in then if each.of_edges}
    for name, each in _degrees_by_relation(table.num_nodes, edges):
        degrees[name] = degrees.get(name, none) + each
    found += [_bin_numbers(name, each, known.get((True, name)), of_edges=True) for name, each in degrees.items()]
    return tuple(found)


def drifted(then: Sequence[Profile], now: Sequence[Profile], limit: float) -> list[Drift]:
    """List the profiles whose PSI is above ``limit`` and above what chance makes of so few nodes; largest first."""
    before = {(each.of_edges, each.name): each for each in then}
    found = []
    for each in now:
        old = before.get((each.of_edges, each.name))
        if old is not None and (index := _psi(old, each)) > max(limit, _psi_by_chance(old, each)):
            found.append(Drift(each.name, each.of_edges, index, old.words(), each.words()))
    return sorted(found, key=lambda each: each.index, reverse=True)


def _bin_column(column: FeatureColumn, values: Floats | Codes, then: Profile | None) -> Profile:
    if not isinstance(column.feature, CategoricalFeatures):
        return _bin_numbers(column.title, values, then)
    levels = column.feature.categories
    places = np.where(values == MISSING, len(levels) + 1, np.where(values == OTHER, len(levels), values))
    return Profile(
        name=column.title, levels=levels, counts=tuple(np.bincount(places, minlength=len(levels) + 2).tolist())
    )


def _bin_numbers(name: str, values: NDArray[np.generic], then: Profile | None, *, of_edges: bool = False) -> Profile:
    wide = values.astype(np.float64)
    known = wide[~np.isnan(wide)]
    cuts = _bin_starts(known, [0.0] if of_edges else []) if then is None else np.array(then.cuts)
    places = np.searchsorted(cuts, known, side="right")
    counts = (*np.bincount(places, minlength=len(cuts) + 1).tolist(), len(wide) - len(known))
    mean = float(known.mean()) if len(known) else None
    return Profile(name=name, of_edges=of_edges, cuts=tuple(cuts.tolist()), counts=counts, mean=mean)


def _bin_starts(values: NDArray[np.float64], alone: Sequence[float]) -> NDArray[np.float64]:
    """Return where bins begin, ascending: least value, deciles, above the largest; frequent and ``alone`` are bins."""
    if not len(values):
        return values
    each, count = np.unique(values, return_counts=True)
    alone = [*alone, *each[count > _HEAVY * len(values)]]
    deciles = np.quantile(values, np.arange(1, 10) / 10, method="higher")
    above = np.nextafter([*alone, each[-1]], np.inf)
    return np.unique(np.concatenate([each[:1], deciles, alone, above]))


def _degrees_by_relation(nodes: int, tables: Sequence[EdgeTable]) -> Iterator[tuple[str, Counts]]:
    """Yield each relation's name and how many of its rows have each node as an end: int64 [N]."""
    for table in tables:
        for place, name in enumerate(table.settings.reaches):
            mine = slice(None) if table.relation is None else table.relation == place
            ends = np.concatenate([table.source[mine], table.target[mine]])
            yield name, np.bincount(ends, minlength=nodes)[:nodes]


def _psi(then: Profile, now: Profile) -> float:
    p, q = ((np.array(each.counts) + 0.5) / (each.nodes + 0.5 * len(each.counts)) for each in (then, now))
    return float(((p - q) * np.log(p / q)).sum())


def _psi_by_chance(then: Profile, now: Profile) -> float:
    """Return the PSI that two samples of one distribution exceed once in 10,000 times: about χ²·(1/n + 1/m)."""
    from scipy.stats import chi2  # noqa: PLC0415 - slow to import, and most sessions compare nothing

    bins = sum(1 for counts in zip(then.counts, now.counts, strict=True) if any(counts))
    return float(chi2.isf(_CHANCE, max(1, bins - 1))) * (1 / max(1, then.nodes) + 1 / max(1, now.nodes))
