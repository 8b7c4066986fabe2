"""The price of one step of DP-SGD with several terms of one node, against other ways to find it."""

import math
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom, norm
from veilgraph_averaging.private.event import SampledEvent, reach
from veilgraph_averaging.private.mixture import Mixture, distribution_of

from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.privacy import accountant
from veilgraph.privacy.lifetime_costs import epsilon, price, stand_in

DELTA = 1e-5
CELL = 1e-3


def both(event: SampledEvent, at: list[float]) -> list[list[float]]:
    """δ of one step at ε, there and back."""
    mixture = Mixture(event.noise_multiplier, event.sampling_rate, event.removed, event.inserted)
    return [[float(each[0]) for each in mixture.deltas(np.array([one]))] for one in at]


def by_hand(event: SampledEvent, at: list[float]) -> list[list[float]]:
    """The same by adding up densities."""
    x = np.linspace(-60, 60, 400_001)
    up, down = (
        sum(
            binom.pmf(j, terms, event.sampling_rate) * norm.pdf(x, sign * j, event.noise_multiplier)
            for j in range(terms + 1)
        )
        for terms, sign in ((event.removed, 1), (event.inserted, -1))
    )
    step = x[1] - x[0]
    return [
        [float(np.maximum(p - math.exp(one) * q, 0).sum() * step) for p, q in ((up, down), (down, up))] for one in at
    ]


@pytest.mark.cases(1)
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.05), (2.0, 0.01), (0.7, 1.0)])
def test_with_one_term_it_is_the_poisson_sampled_gaussian(noise: float, rate: float) -> None:
    event = SampledEvent(noise, rate, 1)
    found = distribution_of(noise, rate, event.removed, event.inserted, CELL).self_compose(40)
    known = reference.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=CELL
    ).self_compose(40)
    assert found.get_epsilon_for_delta(DELTA) == pytest.approx(known.get_epsilon_for_delta(DELTA), rel=1e-6)


@pytest.mark.cases(2)
@pytest.mark.parametrize("neighbours", ["zero-out", "replacement"])
@pytest.mark.parametrize(("noise", "rate", "terms"), [(1.0, 0.1, 3), (3.0, 0.3, 5), (0.8, 0.9, 2)])
def test_divergences_are_those_of_the_densities(noise: float, rate: float, terms: int, neighbours: str) -> None:
    event = SampledEvent(noise, rate, terms, neighbours)  # type: ignore[arg-type]
    at = [-1.0, 0.0, 0.3, 1.0, 3.0]
    for found, known in zip(both(event, at), by_hand(event, at), strict=True):
        assert found == pytest.approx(known, rel=1e-5, abs=1e-9)


def test_a_total_is_what_convolutions_of_the_two_densities_come_to() -> None:
    """Losses of cells of x, each rounded to the nearest of a grid, and convolved with themselves by one transform."""
    event, steps, size = SampledEvent(3.0, 0.1, 4), 30, 1 << 16
    x = np.linspace(-25, 25, 20_001)
    up, down = (
        sum(binom.pmf(j, terms, 0.1) * np.diff(norm.cdf(x, sign * j, 3.0)) for j in range(terms + 1))
        for terms, sign in ((4, 1), (3, -1))
    )
    known = []
    for one, other in ((up, down), (down, up)):
        kept = (one > 0) & (other > 0)
        places = np.rint(np.log(one[kept] / other[kept]) / CELL).astype(int) % size
        mass = np.bincount(places, one[kept], size)
        composed = np.fft.irfft(np.fft.rfft(mass) ** steps, size)
        losses = CELL * np.fft.fftfreq(size, 1 / size)
        at = np.linspace(0, 8, 801)
        deltas = [float((composed * np.maximum(0, 1 - np.exp(each - losses)))[losses > each].sum()) for each in at]
        known.append(float(np.interp(-DELTA, -np.array(deltas), at)))
    assert accountant.total({event: steps}, DELTA) == pytest.approx(max(known), rel=2e-3)


@settings(max_examples=20)
@given(st.data(), st.integers(1, 3), st.integers(0, 3), st.floats(0.05, 0.95), st.floats(0.7, 3))
def test_no_terms_within_the_clip_are_easier_to_tell_apart(
    data: st.DataObject, removed: int, inserted: int, rate: float, noise: float
) -> None:
    """In the plane, where terms may point anywhere."""
    sets = []
    for count in (removed, inserted):
        parts = [(data.draw(st.floats(0, 1)), data.draw(st.floats(0, 2 * math.pi))) for _ in range(count)]
        sets.append([length * np.array([math.cos(turn), math.sin(turn)]) for length, turn in parts])
    axis = np.linspace(-11, 11, 221)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1)
    cell = float(axis[1] - axis[0]) ** 2
    one, other = (_density(vectors, rate, noise, grid) for vectors in sets)
    alphas = np.exp(np.array([-2.0, -0.5, 0.0, 0.5, 1.5]))
    worst = Mixture(noise, rate, removed, inserted).deltas(np.log(alphas))
    for place, alpha in enumerate(alphas):
        for (p, q), bound in zip(((one, other), (other, one)), worst, strict=True):
            assert float(np.maximum(p - alpha * q, 0).sum() * cell) <= float(bound[place]) + 1e-3  # of the grid


