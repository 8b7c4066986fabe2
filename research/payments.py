"""What of a world of payments an account, a bank and all banks together give away, by plain models on plain columns.

``python -m research.payments [--seeds S] [--customers N] [--transfers T] [--needs-graph]`` prints the tables of
docs/guides/payments.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from veilgraph_datasets.settings import PATTERN_KINDS, PaymentsSettings
from veilgraph_datasets.world import PaymentsWorld, View, payments_world

NEEDS_GRAPH: Final[Mapping[str, float]] = {"communities": 0.9, "mules": 0.4, "signal": 2.0}
"""Of a world in which columns say little and neighbours' columns much."""
WHO: Final = ("its own columns", "its own graph", "all banks' graph")
ALARMS: Final = 0.05
"""Share of a bank's customers that it looks into: those with the highest scores."""
ALL: Final = "all"
"""Key of the recall of all patterns together."""
TRAIN: Final = 0
TEST: Final = 2
"""Of a world's splits."""

Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Found:
    """What a bank finds among its own customers, the mean over all banks and patterns.

    Attributes:
        auc: of launderers against others.
        recall: kind of pattern → share of its members that are among the alarms.
    """

    auc: float
    recall: dict[str, float]


def with_neighbours(seen: View) -> Rows:
    """Of every node its columns, the mean of its neighbours', and the mean of theirs: [n, 3·columns]."""
    x, rows = seen.features(), seen.rows
    source, target = np.concatenate([rows, rows[::-1]], axis=1)
    adjacency = coo_array((np.ones(len(source)), (target, source)), shape=(len(x), len(x))).tocsr()
    degree = np.maximum(adjacency.sum(axis=1), 1)[:, None]
    once = adjacency @ x / degree
    return np.asarray(np.hstack([x, once, adjacency @ once / degree]), np.float64)


def score(train: NDArray[np.bool_], x: Rows, y: NDArray[np.bool_]) -> Rows:
    """Scores of all rows by a logistic regression that learnt from some."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(x[train], y[train])
    return np.asarray(model.decision_function(x), np.float64)


def findings(world: PaymentsWorld) -> dict[str, Found]:
    """What every bank finds among its own customers, by what it goes by, a key of ``WHO``."""
    customers, y = world.customers, world.launders
    together = score(world.split == TRAIN, with_neighbours(world.together()), y)
    aucs: dict[str, list[float]] = {who: [] for who in WHO}
    alarms = {who: np.zeros(len(y), np.bool_) for who in WHO}
    for bank, name in enumerate(world.banks):
        seen = world.view(name)
        mine = customers.first[seen.nodes] == bank
        train = mine & (world.split[seen.nodes] == TRAIN)
        test = np.flatnonzero(mine & (world.split[seen.nodes] == TEST))
        columns = seen.features().astype(np.float64)
        nodes = seen.nodes[test]
        scores = (
            score(train, columns, y[seen.nodes])[test],
            score(train, with_neighbours(seen), y[seen.nodes])[test],
            together[nodes],
        )
        for who, each in zip(WHO, scores, strict=True):
            aucs[who].append(float(roc_auc_score(y[nodes], each)))
            alarms[who][nodes[np.argsort(-each)[: round(ALARMS * len(nodes))]]] = True
    return {who: Found(float(np.mean(aucs[who])), recall_of(world, alarms[who])) for who in WHO}


def recall_of(
    world: PaymentsWorld, alarms: NDArray[np.bool_], among: NDArray[np.bool_] | None = None
) -> dict[str, float]:
    """Kind of pattern, and ``ALL`` → share of its test members that are among the alarms.

    Args:
        world: with the truth.
        alarms: bool [customers].
        among: bool [customers], whom anybody looks at; None: all.
    """
    own = world.launders & (world.split == TEST) & (True if among is None else among)
    kinds = world.kind[world.pattern[own]]
    found = {
        kind: float(alarms[own][kinds == place].mean())
        for place, kind in enumerate(PATTERN_KINDS)
        if (kinds == place).any()
    }
    return found | {ALL: float(alarms[own].mean())}


def table(found: Sequence[dict[str, Found]]) -> str:
    """Means over worlds and sample standard deviations of the AUC, as Markdown."""
    lines = [f"| a bank has | AUC | {' | '.join(PATTERN_KINDS)} |", "|---" * (2 + len(PATTERN_KINDS)) + "|"]
    for who in WHO:
        aucs = [each[who].auc for each in found]
        spread = np.std(aucs, ddof=1) if len(aucs) > 1 else 0.0
        recalls = [np.nanmean([each[who].recall.get(kind, np.nan) for each in found]) for kind in PATTERN_KINDS]
        cells = " | ".join(f"{100 * recall:.0f} %" for recall in recalls)
        lines.append(f"| {who} | {np.mean(aucs):.3f} ± {spread:.3f} | {cells} |")
    return "\n".join(lines)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.payments", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--customers", type=int, default=50_000)
    parser.add_argument("--transfers", type=int, default=500_000)
    parser.add_argument("--needs-graph", action="store_true")
    asked = parser.parse_args()
    says = {"customers": asked.customers, "transfers": asked.transfers, **(NEEDS_GRAPH if asked.needs_graph else {})}
    settings = PaymentsSettings.model_validate(says)
    sys.stdout.write(table([findings(payments_world(settings, seed)) for seed in range(asked.seeds)]) + "\n")


if __name__ == "__main__":
    _main()
