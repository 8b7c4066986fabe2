"""Which class training nodes have: from the gradients that come back, or from embeddings and a few known labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from veilgraph.audit.attack import Attack
from veilgraph.audit.attacks.blind_labels import blind_labels
from veilgraph.audit.attacks.label_gradients import directions
from veilgraph.audit.attacks.labels import accuracy, flattened, label_scores
from veilgraph.audit.case import Case, Nodes, some_of_each
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.finding import Outcome
from veilgraph.audit.roc import Floats, Truth
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId

_KNOWN_PER_CLASS: Final = 3
_MOST: Final = 2000
_STEPS: Final = 50
"""Gradients of later steps are smaller, and turn."""


def from_gradients(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """Gradients of one class point the same way: clusters of training nodes around a few whose class is known."""
    return _inferred("clusters", evidence, case, adversary, target, training=True)


def completed(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """A model of the class, learned from a few known labels, on gradients or embeddings (Fu et al. 2022)."""
    return _inferred("completion", evidence, case, adversary, target, training=bool(evidence.steps))


def blind(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """Which training nodes are of one class, by who knows no label (Arazzi et al. 2023)."""
    steps = evidence.steps[:_STEPS]
    nodes, asked = case.classmates(target, steps)
    found = blind_labels(np.stack([step[nodes] for step in steps]), seed=case.seed)
    accuracy_, classes = case.agreement(target, nodes, found.groups)
    own, pooled = case.own_rows(adversary, target), case.pooled_rows(target)

    def alike(rows: Floats) -> Floats:
        unit = directions(rows[nodes] - rows[nodes].mean(axis=0))
        return np.asarray((unit[asked.pairs[:, 0]] * unit[asked.pairs[:, 1]]).sum(axis=1))

    return Outcome(
        found.pair_scores(asked.pairs),
        asked.truth,
        without=None if own is None else alike(own),
        pooled=None if pooled is None else alike(pooled),
        accuracy=accuracy_,
        note=f"Are two training nodes of one class? No label is known; {found.shares.shape[1]} groups were found"
        f"{classes}. The accuracy is that of groups with the names that fit them best. Without and "
        "pooled: similarity of features.",
    )


def _inferred(
    attack: str, evidence: Evidence, case: Case, adversary: PartyId, target: PartyId, *, training: bool
) -> Outcome:
    labels, train, test, classes = case.labels(target)
    asked = train if training else test
    asked = asked[labels[asked] >= 0]
    known = few_of_each(labels, train, classes, case.seed)
    nodes = some_of_each(np.setdiff1d(asked, known), labels, _MOST, case.seed)
    rows = np.concatenate([known, nodes])  # with noise, rows of others would blur the classes
    own, pooled = case.own_rows(adversary, target), case.pooled_rows(target)

    def scores(attack: str, steps: Sequence[Floats], embeddings: Floats | None) -> Floats:
        return label_scores(
            attack,
            np.stack([step[rows] for step in steps[:_STEPS]]) if steps else None,
            known_nodes=np.arange(len(known)),
            known_labels=labels[known],
            classes=classes,
            embeddings=None if embeddings is None else embeddings[rows],
            seed=case.seed,
        )

    def flat(found: Floats) -> tuple[Floats, Truth]:
        asked = np.arange(len(known), len(rows))
        centred = found - found[asked].mean(axis=0)  # or a class would be ranked high for being frequent
        return flattened(centred, labels[rows], asked)

    found = scores(attack, evidence.steps, evidence.rows)
    values, truth = flat(found)
    return Outcome(
        values,
        truth,
        without=None if own is None else flat(scores("completion", (), own))[0],
        pooled=None if pooled is None else flat(scores("completion", (), pooled))[0],
        accuracy=accuracy(found, labels[rows], np.arange(len(known), len(rows))),
        note=f"{'Training' if training else 'Test'} nodes; {_KNOWN_PER_CLASS} training nodes of each class are known "
        "(of fewer, all but one). Pooled: the same from all holders' features.",
    )


def few_of_each(labels: Nodes, nodes: Nodes, classes: int, seed: int) -> Nodes:
    """A few nodes of every class, whose labels the adversary knows.

    Raises:
        DataError: a class has too few.
    """
    random, found = np.random.default_rng(seed), list[Nodes]()
    for label in range(classes):
        some = nodes[labels[nodes] == label]
        if len(some) < 2:
            raise DataError(
                f"labels: class {label} has {len(some)} training nodes; the attack knows one or more of each and asks "
                "for the rest"
            )
        size = min(_KNOWN_PER_CLASS, len(some) - 1)  # the strongest attacker that has a node left to ask for
        found.append(random.choice(some, size=size, replace=False))
    return np.sort(np.concatenate(found))


FROM_GRADIENTS: Final = Attack("labels", ("gradients",), from_gradients, of_labels=True)
COMPLETED: Final = Attack("labels", ("gradients", "embedding", "masked"), completed, of_labels=True)
BLIND: Final = Attack("labels", ("gradients",), blind, of_labels=True, blind=True)
