"""The multi-bit mechanism and those it is compared with: ε-LDP exactly, unbiasedness, variance, layouts, refusals."""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from torch import Tensor
from veilgraph_node_dp import mechanisms
from veilgraph_node_dp.mechanisms import (
    AnalyticGaussian,
    FeatureMechanism,
    LocalLaplace,
    MultiBit,
    best_sample_size,
    data_range,
)

from tests.errors import refused
from tests.privacy.chance import exp_between, fixed
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.secrets import system_secrets
from veilgraph.privacy.event import GaussianEvent
from veilgraph.privacy.randomised_response import GRID, least_cells

LOW, HIGH = -0.5, 2.0
INPUTS = (LOW, -0.1, 0.3, 1.9, HIGH)  # of one feature
DRAWS = 200_000


def output_probabilities(mechanism: MultiBit, x: Sequence[float]) -> dict[tuple[int, ...], Fraction]:
    """P(y | x) for every y in {−1, 0, 1}^d, from the mechanism's own thresholds."""
    ones = [Fraction(int(cells), GRID) for cells in mechanism.thresholds(torch.tensor(x, dtype=torch.float64))]
    sets = list(itertools.combinations(range(len(x)), mechanism.sample_size))
    probabilities = {}
    for chosen, signs in itertools.product(sets, itertools.product((-1, 1), repeat=mechanism.sample_size)):
        y = [0] * len(x)
        probability = Fraction(1, len(sets))
        for column, sign in zip(chosen, signs, strict=True):
            y[column] = sign
            probability *= ones[column] if sign == 1 else 1 - ones[column]
        probabilities[tuple(y)] = probability
    assert sum(probabilities.values()) == 1
    return probabilities


def worst_ratio(mechanism: MultiBit) -> Fraction:
    """The largest P(y | x)/P(y | x') over all outputs and all pairs of inputs from ``INPUTS``, exactly."""
    every = [output_probabilities(mechanism, x) for x in itertools.product(INPUTS, repeat=mechanism.features)]
    return max(max(p[y] for p in every) / min(p[y] for p in every) for y in every[0])


def is_local(mechanism: MultiBit) -> bool:
    """Whether no ratio is above e^ε."""
    return worst_ratio(mechanism) <= exp_between(Fraction(mechanism.epsilon))[0]


CASES = [(d, m) for d in (1, 2, 3) for m in range(1, d + 1)]
EPSILONS = (0.01, 0.1, 0.5, 1.0, 2.0, 3.7, 9.9)


@pytest.mark.cases(13)
@pytest.mark.parametrize(("d", "m"), CASES)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_local_differential_privacy_holds_exactly_and_is_used_up(d, m, epsilon):
    mechanism = MultiBit(epsilon, LOW, HIGH, d, m)
    assert is_local(mechanism)
    assert worst_ratio(mechanism) >= exp_between(Fraction(epsilon))[1] * (1 - Fraction(1, 10**10))
    extreme = [output_probabilities(mechanism, [end] * d) for end in (LOW, HIGH)]
    assert max(extreme[1][y] / extreme[0][y] for y in extreme[0]) == worst_ratio(mechanism)


def test_the_checker_sees_a_threshold_rounded_to_nearest(monkeypatch):
    monkeypatch.setattr(mechanisms, "least_cells", lambda epsilon, parts: round(GRID / (math.exp(epsilon / parts) + 1)))
    verdicts = [is_local(MultiBit(epsilon, LOW, HIGH, d, m)) for epsilon in EPSILONS[::2] for d, m in CASES]
    assert verdicts.count(False) > len(verdicts) / 4


def test_the_checker_sees_probabilities_that_are_not_clamped(monkeypatch):
    def unclamped(self: MultiBit, values: Tensor) -> Tensor:
        least = least_cells(self.epsilon, self.sample_size)
        slope = (GRID - 2 * least) / (self.high - self.low) * (1 + 2.0**-40)  # an error of floating point
        return (least + (values - self.low) * slope).to(torch.int64)

    monkeypatch.setattr(MultiBit, "thresholds", unclamped)
    assert not is_local(MultiBit(1.0, LOW, HIGH, 1))


def test_thresholds_outside_the_range_are_clamped():
    least = least_cells(1.0)
    found = MultiBit(1.0, LOW, HIGH, 1).thresholds(torch.tensor([LOW - 9, LOW, HIGH, HIGH + 9]))
    assert found.tolist() == [least, least, GRID - least, GRID - least]


@pytest.mark.parametrize("x", INPUTS)
def test_a_bit_is_one_in_exactly_the_first_cells(monkeypatch, x):
    mechanism = MultiBit(0.7, LOW, HIGH, 4, 4)
    values = torch.full((1, 4), x, dtype=torch.float64)
    threshold = int(mechanism.thresholds(values)[0, 0])
    cells = torch.tensor([[0, threshold - 1, threshold, GRID - 1]])
    monkeypatch.setattr(mechanisms, "uniform", lambda seed, purpose, shape: cells.view(shape))
    assert mechanism.release(values, system_secrets).tolist() == [[1, 1, -1, -1]]