def _density(vectors: list[NDArray[np.float64]], rate: float, noise: float, grid: NDArray[np.float64]) -> np.ndarray:
    found = np.zeros(grid.shape[:2])
    for size in range(len(vectors) + 1):
        for drawn in combinations(vectors, size):
            weight = rate**size * (1 - rate) ** (len(vectors) - size)
            away = grid - sum(drawn, np.zeros(2))
            found += weight * np.exp(-(away**2).sum(-1) / (2 * noise**2)) / (2 * math.pi * noise**2)
    return found


def test_a_gaussian_that_stands_in_is_no_harder_to_tell_apart() -> None:
    event, steps, failure = SampledEvent(4.0, 0.05, 5), 60, DELTA * 1e-4
    composed = accountant.composed(0.0, [(event, steps)])
    assert composed is not None
    mu = stand_in(composed, failure)
    for at in np.linspace(0, 12, 61):
        bound = failure + (1 - failure) * accountant.gaussian_delta(float(at), mu)
        assert composed.get_delta(float(at)) <= bound * (1 + 1e-9)
    paid = price(event, steps, DELTA)
    assert (math.sqrt(paid.squares), paid.failure) == (mu, failure)
    total = accountant.total({event: steps}, DELTA)
    assert total < epsilon(paid, DELTA) < 1.1 * total
    assert epsilon(paid.times(10_000), DELTA) == math.inf  # nothing of δ is left


def test_what_stands_in_bounds_a_long_tail_between_the_places_that_are_looked_at_too() -> None:
    """Few terms are drawn, and one that is tells much: the tail decides, where little but the failure is left of δ."""
    failure, composed = DELTA / 20, accountant.composed(0.0, [(SampledEvent(1.0, 0.01, 1), 100)])
    assert composed is not None
    mu = stand_in(composed, failure)
    places = [float(place) for place in np.linspace(0, 1.05 * float(composed.get_epsilon(failure)), 300)]
    bounds = [failure + (1 - failure) * accountant.gaussian_delta(place, mu) for place in places]
    assert 0.9 < max(composed.get_delta(place) / bound for place, bound in zip(places, bounds, strict=True)) <= 1


def test_hardly_any_noise_has_a_stand_in_though_rounding_puts_its_delta_above_1() -> None:
    """Else the search goes on for ever, and a holder waits for its ledger."""
    event = SampledEvent(0.05, 0.9, 20)
    found = [price(event, count, 1e-4) for count in (1, 2, 5)]
    assert all(math.isfinite(each.squares) for each in found)
    rounded = SimpleNamespace(get_epsilon=lambda _: 582.0, get_delta=lambda _: math.nextafter(1, 2))
    mu = stand_in(rounded, 1e-8)
    assert accountant.gaussian_delta(582.0, mu) == 1


@pytest.mark.parametrize(("hops", "bound", "count"), [(0, 7, 1), (1, 7, 8), (2, 3, 10), (3, 2, 7), (2, 1, 2)])
def test_the_reach_is_that_of_a_tree(hops: int, bound: int, count: int) -> None:
    assert reach(hops, bound) == count


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.inf},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.1},
        {"terms": 0},
        {"terms": 1.5},
        {"terms": True},
        {"neighbours": "near"},
        {"unit": "label"},
    ],
)
def test_fields_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with refused(ConfigError, key=next(iter(wrong))):
        SampledEvent(**{"noise_multiplier": 1.0, "sampling_rate": 0.1, "terms": 2, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(("terms", "noise"), [(1, 0.03), (21, 0.45), (1001, 1e-3)])
def test_losses_that_no_number_holds_are_without_bound(terms: int, noise: float) -> None:
    """And not an error, or a total that lacks them."""
    assert accountant.total({SampledEvent(noise, 0.1, terms): 3}, 1e-5) == math.inf
    assert 200 < accountant.total({SampledEvent(0.5, 0.1, 21): 3}, 1e-5) < math.inf
    of_all = price(SampledEvent(noise, 0.1, terms), 3, 1e-5)
    assert of_all.squares == pytest.approx(3 * ((2 * terms - 1) / noise) ** 2), "as if every term were drawn"
    assert (of_all.pure, of_all.failure) == (0.0, 0.0)
