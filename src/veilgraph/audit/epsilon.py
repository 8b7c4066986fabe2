"""ε: how much privacy a run's noise gives at most, by what an adversary's guesses about canaries prove.

Each kind of release has its own canaries and its own adversary, and each bound is held against the total of the
holder's ledger, where that is claimed against this adversary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Final

import numpy as np
import torch
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
from veilgraph.privacy.settings import MECHANISMS
from veilgraph.protocol.canaries import Inserted, LabelCanaries, NodeCanaries, TrainedCanaries
from veilgraph.protocol.evidence import Evidence
from veilgraph.protocol.job import JobSettings, perturbing
from veilgraph.protocol.view import Floats, View, aggregate, numbers, subtract_own

_CONFIDENCE: Final = 0.95
_ZERO: Final = 1e-6  # of the clip: a row that counts as zero
_CLEAR_OF: Final = {Kind.MASKED: Kind.EMBEDDING, Kind.MASKED_GRADIENT: Kind.GRADIENT}
_SAME, _NOTHING, _OTHER, _UNMOVED = 3, 2, 1, 0
"""Scores where classes alone are told."""
_LACKING: Final = "the job has no canaries; train it again with"


@dataclass(frozen=True, eq=False)
class _Guesses:
    """What an adversary makes of a holder's canaries: scores [m], higher = in, of coins [m]; ``limit``: ε claimed."""

    words: str
    scores: Floats
    coins: Tensor | Truth
    delta: float
    limit: float | None
    claims: Claims | None = None
    claim: str = "The limit is the ledger's total."

    def finding(self, adversary: str, holder: PartyId) -> Finding:
        """What they prove of the holder's ε; see ``one_run_epsilon``."""
        bound = one_run_epsilon(self.scores, np.asarray(self.coins), self.delta, _CONFIDENCE, claims=self.claims)
        return Finding(
            adversary,
            holder,
            "noise",
            "epsilon",
            self.words,
            permitted=True,
            measure="epsilon",
            value=Interval(bound.epsilon, bound.epsilon, bound.ceiling, _CONFIDENCE),
            accuracy=bound.correct / bound.guesses,
            limit=self.limit,
            note=f"ε is at least this with {_CONFIDENCE:.0%} confidence; {bound.correct} of {bound.guesses} guesses "
            f"are right; more than {bound.ceiling:.3g} could not have been proven. {self.claim}",
        )


_Noised = tuple[Sequence[PartyId], int | bool, str, Callable[[PartyId], Iterator[_Guesses]]]
"""Holders with noise, their canaries, what is said where these are none, and the guesses about a holder's."""


def empirical_epsilon(case: AuditContext, adversary: str, found: Sequence[Evidence]) -> Iterator[Finding | Skipped]:
    """A lower bound on the ε of every holder whose run has canaries, from what an adversary received."""
    for holders, canaries, lacking, guesses in _noised(case, adversary, found):
        if not canaries:
            yield Skipped(adversary, "epsilon", lacking, "epsilon")
            continue
        for holder in holders:
            if holder not in members_of(adversary):
                try:
                    yield from (each.finding(adversary, holder) for each in guesses(holder))
                except DataError as error:
                    yield Skipped(adversary, f"epsilon of {holder}", str(error), "epsilon")


