"""What releases cost together: the total (ε, δ) of a set of events, never to be confused with the cost of one.

At full participation T Gaussian releases, even if each is chosen from the earlier ones, cost exactly what one
Gaussian release with μ² = Σ 1/multiplier² costs (Dong, Roth & Su 2022, corollary 3.3), and that curve is known in
closed form (Balle & Wang 2018, theorem 8). By hand: ``dp_accounting`` agrees to 5e-10, but is below the root as often
as above it, takes 25 times as long, and adds 0.9 s of import to the 2.3 s of a party's process. Anything else is
composed numerically by it, from its privacy loss distribution, rounded towards more loss.

One number stands for a release of vectors: docs/explanation/proofs.md#one-number-for-a-release-of-vectors.

The pure ε of local releases is added to the total of all others (basic composition): a node makes one or two of them,
from which δ buys nearly nothing, and the total stays what local differential privacy means by ε, at any δ. Releases
that need a share of δ are added likewise: each is ε-private but for a chance, and these add up to their share.

*Calibration* goes the other way, from a wanted (ε, δ) to a multiplier: the standard deviation of the noise over the
sensitivity, or over the clip C where a function is told the neighbouring relation. Every answer lands on the safe side:
its own ε is never above the wanted one. ``dp_accounting.get_sigma_gaussian`` agrees to 4e-12.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from veilgraph.core.errors import ConfigError
from veilgraph.core.threads import locked_cache
from veilgraph.privacy.event import Event, check_positive, check_whole

if TYPE_CHECKING:
    from veilgraph.privacy.composer import Composer

MOST_RELEASES: Final = 1 << 32  # ``releases_within`` counts no further

_RESOLUTION: Final = 1e-13  # relative, of roots that are bisected

_FINEST_STEP: Final = 1e-4  # width of a cell of the privacy loss distribution; the library's own default

_MOST_CELLS: Final = 2e6  # cells are widened beyond this many: safe, less exact, and the memory is bounded


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The exact δ at ε ≥ 0 of Gaussian noise: Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2).

    Both terms are written with the Mills ratio (1 − Φ)/φ, of which e^ε·φ(ε/μ + μ/2) = φ(ε/μ − μ/2) leaves nothing that
    could overflow. ``mu`` ≥ 0 is the sensitivity over the standard deviation; of several releases, the root of the sum
    of squares. Raises ``ConfigError``. Source: Balle & Wang 2018, theorem 8.
    """
    _check_not_negative("epsilon", epsilon)
    _check_not_negative("mu", mu)
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    density = math.exp(-near * near / 2) / math.sqrt(2 * math.pi)
    if near > 0:
        return max(0.0, density * (_mills_ratio(near) - _mills_ratio(far)))
    from scipy.special import ndtr  # noqa: PLC0415  (slow to import, and few processes count)

    return max(0.0, float(ndtr(-near)) - density * _mills_ratio(far))


