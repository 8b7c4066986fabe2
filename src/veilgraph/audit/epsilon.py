"""ε: how much privacy a run's noise gives at most, by what an adversary's guesses about canaries prove.

Each kind of release has its own canaries and its own adversary, and each bound is held against the total of the
holder's ledger, where that is claimed against this adversary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.audit.attack import AuditContext, Nodes
from veilgraph.audit.canaries import (
    Claims,
    GaussianClaims,
    Released,
    SampledClaims,
    canary_scores,
    gradient_scores,
    inserted_scores,
    one_run_epsilon,
)
from veilgraph.audit.finding import Finding, Skipped, members_of
from veilgraph.audit.labels import STEPS, directions
from veilgraph.audit.statistics import Interval, Truth
from veilgraph.core.errors import DataError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import Seen
from veilgraph.privacy.canaries import Canaries
from veilgraph.privacy.settings import FEATURE_MECHANISMS, MECHANISMS
from veilgraph.protocol.canaries import Inserted, LabelCanaries, NodeCanaries, TrainedCanaries
from veilgraph.protocol.evidence import Evidence
from veilgraph.protocol.job import JobSettings, perturbing
from veilgraph.protocol.view import Floats, View, aggregate, numbers, subtract_own

_CONFIDENCE: Final = 0.95
_ZERO: Final = 1e-6  # of the clip: a row that counts as zero
_CLEAR_OF: Final = {Kind.MASKED: Kind.EMBEDDING, Kind.MASKED_GRADIENT: Kind.GRADIENT}
_SAME, _NOTHING, _OTHER, _UNMOVED = 3, 2, 1, 0
"""Scores where classes alone are told."""

Found = Iterator[Finding | Skipped]


def empirical_epsilon(case: AuditContext, adversary: PartyId) -> Found:
    """A lower bound on the ε of every holder whose run has canaries, from what an adversary received.

    Nothing is found but of the server, which gets all releases; where nodes release their own, of holders that learn;
    where training is private, of everybody who has the weights; where edges have noisy votes, of the label holder.
    """
    settings = case.settings
    if settings.noise.feature_release is not None:
        yield from _of_nodes(case, adversary)
    elif settings.training_plan is not None:
        yield from _of_gradients(case, adversary)
    elif settings.noise.counts_votes:
        yield from _of_votes(case, adversary)
    elif settings.privacy is not None and SERVER in members_of(adversary):
        yield from _of_rows(case, adversary)


def labels_epsilon(case: AuditContext, adversary: PartyId, found: list[Evidence]) -> Found:
    """A lower bound on the ε of one label, where holders learn from perturbed ones, of those who get gradients."""
    for holder in perturbing(case.settings):
        gradients = [each for each in found if each.sort == "gradients" and each.about == (holder,)]
        private = case.settings.label_privacy
        if holder in members_of(adversary) or not gradients or private is None:
            continue
        key = case.canary_key(holder)
        if not private.canaries or key is None:
            why = "the job has no canaries among labels; train it again with label_privacy.canaries"
            yield Skipped(adversary, "epsilon", "its canaries are not here" if private.canaries else why, "epsilon")
            continue
        graph = case.whole_graph(holder)
        canaries = LabelCanaries.of(case.settings, graph, key)
        places = canaries.places(graph).numpy()
        labels, train, _, _ = case.labels(holder)
        others = np.setdiff1d(train, places)
        for evidence in gradients:
            try:
                scores = _towards_second(evidence, places, others, labels)
                limit = _claimed(case, holder)
            except DataError as error:
                yield Skipped(adversary, f"epsilon of {holder}", str(error), "epsilon")
                continue
            yield _bound(
                adversary,
                holder,
                f"{evidence.words}, {canaries.count} canaries among the labels",
                scores,
                canaries.coins,
                delta=0.0,
                limit=limit,
                claim="The limit is the ledger's total, of one label.",
            )


def inserted_at(case: AuditContext, holder: PartyId) -> Inserted:
    """A holder's canaries in its data, as its run kept them; a ``DataError`` where they are not here."""
    return Inserted.of(case.settings, holder, case.graph(holder).num_nodes, _kept(case, holder).key)


