"""Plaintext twins that no run computes: what the roles of a job find, in one process, with nothing hidden."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def plain_max(values: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Twin of the secure maximum: the maximum, and for every holder the bool mask of where it attains it.

    Of several the first does, and nobody where all are −inf.
    """
    stacked = torch.stack(list(values))
    maximum = stacked.amax(dim=0)
    attained = (stacked == maximum) & (stacked > float("-inf"))
    first = attained & (attained.cumsum(dim=0) == 1)
    return maximum, list(first)