@locked_cache(1024)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε with ``gaussian_delta(ε, mu)`` ≤ ``delta``, at most 1e-13 of it above; it may be infinite."""
    _check_not_negative("mu", mu)
    _check_delta(delta)
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    # δ ≤ Φ(−t) ≤ exp(−t²/2) with t = ε/μ − μ/2.
    most = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    if math.isinf(most):
        return math.inf
    return bisected(0.0, most, lambda epsilon: gaussian_delta(epsilon, mu) <= delta)[1]


def bisected(
    low: float, high: float, holds: Callable[[float], bool], resolution: float = _RESOLUTION
) -> tuple[float, float]:
    """Narrow an interval down to where ``holds``, false at its first end and true at its last, begins to be true."""
    while high - low > resolution * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def total(counts: Mapping[Event, int], delta: float) -> float:
    """The total ε, at ``delta``, of so many releases of each event, in which every unit takes part each time.

    They may depend on one another's outcomes. It is exact for Gaussian events, an upper bound with any that are
    composed numerically; pure ε are added. Raises ``ConfigError``: ``delta`` or a count is out of range, or the events
    differ in unit or neighbouring relation.
    """
    _check_delta(delta)
    for event, count in counts.items():
        check_whole("count", count, 0)
        if not isinstance(event, Event):
            raise ConfigError(f"event={event!r} is no event that can be accounted for; describe it as one that is")
    happened = {event: count for event, count in counts.items() if count > 0}
    for name in ("unit", "neighbours"):
        given = sorted({getattr(event, name) for event in happened})
        if len(given) > 1:
            raise ConfigError(
                f"{name}={' and '.join(given)} in one total: they protect different things and do not add up; account "
                "for each by itself"
            )
    mus = {event: mu for event, count in happened.items() if (mu := event.mu(count))}
    numeric = [(event, count) for event, count in happened.items() if event.is_numeric]
    shared = [(event, count) for event, count in happened.items() if event.needs_share]
    others = [
        (event, count)
        for event, count in happened.items()
        if event not in mus and not event.is_numeric and not event.needs_share
    ]
    mu, pure = math.hypot(*mus.values()), math.fsum(event.epsilon * count for event, count in others)
    if shared:
        alone = not mus and not numeric
        share = delta if alone else delta / 2  # δ adds up, so what others have is theirs alone
        number = sum(count for _, count in shared)
        pure += math.fsum(epsilon_at(event, share / number) * count for event, count in shared)
        if alone:
            return pure
        delta -= share
    added = gaussian_epsilon(mu, delta) + math.fsum(event.epsilon * count for event, count in numeric)
    if numeric:
        added = min(added, _composed(mu, tuple(numeric), delta))
    return added + pure


def epsilon_at(event: Event, delta: float) -> float:
    """ε at ``delta`` of one release of an event that needs a share of δ: the largest of its alternatives."""
    return max(gaussian_epsilon(mu, delta) + pure for mu, pure in event.alternatives)


def per_step(event: Event, delta: float) -> float:
    """The ε of one release by itself, at ``delta``: not what a run of many costs."""
    return total({event: 1}, delta)


def releases_within(
    event: Event,
    epsilon_total: float,
    delta: float,
    *,
    before: Mapping[Event, int] = MappingProxyType({}),
    most: int = MOST_RELEASES,
) -> int:
    """Return how many more releases with that event, at most ``most``, keep the total ε at ``delta`` within a bound.

    ``before`` says how often each event happened already, about the same unit and relation. Errors are those of
    ``total``.
    """

    def fits(more: int) -> bool:
        return total({**before, event: before.get(event, 0) + more}, delta) <= epsilon_total

    return largest_count(fits, most)


def largest_count(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to ``most`` that fits, of which all smaller ones do: looks no further than twice it."""
    low, step = 0, 1
    while low < most and fits(min(low + step, most)):
        low, step = min(low + step, most), 2 * step
    high = min(low + step, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigError(f"delta={delta!r} must lie strictly between 0 and 1; take well below 1 / number of units")


@locked_cache(maxsize=1024)
def _composed(mu: float, events: tuple[tuple[Event, int], ...], delta: float) -> float:
    """Return ε at ``delta`` of a Gaussian release of ``mu`` and so many of each event; infinite where none is found."""
    found = composed(mu, events)
    return math.inf if found is None else float(found.get_epsilon(delta))


def composed(mu: float, events: Sequence[tuple[Event, int]]) -> Composer | None:
    """Return ``dp_accounting``'s accountant of a Gaussian release of ``mu`` and these; None: losses are unbounded."""
    bounded = [(event.epsilon, count) for event, count in events if type(event).distribution is Event.distribution]
    loss_range = mu * mu / 2 + 10 * mu + 2 * sum(largest * count for largest, count in bounded)
    if math.isinf(loss_range):
        return None
    import dp_accounting  # noqa: PLC0415 - see the head of this file

    from veilgraph.privacy.composer import Composer  # noqa: PLC0415 - as above

    finest = max(_FINEST_STEP, loss_range / _MOST_CELLS)
    interval = max(event.interval(finest) for event, _ in events) if events else finest
    if math.isinf(interval):
        return None
    accountant = Composer(interval)
    if mu > 0:
        accountant.compose(dp_accounting.GaussianDpEvent(1 / mu))
    for event, count in events:
        distribution = event.distribution(interval)
        if distribution is None:
            accountant.compose(event.losses(), count)
        else:
            accountant.add(distribution.self_compose(count))
    return accountant


def _mills_ratio(x: float) -> float:
    from scipy.special import erfcx  # noqa: PLC0415  (slow to import, and few processes count)

    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))


def _check_not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise ConfigError(f"{name}={value!r} must be a number >= 0")


# Less noise protects nothing, and its grid would be finer than float64 resolves within the clip.
SMALLEST_MULTIPLIER: Final = 1e-9

# On every multiplier, so that the ε computed back from it, rounded up by itself, stays within the wanted one.
_MARGIN = 1 + 1e-9


def analytic_multiplier(epsilon: float, delta: float) -> float:
    """The least noise over the sensitivity that makes one release (ε, δ)-private, and about 1e-9 of it more.

    Source: Balle & Wang 2018, algorithm 1.
    """
    check_positive("epsilon", epsilon)
    _check_delta(delta)
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon, high) <= delta:
        low, high = high, 2 * high
    return _MARGIN / bisected(low, high, lambda mu: gaussian_delta(epsilon, mu) > delta)[0]
