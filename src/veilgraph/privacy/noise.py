r"""Noise that must protect: from a cryptographic source, and safe against floating-point attacks.

The textbook way, adding a floating-point sample to a floating-point input, is not private: which doubles can come
out depends on the input (Mironov, "On significance of the least significant bits for differential privacy", CCS 2012;
Jin et al., "Are we there yet? Timing and floating-point attacks on differential privacy systems", S&P 2022). The method
here is *a coarse grid*: the input is put on multiples of g *first*, and the noise is a multiple of g,

    g = 2^⌊log2(scale)⌋ · 2^-20,  release = g·(K + Z),  K and Z integers, Z = round(noise / g).

Sums of multiples of g are exact in float64 (|K + Z| < 2^53), so every release is a multiple of g whatever the input
was, and the low bits hold nothing. K + round(n/g) = round(K + n/g): with exact n it would be post-processing of the
continuous mechanism on the rows K·g, so the grid itself costs no privacy.

What is left is that n is computed. u = (k + 1)/2^126 from 126 secret bits k, converted with full relative precision
near 0, gives r = √(-2 ln u) (Gaussian) or -ln u (Laplace), so the tail reaches 13.2 σ or 87 scales. Box-Muller turns r
and an angle into two normal values; both are used. The uniforms' steps and float64 (at most 1 unit in the last
place in log, sin and cos, half a unit elsewhere) move a point so little that the mass crossing the two sides of a cell,
relative to the mass in it, is at most, with s = scale/g < 2^21 cells per scale,

    Gaussian at z σ:      2s·(5·2^-53 + 1.26·(2^-52 + 2^-126·e^{z²/2}) + 6·2^-53·|z|)  ≤  (1 + |z|)·2^-27   for |z| ≤ 10
    Laplace at z scales:  2s·(2^-52 + 2^-126·e^{|z|} + 3·2^-53·|z|)                    ≤  (1 + |z|)·2^-28   for |z| ≤ 50

(the angle's error of 6.2·2^-53 moves z by at most that times the pair's other value, 0.8 on average; an error of a in
ln u moves z by a·z/r², and E[1/r² | z] ≤ 1.26/|z|). The probability of each cell is thus that of the rounded continuous
noise within a factor e^±γ, γ = (1 + |z|)·2^-27, up to 10 σ (50 scales); beyond lies a mass of 2^-75 (2^-72) per value.
For a row of d values and an adjacent row D σ (or scales) away, (ε, δ) becomes

    (ε + 2Γ, e^Γ·δ + d·P(|z| > 10 - D)),  Γ = Σγ ≤ 11·d·2^-27,   for Laplace  Γ ≤ 51·d·2^-28 and P(|z| > 50 - D).

At d = 64 and D ≤ 2 (Laplace: D ≤ 16) one release adds at most 10^-5 to ε (3·10^-5; typically 2·10^-6, as |z| averages
0.8) and 10^-13 to δ.

Discrete Laplace noise could be drawn exactly from geometric samples. Inversion is used because it takes the same steps
for every value, where the running time of such sampling tells of the value (Jin et al.), and its error is as small.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource

GRID_BITS = 20
SMALLEST_SCALE, LARGEST_SCALE = 1e-100, 1e100
"""Between them nothing here overflows or loses bits to subnormal numbers."""

_SIGN_OFF = (1 << 63) - 1
PIECE = 1 << 16  # values computed at once, so that temporaries stay small and in the cache


def granularity(scale: float) -> float:
    """The grid's step for noise of that scale: a power of two in (scale·2^-21, scale·2^-20].

    Raises:
        ConfigError: ``scale`` is not a positive number in [1e-100, 1e100].
    """
    if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        raise ConfigError(
            f"noise scale={scale!r} must lie in [{SMALLEST_SCALE:g}, {LARGEST_SCALE:g}]: change clip or multiplier",
            key="scale",
            value=scale,
        )
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - GRID_BITS)


@torch.no_grad()
def gaussian(shape: tuple[int, ...], standard_deviation: float, source: SecretSource) -> Tensor:
    """Independent N(0, standard_deviation²) values, rounded to the grid.

    Args:
        shape: of the result.
        standard_deviation: of one value, in the units of what it is added to.
        source: of the one 32-byte seed that the values are expanded from.

    Returns:
        float64 tensor of ``shape``: multiples of ``granularity(standard_deviation)``, no negative zero.

    Raises:
        ConfigError: ``standard_deviation`` is out of range.
    """
    step = granularity(standard_deviation)
    count = math.prod(shape)
    pairs = (count + 1) // 2
    seed = source(SEED_BYTES)
    noise = torch.empty(2, pairs, dtype=torch.float64)
    for start in range(0, pairs, PIECE):
        high, low, turn = expand(seed, f"gaussian/{start}", (3, min(PIECE, pairs - start)))
        radius = _minus_log_uniform(high, low).mul_(2.0).sqrt_().mul_(standard_deviation / step)
        angle = turn.to(torch.float64).mul_(math.ldexp(math.pi, -63))
        cosines, sines = noise[:, start : start + PIECE]
        _to_grid(torch.cos(angle, out=cosines).mul_(radius), step)
        _to_grid(torch.sin(angle, out=sines).mul_(radius), step)
    return noise.view(-1)[:count].view(shape)


@torch.no_grad()
def laplace(shape: tuple[int, ...], scale: float, source: SecretSource) -> Tensor:
    """Independent Laplace values of density exp(-|z|/scale)/(2·scale), rounded to the grid.

    Args:
        shape: of the result.
        scale: of one value, in the units of what it is added to; the standard deviation is √2 times it.
        source: of the one 32-byte seed that the values are expanded from.

    Returns:
        float64 tensor of ``shape``: multiples of ``granularity(scale)``, no negative zero.

    Raises:
        ConfigError: ``scale`` is out of range.
    """
    step = granularity(scale)
    count = math.prod(shape)
    seed = source(SEED_BYTES)
    noise = torch.empty(count, dtype=torch.float64)
    for start in range(0, count, PIECE):
        high, low = expand(seed, f"laplace/{start}", (2, min(PIECE, count - start)))
        sign = high.to(torch.float64)  # before the sign bit is taken off
        magnitude = _minus_log_uniform(high, low).mul_(scale / step)
        _to_grid(torch.copysign(magnitude, sign, out=noise[start : start + PIECE]), step)
    return noise.view(shape)


def _minus_log_uniform(high: Tensor, low: Tensor) -> Tensor:
    """-ln u for u = (126 bits + 1)/2^126 in (0, 1]. Takes the words' sign bits off in place.

    The low half only matters where the high half is near 0: there it keeps u's relative precision.
    """
    uniform = high.bitwise_and_(_SIGN_OFF).to(torch.float64).mul_(2.0**-63)
    uniform.add_(low.bitwise_and_(_SIGN_OFF).to(torch.float64).add_(1.0), alpha=2.0**-126)
    return uniform.log_().neg_()


def _to_grid(cells: Tensor, step: float) -> None:
    """Rounds to whole cells in place and gives them the unit back. Adding 0 takes a zero's sign off.

    Otherwise -0 (row) + -0 (noise) would be -0 and tell the sign of a row's small entry.
    """
    cells.round_().mul_(step).add_(0.0)
