"""Two sessions or more held against each other: what one reveals of a session only because another was recorded.

What is drawn in a session must differ in the next. These comparisons need no truth but holders' own notes of what they
put into sums. ``tests/pairs`` makes them over random pairs of sessions of every paradigm.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, combinations_with_replacement
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.arguments import argument
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import Seen, read_view
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.runtime.store.run_directory import RunDirectory


def _kinds(names: str) -> frozenset[Kind]:
    return frozenset(Kind[name] for name in names.split())


_REPEATS: Final = _kinds(
    "HELLO CONTROL COMMON_IDS COMBINED GRADIENT EMBEDDING PERTURBED_FEATURES PERTURBED_LABELS AVERAGED ROW_ORDER "
    "COLUMN_HASHES COLUMNS READY NODE_PLACES"
)
"""Of what is in the clear, or is a release: the same again where the same values are sent again. Others are drawn."""
_RING: Final = _kinds(
    "MASKED MASKED_GRADIENT MASKED_OPERAND STATIC_DIFFERENCE SHARE CORRELATION MASKED_WIRE MASKED_ROWS MASK_SHARE"
)
"""Of which every word is uniform."""
RELEASES: Final = (Kind.EMBEDDING, Kind.PERTURBED_FEATURES, Kind.PERTURBED_LABELS)
_NODE_KEY: Final = 32
"""Bytes of the key. Behind it is the seed of the shared weights, which is that of the run."""
_BLOCK, _HEAD, _SMALL, _FEWEST = 16, 24, 1 << 36, 4
_NEAR: Final = 0.25
"""Share of small differences from which on two messages are under one mask; of uniform words 2^-27 are small."""
_LOW_BITS: Final = (1 << 16) - 1

Found = TypeVar("Found")
Place = tuple[Kind, PartyId, PartyId, tuple[int, ...]]


@dataclass(frozen=True)
class Session:
    """What all parties of one session received from others, and noted of what they hid in what they sent."""

    name: str
    received: tuple[Seen, ...]
    noted: tuple[Seen, ...]


@dataclass(frozen=True)
class Repetition:
    """Something that two sessions, by name, have in common and should not."""

    sessions: tuple[str, str]
    what: str

    def __str__(self) -> str:
        return f"{' and '.join(self.sessions)}: {self.what}"


def audit_beside(paths: Sequence[Path]) -> tuple[list[Session], list[Repetition]]:
    """Holds all sessions of runs against each other; returns the sessions, and what is against the claims.

    The runs are of the same parties, whole or an organisation's own parts, with recorded views.

    Raises:
        ConfigError: the runs are of different parties, or there are no two sessions.
        RunError: a run has no view.
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
    sessions = recorded(runs)
    if len(sessions) < 2:
        raise ConfigError(
            f"--beside={paths[-1]}: there is one recorded session alone, and two are compared; give another run",
            key="--beside",
        )
    return sessions, list(repetitions(sessions, [run.settings for run in runs]))


def recorded(runs: Iterable[RunDirectory]) -> list[Session]:
    """The sessions of runs, oldest first; one that a copied run has as well is read once."""
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


def repetitions(sessions: Sequence[Session], jobs: Sequence[JobSettings]) -> Iterator[Repetition]:
    """All that sessions of jobs of the same parties have in common, and should not."""
    holders = jobs[0].data.names
    yield from repeated_blocks(sessions)
    yield from small_differences(sessions)
    yield from repeated_low_bits(sessions, len(holders))
    yield from exposing_sums(sessions, holders)
    yield from kept_noise(sessions, [job.privacy for job in jobs if adds_noise(job)])


def octets(seen: Seen) -> NDArray[np.uint8]:
    """What was sent, as bytes."""
    return np.asarray(seen.tensor().contiguous().view(-1).view(torch.uint8).numpy())


def _pairs(
    sessions: Sequence[Session], read: Callable[[Session], Found]
) -> Iterator[tuple[Session, Session, Found, Found]]:
    """Every two sessions, and what was read of each once."""
    for (one, ours), (other, theirs) in combinations([(session, read(session)) for session in sessions], 2):
        yield one, other, ours, theirs


def repeated_blocks(sessions: Sequence[Session]) -> Iterator[Repetition]:
    """Sixteen bytes that two sessions share, of a kind that is drawn anew in each."""
    for one, other, ours, theirs in _pairs(sessions, _blocks):
        for kind in sorted(ours.keys() & theirs.keys()):
            if common := len(ours[kind] & theirs[kind]):
                yield _said(one, other, f"{kind.name}: two sessions have {common} blocks in common")


def _blocks(session: Session) -> Mapping[Kind, set[bytes]]:
    found: dict[Kind, set[bytes]] = defaultdict(set)
    for seen in session.received:
        if seen.tag.kind not in _REPEATS and 0 not in seen.shape:
            whole = octets(seen)[: _NODE_KEY if seen.tag.kind == Kind.NODE_KEY else None].tobytes()
            size = _BLOCK * (4 if seen.tag.kind == Kind.PLACEMENT else 1)  # two of few places meet by chance, not eight
            last = len(whole) // size * size
            found[seen.tag.kind] |= {whole[at : at + size] for at in range(0, last, size)}
    return {kind: {one for one in some if len(set(one)) > _FEWEST} for kind, some in found.items()}


def small_differences(sessions: Sequence[Session]) -> Iterator[Repetition]:
    """Words under one mask: their difference is that of two plaintexts, and small in the ring."""
    for one, other, ours, theirs in _pairs(sessions, partial(_tensors, wanted=_head)):
        for place in sorted(ours.keys() & theirs.keys()):
            differences = torch.stack(ours[place])[:, None] - torch.stack(theirs[place])[None]
            near = (differences > -_SMALL) & (differences < _SMALL)
            if bool((near.double().mean(-1) > _NEAR).any()):
                yield _said(one, other, f"{_words(place)}: messages of two sessions differ by small numbers")


