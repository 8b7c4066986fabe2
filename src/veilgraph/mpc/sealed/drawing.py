"""Randomness that the dealer and one holder both expand, and the pace at which the dealer runs ahead."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, TypeAlias

import torch
from torch import Tensor

from veilgraph.core.randomness import Keystream
from veilgraph.core.types import Kind, Tag

STRIDE_BYTES: Final = 16 << 20
"""After so many bytes dealt to it a holder says that it has used them."""
AHEAD_STRIDES: Final = 4
"""How many of these strides the dealer may be ahead."""

Form: TypeAlias = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a tensor."""
_ALIGNED: Final = 8


def _padded(form: Form) -> int:
    shape, dtype = form
    return -(-prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED


def size_of(forms: Sequence[Form]) -> int:
    """Bytes of tensors of such forms, each filled up to whole words."""
    return sum(map(_padded, forms))


def packed(parts: Sequence[Tensor]) -> Tensor:
    """Tensors of several dtypes as one of bytes."""
    buffer = torch.zeros(size_of([(tuple(part.shape), part.dtype) for part in parts]), dtype=torch.uint8)
    start = 0
    for part in parts:
        octets = part.contiguous().view(-1).view(torch.uint8)
        buffer[start : start + octets.numel()] = octets
        start += _padded((tuple(part.shape), part.dtype))
    return buffer


def unpacked(buffer: Tensor, forms: Sequence[Form]) -> list[Tensor]:
    """What ``packed`` packed, without a copy."""
    parts, start = [], 0
    for form in forms:
        shape, dtype = form
        parts.append(buffer[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape))
        start += _padded(form)
    return parts


class Stream:
    """Uniform tensors that the dealer and one holder draw in the same order.

    Args:
        seed: 32 secret bytes.
    """

    def __init__(self, seed: bytes) -> None:
        self._keystream = Keystream(seed, "sealed")

    def draw(self, forms: Sequence[Form]) -> list[Tensor]:
        """The next ones, of Z_2^32 or Z_2^64 by their dtype."""
        return unpacked(self._keystream.take(size_of(forms)), forms)


class Pace:
    """When the receiver says that it has used what was dealt to it; both ends count the same bytes."""

    def __init__(self) -> None:
        self._bytes = self._awaited = 0

    def due(self) -> range:
        """The dealer's, before a message: strides of which it has still to hear, or too much would be unread."""
        begin, self._awaited = self._awaited, max(self._awaited, self._bytes // STRIDE_BYTES - AHEAD_STRIDES)
        return range(begin, self._awaited)

    def count(self, size: int) -> range:
        """The strides that a message completes."""
        before = self._bytes // STRIDE_BYTES
        self._bytes += size
        return range(before, self._bytes // STRIDE_BYTES)


def ready(stride: int) -> Tag:
    """Of the message that a stride has been used."""
    return Tag(Kind.READY, stride)
