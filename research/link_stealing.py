"""Link stealing of He et al. 2021 ("Stealing Links from Graph Neural Networks"): all eight attacks.

An adversary may also know the nodes' attributes (F), some of the target graph (A*: pairs whose truth it knows), and a
shadow graph with a model of its own (DS'): eight combinations, eight attacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from veilgraph.audit.pairs import (
    Classifier,
    KnownPairs,
    NodeRows,
    Pairs,
    describer,
    in_parts,
    pair_distances,
    train_classifier,
)
from veilgraph.core.errors import ConfigError
from veilgraph.protocol.view import Floats

Distances = Literal["outputs", "attributes", "reference", "difference", "both"]

_SIGNS: dict[Distances, dict[str, int]] = {
    "outputs": {"outputs": -1},
    "attributes": {"attributes": -1},
    "reference": {"reference": -1},
    "difference": {"reference": 1, "outputs": -1},
    "both": {"outputs": -1, "attributes": -1},
}
"""Distances → whose distances add to a score, with their sign."""


@dataclass(frozen=True, eq=False)
class Knowledge:
    """All that an adversary has; an attack uses the part that its line in ``STEALING`` names.

    Attributes:
        target: of the attacked graph's nodes; attributes and reference are F.
        partial: A*, known pairs of the attacked graph.
        shadow: DS', nodes and known pairs of another graph under a model like the attacked one.
    """

    target: NodeRows
    partial: KnownPairs | None = None
    shadow: tuple[NodeRows, KnownPairs] | None = None


@dataclass(frozen=True)
class LinkAttack:
    """An attack by what it uses: node attributes F, a partial graph A*, a shadow graph DS'."""

    attributes: bool = False
    partial: bool = False
    shadow: bool = False


STEALING: dict[int, LinkAttack] = {
    0: LinkAttack(),
    1: LinkAttack(shadow=True),
    2: LinkAttack(attributes=True),
    3: LinkAttack(partial=True),
    4: LinkAttack(partial=True, shadow=True),
    5: LinkAttack(attributes=True, shadow=True),
    6: LinkAttack(attributes=True, partial=True),
    7: LinkAttack(attributes=True, partial=True, shadow=True),
}
"""He et al. 2021, Table 2. 0 and 2 compare pairs by a distance; the others train a classifier."""


def link_scores(
    number: int,
    knowledge: Knowledge,
    pairs: Pairs,
    *,
    seed: int,
    distance: str = "correlation",
    evidence: Distances = "both",
    classifier: Classifier = "mlp",
) -> Floats:
    """Mounts one of the eight attacks: scores of pairs, [M] float64, higher = more likely linked.

    Args:
        number: of ``STEALING``.
        knowledge: at least what the attack uses; the rest is not read.
        pairs: [M, 2] int64, the attacked pairs; none of ``knowledge.partial``, or the figures flatter the attack.
        seed: of the classifier.
        distance: d, of attacks 0 and 2; of ``DISTANCES``.
        evidence: of attack 2, in He et al. ``outputs`` f: -d(f), which is attack 0; ``attributes`` x: -d(x), what an
            adversary could do without the model; ``reference`` g: -d(g), the same with a model; ``difference``:
            d(g) - d(f), what the edges brought nearer. Ours, and the strongest on Cora and CiteSeer: ``both``,
            -d(f) - d(x), meant for distances that do not depend on scale (cosine, correlation).
        classifier: of the other attacks.
    """
    if number not in STEALING:
        raise ConfigError(f"number={number!r} is no link stealing attack; choose one of 0 to {max(STEALING)}")
    attack = STEALING[number]
    _check_knowledge(number, attack, knowledge)
    target = _seen(knowledge.target, attack)
    if not attack.partial and not attack.shadow:
        return _distance_scores(target, pairs, distance, evidence if attack.attributes else "outputs")
    # features whose number depends on the classes mean nothing in another graph
    describe = describer(target, same_width=not attack.shadow)
    features, truth = _examples(attack, knowledge, describe)
    score = train_classifier(classifier, features, truth, seed=seed)
    return in_parts(score, describe, pairs)


def _distance_scores(target: NodeRows, pairs: Pairs, distance: str, evidence: Distances) -> Floats:
    if evidence not in _SIGNS:
        raise ConfigError(f"evidence={evidence!r} is unknown; choose one of {', '.join(_SIGNS)}")
    scores = np.zeros(len(pairs))
    for name, sign in _SIGNS[evidence].items():
        rows = getattr(target, name)
        if rows is None:
            raise ConfigError(f"evidence={evidence!r} needs the nodes' {name}; give them, or take another evidence")
        scores += sign * pair_distances(rows, pairs, distance)
    return scores


def _seen(nodes: NodeRows, attack: LinkAttack) -> NodeRows:
    return nodes if attack.attributes else NodeRows(nodes.outputs)


def _check_knowledge(number: int, attack: LinkAttack, knowledge: Knowledge) -> None:
    nodes = [knowledge.target, *([knowledge.shadow[0]] if attack.shadow and knowledge.shadow is not None else [])]
    missing = {
        "the nodes' attributes": attack.attributes and any(rows.attributes is None for rows in nodes),
        "a partial graph": attack.partial and knowledge.partial is None,
        "a shadow graph": attack.shadow and knowledge.shadow is None,
        "reference posteriors of both graphs or of neither": (
            attack.attributes and len({rows.reference is None for rows in nodes}) > 1
        ),
    }
    if any(missing.values()):
        names = ", ".join(name for name, lacks in missing.items() if lacks)
        raise ConfigError(f"number={number}: this attack needs {names}; give that, or take another attack")


def _examples(
    attack: LinkAttack, knowledge: Knowledge, describe: Callable[[Pairs], Floats]
) -> tuple[Floats, NDArray[np.bool_]]:
    features, truth = [], []
    if attack.partial and knowledge.partial is not None:
        features.append(describe(knowledge.partial.pairs))
        truth.append(knowledge.partial.truth)
    if attack.shadow and knowledge.shadow is not None:
        nodes, known = knowledge.shadow
        features.append(describer(_seen(nodes, attack), same_width=False)(known.pairs))
        truth.append(known.truth)
    return np.concatenate(features), np.concatenate(truth)
