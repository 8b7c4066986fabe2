"""Whether messages that must say nothing are noise: masked values and shares are uniform over Z_2^64, each by itself.

A value that goes out without its mask has few distinct leading bytes; a mask that is used twice cancels in the
difference of two messages. Both are seen in the distribution of bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chisquare

from veilgraph.audit.roc import Floats, Truth
from veilgraph.core.errors import DataError

Words = NDArray[np.int64]

BYTES: Final = 256
_PER_MESSAGE: Final = 1 << 14
_OF_EACH: Final = 20
_FEWEST: Final = _OF_EACH * BYTES
_CELLS: Final = (BYTES, 16, 2)
_SHIFTS: Final = (56, 28, 0)
_TARGETS: Final = 4000


def uniformity_p_value(messages: Iterable[Words]) -> float:
    """Probability that uniform messages would look as unlike noise as these do: χ² tests of bytes, Bonferroni.

    Tested are the highest, a middle and the lowest byte of the words of all messages, and of the differences of
    messages that follow one another in the same shape.

    Args:
        messages: int64 of any shape, in their order.

    Returns:
        In [0, 1]; below α with a probability of at most about α where the messages are uniform and independent.

    Raises:
        DataError: there are too few words.
    """
    counts = {(place, shift): np.zeros(BYTES, dtype=np.int64) for place in ("word", "difference") for shift in _SHIFTS}
    for place, words in _words_and_differences(messages):
        for shift in _SHIFTS:
            counts[place, shift] += np.bincount(_bytes(words, shift), minlength=BYTES)
    tested = [found for found in counts.values() if found.sum() >= _FEWEST]
    if not tested:
        raise DataError(f"messages: have fewer than {_FEWEST} words; whether these are noise cannot be told")
    return float(min(1.0, len(tested) * min(chisquare(found).pvalue for found in tested)))


def noise_scores(messages: Iterable[Words], *, seed: int) -> tuple[Floats, Truth]:
    """How well messages can be told from noise, as scores of an attack: words of both, ranked by likelihood.

    The distribution of the highest byte, or of fewer bits where there are few words, is learned from every other word;
    the rest of the words are the positives and fresh uniform words the negatives.

    Args:
        messages: int64 of any shape.
        seed: of the noise.

    Returns:
        Scores [T] and truth [T], True for words of the messages.

    Raises:
        DataError: there are too few words.
    """
    words = np.concatenate([_some(message) for message in messages]) if (messages := list(messages)) else np.empty(0)
    cells = next((cells for cells in _CELLS if len(words) >= _OF_EACH * cells), None)
    if cells is None:
        raise DataError(f"messages: have {len(words)} words; at least {_OF_EACH * _CELLS[-1]} can be told from noise")
    random = np.random.default_rng(seed)
    bytes_ = random.permutation(_bytes(words.astype(np.int64), _SHIFTS[0])) // (BYTES // cells)
    half = min(len(bytes_) // 2, _TARGETS)
    known, asked = bytes_[half:], bytes_[:half]
    likelihood = (np.bincount(known, minlength=cells) + 1) / (len(known) + cells)
    scores = np.concatenate([likelihood[asked], likelihood[random.integers(cells, size=half)]])
    return np.log(scores * cells), np.arange(2 * half) < half


def _words_and_differences(messages: Iterable[Words]) -> Iterator[tuple[str, Words]]:
    before: Words | None = None
    for message in messages:
        words = _some(message)
        yield "word", words
        if before is not None and before.shape == words.shape:
            yield "difference", words - before
        before = words


def _some(message: Words) -> Words:
    """The first words of a message: the same places in messages of one shape."""
    return message.reshape(-1)[:_PER_MESSAGE]


def _bytes(words: Words, shift: int) -> NDArray[np.int64]:
    return (words >> shift) & (BYTES - 1)
