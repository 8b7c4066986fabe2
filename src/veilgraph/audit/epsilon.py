"""ε: how much privacy a run's noise gives at most, by what an adversary's guesses about canaries prove.

Each kind of release has its own canaries and its own adversary, and each bound is held against the total of the
holder's ledger, where that is claimed against this adversary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
from torch import Tensor

from veilgraph.audit.attack import AuditContext, Nodes
from veilgraph.audit.canaries import one_run_epsilon
from veilgraph.audit.finding import Finding, Skipped, members_of
from veilgraph.audit.labels import STEPS, directions
from veilgraph.audit.statistics import Interval
from veilgraph.core.errors import DataError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.privacy.canaries import Canaries
from veilgraph.protocol.canaries import LabelCanaries, VoteCanaries
from veilgraph.protocol.evidence import Evidence, Guesses
from veilgraph.protocol.job import perturbing
from veilgraph.protocol.view import Floats, numbers

_CONFIDENCE: Final = 0.95
_SAME, _NOTHING, _OTHER, _UNMOVED = 3, 2, 1, 0
"""Scores where classes alone are told."""
_LACKING: Final = "the job has no canaries; train it again with"


def _finding(adversary: str, holder: PartyId, guesses: Guesses) -> Finding:
    """Make a finding of the lower bound on a holder's ε that guesses prove (``one_run_epsilon``)."""
    bound = one_run_epsilon(
        guesses.scores, np.asarray(guesses.coins), guesses.delta, _CONFIDENCE, claims=guesses.claims
    )
    return Finding(
        adversary,
        holder,
        "noise",
        "epsilon",
        guesses.words,
        permitted=True,
        measure="epsilon",
        value=Interval(bound.epsilon, bound.epsilon, bound.ceiling, _CONFIDENCE),
        accuracy=bound.correct / bound.guesses,
        limit=guesses.limit,
        note=f"ε is at least this with {_CONFIDENCE:.0%} confidence; {bound.correct} of {bound.guesses} guesses "
        f"are right; more than {bound.ceiling:.3g} could not have been proven. {guesses.claim}",
    )


_CanaryTest = tuple[Sequence[PartyId], int | bool, str, Callable[[PartyId], Iterator[Guesses]]]
"""Holders with noise, their canaries, what is said where these are none, and the guesses about a holder's."""


def empirical_epsilon(case: AuditContext, adversary: str, found: Sequence[Evidence]) -> Iterator[Finding | Skipped]:
    """Yield lower bounds on the ε of every holder with canaries, from what an adversary received."""
    for holders, canaries, lacking, guesses in _canary_tests(case, adversary, found):
        if not canaries:
            yield Skipped(adversary, "epsilon", lacking, "epsilon")
            continue
        for holder in holders:
            if holder not in members_of(adversary):
                try:
                    yield from (_finding(adversary, holder, each) for each in guesses(holder))
                except DataError as error:
                    yield Skipped(adversary, f"epsilon of {holder}", str(error), "epsilon")


def _canary_tests(case: AuditContext, adversary: str, found: Sequence[Evidence]) -> Iterator[_CanaryTest]:
    """Yield, for each kind of noisy data that an adversary receives, the holders that add noise and their canaries.

    Released features go to the holders that learn, privately trained weights to all parties, edges' noisy votes and
    what is made of noisy sums to the label holder (unless the dealer colludes), and perturbed labels to whoever gets
    gradients or symbols.
    """
    settings, members = case.settings, members_of(adversary)
    privacy, private, plan, duties = settings.privacy, settings.label_privacy, settings.training_plan, settings.duties
    if (release := settings.noise.feature_release) is not None:
        if {*duties.learning} & {*members}:
            lacking = "the release has no canaries; train it again with some"
            yield duties.releasing, release.canaries, lacking, partial(_paradigm_guesses, case, adversary)
    elif plan is not None:
        if {*members} <= {SERVER, *settings.data.names}:
            trains = [name for name in settings.data.names if case.graph(name).labels is not None]
            lacking = f"{_LACKING} {plan.setting}.canaries"
            yield trains, plan.canaries, lacking, partial(_paradigm_guesses, case, adversary)
    elif privacy is not None:
        noise, hears = settings.noise, SERVER not in members and settings.data.label_party in members
        if (noise.counts_votes or noise.sums_records) and hears:
            guesses = partial(_vote_guesses if noise.counts_votes else _paradigm_guesses, case, adversary)
            yield duties.publishing, settings.noise.canaries, f"{_LACKING} privacy.canaries", guesses
    for sort, guess in (("gradients", _label_guesses), ("symbols", _symbol_guesses)):
        told = [each for each in found if each.sort == sort]
        holders = {holder for each in told for holder in each.about if each.about == (holder,)}
        if private is not None and (learnt_from := [holder for holder in perturbing(settings) if holder in holders]):
            lacking = "the job has no canaries among labels; train it again with label_privacy.canaries"
            yield learnt_from, private.canaries, lacking, partial(guess, case, told)


