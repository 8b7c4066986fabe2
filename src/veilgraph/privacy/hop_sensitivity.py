"""How far the noisy sums of all hops move together: the sensitivity of a release with noise in every hop.

Let A be N×N with entries in [0, 1] and no diagonal, A(v, u) made of what is recorded from u to v and of nothing else
(``aggregation.pair_matrix``), and X_0 have rows of length 1 at most, row v made of v's own features. Released are

    Y_0 = λX_0 + noise,   Y_k = S(A·X_(k−1)) + noise,   X_k = rows of Y_k scaled to length 1,   k = 1 … K,

all noise independent N(0, σ²) on every entry. S shortens every row to length B at most, or, for the units ``edge`` and
``node``, does nothing. X_1, X_2, … are computed from what is released. So Y_k is one Gaussian release whose value may
depend on the outcomes of the earlier ones, and together they cost what one with μ² = Σ_k Δ_k²/σ² costs (Dong, Roth & Su
2022, corollary 3.3), where Δ_k is how far S(A·X_(k−1)) moves in the Frobenius norm between neighbouring data **with
X_1, …, X_(k−1) the same in both**: X_0 is all that is private among the rows that are summed.

*One edge*: everything recorded between a and b, added, removed or replaced. X_0 is the same, so Δ_0 = 0. A differs at
(a, b) and (b, a) alone, by 1 at most, so row a moves by at most the length of row b of X_(k−1), and row b likewise:
Δ_k ≤ √2, whatever the degrees are. Together **2K**.

*One node's features*, replaced; A is the same. Row v of Y_0 moves by 2λ. In hop 1 the rows u with A(u, v) > 0 move by
2·A(u, v), and there are D of them at most. In later hops nothing differs. Together **4λ² + 4D**.

*One node with all its edges*, of graphs in which no node has more than D neighbours. Let v be the node.
- Absent (zero-out): row v of X_0 is zero, and v's row and column of A are. Δ_0 ≤ λ. In every hop at most D rows lose
  what v gave them, at most 1, and S brings no two rows further apart; row v moves from a length of at most B to zero:
  Δ_k² ≤ D + B². Together **λ² + K·(D + B²)**.
- Replaced, features and edges by any others: Δ_0 ≤ 2λ. In hop 1 a row u moves by the length of A(u, v)·x − A'(u, v)·x'
  with x, x' two rows of length 1 at most: by 2 where both graphs have the pair, by 1 where one has it. v has at most D
  neighbours in each, so the squares add up to 4D at most (D pairs that both have; 2D pairs would give 2D). Row v moves
  by 2B. In later hops x = x' is what was released, a row moves by |A(u, v) − A'(u, v)| ≤ 1, and 2D rows may.
  Together **4λ² + 4·(D + B²) + (K − 1)·(2D + 4B²)**.

λ, how long own rows are before their noise, follows from the share of the whole that is to be theirs: with s of it
λ² (absent) or 4λ² (replaced) is s/(1 − s) times the rest. Each row of Y_0 is made of one node's features, as the
summed row is, whatever λ is. For unit ``edge`` λ is 1.

*One node's edges*, all of them, where rows are public: made of nothing that the holder's ε is about, as a learner's of
paradigm node-dp are. X_0 is then the same in both worlds as later rows are, and is not released. Of the above is left,
absent, **K·(D + B²)** and, replaced, **K·(2D + 4B²)**.

D is no bound that edges are left out for here: it is a rule that data keep, and neighbouring data keep it both. A rule
that leaves edges out would have to be stable, and none of the kind that keeps or drops whole edges by what is near
them is. Let u keep its first D neighbours: taking v away frees a place at every u that listed v, of which there is no
bound, and each gains a row of length 1.

Source: Sajadmanesh, Shamsabadi, Bellet & Gatica-Perez 2023 (GAP), for one edge and for the rows of other nodes; the
row of the node itself, which stays in what is released, is ours.
"""

from __future__ import annotations

import math

from veilgraph.core.errors import ConfigError
from veilgraph.privacy.settings import PrivacySettings
from veilgraph.privacy.units import Neighbours, Unit


