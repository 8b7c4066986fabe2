"""Whether what must say nothing says nothing: messages of words, each by itself and against each other.

Of uniform words every bit is a fair coin. So is every bit of w ⊕ (w ≫ 1), of what is left when words are taken off
others, and of two messages taken off each other: a mask that is missing, is the same for several words or for two
messages, or has no high or low bits, shows in one of these. Counts of ones are held against the binomial
distribution, which is exact for any number of words. So is the number of words whose low bits two messages share:
where low bits are masked alike, they are those of equal values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc

from veilgraph.core.errors import DataError

Unsigned: TypeAlias = NDArray[np.unsignedinteger[Any]]

_MOST: Final = 4096
_MOST_OF_PAIRS: Final = 512
_FEWEST: Final = 16
_LOW: Final = 16
"""Bits of a word that are compared."""
_UNLIKELY: Final = 4
"""Of 512 words two messages share the low bits of so many with a probability of 5·10⁻¹⁰."""


@dataclass(frozen=True, eq=False)
class Ciphertext:
    """Words of one message, or of what several add up to.

    Attributes:
        words: uint32 or uint64 [n], words of Z_2^32 or Z_2^64.
        width: words of a row.
        bitwise: whether masks are taken off by XOR.
    """

    words: Unsigned
    width: int = 1
    bitwise: bool = False

    def less(self, words: Unsigned, others: Unsigned) -> Unsigned:
        """What is left of words when others are taken off."""
        return words ^ others if self.bitwise else words - others


def chosen_words(words: NDArray[Any]) -> Unsigned:
    """The first and the last of a message's words, as numbers without a sign: of messages of one shape the same places.

    Raises:
        DataError: they are no words of a ring.
    """
    flat = np.ascontiguousarray(words).reshape(-1)
    if flat.dtype.kind not in "iu" or flat.dtype.itemsize not in (4, 8):
        raise DataError(f"messages: {flat.dtype} are no words of a ring, whose bits would be uniform")
    if len(flat) > _MOST:
        flat = np.concatenate([flat[: _MOST // 2], flat[-_MOST // 2 :]])
    return flat.view(f"u{flat.dtype.itemsize}")


def ciphertexts_p_value(messages: Sequence[Ciphertext]) -> float:
    """Probability that uniform, independent messages would look as unlike noise as these do: exact, Bonferroni.

    Args:
        messages: in their order.

    Returns:
        In [0, 1]; below α with a probability of at most α where the messages are uniform and independent.

    Raises:
        DataError: all of them are too small.
    """
    tests, least = 0, 1.0
    for rows in _against(messages):
        if rows.shape[1] >= _FEWEST:
            shared = (rows & rows.dtype.type((1 << _LOW) - 1) == 0).sum(axis=1).max()
            tests, least = tests + len(rows), min(least, float(bdtrc(int(shared) - 1, rows.shape[1], 2.0**-_LOW)))
    for rows in (*_alone(messages), *_against(messages)):
        if rows.shape[1] < _FEWEST:
            continue
        for words in (rows, rows ^ (rows >> rows.dtype.type(1))):
            fewest, places = _fewest(words)
            tests, least = tests + places, min(least, 2 * float(bdtr(fewest, rows.shape[1], 0.5)))
    if not tests:
        raise DataError(f"messages: none has {_FEWEST} words; whether these are noise cannot be told")
    return min(1.0, tests * least)


def sharing_low_bits(one: Sequence[Unsigned], other: Sequence[Unsigned]) -> tuple[set[int], set[int]]:
    """Places of messages of two sessions, all of one shape, that share the low bits of more words than by chance."""
    if not one or not other:
        return set(), set()
    left, right = (np.stack([words[:_MOST_OF_PAIRS] for words in each]).astype(np.uint16) for each in (one, other))
    pairs = [(place, again) for place, row in enumerate(left) for again in _like(row, right)]
    return {place for place, _ in pairs}, {again for _, again in pairs}


def _like(row: Unsigned, others: Unsigned) -> list[int]:
    return np.flatnonzero((others == row).sum(axis=1) >= _UNLIKELY).tolist()


def _alone(messages: Sequence[Ciphertext]) -> Iterator[Unsigned]:
    """Words, words less the ones before, and rows less the rows before: a row [1, n] of each."""
    for each in messages:
        yield each.words[None]
        for lag in {1, each.width}:
            if lag < len(each.words):
                yield each.less(each.words[lag:], each.words[:-lag])[None]


def _against(messages: Sequence[Ciphertext]) -> Iterator[Unsigned]:
    """Every message less all later ones of its shape: [others, n]."""
    groups: dict[object, list[Ciphertext]] = {}
    for each in messages:
        key = each.words.dtype, each.bitwise, len(each.words), each.width
        groups.setdefault(key, []).append(each)
    for some in groups.values():
        words = np.stack([each.words[:_MOST_OF_PAIRS] for each in some])
        for place, one in enumerate(some):
            if place + 1 < len(some):
                yield one.less(words[place + 1 :], words[place])


def _fewest(rows: Unsigned) -> tuple[int, int]:
    """Of the places of the words of each row that with the fewest ones, or zeros, and how many places there are."""
    count, size = rows.shape
    octets = np.ascontiguousarray(rows).view(np.uint8).reshape(count, size, -1)
    ones = np.unpackbits(octets, axis=2).sum(axis=1, dtype=np.uint16)
    return min(int(ones.min()), size - int(ones.max())), ones.size
