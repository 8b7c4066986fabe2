"""Events, what they come to together, and calibration: against the closed forms, the library and the papers."""

import math
from itertools import product

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.privacy.accountant import (
    analytic_multiplier,
    gaussian_delta,
    gaussian_epsilon,
    per_step,
    releases_within,
    total,
)
from veilgraph.privacy.event import (
    UNKNOWN,
    Event,
    GaussianEvent,
    LaplaceEvent,
    LocalEvent,
    from_json,
)

DELTA = 1e-4
WRITTEN = {"kind": "gaussian", "noise_multiplier": 1.0, "neighbours": "zero-out", "unit": "node"}


def integrated_delta(epsilon: float, mu: float) -> float:
    """∫ (φ(x − μ) − e^ε·φ(x))₊ dx, by quadrature."""
    start = epsilon / mu + mu / 2
    value, _ = quad(
        lambda x: norm.pdf(x - mu) - math.exp(epsilon + norm.logpdf(x)), start, start + 40, epsabs=0, epsrel=1e-10
    )
    return float(value)


@pytest.mark.parametrize(
    ("epsilon", "mu"), [(0.0, 0.01), (0.5, 0.1), (1.0, 0.268), (1.0, 3.0), (18.2, 3.46), (213.5, 17.32), (600.0, 30.0)]
)
def test_gaussian_delta_equals_the_integral(epsilon, mu):
    assert gaussian_delta(epsilon, mu) == pytest.approx(integrated_delta(epsilon, mu), rel=1e-7)


@pytest.mark.parametrize(("epsilon", "mu"), [(1e6, 1.0), (1e4, 1e-6), (1e300, 1e5), (1.0, 1e200), (0.0, 1e-12)])
def test_gaussian_delta_neither_overflows_nor_leaves_the_unit_interval(epsilon, mu):
    assert 0 <= gaussian_delta(epsilon, mu) <= 1


@pytest.mark.cases(1)
@pytest.mark.parametrize(("multiplier", "releases"), [(0.8, 1), (5.0, 300), (100.0, 300)])
@pytest.mark.parametrize("relation", ["zero-out", "replacement"])
def test_total_agrees_with_the_library_at_full_participation(multiplier, releases, relation):
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.REPLACE_ONE
        if relation == "replacement"
        else dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    expected = accountant.compose(dp_accounting.GaussianDpEvent(multiplier), releases).get_epsilon(DELTA)
    assert total({GaussianEvent(multiplier, relation): releases}, DELTA) == pytest.approx(expected, rel=1e-3)


@settings(max_examples=200)
@given(st.floats(1e-3, 40), st.floats(1e-10, 0.1))
def test_gaussian_epsilon_is_the_safe_side_of_the_root(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_delta(epsilon, mu) <= delta
    if epsilon > 0:
        assert gaussian_delta(epsilon * (1 - 1e-6), mu) > delta


def test_one_laplace_release_costs_its_closed_form():
    # δ(ε') = 1 − e^((ε' − ε)/2) for ε' ≤ ε.
    assert per_step(LaplaceEvent(0.5), 0.01) == pytest.approx(2 + 2 * math.log(0.99), abs=2e-4)
    assert per_step(LaplaceEvent(0.5, "replacement"), 0.01) == pytest.approx(4 + 2 * math.log(0.99), abs=2e-4)


def test_many_laplace_releases_cost_less_than_their_sum_and_never_more():
    assert total({LaplaceEvent(20.0): 300}, DELTA) < 0.5 * 300 / 20
    assert total({LaplaceEvent(20.0): 2}, 1e-12) <= 0.1


def test_a_mixture_costs_more_than_its_parts_and_less_than_their_sum():
    gaussian: dict[Event, int] = {GaussianEvent(5.0): 100}
    laplace: dict[Event, int] = {LaplaceEvent(20.0): 100}
    mixed = total({**gaussian, **laplace}, DELTA)
    assert max(total(gaussian, DELTA), total(laplace, DELTA)) < mixed < total(gaussian, DELTA) + 100 / 20
    # A Laplace release of nearly no ε changes nearly nothing.
    assert total({**gaussian, LaplaceEvent(1e6): 1}, DELTA) == pytest.approx(total(gaussian, DELTA), rel=1e-3)


def test_noise_too_small_for_any_float_costs_infinity():
    assert total({GaussianEvent(1e-300): 1}, DELTA) == math.inf
    assert total({GaussianEvent(5e-324, "replacement"): 1, LaplaceEvent(1.0, "replacement"): 1}, DELTA) == math.inf


def test_pure_epsilons_of_local_releases_add_up_and_onto_everything_else():
    for delta in (1e-12, DELTA, 0.1):
        assert per_step(LocalEvent(0.5), delta) == 0.5
        assert total({LocalEvent(0.5): 2, LocalEvent(0.1): 3}, delta) == pytest.approx(1.3, rel=1e-15)
        for other in (GaussianEvent(5.0, "replacement", "node"), LaplaceEvent(5.0, "replacement", "node")):
            alone = total({other: 10}, delta)
            assert total({other: 10, LocalEvent(0.5): 2}, delta) == pytest.approx(alone + 1.0, rel=1e-15)
    assert releases_within(LocalEvent(0.25), 1.0, DELTA) == 4


@pytest.mark.parametrize(
    ("multiplier", "epsilon"),
    # Made with dp-accounting 0.6's PLD accountant and, independently, 50-digit arithmetic on Balle & Wang's theorem 8.
    [(1, "213.51"), (5, "18.207"), (20, "3.2098"), (100, "0.5117")],
)
def test_pinned_totals_of_300_releases(multiplier, epsilon):
    digits = len(epsilon.partition(".")[2])
    assert f"{total({GaussianEvent(multiplier): 300}, DELTA):.{digits}f}" == epsilon


EPSILONS = st.floats(0.01, 200)
DELTAS = st.floats(1e-10, 0.01)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-4), (1.0, 1e-5), (4.0, 1e-4), (32.0, 1e-6)])
def test_analytic_multiplier_agrees_with_the_library(epsilon, delta):
    assert analytic_multiplier(epsilon, delta) == pytest.approx(
        dp_accounting.get_sigma_gaussian(epsilon, delta), rel=1e-6
    )


