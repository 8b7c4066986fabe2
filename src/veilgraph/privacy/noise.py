r"""Noise that must protect: from a cryptographic source, and safe against floating-point attacks.

Input and noise are multiples of one grid g = 2^⌊log2(scale)⌋·2^-20, so that the low bits of a release hold nothing, and
sums of both are exact in float64. What computing the noise adds to ε is below 10^-5 for a row of 64 values, and for
tens of thousands of them with ``fine_gaussian``: docs/explanation/proofs.md#noise-on-a-grid.

Discrete Laplace noise could be drawn exactly from geometric samples. Inversion is used because it takes the same steps
for every value, where the running time of such sampling tells of the value, and its error is as small.
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
_COARSE_BITS = 9  # cells of a coarse grid are so many bits wider
_FINE_CELLS = 4.0  # deviation of fine noise in coarse cells: e^(−2π²·4²) is what a coarse grid shows through it
SMALLEST_SCALE, LARGEST_SCALE = 1e-100, 1e100  # between them nothing here overflows or loses bits to subnormal numbers

_SIGN_OFF = (1 << 63) - 1
PIECE = 1 << 16  # words of a row that are expanded at once
BLOCK = 1 << 15  # values computed at once, so that temporaries stay in the cache

Words = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Function = Callable[[Values, Values], object]  # of the first array, into the second


def function_of(name: str) -> Function:
    """Return ``name`` of numpy with AVX-512, else of torch: never of the C library, whose steps tell the value."""
    found = opt_func_info(func_name=f"^{name}$", signature="float64").get(name, {}).get("dd", {})
    if found.get("current") in ("X86_V4", "AVX512_SKX"):
        return cast(Function, getattr(np, name))
    computed = getattr(torch, name)
    return lambda x, out: computed(torch.from_numpy(x), out=torch.from_numpy(out))


LOG, TAN = function_of("log"), function_of("tan")


def granularity(scale: float) -> float:
    """Grid step, a power of two in (scale·2^-21, scale·2^-20]; ``ConfigError``: scale is not in [1e-100, 1e100]."""
    if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        raise ConfigError(
            f"noise scale={scale!r} must lie in [{SMALLEST_SCALE:g}, {LARGEST_SCALE:g}]: change clip or multiplier",
            key="scale",
            value=scale,
        )
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - GRID_BITS)


def gaussian(shape: tuple[int, ...], standard_deviation: float, source: SecretSource) -> Tensor:
    """Independent N(0, standard_deviation²) values, multiples of ``granularity``, no -0: float64 of ``shape``.

    Expanded from one 32-byte seed of ``source``. Raises ``ConfigError``: the deviation is out of range.
    """
    return _gaussian(shape, standard_deviation, granularity(standard_deviation), source(SEED_BYTES), "gaussian")


def fine_gaussian(shape: tuple[int, ...], standard_deviation: float, source: SecretSource) -> Tensor:
    """As ``gaussian``, at twice the time, where rounding adds 300 times less to ε: for many values of one release.

    It is the sum of Gaussian noise on a coarse grid and of little Gaussian noise on the fine one. Each has 500 times
    fewer cells to a deviation than ``gaussian``, or more, and what rounding adds grows with these.
    """
    step = granularity(standard_deviation)
    coarse = math.ldexp(step, _COARSE_BITS)
    little = _FINE_CELLS * coarse
    much = math.sqrt(standard_deviation**2 - little**2)
    seed = source(SEED_BYTES)
    return _gaussian(shape, much, coarse, seed, "coarse") + _gaussian(shape, little, step, seed, "fine")


@torch.no_grad()
def _gaussian(shape: tuple[int, ...], standard_deviation: float, step: float, seed: bytes, purpose: str) -> Tensor:
    """Independent N(0, standard_deviation²) values, each rounded to a multiple of ``step``, no -0."""
    count = math.prod(shape)
    pairs = (count + 1) // 2
    noise = np.empty((2, pairs))
    for at, (high, low, turn) in _words(seed, purpose, 3, pairs):
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
    """Independent Laplace values of density exp(-|z|/scale)/(2·scale), so of deviation √2·scale; as ``gaussian``."""
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
    """Yield the seed's words block by block: the first one's number, and int64 [rows, at most BLOCK]."""
    for start in range(0, count, PIECE):
        piece = expand(seed, f"{purpose}/{start}", (rows, min(PIECE, count - start))).numpy()
        for at in range(0, piece.shape[1], BLOCK):
            yield start + at, piece[:, at : at + BLOCK]


def _log_uniform(high: Words, low: Words) -> Values:
    """Return the logarithm of u = (126 bits + 1)/2^126 in (0, 1]. Takes the words' sign bits off in place.

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
    """Round cells to whole numbers and multiply by ``step``, in place. Adding 0 takes a zero's sign off.

    Otherwise -0 (row) + -0 (noise) would be -0 and tell the sign of a row's small entry.
    """
    np.rint(cells, out=cells)
    cells *= step
    cells += 0.0
