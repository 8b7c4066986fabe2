"""Privacy auditing with one run: what guesses about many canaries prove about ε, to hold against the ledger.

A run has m canaries, each in or out by a fair coin of its own. If the run is private about each of them, no adversary
can guess many coins right; so many right guesses prove that it is less private than that. Nothing is assumed of how the
releases were made, neither that rows have independent noise nor what the training does.

The adversary guesses that the ⌈r/2⌉ canaries with the highest scores are in and the ⌊r/2⌋ with the lowest out, and
abstains on the rest. V counts its right guesses.

*(ε, δ)-privacy* (Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run", theorem 5.2):

    P[V ≥ v] ≤ f(v) + 2mδ · max_{1 ≤ i ≤ m} (f(v − i) − f(v))/i,    f(v) = P[Binomial(r, e^ε/(1 + e^ε)) ≥ v].

Given the releases and the coins before it, ε-privacy leaves each guess right with a probability of at most
e^ε/(1 + e^ε), so that the binomial dominates V; a coin shows altogether with a probability of at most 2δ, and the
second term is what such coins can add.

*Gaussian privacy.* A ledger of Gaussian releases claims more than (ε, δ) at one δ: no test of a coin has more power
than F(a) = Φ(Φ⁻¹(a) + μ) at level a (Dong, Roth & Su 2022). Let p_c = P[V = c], J a random canary, and A the event that
J's guess is right and V > i. P[A] = R_{i+1} := Σ_{c>i} c/m·p_c. Had J's coin fallen the other way, the same releases
would make J's guess wrong and V one less, which has a probability of H_i := Σ_{c≥i} (r − c)/m·p_c. F is concave, so by
Jensen's inequality

    R_{i+1} ≤ F(H_i)  for every i            (after Mahloujifar, Melis & Chaudhuri 2024, "Auditing f-differential
                                              privacy in one run", here with abstentions).

Let P[V ≥ v] = t. These inequalities for i < v still hold when all of t is moved to v, and when, from i = v − 1 down,
all that p_i has beyond the least that R_{i+1} ≤ F(H_i) needs is moved to i − 1: that lowers every R and raises every H
of the inequalities to come. So they can only hold if t and the least p_i,

    p_i = max(0, F⁻¹(R_{i+1}) − H_{i+1})·m/(r − i),    i = v − 1, …, 0,

come to no more than 1; if they come to more, P[V ≥ v] < t.

*Any other trade-off.* Nothing above uses more of F than that it is concave and bounds the power of every test of one
coin, either way. So a ledger of other releases is held against theirs in the same way.

*Sampled sums.* Such a ledger does not say of one δ what ε is, but of every ε what δ is: the hockey-stick divergences of
T sums, either way, from their privacy loss distribution, rounded towards more loss. A test of level a has no more power
than

    F(a) = min over ε ≥ 0 of min(δ(ε) + e^ε·a, 1 − e^(−ε)·(1 − δ(ε) − a)),

the tangents of the trade-off (Dong, Roth & Su 2022, proposition 6), of which a part may be left out. One that has power
y has at least the level F⁻¹(y) = max over ε of max(e^(−ε)·(y − δ(ε)), 1 − δ(ε) − e^ε·(1 − y)).

Less noise is more loss, so the trade-offs of σ/ℓ, ℓ > 0, are ordered by ℓ, and at ℓ = 1 is the claim.

Functions on arrays raise ``DataError`` where arrays do not fit each other or are not finite, and ``ConfigError`` where
another argument is out of range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from veilgraph.audit.statistics import Truth
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.privacy import accountant
from veilgraph.privacy.accountant import gaussian_epsilon
from veilgraph.privacy.event import SampledEvent
from veilgraph.protocol.view import Floats

_SHARES: Final = (1, 2, 4, 8)
"""All canaries are guessed, or one in so many."""

_PRECISION: Final = 1e-3


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
    """What one run proves.

    Attributes:
        epsilon: the run's ε is at least this, unless an event of probability 1 - confidence happened; 0 if nothing is
            proven.
        correct: right guesses among ``guesses``.
        guesses: r, with which this was proven.
        ceiling: what the same numbers of guesses would have proven had all been right: larger ε are out of reach.
    """

    epsilon: float
    correct: int
    guesses: int
    ceiling: float


def canary_scores(released: Sequence[NDArray[Any]], rows: NDArray[Any], directions: Sequence[NDArray[Any]]) -> Floats:
    """How much all releases of a run together speak for each canary being in.

    Release s adds ⟨x_s, u_s⟩ of the canary's row over the size of what the canaries' rows have beside that,
    x_s − ⟨x_s, u_s⟩·u_s: noise, and other holders' rows in a sum. With Gaussian noise of one multiplier this orders
    canaries as the likelihood ratio of their coins does, whatever the clips and factors common to all rows. It does not
    look at coins, so the bound holds for any releases, and for sums of several holders'.

    Args:
        released: S matrices [N, d_s].
        rows: [m] where the canaries are.
        directions: S matrices [m, d_s], u_s with ‖u_s‖₂ = 1.
    """
    if not released or len(released) != len(directions):
        raise DataError(
            f"released: has {len(released)} matrices and directions {len(directions)}: each release, one at least, "
            "needs its directions; give one of each"
        )
    scores: Floats = np.sum(
        [_score(*pair, np.asarray(rows)) for pair in zip(released, directions, strict=True)], axis=0
    )
    return scores


def one_run_epsilon(
    scores: NDArray[Any],
    coins: NDArray[Any],
    delta: float,
    confidence: float = 0.95,
    guesses: Sequence[int] | None = None,
    *,
    gaussian: bool = False,
    claims: Claims | None = None,
) -> OneRunBound:
    """A lower bound on a run's ε from its canaries: the largest that so many right guesses refute.

    Each r of ``guesses`` is tried with error (1 − confidence)/(number of r), and the best bound is given: it holds with
    the confidence asked for (union bound). See the head of this file for the two claims that may be refuted.

    Args:
        scores: [m], higher = in.
        coins: [m] bool or 0 and 1, True = in; fair and independent.
        delta: δ of the ledger's total, in [0, 1), above 0 with ``gaussian``.
        confidence: in (0, 1).
        guesses: the r to try, chosen without looking at coins or scores; None for m, m/2, m/4 and m/8, rounded up.
        gaussian: refute Gaussian privacy μ and give its ε at δ: a larger bound, for a ledger in which all releases are
            Gaussian. Without it, the bound is on the ε of any run that is (ε, δ)-private.
        claims: the same for a ledger of other releases: refute their trade-offs.
    """
    values, are_in = _checked(scores, coins, delta, confidence)
    m = len(values)
    tried = sorted({-(-m // share) for share in _SHARES} if guesses is None else set(guesses))
    if not tried or not all(1 <= r <= m for r in tried):
        raise ConfigError(
            f"guesses={guesses!r} must be numbers from 1 to {m}, the canaries; leave it out, or name some"
        )
    order, level = np.argsort(values, kind="stable"), (1 - confidence) / len(tried)
    held = GaussianClaims() if gaussian else claims

    def proven(r: int, correct: int) -> float:
        """The loss, which is ε itself where nothing is claimed of it."""
        if held is not None:
            guess: Level = lambda power: power  # noqa: E731 - without any loss a test is a guess
            return _largest(
                lambda loss: least_probability(m, r, correct, held.level(loss) if loss else guess, level) > 1
            )
        return _largest(lambda epsilon: p_value(m, r, correct, epsilon, delta) <= level)

    def epsilon_of(loss: float) -> float:
        """Of the largest alone, for it grows with the loss and takes long to find."""
        return held.epsilon(loss, delta) if held is not None and loss else loss

    rights = {r: int(are_in[order[m - (r + 1) // 2 :]].sum() + (~are_in[order[: r // 2]]).sum()) for r in tried}
    bounds = {r: proven(r, right) for r, right in rights.items()}
    best = max(tried, key=lambda r: bounds[r])
    ceiling = max(proven(r, r) for r in tried)
    return OneRunBound(epsilon_of(bounds[best]), rights[best], best, epsilon_of(ceiling))


def p_value(m: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The most probable that an (ε, δ)-private run with m canaries has so many right guesses or more.

    The right side of theorem 5.2, and no more than 1.
    """
    at_least = binom.sf(np.arange(correct, -1, -1) - 1, guesses, 1 / (1 + np.exp(-epsilon)))  # f(v), …, f(0)
    gains = (at_least[1:] - at_least[0]) / np.arange(1, correct + 1)  # beyond i = v nothing is gained
    return float(min(1.0, at_least[0] + 2 * m * delta * gains.max(initial=0.0)))