@settings(max_examples=100)
@given(EPSILONS, DELTAS)
def test_analytic_noise_is_enough_and_hardly_more(epsilon, delta):
    multiplier = analytic_multiplier(epsilon, delta)
    assert gaussian_delta(epsilon, 1 / multiplier) <= delta
    assert gaussian_delta(epsilon, 1.00001 / multiplier) > delta


# What is refused


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, True, "5", None])
@pytest.mark.parametrize(
    ("kind", "named"),
    [(GaussianEvent, "noise_multiplier"), (LaplaceEvent, "scale_multiplier"), (LocalEvent, "epsilon")],
)
def test_noise_that_is_no_positive_number_is_refused(kind, named, value):
    with refused(ConfigError, key=named):
        kind(value)


@pytest.mark.parametrize(
    ("key", "value", "ask"),
    [
        ("neighbours", "add", lambda: GaussianEvent(1.0, "add")),  # type: ignore[arg-type]
        ("unit", "graph", lambda: LaplaceEvent(1.0, "zero-out", "graph")),  # type: ignore[arg-type]
        ("unit", "edge", lambda: LocalEvent(1.0, "edge")),
        ("unit", "edge", lambda: total({GaussianEvent(1.0): 1, GaussianEvent(1.0, unit="edge"): 1}, DELTA)),
        ("unit", "label", lambda: total({LocalEvent(1.0, "node"): 1, LocalEvent(1.0, "label"): 1}, DELTA)),
        ("neighbours", "replacement", lambda: total({GaussianEvent(1): 1, LaplaceEvent(1, "replacement"): 1}, DELTA)),
    ],
)
def test_what_is_no_release_and_what_is_not_added_up_is_refused(key, value, ask):
    with refused(ConfigError, key=key, value=value):
        ask()


ASKED_WITH_DELTA = [
    lambda delta: total({}, delta),
    lambda delta: gaussian_epsilon(1.0, delta),
    lambda delta: per_step(GaussianEvent(1.0), delta),
    lambda delta: analytic_multiplier(0.5, delta),
]
ASKED_WITH_EPSILON = [
    lambda epsilon: analytic_multiplier(epsilon, 1e-4),
]


@pytest.mark.parametrize(
    ("key", "asked", "values"),
    [
        ("delta", ASKED_WITH_DELTA, [0.0, 1.0, -0.1, math.nan]),
        ("epsilon", ASKED_WITH_EPSILON, [0.0, -1.0, math.inf, math.nan]),
    ],
)
def test_delta_is_a_probability_strictly_inside_and_epsilon_is_finite_and_positive(key, asked, values):
    for ask, value in product(asked, values):
        with refused(ConfigError, key=key):
            ask(value)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {**WRITTEN, "kind": "cauchy"},
        {**WRITTEN, "kind": ["gaussian"]},
        {**WRITTEN, "kind": "laplace"},
        {**WRITTEN, "q": 0.1},
        {**WRITTEN, "noise_multiplier": "1"},
        {**WRITTEN, "neighbours": ["zero-out"]},
        {key: value for key, value in WRITTEN.items() if key != "unit"},
        {"kind": "local", "epsilon": 1.0},
        {"kind": "local", "epsilon": 1.0, "neighbours": "zero-out", "unit": "node"},
    ],
)
def test_what_is_no_known_event_is_refused(data):
    with pytest.raises(ConfigError, match=r"event|neighbours|noise_multiplier"):
        from_json(data)


def test_a_release_about_a_retired_unit_cannot_be_accounted_for_and_the_way_out_is_said():
    with refused(ConfigError, code=UNKNOWN):
        from_json({**WRITTEN, "unit": "row"})
