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
and an angle θ of 64 bits into two normal values, and both are used: with t = tan(θ/2) and q = 2r/(1 + t²) they are
q - r = r cos θ and t·q = r sin θ. The uniforms' steps and float64 (at most 1 unit in the last place in log and tan,
half a unit elsewhere) move a point so little that the mass crossing the two sides of a cell, relative to the mass in
it, is at most, with s = scale/g < 2^21 cells per scale,

    Gaussian at z σ:      2s·(7.4·2^-53 + 1.26·(2^-52 + 2^-126·e^{z²/2}) + 8.5·2^-53·|z|) ≤ (1 + |z|)·2^-27 for |z| ≤ 10
    Laplace at z scales:  2s·(2^-52 + 2^-126·e^{|z|} + 3·2^-53·|z|)                       ≤ (1 + |z|)·2^-28 for |z| ≤ 50

In units of 2^-53: an error of a in ln u moves z by a·z/r², and E[1/r² | z] ≤ 1.26/|z|. The angle's, 4.7 from its
rounding and 2 of tan (whose error moves the angle, and so the sum of squares not at all), moves z by at most that times
the pair's other value, 0.8 on average: 5.4. r is off by 3 of itself (log, -2s², its product, the root). q is off by
sin²(θ/2) + 2 of itself, which moves z = r cos θ by (5 + 4 cos θ - cos² θ)/2·r ≤ 2.5·r + 2·|z|, and r ≤ |z| + the other
value: by 2 + 4.5·|z| on average; the difference is off by another 1, r sin θ by less (4·|z| in all). The probability
of each cell is thus that of the rounded continuous noise within a factor e^±γ, γ = (1 + |z|)·2^-27, up to 10 σ (50
scales); beyond lies a mass of 2^-75 (2^-72) per value. For a row of d values and an adjacent row D σ (or scales) away,
(ε, δ) becomes

    (ε + 2Γ, e^Γ·δ + d·P(|z| > 10 - D)),  Γ = Σγ ≤ 11·d·2^-27,   for Laplace  Γ ≤ 51·d·2^-28 and P(|z| > 50 - D).

At d = 64 and D ≤ 2 (Laplace: D ≤ 16) one release adds at most 10^-5 to ε (3·10^-5; typically 2·10^-6, as |z| averages
0.8) and 10^-13 to δ.

Discrete Laplace noise could be drawn exactly from geometric samples. Inversion is used because it takes the same steps
for every value, where the running time of such sampling tells of the value (Jin et al.), and its error is as small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.introspect import opt_func_info
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource

GRID_BITS = 20
SMALLEST_SCALE, LARGEST_SCALE = 1e-100, 1e100
"""Between them nothing here overflows or loses bits to subnormal numbers."""

_SIGN_OFF = (1 << 63) - 1
PIECE = 1 << 16  # words of a row that are expanded at once
BLOCK = 1 << 15  # values computed at once, so that temporaries stay in the cache

Words = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Function = Callable[[Values, Values], object]
"""Of the first array, into the second."""


def function_of(name: str) -> Function:
    """By numpy where that has AVX-512: three to five times as fast as torch, which has vectors on every processor.

    Never by the C library, whose steps depend on the value: numpy would take it on other processors.
    """
    found = opt_func_info(func_name=f"^{name}$", signature="float64").get(name, {}).get("dd", {})
    if found.get("current") in ("X86_V4", "AVX512_SKX"):
        return cast(Function, getattr(np, name))
    computed = getattr(torch, name)
    return lambda x, out: computed(torch.from_numpy(x), out=torch.from_numpy(out))


LOG, TAN = function_of("log"), function_of("tan")


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
    noise = np.empty((2, pairs))
    for at, (high, low, turn) in _words(source(SEED_BYTES), "gaussian", 3, pairs):
        radius = _log_uniform(high, low)
        radius *= -2.0 * (standard_deviation / step) ** 2
        np.sqrt(radius, out=radius)
        tangent = np.multiply(turn, math.ldexp(math.pi, -64))
        TAN(tangent, tangent)
        here = noise[:, at : at + len(high)]
        cosines, sines = here
        np.square(tangent, out=cosines)
        cosines += 1.0
        cosines *= 0.5
        np.divide(radius, cosines, out=cosines)  # r·(1 + cos θ)
        np.multiply(tangent, cosines, out=sines)
        cosines -= radius
        to_grid(here, step)
    return torch.from_numpy(noise.reshape(-1)[:count].reshape(shape))


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
    noise = np.empty(count)
    for at, (high, low) in _words(source(SEED_BYTES), "laplace", 2, count):
        here = noise[at : at + len(high)]
        sign = high.astype(np.float64)  # before the sign bit is taken off
        magnitude = _log_uniform(high, low)
        magnitude *= scale / step
        np.copysign(magnitude, sign, out=here)
        to_grid(here, step)
    return torch.from_numpy(noise.reshape(shape))


def _words(seed: bytes, purpose: str, rows: int, count: int) -> Iterator[tuple[int, Words]]:
    """The seed's words block by block: the first one's number, and int64 [rows, at most BLOCK]."""
    for start in range(0, count, PIECE):
        piece = expand(seed, f"{purpose}/{start}", (rows, min(PIECE, count - start))).numpy()
        for at in range(0, piece.shape[1], BLOCK):
            yield start + at, piece[:, at : at + BLOCK]


def _log_uniform(high: Words, low: Words) -> Values:
    """Logarithm of u = (126 bits + 1)/2^126 in (0, 1]. Takes the words' sign bits off in place.

    The low half only matters where the high half is near 0: there it keeps u's relative precision.
    """
    high &= _SIGN_OFF
    low &= _SIGN_OFF
    uniform = np.multiply(high, 2.0**-63)
    below = np.add(low, 1.0)
    below *= 2.0**-126
    uniform += below
    LOG(uniform, uniform)
    return uniform


def to_grid(cells: Values, step: float) -> None:
    """Rounds to whole cells in place and gives them the unit back. Adding 0 takes a zero's sign off.

    Otherwise -0 (row) + -0 (noise) would be -0 and tell the sign of a row's small entry.
    """
    np.rint(cells, out=cells)
    cells *= step
    cells += 0.0