def aggregation_sensitivity(
    unit: Unit,
    neighbours: Neighbours,
    hops: int,
    *,
    degree_bound: int | None = None,
    sum_clip: float | None = None,
    public_rows: bool = False,
    own_share: float | None = None,
) -> float:
    """How far all noisy matrices move together: the root of the sums of this file's head.

    Args:
        unit: edge, node or node-edges.
        neighbours: replacement, or for node-edges zero-out.
        hops: K ≥ 1.
        degree_bound: D, for node and node-edges.
        sum_clip: B, for node-edges.
        public_rows: whether X_0 is made of nothing that ε is about.
        own_share: s, what part of the square is the own row's; None: λ is 1.

    Returns:
        √Σ Δ_k², where rows have length 1.

    Raises:
        ConfigError: nothing is proven of such a unit and relation, or a bound is missing or out of range.
    """
    own, sums = _squares(unit, neighbours, hops, degree_bound, sum_clip, public_rows=public_rows)
    if own_share is None or own == 0:
        return math.sqrt(own + sums)
    return math.sqrt(sums / (1 - own_share))


def _squares(
    unit: Unit,
    neighbours: Neighbours,
    hops: int,
    degree_bound: int | None,
    sum_clip: float | None,
    *,
    public_rows: bool,
) -> tuple[float, float]:
    """Δ_0² where λ is 1, and Σ Δ_k² of the hops."""
    if not isinstance(hops, int) or isinstance(hops, bool) or hops < 1:
        raise ConfigError(f"hops={hops!r} must be a whole number >= 1: without a hop there is no sum to noise")
    if unit == "edge" and neighbours == "replacement":
        return 0.0, 2.0 * hops
    if unit == "node" and neighbours == "replacement" and not public_rows:
        return 4.0, 4.0 * _bound(degree_bound)
    if unit != "node-edges":
        raise ConfigError(
            f"unit={unit!r} with neighbours={neighbours!r}: nothing is proven of noise in every hop for these; take "
            "edge or node with replacement, or node-edges"
        )
    bound = _bound(degree_bound)
    if sum_clip is None or not 0 < sum_clip <= bound:
        raise ConfigError(f"sum_clip={sum_clip!r} must be above 0 and at most the degree bound, {bound}")
    row = sum_clip**2
    if neighbours == "zero-out":
        return float(not public_rows), hops * (bound + row)
    later = 2 * bound + 4 * row
    if public_rows:
        return 0.0, hops * later
    return 4.0, 4 * (bound + row) + (hops - 1) * later


def sensitivity_of(privacy: PrivacySettings, *, public_rows: bool = False) -> float | None:
    """That of a job; None where its noise is not in every hop."""
    if privacy.aggregation is None:
        return None
    return aggregation_sensitivity(
        privacy.unit,
        privacy.relation,
        privacy.aggregation.hops,
        degree_bound=privacy.degree_bound,
        sum_clip=privacy.sum_clip,
        public_rows=public_rows,
        own_share=privacy.own_share,
    )


def own_length(privacy: PrivacySettings) -> float:
    """λ: how long own rows are before their noise, of a job that releases them."""
    moved, share = sensitivity_of(privacy), privacy.own_share
    if moved is None or share is None:
        return 1.0
    return moved * math.sqrt(share) / (1.0 if privacy.relation == "zero-out" else 2.0)


def rows_moved(privacy: PrivacySettings) -> int:
    """The most rows of one noisy matrix that one unit moves, absent or, where it is replaced, replaced."""
    if privacy.unit == "edge":
        return 2
    bound = _bound(privacy.degree_bound)
    if privacy.unit == "node":
        return bound
    return 1 + (bound if privacy.relation == "zero-out" else 2 * bound)


def _bound(degree_bound: int | None) -> int:
    if not isinstance(degree_bound, int) or isinstance(degree_bound, bool) or degree_bound < 1:
        raise ConfigError(
            f"degree_bound={degree_bound!r} must be a whole number >= 1: the most neighbours that a node has"
        )
    return degree_bound
