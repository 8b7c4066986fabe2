"""Sealing: whether what must say nothing says nothing. Messages of words under masks, shares, and orders.

Of uniform words every bit is a fair coin. So is every bit of w ⊕ (w ≫ 1), of what is left when words are taken off
others, and of two messages taken off each other: a mask that is missing, is the same for several words or for two
messages, or has no high or low bits, shows in one of these. Counts of ones are held against the binomial
distribution, which is exact for any number of words. So is the number of words that are small numbers, which shows a
few words without a mask among many, and of words whose low bits two messages share: where low bits are masked alike,
they are those of equal values.

What is drawn in a session must differ in the next: sessions are held against each other at the end. That needs no
truth but holders' own notes of what they put into sums; ``tests/pairs`` does it over random pairs of sessions of every
paradigm.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, combinations_with_replacement, product
from math import exp, lgamma, sqrt
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc
from scipy.stats import hypergeom, norm
from torch import Tensor

from veilgraph.audit.finding import Outcome
from veilgraph.audit.statistics import Truth, Verdict, measure
from veilgraph.core.arguments import argument
from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import ViewEntry, read_view
from veilgraph.protocol.evidence import Ciphertext, Evidence, Order, Unsigned, chosen_words
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.protocol.view import Floats
from veilgraph.runtime.store.run_directory import RunDirectory

Places = NDArray[np.int64]

_FEWEST: Final = 16
_LOW: Final = 16  # bits of a word that are compared
_OF_EACH: Final = 20
_CELLS: Final = (256, 16, 2)
_MOST_MESSAGES: Final = 32
_MOST_TOGETHER: Final = 1 << 18  # words of all messages together, of each as many
_DEPENDENT: Final = 5
"""Targets that may depend on one another as if they were one: columns of one node, pairs with one node."""
_FEWEST_PLACES: Final = 8


def uniformity_test(evidence: Evidence, seed: int) -> tuple[Outcome, float]:
    """Test whether masked messages look uniform: scores of a distinguisher, and the p-value of uniformity tests.

    Of many messages the first and last 16 are read. Raises ``DataError``: they are no words of a ring, or too few.
    """
    seen, half = evidence.messages, _MOST_MESSAGES // 2
    if evidence.noise is not None:
        words = evidence.noise()
    else:
        kept = seen if len(seen) <= _MOST_MESSAGES else (*seen[:half], *seen[-half:])
        words = [Ciphertext(chosen_words(each.tensor().numpy())) for each in kept]
    outcome = Outcome(*noise_scores(words, seed=seed), note="AUC of telling the messages from noise.")
    return outcome, uniformity_p_value(words)


def against_chance(outcome: Outcome, level: float) -> Verdict:
    """Mann-Whitney test, two-sided, of whether scores of evidence that must tell nothing separate the true targets.

    Where rows are noise, scores are that of no truth; but those of one node may be alike. The variance is taken five
    times as large as that of independent ones, so that alarms are rarer than ``level`` says.
    """
    auc, positives = measure(outcome.scores, outcome.truth).auc, int(outcome.truth.sum())
    negatives = len(outcome.truth) - positives
    deviation = sqrt(_DEPENDENT * (positives + negatives + 1) / (12 * positives * negatives))
    p_value = float(2 * norm.sf(abs(auc - 0.5) / deviation))
    return Verdict(p_value <= level, auc, against=0.5, p_value=p_value, level=level)


def uniformity_p_value(messages: Sequence[Ciphertext]) -> float:
    """p-value that messages are uniform and independent: the least of many exact tests of bits, times their number.

    It is below α with a probability of at most α where the messages are uniform and independent.
    """
    tests, least, low = 0, 1.0, (1 << _LOW) - 1
    told = [(rows, _small(rows)) for rows in _within_messages(messages)]
    told += [(rows, rows & rows.dtype.type(low) == 0) for rows in _between_messages(messages)]
    for rows, rare in told:
        if rows.shape[1] < _FEWEST:
            continue
        most = int(rare.sum(axis=1).max())
        tests, least = tests + len(rows), min(least, float(bdtrc(most - 1, rows.shape[1], 2.0**-_LOW)))
        for words in (rows, rows ^ (rows >> rows.dtype.type(1))):
            fewest, places = _rarest_bit(words)
            tests, least = tests + places, min(least, 2 * float(bdtr(fewest, rows.shape[1], 0.5)))
    if not tests:
        raise DataError(f"messages: none has {_FEWEST} words; whether these are noise cannot be told")
    return min(1.0, tests * least)


def _within_messages(messages: Sequence[Ciphertext]) -> Iterator[Unsigned]:
    """Yield, as [1, n], the words of all messages; of each its words, and their differences by one word or row."""
    some = max(_FEWEST, _MOST_TOGETHER // max(1, len(messages)))
    for dtype in {each.words.dtype for each in messages} if len(messages) > 1 else ():
        yield np.concatenate([each.words[:some] for each in messages if each.words.dtype == dtype])[None]
    for each in messages:
        yield each.words[None]
        for lag in {1, each.width}:
            if lag < len(each.words):
                yield each.less(each.words[lag:], each.words[:-lag])[None]


def _between_messages(messages: Sequence[Ciphertext]) -> Iterator[Unsigned]:
    """Yield, for every message, its differences [others, n] from all later ones of its shape."""
    groups: dict[object, list[Ciphertext]] = {}
    for each in messages:
        key = each.words.dtype, each.bitwise, len(each.words), each.width
        groups.setdefault(key, []).append(each)
    for some in groups.values():
        words = np.stack([each.words[:512] for each in some])
        for place, one in enumerate(some):
            if place + 1 < len(some):
                yield one.less(words[place + 1 :], words[place])


def _small(rows: Unsigned) -> NDArray[np.bool_]:
    """Which words, read as signed, are among the 2^-16 of the ring that are smallest in size."""
    width = 8 * rows.itemsize - _LOW
    return np.asarray(rows + rows.dtype.type(1 << width - 1) < rows.dtype.type(1 << width))


def _rarest_bit(rows: Unsigned) -> tuple[int, int]:
    """Fewest ones, or zeros, that a bit position has over the words of a row; and how many positions there are."""
    count, size = rows.shape
    octets = np.ascontiguousarray(rows).view(np.uint8).reshape(count, size, -1)
    ones = np.unpackbits(octets, axis=2).sum(axis=1, dtype=np.uint32)
    return min(int(ones.min()), size - int(ones.max())), ones.size


def noise_scores(messages: Sequence[Ciphertext], *, seed: int) -> tuple[Floats, Truth]:
    """Scores of a distinguisher of messages from noise: words of both, by the likelihood ratio of their high bits.

    The distribution of the highest byte, or of fewer bits where there are few words, is learned from every other word;
    the rest are the positives and fresh uniform words the negatives: scores [T] and truth [T].
    """
    highest_bytes = [each.words >> each.words.dtype.type(8 * each.words.itemsize - 8) for each in messages]
    words = np.concatenate(highest_bytes).astype(np.int64) if messages else np.empty(0, dtype=np.int64)
    cells = next((cells for cells in _CELLS if len(words) >= _OF_EACH * cells), None)
    if cells is None:
        raise DataError(f"messages: have {len(words)} words; at least {_OF_EACH * _CELLS[-1]} can be told from noise")
    random = np.random.default_rng(seed)
    highest = random.permutation(words) // (_CELLS[0] // cells)
    half = min(len(highest) // 2, 4000)
    known, asked = highest[half:], highest[:half]
    likelihood = (np.bincount(known, minlength=cells) + 1) / (len(known) + cells)
    scores = np.concatenate([likelihood[asked], likelihood[random.integers(cells, size=half)]])
    return np.log(scores * cells), np.arange(2 * half) < half


def orders_p_value(orders: Sequence[Order]) -> float:
    """p-value that orders are uniform and independent: tests of how far they rise, and of how alike they are.

    Of different places drawn at random, any two rise or fall by a fair coin, and pairs that have none in common do so
    independently. That holds in whatever order they are read, if that order has nothing to do with them: as they stand,
    by the places of another order, or by where another one has the same places. Chances of places in common are exact
    or bounded. No more is needed to find an order that is not random, or is used for two.

    Orders are those that were told, and true ones to hold them against; a ``DataError`` where none is told, or all are
    too short. The result is below α with a probability of at most α where all that are told are uniform and
    independent.
    """
    told = [each for each in orders if each.told]
    if any(not _has_distinct_places(each) for each in told):
        return 0.0
    found = [p_value for each in told for p_value in _rise_p_values(each.places)]
    if not found:
        raise DataError(
            f"places: none of {len(told)} orders has {_FEWEST_PLACES} of them; whether these are random cannot be told"
        )
    for one, other in combinations(orders, 2):
        if one.size == other.size and (one.told or other.told):
            found += _similarity_p_values(one, other)
    return float(min(1.0, len(found) * min(found)))


def _has_distinct_places(order: Order) -> bool:
    places = order.places
    return not len(places) or (
        int(places.min()) >= 0 and int(places.max()) < order.size and len(np.unique(places)) == len(places)
    )


def _similarity_p_values(one: Order, other: Order) -> Iterator[float]:
    """p-values that two orders of one size are independent: by equal places, rising pairs, and places in common."""
    shorter = min(len(one.places), len(other.places))
    common, at_one, at_other = np.intersect1d(one.places, other.places, return_indices=True)
    if one.in_order and other.in_order:
        first, second = one.places[:shorter], other.places[:shorter]
        # So many places where two orders are the same have a chance of at most 1/count!.
        yield exp(-lgamma(int((first == second).sum()) + 1))
        yield from _rise_p_values(first[np.argsort(second)])
        yield from _rise_p_values(at_one[np.argsort(at_other)])
    if max(len(one.places), len(other.places)) < one.size:
        draws = hypergeom(one.size, len(one.places), len(other.places))
        yield min(1.0, 2 * min(float(draws.sf(len(common) - 1)), float(draws.cdf(len(common)))))


def _rise_p_values(places: Places) -> Iterator[float]:
    """Two-sided p-values of how many pairs of places rise: of neighbours, and of places half the length apart."""
    half = len(places) // 2
    if 2 * half >= _FEWEST_PLACES:
        for rises in (places[: 2 * half : 2] < places[1 : 2 * half : 2], places[:half] < places[half : 2 * half]):
            rising = int(rises.sum())
            yield float(min(1.0, 2 * bdtr(min(rising, half - rising), half, 0.5)))


def _kinds(names: str) -> frozenset[Kind]:
    return frozenset(Kind[name] for name in names.split())


_REPEATS: Final = _kinds(
    "HELLO CONTROL COMMON_IDS COMBINED GRADIENT EMBEDDING PERTURBED_FEATURES PERTURBED_LABELS AVERAGED ROW_ORDER "
    "COLUMN_HASHES READY NODE_PLACES"
)
"""Of what is in the clear, or is a release: the same again where the same values are sent again. Others are drawn."""
_RING: Final = _kinds(
    "MASKED MASKED_GRADIENT MASKED_OPERAND STATIC_DIFFERENCE SHARE CORRELATION MASKED_WIRE MASKED_ROWS MASK_SHARE"
)
"""Of which every word is uniform."""
RELEASES: Final = (Kind.PERTURBED_FEATURES, Kind.PERTURBED_LABELS)
_NODE_KEY: Final = 32
"""Bytes of the key. Behind it is the seed of the shared weights, which is that of the run."""
_BLOCK, _HEAD, _SMALL, _FEWEST_WORDS = 16, 24, 1 << 36, 4
_NEAR: Final = 0.25
"""Share of small differences from which on two messages are under one mask; of uniform words 2^-27 are small."""


Place = tuple[Kind, PartyId, PartyId, tuple[int, ...]]
_ByPlace = Mapping[Place, list[Tensor]]


@dataclass(frozen=True)
class Session:
    """What all parties of one session received from others, and noted of what they hid in what they sent."""

    name: str
    received: tuple[ViewEntry, ...]
    noted: tuple[ViewEntry, ...]


@dataclass(frozen=True)
class _Repetition:
    """Something that two sessions, by name, have in common and should not."""

    sessions: tuple[str, str]
    what: str

    def __str__(self) -> str:
        return f"{' and '.join(self.sessions)}: {self.what}"


def compare_sessions(paths: Sequence[Path]) -> tuple[list[Session], list[_Repetition]]:
    """Compare the recorded sessions of runs of the same parties; return them, and what two of them must not share.

    Raises ``ConfigError``: parties differ, or there are no two sessions; ``RunError``: a run has no view.
    """
    runs = [RunDirectory.open(path) for path in dict.fromkeys(path.resolve() for path in paths)]
    first = runs[0].settings
    for run in runs[1:]:
        if run.settings.data.names != first.data.names:
            raise ConfigError(
                f"--beside={run.path} is a run of {', '.join(run.settings.data.names)}, and {runs[0].path} of "
                f"{', '.join(first.data.names)}; give runs of the same parties",
                key="--beside",
            )
    sessions = read_sessions(runs)
    if len(sessions) < 2:
        raise ConfigError(
            f"--beside={paths[-1]}: there is one recorded session alone, and two are compared; give another run",
            key="--beside",
        )
    return sessions, list(repetitions(sessions, [run.settings for run in runs]))


def read_sessions(runs: Iterable[RunDirectory]) -> list[Session]:
    """Read the recorded sessions of runs, oldest first, a copied one once. ``RunError``: a run has no view."""
    found, known = list[Session](), set[bytes]()
    for run in runs:
        parties = [party for party in (*run.settings.data.names, SERVER) if run.party_path(party).is_dir()]
        views = {party: run.party(party).views() for party in parties}
        if not any(views.values()):
            raise RunError(f"{run.path} has no recorded view; train it with {argument('record_views', 'True')}")
        for number in range(max(map(len, views.values()))):
            files = {party: paths[number] for party, paths in views.items() if number < len(paths)}
            digest = hashlib.sha256(b"".join(file.read_bytes() for file in files.values())).digest()
            if digest in known:
                continue
            known.add(digest)
            seen = [(party, each) for party, file in files.items() for each in read_view(file, number)]
            work = next(iter(files.values())).stem.partition("-")[2]
            found.append(
                Session(
                    f"{run.path.name}, session {number} ({work})",
                    tuple(each for party, each in seen if each.receiver == party != each.sender),
                    tuple(each for party, each in seen if each.receiver == party == each.sender),
                )
            )
    return found


def repetitions(sessions: Sequence[Session], jobs: Sequence[JobSettings]) -> Iterator[_Repetition]:
    """Yield what sessions of the same parties repeat and should not: blocks, masks, low bits, sums, noise."""
    holders = jobs[0].data.names
    opening = len(holders) - (jobs[0].duties.dealing in holders)  # a holder that deals opens nothing
    checks: list[tuple[Callable[[Session], Any], Callable[[Any, Any], Iterator[str]], Any]] = [
        (_fresh_blocks, _repeated_blocks, combinations),
        (partial(_tensors_by_place, wanted=_first_masked_words), _small_differences, combinations),
        (lambda session: opened_sums(session.received, opening), _repeated_low_bits, combinations),
        (partial(_averaging_sums, holders=holders), _exposing_sums, combinations_with_replacement),
    ]
    if any(map(adds_noise, jobs)):
        checks.append((partial(_tensors_by_place, wanted=_released_matrix), _partly_kept_noise, combinations))
    for found, compare, pairs in checks:
        for (one, ours), (other, theirs) in pairs([(session.name, found(session)) for session in sessions], 2):
            yield from (_Repetition((one, other), what) for what in compare(ours, theirs))


def octets(seen: ViewEntry) -> NDArray[np.uint8]:
    """The bytes [n] of a message's tensor."""
    return np.asarray(seen.tensor().contiguous().view(-1).view(torch.uint8).numpy())


