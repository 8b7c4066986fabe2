"""Sealing: whether what must say nothing says nothing. Messages of words under masks, shares, and orders.

Of uniform words every bit is a fair coin. So is every bit of w ⊕ (w ≫ 1), of what is left when words are taken off
others, and of two messages taken off each other: a mask that is missing, is the same for several words or for two
messages, or has no high or low bits, shows in one of these. Counts of ones are held against the binomial
distribution, which is exact for any number of words. So is the number of words whose low bits two messages share:
where low bits are masked alike, they are those of equal values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from math import exp, lgamma, sqrt
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc
from scipy.stats import chisquare, hypergeom, norm

from veilgraph.audit.finding import Outcome
from veilgraph.audit.statistics import Truth, Verdict, measure
from veilgraph.core.errors import DataError
from veilgraph.protocol.evidence import Ciphertext, Evidence, Order, Unsigned
from veilgraph.protocol.view import Floats

Words = NDArray[np.int64]
Places = NDArray[np.int64]

BYTES: Final = 256
_MOST_OF_PAIRS: Final = 512
_FEWEST: Final = 16
_LOW: Final = 16
"""Bits of a word that are compared."""
_OF_EACH: Final = 20
_FEWEST_COUNTED: Final = _OF_EACH * BYTES
_CELLS: Final = (BYTES, 16, 2)
_SHIFTS: Final = (56, 28, 0)
_MOST_MESSAGES: Final = 64
_DEPENDENT: Final = 5
"""Targets that may depend on one another as if they were one: columns of one node, pairs with one node."""
_FEWEST_PLACES: Final = 8


def told_from_noise(evidence: Evidence, seed: int) -> tuple[Outcome, float]:
    """The best distinguisher of the messages' leading bytes, and the p-value of the test that they are uniform.

    Raises:
        DataError: they are no words of Z_2^64 or Z_2^32, or too few.
    """
    found = None if evidence.noise is None else evidence.noise()
    messages = list(_words(evidence)) if found is None else [_as_words(each.words) for each in found]
    outcome = Outcome(*noise_scores(messages, seed=seed), note="AUC of telling the messages from noise.")
    return outcome, uniformity_p_value(messages) if found is None else ciphertexts_p_value(found)


def _as_words(values: Unsigned | NDArray[np.int32]) -> Words:
    """Two words of Z_2^32 are as uniform as one of Z_2^64."""
    flat = values.reshape(-1)
    return flat.view(np.int64) if flat.dtype.itemsize == 8 else flat[: len(flat) // 2 * 2].view(np.int64)


def _words(evidence: Evidence) -> Iterator[Words]:
    """The first and the last messages of the session."""
    seen = evidence.messages
    if len(seen) > _MOST_MESSAGES:
        seen = (*seen[: _MOST_MESSAGES // 2], *seen[-_MOST_MESSAGES // 2 :])
    for each in seen:
        tensor = each.tensor()
        if tensor.dtype not in (torch.int32, torch.int64):
            raise DataError(f"{evidence.words}: {tensor.dtype} is no word of a ring, whose bytes would be uniform")
        yield _as_words(tensor.contiguous().numpy()) if tensor.dtype == torch.int32 else tensor.numpy()


def against_chance(outcome: Outcome, level: float) -> Verdict:
    """Whether scores of evidence that must tell nothing tell the truth from the rest: Mann and Whitney's test.

    Where rows are noise, scores are that of no truth; but those of one node may be alike. The variance is taken five
    times as large as that of independent ones, so that alarms are rarer than ``level`` says.
    """
    auc, positives = measure(outcome.scores, outcome.truth).auc, int(outcome.truth.sum())
    negatives = len(outcome.truth) - positives
    deviation = sqrt(_DEPENDENT * (positives + negatives + 1) / (12 * positives * negatives))
    p_value = float(2 * norm.sf(abs(auc - 0.5) / deviation))
    return Verdict(p_value <= level, auc, against=0.5, p_value=p_value, level=level)


def ciphertexts_p_value(messages: Sequence[Ciphertext]) -> float:
    """Probability that uniform, independent messages would look as unlike noise as these do: exact, Bonferroni.

    It is below α with a probability of at most α where the messages are uniform and independent.
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