def _noised(case: AuditContext, adversary: str, found: Sequence[Evidence]) -> Iterator[_Noised]:
    """What an adversary gets with noise.

    The server gets all releases; where nodes release their own, holders that learn get them; where training is private,
    everybody who has the weights; where edges have noisy votes, the label holder, without the dealer; where labels are
    perturbed, whoever gets gradients.
    """
    settings, members = case.settings, members_of(adversary)
    privacy, private, plan, duties = settings.privacy, settings.label_privacy, settings.training_plan, settings.duties
    if (release := settings.noise.feature_release) is not None:
        if learner := next((name for name in duties.learning if name in members), None):
            lacking = "the release has no canaries; train it again with some"
            yield duties.releasing, release.canaries, lacking, partial(_of_nodes, case, learner)
    elif plan is not None:
        if {*members} <= {SERVER, *settings.data.names}:
            trains = [name for name in settings.data.names if case.graph(name).labels is not None]
            lacking = f"{_LACKING} averaging.privacy.canaries"
            yield trains, plan.settings.canaries, lacking, partial(_of_gradients, case, adversary)
    elif privacy is not None:
        votes = settings.noise.counts_votes
        if SERVER not in members and settings.data.label_party in members if votes else SERVER in members:
            guesses = partial(_of_votes if votes else _of_rows, case, adversary)
            yield duties.publishing, privacy.canaries, f"{_LACKING} privacy.canaries", guesses
    gradients = [each for each in found if each.sort == "gradients"]
    holders = {holder for each in gradients for holder in each.about if each.about == (holder,)}
    if private is not None and (learnt_from := [holder for holder in perturbing(settings) if holder in holders]):
        lacking = "the job has no canaries among labels; train it again with label_privacy.canaries"
        yield learnt_from, private.canaries, lacking, partial(_of_labels, case, gradients)


def inserted_at(case: AuditContext, holder: PartyId) -> Inserted:
    """A holder's canaries in its data, as its run kept them; a ``DataError`` where they are not here."""
    return Inserted.of(case.settings, holder, case.graph(holder).num_nodes, _kept(case, holder).key)


def _kept(case: AuditContext, holder: PartyId) -> Canaries:
    kept = case.run.party(holder).canaries()
    if kept is None:
        raise DataError("its canaries are not here")
    return kept


def _claimed(case: AuditContext, holder: PartyId, adversary: str | None = None) -> float | None:
    """The total ε of a holder's ledger; None where that is infinite, or not claimed against this adversary."""
    total = case.ledger_summary(holder).get("epsilon_total")
    holds = adversary is None or case.source.withstands(case.settings, members_of(adversary))
    return None if total is None or not holds else float(total)


def _of_rows(case: AuditContext, adversary: str, holder: PartyId) -> Iterator[_Guesses]:
    """At the server, alone or with holders: of published rows, with canaries in each, or in the data."""
    privacy = case.settings.privacy
    assert privacy is not None
    kept, claims = _kept(case, holder), GaussianClaims() if MECHANISMS[privacy.mechanism].is_gaussian else None
    told = (_inserted if privacy.canaries_in == "data" else _row_canaries)(case, adversary, holder)
    yield _Guesses(*told, privacy.delta_of(kept.nodes), _claimed(case, holder, adversary), claims)


def _row_canaries(case: AuditContext, adversary: str, holder: PartyId) -> tuple[str, Floats, Truth]:
    """Words, scores and coins of canaries that take the place of some rows of every release."""
    privacy = case.settings.privacy
    assert privacy is not None
    view, friends = case.view(SERVER), [case.view(name) for name in case.holders_of(adversary)]
    canaries = _kept(case, holder)
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


def _inserted(case: AuditContext, adversary: str, holder: PartyId) -> tuple[str, Floats, Truth]:
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
    masked = settings.passes.is_masked
    kind = Kind.MASKED if masked else Kind.EMBEDDING
    rounds = sorted({each for name in publishing for each in server.rounds(kind, name)})
    for round_, senders in product(rounds, [publishing] if masked else [(name,) for name in outside]):
        passes = aggregate(server, kind, round_, senders)
        passes = subtract_own(passes, friends) if masked else passes
        theirs = [clean[name] for name in senders if name in outside]
        for number, pieces in enumerate(passes.pieces):
            key = _key(pieces[0])
            if all(key in notes for notes in theirs):
                before = np.sum([numbers(notes[key].tensor()) for notes in theirs], axis=0)
                yield from _at(passes[number], before, places, at, settings)


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