def _fresh_blocks(session: Session) -> Mapping[Kind, set[bytes]]:
    """Kind → 16-byte blocks of the messages received, of kinds that are drawn anew in each session."""
    found: dict[Kind, set[bytes]] = defaultdict(set)
    for seen in session.received:
        if seen.tag.kind not in _REPEATS and 0 not in seen.shape:
            whole = octets(seen)[: _NODE_KEY if seen.tag.kind == Kind.NODE_KEY else None].tobytes()
            size = _BLOCK * (4 if seen.tag.kind == Kind.PLACEMENT else 1)  # two of few places meet by chance, not eight
            last = len(whole) // size * size
            found[seen.tag.kind] |= {whole[at : at + size] for at in range(0, last, size)}
    return {kind: {one for one in some if len(set(one)) > _FEWEST_WORDS} for kind, some in found.items()}


def _repeated_blocks(ours: Mapping[Kind, set[bytes]], theirs: Mapping[Kind, set[bytes]]) -> Iterator[str]:
    """Report kinds of messages that are drawn anew in each session, and of which two share 16-byte blocks."""
    for kind in sorted(ours.keys() & theirs.keys()):
        if common := len(ours[kind] & theirs[kind]):
            yield f"{kind.name}: two sessions have {common} blocks in common"


def _tensors_by_place(session: Session, wanted: Callable[[ViewEntry], Tensor | None]) -> _ByPlace:
    """(kind, sender, receiver, shape) → what ``wanted`` makes of the messages received, but None."""
    found: dict[Place, list[Tensor]] = defaultdict(list)
    for seen in session.received:
        if (tensor := wanted(seen)) is not None:
            found[seen.tag.kind, seen.sender, seen.receiver, seen.shape].append(tensor)
    return found