def _head(seen: Seen) -> Tensor | None:
    if seen.tag.kind not in _RING or np.prod(seen.shape) < _FEWEST or (tensor := seen.tensor()).dtype != torch.int64:
        return None
    return tensor.reshape(-1)[:_HEAD]


def _tensors(session: Session, wanted: Callable[[Seen], Tensor | None]) -> Mapping[Place, list[Tensor]]:
    """What is wanted of the messages received, by their place."""
    found: dict[Place, list[Tensor]] = defaultdict(list)
    for seen in session.received:
        if (tensor := wanted(seen)) is not None:
            found[seen.tag.kind, seen.sender, seen.receiver, seen.shape].append(tensor)
    return found


def opened(messages: Iterable[Seen], holders: int) -> list[Tensor]:
    """What all holders of a sealed job opened together, as the sum of their messages."""
    parts: dict[object, dict[PartyId, Tensor]] = {}
    for seen in messages:
        if seen.tag.kind == Kind.MASKED_WIRE and SERVER not in (seen.sender, seen.receiver):
            parts.setdefault(seen.tag, {})[seen.sender] = seen.tensor()
    whole = [list(found.values()) for found in parts.values() if len(found) == holders]
    return [sum(found[1:], start=found[0]) for found in whole]


def repeated_low_bits(sessions: Sequence[Session], holders: int) -> Iterator[Repetition]:
    """Sealed: nothing is opened twice with the same low bits."""
    rows_of = lambda session: [each for each in opened(session.received, holders) if each.dim() == 2]  # noqa: E731
    for one, other, ours, theirs in _pairs(sessions, rows_of):
        if rows := low_bits_in_common(ours, theirs):
            yield _said(one, other, f"MASKED_WIRE: {len(rows)} rows are opened with the same low bits in two sessions")


def low_bits_in_common(before: Iterable[Tensor], later: Sequence[Tensor]) -> set[int]:
    """The rows in which an opening has the same low bits as one of another session; −1 in place of all of one.

    All are int64 [rows, d].
    """
    found = set[int]()
    for one in before:
        for other in (each for each in later if each.shape == one.shape and each.shape[1] > 1):
            equal = ((one - other) & _LOW_BITS == 0).all(1)
            found |= {-1} if bool(equal.all()) else set(torch.nonzero(equal)[:, 0].tolist())
    return found


def exposing_sums(sessions: Sequence[Session], holders: Sequence[PartyId]) -> Iterator[Repetition]:
    """Averaging: no two sums differ by one holder's values, in one session or two."""
    summed = [(session, *_sums(session, holders)) for session in sessions]
    for (one, ours, values), (other, theirs, more) in combinations_with_replacement(summed, 2):
        for holder in sorted(told_by(ours, theirs, [*values, *more])):
            yield _said(one, other, f"MASKED: two sums differ by the values of {holder}")


def _sums(session: Session, holders: Sequence[PartyId]) -> tuple[list[Tensor], list[tuple[PartyId, Tensor]]]:
    """What was opened, from holders' own notes of what they put in and what they heard of the survivors."""
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


def told_by(
    sums: Iterable[Tensor], others: Sequence[Tensor], candidates: Iterable[tuple[PartyId, Tensor]]
) -> set[PartyId]:
    """The holders of whom a sum differs from one of the others by exactly a candidate, which is not all zeros."""
    wanted = {
        (tuple(values.shape), each.contiguous().numpy().tobytes()): holder
        for holder, values in candidates
        if bool(values.any())
        for each in (values, -values)
    }
    pairs = ((one, other) for one in sums for other in others if one.shape == other.shape)
    found = (wanted.get((tuple(one.shape), (one - other).numpy().tobytes())) for one, other in pairs)
    return {holder for holder in found if holder is not None}


def kept_noise(sessions: Sequence[Session], noises: Sequence[object]) -> Iterator[Repetition]:
    """A release is sent again whole, to the bit, or drawn anew in every row; ``noises``: of jobs that add noise."""
    if not noises:
        return
    stated = [[getattr(noise, name, None) or 0.0 for name in ("clip", "noise_multiplier")] for noise in noises]
    deviation = min(clip * multiplier for clip, multiplier in stated)
    kinds = RELEASES[1:] if None in noises else RELEASES  # without ``privacy`` embeddings are in the clear

    def released(seen: Seen) -> Tensor | None:
        of_holder = seen.tag.kind in kinds and seen.sender != SERVER
        return seen.tensor() if of_holder and len(seen.shape) == 2 else None

    for one, other, ours, theirs in _pairs(sessions, partial(_tensors, wanted=released)):
        for place in sorted(ours.keys() & theirs.keys()):
            for some, again in ((some, again) for some in ours[place] for again in theirs[place]):
                if torch.equal(some, again) or not some.is_floating_point():
                    continue
                same = (some == again).all(1) & some.any(1)
                spread = float((some - again).double().pow(2).mean()) ** 0.5
                if bool(same.any()):
                    what = f"{int(same.sum())} rows of a release are the same, and others are not"
                    yield _said(one, other, f"{_words(place)}: {what}")
                elif spread < deviation:
                    what = f"two releases differ by {spread:.3g}, less than the noise of one"
                    yield _said(one, other, f"{_words(place)}: {what}")


def _words(place: Place) -> str:
    kind, sender, receiver, shape = place
    return f"{kind.name} from {sender} to {receiver}, {' x '.join(map(str, shape))}"


def _said(one: Session, other: Session, what: str) -> Repetition:
    return Repetition((one.name, other.name), what)
