"""What releases say of canaries: scores for ``one_run.one_run_epsilon``.

*Noisy sums of a private training.* In a round a canary has *parts*: so many terms, each drawn with probability q, that
all are one vector, known from the weights that all had: its own term and its neighbours', as they are where it is in,
and where it is out. What an adversary has of a sum, without all that is not of canaries, is in units of the clip

    r = Σ_parts (number drawn)·g + noise,    noise ~ N(0, s²·I).

Of each canary it takes the log-likelihood ratio of in against out, where every other canary's coin and draws are taken
to be Gaussian, with the mean and spread that they have. With V the parts' vectors, each times the spread of its number,
in rows, K = s²·I + VVᵀ and u = K⁻¹V(r − mean), what a canary's own rows i say once all others are accounted for is

    (s²·K⁻¹_ii)⁻¹ − I = V_i Σ⁻¹ V_iᵀ,    (s²·K⁻¹_ii)⁻¹ u_i = V_i Σ⁻¹ (r − mean),    Σ = s²·I + Σ_{j≠i} V_jᵀV_j

(Woodbury). s is what is claimed, or less where what lies beside all of V is less: noise that is missing shows there.
V is as long as the clip lets it be, or longer where what lies along it is far more than that explains.
Nothing of this looks at coins, and rounds add up; if a sum is not as this supposes, scores are worse and bounds hold.

*Releases of a holder's data.* Every canary is put into the data in the same way, in or out by its coin, so that its
rows without noise move in one direction. It is learnt for each release from some of the canaries, whose coins are told;
the others are scored by it.

Functions on arrays raise ``DataError`` where arrays do not fit each other or are not finite, and ``ConfigError`` where
another argument is out of range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp
from scipy.stats import binom, chi2

from veilgraph.audit.statistics import Truth
from veilgraph.core.errors import DataError
from veilgraph.protocol.evidence import Round
from veilgraph.protocol.view import Floats

_BESIDE: Final = 50
"""Dimensions beside the canaries' from which on they tell how much noise there is."""
_LEAST_NOISE: Final = 0.1
"""Of a clip: parts are no more alike than that."""
_LONGER: Final = 4.0
"""Of squares: what chance does not make of an honest sum's canaries."""
_CHANCE: Final = 1e-4
"""With which noise alone is taken for longer terms."""
_TINY: Final = 1e-6


def gradient_scores(rounds: Sequence[Round], rate: float) -> Floats:
    """How much all rounds together speak for each canary being in, [m] float64, higher = in; ``rate``: q."""
    if not rounds:
        raise DataError("rounds: there is none, and each says something of every canary; give one at least")
    return np.asarray(np.sum([_score(each, rate) for each in rounds], axis=0))


def _score(each: Round, rate: float) -> Floats:
    parts, width = each.parts, len(each.rest)
    m = len(parts[0].rows) if parts else 0
    if not m or any(part.rows.shape != (m, width) for part in parts):
        raise DataError(f"rounds: parts must be [m, {width}], like the sum; give one at least, of m ≥ 1 canaries")
    means = [rate * part.count / 2 for part in parts]
    spreads = [_spread(part.count, rate) for part in parts]
    mean = np.sum([mean * part.rows.sum(axis=0) for mean, part in zip(means, parts, strict=True)], axis=0)
    scaled = np.stack([spread * part.rows for spread, part in zip(spreads, parts, strict=True)], axis=1)  # [m, k, W]
    rows = scaled.reshape(-1, width)
    gram, rest = rows @ rows.T, each.rest - mean
    deviation, longer = _scales(gram, rows @ rest, rest, each.deviation)
    gram, along = longer**2 * gram, longer * (rows @ (each.rest - longer * mean))
    variance = deviation**2
    inverse = cho_solve(cho_factor(gram + variance * np.eye(len(gram))), np.eye(len(gram)))
    k = len(parts)
    told = (inverse @ along).reshape(m, k)
    blocks = inverse.reshape(m, k, m, k)[np.arange(m), :, np.arange(m), :]
    back = np.linalg.inv(variance * blocks)
    precise, own = back - np.eye(k), np.einsum("mij,mj->mi", back, told)
    sides = []
    for inside in (True, False):
        logs = []
        for counts in product(*(range(part.count + 1) if part.inside == inside else (0,) for part in parts)):
            chance = sum(
                binom.logpmf(count, part.count, rate)
                for count, part in zip(counts, parts, strict=True)
                if part.inside == inside
            )
            at = np.array([(count - mean) / spread for count, mean, spread in zip(counts, means, spreads, strict=True)])
            logs.append(chance + own @ at - np.einsum("i,mij,j->m", at, precise, at) / 2)
        sides.append(logsumexp(logs, axis=0))
    return np.asarray(sides[0] - sides[1])


def _spread(count: int, rate: float) -> float:
    """Standard deviation of how many of so many terms are drawn, which are there by a fair coin."""
    return float(np.sqrt(count * rate * (1 - rate) / 2 + (count * rate) ** 2 / 4))


def _scales(gram: Floats, along: Floats, rest: Floats, claimed: float) -> tuple[float, float]:
    """How much noise there is, and how many times longer canaries' terms are than the clip, by what a sum looks like.

    Noise is what lies beside the canaries' rows, where that is less than what is claimed and there is room to tell;
    what lies along them is more than they and noise explain where terms are longer, or more are drawn.
    """
    values, vectors = np.linalg.eigh(gram)
    kept = values > _TINY * max(float(values[-1]), _TINY)
    rank, total = int(kept.sum()), float(values.sum())
    inside = float(((along @ vectors[:, kept]) ** 2 / values[kept]).sum())
    beside, deviation = len(rest) - rank, claimed
    if beside >= _BESIDE:
        left = max(0.0, float(rest @ rest) - inside)
        deviation = min(claimed, max(_LEAST_NOISE, float(np.sqrt(left / beside))))
    explained = deviation**2 * float(chi2.isf(_CHANCE, rank)) + _LONGER * total
    longer = (inside - deviation**2 * rank) / max(total, _TINY)
    return deviation, float(np.sqrt(longer)) if inside > explained else 1.0


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
        Scores of the judged canaries, higher = in, and which these are, [m] bool.
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
    return np.asarray(np.sum([_matched(each, are_in, told)[judged] for each in releases], axis=0)), judged


def _matched(each: Released, are_in: Truth, told: Truth) -> Floats:
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