def _of_gradients(case: AuditContext, adversary: str, holder: PartyId) -> Iterator[_Guesses]:
    """At whoever is told the weights of a private training.

    It is granted the holder's data but the coins, and what all other terms of a sum add up to.
    """
    plan, key = case.settings.training_plan, _kept(case, holder).key
    assert plan is not None
    canaries = TrainedCanaries.of(case.settings, case.whole_graph(holder), key)
    rounds = case.source.canary_rounds(case, members_of(adversary), holder, key)
    if not rounds:
        raise DataError("the view has none of its rounds")
    words = f"weights after {len(rounds)} rounds, {canaries.count} canaries among {holder}'s nodes"
    scores = gradient_scores(rounds, plan.settings.sampling_rate)
    claims = SampledClaims(plan.event, max(len(rounds), sum(case.ledger_summary(holder)["releases"].values())))
    yield _Guesses(words, scores, canaries.coins, plan.delta, _claimed(case, holder, adversary), claims)


def _of_nodes(case: AuditContext, learner: PartyId, holder: PartyId) -> Iterator[_Guesses]:
    """At a holder that learns from what nodes perturbed by themselves: of their features, and labels."""
    release, private = case.settings.noise.feature_release, case.settings.noise.label_release
    assert release is not None
    kept, view = _kept(case, holder), case.view(learner)
    canaries = NodeCanaries.of(case.settings, kept.nodes, kept.key)
    features, labels = (
        _distinct(view.received(kind, holder)) for kind in (Kind.PERTURBED_FEATURES, Kind.PERTURBED_LABELS)
    )

    words, claim = f"that {holder}'s nodes perturbed,", "The limit is that of the job, for each different release."

    def scores(given: Sequence[Tensor], score: Callable[[Tensor], Floats]) -> Floats:
        return np.asarray(np.sum([score(each[canaries.places]) for each in given], axis=0))

    if features:
        coins, claims = canaries.coins, GaussianClaims() if release.is_gaussian else None
        told = f"features {words} {len(coins)} canaries among them", scores(features, _sums), coins
        yield _Guesses(*told, release.delta or 0.0, release.epsilon * len(features), claims, claim)
    if private is not None and labels:
        coins = canaries.label_coins
        told = f"labels {words} {len(coins)} canaries among them", scores(labels, _second_class), coins
        yield _Guesses(*told, 0.0, private.epsilon * len(labels), claim=claim)


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


def _of_labels(case: AuditContext, gradients: Sequence[Evidence], holder: PartyId) -> Iterator[_Guesses]:
    """At whoever gets gradients: of one label, where holders learn from perturbed ones."""
    graph, (labels, train, _, _) = case.whole_graph(holder), case.labels(holder)
    canaries = LabelCanaries.of(case.settings, graph, _kept(case, holder).key)
    places, limit = canaries.places(graph).numpy(), _claimed(case, holder)
    for evidence in gradients:
        if evidence.about == (holder,):
            scores = _towards_second(evidence, places, np.setdiff1d(train, places), labels)
            words = f"{evidence.words}, {canaries.count} canaries among the labels"
            claim = "The limit is the ledger's total, of one label."
            yield _Guesses(words, scores, canaries.coins, 0.0, limit, claim=claim)


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


def _of_votes(case: AuditContext, adversary: str, holder: PartyId) -> Iterator[_Guesses]:
    """At the label holder, without the dealer: of a holder's edges that vote with noise, from predictions."""
    settings, privacy, read = case.settings, case.settings.privacy, case.view(case.settings.data.label_party).predicted
    canaries = inserted_at(case, holder)
    assert privacy is not None
    if read is None:
        raise DataError("there are no predictions")
    words = f"what is predicted of {canaries.count} nodes, each at the end of a canary among {holder}'s edges"
    scores = voted(read(), canaries.places(holder), classes=settings.outcome.opens_classes_alone)
    limit = _claimed(case, holder)
    yield _Guesses(words, scores, canaries.coins, 0.0, limit)


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
