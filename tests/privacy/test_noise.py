import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.errors import refused
from tests.privacy.chance import fixed
from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import system_secrets
from veilgraph.privacy import noise
from veilgraph.privacy.noise import fine_gaussian, gaussian, granularity, laplace

SAMPLERS = {
    "gaussian": (gaussian, stats.norm),
    "fine gaussian": (fine_gaussian, stats.norm),
    "laplace": (laplace, stats.laplace),
}
every_sampler = pytest.mark.parametrize(("sampler", "law"), SAMPLERS.values(), ids=SAMPLERS)
COUNT = 200_000


def words_of(monkeypatch, words):
    """Makes ``expand`` return these words (in the order high, low, turn)."""
    monkeypatch.setattr(noise, "expand", lambda seed, purpose, shape: torch.tensor(words).view(shape))


@given(st.floats(1e-100, 1e100))
def test_the_grid_is_a_power_of_two_and_fine(scale):
    step = granularity(scale)
    assert math.frexp(step)[0] == 0.5
    assert scale * 2.0**-21 < step <= scale * 2.0**-20


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan, 1e-101, 1e101])
def test_scales_without_a_grid_are_refused(scale):
    for draw in (granularity, lambda s: gaussian((1,), s, system_secrets), lambda s: laplace((1,), s, system_secrets)):
        with refused(ConfigError, key="scale", value=scale):
            draw(scale)


@every_sampler
@pytest.mark.parametrize("scale", [1e-6, 0.7, 3.0, 1e6])
def test_law(sampler, law, scale):
    values = sampler((COUNT,), scale, fixed(scale)).numpy() / scale
    deviation = law.std()
    fourth = law.stats(moments="k") + 3
    assert abs(values.mean()) < 4 * deviation / COUNT**0.5
    assert abs(values.var() / deviation**2 - 1) < 4 * ((fourth - 1) / COUNT) ** 0.5
    assert stats.kstest(values, law.cdf).pvalue > 1e-3


@every_sampler
def test_tails(sampler, law):
    values = sampler((COUNT,), 1.0, fixed("tails")).numpy()
    for threshold in (2.0, 3.0, 4.0):
        for count in (int((values > threshold).sum()), int((values < -threshold).sum())):
            assert stats.binomtest(count, COUNT, law.sf(threshold)).pvalue > 1e-3


def test_values_of_a_pair_are_independent():
    first, second = gaussian((2, COUNT), 1.0, fixed("pair")).numpy()
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / COUNT**0.5
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 4 / COUNT**0.5
    assert stats.kstest(first**2 + second**2, stats.chi2(2).cdf).pvalue > 1e-3


@every_sampler
def test_seeds_do_not_collide(sampler, law):
    draws = torch.cat([sampler((50,), 1.0, fixed(seed)) for seed in range(200)])
    # 10^4 values of 2^22 cells, most within 2^21 of each other: about 2·10^-7 · 5·10^7 pairs share a cell by chance.
    assert len(draws.unique()) > 0.995 * len(draws)
    assert not torch.equal(sampler((50,), 1.0, system_secrets), sampler((50,), 1.0, system_secrets))


@settings(max_examples=40)
@given(scale=st.floats(1e-100, 1e100), rows=st.integers(0, 5), columns=st.integers(0, 5), seed=st.integers(0, 1000))
def test_values_lie_on_the_grid(scale, rows, columns, seed):
    for sampler, _ in SAMPLERS.values():
        values = sampler((rows, columns), scale, fixed(seed))
        assert values.shape == (rows, columns)
        assert values.dtype == torch.float64
        cells = values / granularity(scale)
        assert torch.equal(cells, cells.round())
        assert cells.numel() == 0 or float(cells.abs().max()) < 90 * 2.0**21


@every_sampler
def test_low_bits_are_uniform(sampler, law):
    cells = (sampler((COUNT,), 1.3, fixed("bits")) / granularity(1.3)).to(torch.int64)
    assert stats.chisquare(torch.bincount(cells % 256, minlength=256).numpy()).pvalue > 1e-3


@every_sampler
def test_pieces_repeat_nothing(monkeypatch, sampler, law):
    monkeypatch.setattr(noise, "PIECE", 100)
    values = sampler((10_001,), 1.0, fixed("pieces"))
    assert len(values.unique()) > 0.99 * len(values)
    assert stats.kstest(values.numpy(), law.cdf).pvalue > 1e-3


