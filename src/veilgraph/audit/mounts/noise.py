"""How much privacy a run's noise gives at most: what the server's guesses about canaries prove, against the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from veilgraph.audit.attacks.epsilon import canary_scores
from veilgraph.audit.case import Case
from veilgraph.audit.finding import Finding, Skipped, members_of
from veilgraph.audit.mounts.bounds import bound_finding, claimed, withstands
from veilgraph.audit.mounts.gradient_epsilon import gradients_epsilon
from veilgraph.audit.mounts.inserted import inserted_epsilon
from veilgraph.audit.mounts.released import released_epsilon
from veilgraph.audit.mounts.vote_epsilon import votes_epsilon
from veilgraph.audit.view import View, load_view
from veilgraph.core.errors import DataError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import Seen
from veilgraph.privacy.settings import MECHANISMS

_CLEAR_OF: Final = {Kind.MASKED: Kind.EMBEDDING, Kind.MASKED_GRADIENT: Kind.GRADIENT}


def empirical_epsilon(case: Case, adversary: PartyId) -> Iterator[Finding | Skipped]:
    """A lower bound on the ε of every holder whose run has canaries, from what an adversary received.

    Args:
        case: of the run.
        adversary: nothing is found but of the server, which gets all releases; where nodes release their own, of
            holders that learn; where training is private, of everybody who has the weights; where edges have noisy
            votes, of the label holder.
    """
    settings = case.settings
    if settings.feature_release is not None:
        yield from released_epsilon(case, adversary)
    elif settings.training_plan is not None:
        yield from gradients_epsilon(case, adversary)
    elif settings.counts_votes:
        yield from votes_epsilon(case, adversary)
    else:
        yield from _rows_epsilon(case, adversary)


def _rows_epsilon(case: Case, adversary: PartyId) -> Iterator[Finding | Skipped]:
    """The same of a server that gets published rows."""
    privacy = case.settings.privacy
    members = members_of(adversary)
    if SERVER not in members or privacy is None:
        return
    if not privacy.canaries:
        yield Skipped(adversary, "epsilon", "the job has no canaries; train it again with privacy.canaries", "epsilon")
        return
    if privacy.canaries_in == "data":
        yield from inserted_epsilon(case, adversary)
        return
    view, friends = load_view(case.run, SERVER), [load_view(case.run, name) for name in case.holders_of(adversary)]
    for holder in case.settings.publishing:
        if holder in members:
            continue
        canaries = case.run.party(holder).canaries()
        if canaries is None:
            yield Skipped(adversary, f"epsilon of {holder}", "its canaries are not here", "epsilon")
            continue
        try:
            total = claimed(case, holder)
        except DataError as error:
            yield Skipped(adversary, f"epsilon of {holder}", str(error), "epsilon")
            continue
        released, directions = [], []
        for step, matrix in _released(view, friends, holder):
            if len(matrix) != canaries.nodes:  # of other nodes: a prediction from changed tables
                continue
            released.append(matrix.double().numpy())
            directions.append(canaries.directions(matrix.shape[1], step, privacy.order).numpy())
        if not released:
            yield Skipped(adversary, f"epsilon of {holder}", "the server's view has none of its releases", "epsilon")
            continue
        scores = canary_scores(released, canaries.rows.numpy(), directions)
        yield bound_finding(
            adversary,
            holder,
            f"{len(released)} releases with {canaries.count} canaries in each",
            scores,
            canaries.coins.numpy(),
            delta=privacy.delta_of(canaries.nodes),
            gaussian=MECHANISMS[privacy.mechanism].is_gaussian,
            limit=total if withstands(case, members) else None,
            claim="The limit is the ledger's total.",
        )


def _released(view: View, friends: Sequence[View], holder: PartyId) -> Iterator[tuple[int, Tensor]]:
    """(step, what the server has) of every release of a holder: by itself, or in the sum over all that publish.

    Friends take off such a sum what they put into it, with its noise.
    """
    publishing = view.settings.publishing
    helping = [friend for friend in friends if friend.party in publishing]
    for masked, clear in _CLEAR_OF.items():
        own = [_by_tag([seen for seen in friend.own if seen.tag.kind is masked]) for friend in helping]
        for seen in view.received(clear, holder):
            if clear is Kind.GRADIENT or seen.tag.round > 0:
                yield seen.tag.step, seen.tensor()
        pieces = [_by_tag(view.received(masked, name)) for name in publishing]
        for key, hidden in _by_tag(view.received(masked, holder)).items():
            if hidden.tag.round > 0 and all(key in piece for piece in (*pieces, *own)):
                total = torch.stack([piece[key].tensor() for piece in pieces]).sum(dim=0)
                for notes in own:
                    total -= notes[key].tensor()
                yield hidden.tag.step, total.double() / 2.0**40


def _by_tag(messages: list[Seen]) -> dict[tuple[int, int, int], Seen]:
    return {(seen.session, seen.tag.step, seen.tag.round): seen for seen in messages}