def _first_masked_words(seen: ViewEntry) -> Tensor | None:
    """The first 24 words of a masked int64 message; None of other messages and those of fewer than four words."""
    if (
        seen.tag.kind not in _RING
        or np.prod(seen.shape) < _FEWEST_WORDS
        or (tensor := seen.tensor()).dtype != torch.int64
    ):
        return None
    return tensor.reshape(-1)[:_HEAD]


def _small_differences(ours: _ByPlace, theirs: _ByPlace) -> Iterator[str]:
    """Report messages of two sessions under one mask: their difference is of two plaintexts, so small in the ring."""
    for place in sorted(ours.keys() & theirs.keys()):
        differences = torch.stack(ours[place])[:, None] - torch.stack(theirs[place])[None]
        near = (differences > -_SMALL) & (differences < _SMALL)
        if bool((near.double().mean(-1) > _NEAR).any()):
            yield f"{_place_words(place)}: messages of two sessions differ by small numbers"


def opened_sums(messages: Iterable[ViewEntry], holders: int) -> list[Tensor]:
    """The values that a sealed job opened: sums of ``MASKED_WIRE`` shares of one tag that ``holders`` sent."""
    parts: dict[object, dict[PartyId, Tensor]] = {}
    for seen in messages:
        if seen.tag.kind == Kind.MASKED_WIRE and SERVER not in (seen.sender, seen.receiver):
            parts.setdefault(seen.tag, {})[seen.sender] = seen.tensor()
    whole = [list(found.values()) for found in parts.values() if len(found) == holders]
    return [sum(found[1:], start=found[0]) for found in whole]


