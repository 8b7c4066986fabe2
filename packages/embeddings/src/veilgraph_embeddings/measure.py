"""How well an attribute, or an edge, is told from embeddings: figures with bootstrap intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from veilgraph.audit.statistics import Interval
from veilgraph.protocol.view import Floats
from veilgraph_embeddings.attackers import Codes

_SAMPLES: Final = 2000
_CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Told:
    """What one family tells of an attribute.

    Attributes:
        family: of the model.
        advantage: mean share of each class that is told right, above that of a guess, with 1 for always right: of two
            classes, true less false positive rate. Naming the most frequent class has 0. Below 0 the answers are turned
            round, as an attacker does who tries its models on nodes that it knows: embeddings in which what is hidden
            has been evened out over *all* nodes lean the other way at some if they lean one way at others.
        accuracy: share that is told right by the most probable class.
        prior: the same for naming the most frequent class.
    """

    family: str
    advantage: Interval
    accuracy: Interval
    prior: float


def told(family: str, probabilities: Floats, truth: Codes, shares: Floats, *, seed: int) -> Told:
    """Scores a family's answers.

    Args:
        family: its name.
        probabilities: [T, C].
        truth: [T] int64.
        shares: [C], of the classes among the nodes that it learnt from.
        seed: of the bootstrap.

    Classes without a target do not count. A bootstrap sample has as many targets of each class as there are, so that a
    class's share of right answers is binomial (Efron & Tibshirani 1993, chapter 13, with strata).
    """
    random = np.random.default_rng(seed)
    evened = np.divide(probabilities, shares, out=np.zeros_like(probabilities), where=shares > 0)
    counts = np.bincount(truth, minlength=len(shares))
    there = counts > 0
    right = np.bincount(truth, weights=evened.argmax(axis=1) == truth, minlength=len(shares))[there]
    classes = int(there.sum())
    drawn = random.binomial(counts[there], right / counts[there], size=(_SAMPLES, classes)) / counts[there]
    hits = probabilities.argmax(axis=1) == truth
    drawn_hits = random.binomial(len(truth), hits.mean(), size=_SAMPLES) / len(truth)
    value, values = _above((right / counts[there]).mean(), classes), _above(drawn.mean(axis=1), classes)
    turn = 1.0 if value >= 0 else -1 / (classes - 1)  # any other class instead
    return Told(
        family,
        _interval(turn * value, turn * values),
        _interval(float(hits.mean()), drawn_hits),
        float((truth == shares.argmax()).mean()),
    )


def _above(recall: float | Floats, classes: int) -> float | Floats:
    """0 for a guess, 1 for always right."""
    guess = 1 / classes
    return (recall - guess) / (1 - guess) if classes > 1 else recall * 0


def _interval(value: float | Floats, drawn: float | Floats) -> Interval:
    low, high = np.quantile(drawn, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return Interval(float(value), float(low), float(high), _CONFIDENCE)


def best(found: list[Told]) -> Told:
    """The family with the greatest advantage; more than any single one of them would be known to have."""
    return max(found, key=lambda each: each.advantage.value)
