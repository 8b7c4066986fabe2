"""Dropout that draws from a given generator instead of the process-wide one."""

from __future__ import annotations

import torch
from torch import Tensor


def dropout(x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    """Inverted dropout: zeroes an element with probability ``p`` and scales the others by 1/(1 − p).

    Args:
        x: any shape.
        p: probability in [0, 1).
        generator: source of the mask; None means evaluation and returns ``x``.

    Returns:
        Tensor of ``x``'s shape and dtype; ``x`` itself when nothing is dropped.
    """
    if generator is None or p == 0:
        return x
    mask = torch.empty(x.shape, dtype=x.dtype).bernoulli_(1 - p, generator=generator)
    return x * mask.div_(1 - p)
