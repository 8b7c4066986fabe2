"""What is attacked, what the adversaries have, and what an attack comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from research.attack_strength_models import PlainSettings
from veilgraph.audit.statistics import Truth
from veilgraph.protocol.view import Floats

_OVERFIT: Final = PlainSettings("GCN", width=32, epochs=100)
_OVERFIT_SAGE: Final = PlainSettings("GraphSAGE", width=32, epochs=100)
_TRAINED: Final = PlainSettings("GCN", width=16, epochs=200, dropout=0.5, weight_decay=5e-4)
"""As Kipf & Welling train theirs."""
_TRAINED_WIDE: Final = PlainSettings("GCN", width=64, epochs=200, dropout=0.5, weight_decay=5e-4)


@dataclass(frozen=True)
class StrengthSettings:
    """What is attacked, and what the adversaries have.

    Attributes:
        inductive: networks overfit on a subgraph, for membership.
        transductive: network overfit on few labels, for membership.
        out_models: trained for LiRA; even.
        links: network whose links are stolen.
        attributes: network whose embeddings are searched for attributes.
        training_share: of the nodes, whose labels the last two networks learn from.
        partial_share: of the linked and the unlinked pairs, that A* knows.
        frequent: attributes that an adversary has are those that at least so many nodes have.
        words: private attributes, taken out of the network's input.
        auxiliary_share: of the nodes, whose private attribute the adversary knows.
        queries: nodes whose features are changed, for links by influence.
        split_width: of the embeddings of the network that is split between two holders, for labels.
        split_epochs: of its training.
    """

    inductive: tuple[PlainSettings, ...] = (_OVERFIT, _OVERFIT_SAGE)
    transductive: PlainSettings = _OVERFIT
    out_models: int = 16
    links: PlainSettings = _TRAINED
    attributes: PlainSettings = _TRAINED_WIDE
    training_share: float = 0.1
    partial_share: float = 0.5
    frequent: int = 30
    words: int = 3
    auxiliary_share: float = 0.5
    queries: int = 100
    split_width: int = 32
    split_epochs: int = 30


@dataclass(frozen=True, eq=False)
class Attacked:
    """An attack's targets.

    Attributes:
        scores: [T] float64, higher = positive.
        truth: [T] bool.
        threshold: fixed without the targets' truth; None where the attack has none.
        others: figures of the attack alone, by name.
    """

    scores: Floats
    truth: Truth
    threshold: float | None = None
    others: Mapping[str, float] = field(default_factory=dict)


def own_seed(seed: int, number: int) -> int:
    """A seed of its own for every draw of a seed."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
