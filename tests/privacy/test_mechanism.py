import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.errors import refused
from tests.privacy.chance import fixed
from veilgraph.core.errors import ConfigError, RangeOverflow
from veilgraph.core.secrets import system_secrets
from veilgraph.privacy import noise
from veilgraph.privacy.accountant import SMALLEST_MULTIPLIER
from veilgraph.privacy.mechanism import Gaussian, Laplace, clip_to_grid

MECHANISMS = {"gaussian": Gaussian, "laplace": Laplace}
every_mechanism = pytest.mark.parametrize("name", MECHANISMS)
entries = st.floats(-1e150, 1e150) | st.floats(-3, 3) | st.sampled_from([0.0, -0.0, 5e-324, -1e-300])


def matrices(fewest_columns):
    return st.integers(fewest_columns, 6).flatmap(
        lambda d: st.lists(st.lists(entries, min_size=d, max_size=d), min_size=1, max_size=4).map(
            lambda rows: torch.tensor(rows, dtype=torch.float64)
        )
    )


def exact_norm_is_within(row, clip, order):
    total = sum(abs(Fraction(value)) ** order for value in row.tolist())
    return total <= Fraction(clip) ** order


# Clipping


@settings(max_examples=150)
@given(
    x=matrices(1),
    clip=st.floats(1e-100, 1e100),
    multiplier=st.floats(SMALLEST_MULTIPLIER, 1e3),
    order=st.integers(1, 2),
)
def test_clipped_rows_are_within_the_clip_exactly(x, clip, multiplier, order):
    if not noise.SMALLEST_SCALE <= multiplier * clip <= noise.LARGEST_SCALE:
        return
    step = noise.granularity(multiplier * clip)
    before = x.clone()
    clipped = clip_to_grid(x, clip, order, step)
    assert torch.equal(x, before)
    assert torch.equal((clipped / step).trunc(), clipped / step)
    norms = torch.linalg.vector_norm(x, order, dim=1, keepdim=True)
    wanted = x * torch.clamp_max(clip / norms, 1)
    assert bool(((clipped - wanted).abs() <= step + 2.0**-31 * wanted.abs()).all())
    assert bool((clipped.abs() <= x.abs()).all())
    for row in clipped:
        assert exact_norm_is_within(row, clip, order)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("columns", [1, 2, 64])
def test_many_rows_at_the_clip_stay_within_it(order, columns):
    """On the finest grid, where rounding towards zero hides no error of the norm."""
    x = torch.randn(300, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x *= 100 / x.abs().amin(1, keepdim=True)
    clipped = clip_to_grid(x, 0.3, order, 2.0**-53)
    assert all(exact_norm_is_within(row, 0.3, order) for row in clipped)
    torch.testing.assert_close(torch.linalg.vector_norm(clipped, order, dim=1), torch.full((300,), 0.3).double())


@pytest.mark.parametrize("order", [1, 2])
def test_one_entry_that_cannot_be_released_is_refused(order):
    x = torch.ones(100, 3, dtype=torch.float64)
    for bad in (math.nan, math.inf, -math.inf, 1.0000000001e150, -1e151, 1e300):
        x[50, 1] = bad
        with pytest.raises(RangeOverflow):
            clip_to_grid(x, 1.0, order, 2.0**-20)
    x[50] = 1e150  # whose norm is longer
    assert clip_to_grid(x, 1.0, order, 2.0**-20)[50].max() > 0.3


def test_a_row_does_not_depend_on_the_others():
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(2))
    other = x.clone()
    other[1:] *= 1e30
    assert torch.equal(clip_to_grid(x, 1.0, 2, 2.0**-20)[0], clip_to_grid(other, 1.0, 2, 2.0**-20)[0])


# Every mechanism


@every_mechanism
def test_parameters_are_checked(name):
    for clip in (0.0, -1.0, math.inf, math.nan, 1e101):
        with refused(ConfigError, key="clip"):
            MECHANISMS[name](clip, 1.0)
    for multiplier in (0.0, -1.0, math.inf, math.nan, 1e-10):
        with refused(ConfigError, key="scale_multiplier" if name == "laplace" else "noise_multiplier"):
            MECHANISMS[name](1.0, multiplier)
    with refused(ConfigError, key="scale", value=1.0000000000000001e-103):
        MECHANISMS[name](1e-100, 1e-3)


@every_mechanism
@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (5, 3)])
def test_rows_of_zeros_are_legal_and_noised(name, shape):
    released = MECHANISMS[name](1.0, 1.0).release(torch.zeros(shape), system_secrets)
    assert released.shape == shape
    assert bool(released.isfinite().all())
    assert bool((released != 0).any(dim=1).all())


# The floating-point attack


@pytest.mark.parametrize("mechanism", [Gaussian(1.0, 0.8), Laplace(1.0, 0.8)], ids=["gaussian", "laplace"])
def test_the_support_does_not_depend_on_the_input(mechanism):
    step = noise.granularity(0.8)
    inputs = (0.0, 1.0, 1 / 3, -math.pi / 5, 1e-9, -5e-324)
    for value in inputs:
        cells = mechanism.release(torch.full((100_000, 1), value, dtype=torch.float64), fixed(value)) / step
        assert torch.equal(cells, cells.round())
        residues = torch.bincount(cells.long().flatten() % 64, minlength=64)
        assert stats.chisquare(residues.numpy()).pvalue > 1e-3
        assert not bool((cells.signbit() & (cells == 0)).any())


def test_the_textbook_way_would_fail_the_test_of_support():
    """What the grid is for: the plain sum's low bits tell 0 from 1 in a single look."""
    plain = noise.gaussian((1000, 1), 0.8, fixed("plain")) * 1.000000123  # off the grid, as any double
    unit = 2.0**-53  # the last place of sums near 1/2 ... 1: small noise keeps bits below it, a sum with 1 cannot
    small = plain[plain.abs() < 0.2]
    assert not torch.equal((small / unit).round(), small / unit)
    assert torch.equal(((1.0 + small) / unit).round(), (1.0 + small) / unit)


# Gaussian and Laplace


@pytest.mark.parametrize(
    ("kind", "clipped", "law"), [(Gaussian, [1.2, -1.6], stats.norm), (Laplace, [6 / 7, -8 / 7], stats.laplace)]
)
def test_a_release_is_the_clipped_row_and_noise(kind, clipped, law):
    released = kind(2.0, 0.5).release(torch.tensor([[3.0, -4.0]]).expand(200_000, 2), fixed("moments")).numpy()
    assert np.abs(released.mean(0) - clipped).max() < 4 * law.std() / 200_000**0.5
    assert stats.kstest(released[:, 1], law(clipped[1], 1.0).cdf).pvalue > 1e-3