def _kept(case: AuditContext, holder: PartyId) -> Canaries:
    kept = case.run.party(holder).canaries()
    if kept is None:
        raise DataError("its canaries are not here")
    return kept


def _claimed(case: AuditContext, holder: PartyId, adversary: PartyId | None = None) -> float | None:
    """The total ε of a holder's ledger; None where that is infinite, or not claimed against this adversary."""
    total = case.ledger_summary(holder).get("epsilon_total")
    holds = adversary is None or case.source.withstands(case.settings, members_of(adversary))
    return None if total is None or not holds else float(total)


def _bound(
    adversary: PartyId,
    holder: PartyId,
    evidence: str,
    scores: NDArray[Any],
    coins: Tensor | Truth,
    *,
    delta: float,
    limit: float | None,
    claim: str = "The limit is the ledger's total.",
    claims: Claims | None = None,
) -> Finding:
    """What scores of canaries, higher = in, prove of a holder's ε; see ``one_run_epsilon``, and ``limit``: claimed."""
    bound = one_run_epsilon(scores, np.asarray(coins), delta, _CONFIDENCE, claims=claims)
    return Finding(
        adversary,
        holder,
        "noise",
        "epsilon",
        evidence,
        permitted=True,
        measure="epsilon",
        value=Interval(bound.epsilon, bound.epsilon, bound.ceiling, _CONFIDENCE),
        accuracy=bound.correct / bound.guesses,
        limit=limit,
        note=f"ε is at least this with {_CONFIDENCE:.0%} confidence; {bound.correct} of {bound.guesses} guesses are "
        f"right; more than {bound.ceiling:.3g} could not have been proven. {claim}",
    )


def _of_each(
    adversary: PartyId,
    holders: Sequence[PartyId],
    bounds: Callable[[PartyId], Iterator[Finding]],
    *,
    canaries: int | bool,
    lacking: str,
) -> Found:
    """The bounds of every holder that is none of the adversary's; ``lacking``: said where the job has no canaries."""
    if not canaries:
        yield Skipped(adversary, "epsilon", lacking, "epsilon")
        return
    for holder in holders:
        if holder not in members_of(adversary):
            try:
                yield from bounds(holder)
            except DataError as error:
                yield Skipped(adversary, f"epsilon of {holder}", str(error), "epsilon")


def _of_rows(case: AuditContext, adversary: PartyId) -> Found:
    """At the server, alone or with holders: of published rows, with canaries in each, or in the data."""
    privacy = case.settings.privacy
    assert privacy is not None
    in_data = privacy.canaries_in == "data"

    def bounds(holder: PartyId) -> Iterator[Finding]:
        if in_data:
            canaries: Inserted | Canaries = inserted_at(case, holder)
            words, scores, coins = _inserted(case, adversary, holder)
            limit = _claimed(case, holder, adversary)
        else:
            canaries, limit = _kept(case, holder), _claimed(case, holder, adversary)
            words, scores, coins = _row_canaries(case, adversary, holder, canaries)
        yield _bound(
            adversary,
            holder,
            words,
            scores,
            coins,
            delta=privacy.delta_of(canaries.nodes),
            claims=GaussianClaims() if MECHANISMS[privacy.mechanism].is_gaussian else None,
            limit=limit,
        )

    lacking = "the job has no canaries; train it again with privacy.canaries"
    yield from _of_each(adversary, case.settings.duties.publishing, bounds, canaries=privacy.canaries, lacking=lacking)


