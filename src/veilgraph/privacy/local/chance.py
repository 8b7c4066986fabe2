"""Random choices whose probabilities are exact: biased bits on an integer grid, and sets of columns.

A bit of probability p is drawn as u < T, with u uniform on the integers below G = 2^53 (secret bits, nothing rounded)
and T an integer near p·G. It is 1 with probability T/G *exactly*, so what is proven about the integers T holds for the
program, however floating point rounded on the way to them.

*A bit that costs ε.* Let L = ``least_cells(ε)``, an integer ≥ G/(e^ε + 1), and L ≤ T ≤ G − L for every input. Under
any two inputs the probabilities of 1, and of 0, are within the ratio (G − L)/L = G/L − 1 ≤ e^ε. Rounding L up is what
makes this hold; rounding it to nearest would exceed e^ε for about half of all ε.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.randomness import expand

GRID: Final = 1 << 53
"""G: cells of probability. Every integer up to it is exact in float64."""

FEWEST_STEPS: Final = 1 << 20
"""Between an input's least and largest threshold: with fewer, ε is so small that the grid would distort the input."""

_DIGITS = 60
_DOWN = 1 - Decimal(10) ** -50
_LARGEST_EXPONENT = Decimal(64)  # e^64 > G: more ε than this cannot be spent on the grid


def least_cells(epsilon: float, parts: int = 1, others: int = 1) -> int:
    """The least number of cells, at least G/(e^(ε/parts) + others), for an output that is not the true one.

    e^(ε/parts) is computed to 60 digits and then lowered by 10^-50 of itself, more than all rounding errors here (for
    fewer than 10^8 others); so the quotient is above the exact one, and rounding it up never lands below.

    Args:
        epsilon: ε > 0, taken as exactly this float.
        parts: how many independent choices share it.
        others: how many outputs are not the true one.
    """
    with localcontext(prec=_DIGITS):
        exponent = min(Decimal(epsilon) / parts, _LARGEST_EXPONENT)
        return math.ceil(GRID / (exponent.exp() * _DOWN + others))


def uniform(seed: bytes, purpose: str, shape: tuple[int, ...]) -> Tensor:
    """Independent uniform integers in [0, G), expanded from the seed; int64 tensor of ``shape``."""
    return expand(seed, purpose, shape).bitwise_and_(GRID - 1)


def random_columns(seed: bytes, purpose: str, rows: int, columns: int, count: int) -> Tensor:
    """For every row a uniformly random set of columns, drawn without replacement and independently of the others.

    Floyd's algorithm, on all rows at once; sets of more than half of the columns by what they leave out. A draw below
    n is a 63-bit word modulo n, each result's probability being 1/n within a factor 1 ± n·2^-63. So every set has its
    uniform probability within a factor (1 ± columns·2^-63)^count; at 5,000 columns, 1 ± 2^-38 for any count.

    Args:
        seed: 32 secret bytes.
        purpose: of this draw from the seed.
        rows: how many sets.
        columns: how many there are to choose from, ≥ 1.
        count: size of a set, in [0, columns].

    Returns:
        Tensor[rows, count] int64, ascending in every row.
    """
    is_inverted = 2 * count > columns
    member = _members(seed, purpose, rows, columns, columns - count if is_inverted else count)
    if is_inverted:
        member.logical_not_()
    return member.nonzero()[:, 1].view(rows, count)


def _members(seed: bytes, purpose: str, rows: int, columns: int, count: int) -> Tensor:
    """Tensor[rows, columns] bool with ``count`` entries set in every row (Bentley & Floyd 1987, algorithm F2)."""
    member = torch.zeros(rows, columns, dtype=torch.bool)
    flat, first = member.view(-1), torch.arange(0, rows * columns, columns)
    words = expand(seed, purpose, (count, rows)).bitwise_and_((1 << 63) - 1)
    for last, word in zip(range(columns - count, columns), words, strict=True):
        pick = word.remainder_(last + 1).add_(first)
        pick = torch.where(flat.index_select(0, pick), first + last, pick)
        flat.index_fill_(0, pick, True)
    return member
