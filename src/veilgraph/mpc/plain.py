"""The plaintext twin of each protocol: the same result by obvious computation in one place.

Tests compare the protocols with these, and the plaintext network of the baselines is built on them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def rounded(values: Tensor, bits: int) -> Tensor:
    """What ``ring.encode`` keeps of real values, float64."""
    return torch.ldexp(torch.ldexp(values.to(torch.float64), torch.tensor(bits)).round(), torch.tensor(-bits))


def masked_sum(pieces: Sequence[Tensor]) -> Tensor:
    """Twin of ``hide`` and ``open_sum``: the sum, float64."""
    total = pieces[0].to(torch.float64, copy=True)
    for piece in pieces[1:]:
        total += piece
    return total


def plain_max(values: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Twin of the secure maximum.

    Args:
        values: of every holder, in the job's order, floating and of one shape.

    Returns:
        The elementwise maximum, and for every holder the bool mask of where it attains it: the first one of several,
        and nobody where all are −inf.
    """
    stacked = torch.stack(list(values))
    maximum = stacked.amax(dim=0)
    attained = (stacked == maximum) & (stacked > float("-inf"))
    first = attained & (attained.cumsum(dim=0) == 1)
    return maximum, list(first)
