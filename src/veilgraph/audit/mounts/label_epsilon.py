"""A lower bound on the ε of labels, from what gradients tell of canaries among them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from veilgraph.audit.attacks.label_gradients import directions
from veilgraph.audit.case import Case, Nodes
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.finding import Finding, Skipped, members_of
from veilgraph.audit.mounts.bounds import bound_finding, claimed
from veilgraph.audit.roc import Floats
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.party import load_party
from veilgraph.protocol.label_canaries import LabelCanaries

_STEPS = 50
"""Gradients of later steps are smaller, and turn."""


def labels_epsilon(case: Case, adversary: PartyId, found: list[Evidence]) -> Iterator[Finding | Skipped]:
    """A lower bound on the ε of one label, from the gradients that an adversary has.

    Args:
        case: of a run whose holders learn from perturbed labels.
        adversary: nothing is found but of those who get gradients.
        found: what it has.
    """
    for holder in case.settings.perturbing:
        if holder not in members_of(adversary):
            yield from _of(case, adversary, holder, found)


def _of(case: Case, adversary: PartyId, holder: PartyId, found: list[Evidence]) -> Iterator[Finding | Skipped]:
    """The same of one holder's labels."""
    private = case.settings.label_privacy
    gradients = [each for each in found if each.sort == "gradients" and each.about == (holder,)]
    if not gradients or private is None:
        return
    kept = case.run.party(holder).canaries()
    if not private.canaries or kept is None:
        why = "the job has no canaries among labels; train it again with label_privacy.canaries"
        yield Skipped(adversary, "epsilon", "its canaries are not here" if private.canaries else why, "epsilon")
        return
    graph = load_party(case.run.party(holder).graph_path)
    canaries = LabelCanaries.of(case.settings, graph, bytes, kept.key)
    places = canaries.places(graph).numpy()
    labels, train, _, _ = case.labels(holder)
    others = np.setdiff1d(train, places)
    for evidence in gradients:
        try:
            scores = _towards_second(evidence, places, others, labels)
            limit = claimed(case, holder)
        except DataError as error:
            yield Skipped(adversary, f"epsilon of {holder}", str(error), "epsilon")
            continue
        yield bound_finding(
            adversary,
            holder,
            f"{evidence.words}, {canaries.count} canaries among the labels",
            scores,
            canaries.coins.numpy(),
            delta=0.0,
            gaussian=False,
            limit=limit,
            claim="The limit is the ledger's total, of one label.",
        )


def _towards_second(evidence: Evidence, places: Nodes, others: Nodes, labels: Nodes) -> Floats:
    """How much more each canary's gradients point as those of the second class do than as those of the first.

    The adversary is granted the labels of all training nodes that are no canaries.
    """
    second, first = (others[labels[others] == label] for label in (1, 0))
    if not len(first) or not len(second):
        raise DataError("one of the first two classes has no training node but canaries; choose fewer canaries")
    total: Floats = np.zeros(len(places))
    for step in evidence.steps[:_STEPS]:
        rows = directions(np.asarray(step, dtype=np.float64))
        apart = directions((rows[second].mean(axis=0) - rows[first].mean(axis=0))[None])[0]
        total += rows[places] @ apart
    return total