def vote_canaries_of(case: AuditContext, holder: PartyId) -> VoteCanaries:
    """The canaries among a holder's edges, drawn again from the key that its run saved; ``DataError``: no key."""
    return VoteCanaries.of(case.settings, holder, case.graph(holder).num_nodes, _saved_canaries(case, holder).key)


def _saved_canaries(case: AuditContext, holder: PartyId) -> Canaries:
    kept = case.run.party(holder).canaries()
    if kept is None:
        raise DataError("its canaries are not here")
    return kept


def _claimed_epsilon(case: AuditContext, holder: PartyId, adversary: str | None = None) -> float | None:
    """The total ε of a holder's ledger; None where that is infinite, or not claimed against this adversary."""
    total = case.ledger_summary(holder).get("epsilon_total")
    holds = adversary is None or case.source.withstands(case.settings, members_of(adversary))
    return None if total is None or not holds else float(total)


def _paradigm_guesses(case: AuditContext, adversary: str, holder: PartyId) -> Iterator[Guesses]:
    """Guesses that only the job's paradigm can make; without a limit of theirs, ``_claimed_epsilon`` is the limit."""
    for each in case.source.canary_guesses(case, members_of(adversary), holder, _saved_canaries(case, holder).key):
        yield replace(each, limit=_claimed_epsilon(case, holder, adversary)) if each.limit is None else each


def _label_guesses(case: AuditContext, gradients: Sequence[Evidence], holder: PartyId) -> Iterator[Guesses]:
    """Guesses about canaries among a holder's perturbed labels, from gradients about that holder alone."""
    graph, (labels, train, _, _) = case.whole_graph(holder), case.labels(holder)
    canaries = LabelCanaries.of(case.settings, graph, _saved_canaries(case, holder).key)
    places, limit = canaries.places(graph).numpy(), _claimed_epsilon(case, holder)
    for evidence in gradients:
        if evidence.about == (holder,):
            scores = _class_one_scores(evidence, places, np.setdiff1d(train, places), labels)
            words = f"{evidence.words}, {canaries.count} canaries among the labels"
            claim = "The limit is the ledger's total, of one label."
            yield Guesses(words, scores, canaries.coins, 0.0, limit, claim=claim)


def _symbol_guesses(case: AuditContext, told: Sequence[Evidence], holder: PartyId) -> Iterator[Guesses]:
    """Guesses about canaries among a holder's labels from symbols: of those that are at edges with the adversary."""
    graph = case.whole_graph(holder)
    canaries = LabelCanaries.of(case.settings, graph, _saved_canaries(case, holder).key)
    places, limit = canaries.places(graph).numpy(), _claimed_epsilon(case, holder)
    for evidence in told:
        if evidence.about != (holder,):
            continue
        nodes, classes = case.symbols(holder, evidence.symbols)
        symbol_of = dict(zip(nodes.tolist(), classes.tolist(), strict=True))
        seen = np.array([place in symbol_of for place in places.tolist()])
        symbols = np.array([symbol_of[place] for place in places[seen].tolist()])
        words = f"{evidence.words}, {len(symbols)} canaries among them"
        scores = (symbols == 1).astype(np.float64) - (symbols == 0)
        claim = "The limit is the ledger's total, of one label."
        yield Guesses(words, scores, canaries.coins.numpy()[seen], 0.0, limit, claim=claim)


def _class_one_scores(evidence: Evidence, places: Nodes, others: Nodes, labels: Nodes) -> Floats:
    """Scores of canaries: how far their gradients point towards class 1 rather than 0, by means of other nodes'."""
    second, first = (others[labels[others] == label] for label in (1, 0))
    if not len(first) or not len(second):
        raise DataError("one of the first two classes has no training node but canaries; choose fewer canaries")
    total: Floats = np.zeros(len(places))
    for step in evidence.steps[:STEPS]:
        rows = directions(np.asarray(step, dtype=np.float64))
        apart = directions((rows[second].mean(axis=0) - rows[first].mean(axis=0))[None])[0]
        total += rows[places] @ apart
    return total


def _vote_guesses(case: AuditContext, adversary: str, holder: PartyId) -> Iterator[Guesses]:
    """Guesses about canaries among a holder's edges, which vote with noise, from the label holder's predictions."""
    settings, read = case.settings, case.view(case.settings.data.label_party).predicted
    canaries = vote_canaries_of(case, holder)
    if read is None:
        raise DataError("there are no predictions")
    words = f"what is predicted of {canaries.count} nodes, each at the end of a canary among {holder}'s edges"
    scores = vote_scores(read(), canaries.places(holder), classes=settings.outcome.opens_classes_alone)
    limit = _claimed_epsilon(case, holder)
    yield Guesses(words, scores, canaries.coins, 0.0, limit)


def vote_scores(predicted: Tensor, places: Tensor, *, classes: bool) -> Floats:
    """Scores [m] of canary edges: how far the first end is predicted as the class of the other end, not as others.

    With ``classes`` alone: the same class speaks for a vote, the most frequent one against it, any other one for noise.
    Where the other end is of the most frequent class itself, nothing is known, and the score is in the middle.
    ``predicted`` is Tensor[N, C], places Tensor[m, 2]. Raises ``DataError``: all first ends are of one class.
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
