"""What an averaging job's messages hold: noise, the model of all, and models of those that can be told apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from torch import Tensor
from typing_extensions import override

from veilgraph.audit.evidence import OPEN, Evidence, hidden_of
from veilgraph.audit.finding import coalition_of
from veilgraph.audit.source import Source
from veilgraph.audit.sources.averaging_models import (
    Update,
    asked_model,
    check_asked,
    is_attacked,
    newest_weights,
    updates_of_sums,
    updates_of_weights,
)
from veilgraph.audit.sources.averaging_noise import shares_at_holders, shares_at_server, values_under_masks
from veilgraph.audit.sources.averaging_sums import known_sums
from veilgraph.audit.view import View
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.averaging.baselines import OnePlace
from veilgraph.paradigms.averaging.rows import SCORES, TWO
from veilgraph.paradigms.averaging.settings import averaging
from veilgraph.protocol.job import JobSettings


class AveragingSource(Source):
    """Values under what is left of their masks, and models that weights and sums give."""

    reads_passes: ClassVar[bool] = False

    @override
    def hidden(self, view: View) -> list[Evidence]:
        found = list(hidden_of(view, but=[Kind.MASKED]))
        if view.party != SERVER:
            return [*found, *shares_at_holders([view], view.others)]
        return [*found, *_at_server(view, [], view.settings.data.names)]

    @override
    def evidence(self, view: View, trained: View) -> Iterator[Evidence]:
        weights = newest_weights(trained)
        if weights is None or not is_attacked(view.settings):
            return
        told = [seen for seen in trained.messages if seen.tag.kind is _told_by(view) and seen.receiver == view.party]
        about = tuple(name for name in view.settings.data.names if name != view.party)
        words = "the averaged weights after the newest round"
        yield Evidence("model", words, about, asked=asked_model(trained, weights), messages=tuple(told))
        if view.party != SERVER:
            yield from _models(trained, _single(trained))

    @override
    def joined(self, server: View | None, holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
        yield from shares_at_holders(holders, outside)
        if server is not None:
            yield from _at_server(server, holders, outside)
        if not is_attacked(holders[0].settings):
            what = f"weights and sums, without what {coalition_of([view.party for view in holders])} put in"
            yield Evidence(OPEN, what, tuple(outside))
            return
        updates = updates_of_weights(holders, outside) if server is None else updates_of_sums(server, holders, outside)
        yield from _models(holders[0], updates)
        if missing := [name for name in outside if not any(name in update.about for update in updates)]:
            what = "its part of averaged weights, of which there is none in what was recorded or none follows"
            yield Evidence(OPEN, what, tuple(missing))

    @override
    def unattacked(self, view: View) -> Sequence[tuple[str, str]]:
        if not is_attacked(view.settings):
            return ()
        told = []
        if averaging(view.settings).averaging.privacy is None:
            told.append((SCORES.name, "sums of losses, and of how many nodes of each class are taken for which"))
        if view.party != SERVER and averaging(view.settings).threshold <= _TWO and not _single(view.of_training):
            told.append((TWO.name, "averaged weights without its own part, in which no other's alone is left"))
        return told

    @override
    def posteriors(self, job: JobSettings, everything: PartyGraph, epochs: int) -> Tensor:
        own = averaging(job)
        check_asked(own)
        place = OnePlace(own, everything)
        for epoch in range(1, epochs + 1):
            place.train_step(epoch)
        return place.infer().double().softmax(dim=1)


_TWO: Final = 2


def _single(holder: View) -> list[Update]:
    """What a holder by itself knows of one other."""
    return updates_of_weights([holder], holder.others, most=1)


def _told_by(view: View) -> Kind:
    """What weights follow from: at the server sums of what it receives."""
    return Kind.MASKED if view.party == SERVER else Kind.AVERAGED


def _at_server(server: View, friends: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    yield from values_under_masks(known_sums(server, friends), [view.party for view in friends], outside)
    yield from shares_at_server(server, outside)


def _models(view: View, updates: Sequence[Update]) -> Iterator[Evidence]:
    for update in updates:
        whose = coalition_of(update.about)
        words = f"weights that {whose} alone made in a round, worked out of {update.words}"
        yield Evidence("model", words, update.about, asked=asked_model(view, update.weights))


AVERAGING: Final = AveragingSource()
