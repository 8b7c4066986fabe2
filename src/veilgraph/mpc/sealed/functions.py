"""Functions of secret numbers, written once for every party: each is exact up to a few units of the last place."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.randomness import Keystream
from veilgraph.core.secrets import SEED_BYTES
from veilgraph.mpc.ring import matmul
from veilgraph.mpc.sealed.comparison import SHORT_BITS
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire, concatenate

BITS: Final = 18  # fractional bits of columns and activations
ERROR_BITS: Final = 20  # of probabilities, and of errors that go back
WHOLE_BITS: Final = SHORT_BITS - BITS  # above the point, of columns and activations that are compared
FINE_BITS: Final = 24  # of reciprocal degrees: those of hubs are small
_QUARTER_BITS: Final = 36
MOST_CLASSES: Final = 512
_TIE_BITS: Final = 10  # twice as many units as classes there are at most
_CLIPPED: Final = 16  # σ is 0 or 1 beyond it, up to 2^-23
_NEAR_BITS: Final = 6  # or beyond 2^-6 less
_PERIOD_BITS: Final = 6  # P = 64
SINES: Final = tuple(4 * math.pi / 64 / math.sinh(2 * math.pi**2 / 64 * odd) for odd in range(1, 32, 2))
"""Fourier coefficients of 1, 3, … times the frequency 1/P: (4π/P)/sinh(2π²k/P)."""
_LINE: Final = (1.127, 0.158)  # 1.127 − 0.158·u is x^(−1/2) within a seventh on [1, 4]
_ROOT_STEPS: Final = 3
BLOCK: Final = 1024
"""Entries that one range test adds up."""
_BOUND_BITS: Final = 7
_TRIALS: Final = 16  # range tests of each block: one beyond the bound is missed with a chance of at most 2^-16


def range_tests(wire: Wire, most: int) -> Wire:
    """Return numbers all below zero where every entry of a wire of Z_2^64 is below ``most`` (whole) in magnitude.

    Every block of entries is added up ``_TRIALS`` times under public random signs. Flip the sign of an entry w with
    most ≤ |w| < 2^63 − most: of both sums modulo 2^64 at most one is below ``most``, so half of the signs show it. In
    range, a sum is of the order of the block's L2 norm, so the bound has to be far above the usual entry. The result
    has so many fractional bits that whole numbers are 2^-``_BOUND_BITS`` of the bound, or finer: they are enough.
    """
    sums = wire.map(_signed_sums)
    fine = max(0, (most << wire.bits).bit_length() - 1 - _BOUND_BITS)
    return concatenate([sums, -sums]).plus(-most).halved(fine - wire.bits)


def _signed_sums(part: Tensor) -> Tensor:
    """Add up blocks of entries under each trial's signs, without a copy of all: [blocks · trials]."""
    entries, signs = part.reshape(-1), _signs().to(part)
    whole = entries.numel() - entries.numel() % BLOCK
    rest = torch.nn.functional.pad(entries[whole:], (0, -entries.numel() % BLOCK)).reshape(-1, BLOCK)
    return torch.cat([matmul(entries[:whole].reshape(-1, BLOCK), signs), matmul(rest, signs)]).reshape(-1)


@cache
def _signs() -> Tensor:
    """±1, int64 [BLOCK, _TRIALS]: the same in every job, for they need only be independent of what is tested."""
    octets = Keystream(bytes(SEED_BYTES), "range tests").take(BLOCK * _TRIALS).to(torch.int64)
    return (1 - 2 * (octets & 1)).reshape(BLOCK, _TRIALS)


def multiply_open(machine: Machine, left: Wire, right: Wire, bits: int = ERROR_BITS) -> Wire:
    """Multiply entry by entry, of one shape or broadcast, and open the product with ``bits``. Two rounds."""
    product = machine.product(torch.mul, left, right)
    return machine.open(product, product.bits - bits)


def relu(machine: Machine, wire: Wire, positive: Bit | None = None) -> tuple[Wire, Bit]:
    """Return max(x, 0), and the bits x ≥ 0 for the gradient. Three rounds, or one where ``positive`` is known."""
    if positive is None:
        positive = ~machine.negative(wire, WHOLE_BITS)
    return machine.open(machine.gate(positive, wire)), positive


def row_max(machine: Machine, wire: Wire) -> Wire:
    """Return the maximum of every row: [T, C] → [T, 1]. Four rounds for each halving of C."""
    while wire.shape[1] > 1:
        half = wire.shape[1] // 2
        left, right = wire[:, :half], wire[:, half : 2 * half]
        found = machine.open(machine.choose(~machine.negative(left - right), left, right))
        wire = concatenate([found, wire[:, 2 * half :]], 1) if wire.shape[1] % 2 else found
    return wire


