"""What the releases of a run say of canaries in a holder's data: scores for ``epsilon.one_run_epsilon``.

Every canary is put into the data in the same way, in or out by its coin, so that its rows without noise move in the
same direction. That direction, one for all, is learnt for each release from some of the canaries, whose coins are told;
the others are scored by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from veilgraph.audit.roc import Floats, Truth
from veilgraph.core.errors import DataError

_TOLD: Final = 16
"""Canaries from whose coins directions are learnt: all are alike, and without noise a few say all."""


@dataclass(frozen=True, eq=False)
class Released:
    """One release at the canaries' nodes.

    Attributes:
        rows: [m, w], as an adversary has them; w columns of all the nodes that a canary takes.
        clean: [m, w], without noise, to within a factor.
    """

    rows: Floats
    clean: Floats


def inserted_scores(releases: Sequence[Released], coins: NDArray[Any], *, seed: int) -> tuple[Floats, Truth]:
    """How much all releases of a run together speak for each canary being in: a matched filter.

    A release adds ⟨x, u⟩/s²: u the mean difference, without noise, between canaries that are told to be in and those
    out, and s the spread of x beside u. With Gaussian noise that orders canaries as the likelihood ratio of their coins
    does.

    Args:
        releases: at least one, all of m canaries.
        coins: [m] bool.
        seed: of which are told.

    Returns:
        Scores of the canaries that are judged, higher = in, and which these are, [m] bool.

    Raises:
        DataError: the arrays do not fit each other, or there are too few canaries.
    """
    are_in = np.asarray(coins, dtype=np.bool_)
    if not releases or any(each.rows.shape != each.clean.shape or len(each.rows) != len(are_in) for each in releases):
        raise DataError(
            f"releases: must be [m, w] with and without noise, of {len(are_in)} canaries; give one at least"
        )
    told = np.zeros(len(are_in), dtype=np.bool_)
    told[np.random.default_rng(seed).permutation(len(are_in))[:_TOLD]] = True
    if told.all() or not 0 < np.count_nonzero(are_in[told]) < _TOLD:
        raise DataError(
            f"canaries: {len(are_in)} are too few to learn from some and judge the others; take 100 or more"
        )
    judged = ~told
    return np.asarray(np.sum([_score(each, are_in, told)[judged] for each in releases], axis=0)), judged


def _score(each: Released, are_in: Truth, told: Truth) -> Floats:
    difference = each.clean[told & are_in].mean(axis=0) - each.clean[told & ~are_in].mean(axis=0)
    length = float(np.linalg.norm(difference))
    if length == 0:
        return np.zeros(len(are_in))
    unit = difference / length
    centred = each.rows - each.rows.mean(axis=0)
    along = centred @ unit
    beside = centred - along[:, None] * unit
    columns = each.rows.shape[1]
    variance = (beside**2).sum() / (len(are_in) * (columns - 1)) if columns > 1 else along.var()
    least = 1e-12 * float((along**2).max(initial=0.0))
    return np.asarray(length * along / max(float(variance), least, np.finfo(np.float64).tiny))
