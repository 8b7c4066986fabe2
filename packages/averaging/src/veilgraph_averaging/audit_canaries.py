"""What sums of a private training say of each canary being in, and the trade-offs that its ledger claims.

Scores of noisy sums are log-likelihood ratios, in units of the clip; docs/explanation/proofs.md#canaries derives them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Final

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp
from scipy.stats import binom, chi2

from veilgraph.privacy import accountant
from veilgraph.protocol.trade_offs import Level
from veilgraph.protocol.view import Floats
from veilgraph_averaging.private.event import SampledEvent


@dataclass(frozen=True, eq=False)
class Part:
    """A kind of term of m canaries: gradients, [m, W] over the clip, that each has ``count`` of while in, or out."""

    rows: Floats
    count: int
    inside: bool


@dataclass(frozen=True, eq=False)
class Round:
    """One sum of private training: ``rest`` [W], noise and canaries, over the clip; the noise's claimed deviation."""

    rest: Floats
    deviation: float
    parts: Sequence[Part]


_BESIDE: Final = 50  # dimensions beside the canaries' from which on they tell how much noise there is
_LEAST_NOISE: Final = 0.1  # of a clip: parts are no more alike than that
_LONGER: Final = 4.0  # of squares: what chance does not make of an honest sum's canaries
_CHANCE: Final = 1e-4  # with which noise alone is taken for longer terms
_TINY: Final = 1e-6


def gradient_scores(rounds: Sequence[Round], rate: float) -> Floats:
    """Return the log-likelihood ratio of each canary being in over all rounds, [m] float64, higher: in; ``rate``: q."""
    return np.asarray(np.sum([_round_log_ratios(each, rate) for each in rounds], axis=0))


def _round_log_ratios(each: Round, rate: float) -> Floats:
    """Return each canary's log-likelihood ratio by one sum, [m]; other canaries' terms count as Gaussian noise."""
    parts, width = each.parts, len(each.rest)
    m = len(parts[0].rows)
    means = [rate * part.count / 2 for part in parts]
    spreads = [_count_deviation(part.count, rate) for part in parts]
    mean = np.sum([mean * part.rows.sum(axis=0) for mean, part in zip(means, parts, strict=True)], axis=0)
    scaled = np.stack([spread * part.rows for spread, part in zip(spreads, parts, strict=True)], axis=1)  # [m, k, W]
    rows = scaled.reshape(-1, width)
    gram, rest = rows @ rows.T, each.rest - mean
    deviation, longer = _estimate_scales(gram, rows @ rest, rest, each.deviation)
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


def _count_deviation(count: int, rate: float) -> float:
    """Standard deviation of how many of ``count`` terms, all there or none by a fair coin, are drawn at ``rate``."""
    return float(np.sqrt(count * rate * (1 - rate) / 2 + (count * rate) ** 2 / 4))


def _estimate_scales(gram: Floats, along: Floats, rest: Floats, claimed: float) -> tuple[float, float]:
    """Estimate from a sum its noise's standard deviation, and how many times longer than the clip canaries' terms are.

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


_EPSILONS: Final[Floats] = np.concatenate([np.arange(0, 2, 0.02), np.geomspace(2, 40, 120)])
_STEP: Final = 2 ** (1 / 16)
_SLACK: Final = 1e-9  # trade-offs are those of the next larger loss of a grid, so that few have to be found
_LEAST: Final = 1 / 64  # smaller losses are taken to be this one: their distributions would have too fine cells


@dataclass(frozen=True)
class SampledClaims:
    """What T ``releases`` of a sampled sum would claim with noise that is ``loss`` times smaller; see ``Claims``."""

    event: SampledEvent
    releases: int

    def level(self, loss: float) -> Level:
        """Return the trade-off function's inverse with noise ``loss`` times smaller; see ``Claims``."""
        deltas = _deltas_on_grid(self._event(_STEP ** math.ceil(math.log(loss, _STEP) - _SLACK)), self.releases)
        factors = np.exp(_EPSILONS)

        def least(power: float) -> float:
            return float(max(0.0, ((power - deltas) / factors).max(), (1 - deltas - factors * (1 - power)).max()))

        return least

    def epsilon(self, loss: float, delta: float) -> float:
        """Return the total ε at δ with noise ``loss`` times smaller; see ``Claims``."""
        return accountant.total({self._event(loss): self.releases}, delta)

    def _event(self, loss: float) -> SampledEvent:
        return replace(self.event, noise_multiplier=self.event.noise_multiplier / max(loss, _LEAST))


@lru_cache(maxsize=256)
def _deltas_on_grid(event: SampledEvent, releases: int) -> Floats:
    """Return δ of ``releases`` events at every ε of ``_EPSILONS``; all 1 where the accountant finds none."""
    found = accountant.composed(0.0, [(event, releases)])
    if found is None:
        return np.ones_like(_EPSILONS)
    return found.deltas(_EPSILONS)
