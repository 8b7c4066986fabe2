"""What several parties of a vertical job have together.

Whoever knows its own summand has the sum of the others' only; the dealer and a holder together have what the dealt
masks hide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from veilgraph.audit.evidence import Evidence, all_of, embeddings, gradients
from veilgraph.audit.passes import less_own, numbers, together
from veilgraph.audit.roc import Floats
from veilgraph.audit.view import View
from veilgraph.core.randomness import expand
from veilgraph.core.types import Kind, PartyId
from veilgraph.link.view import Seen
from veilgraph.mpc.dealer import Direction, operand_mask_name, static_mask_name
from veilgraph.paradigms.vertical.settings import vertical

_STEPS: Final = 50


def joined(server: View | None, holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """See ``Source.joined``."""
    yield from _first_layer_less_own(holders, outside)
    if server is not None:
        yield from (*_sums_less_own(server, holders, outside), *_unmasked(server, holders[0], outside))


def _sums_less_own(server: View, holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """Sums that the server opens, less what its friends put into them: of one holder left, that holder's rows."""
    settings = server.settings
    publishing = [view for view in holders if view.party in settings.publishing]
    about = tuple(party for party in settings.publishing if party in outside)
    if not settings.is_masked or not publishing or not about:
        return
    whose = "of the others" if len(about) > 1 else f"of {about[0]}"
    for round_ in range(1, vertical(settings).model.rounds + 1):
        left = less_own(together(server, Kind.MASKED, round_, settings.publishing), publishing)
        yield from embeddings(server, [left], f"the embeddings {whose} in round {round_}, the rest taken off", about)
    labelled = settings.data.label_party
    for round_ in range(1, vertical(settings).model.rounds):
        left = less_own(together(server, Kind.MASKED_GRADIENT, round_, settings.publishing), publishing)
        if labelled in outside:
            words = f"gradients {whose} of the combined embedding of round {round_}, the rest taken off,"
            yield from gradients(server, left, words, (labelled,))


def _first_layer_less_own(holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """``secure-sum``: h^0 less the friends' own parts, which are their features times weights that they know."""
    first = holders[0]
    if vertical(first.settings).model.initial.method != "secure-sum":
        return
    left = less_own(together(first, Kind.MASKED, 0, first.settings.data.names), holders)
    yield from embeddings(first, [left], "the others' part of the initial embeddings h0", tuple(outside))


def _unmasked(server: View, friend: View, outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """``collaborative``: the dealer expands the masks of what a holder got, features and gradients of h^0."""
    if vertical(server.settings).model.initial.method != "collaborative":
        return
    names = server.settings.data.names
    seeds = {
        (holder, seen.session): seen.tensor().numpy().tobytes()
        for holder in names
        for seen in server.sent(Kind.SEED, holder)
    }
    for holder in outside:
        for seen in friend.received(Kind.STATIC_DIFFERENCE, holder)[-1:]:
            mask = expand(seeds[holder, seen.session], static_mask_name(seen.tag.round), seen.shape)
            words = f"the features of {holder}, from the dealer's masks"
            yield Evidence("embedding", words, (holder,), rows=numbers(seen.tensor() + mask), messages=(seen,))
    labelled, round_ = server.settings.data.label_party, int(Direction.BACKWARD)
    if labelled not in outside:
        return
    sent = together(friend, Kind.MASKED_OPERAND, round_, names)
    steps = tuple(_less_masks(pieces, seeds) for pieces in sent.pieces[:_STEPS])
    if steps:
        words = f"gradients of the initial embedding h0, from the dealer's masks, in {len(steps)} steps"
        yield Evidence("gradients", words, (labelled,), steps=steps, messages=all_of(sent))


def _less_masks(pieces: Sequence[Seen], seeds: dict[tuple[PartyId, int], bytes]) -> Floats:
    total = torch.zeros(pieces[0].shape, dtype=torch.int64)
    for piece in pieces:
        name = operand_mask_name(piece.sender, Direction.BACKWARD, piece.tag.step)
        total += piece.tensor() + expand(seeds[piece.sender, piece.session], name, piece.shape)
    return numbers(total)
