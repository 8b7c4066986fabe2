"""How much noise a wanted (ε, δ) needs. Every answer lands on the safe side: its own ε is never above the wanted one.

A multiplier is the standard deviation of the noise over the sensitivity, or over the clip C where a function is told
the neighbouring relation.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from veilgraph.core.errors import ConfigError
from veilgraph.core.privacy_settings import Neighbours
from veilgraph.privacy.accountant import check_delta, check_q, gaussian_delta, subsampled_total, total
from veilgraph.privacy.event import GaussianEvent, LaplaceEvent, sensitivity_in_clips

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
    _check_releases("releases", releases)
    return analytic_multiplier(epsilon_total, delta) * math.sqrt(releases) * sensitivity_in_clips(neighbours)


def laplace_scale_for_total(epsilon_total: float, delta: float, releases: int) -> float:
    """The scale over the ℓ1 sensitivity with which ``releases`` Laplace releases cost ``epsilon_total`` together.

    Never more than pure composition asks for, releases / ε; less where δ allows it.

    Args:
        epsilon_total: ε of all releases together.
        delta: δ of all releases together.
        releases: how many, ≥ 1; every unit takes part in each.

    Returns:
        The scale, above what ``total`` asks for by about 1e-4 of it.

    Raises:
        ConfigError: an argument is out of range.
    """
    _check_epsilon(epsilon_total)
    check_delta(delta)
    _check_releases("releases", releases)

    def excess(scale: float) -> float:
        return total({LaplaceEvent(scale): releases}, delta) - epsilon_total

    enough = releases / epsilon_total * _MARGIN
    if releases == 1:
        return enough
    too_little = enough / 2
    while excess(too_little) <= 0:
        enough, too_little = too_little, too_little / 2
    return _from_above(excess, too_little, enough)


def calibrate_subsampled(epsilon_total: float, delta: float, q: float, steps: int) -> float:
    """The Gaussian noise over the clip with which ``steps`` Poisson-sampled releases cost ``epsilon_total`` together.

    Under zero-out, with the secret samples that ``subsampled_total`` asks for. The search starts from the noise of full
    participation, which is enough, and halves it until it is not: from much less noise, the distribution of the losses
    is too long to hold.

    Args:
        epsilon_total: ε of all releases together.
        delta: δ of all releases together.
        q: probability with which a unit takes part in a release; 0 < q ≤ 1.
        steps: T ≥ 1.

    Returns:
        The multiplier, above what ``subsampled_total`` asks for by about 1e-4 of it.

    Raises:
        ConfigError: an argument is out of range, or δ is as large as the probability of being sampled at all.
    """
    _check_releases("steps", steps)
    check_q(q)
    enough = multiplier_for_total(epsilon_total, delta, steps, "zero-out")

    def excess(multiplier: float) -> float:
        return subsampled_total(GaussianEvent(multiplier), q, steps, delta) - epsilon_total

    if q == 1:
        return enough
    if -math.expm1(steps * math.log1p(-q)) <= delta:
        raise ConfigError(
            f"delta={delta!r} allows that everyone who is sampled (q={q!r}, steps={steps}) is exposed without noise; "
            "lower delta"
        )
    too_little = enough / 2
    while excess(too_little) <= 0:
        enough, too_little = too_little, too_little / 2
    return _from_above(excess, too_little, enough)


def _from_above(excess: Callable[[float], float], too_little: float, enough: float) -> float:
    from scipy.optimize import brentq  # noqa: PLC0415  (slow to import, and few processes solve)

    multiplier = float(brentq(excess, too_little, enough, rtol=_TOLERANCE))
    while excess(multiplier) > 0:
        multiplier *= 1 + _TOLERANCE
    return multiplier


def _check_epsilon(epsilon: float) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"epsilon={epsilon!r} must be a finite number > 0")


def _check_releases(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name}={value!r} must be a whole number >= 1")
