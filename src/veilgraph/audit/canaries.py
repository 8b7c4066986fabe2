"""Canaries: what releases say of each being in, and what guesses about many of them prove of a run's ε.

Scores of noisy sums are log-likelihood ratios, in units of the clip. A run has m canaries, each in or out by a fair
coin of its own, and no adversary of a private run guesses many right. docs/proofs.md#canaries derives the scores and
both bounds: of (ε, δ)-privacy (Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run", theorem
5.2) and of a trade-off (after Mahloujifar, Melis & Chaudhuri 2024, "Auditing f-differential privacy in one run", here
with abstentions).

Functions on arrays raise ``DataError`` where these are not finite, or too few canaries are told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp, ndtr, ndtri
from scipy.stats import binom, chi2

from veilgraph.core.errors import DataError
from veilgraph.privacy import accountant
from veilgraph.privacy.accountant import gaussian_epsilon
from veilgraph.privacy.event import SampledEvent
from veilgraph.protocol.evidence import Round
from veilgraph.protocol.view import Floats

_BESIDE: Final = 50  # dimensions beside the canaries' from which on they tell how much noise there is
_LEAST_NOISE: Final = 0.1  # of a clip: parts are no more alike than that
_LONGER: Final = 4.0  # of squares: what chance does not make of an honest sum's canaries
_CHANCE: Final = 1e-4  # with which noise alone is taken for longer terms
_TINY: Final = 1e-6


def gradient_scores(rounds: Sequence[Round], rate: float) -> Floats:
    """How much all rounds together speak for each canary being in, [m] float64, higher = in; ``rate``: q."""
    return np.asarray(np.sum([_round_score(each, rate) for each in rounds], axis=0))


def _round_score(each: Round, rate: float) -> Floats:
    parts, width = each.parts, len(each.rest)
    m = len(parts[0].rows)
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


_SHARES: Final = (1, 2, 4, 8)  # all canaries are guessed, or one in so many


Level = Callable[[float], float]
"""Power of a test → the least level that it has, by a trade-off: F⁻¹."""


class Claims(Protocol):
    """Trade-offs of more and more loss, of which the largest that is refuted is looked for."""

    def level(self, loss: float) -> Level:
        """F⁻¹ of a loss above 0: of a larger loss no power needs a larger level."""

    def epsilon(self, loss: float, delta: float) -> float:
        """The ε that a loss has at δ: of a larger loss no smaller one."""


class GaussianClaims:
    """Gaussian privacy μ."""

    def level(self, loss: float) -> Level:
        """F⁻¹; see ``Claims``."""
        return lambda power: float(ndtr(ndtri(power) - loss))

    def epsilon(self, loss: float, delta: float) -> float:
        """The ε of μ; see ``Claims``."""
        return gaussian_epsilon(loss, delta)


@dataclass(frozen=True)
class OneRunBound:
    """What one run proves: its ``epsilon`` is at least this but for an event of probability 1 - confidence; 0: nothing.

    So many of ``guesses``, r, are ``correct``. Larger ε than ``ceiling`` are out of reach: it would be proven were all
    right.
    """

    epsilon: float
    correct: int
    guesses: int
    ceiling: float


def one_run_epsilon(
    scores: NDArray[Any],
    coins: NDArray[Any],
    delta: float,
    confidence: float = 0.95,
    guesses: Sequence[int] | None = None,
    *,
    claims: Claims | None = None,
) -> OneRunBound:
    """A lower bound on a run's ε from its canaries: the largest that so many right guesses refute.

    Each r of ``guesses``, chosen without looking, by default m, m/2, m/4 and m/8, is tried with error (1 −
    confidence)/(number of r), and the best bound is given: it holds with the confidence asked for (union bound).
    docs/proofs.md#canaries has the two claims that may be refuted: with ``claims`` the trade-offs of the ledger's
    releases, for the ε of the largest at δ, a larger bound; else (ε, δ)-privacy.

    Scores are [m], higher = in; coins [m], fair and independent; ``delta`` is of the ledger's total, above 0 with
    ``GaussianClaims``.
    """
    are_in, m = np.asarray(coins, dtype=np.bool_), len(scores)
    if not m or not np.isfinite(scores).all():
        raise DataError("scores: must be finite, and of one canary at least; leave other canaries out")
    tried = sorted({-(-m // share) for share in _SHARES} if guesses is None else set(guesses))
    order, level = np.argsort(scores, kind="stable"), (1 - confidence) / len(tried)

    def proven(r: int, correct: int) -> float:
        """The loss, which is ε itself where nothing is claimed of it."""
        if claims is not None:
            guess: Level = lambda power: power  # noqa: E731 - without any loss a test is a guess
            return _largest(
                lambda loss: least_probability(m, r, correct, claims.level(loss) if loss else guess, level) > 1
            )
        return _largest(lambda epsilon: p_value(m, r, correct, epsilon, delta) <= level)

    def epsilon_of(loss: float) -> float:
        """Of the largest alone, for it grows with the loss and takes long to find."""
        return claims.epsilon(loss, delta) if claims is not None and loss else loss

    rights = {r: int(are_in[order[m - (r + 1) // 2 :]].sum() + (~are_in[order[: r // 2]]).sum()) for r in tried}
    bounds = {r: proven(r, right) for r, right in rights.items()}
    best = max(tried, key=lambda r: bounds[r])
    ceiling = max(proven(r, r) for r in tried)
    return OneRunBound(epsilon_of(bounds[best]), rights[best], best, epsilon_of(ceiling))


def p_value(m: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The most probable that an (ε, δ)-private run has so many right guesses or more: theorem 5.2, at most 1."""
    at_least = binom.sf(np.arange(correct, -1, -1) - 1, guesses, 1 / (1 + np.exp(-epsilon)))  # f(v), …, f(0)
    gains = (at_least[1:] - at_least[0]) / np.arange(1, correct + 1)  # beyond i = v nothing is gained
    return float(min(1.0, at_least[0] + 2 * m * delta * gains.max(initial=0.0)))


