"""Messages of a sealed job that must say nothing: words under masks, and sums of them that all open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.audit.attacks.ciphertexts import Ciphertext, chosen_words, sharing_low_bits
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.roc import Floats
from veilgraph.audit.sources.sealed_orders import is_of_edges, nodes_of, slots_of
from veilgraph.audit.view import View
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import Seen
from veilgraph.paradigms.sealed.settings import sealed
from veilgraph.protocol.revealed import rows_of

_EVERYBODYS: Final = frozenset({Kind.MASKED_WIRE, Kind.MASKED_BITS})
"""Kinds of which all other holders are sent the same."""
_WORDS: Final = (*_EVERYBODYS, Kind.MASKED_ROWS, Kind.MASK_SHARE)
_MOST: Final = 48
"""Messages of a kind, round and shape that are read, of all sessions together."""
_MOST_MATRICES: Final = 8
_COLUMNS: Final = 32
_WIDTH: Final = 2

Pieces = tuple[Seen, ...]


def noise_from(views: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """What some holders get from each of the others, what the dealer gave them, and what everybody's parts add up to.

    Args:
        views: of the holders.
        outside: the others.
    """
    first = views[0]
    for sender in outside:
        for kind in _WORDS:
            seen = [(each,) for each in _received(views, kind, sender)]
            yield from _noise(first, f"{_what(views, kind, sender)} from {sender}", (sender,), seen)
        weights = [each for each in first.received(Kind.PLACEMENT, sender) if is_of_edges(first, each)]
        if sealed(first.settings).model.edge_weights and weights:
            yield from _noise(
                first, f"edge weights under masks from {sender}", (sender,), [(each,) for each in weights]
            )
    dealt = [(each,) for view in views for each in view.received(Kind.CORRELATION, SERVER)]
    yield from _noise(first, "what the dealer corrects", tuple(outside), dealt)
    for kind in (Kind.MASKED_WIRE, Kind.MASKED_BITS):
        opened = [pieces for _, pieces in _opened(first, kind)]
        yield from _noise(first, f"{_OPENED[kind]}, added up", tuple(outside), opened)


_OPENED: Final = {Kind.MASKED_WIRE: "what all holders open under masks", Kind.MASKED_BITS: "bits that they open"}


def _received(views: Sequence[View], kind: Kind, sender: PartyId) -> Iterator[Seen]:
    """What several holders were sent, side by side what should be the same."""
    some = [{(seen.session, seen.tag): seen for seen in view.received(kind, sender)} for view in views]
    for key in dict.fromkeys(key for one in some for key in one):
        yield from (one[key] for one in some if key in one)


def _what(views: Sequence[View], kind: Kind, sender: PartyId) -> str:
    rows = (row for view in views for row in rows_of(view.settings, sender, view.party))
    return next((row.what for row in rows if row.kind is kind), kind.name)


def _noise(view: View, words: str, about: tuple[PartyId, ...], found: Sequence[Pieces]) -> Iterator[Evidence]:
    if found:
        read = partial(_read, view, found)
        messages = tuple(seen for pieces in found for seen in pieces)
        yield Evidence("noise", words, about, permitted=False, noise=read, messages=messages)


def _read(view: View, found: Sequence[Pieces]) -> list[Ciphertext]:
    """Some of each shape: the first and the last of every session, and what two sessions have in common."""
    groups: dict[tuple[object, ...], dict[int, list[Pieces]]] = {}
    for pieces in found:
        seen = pieces[0]
        key = seen.tag.kind, seen.tag.round, seen.shape
        groups.setdefault(key, {}).setdefault(seen.session, []).append(pieces)
    chosen = list[Pieces]()
    for sessions in groups.values():
        half, common = max(1, _MOST // (2 * len(sessions))), _in_common(view, sessions)
        for number, some in sessions.items():
            places = {*range(min(half, len(some))), *range(max(0, len(some) - half), len(some)), *common[number]}
            chosen += [some[place] for place in sorted(places)]
    read = [(pieces[0], _ciphertext(view, pieces)) for pieces in chosen]
    return [each for place, (_, each) in enumerate(read) if not place or not _is_repeated(*read[place - 1 : place + 1])]


def _in_common(view: View, sessions: Mapping[int, Sequence[Pieces]]) -> dict[int, set[int]]:
    """Session → places of its messages that share low bits with one of another session."""
    found: dict[int, set[int]] = {number: set() for number in sessions}
    if len(sessions) > 1:
        read = {n: [_ciphertext(view, pieces).words for pieces in some[:_MOST]] for n, some in sessions.items()}
        for one, other in combinations(sessions, 2):
            for number, places in zip((one, other), sharing_low_bits(read[one], read[other]), strict=True):
                found[number] |= places
    return found


def _is_repeated(before: tuple[Seen, Ciphertext], after: tuple[Seen, Ciphertext]) -> bool:
    """Whether two holders were sent the same, as they should, of what is for everybody."""
    (one, first), (other, second) = before, after
    same = (one.sender, one.session, one.tag) == (other.sender, other.session, other.tag)
    return same and one.tag.kind in _EVERYBODYS and np.array_equal(first.words, second.words)


def _ciphertext(view: View, pieces: Pieces) -> Ciphertext:
    first = pieces[0]
    words, bitwise = _summed(pieces), first.tag.kind is Kind.MASKED_BITS
    if first.tag.kind is Kind.CORRELATION:
        words = words.view(torch.int64)
    if first.tag.kind is Kind.PLACEMENT:
        words = words[2 * slots_of(view, first) + nodes_of(view) :]
    width = first.shape[-1] if len(first.shape) == _WIDTH else 1
    return Ciphertext(chosen_words(words.numpy()), width, bitwise)


def _summed(pieces: Pieces) -> Tensor:
    total, *others = (seen.tensor() for seen in pieces)
    for other in others:
        total = total ^ other if pieces[0].tag.kind is Kind.MASKED_BITS else total + other
    return total


def _opened(view: View, kind: Kind) -> Iterator[tuple[Seen, Pieces]]:
    """Messages of one tag that all holders sent each other, whose sum is what they open."""
    parts = [
        {(seen.session, seen.tag): seen for seen in some}
        for some in (view.sent(kind, view.others[0]), *(view.received(kind, other) for other in view.others))
    ]
    for key, seen in parts[0].items():
        pieces = tuple(part[key] for part in parts if key in part)
        if len(pieces) == len(parts):
            yield seen, pieces


def rows_under_masks(views: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """What is put in or opened of every node under masks, side by side: for attacks that must find nothing."""
    view = views[0]
    opened = [pieces for _, pieces in _opened(view, Kind.MASKED_WIRE)]
    tags = {(pieces[0].session, pieces[0].tag) for pieces in opened}
    for sender in outside:
        put = [(seen,) for seen in view.received(Kind.MASKED_WIRE, sender) if (seen.session, seen.tag) not in tags]
        yield from _rows(view, put, f"what {sender} puts in under masks", (sender,))
    yield from _rows(view, opened, "what all holders open under masks", tuple(outside))


def _rows(view: View, found: Sequence[Pieces], words: str, about: tuple[PartyId, ...]) -> Iterator[Evidence]:
    nodes = nodes_of(view)
    of_nodes = [pieces for pieces in found if len(pieces[0].shape) == _WIDTH and pieces[0].shape[0] == nodes]
    if of_nodes:
        chosen = [*of_nodes[: _MOST_MATRICES // 2], *of_nodes[_MOST_MATRICES // 2 :][-_MOST_MATRICES // 2 :]]
        yield Evidence(
            "masked",
            words,
            about,
            permitted=False,
            rows=np.concatenate([_some_columns(_summed(pieces)) for pieces in chosen], axis=1),
            messages=tuple(seen for pieces in chosen for seen in pieces),
        )


def _some_columns(words: Tensor) -> Floats:
    """In standard deviations: a column without a mask is as large as one with."""
    places = np.unique(np.linspace(0, words.shape[1] - 1, _COLUMNS).astype(int))
    columns = words.numpy()[:, places].astype(np.float64)
    spread = columns.std(axis=0)
    return np.asarray((columns - columns.mean(axis=0)) / np.where(spread, spread, 1))
