"""A party's view of a run: its own data, the job, and all messages that it sent or received. Nothing else.

An attack is given a view and not the run, so that it cannot use what its adversary does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

from torch import Tensor

from veilgraph.core.errors import DataError, RunError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.core.wording import argument
from veilgraph.graph.party import PartyGraph, load_party
from veilgraph.link.view import Seen, read_view
from veilgraph.protocol.job import JobSettings
from veilgraph.run.predictions import load_predictions
from veilgraph.run.run_directory import PartyStore, RunDirectory

_READ_ANEW: Final = frozenset({(Kind.ID_TOKENS, 0), (Kind.COMMON_IDS, 0), (Kind.HELLO, 3)})
"""Kinds and rounds of the messages with which parties agree on the rows of their tables."""


@dataclass(frozen=True, eq=False)
class View:
    """What an honest-but-curious party could keep.

    Attributes:
        party: whose.
        settings: of the job, which all parties know.
        messages: in the order in which it sent or received them, over all sessions of the run.
        graph: its own data; None at the server.
        own: what it computed and hid in what it sent, in the same order; ``messages`` has none of it.
        works: what each session was for: ``align``, ``train``, ``resume`` or ``predict``.
        predicted: reads what it was told of every common node, where it scores; see ``predictions_of``.
    """

    party: PartyId
    settings: JobSettings
    messages: tuple[Seen, ...]
    own: tuple[Seen, ...]
    graph: PartyGraph | None
    works: tuple[str, ...]
    predicted: Callable[[], Tensor] | None = None

    @cached_property
    def of_training(self) -> View:
        """The part in which row v is that of the party's data.

        Predictions from tables, and sessions before the tables were last read anew, may have other nodes, in another
        order. Predictions of graphs are of the same rows, and what is released for them counts.
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

    def received(self, kind: Kind, sender: PartyId, round_: int | None = None) -> list[Seen]:
        """What came from one party under a kind of tag, of one round or of all, oldest first."""
        return list(self._matching(kind, sender, self.party, round_))

    def sent(self, kind: Kind, receiver: PartyId, round_: int | None = None) -> list[Seen]:
        """What it sent to one party."""
        return list(self._matching(kind, self.party, receiver, round_))

    def _matching(self, kind: Kind, sender: PartyId, receiver: PartyId, round_: int | None) -> Iterator[Seen]:
        for seen in self.messages:
            if (seen.sender, seen.receiver, seen.tag.kind) == (sender, receiver, kind) and (
                round_ is None or seen.tag.round == round_
            ):
                yield seen


def load_view(run: RunDirectory, party: PartyId) -> View:
    """Reads a party's view; of the run's files only the job's and the party's own are opened.

    Raises:
        RunError: no view of the party was recorded, or it cannot be read.
    """
    files = run.party(party).views() if run.party_path(party).is_dir() else []
    if not files:
        raise RunError(
            f"{run.path} has no recorded view of {party}; train the job again with {argument('record_views', 'True')}"
        )
    everything = [seen for number, path in enumerate(files) for seen in read_view(path, number)]
    own = tuple(seen for seen in everything if seen.sender == seen.receiver)
    messages = tuple(seen for seen in everything if seen.sender != seen.receiver)
    if not messages:
        raise RunError(f"{run.path}: the view of {party} has no message; record it again")
    graph = None if party == SERVER else load_party(run.party(party).graph_path)
    works = tuple(path.stem.partition("-")[2] for path in files)
    predicted = partial(predictions_of, run.party(party)) if party in run.settings.scoring else None
    return View(party, run.settings, messages, own, graph, works, predicted)


def predictions_of(store: PartyStore) -> Tensor:
    """The newest predictions of a holder, in the order of its data's rows: tables may have changed since.

    Raises:
        RunError: there are none.
        DataError: they are about other nodes.
    """
    found, ids = load_predictions(store), store.ids()
    if found.keys or not found.probabilities.shape[1]:
        raise DataError("the predictions are no probabilities of nodes' classes, which attacks on predictions read")
    if found.compared is None or ids is None:
        return found.uncalibrated
    places, common = {name: row for row, name in enumerate(found.compared)}, ids[: load_party(store.graph_path).common]
    missing = sum(name not in places for name in common)
    if missing:
        raise DataError(f"the newest predictions lack {missing} of the {len(common)} nodes that the run was trained on")
    return found.uncalibrated[[places[name] for name in common]]
