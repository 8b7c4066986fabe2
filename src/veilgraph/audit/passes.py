"""What a party has of every node in each pass, out of one message or the sum of several, read when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, overload

import numpy as np
import torch
from torch import Tensor

from veilgraph.audit.roc import Floats
from veilgraph.audit.view import View
from veilgraph.core.types import Kind, PartyId
from veilgraph.link.view import Seen

_UNIT: Final = 2.0**40
"""Of opened sums; how many of their bits are fractional does not matter to an attack."""

_MOST_NUMBERS: Final = 1 << 26
"""That weights are computed from, as float32 a quarter of a gigabyte."""


class Passes(Sequence[Floats]):
    """A matrix [N, d] float64 for each of some passes, oldest first, read when it is asked for.

    Args:
        pieces: the messages of each pass; those of several parties are added up, int64 mod 2^64.
        less: of each pass, what is taken off again; none by default.
    """

    def __init__(self, pieces: Sequence[tuple[Seen, ...]] = (), less: Sequence[tuple[Seen, ...]] = ()) -> None:
        self.pieces = tuple(pieces)
        self._less = tuple(less) or ((),) * len(self.pieces)

    def __len__(self) -> int:
        return len(self.pieces)

    @overload
    def __getitem__(self, place: int) -> Floats: ...
    @overload
    def __getitem__(self, place: slice) -> Passes: ...
    def __getitem__(self, place: int | slice) -> Floats | Passes:
        if isinstance(place, slice):
            return Passes(self.pieces[place], self._less[place])
        first, *others = (seen.tensor() for seen in self.pieces[place])
        for other in others:
            first += other
        for seen in self._less[place]:
            first -= seen.tensor()
        return numbers(first / _UNIT if first.dtype == torch.int64 else first)


def together(view: View, kind: Kind, round_: int, senders: Sequence[PartyId]) -> Passes:
    """The messages of one round, of all senders at a time; what the party sent itself is the same to all holders.

    A pass that not all of them are there of, where a view was cut off, is left out.
    """
    parts = [
        {
            (seen.session, seen.tag): seen
            for seen in (
                view.sent(kind, view.others[0], round_) if sender == view.party else view.received(kind, sender, round_)
            )
        }
        for sender in senders
    ]
    return Passes([tuple(part[tag] for part in parts) for tag in parts[0] if all(tag in part for part in parts)])


def less_own(passes: Passes, views: Sequence[View]) -> Passes:
    """What is left of opened sums once some parties have taken off what they put in themselves.

    Args:
        passes: as ``together`` found them.
        views: of these parties; passes of which one has not noted its own part are left out.
    """
    own = [{(seen.session, seen.tag): seen for seen in view.own} for view in views]
    keys = [(pieces[0].session, pieces[0].tag) for pieces in passes.pieces]
    there = [place for place, key in enumerate(keys) if all(key in notes for notes in own)]
    return Passes(
        [passes.pieces[place] for place in there], [tuple(notes[keys[place]] for notes in own) for place in there]
    )


def mean(passes: Sequence[Floats]) -> Floats:
    """Of all passes: what is the same in them stays, and noise drawn anew for each cancels."""
    total = np.array(passes[0])
    for place in range(1, len(passes)):
        total += passes[place]
    return np.asarray(total / len(passes))


def matched(passes: Sequence[Floats]) -> Floats:
    """All passes, each weighed by how much of it the others share: a matched filter.

    Noise of two passes has nothing in common, so that the correlations of different passes are those of what is behind
    the noise; their first eigenvector tells how much of that there is in each pass, and with which sign. Passes
    that are weak, or of another beginning, count for little.

    Args:
        passes: [N, d] each, at least 2; read one at a time, from many nodes a part of the rows for the weights.
    """
    rows = len(passes[0])
    kept = min(rows, max(1, _MOST_NUMBERS // (len(passes) * passes[0].shape[1])))
    chosen = np.sort(np.random.default_rng(0).choice(rows, size=kept, replace=False))
    flat = np.stack([passes[place][chosen].ravel().astype(np.float32) for place in range(len(passes))])
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    lengths[lengths == 0] = 1
    flat /= lengths  # or a pass with more noise than others would outweigh them
    weights = np.linalg.eigh((flat @ flat.T).astype(np.float64))[1][:, -1] / lengths[:, 0]
    weights *= np.sign(weights.sum()) or 1.0
    total = weights[0] * passes[0]
    for place in range(1, len(passes)):
        total += weights[place] * passes[place]
    return np.asarray(total)


def numbers(values: Tensor) -> Floats:
    """Any values as float64."""
    return np.asarray(values.detach().to(torch.float64).numpy())