def _repeated_low_bits(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Iterator[str]:
    """Report rows that a sealed job opened with the same low bits in two sessions."""
    if rows := low_bits_in_common(*([each for each in some if each.dim() == 2] for some in (ours, theirs))):
        yield f"MASKED_WIRE: {len(rows)} rows are opened with the same low bits in two sessions"


def low_bits_in_common(before: Iterable[Tensor], later: Sequence[Tensor]) -> set[int]:
    """Numbers of the rows in which openings [rows, d] int64 of two sessions agree in 16 low bits; −1: in all rows."""
    found = set[int]()
    for one in before:
        for other in (each for each in later if each.shape == one.shape and each.shape[1] > 1):
            equal = ((one - other) & (1 << 16) - 1 == 0).all(1)
            found |= {-1} if bool(equal.all()) else set(torch.nonzero(equal)[:, 0].tolist())
    return found


def _averaging_sums(session: Session, holders: Sequence[PartyId]) -> tuple[list[Tensor], list[tuple[PartyId, Tensor]]]:
    """The sums that averaging opened, from holders' notes and lists of survivors; and every holder's notes."""
    noted: dict[int, dict[PartyId, Tensor]] = defaultdict(dict)
    for seen in session.noted:
        if seen.tag.kind == Kind.MASKED and seen.tag.round == 0:
            noted[seen.tag.step][seen.sender] = seen.tensor()
    totals = dict[int, Tensor]()
    for seen in session.received:
        if (seen.tag.kind, seen.tag.round, seen.shape) == (Kind.CONTROL, 1, (len(holders),)):
            counted = [holder for holder, one in zip(holders, seen.tensor().tolist(), strict=True) if one]
            values = [noted[seen.tag.step][holder] for holder in counted if holder in noted[seen.tag.step]]
            if values and len(values) == len(counted):
                totals[seen.tag.step] = sum(values[1:], start=values[0])
    return list(totals.values()), [(holder, each) for some in noted.values() for holder, each in some.items()]


def _exposing_sums(ours: Any, theirs: Any) -> Iterator[str]:  # noqa: ANN401 - of ``_averaging_sums``
    """Report holders whose values are the difference of two sums of averaging, in one session or two."""
    for holder in sorted(exposed_holders(ours[0], theirs[0], [*ours[1], *theirs[1]])):
        yield f"MASKED: two sums differ by the values of {holder}"


def exposed_holders(
    sums: Iterable[Tensor], others: Sequence[Tensor], candidates: Iterable[tuple[PartyId, Tensor]]
) -> set[PartyId]:
    """Holders with a nonzero candidate that, with either sign, is a sum minus one of ``others`` exactly."""
    wanted = {
        (tuple(values.shape), each.contiguous().numpy().tobytes()): holder
        for holder, values in candidates
        if bool(values.any())
        for each in (values, -values)
    }
    pairs = ((one, other) for one in sums for other in others if one.shape == other.shape)
    found = (wanted.get((tuple(one.shape), (one - other).numpy().tobytes())) for one, other in pairs)
    return {holder for holder in found if holder is not None}


def _released_matrix(seen: ViewEntry) -> Tensor | None:
    of_holder = seen.tag.kind in RELEASES and seen.sender != SERVER
    return seen.tensor() if of_holder and len(seen.shape) == 2 else None


def _partly_kept_noise(ours: _ByPlace, theirs: _ByPlace) -> Iterator[str]:
    """Report noisy releases of which two sessions share some rows: the noise must be the same in all, or in none."""
    for place in sorted(ours.keys() & theirs.keys()):
        for some, again in product(ours[place], theirs[place]):
            if torch.equal(some, again) or not some.is_floating_point():
                continue
            same = (some == again).all(1) & some.any(1)
            if bool(same.any()):
                yield f"{_place_words(place)}: {int(same.sum())} rows of a release are the same, and others are not"


def _place_words(place: Place) -> str:
    kind, sender, receiver, shape = place
    return f"{kind.name} from {sender} to {receiver}, {' x '.join(map(str, shape))}"
