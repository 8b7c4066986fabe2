"""Canaries: what releases say of each being in, and what guesses about many of them prove of a run's ε.

# Scores

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

# Privacy auditing with one run

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
from itertools import product
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp, ndtr, ndtri
from scipy.stats import binom, chi2

from veilgraph.audit.statistics import Truth
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.privacy import accountant
from veilgraph.privacy.accountant import gaussian_epsilon
from veilgraph.privacy.event import SampledEvent
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
    return np.asarray(np.sum([_round_score(each, rate) for each in rounds], axis=0))


def _round_score(each: Round, rate: float) -> Floats:
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
        epsilon: the run's ε is at least this, unless an event of probability 1 - confidence happened; 0: nothing is
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
    """How much all releases of a run together speak for each canary being in, [m].

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
    return np.asarray(np.sum([_score(*pair, np.asarray(rows)) for pair in zip(released, directions, strict=True)], 0))


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
