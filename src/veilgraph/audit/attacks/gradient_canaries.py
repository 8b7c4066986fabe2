"""What the noisy sums of a private training say of canaries: scores for ``epsilon.one_run_epsilon``.

In a round a canary has *parts*: so many terms, each drawn with probability q, that all are one vector, known from the
weights that all had: its own term and its neighbours', as they are where it is in, and where it is out. What an
adversary has of a sum, without all that is not of canaries, is in units of the clip

    r = Σ_parts (number drawn)·g + noise,    noise ~ N(0, s²·I).

Of each canary it takes the log-likelihood ratio of in against out, where every other canary's coin and draws are taken
to be Gaussian, with the mean and spread that they have. With V the parts' vectors, each times the spread of its number,
in rows, K = s²·I + VVᵀ and u = K⁻¹V(r − mean), what a canary's own rows i say once all others are accounted for is

    (s²·K⁻¹_ii)⁻¹ − I = V_i Σ⁻¹ V_iᵀ,    (s²·K⁻¹_ii)⁻¹ u_i = V_i Σ⁻¹ (r − mean),    Σ = s²·I + Σ_{j≠i} V_jᵀV_j

(Woodbury). s is what is claimed, or less where what lies beside all of V is less: noise that is missing shows there.
V is as long as the clip lets it be, or longer where what lies along it is far more than that explains.
Nothing of this looks at coins, and rounds add up; if a sum is not as this supposes, scores are worse and bounds hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp
from scipy.stats import binom, chi2

from veilgraph.audit.roc import Floats
from veilgraph.core.errors import DataError

_BESIDE: Final = 50
"""Dimensions beside the canaries' from which on they tell how much noise there is."""
_LEAST_NOISE: Final = 0.1
"""Of a clip: parts are no more alike than that."""
_LONGER: Final = 4.0
"""Of squares: what chance does not make of an honest sum's canaries."""
_CHANCE: Final = 1e-4
"""With which noise alone is taken for longer terms."""
_TINY: Final = 1e-6


@dataclass(frozen=True, eq=False)
class Part:
    """Terms of every canary that are alike.

    Attributes:
        rows: [m, W], the vector of each canary, over the clip.
        count: how many such terms each has.
        inside: whether they are there where the canary is in, and only there; or where it is out.
    """

    rows: Floats
    count: int
    inside: bool


@dataclass(frozen=True, eq=False)
class Round:
    """One sum.

    Attributes:
        rest: [W], what is left of it, over the clip.
        deviation: s, of the noise that is claimed.
        parts: of the canaries.
    """

    rest: Floats
    deviation: float
    parts: Sequence[Part]


def gradient_scores(rounds: Sequence[Round], rate: float) -> Floats:
    """How much all rounds of a run together speak for each canary being in.

    Args:
        rounds: at least one.
        rate: q.

    Returns:
        [m] float64, higher = in.

    Raises:
        DataError: there is no round, or a round's parts do not fit its sum.
    """
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
