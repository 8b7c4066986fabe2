"""Simulated vertical splits of one graph over several holders, and the way back.

Every holder knows all nodes; columns and edges each belong to exactly one holder (VFGNN 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.features import choose_columns, compact, join_columns
from veilgraph.graph.federation import check_aligned, find_label_holder
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.rules import DTYPE, EVERY, Relation, check_name

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data

POOLED: PartyId = "pooled"


def split_vertically(
    data: Data,
    *,
    names: Sequence[PartyId],
    feature_proportions: Sequence[float] | None = None,
    edge_proportions: Sequence[float] | None = None,
    label_holder: PartyId,
    seed: int,
    num_classes: int | None = None,
) -> list[PartyGraph]:
    """Deals the columns and edges of a graph to holders at random.

    The two directions of an undirected edge (and every copy of it) stay together; where some edge lacks its
    reverse the graph is taken as directed and every direction is dealt by itself. Weights follow their edges.

    Args:
        data: ``x`` [N, F] dense or sparse, ``edge_index``, optional weights, ``y`` and masks.
        names: the holders.
        feature_proportions: share of the columns per holder in any unit; default: even. At least one column each.
        edge_proportions: share of the undirected edges per holder in any unit; default: even.
        label_holder: the one holder that gets labels and masks.
        seed: fixes the split; the same for every process.
        num_classes: default: the largest label plus one.

    Returns:
        One graph per holder, in the order of ``names``; valid, as the whole is, which is checked.

    Raises:
        DataError: fewer columns than holders, proportions that do not fit, or data that breaks a party's rule.
    """
    whole = PartyGraph.from_data(label_holder, data, num_classes)
    generator = torch.Generator().manual_seed(seed)
    columns = deal_columns(whole.num_features, names, feature_proportions, generator)
    owner = deal_edges(whole, names, edge_proportions, generator)
    features = compact(whole.features)
    parts = []
    for index, name in enumerate(names):
        check_name(name)
        mine = compact(choose_columns(features, columns[index]))
        parts.append(_dealt(whole, name, mine, owner == index, has_labels=name == label_holder))
    return parts


def _dealt(whole: PartyGraph, name: PartyId, features: Tensor, edges: Tensor, *, has_labels: bool) -> PartyGraph:
    """A holder's part of a graph: columns, some of the edges, Tensor[E] bool, and perhaps the labels."""
    mine = whole.with_edges(edges)
    return PartyGraph(
        party=name,
        features=features,
        edge_index=mine.edge_index,
        edge_weight=mine.edge_weight,
        edge_relation=mine.edge_relation,
        edge_features=mine.edge_features,
        relations=whole.relations,
        **(whole.label_fields if has_labels else {}),
    )


def split_for_learner(
    whole: PartyGraph, *, names: Sequence[PartyId], learner: PartyId, labels_at: PartyId, seed: int
) -> list[PartyGraph]:
    """Divides a graph as paradigm node-dp has it: one holder knows all edges, the others' nodes have the features.

    Args:
        whole: validated, with labels and masks.
        names: the holders.
        learner: who gets the edges, and one column of zeros, as every holder has a column.
        labels_at: who gets the labels and masks.
        seed: of the deal of the columns to the other holders, even shares.

    Raises:
        DataError: fewer columns than holders that get some.
    """
    others = [name for name in names if name != learner]
    dealt = deal_columns(whole.num_features, others, None, torch.Generator().manual_seed(seed))
    columns = dict(zip(others, dealt, strict=True))
    whole, parts = whole.merged(), []
    for name in names:
        learns = name == learner
        features = torch.zeros(whole.num_nodes, 1) if learns else choose_columns(whole.features, columns[name])
        edges = torch.full((whole.num_edges,), learns)
        part = _dealt(whole, name, compact(features), edges, has_labels=name == labels_at)
        # who has no edges has none to weigh either
        parts.append(part if learns else replace(part, edge_weight=None, edge_features=None))
    return parts


def deal_columns(
    num_features: int, names: Sequence[PartyId], proportions: Sequence[float] | None, generator: torch.Generator
) -> list[Tensor]:
    """Column numbers per holder, ascending: a random partition in the given proportions, none of them empty."""
    if num_features < len(names):
        raise DataError(
            f"features: {num_features} columns cannot be divided among {len(names)} holders, which need at least one "
            "each; take fewer holders"
        )
    order = torch.randperm(num_features, generator=generator)
    cuts = _cuts(num_features, len(names), proportions, "feature_proportions", least=1)
    return [order[start:end].sort().values for start, end in pairwise(cuts)]


def deal_edges(
    graph: PartyGraph, names: Sequence[PartyId], proportions: Sequence[float] | None, generator: torch.Generator
) -> Tensor:
    """Which holder gets each edge: Tensor[E] int64, an index into ``names``."""
    pair, pairs = _pairs(graph.edge_index, graph.num_nodes)
    cuts = _cuts(pairs, len(names), proportions, "edge_proportions", least=0)
    owner_of_pair = torch.empty(pairs, dtype=torch.int64)
    order = torch.randperm(pairs, generator=generator)
    for holder, (start, end) in enumerate(pairwise(cuts)):
        owner_of_pair[order[start:end]] = holder
    return owner_of_pair[pair]


