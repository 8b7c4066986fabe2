"""Canaries: what guesses about many of them prove of a run's ε.

A run has m canaries, each in or out by a fair coin of its own, and no adversary of a private run guesses many right.
docs/explanation/proofs.md#canaries derives both bounds: of (ε, δ)-privacy (Steinke, Nasr & Jagielski 2023, "Privacy
auditing with one (1) training run", theorem 5.2) and of a trade-off (after Mahloujifar, Melis & Chaudhuri 2024,
"Auditing f-differential privacy in one run", here with abstentions).

Functions on arrays raise ``DataError`` where these are not finite, or too few canaries are told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from veilgraph.core.errors import DataError
from veilgraph.protocol.trade_offs import Claims, Level

_SHARES: Final = (1, 2, 4, 8)  # all canaries are guessed, or one in so many


@dataclass(frozen=True)
class OneRunBound:
    """A lower bound on the ε of one run, at the confidence that was asked for; 0 proves nothing.

    ``correct`` of the ``guesses`` are right; ``ceiling`` is the highest bound within reach, were all of them right.
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
    docs/explanation/proofs.md#canaries has the two claims that may be refuted: with ``claims`` the trade-offs of the
    ledger's releases, for the ε of the largest at δ, a larger bound; else (ε, δ)-privacy.

    Scores are [m], higher = in; coins [m], fair and independent; ``delta`` is of the ledger's total, above 0 with
    ``GaussianClaims``.
    """
    are_in, m = np.asarray(coins, dtype=np.bool_), len(scores)
    if not m or not np.isfinite(scores).all():
        raise DataError("scores: must be finite, and of one canary at least; leave other canaries out")
    tried = sorted({-(-m // share) for share in _SHARES} if guesses is None else set(guesses))
    order, level = np.argsort(scores, kind="stable"), (1 - confidence) / len(tried)

    def proven(r: int, correct: int) -> float:
        """The largest loss that so many right guesses refute; without ``claims`` a loss is an ε."""
        if claims is not None:
            guess: Level = lambda power: power  # noqa: E731 - without any loss a test is a guess
            return _largest_refuted(
                lambda loss: least_probability(m, r, correct, claims.level(loss) if loss else guess, level) > 1
            )
        return _largest_refuted(lambda epsilon: p_value(m, r, correct, epsilon, delta) <= level)

    def epsilon_of(loss: float) -> float:
        """The ε of a loss: of the largest alone, for it grows with the loss and takes long to find."""
        return claims.epsilon(loss, delta) if claims is not None and loss else loss

    rights = {r: int(are_in[order[m - (r + 1) // 2 :]].sum() + (~are_in[order[: r // 2]]).sum()) for r in tried}
    bounds = {r: proven(r, right) for r, right in rights.items()}
    best = max(tried, key=lambda r: bounds[r])
    ceiling = max(proven(r, r) for r in tried)
    return OneRunBound(epsilon_of(bounds[best]), rights[best], best, epsilon_of(ceiling))


def p_value(m: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bound on the probability that an (ε, δ)-private run has so many right guesses or more (theorem 5.2)."""
    at_least = binom.sf(np.arange(correct, -1, -1) - 1, guesses, 1 / (1 + np.exp(-epsilon)))  # f(v), …, f(0)
    gains = (at_least[1:] - at_least[0]) / np.arange(1, correct + 1)  # beyond i = v nothing is gained
    return float(min(1.0, at_least[0] + 2 * m * delta * gains.max(initial=0.0)))


def least_probability(m: int, guesses: int, correct: int, level: Level, tail: float) -> float:
    """The least total probability of V that P[V ≥ correct] = ``tail`` needs under a trade-off; above 1: impossible."""
    right, wrong, needed = correct * tail, (guesses - correct) * tail, tail  # m·R, m·H
    for count in range(correct - 1, -1, -1):
        short = m * level(min(1.0, right / m)) - wrong
        p = max(0.0, short) / (guesses - count)
        right, wrong, needed = right + count * p, wrong + (guesses - count) * p, needed + p
        if needed > 1:
            break
    return needed


def _largest_refuted(is_refuted: Callable[[float], bool]) -> float:
    """The largest number that is refuted, to within 1e-3 from below; 0 if none is."""
    if not is_refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while is_refuted(high):
        low, high = high, 2 * high
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low