def _row_canaries(
    case: AuditContext, adversary: PartyId, holder: PartyId, canaries: Canaries
) -> tuple[str, Floats, Truth]:
    """Words, scores and coins of canaries that take the place of some rows of every release."""
    privacy = case.settings.privacy
    assert privacy is not None
    view, friends = case.view(SERVER), [case.view(name) for name in case.holders_of(adversary)]
    released, ways = [], []
    for step, matrix in _released(view, friends, holder):
        if len(matrix) == canaries.nodes:  # others are a prediction from changed tables
            released.append(matrix.double().numpy())
            ways.append(canaries.directions(matrix.shape[1], step, privacy.order).numpy())
    if not released:
        raise DataError("the server's view has none of its releases")
    words = f"{len(released)} releases with {canaries.count} canaries in each"
    return words, canary_scores(released, canaries.rows.numpy(), ways), canaries.coins.numpy()


def _released(view: View, friends: Sequence[View], holder: PartyId) -> Iterator[tuple[int, Tensor]]:
    """(step, what the server has) of every release of a holder: by itself, or in the sum less what friends put in."""
    publishing = view.settings.duties.publishing
    helping = [friend for friend in friends if friend.party in publishing]
    for masked, clear in _CLEAR_OF.items():
        own = [{_key(seen): seen for seen in friend.noted(masked)} for friend in helping]
        for seen in view.received(clear, holder):
            if clear is Kind.GRADIENT or seen.tag.round > 0:
                yield seen.tag.step, seen.tensor()
        pieces = {name: {_key(seen): seen for seen in view.received(masked, name)} for name in publishing}
        for key, hidden in pieces.get(holder, {}).items():
            if hidden.tag.round > 0 and all(key in piece for piece in (*pieces.values(), *own)):
                total = torch.stack([piece[key].tensor() for piece in pieces.values()]).sum(dim=0)
                for notes in own:
                    total -= notes[key].tensor()
                yield hidden.tag.step, total.double() / 2.0**40


def _key(seen: Seen) -> tuple[int, int, int]:
    return seen.session, seen.tag.step, seen.tag.round


def _inserted(case: AuditContext, adversary: PartyId, holder: PartyId) -> tuple[str, Floats, Truth]:
    """Words, scores and coins of canaries in the data: what all releases together say, whichever party made them.

    The auditor knows what the canaries' rows were before the noise, as one may who trains such a model. The direction
    in which a coin moves them is learnt from half of the canaries, whose coins it is told; the bound is of the others.
    """
    settings, privacy, members = case.settings, case.settings.privacy, members_of(adversary)
    assert privacy is not None
    views = {name: case.view(name) for name in (SERVER, *settings.duties.publishing)}
    canaries = inserted_at(case, holder)
    places, coins = canaries.places(holder).numpy(), canaries.coins.numpy()
    at = np.searchsorted(canaries.everywhere.numpy(), places)
    friends = [views[name] for name in settings.duties.publishing if name in members]
    releases = list(inserted_releases(views, friends, places, at))
    if not releases:
        raise DataError("the server's view has no release")
    if privacy.relation == "zero-out" and any(
        np.abs(each.clean[~coins]).max(initial=0.0) > _ZERO * privacy.clip for each in releases
    ):
        raise DataError(  # zero-out is about a row that becomes zero: one that does not is no neighbour of the other
            "in this job the row of a node without features is not zero, and zero-out is about rows that are; "
            "audit it with privacy.neighbours=replacement"
        )
    scores, judged = inserted_scores(releases, coins, seed=case.seed)
    words = f"{len(releases)} releases with {canaries.count} canaries of unit {canaries.unit} in {holder}'s data"
    return words, scores, coins[judged]


def inserted_releases(
    views: Mapping[PartyId, View], friends: Sequence[View], places: Nodes, at: Nodes
) -> Iterator[Released]:
    """All embeddings that the server got, by every holder, at some holder's canaries: with noise, and without."""
    server = views[SERVER]
    settings, publishing = server.settings, server.settings.duties.publishing
    clean = {name: {_key(seen): seen for seen in views[name].noted(Kind.EMBEDDING)} for name in publishing}
    outside = [name for name in publishing if views[name] not in friends]
    kind = Kind.MASKED if settings.passes.is_masked else Kind.EMBEDDING
    for round_ in sorted({each for name in publishing for each in server.rounds(kind, name)}):
        if settings.passes.is_masked:
            passes = subtract_own(aggregate(server, kind, round_, publishing), friends)
            for number, pieces in enumerate(passes.pieces):
                key = _key(pieces[0])
                if all(key in clean[name] for name in outside):
                    before = sum(numbers(clean[name][key].tensor()) for name in outside)
                    yield from _at(passes[number], np.asarray(before), places, at, settings)
            continue
        for name in outside:
            for seen in server.received(kind, name, round_):
                if _key(seen) in clean[name]:
                    before = numbers(clean[name][_key(seen)].tensor())
                    yield from _at(numbers(seen.tensor()), before, places, at, settings)


