"""Randomness that the dealer and one holder both expand, and the pace at which the dealer runs ahead."""

from __future__ import annotations

from math import prod
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.randomness import expand
from veilgraph.core.types import Kind, Tag

STRIDE_BYTES: Final = 16 << 20
"""After so many bytes dealt to it a holder says that it has used them."""
AHEAD_STRIDES: Final = 4
"""How many of these strides the dealer may be ahead."""


def drawn(seed: bytes, purpose: str, shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
    """Uniform elements of Z_2^32 or Z_2^64, by the dtype.

    Args:
        seed: 32 secret bytes.
        purpose: names them; never used twice with a seed.
        shape: of the result.
        dtype: int32 or int64.
    """
    if dtype == torch.int64:
        return expand(seed, purpose, shape)
    size = prod(shape)
    return expand(seed, purpose, ((size + 1) // 2,)).view(dtype)[:size].reshape(shape)


class Pace:
    """Which messages one end of the dealing waits for, or sends, so that no more than a few strides are unread.

    Both ends count the same bytes.
    """

    def __init__(self) -> None:
        self._bytes = 0

    def count(self, size: int) -> range:
        """The strides that a message completes."""
        before = self._bytes // STRIDE_BYTES
        self._bytes += size
        return range(before, self._bytes // STRIDE_BYTES)


def ready(stride: int) -> Tag:
    """Of the message that a stride has been used."""
    return Tag(Kind.READY, stride)


def packed(parts: list[Tensor]) -> Tensor:
    """Tensors of several dtypes as one of bytes."""
    return torch.cat([part.contiguous().view(-1).view(torch.uint8) for part in parts])


def unpacked(buffer: Tensor, shapes: list[tuple[tuple[int, ...], torch.dtype]]) -> list[Tensor]:
    """What ``packed`` packed."""
    parts, start = [], 0
    for shape, dtype in shapes:
        size = prod(shape) * dtype.itemsize
        parts.append(buffer[start : start + size].clone().view(dtype).reshape(shape))
        start += size
    return parts


def packed_size(shapes: list[tuple[tuple[int, ...], torch.dtype]]) -> int:
    """Bytes of ``packed`` tensors of such shapes and dtypes."""
    return sum(prod(shape) * dtype.itemsize for shape, dtype in shapes)