def argmax(machine: Machine, wire: Wire) -> Wire:
    """Return the argmax of every row, the first of equal ones: [T, C] → [T, 1], whole numbers.

    Three rounds for each halving of C. Differences of two entries are below 2^``WHOLE_BITS``.
    """
    whole_bits = WHOLE_BITS + wire.bits
    places = machine.constant(torch.arange(wire.shape[1]).expand(wire.shape))
    both = concatenate([wire.halved(-wire.bits)[None], places[None]])  # whole numbers, to be opened together
    while both.shape[2] > 1:
        half = both.shape[2] // 2
        left, right, rest = both[:, :, 0 : 2 * half : 2], both[:, :, 1 : 2 * half : 2], both[:, :, 2 * half :]
        first = ~machine.negative(left[0] - right[0], whole_bits)
        found = machine.open(machine.choose(first.map(partial(torch.broadcast_to, size=left.shape)), left, right))
        both = concatenate([found, rest], 2)
    return both[1]


def one_hot_of_largest(machine: Machine, wire: Wire) -> Summands:
    """Return the argmax of every row as one-hot, the first of equal ones: [T, C] → [T, C], C ≤ 512.

    Exactly one entry of every row is 1: columns are put two units of finer bits apart, so that none are equal.
    """
    columns = wire.shape[1]
    finer = wire.times(1 << _TIE_BITS).halved(_TIE_BITS)
    apart = finer + machine.constant(2 * torch.arange(columns).flip(0).expand(wire.shape), finer.bits)
    below = (apart - row_max(machine, apart)).plus(2.0**-apart.bits)
    return machine.value(~machine.negative(below))


def logistic(machine: Machine, wire: Wire) -> Summands:
    """1/(1 + e^−x) with ``ERROR_BITS``, and 0 or 1 of x beyond ±``_CLIPPED``. Two rounds.

    Less ½ it is a sum of sines: that of the periodic function that rises as it does around 0, P, 2P, …, and falls as
    it rises around P/2, 3P/2, …, as these are far from ±``_CLIPPED``.
    """
    waves = machine.sines(wire, _PERIOD_BITS, SINES)
    beyond = concatenate([wire.plus(-_CLIPPED)[None], (-wire).plus(-_CLIPPED)[None]])
    found, within = machine.both(
        lambda: machine.open(waves, waves.bits - ERROR_BITS),
        lambda: machine.negative(beyond, WHOLE_BITS, _NEAR_BITS),
    )
    rest = concatenate([(-found).plus(0.5)[None], (-found).plus(-0.5)[None]])
    clipped = machine.gate(~within, rest)
    return machine.split(found.plus(0.5)) + clipped[0] + clipped[1]


def class_probabilities(machine: Machine, logits: Wire) -> Summands:
    """Probability of each class against all others: [T, C] → [T, C] with ``ERROR_BITS``. Two rounds.

    Of two classes these are softmax's. Of more, each is σ(l_c − log(C − 1)): equal logits are equal probabilities, and
    they need not add up to 1.
    """
    classes = logits.shape[1]
    if classes != 2:
        return logistic(machine, logits.plus(-math.log(max(classes - 1, 1))))
    second = logistic(machine, logits[:, 1:] - logits[:, :1])
    one = torch.tensor([1 << second.bits, 0]).expand(logits.shape)
    return second.map(lambda part: torch.cat([-part, part], 1)) + machine.split(machine.constant(one, second.bits))


def inverse_root(machine: Machine, degrees: Summands, most: int, bits: int = FINE_BITS, least: int = 1) -> Wire:
    """d^(−1/2) with so many bits for whole numbers ``least`` ≤ d ≤ ``most``: [N] → [N].

    d is scaled by a power of four into [1, 4), which comparisons with all of them find, and Newton's iteration begins
    with a line there.
    """
    degree = machine.open(degrees)
    below = (least.bit_length() - 1) // 2  # powers of four that every d has reached
    powers = [4**k for k in range(1 + below, math.ceil(math.log(max(most, 4 * least), 4)) + 1)]
    apart = concatenate([degree.plus(-power)[None] for power in powers])
    reached = machine.value(~machine.negative(apart, SHORT_BITS - apart.bits))
    half = _inverse_power(machine, reached, 2, bits, below)
    quarter = _inverse_power(machine, reached, 4, _QUARTER_BITS, below)
    scaled = multiply_open(machine, degree, quarter, ERROR_BITS)
    line = scaled.scaled(-_LINE[1], ERROR_BITS)
    root = machine.open(machine.split(line), line.bits - ERROR_BITS).plus(_LINE[0])
    for _ in range(_ROOT_STEPS):
        square = machine.triple(root, root, scaled)
        error = (-machine.open(square, square.bits - ERROR_BITS)).plus(3.0)
        root = machine.open(machine.product(torch.mul, root, error), ERROR_BITS + 1, bits=ERROR_BITS)
    return multiply_open(machine, root, half, bits)


def _inverse_power(machine: Machine, reached: Summands, base: int, bits: int, below: int) -> Wire:
    """Return base^−(k + ``below``) with ``bits``, [N], where the first k of a column's bits, [K, N], are set alone."""
    steps = [base ** -(k + 1) - base**-k for k in range(below, below + reached.shape[0])]
    total = reached[0].scaled(steps[0], bits)
    for row, step in enumerate(steps[1:], 1):
        total = total + reached[row].scaled(step, bits)
    return machine.open(total).plus(base**-below)