def _at(rows: Floats, clean: Floats, places: Nodes, at: Nodes, settings: JobSettings) -> Iterator[Released]:
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


def _of_gradients(case: AuditContext, adversary: PartyId) -> Found:
    """At whoever is told the weights of a private training: of every other holder that trains.

    It is granted the holder's data but the coins, and what all other terms of a sum add up to.
    """
    plan, members = case.settings.training_plan, members_of(adversary)
    if plan is None or not {*members} <= {SERVER, *case.settings.data.names}:
        return

    def bounds(holder: PartyId) -> Iterator[Finding]:
        key = _kept(case, holder).key
        canaries = TrainedCanaries.of(case.settings, case.whole_graph(holder), key)
        rounds = case.source.canary_rounds(case, members, holder, key)
        if not rounds:
            raise DataError("the view has none of its rounds")
        limit = _claimed(case, holder, adversary)
        paid = sum(case.ledger_summary(holder)["releases"].values())
        yield _bound(
            adversary,
            holder,
            f"weights after {len(rounds)} rounds, {canaries.count} canaries among {holder}'s nodes",
            gradient_scores(rounds, plan.settings.sampling_rate),
            canaries.coins,
            delta=plan.delta,
            limit=limit,
            claims=SampledClaims(plan.event, max(len(rounds), paid)),
        )

    trains = [name for name in case.settings.data.names if case.graph(name).labels is not None]
    lacking = "the job has no canaries; train it again with averaging.privacy.canaries"
    yield from _of_each(adversary, trains, bounds, canaries=plan.settings.canaries, lacking=lacking)


def _of_nodes(case: AuditContext, adversary: PartyId) -> Found:
    """At a holder that learns from what nodes perturbed by themselves: of every other's features, and its labels."""
    settings, members = case.settings, members_of(adversary)
    learner = next((name for name in settings.duties.learning if name in members), None)
    release, private = settings.noise.feature_release, settings.noise.label_release
    if learner is None or release is None:
        return

    def bounds(holder: PartyId) -> Iterator[Finding]:
        kept, view = _kept(case, holder), case.view(learner)
        canaries = NodeCanaries.of(settings, kept.nodes, kept.key)
        is_gaussian = FEATURE_MECHANISMS[release.mechanism].is_gaussian

        def bound(what: str, given: Sequence[Tensor], scored: Callable[[Tensor], Floats], epsilon: float) -> Finding:
            of_labels = what == "labels"
            coins = canaries.label_coins if of_labels else canaries.coins
            return _bound(
                adversary,
                holder,
                f"{what} that {holder}'s nodes perturbed, {len(coins)} canaries among them",
                np.sum([scored(each[canaries.places]) for each in given], axis=0),
                coins,
                delta=0.0 if of_labels else release.delta or 0.0,
                claims=None if of_labels or not is_gaussian else GaussianClaims(),
                limit=epsilon * len(given),
                claim="The limit is that of the job, for each different release.",
            )

        if given := _distinct(view.received(Kind.PERTURBED_FEATURES, holder)):
            yield bound("features", given, _sums, release.epsilon)
        if private is not None and (given := _distinct(view.received(Kind.PERTURBED_LABELS, holder))):
            yield bound("labels", given, _second_class, private.epsilon)

    lacking = "the release has no canaries; train it again with some"
    yield from _of_each(adversary, settings.duties.releasing, bounds, canaries=release.canaries, lacking=lacking)