def least_probability(m: int, guesses: int, correct: int, level: Level, tail: float) -> float:
    """The least probability in all, were P[V ≥ correct] ``tail`` in a run of that trade-off: above 1, it is less."""
    right, wrong, needed = correct * tail, (guesses - correct) * tail, tail  # m·R, m·H
    for count in range(correct - 1, -1, -1):
        short = m * level(min(1.0, right / m)) - wrong
        p = max(0.0, short) / (guesses - count)
        right, wrong, needed = right + count * p, wrong + (guesses - count) * p, needed + p
        if needed > 1:
            break
    return needed


def _largest(is_refuted: Callable[[float], bool]) -> float:
    """The largest number that is refuted, from below; 0 if none is."""
    if not is_refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while is_refuted(high):
        low, high = high, 2 * high
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


_EPSILONS: Final[Floats] = np.concatenate([np.arange(0, 2, 0.02), np.geomspace(2, 40, 120)])
_STEP: Final = 2 ** (1 / 16)
_SLACK: Final = 1e-9  # trade-offs are those of the next larger loss of a grid, so that few have to be found
_LEAST: Final = 1 / 64  # smaller losses are taken to be this one: their distributions would have too fine cells


@dataclass(frozen=True)
class SampledClaims:
    """So many (T ≥ 1) sampled sums with less and less noise."""

    event: SampledEvent
    releases: int

    def level(self, loss: float) -> Level:
        """F⁻¹ of noise that is so many times smaller; see ``Claims``."""
        deltas = _deltas(self._event(_STEP ** math.ceil(math.log(loss, _STEP) - _SLACK)), self.releases)
        factors = np.exp(_EPSILONS)

        def least(power: float) -> float:
            return float(max(0.0, ((power - deltas) / factors).max(), (1 - deltas - factors * (1 - power)).max()))

        return least

    def epsilon(self, loss: float, delta: float) -> float:
        """The ledger's total with that noise; see ``Claims``."""
        return accountant.total({self._event(loss): self.releases}, delta)

    def _event(self, loss: float) -> SampledEvent:
        return replace(self.event, noise_multiplier=self.event.noise_multiplier / max(loss, _LEAST))


@lru_cache(maxsize=256)
def _deltas(event: SampledEvent, releases: int) -> Floats:
    """δ at every ε of the grid, 1 where none can be found."""
    found = accountant.composed(0.0, [(event, releases)])
    if found is None:
        return np.ones_like(_EPSILONS)
    return found.deltas(_EPSILONS)
