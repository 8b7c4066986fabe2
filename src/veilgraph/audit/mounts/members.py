"""Which nodes the model was trained on: from gradients, or from what it predicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from veilgraph.audit.attack import Attack
from veilgraph.audit.attacks.label_gradients import membership_scores
from veilgraph.audit.attacks.membership import SHADOW_THRESHOLD, confidence_scores, lira_scores, shadow_scores
from veilgraph.audit.attacks.online_lira import online_lira_scores
from veilgraph.audit.case import Case, Nodes
from veilgraph.audit.evidence import Evidence, Sort
from veilgraph.audit.finding import Outcome
from veilgraph.audit.passes import mean
from veilgraph.audit.roc import Floats
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId

_MOST: Final = 2000
_STEPS: Final = 50
"""Gradients of later steps are smaller, and turn."""
_SORTS: Final[tuple[Sort, ...]] = ("posteriors", "model")


def from_gradients(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """Rows of a gradient are larger where the loss is: at training nodes."""
    scores = membership_scores(mean(evidence.steps[:_STEPS])[None])
    return Outcome(scores, case.members(target), note="Members: training nodes; all others are not.")


def from_confidence(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """Models are surer of what they were trained on (Duddu et al. 2020)."""
    return _compared(evidence, case, target, lambda rows, nodes: confidence_scores(rows[nodes]))


def from_shadows(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """A classifier learns from a model of the adversary's own how members differ (Shokri et al. 2017)."""
    shadow, free = case.shadow_models(target)[0], case.free_nodes(target)
    members, posteriors = shadow[0][free], shadow[1][free]
    return _compared(
        evidence,
        case,
        target,
        lambda rows, nodes: shadow_scores(rows[nodes], posteriors, members),
        threshold=SHADOW_THRESHOLD,
        note=" The shadow model: a plaintext network, of the job's model settings, on other nodes of the graph.",
    )


def from_likelihoods(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """Is the confidence one that models without the node would have (offline LiRA, Carlini et al. 2022)?"""
    labels, outs = case.labels(target)[0], np.stack([posteriors for _, posteriors in case.shadow_models(target)])
    return _compared(
        evidence,
        case,
        target,
        lambda rows, nodes: lira_scores(rows[nodes], labels[nodes], outs[:, nodes]),
        note=f" {len(outs)} plaintext networks, trained without these nodes; the adversary knows their classes.",
    )


def from_both_likelihoods(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """Is the confidence rather one of models with the node, or of models without it (online LiRA)?"""
    labels, training, test, _ = case.labels(target)
    random = np.random.default_rng(case.seed)
    pools = [nodes[labels[nodes] >= 0] for nodes in (training, test)]
    size = min(_MOST, *map(len, pools))
    targets = np.concatenate([random.choice(pool, size=size, replace=False) for pool in pools])
    members, models = case.paired_models(target, targets)
    given, found = _rows(evidence), labels[targets]
    pooled = case.pooled_posteriors(target) if case.is_aligned else None

    def scores(rows: Floats) -> Floats:
        return online_lira_scores(rows[targets], found, models, members)

    return Outcome(
        scores(given),
        np.arange(2 * size) < size,
        pooled=None if pooled is None else scores(pooled),
        threshold=0.0,
        note=f"{size} training nodes against as many test nodes. {len(models)} plaintext networks, half of them "
        "trained with each of these nodes; the adversary knows their classes and that half of them are members. "
        "Pooled: the same on a network trained on everybody's plaintext.",
    )


def _compared(
    evidence: Evidence,
    case: Case,
    target: PartyId,
    attack: Callable[[Floats, Nodes], Floats],
    *,
    threshold: float | None = None,
    note: str = "",
) -> Outcome:
    rows = _rows(evidence)
    labels, training, test, _ = case.labels(target)
    random = np.random.default_rng(case.seed)
    chosen = [_some(nodes[labels[nodes] >= 0], random) for nodes in (training, test)]
    nodes = np.concatenate(chosen)
    truth = np.arange(len(nodes)) < len(chosen[0])
    pooled = case.pooled_posteriors(target) if case.is_aligned else None
    return Outcome(
        attack(rows, nodes),
        truth,
        pooled=None if pooled is None else attack(pooled, nodes),
        threshold=threshold,
        note=f"Training against test nodes.{note} Pooled: the same on a network trained on everybody's plaintext.",
    )


def _rows(evidence: Evidence) -> Floats:
    if evidence.rows is None:
        raise DataError(f"{evidence.words}: there are no rows")
    return evidence.rows


def _some(nodes: Nodes, random: np.random.Generator) -> Nodes:
    return nodes if len(nodes) <= _MOST else random.choice(nodes, size=_MOST, replace=False)


FROM_GRADIENTS: Final = Attack("membership", ("gradients",), from_gradients, of_labels=True, blind=True)
FROM_CONFIDENCE: Final = Attack("membership", _SORTS, from_confidence, of_labels=True)
FROM_SHADOWS: Final = Attack("membership", _SORTS, from_shadows, of_labels=True)
FROM_LIKELIHOODS: Final = Attack("membership", _SORTS, from_likelihoods, of_labels=True)
FROM_BOTH_LIKELIHOODS: Final = Attack("membership", _SORTS, from_both_likelihoods, of_labels=True)