def _pairs(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, int]:
    """The number of each edge's pair, Tensor[E], and how many pairs there are."""
    source, target = edge_index
    there, back = source * num_nodes + target, target * num_nodes + source
    symmetric = torch.equal(there.unique(), back.unique())
    keys, pair = torch.unique(torch.minimum(there, back) if symmetric else there, return_inverse=True)
    return pair, len(keys)


def _cuts(total: int, holders: int, proportions: Sequence[float] | None, argument: str, least: int) -> list[int]:
    shares = torch.ones(holders, dtype=torch.float64)
    if proportions is not None:
        if len(proportions) != holders or any(not 0 < share < float("inf") for share in proportions):
            raise DataError(
                f"{argument}={list(proportions)} must be {holders} finite numbers above 0, one per holder; mend it"
            )
        shares = torch.tensor(list(proportions), dtype=torch.float64)
    ends = (shares.cumsum(0) / shares.sum() * total).round().long().tolist()
    cuts = [0, *ends[:-1], total]
    for holder in range(1, holders):  # room for those before, then for those after
        cuts[holder] = min(max(cuts[holder], cuts[holder - 1] + least), total - least * (holders - holder))
    return cuts


def isolate(graphs: Sequence[PartyGraph], party: PartyId, label_holder: PartyId) -> PartyGraph:
    """What one holder could learn from by itself, judged as the federation is.

    It has all its nodes, those that the others do not know included; validation and test nodes are common ones. Without
    labels of its own it is lent the label holder's, as in the paper, so that figures tell what its features and edges
    are worth.
    """
    own = next(graph for graph in graphs if graph.party == party)
    labelled = find_label_holder(graphs, label_holder)
    common, only_own = own.common, own.num_nodes - own.common

    def of_common(values: Tensor | None, elsewhere: int) -> Tensor | None:
        return None if values is None else torch.cat([values[:common], values.new_full((only_own,), elsewhere)])

    trains = own is labelled  # its own nodes have labels then
    return replace(
        own,
        num_common=None,
        labels=own.labels if trains else of_common(labelled.labels, -1),
        train_mask=own.train_mask if trains else of_common(labelled.train_mask, False),
        val_mask=of_common(labelled.val_mask, False),
        test_mask=of_common(labelled.test_mask, False),
        num_classes=labelled.num_classes,
    )


def pool(graphs: Sequence[PartyGraph], label_holder: PartyId, *, relational: bool = False) -> PartyGraph:
    """Everything in one place, as no holder may have it: the plaintext graph that federated training is compared with.

    Columns are concatenated in the holders' order. Edges are united: one that several holders have appears once,
    with the sum of their weights, so that the pooled adjacency matrix is the sum of the holders'.

    Only the common nodes and the edges between them: which of their own nodes several holders share is not known
    here, so nodes of a single holder are left out.

    Args:
        graphs: all holders' graphs.
        label_holder: whose labels and masks the pooled graph gets.
        relational: keep all edges of all holders as they are, each holder's relations as relations of their own; a
            holder that tells none apart has one.

    Raises:
        DataError: the counts of common nodes differ, or ``label_holder`` is not among the holders or has no labels.
    """
    check_aligned({graph.party: graph.common for graph in graphs})
    graphs = [graph.common_part() for graph in graphs]
    labelled = find_label_holder(graphs, label_holder)
    return replace(_side_by_side(graphs) if relational else _united(graphs), **labelled.label_fields)


def _united(graphs: Sequence[PartyGraph]) -> PartyGraph:
    """All columns, and every edge once."""
    edges, weights = _edges(graphs)
    unique, place = torch.unique(edges, dim=1, return_inverse=True)
    features = join_columns([graph.features for graph in graphs])
    weighted = any(graph.edge_weight is not None for graph in graphs)
    if not weighted and unique.shape[1] == edges.shape[1]:
        return PartyGraph(POOLED, features, unique)
    total = torch.bincount(place, weights=weights, minlength=unique.shape[1])
    return PartyGraph(POOLED, features, unique, total.to(torch.float32))


def _side_by_side(graphs: Sequence[PartyGraph]) -> PartyGraph:
    """All columns and edges, and all relations, called ``holder/name``."""
    edges, weights = _edges(graphs)
    relations, places = list[Relation](), []
    for graph in graphs:
        own = torch.zeros(graph.num_edges) if graph.edge_relation is None else graph.edge_relation
        places.append(own.to(DTYPE) + len(relations))
        relations += [replace(each, name=f"{graph.party}/{each.name}") for each in graph.relations or (EVERY,)]
    features = join_columns([graph.features for graph in graphs])
    told = {"edge_relation": torch.cat(places), "relations": tuple(relations)}
    return PartyGraph(POOLED, features, edges, weights.to(torch.float32), **told)  # type: ignore[arg-type]


def _edges(graphs: Sequence[PartyGraph]) -> tuple[Tensor, Tensor]:
    """All edges, Tensor[2, E], and what they weigh, Tensor[E] float64."""
    weights = [
        torch.ones(graph.num_edges, dtype=torch.float64) if graph.edge_weight is None else graph.edge_weight.double()
        for graph in graphs
    ]
    return torch.cat([graph.edge_index for graph in graphs], dim=1), torch.cat(weights)
