"""What a party of a run saw: its own data, the job, and all messages that it sent or received. Nothing else.

Whoever reads a view is not given the run, so that an attack cannot use what its adversary does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.types import Kind, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import ViewEntry
from veilgraph.protocol.job import JobSettings

Floats: TypeAlias = NDArray[np.float64]

# Kinds and rounds of the messages with which parties agree on the rows of their tables.
_READ_ANEW: Final = frozenset({(Kind.ID_TOKENS, 0), (Kind.COMMON_IDS, 0), (Kind.HELLO, 3)})
_UNIT: Final = 2.0**40  # of opened sums; how many of their bits are fractional does not matter to an attack


@dataclass(frozen=True, eq=False)
class View:
    """What an honest-but-curious party could keep.

    Attributes:
        messages: in the order in which it sent or received them, over all sessions of the run.
        graph: its own data; None at the server.
        own: what it computed and hid in what it sent, in the same order; ``messages`` has none of it.
        works: what each session was for: ``align``, ``train``, ``resume`` or ``predict``.
        predicted: reads what it was told of every common node, where it scores.
        ids: of its graph's rows; None where they have none.
    """

    party: PartyId
    settings: JobSettings
    messages: tuple[ViewEntry, ...]
    own: tuple[ViewEntry, ...]
    graph: PartyGraph | None
    works: tuple[str, ...]
    predicted: Callable[[], Tensor] | None = None
    ids: Sequence[str] | None = None

    @cached_property
    def of_training(self) -> View:
        """The part in which row v is that of the party's data.

        Predictions from tables, and sessions before tables were last read anew, may have other nodes, in another order.
        """
        anew = self.settings.data.from_tables
        trained = {number for number, work in enumerate(self.works) if not (anew and work == "predict")}
        read = {seen.session for seen in self.messages if (seen.tag.kind, seen.tag.round) in _READ_ANEW} & trained
        kept = {number for number in trained if number >= max(read, default=0)}
        messages, own = (tuple(each for each in some if each.session in kept) for some in (self.messages, self.own))
        return replace(self, messages=messages, own=own)

    @cached_property
    def others(self) -> tuple[PartyId, ...]:
        """The other holders."""
        return tuple(name for name in self.settings.data.names if name != self.party)

    def received(self, kind: Kind, sender: PartyId, round_: int | None = None) -> list[ViewEntry]:
        """What came from one party under a kind of tag, of one round or of all, oldest first."""
        return self._matching(kind, sender, self.party, round_)

    def sent(self, kind: Kind, receiver: PartyId, round_: int | None = None) -> list[ViewEntry]:
        """What it sent to one party under a kind of tag, of one round or of all, oldest first."""
        return self._matching(kind, self.party, receiver, round_)

    def noted(self, kind: Kind, round_: int | None = None) -> list[ViewEntry]:
        """What it hid in what it sent, from ``own``: entries of a kind of tag, of one round or of all."""
        return [seen for seen in self.own if seen.tag.kind is kind and round_ in (None, seen.tag.round)]

    def rounds(self, kind: Kind, sender: PartyId) -> list[int]:
        """Rounds, but 0, of the messages of a kind that came from a party."""
        return sorted({seen.tag.round for seen in self.received(kind, sender)} - {0})

    def _matching(self, kind: Kind, sender: PartyId, receiver: PartyId, round_: int | None) -> list[ViewEntry]:
        return [
            seen
            for seen in self.messages
            if (seen.sender, seen.receiver, seen.tag.kind) == (sender, receiver, kind)
            and round_ in (None, seen.tag.round)
        ]


class Observations(Sequence[Floats]):
    """A matrix [N, d] float64 for each of some passes, oldest first, read when it is asked for.

    Each adds up ``pieces``, messages of several parties, int64 mod 2^64, and takes off ``less``.
    """

    def __init__(
        self, pieces: Sequence[tuple[ViewEntry, ...]] = (), less: Sequence[tuple[ViewEntry, ...]] = ()
    ) -> None:
        self.pieces = tuple(pieces)
        self._less = tuple(less) or ((),) * len(self.pieces)

    def __len__(self) -> int:
        return len(self.pieces)

    @overload
    def __getitem__(self, place: int) -> Floats: ...
    @overload
    def __getitem__(self, place: slice) -> Observations: ...
    def __getitem__(self, place: int | slice) -> Floats | Observations:
        if isinstance(place, slice):
            return Observations(self.pieces[place], self._less[place])
        first, *others = (seen.tensor() for seen in self.pieces[place])
        for other in others:
            first += other
        for seen in self._less[place]:
            first -= seen.tensor()
        return numbers(first / _UNIT if first.dtype == torch.int64 else first)

    @property
    def messages(self) -> tuple[ViewEntry, ...]:
        """The messages of all passes, those in ``less`` left out."""
        return tuple(seen for pieces in self.pieces for seen in pieces)


def aggregate(view: View, kind: Kind, round_: int, senders: Sequence[PartyId]) -> Observations:
    """Return the sums of the senders' messages of one kind and round, in passes where all of them are there.

    What the party sent itself is the same to all holders.
    """
    found = [
        view.sent(kind, view.others[0], round_) if sender == view.party else view.received(kind, sender, round_)
        for sender in senders
    ]
    parts = [{(seen.session, seen.tag): seen for seen in some} for some in found]
    return Observations([tuple(part[tag] for part in parts) for tag in parts[0] if all(tag in part for part in parts)])


def subtract_own(passes: Observations, views: Sequence[View]) -> Observations:
    """Subtract from opened sums the views' own parts, in passes where all of them have noted theirs."""
    own = [{(seen.session, seen.tag): seen for seen in view.own} for view in views]
    keys = [(pieces[0].session, pieces[0].tag) for pieces in passes.pieces]
    there = [place for place, key in enumerate(keys) if all(key in notes for notes in own)]
    return Observations(
        [passes.pieces[place] for place in there], [tuple(notes[keys[place]] for notes in own) for place in there]
    )


def mean(passes: Sequence[Floats]) -> Floats:
    """Mean of all passes, [N, d]: what is the same in them stays, and noise drawn anew for each cancels."""
    total = np.array(passes[0])
    for place in range(1, len(passes)):
        total += passes[place]
    return np.asarray(total / len(passes))


def numbers(values: Tensor) -> Floats:
    """Return a tensor's values as a float64 array."""
    return np.asarray(values.detach().to(torch.float64).numpy())