def uniformity_p_value(messages: Iterable[Words]) -> float:
    """Probability that uniform messages would look as unlike noise as these do: χ² tests of bytes, Bonferroni.

    Tested are the highest, a middle and the lowest byte of the words of all messages (int64, in their order), and of
    the differences of messages that follow one another in the same shape: a value without its mask has few distinct
    leading bytes, and a mask that is used twice cancels in the difference. It is below α with a probability of at most
    about α where the messages are uniform and independent.
    """
    counts = {(place, shift): np.zeros(BYTES, dtype=np.int64) for place in ("word", "difference") for shift in _SHIFTS}
    for place, words in _words_and_differences(messages):
        for shift in _SHIFTS:
            counts[place, shift] += np.bincount(_bytes(words, shift), minlength=BYTES)
    tested = [found for found in counts.values() if found.sum() >= _FEWEST_COUNTED]
    if not tested:
        raise DataError(f"messages: have fewer than {_FEWEST_COUNTED} words; whether these are noise cannot be told")
    return float(min(1.0, len(tested) * min(chisquare(found).pvalue for found in tested)))


def noise_scores(messages: Iterable[Words], *, seed: int) -> tuple[Floats, Truth]:
    """How well messages (int64) can be told from noise, as scores of an attack: words of both, ranked by likelihood.

    The distribution of the highest byte, or of fewer bits where there are few words, is learned from every other word;
    the rest of the words are the positives and fresh uniform words the negatives: scores [T] and truth [T].
    """
    words = np.concatenate([_some(message) for message in messages]) if (messages := list(messages)) else np.empty(0)
    cells = next((cells for cells in _CELLS if len(words) >= _OF_EACH * cells), None)
    if cells is None:
        raise DataError(f"messages: have {len(words)} words; at least {_OF_EACH * _CELLS[-1]} can be told from noise")
    random = np.random.default_rng(seed)
    bytes_ = random.permutation(_bytes(words.astype(np.int64), _SHIFTS[0])) // (BYTES // cells)
    half = min(len(bytes_) // 2, 4000)
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
    return message.reshape(-1)[: 1 << 14]


def _bytes(words: Words, shift: int) -> NDArray[np.int64]:
    return (words >> shift) & (BYTES - 1)


def orders_p_value(orders: Sequence[Order]) -> float:
    """Probability that uniform, independent orders would be as much in order, or like each other, as these are.

    Of different places drawn at random, any two rise or fall by a fair coin, and pairs that have none in common do so
    independently. That holds in whatever order they are read, if that order has nothing to do with them: as they stand,
    by the places of another order, or by where another one has the same places. Chances of places in common are exact
    or bounded. No more is needed to find an order that is not random, or is used for two.

    Orders are those that were told, and true ones to hold them against; a ``DataError`` where none is told, or all are
    too short. The result is below α with a probability of at most α where all that are told are uniform and
    independent.
    """
    told = [each for each in orders if each.told]
    if any(not _is_possible(each) for each in told):
        return 0.0
    found = [p_value for each in told for p_value in _rises(each.places)]
    if not found:
        raise DataError(
            f"places: none of {len(told)} orders has {_FEWEST_PLACES} of them; whether these are random cannot be told"
        )
    for one, other in combinations(orders, 2):
        if one.size == other.size and (one.told or other.told):
            found += _alike(one, other)
    return float(min(1.0, len(found) * min(found)))


def _is_possible(order: Order) -> bool:
    places = order.places
    return not len(places) or (
        int(places.min()) >= 0 and int(places.max()) < order.size and len(np.unique(places)) == len(places)
    )


def _alike(one: Order, other: Order) -> Iterator[float]:
    shorter = min(len(one.places), len(other.places))
    common, at_one, at_other = np.intersect1d(one.places, other.places, return_indices=True)
    if one.in_order and other.in_order:
        first, second = one.places[:shorter], other.places[:shorter]
        # So many places where two orders are the same have a chance of at most 1/count!.
        yield exp(-lgamma(int((first == second).sum()) + 1))
        yield from _rises(first[np.argsort(second)])
        yield from _rises(at_one[np.argsort(at_other)])
    if max(len(one.places), len(other.places)) < one.size:
        draws = hypergeom(one.size, len(one.places), len(other.places))
        yield min(1.0, 2 * min(float(draws.sf(len(common) - 1)), float(draws.cdf(len(common)))))


def _rises(places: Places) -> Iterator[float]:
    """Two-sided p-values of how many pairs rise, of places side by side, and of those that half of them lie between."""
    half = len(places) // 2
    if 2 * half >= _FEWEST_PLACES:
        for rises in (places[: 2 * half : 2] < places[1 : 2 * half : 2], places[:half] < places[half : 2 * half]):
            rising = int(rises.sum())
            yield float(min(1.0, 2 * bdtr(min(rising, half - rising), half, 0.5)))