def test_extreme_words(monkeypatch):
    smallest, largest = -(1 << 63), (1 << 63) - 1
    words_of(monkeypatch, [0, 0, 0])
    assert gaussian((1,), 1.0, bytes).item() == pytest.approx((2 * 126 * math.log(2)) ** 0.5, abs=1e-6)
    words_of(monkeypatch, [smallest, smallest, smallest])  # the sign bits do not count; half a turn
    assert gaussian((1,), 1.0, bytes).item() == pytest.approx(-((2 * 126 * math.log(2)) ** 0.5), abs=1e-6)
    words_of(monkeypatch, [largest, largest, largest])
    assert gaussian((2,), 1.0, bytes).tolist() == [0.0, 0.0]
    words_of(monkeypatch, [0, 0])
    assert laplace((1,), 1.0, bytes).item() == pytest.approx(126 * math.log(2), abs=1e-6)
    words_of(monkeypatch, [smallest, 0])
    assert laplace((1,), 1.0, bytes).item() == pytest.approx(-126 * math.log(2), abs=1e-6)


def test_the_tail_keeps_its_resolution(monkeypatch):
    words_of(monkeypatch, [0, 5 << 20, 0])
    wanted = (-2 * math.log(((5 << 20) + 1) * 2.0**-126)) ** 0.5
    assert gaussian((1,), 1.0, bytes).item() == pytest.approx(wanted, abs=granularity(1.0))


def test_cells_near_zero_have_their_probability():
    """64 bands of 2^12 cells around 0 against the rounded continuous law."""
    for sampler, law in SAMPLERS.values():
        cells = (sampler((COUNT,), 1.0, fixed("cells")) * 2.0**20).to(torch.int64)
        edges = np.arange(-32, 33) * 4096 - 0.5
        counts, _ = np.histogram(cells.numpy(), edges)
        inside = np.diff(law.cdf(edges * 2.0**-20))
        assert stats.chisquare(counts, inside / inside.sum() * counts.sum()).pvalue > 1e-3


