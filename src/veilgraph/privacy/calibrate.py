"""How much noise a wanted (ε, δ) needs. Every answer lands on the safe side: its own ε is never above the wanted one.

A multiplier is the standard deviation of the noise over the sensitivity, or over the clip C where a function is told
the neighbouring relation. By hand, as the accountant and for its reasons; ``dp_accounting.get_sigma_gaussian`` agrees
to 4e-12.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from veilgraph.core.errors import ConfigError
from veilgraph.privacy.accountant import check_delta, gaussian_delta, total
from veilgraph.privacy.event import Event, LaplaceEvent, sensitivity_in_clips
from veilgraph.privacy.units import Neighbours

SMALLEST_MULTIPLIER: Final = 1e-9
"""Less noise protects nothing, and its grid would be finer than float64 resolves within the clip."""
LARGEST_MULTIPLIER: Final = 1e100

_MUCH: Final = 1e300
"""In place of an infinite ε, which no root finder takes."""

_MARGIN = 1 + 1e-9
"""On every multiplier, so that the ε computed back from it, rounded up by itself, stays within the wanted one."""

_TOLERANCE = 1e-4
"""Of a multiplier found by numerical accounting, relative."""


def classical_multiplier(epsilon: float, delta: float, *, as_in_the_paper: bool = False) -> float:
    """The textbook's noise over the sensitivity, sqrt(2·ln(1.25/δ))/ε, for one release.

    Args:
        epsilon: of the one release; the formula is proven for ε < 1 only.
        delta: 0 < δ < 1.
        as_in_the_paper: use it at any ε, as VFGNN does; the release may then cost more than ``epsilon``.

    Raises:
        ConfigError: an argument is out of range, or ε ≥ 1 without ``as_in_the_paper``.

    Source: Dwork & Roth 2014, theorem A.1; VFGNN definition 3.
    """
    _check_epsilon(epsilon)
    check_delta(delta)
    if epsilon >= 1 and not as_in_the_paper:
        raise ConfigError(
            f"epsilon={epsilon!r}: the classical calibration is proven for epsilon < 1 only; use the analytic one"
        )
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def analytic_multiplier(epsilon: float, delta: float) -> float:
    """The least noise over the sensitivity that makes one release (ε, δ)-private, at any ε > 0.

    Returns:
        The multiplier, above the exact one by about 1e-9 of it.

    Raises:
        ConfigError: an argument is out of range.

    Source: Balle & Wang 2018, algorithm 1.
    """
    _check_epsilon(epsilon)
    check_delta(delta)
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon, high) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if gaussian_delta(epsilon, middle) <= delta:
            low = middle
        else:
            high = middle
    return _MARGIN / low


def multiplier_for_total(epsilon_total: float, delta: float, releases: int, neighbours: Neighbours) -> float:
    """The noise over the clip with which ``releases`` Gaussian releases cost ``epsilon_total`` together.

    Every unit takes part in every release. σ grows as √releases.

    Args:
        epsilon_total: ε of all releases together.
        delta: δ of all releases together.
        releases: how many, ≥ 1.
        neighbours: replacement needs twice the noise of zero-out.

    Raises:
        ConfigError: an argument is out of range.
    """
    _check_releases(releases)
    return analytic_multiplier(epsilon_total, delta) * math.sqrt(releases) * sensitivity_in_clips(neighbours)


def laplace_scale_for_total(epsilon_total: float, delta: float, releases: int) -> float:
    """The scale over the ℓ1 sensitivity with which ``releases`` Laplace releases cost ``epsilon_total`` together.

    Never more than pure composition asks for, releases / ε; less where δ allows it. Arguments and errors are those of
    ``least_multiplier``.
    """
    _check_epsilon(epsilon_total)
    check_delta(delta)
    _check_releases(releases)
    enough = releases / epsilon_total * _MARGIN
    return enough if releases == 1 else least_multiplier(LaplaceEvent, epsilon_total, delta, releases, enough)


def least_multiplier(
    event_of: Callable[[float], Event], epsilon_total: float, delta: float, releases: int, guess: float = 1.0
) -> float:
    """The multiplier with which ``releases`` releases cost ``epsilon_total`` together, whatever their event.

    Args:
        event_of: multiplier → event; the more noise, the less it costs.
        epsilon_total: ε of all releases together.
        delta: δ of all releases together.
        releases: how many, ≥ 1; every unit takes part in each.
        guess: where to begin; best from above.

    Returns:
        The multiplier, above what ``total`` asks for by about 1e-4 of it.

    Raises:
        ConfigError: an argument is out of range, or no noise is enough.
    """
    _check_epsilon(epsilon_total)
    check_delta(delta)
    _check_releases(releases)
    from scipy.optimize import brentq  # noqa: PLC0415  (slow to import, and few processes solve)

    def excess(multiplier: float) -> float:
        return min(total({event_of(multiplier): releases}, delta), _MUCH) - epsilon_total

    enough = guess
    while excess(enough) > 0:
        if enough > LARGEST_MULTIPLIER:
            raise ConfigError(f"epsilon={epsilon_total!r}: no noise makes {releases} releases cost as little; raise it")
        enough *= 2
    too_little = enough / 2
    while excess(too_little) <= 0:
        if too_little < SMALLEST_MULTIPLIER:
            return too_little
        enough, too_little = too_little, too_little / 2
    found = float(brentq(excess, too_little, enough, rtol=_TOLERANCE))
    while excess(found) > 0:
        found *= 1 + _TOLERANCE
    return found


def _check_epsilon(epsilon: float) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"epsilon={epsilon!r} must be a finite number > 0")


def _check_releases(releases: int) -> None:
    if not isinstance(releases, int) or isinstance(releases, bool) or releases < 1:
        raise ConfigError(f"releases={releases!r} must be a whole number >= 1")
