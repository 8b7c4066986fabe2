"""The accuracy tables of VFGNN (section 4), and some of ours on its data: several rounds, ACM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from research.grid import Entry, Kind
from research.table import Table

ARXIV: Final = "ogbn-arxiv"
_JOBS: Final = {"cora": "cora", "pubmed": "pubmed", "citeseer": "citeseer", ARXIV: "arxiv"}
_STRATEGIES: Final = {"VFGNN_C": "concat", "VFGNN_M": "mean", "VFGNN_R": "regression"}

_TABLE_2: Final[dict[str, tuple[Kind, tuple[float, ...]]]] = {
    "GraphSAGE_A": ("isolated-A", (0.611, 0.672, 0.541, 0.471)),
    "GraphSAGE_B": ("isolated-B", (0.606, 0.703, 0.457, 0.482)),
    "VFGNN_C": ("federated", (0.790, 0.774, 0.685, 0.513)),
    "VFGNN_M": ("federated", (0.809, 0.781, 0.695, 0.522)),
    "VFGNN_R": ("federated", (0.802, 0.782, 0.693, 0.518)),
    "GraphSAGE_A+B": ("pooled", (0.815, 0.791, 0.700, 0.529)),
}
_TABLE_3: Final = {(9, 1): (0.809, 0.805, 0.809), (8, 2): (0.802, 0.796, 0.807), (7, 3): (0.793, 0.793, 0.803)}
_TABLE_4: Final = {2: (0.790, 0.809, 0.802), 3: (0.749, 0.774, 0.760), 4: (0.712, 0.733, 0.722)}
_ROUNDS_DATASETS: Final = ("cora", "pubmed", "citeseer")
_ROUNDS_PAPER: Final[dict[int, tuple[float | None, ...]]] = {
    2: (0.809, 0.781, 0.695),
    3: (0.774, None, None),
    4: (0.733, None, None),
}


def _table_2() -> Table:
    entries = []
    for row, (kind, figures) in _TABLE_2.items():
        overrides = {"model.combine.strategy": _STRATEGIES[row]} if row in _STRATEGIES else {}
        for (dataset, job), paper in zip(_JOBS.items(), figures, strict=True):
            entries.append(Entry(row, dataset, dataset, job, kind, overrides, paper))
    title = "VFGNN Table 2: two holders with half of the features and edges each"
    return Table(title, "model", tuple(entries), on_request=frozenset({ARXIV}))


def _cora(row: str, changes: Mapping[str, object], figures: tuple[float, ...]) -> list[Entry]:
    """A row of Cora figures, one for each strategy."""
    return [
        Entry(row, name, "cora", "cora", "federated", {**changes, "model.combine.strategy": strategy}, paper)
        for (name, strategy), paper in zip(_STRATEGIES.items(), figures, strict=True)
    ]


def _table_2_network() -> Table:
    own: Mapping[str, object] = {"model.server.activation": "sigmoid", "model.local.hops": 2}
    plain: Mapping[str, object] = {
        "model.initial.learning_rate": 0.1,
        "model.initial.weight_decay": 0.0,
        "model.initial.activation": "none",
        "model.initial.dropout": 0.0,
    }
    hops: Mapping[str, object] = {"model.local.start": "glorot", "model.local.learning_rate": None}
    rows: dict[str, Mapping[str, object]] = {
        "as shipped": {},
        "sigmoid at the server": {"model.server.activation": "sigmoid"},
        "Glorot hops": hops,
        "K = 2": {"model.local.hops": 2},
        "all three: the paper's own": {**own, **hops},
        "the same, hops at the shipped rate": {**own, "model.local.start": "glorot"},
        "the same, W as by default": {**own, **hops, **plain},
    }
    entries = []
    for row, changes in rows.items():
        entries += _cora(row, changes, tuple(_TABLE_2[name][1][0] for name in _STRATEGIES))
    return Table(
        "VFGNN Table 2 on Cora with the paper's own network",
        "network",
        tuple(entries),
        note="All other settings are the shipped job's, chosen for the shipped network. Glorot hops learn at the rate "
        "of the other weights, or at the shipped 3e-4. W as by default learns at 0.1 in place of 10, without decay, "
        "activation or dropout.",
    )


def _table_3() -> Table:
    entries = []
    unscaled = {"data.feature_scaling": "none", "model.initial.learning_rate": 0.5}
    for shares, figures in _TABLE_3.items():
        changes = {"data.feature_proportions": shares, "data.edge_proportions": shares, **unscaled}
        entries += _cora(f"{shares[0]}:{shares[1]}", changes, figures)
    return Table(
        "VFGNN Table 3: Cora, features and edges divided unevenly",
        "A:B",
        tuple(entries),
        note="Features are not scaled here: rows scaled to sum 1 at each holder by itself would give the few columns "
        "of one holder as much say as the many of the other.",
    )


def _table_4() -> Table:
    entries = []
    for holders, figures in _TABLE_4.items():
        entries += _cora(str(holders), {"data.holders": holders}, figures)
    return Table("VFGNN Table 4: Cora, more holders with even parts", "holders", tuple(entries))


def _rounds() -> Table:
    entries = []
    for holders, figures in _ROUNDS_PAPER.items():
        for dataset, paper in zip(_ROUNDS_DATASETS, figures, strict=True):
            changes = {"data.holders": holders}
            entries.append(Entry(str(holders), dataset, dataset, f"{dataset}-rounds", "federated", changes, paper))
    for dataset, paper in zip(_ROUNDS_DATASETS, _TABLE_2["GraphSAGE_A+B"][1], strict=False):
        entries.append(Entry("pooled", dataset, dataset, f"{dataset}-rounds", "pooled", {}, paper))
    return Table(
        "Several exchange rounds and the degree-weighted mean, against pooled data",
        "holders",
        tuple(entries),
        note="The paper has neither; beside ours stand its VFGNN_M, with one round, and for pooled its GraphSAGE_A+B.",
    )


def _acm() -> Table:
    rows: dict[str, Kind] = {
        "A alone": "isolated-A",
        "B alone": "isolated-B",
        "federated": "federated",
        "pooled": "pooled",
    }
    return Table(
        "ACM: two relations over the same papers, one at each holder",
        "training",
        tuple(Entry(row, "acm", "acm", "acm", kind, {}, None) for row, kind in rows.items()),
        note="The paper has no such data set.",
    )


VFGNN_TABLES: Final[dict[str, Table]] = {
    "table2": _table_2(),
    "table3": _table_3(),
    "table4": _table_4(),
    "rounds": _rounds(),
    "acm": _acm(),
    "table2-network": _table_2_network(),
}
"""The tables by the name the command line uses."""