MECHANISMS: dict[str, FeatureMechanism] = {
    "one of four": MultiBit(1.0, LOW, HIGH, 4, 1),
    "three of four": MultiBit(3.0, LOW, HIGH, 4, 3),
    "one-bit": MultiBit(2.0, LOW, HIGH, 4, 4),
    "one-bit, little ε": MultiBit(0.01, LOW, HIGH, 4, 4),
    "gaussian": AnalyticGaussian(1.0, LOW, HIGH, 4, 1e-4),
    "laplace": LocalLaplace(1.0, LOW, HIGH, 4),
}
ROW = torch.tensor([LOW, 0.1, 0.9, HIGH])


@pytest.mark.parametrize("name", MECHANISMS)
def test_estimates_are_unbiased_and_their_variance_is_the_closed_form(name):
    mechanism = MECHANISMS[name]
    x = ROW.expand(DRAWS, -1)
    estimate = mechanism.rectify(mechanism.release(x, counting(name))).double()
    variance = mechanism.variance(ROW[None])[0]
    deviation = variance.sqrt()
    assert bool(((estimate.mean(0) - ROW).abs() < 5 * deviation / DRAWS**0.5).all())
    centred = (estimate - ROW) ** 2
    assert bool(((centred.mean(0) - variance).abs() <= 5 * centred.std(0) / DRAWS**0.5 + 1e-6 * variance).all())


def counting(name):
    """A secret source whose every answer is another, the same in every run."""
    calls = itertools.count()

    def source(length: int) -> bytes:
        drawn: bytes = fixed(f"{name}/{next(calls)}")(length)
        return drawn

    return source


