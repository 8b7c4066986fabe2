"""The data that GAP and releases with noise in every hop are measured on, and the jobs: see ``research.gap_beside``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.aggregation import bound_degrees
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job

LEVELS: Final = ("edge", "node")
EPSILONS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True)
class Set:
    """Data to measure on.

    Attributes:
        name: of the data set.
        figure: AUC or accuracy, on the test nodes.
        holders: how many share its columns and edges.
        bound: D of level node.
        local: the label holder's own hops, and what else its network has that is not as on Cora.
        train: likewise of its training.
    """

    name: str
    figure: str = "accuracy"
    holders: int = 2
    bound: int = 20
    local: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)


SETS: Final = (
    Set("cora"),
    Set("pubmed"),
    Set("facebook", bound=50, local={"hops": 4}),
    Set("github", "auc", bound=50, local={"hops": 4}),
    Set("amazon", "auc", holders=3, bound=50, local={"hops": 4}),
)


def job_of(each: Set, level: str, epsilon: float, seed: int, own_rows: str = "noised") -> JobSettings:
    """The job of a set at a total ε; infinity: nothing is noised."""
    noise = {"epsilon_total": epsilon} if math.isfinite(epsilon) else {"noise_multiplier": 0.0}
    unit = {"unit": "edge"} if level == "edge" else {"unit": "node-edges", "degree_bound": each.bound}
    auc = each.figure == "auc"
    return parse_job(
        {
            "preset": "paper",
            "seed": seed,
            "data": {"dataset": each.name, "holders": each.holders, "label_holder": "A", "feature_scaling": "row"},
            "model": {
                "dim": 64,
                "initial": {"method": "individual", "activation": "relu", "dropout": 0.5},
                "local": {"model": "appnp", "hops": 20, "teleport": 0.05, "activation": "none", **each.local},
                "combine": {"strategy": "concat"},
                "server": {"layers": 0, "dropout": 0.5},
            },
            "train": {
                **{"epochs": 300, "evaluate_every": 2, "patience": 50, "learning_rate": 0.03, "weight_decay": 5e-3},
                **({"select_by": "auc", "class_weights": "balanced"} if auc else {}),
                **each.train,
            },
            "privacy": {"aggregation": {"hops": 2, "dim": 64, "own_rows": own_rows}, **noise, **unit},
        }
    )


def bounded(graph: PartyGraph, bound: int) -> PartyGraph:
    """The graph without edges beyond the first D at a node: a choice that no ε covers."""
    kept = bound_degrees(graph.edge_index, graph.num_nodes, bound)
    weight = None if graph.edge_weight is None else graph.edge_weight[kept]
    return replace(graph, edge_index=graph.edge_index[:, kept], edge_weight=weight)