def least_probability(m: int, guesses: int, correct: int, level: Level, tail: float) -> float:
    """The least probability in all, were P[V ≥ correct] ``tail`` in a run of that trade-off: above 1, it is less.

    The recursion at the head of this file, from ``tail`` at v to the sum of it and p_{v−1}, …, p_0.
    """
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
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


def _score(released: NDArray[Any], directions: NDArray[Any], rows: NDArray[Any]) -> Floats:
    if released.ndim != 2 or directions.shape != (len(rows), released.shape[1]):
        raise DataError(
            f"released: {released.shape} and directions {directions.shape} do not fit {len(rows)} canaries: give "
            "[N, d] and [m, d]"
        )
    own, width = released[rows].astype(np.float64), released.shape[1]
    along: Floats = (own * directions).sum(axis=1)
    beside = own - along[:, None] * directions
    size = np.sqrt((beside**2).sum() / (len(rows) * (width - 1))) if width > 1 else np.std(along)
    return along / max(float(size), 1e-9 * float(np.abs(along).max(initial=0.0)), np.finfo(np.float64).tiny)


def _checked(scores: NDArray[Any], coins: NDArray[Any], delta: float, confidence: float) -> tuple[Floats, Truth]:
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(coins)
    if values.ndim != 1 or values.shape != truth.shape or not len(values):
        raise DataError(f"scores: {values.shape} and coins {truth.shape} must be [m] both, m >= 1: give one of each")
    if not np.isfinite(values).all() or not np.isin(truth, (0, 1)).all():
        raise DataError("scores: must be finite, and coins True or False, 1 or 0: leave other canaries out")
    if not 0 <= delta < 1:
        raise ConfigError(f"delta={delta!r} must be at least 0 and below 1; take the ledger's")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence={confidence!r} must lie strictly between 0 and 1; take 0.95 or more")
    return values, truth.astype(bool)


_EPSILONS: Final[Floats] = np.concatenate([np.arange(0, 2, 0.02), np.geomspace(2, 40, 120)])
_STEP: Final = 2 ** (1 / 16)
_SLACK: Final = 1e-9
"""Trade-offs are those of the next larger loss of a grid, so that few have to be found."""
_LEAST: Final = 1 / 64
"""Smaller losses are taken to be this one: their distributions would have too fine cells."""


@dataclass(frozen=True)
class SampledClaims:
    """So many sampled sums with less and less noise.

    Attributes:
        event: what each does.
        releases: T ≥ 1.
    """

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