def random_words(name, count):
    raw = np.frombuffer(fixed(name)(24 * count), dtype=np.int64).reshape(3, count).copy()
    raw[0, : count // 4] >>= 40  # a quarter of them small, for the tail
    return raw


@pytest.fixture(params=["numpy", "torch"])
def functions(request, monkeypatch):
    """Logarithm and tangent by either: which one it is depends on the processor."""
    chosen = [noise.LOG, noise.TAN] if request.param == "numpy" else []
    if not chosen:
        monkeypatch.setattr(noise, "opt_func_info", lambda **_: {})
        chosen = [noise.function_of("log"), noise.function_of("tan")]
    monkeypatch.setattr(noise, "LOG", chosen[0])
    monkeypatch.setattr(noise, "TAN", chosen[1])
    return dict(zip(("log", "tan"), chosen, strict=True))


def test_values_agree_with_many_digits(monkeypatch, functions):
    """Against 40 digits, before they are rounded to cells: within what the proof takes float64 to add."""
    mpmath = pytest.importorskip("mpmath")
    high, low, turn = random_words("digits", 1000)
    cells, unit = 1.9 / granularity(1.9), 2.0**-53
    to_grid = noise.to_grid
    monkeypatch.setattr(noise, "to_grid", lambda values, step: None)
    words_of(monkeypatch, np.stack([high, low, turn]))
    normal = gaussian((2, 1000), 1.9, bytes)
    words_of(monkeypatch, np.stack([high, low]))
    exponential = laplace((1000,), 1.9, bytes)
    with mpmath.workdps(40):
        for at in range(1000):
            bits = (int(high[at]) % 2**63) * 2**63 + int(low[at]) % 2**63
            minus_log = -mpmath.log(mpmath.mpf(bits + 1) / 2**126)
            radius, angle = mpmath.sqrt(2 * minus_log), mpmath.pi * int(turn[at]) / 2**63
            cosine, sine = radius * mpmath.cos(angle), radius * mpmath.sin(angle)
            sign = -1 if high[at] < 0 else 1
            for value, exact, bound in (
                (normal[0, at], cosine, 6.7 * abs(sine) + 2 / radius + 2.5 * radius + 6 * abs(cosine)),
                (normal[1, at], sine, 6.7 * abs(cosine) + 2 / radius + 7 * abs(sine)),
                (exponential[at], sign * minus_log, 2 + 3 * minus_log),
            ):
                assert abs(value.item() - cells * exact) < cells * bound * unit
    rounded = normal.clone()
    to_grid(rounded.numpy(), 1.0)
    assert torch.equal(rounded, normal.round())


@pytest.mark.parametrize("name", ["log", "tan", "sqrt"])
def test_functions_are_as_exact_as_the_bound_takes_them(name, functions):
    mpmath = pytest.importorskip("mpmath")
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(2000, dtype=torch.float64, generator=generator)
    near_the_pole = math.pi / 2 - x[:500] * 2.0**-40
    x = torch.cat([(x - 0.5) * math.pi, near_the_pole]) if name == "tan" else torch.cat([x, x[:500] * 2.0**-60])
    found = np.empty(len(x))
    functions.get(name, lambda x, out: np.sqrt(x, out=out))(x.numpy(), found)
    with mpmath.workdps(60):
        for argument, value in zip(x.tolist(), found.tolist(), strict=True):
            assert abs(getattr(mpmath, name)(argument) - value) <= math.ulp(value) * (0.5001 if name == "sqrt" else 1)


@pytest.mark.parametrize(
    ("target", "by"),
    [
        ("X86_V4", np),
        ("AVX512_SKX", np),
        ("X86_V3", torch),
        ("baseline(X86_V2)", torch),
        ("NEON", torch),
        (None, torch),
    ],
)
def test_the_c_library_is_never_asked(monkeypatch, target, by):
    """Its steps depend on the value; numpy asks it wherever it has no vectors of its own."""
    found = {} if target is None else {name: {"dd": {"current": target}} for name in ("log", "tan")}
    monkeypatch.setattr(noise, "opt_func_info", lambda **_: found)
    for name in ("log", "tan"):
        assert (noise.function_of(name) is getattr(np, name)) == (by is np)


@pytest.mark.parametrize("scale", [1.0, 1.9999])
def test_two_parts_of_noise_have_few_cells_to_a_deviation_and_no_coarse_grid_shows(monkeypatch, scale):
    """The bound of proofs.md: 2^12 and 2^11 cells, little noise of four coarse cells, and one variance together."""
    asked, drawn = [], noise.granularity(scale)
    values = (fine_gaussian((COUNT,), scale, fixed(scale)).numpy() / drawn).astype(np.int64)
    low = np.bincount(values % 512 // 32, minlength=16)
    assert stats.chisquare(low).pvalue > 1e-3
    draw = noise.to_grid

    def kept(cells, step):
        asked.append((np.std(cells), step))
        draw(cells, step)

    monkeypatch.setattr(noise, "to_grid", kept)
    fine_gaussian((2**15,), scale, fixed(scale))
    (much, coarse), (little, fine) = asked
    assert (coarse, fine) == (512 * drawn, drawn)
    assert 2**11 * 0.98 < much < 2**12 * 1.02
    assert little == pytest.approx(2**11, rel=0.02)
    assert math.hypot(much * coarse, little * fine) == pytest.approx(scale, rel=0.02)


@pytest.mark.parametrize(("cells", "shows"), [(4.0, False), (0.3, True)])
def test_a_coarse_grid_shows_no_more_through_little_noise_than_the_proof_says(cells, shows):
    """The law of M·R_1 + R_2 against one Gaussian, a coarse cell and rounding, both added up in full at small sizes."""
    wide, much = 8, 12.0
    little = cells * wide
    whole, reach = math.hypot(much * wide, little), 9
    coarse, fine = (np.arange(-int(reach * s), int(reach * s) + 1) for s in (much, little))
    parts = [
        np.diff(stats.norm.cdf(np.append(grid, grid[-1] + 1) - 0.5, scale=s))
        for grid, s in ((coarse, much), (fine, little))
    ]
    at = np.arange(-40, 41)
    law = np.array([parts[0] @ np.interp(value - wide * coarse, fine, parts[1], left=0, right=0) for value in at])
    places, weights = np.polynomial.legendre.leggauss(60)
    apart = at[:, None] - wide / 2 * places
    expected = (stats.norm.cdf(apart + 0.5, scale=whole) - stats.norm.cdf(apart - 0.5, scale=whole)) @ weights / 2
    assert (abs(law / expected - 1).max() > 1e-3) == shows
    if not shows:
        assert abs(law / expected - 1).max() < 1e-9
