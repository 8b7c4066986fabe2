"""Features that tell the private attribute by themselves: a copy of it is refused, others are reported with numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy.sparse as sp
import torch

from veilgraph.core.errors import DataError
from veilgraph.protocol.view import Floats
from veilgraph_embeddings.attackers import Codes
from veilgraph_embeddings.world import World, to_scipy

_COPY: Final = 0.99
"""Of what a guess leaves open; a column that closes so much is the attribute under another name."""
_TELLING: Final = 0.25
_REPORTED: Final = 10
_CUTS: Final = 255
"""Places at which a column of many numbers is divided, at its quantiles."""


@dataclass(frozen=True)
class Proxy:
    """A feature that tells the private attribute.

    Attributes:
        column: its name.
        tells: share of what naming the most frequent class leaves open: 1 if the column's value says it all.
    """

    column: str
    tells: float


def proxies(world: World) -> tuple[Proxy, ...]:
    """The features that tell most of the private attribute by themselves, the worst first; at most ten.

    A column of few values is looked up value by value, any other divided in two where it tells most.

    Raises:
        DataError: one of them is a copy: embeddings would have it whatever they are trained for.
    """
    known = world.hide.known.numpy()
    codes, classes = world.hide.codes.numpy()[known], len(world.hide.classes)
    rows = to_scipy(world.features).tocsc()[known.nonzero()[0]] if not known.all() else to_scipy(world.features).tocsc()
    told = _told(sp.csc_array(rows), codes, classes)
    order = np.argsort(-told, kind="stable")[:_REPORTED]
    found = tuple(Proxy(world.columns[place], float(told[place])) for place in order if told[place] >= _TELLING)
    if found and found[0].tells >= _COPY:
        raise DataError(
            f"hide={world.hide.name!r}: column {found[0].column!r} of the features alone tells "
            f"{100 * found[0].tells:.1f} % of what a guess leaves open, so it is a copy of it; take it out of the "
            "features",
            code="copy",
            key="hide",
            value=found[0].column,
        )
    return found


def _told(rows: sp.csc_array, codes: Codes, classes: int) -> Floats:
    """Of each column, [F]: (right − most frequent)/(all − most frequent), by its best rule."""
    counts = np.bincount(codes, minlength=classes)
    open_ = len(codes) - counts.max()
    found = np.zeros(rows.shape[1])
    for column in range(rows.shape[1]):
        here = slice(rows.indptr[column], rows.indptr[column + 1])
        places, values = rows.indices[here], rows.data[here]
        if len(np.unique(values)) <= 1:  # one number beside 0
            there = np.bincount(codes[places], minlength=classes)
            right = there.max() + (counts - there).max()
        else:
            whole = np.zeros(len(codes))
            whole[places] = values
            right = _right(whole, codes, classes)
        found[column] = (right - counts.max()) / max(1, open_)
    return found


def _right(values: Floats, codes: Codes, classes: int) -> float:
    distinct, place = np.unique(values, return_inverse=True)
    table = np.zeros((len(distinct), classes))
    np.add.at(table, (place, codes), 1)
    if len(distinct) <= 2 * classes:
        return float(table.max(axis=1).sum())
    below = table.cumsum(axis=0)
    if len(below) > _CUTS:
        below = below[np.linspace(0, len(below) - 1, _CUTS).astype(np.int64)]
    return float((below.max(axis=1) + (table.sum(axis=0) - below).max(axis=1)).max())


def check_enough(world: World, learnt: torch.Tensor, tested: torch.Tensor, key: str) -> None:
    """Checks that an attribute can be learnt and tested on.

    Raises:
        DataError: fewer than two classes among the nodes that are learnt from, or no class with ten tested nodes.
    """
    codes = (world.hide if key == "hide" else world.keep).codes
    if len(codes[learnt & (codes >= 0)].bincount().nonzero()) < 2 or int((tested & (codes >= 0)).sum()) < 10:
        raise DataError(
            f"{key}: too few nodes with a value: fewer than two classes to learn from, or fewer than ten nodes to test "
            "on; label more nodes, or change evaluation",
            key=key,
        )
