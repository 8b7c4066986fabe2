"""Numbers of any width, one after the other in words of 64 bits, the lowest bits of a word first."""

from __future__ import annotations

from typing import Final

import numpy as np

from veilgraph.mpc.pair.ntt import Words, kernel

_WORD: Final = 64


@kernel
def _pack(values: Words, bits: int) -> Words:
    out = np.zeros((values.size * bits + 63) // 64, np.uint64)
    for i in range(values.size):
        place, offset = (i * bits) // 64, (i * bits) % 64
        out[place] |= values[i] << np.uint64(offset)
        if offset + bits > 64:
            out[place + 1] |= values[i] >> np.uint64(64 - offset)
    return out


@kernel
def _unpack(words: Words, bits: int, count: int) -> Words:
    out = np.empty(count, np.uint64)
    mask = ~np.uint64(0) >> np.uint64(64 - bits)
    for i in range(count):
        place, offset = (i * bits) // 64, (i * bits) % 64
        value = words[place] >> np.uint64(offset)
        if offset + bits > 64:
            value |= words[place + 1] << np.uint64(64 - offset)
        out[i] = value & mask
    return out


def packed_words(count: int, bits: int) -> int:
    """Words that ``pack`` makes of ``count`` values."""
    return -(-count * bits // _WORD)


def pack(values: Words, bits: int) -> Words:
    """Values below 2^bits, one after the other, the lowest bits of a word first."""
    return _pack(np.ascontiguousarray(values).reshape(-1), bits)


def unpack(words: Words, bits: int, count: int) -> Words:
    """Undo ``pack``: ``count`` values below 2^bits."""
    return _unpack(words, bits, count)
