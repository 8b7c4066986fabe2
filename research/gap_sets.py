"""The data that GAP is measured on: see ``research.gap_beside``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

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
    """

    name: str
    figure: str = "accuracy"
    holders: int = 2
    bound: int = 20


SETS: Final = (
    Set("cora"),
    Set("pubmed"),
    Set("facebook", bound=50),
    Set("github", "auc", bound=50),
    Set("amazon", "auc", holders=3, bound=50),
)


def job_of(each: Set, seed: int) -> JobSettings:
    """The job whose data, division and figure a set's are."""
    auc = each.figure == "auc"
    return parse_job(
        {
            "preset": "paper",
            "seed": seed,
            "data": {"dataset": each.name, "holders": each.holders, "label_holder": "A", "feature_scaling": "row"},
            "train": {"select_by": "auc", "class_weights": "balanced"} if auc else {},
        }
    )


def bounded(graph: PartyGraph, bound: int) -> PartyGraph:
    """The graph without edges beyond the first D at a node: a choice that no ε covers."""
    kept = bound_degrees(graph.edge_index, graph.num_nodes, bound)
    weight = None if graph.edge_weight is None else graph.edge_weight[kept]
    return replace(graph, edge_index=graph.edge_index[:, kept], edge_weight=weight)
