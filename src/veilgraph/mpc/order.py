"""Floating-point values as integers of the same order, and such integers under additive masks.

An IEEE 754 number is a sign and a magnitude; its bits, read as an integer, grow with the magnitude. Turned into two's
complement they grow with the value.
"""

from __future__ import annotations

import torch
from torch import Tensor

INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""Type of the values → type of their codes."""


def order_codes(values: Tensor) -> Tensor:
    """Floating values → integers that, taken without sign, have their order; −inf is 0, and −0.0 becomes 0.0.

    Args:
        values: float32 or float64 without NaN, any shape.

    Returns:
        int32 or int64 of the same shape.
    """
    return _ordered(values) - _ordered(_minus_infinity(values.dtype))


def from_order_codes(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """Inverse of ``order_codes``; integers that are nobody's code become NaN."""
    ordered = codes + _ordered(_minus_infinity(dtype))
    return _flipped_if_negative(ordered).view(dtype)


def _minus_infinity(dtype: torch.dtype) -> Tensor:
    return torch.tensor(float("-inf"), dtype=dtype)


def _ordered(values: Tensor) -> Tensor:
    """IEEE 754: sign and magnitude → two's complement."""
    bits = values.detach().contiguous().view(INTEGERS[values.dtype])
    return _flipped_if_negative(torch.where(bits == torch.iinfo(bits.dtype).min, 0, bits))


def _flipped_if_negative(bits: Tensor) -> Tensor:
    return bits ^ ((bits >> (8 * bits.itemsize - 1)) & torch.iinfo(bits.dtype).max)


def packed_words(entries: int, dtype: torch.dtype) -> int:
    """Length of ``packed`` codes of that many values of ``dtype``."""
    return -(-entries * dtype.itemsize // 8)


def packed(codes: Tensor) -> Tensor:
    """Codes [entries] → int64 [words] in new memory, two int32 codes to a word.

    The sum of several is that of the codes only where at most one code of an entry is not 0: then nothing carries.
    """
    if codes.dtype == torch.int64:
        return codes.clone()
    half = packed_words(codes.numel(), torch.float32)
    words = codes[:half].to(torch.int64) & 0xFFFFFFFF
    words[: codes.numel() - half] |= codes[half:].to(torch.int64) << 32
    return words


def unpacked(words: Tensor, entries: int, dtype: torch.dtype) -> Tensor:
    """Inverse of ``packed`` for codes of values of ``dtype``."""
    if dtype == torch.float64:
        return words
    return torch.cat([words, words >> 32]).to(torch.int32)[:entries]
