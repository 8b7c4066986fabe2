"""The attacks that an audit mounts: a line for each, with what it is mounted on and what it is after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from veilgraph.audit.case import Case
from veilgraph.audit.evidence import Evidence, Sort
from veilgraph.audit.finding import Outcome, Secret
from veilgraph.audit.mounts import combinations, edges, features, labels, members, outputs, weights
from veilgraph.core.types import PartyId
from veilgraph.protocol.audit_settings import LimitedAttack

Mount = Callable[[Evidence, Case, PartyId, PartyId], Outcome]
"""(evidence, case, adversary, target) → what the attack says."""


@dataclass(frozen=True)
class Attack:
    """One line of the catalogue.

    Attributes:
        secret: what it is after.
        sorts: of evidence that it is mounted on.
        mount: mounts it.
        of_labels: whether the target must have labels.
        blind: whether its scores need nothing but the view, so that it can be mounted where no truth is.
    """

    secret: Secret
    sorts: tuple[Sort, ...]
    mount: Mount
    of_labels: bool = False
    blind: bool = False


ATTACKS: Final[Mapping[LimitedAttack, Attack]] = {
    "link-similarity": Attack("edges", ("embedding", "initial", "posteriors"), edges.similarity, blind=True),
    "link-supervised": Attack("edges", ("embedding", "posteriors"), edges.supervised),
    "link-propagation": Attack("edges", ("propagation",), edges.propagated, blind=True),
    "link-influence": Attack("edges", ("inference",), edges.influenced),
    "link-combination": Attack("edges", ("embedding", "propagation"), combinations.combined, blind=True),
    "attribute": Attack("features", ("embedding", "initial", "posteriors"), features.attribute),
    "attribute-release": Attack("features", ("releases",), features.from_release),
    "reconstruction": Attack("features", ("initial",), features.reconstruction),
    "feature-similarity": Attack("features", ("initial",), features.similarity, blind=True),
    "known-weights": Attack("features", ("initial",), weights.recovered),
    "equation-solving": Attack("features", ("embedding", "initial", "posteriors"), outputs.solved),
    "generative-regression": Attack("features", ("embedding", "posteriors"), outputs.generated),
    "label-gradient": Attack("labels", ("gradients",), labels.from_gradients, of_labels=True),
    "label-completion": Attack("labels", ("gradients", "embedding"), labels.completed, of_labels=True),
    "label-blind": Attack("labels", ("gradients",), labels.blind, of_labels=True, blind=True),
    "membership-gradient": Attack("membership", ("gradients",), members.from_gradients, of_labels=True, blind=True),
    "membership-confidence": Attack("membership", ("posteriors",), members.from_confidence, of_labels=True),
    "membership-shadow": Attack("membership", ("posteriors",), members.from_shadows, of_labels=True),
    "membership-lira": Attack("membership", ("posteriors",), members.from_likelihoods, of_labels=True),
    "membership-lira-online": Attack("membership", ("posteriors",), members.from_both_likelihoods, of_labels=True),
}
"""Attacks on what a party is meant to have. ``uniformity`` is of what must say nothing, ``epsilon`` of canaries, and
``audit.mounts.checks`` has those of what a run claims."""
