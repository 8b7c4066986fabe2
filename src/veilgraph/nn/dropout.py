"""Dropout that draws from a given generator instead of the process-wide one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

Probability = Annotated[float, Field(ge=0, lt=1)]
"""Of dropping an element, in settings."""


class Masks:
    """Masks that were drawn elsewhere, in the order in which they are used; in place of a generator.

    Args:
        masks: of the shapes of what they are for, 1 where an element is kept and 0 where not, of any dtype.
    """

    def __init__(self, masks: Iterable[Tensor]) -> None:
        self._masks = iter(masks)

    def next(self) -> Tensor:
        """The next of them."""
        return next(self._masks)


def dropout(x: Tensor, p: float, generator: torch.Generator | Masks | None) -> Tensor:
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
    mask = generator.next().to(x.dtype) if isinstance(generator, Masks) else draw_mask(x, p, generator)
    return x * mask.div_(1 - p).to(x.device)


def draw_mask(x: Tensor, p: float, generator: torch.Generator) -> Tensor:
    """What ``dropout`` keeps of ``x``: 0 with probability ``p``, else 1, of its shape and dtype."""
    return torch.empty(x.shape, dtype=x.dtype).bernoulli_(1 - p, generator=generator)