def test_the_papers_sample_size_is_up_to_a_quarter_worse_and_no_release_of_it_passes_for_another():
    papers, ours = MultiBit(4.0, 0.0, 1.0, 8, 1), MultiBit(4.0, 0.0, 1.0, 8)
    centre = torch.full((1, 8), 0.5)
    assert float((papers.variance(centre) / ours.variance(centre))[0, 0]) == pytest.approx(1.25, abs=0.01)
    worse = [
        epsilon / 1000
        for epsilon in range(100, 30_000)
        if best_sample_size(epsilon / 1000, 100) != max(1, epsilon // 2180)
    ]
    assert len(worse) / 29_900 == pytest.approx(0.49, abs=0.005)
    assert (ours.sampled, MultiBit(1.0, 0.0, 1.0, 8).sampled) == (2, None)  # what a kept release is known by


@pytest.mark.parametrize("m", [1, 2, 20, 39, 40])
@pytest.mark.parametrize("blocks", [1, 100, 1 << 20])
def test_sparse_features_are_released_as_dense_ones(monkeypatch, m, blocks):
    monkeypatch.setattr(mechanisms, "PIECE", blocks)
    monkeypatch.setattr(mechanisms, "SAMPLED_PIECE", blocks)
    x = torch.rand(9, 40, generator=torch.Generator().manual_seed(1)).round(decimals=1)
    x[x < 0.7] = 0.0
    x[4] = 0.0
    mechanism = MultiBit(1.0, 0.0, 1.0, 40, m)
    released = mechanism.release(x, fixed("layouts"))
    assert released.layout == (torch.sparse_csr if m <= 2 else torch.strided)
    assert released.dtype == (torch.float32 if m <= 2 else torch.int8)
    again = mechanism.release(x.to_sparse_csr(), fixed("layouts"))
    assert torch.equal(released.to_dense(), again.to_dense())
    assert torch.equal(released.to_dense().abs().sum(1), torch.full((9,), m))


def test_the_drawn_set_does_not_depend_on_the_data():
    mechanism = MultiBit(5.0, LOW, HIGH, 30, 12)
    ends = [mechanism.release(torch.full((40, 30), end), fixed("sets")) for end in (LOW, HIGH)]
    assert torch.equal(*(released != 0 for released in ends))
    assert not torch.equal(*ends)


@pytest.mark.parametrize(("m", "columns"), [(2, 40), (20, 40), (40, 40)], ids=["sparse", "dense", "all"])
@pytest.mark.parametrize("blocks", [1, 120])
def test_every_block_of_rows_draws_for_itself(monkeypatch, m, columns, blocks):
    """Rows that are alike: with one draw for all blocks a row would come again in each, sets and signs."""
    monkeypatch.setattr(mechanisms, "PIECE", blocks)
    monkeypatch.setattr(mechanisms, "SAMPLED_PIECE", blocks)
    released = MultiBit(1.0, 0.0, 1.0, columns, m).release(torch.full((60, columns), 0.5), fixed("blocks")).to_dense()
    sets, signs = (len(each.unique(dim=0)) for each in (released != 0, released))
    # 60 rows of 780 sets of two, or of 10^11 of twenty; of 4 times as many with their signs.
    assert sets > {2: 45, 20: 59, 40: 0}[m]
    assert signs > {2: 50, 20: 59, 40: 59}[m]


def test_noise_is_as_large_as_the_range_asks_for():
    # Over the diagonal of the box (ℓ2) or its ℓ1 length; 2·b² is the variance of Laplace noise.
    gaussian = AnalyticGaussian(1.0, LOW, HIGH, 4, 1e-4)
    event = gaussian.event()
    assert isinstance(event, GaussianEvent)
    deviation = float(gaussian.variance(ROW[None])[0, 0]) ** 0.5
    assert deviation == pytest.approx(event.noise_multiplier * 2.5, rel=1e-8)
    laplace = float(LocalLaplace(0.5, LOW, HIGH, 4).variance(ROW[None])[0, 0])
    assert laplace == pytest.approx(2 * (2.5 * 4 / 0.5) ** 2, rel=1e-8)


@pytest.mark.parametrize("value", [-0.51, 2.01, math.nan, math.inf, -math.inf])
def test_values_outside_the_range_are_refused(value):
    x = torch.zeros(3, 4)
    x[1, 2] = value
    for mechanism in MECHANISMS.values():
        for form in (x, x.to_sparse_csr()):
            with refused(DataError, key="x"):
                mechanism.release(form, system_secrets)


def test_zeros_that_are_not_stored_must_be_in_the_range():
    x = torch.tensor([[1.0, 1.5], [0.0, 1.0]])
    with refused(DataError, key="x"):
        MultiBit(1.0, 1.0, 2.0, 2).release(x.to_sparse_csr(), system_secrets)
    full = torch.ones(2, 2).to_sparse_csr()
    assert MultiBit(1.0, 1.0, 2.0, 2).release(full, system_secrets).shape == (2, 2)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: MultiBit(0.0, 0.0, 1.0, 4), {"key": "epsilon", "value": 0.0}),
        (lambda: MultiBit(math.nan, 0.0, 1.0, 4), {"key": "epsilon", "value": math.nan}),
        (lambda: LocalLaplace(math.inf, 0.0, 1.0, 4), {"key": "epsilon", "value": math.inf}),
        (lambda: MultiBit(1.0, 1.0, 1.0, 4), {"key": "range", "value": [1.0, 1.0]}),
        (lambda: MultiBit(1.0, -math.inf, 1.0, 4), {"key": "range", "value": "[-inf, 1.0]"}),
        (lambda: MultiBit(1.0, -1.5e308, 1.5e308, 4), {"key": "range", "value": [-1.5e308, 1.5e308]}),
        (lambda: MultiBit(1.0, 0.0, math.nan, 4), {"key": "range", "value": "[0.0, nan]"}),
        (lambda: MultiBit(1.0, 0.0, 1.0, 0), {"key": "features", "value": 0}),
        (lambda: MultiBit(1.0, 0.0, 1.0, 4, 0), {"key": "sampled", "value": 0}),
        (lambda: MultiBit(1.0, 0.0, 1.0, 4, 5), {"key": "sampled", "value": 5}),
        (lambda: MultiBit(1.0, 0.0, 1.0, 4, True), {"key": "sampled", "value": "True"}),
        (lambda: MultiBit(1e-12, 0.0, 1.0, 4), {"key": "epsilon", "value": 1e-12}),
        (lambda: AnalyticGaussian(1.0, 0.0, 1.0, 4, 0.0), {"key": "delta", "value": 0.0}),
    ],
)
def test_parameters_out_of_range_are_refused(make, named):
    with refused(ConfigError, **named):
        make()


def test_the_range_of_data():
    x = torch.tensor([[0.25, 3.0], [1.0, 2.0]])
    assert data_range(x) == (0.25, 3.0)
    assert data_range(x.to_sparse_csr()) == (0.25, 3.0)
    x[0, 0] = 0.0
    assert data_range(x.to_sparse_csr()) == (0.0, 3.0)
    assert data_range(torch.zeros(2, 2).to_sparse_csr()) == (0.0, 0.0)
    assert all(math.isnan(value) for value in data_range(torch.tensor([[math.nan, 1.0]])))
    with refused(DataError, key="x"):
        data_range(torch.empty(0, 3))


def test_other_forms_are_refused():
    mechanism = MultiBit(1.0, 0.0, 1.0, 4)
    for x in (torch.zeros(4), torch.zeros(2, 3), torch.zeros(1, 2, 4)):
        with refused(DataError, key="x"):
            mechanism.release(x, system_secrets)
    with refused(DataError, key="x"):
        mechanism.release(torch.zeros(2, 4).to_sparse(), system_secrets)