def _distinct(released: Sequence[Seen]) -> list[Tensor]:
    """Without those that are sent again, byte for byte."""
    found: list[Tensor] = []
    for each in (seen.tensor() for seen in released):
        if not any(each.shape == other.shape and torch.equal(each, other) for other in found):
            found.append(each)
    return found


def _sums(rows: Tensor) -> Floats:
    """What a node released, added up over its columns: all of them are high in one of both cases."""
    if rows.dtype == torch.int64:  # 1 + column, with the value's sign
        rows = rows.sign()
    values = rows.double() - 1 if rows.dtype == torch.uint8 else rows.double()
    return np.asarray(values.sum(dim=1).numpy())


def _second_class(rows: Tensor) -> Floats:
    """1 where the second class was released, −1 where the first, 0 for another or none."""
    label = rows[:, 0].to(torch.int64)
    return np.asarray(((label == 2).double() - (label == 1).double()).numpy())


def _towards_second(evidence: Evidence, places: Nodes, others: Nodes, labels: Nodes) -> Floats:
    """How much more canaries' gradients point as the second class's than as the first's, by others' labels."""
    second, first = (others[labels[others] == label] for label in (1, 0))
    if not len(first) or not len(second):
        raise DataError("one of the first two classes has no training node but canaries; choose fewer canaries")
    total: Floats = np.zeros(len(places))
    for step in evidence.steps[:STEPS]:
        rows = directions(np.asarray(step, dtype=np.float64))
        apart = directions((rows[second].mean(axis=0) - rows[first].mean(axis=0))[None])[0]
        total += rows[places] @ apart
    return total


def _of_votes(case: AuditContext, adversary: PartyId) -> Found:
    """At the label holder, without the dealer: of every other holder's edges that vote with noise, from predictions."""
    settings, members, privacy = case.settings, members_of(adversary), case.settings.privacy
    label_holder = settings.data.label_party
    if privacy is None or label_holder not in members or SERVER in members:
        return

    def bounds(holder: PartyId) -> Iterator[Finding]:
        canaries, read = inserted_at(case, holder), case.view(label_holder).predicted
        if read is None:
            raise DataError("there are no predictions")
        yield _bound(
            adversary,
            holder,
            f"what is predicted of {canaries.count} nodes, each at the end of a canary among {holder}'s edges",
            voted(read(), canaries.places(holder), classes=settings.outcome.opens_classes_alone),
            canaries.coins,
            delta=privacy.delta_of(canaries.nodes),
            claims=GaussianClaims(),
            limit=_claimed(case, holder),
        )

    lacking = "the job has no canaries; train it again with privacy.canaries"
    yield from _of_each(adversary, settings.duties.publishing, bounds, canaries=privacy.canaries, lacking=lacking)


def voted(predicted: Tensor, places: Tensor, *, classes: bool) -> Floats:
    """How much more each canary's first end is taken for the class of the other end than for others.

    Of classes alone: the same class speaks for a vote, the most frequent one against it, any other one for noise. Where
    the other end is itself of the most frequent class they say nothing, and the canary is between all others.
    ``predicted`` is Tensor[N, C], places Tensor[m, 2]. Raises ``DataError``: all are of one class.
    """
    rows = numbers(predicted)
    first, other = rows[places[:, 0]], rows[places[:, 1]].argmax(axis=1)
    if not classes:
        logits = np.log(np.maximum(first, np.finfo(np.float64).tiny))
        return np.asarray(logits[np.arange(len(other)), other] - logits.mean(axis=1))
    taken = first.argmax(axis=1)
    unmoved = np.bincount(taken).argmax()  # what a node without votes is taken for
    if (taken == unmoved).all():
        raise DataError(
            "the first ends of all canaries are taken for one class, and classes alone tell nothing of their votes: "
            "train a run for the audit with output: margins",
            key="output",
            value="classes",
        )
    rules = [other == unmoved, taken == other, taken == unmoved]
    return np.select(rules, [_NOTHING, _SAME, _UNMOVED], _OTHER).astype(np.float64)
