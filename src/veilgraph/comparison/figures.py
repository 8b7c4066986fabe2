"""What predictions of test nodes are worth, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

Floats = NDArray[np.float64]
Classes = NDArray[np.int64]

DRAWS: Final = 200
"""Bootstrap samples: their 2.5 % and 97.5 % quantiles are moved by few thousandths from one set to another."""


@dataclass(frozen=True)
class Tested:
    """Predictions of one seed's test nodes.

    Attributes:
        labels: [T], of the test nodes.
        likely: [T, C] probabilities.
    """

    labels: Classes
    likely: Floats


@dataclass(frozen=True)
class Estimate:
    """A figure over seeds.

    Attributes:
        value: mean over seeds.
        low: of the 95 % interval, over nodes and seeds.
        high: likewise.
        draws: [DRAWS] means over seeds of samples of nodes; of one study all are of the same samples.
    """

    value: float
    low: float
    high: float
    draws: Floats

    def above(self, other: Estimate) -> Estimate:
        """How far it is above another on the same nodes."""
        return _estimate(self.value - other.value, self.draws - other.draws)


def figures(found: Tested, alarms: float) -> dict[str, float]:
    """Of predictions; NaN where a class is missing.

    Args:
        found: the predictions.
        alarms: share of the nodes that are looked at, for the recall of class 1 among those most likely of it.
    """
    labels, likely = found.labels, found.likely
    predicted = likely.argmax(axis=1)
    whole = len(np.unique(labels)) == likely.shape[1]
    f1 = float(f1_score(labels, predicted, average="macro", zero_division=0.0))
    if likely.shape[1] != 2:
        auc = roc_auc_score(labels, likely, multi_class="ovr", labels=range(likely.shape[1])) if whole else np.nan
        return {"auc": float(auc), "f1": f1, "accuracy": float((predicted == labels).mean())}
    score, positive = likely[:, 1], labels == 1
    looked_at = np.argsort(-score, kind="stable")[: max(1, round(alarms * len(labels)))]
    return {
        "auc": float(roc_auc_score(labels, score)) if whole else np.nan,
        "pr_auc": float(average_precision_score(labels, score)) if whole else np.nan,
        "recall": float(positive[looked_at].sum() / positive.sum()) if whole else np.nan,
        "f1": f1,
    }


def estimates(found: Sequence[Tested], alarms: float, seed: int = 0) -> Mapping[str, Estimate]:
    """Means over seeds, with intervals by a bootstrap of seeds and, within each, of its test nodes.

    Args:
        found: of each seed. Two ways are compared on the same samples if they are of the same nodes, seed by seed.
        alarms: as in ``figures``.
        seed: of the samples.
    """
    each = [figures(one, alarms) for one in found]
    generator, draws = np.random.default_rng(seed), list[dict[str, float]]()
    for _ in range(DRAWS):
        sampled = list[dict[str, float]]()
        for place in generator.integers(len(found), size=len(found)):
            rows = generator.integers(len(found[place].labels), size=len(found[place].labels))
            sampled.append(figures(Tested(found[place].labels[rows], found[place].likely[rows]), alarms))
        draws.append({name: float(np.mean([one[name] for one in sampled])) for name in each[0]})
    return {
        name: _estimate(float(np.mean([one[name] for one in each])), np.array([draw[name] for draw in draws]))
        for name in each[0]
    }


def _estimate(value: float, draws: Floats) -> Estimate:
    known = draws[~np.isnan(draws)]
    low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (np.nan, np.nan)
    return Estimate(value, float(low), float(high), draws)
