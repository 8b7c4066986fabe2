"""A lower bound on ε from canaries in the data: what all releases together say of each, whichever party made them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from veilgraph.audit.attacks.inserted import Released, inserted_scores
from veilgraph.audit.case import Case
from veilgraph.audit.finding import Finding, Skipped, members_of
from veilgraph.audit.mounts.bounds import bound_finding, claimed, inserted_at, withstands
from veilgraph.audit.passes import less_own, numbers, together
from veilgraph.audit.roc import Floats
from veilgraph.audit.view import View, load_view
from veilgraph.core.errors import DataError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import Seen
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.privacy.settings import MECHANISMS
from veilgraph.protocol.job import JobSettings

_ZERO: Final = 1e-6
"""Of the clip: a row that counts as zero."""

_Key = tuple[int, int, int]
"""Session, step and round."""


def inserted_epsilon(case: Case, adversary: PartyId) -> Iterator[Finding | Skipped]:
    """A lower bound on the ε of every holder outside of a coalition with the server.

    The auditor knows what the canaries' rows were before the noise, as one may who trains such a model. The direction
    in which a coin moves them is learnt from half of the canaries, whose coins it is told; the bound is of the others.

    Args:
        case: of the run.
        adversary: the server, alone or with holders.
    """
    settings, members = case.settings, members_of(adversary)
    views = {name: load_view(case.run, name) for name in (SERVER, *settings.publishing)}
    friends = [views[name] for name in settings.publishing if name in members]
    privacy = settings.privacy
    if privacy is None:
        return
    for holder in settings.publishing:
        if holder in members:
            continue
        try:
            canaries = inserted_at(case, holder)
            places = canaries.places(holder).numpy()
            at = np.searchsorted(canaries.everywhere.numpy(), places)
            releases = list(inserted_releases(views, friends, places, at))
            if not releases:
                raise DataError("the server's view has no release")
            coins, limit = canaries.coins.numpy(), claimed(case, holder)
            if privacy.relation == "zero-out":
                _check_zero(releases, coins, privacy.clip)
            scores, judged = inserted_scores(releases, coins, seed=case.seed)
            yield bound_finding(
                adversary,
                holder,
                f"{len(releases)} releases with {canaries.count} canaries of unit {canaries.unit} in {holder}'s data",
                scores,
                coins[judged],
                delta=privacy.delta_of(canaries.nodes),
                gaussian=MECHANISMS[privacy.mechanism].is_gaussian,
                limit=limit if withstands(case, members) else None,
                claim="The limit is the ledger's total.",
            )
        except DataError as error:
            yield Skipped(adversary, f"epsilon of {holder}", str(error), "epsilon")


def inserted_releases(
    views: Mapping[PartyId, View], friends: Sequence[View], places: np.ndarray, at: np.ndarray
) -> Iterator[Released]:
    """All embeddings that the server got, by every holder, at some holder's canaries: with noise, and without."""
    server = views[SERVER]
    settings = server.settings
    publishing = settings.publishing
    notes = {name: [seen for seen in views[name].own if seen.tag.kind is Kind.EMBEDDING] for name in publishing}
    clean = {name: {_key(seen): seen for seen in noted} for name, noted in notes.items()}
    outside = [name for name in publishing if views[name] not in friends]
    for round_ in range(1, vertical(settings).model.rounds + 1):
        if settings.is_masked:
            passes = less_own(together(server, Kind.MASKED, round_, publishing), friends)
            for number, pieces in enumerate(passes.pieces):
                key = _key(pieces[0])
                if all(key in clean[name] for name in outside):
                    before = sum(numbers(clean[name][key].tensor()) for name in outside)
                    yield from _at(passes[number], np.asarray(before), places, at, settings)
            continue
        for name in outside:
            for seen in server.received(Kind.EMBEDDING, name, round_):
                if _key(seen) in clean[name]:
                    before = numbers(clean[name][_key(seen)].tensor())
                    yield from _at(numbers(seen.tensor()), before, places, at, settings)


def _at(rows: Floats, clean: Floats, places: np.ndarray, at: np.ndarray, settings: JobSettings) -> Iterator[Released]:
    """One release at the canaries; with noise in every hop, what the first sums say, and what each later one does.

    In later hops what moves is a row that was released, noise and all, and another one at each canary.
    """
    hops = None if settings.privacy is None else settings.privacy.aggregation
    own, before = rows[places], clean[at]
    first = own.shape[2] if hops is None else (1 + hops.releases_own_rows) * hops.dim
    yield Released(*(each[:, :, :first].reshape(len(places), -1) for each in (own, before)))
    if hops is None or len(places[0]) == 1:
        return
    for start in range(first, own.shape[2], hops.dim):
        last = own[:, :, start - hops.dim : start]
        unit = last / np.maximum(np.linalg.norm(last, axis=2, keepdims=True), np.finfo(np.float64).tiny)
        others = np.concatenate(
            [unit[:, 1:].sum(axis=1, keepdims=True), np.broadcast_to(unit[:, :1], unit[:, 1:].shape)], 1
        )
        of_hop = slice(start, start + hops.dim)
        yield Released(*((each[:, :, of_hop] * others).sum(axis=(1, 2))[:, None] for each in (own, before)))


def _check_zero(releases: Sequence[Released], coins: np.ndarray, clip: float) -> None:
    """Zero-out is about a row that becomes zero: one that does not is no neighbour of the other."""
    for each in releases:
        if np.abs(each.clean[~coins]).max(initial=0.0) > _ZERO * clip:
            raise DataError(
                "in this job the row of a node without features is not zero, and zero-out is about rows that are; "
                "audit it with privacy.neighbours=replacement"
            )


def _key(seen: Seen) -> _Key:
    return seen.session, seen.tag.step, seen.tag.round
