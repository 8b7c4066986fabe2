"""Simulated horizontal splits of one graph: holders with different, overlapping nodes, edges and labels.

All holders have the same columns (SAPGNN, figure 1). ``veilgraph.graph.parts`` has the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph.features import choose_rows
from veilgraph.graph.partition import POOLED, deal_edges
from veilgraph.graph.parts import UNKNOWN, HorizontalPart
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.rules import check_name, check_shape

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data

Knows = Literal["own", "all"]
"""Which nodes a holder of a simulated split knows.

``own``: those dealt to it and those its edges touch; labels and masks go with the dealing, so that every label is at
one holder. ``all``: every node with its label, so that holders differ in their edges alone.
"""


def split_horizontally(
    data: Data,
    *,
    names: Sequence[PartyId],
    seed: int,
    overlap: float = 0.0,
    knows: Knows = "own",
    num_classes: int | None = None,
) -> list[HorizontalPart]:
    """Deals the edges of a graph to holders uniformly at random (SAPGNN 5.3, table 4).

    Both directions of an undirected edge stay together, with their weights. Nodes are dealt evenly as well, and so are
    the training, validation and test nodes among them.

    Args:
        data: ``x`` [N, F] dense or sparse, ``edge_index``, optional weights, ``y`` and masks.
        names: the holders, one or more.
        seed: fixes the split.
        overlap: share of the edges, in [0, 1], that a second holder has too.
        knows: see ``Knows``. The paper does not say; its figures for separate training are nearer to those of ``all``.
        num_classes: default: the largest label plus one.

    Returns:
        One valid part per holder, in the order of ``names``; every node is at one of them at least.

    Raises:
        DataError: ``overlap`` is no share or there is no second holder, some holder gets no training or no validation
            node, or data breaks a party's rule.
    """
    if not 0 <= overlap <= 1 or (overlap > 0 and len(names) < 2):
        raise DataError(
            f"overlap={overlap} must lie in [0, 1], and above 0 there must be a second holder (names has {len(names)})"
        )
    whole = PartyGraph.from_data(POOLED, data, num_classes)
    generator = torch.Generator().manual_seed(seed)
    owner = deal_edges(whole, names, None, generator)
    second = _second_owner(whole, owner, len(names), overlap, generator)
    home = _deal_nodes(whole, len(names), generator)
    parts = []
    for index, name in enumerate(names):
        edges = (owner == index) | (second == index)
        own = home == index
        known = own.clone()
        known[whole.edge_index[:, edges].reshape(-1)] = True
        everything = torch.ones_like(own)
        known, labelled = (everything, everything) if knows == "all" else (known, own)
        parts.append(_part(whole, name, known, edges, labelled))
    return parts


def split_by_nodes(data: Data, *, names: Sequence[PartyId], seed: int) -> list[HorizontalPart]:
    """Deals the nodes to holders evenly and at random, also among those of each mask; no node is at two holders.

    Only edges between two nodes of one holder remain, about one in as many as there are holders.

    Args:
        data: ``x`` [N, F] dense or sparse, ``edge_index``, optional weights, ``y`` and masks.
        names: the holders, one or more.
        seed: fixes the split.

    Returns:
        One valid part per holder, in the order of ``names``; every node is at one of them.

    Raises:
        DataError: some holder gets no training or no validation node, or data breaks a party's rule.
    """
    whole = PartyGraph.from_data(POOLED, data)
    home = _deal_nodes(whole, len(names), torch.Generator().manual_seed(seed))
    source, target = home[whole.edge_index]
    return [
        _part(whole, name, home == index, (source == index) & (target == index), home == index)
        for index, name in enumerate(names)
    ]


def split_by_label(
    data: Data,
    *,
    names: Sequence[PartyId],
    seed: int,
    mixed: float,
    knows: Knows = "own",
) -> list[HorizontalPart]:
    """Deals the nodes to holders by class, and then ``mixed`` of each holder's to the others (SAPGNN 5.4).

    Classes go to holders in their order, as evenly as they divide: with two holders and Cora's seven the first has
    four. Where holders outnumber classes, a class is divided evenly among several (the paper does not say). Only edges
    between two nodes of one holder remain. As in the paper's figure 3, whose counts say so, nodes that are in no mask
    are left out.

    Args:
        data: with ``y`` and masks.
        names: the holders.
        seed: fixes the split.
        mixed: q/100, the share of each holder's nodes, drawn at random, that is dealt evenly to the others.
        knows: ``all`` gives every holder all nodes in a mask with their labels, and the edges between those dealt to
            it: the split on which the paper measures PPGNN, which needs aligned nodes.

    Returns:
        As ``split_horizontally``; ``ids`` are positions in ``data``, and not all of them occur.

    Raises:
        DataError: there are no labels, ``mixed`` is no share or there is no other holder, or a part breaks a rule.
    """
    if not 0 <= mixed <= 1 or (mixed > 0 and len(names) < 2):
        raise DataError(
            f"mixed={mixed} must lie in [0, 1], and above 0 there must be another holder (names has {len(names)})"
        )
    whole = PartyGraph.from_data(POOLED, data)
    if whole.labels is None:
        raise DataError("data.y: missing, and nodes are dealt by their class; give labels or split the edges instead")
    generator = torch.Generator().manual_seed(seed)
    home = _deal_classes(whole, len(names), generator)
    first = home.clone()
    for index in range(len(names)):
        nodes = _shuffled((first == index).nonzero().reshape(-1), generator)
        leaving = nodes[: round(mixed * len(nodes))]
        home[leaving] = (index + 1 + torch.arange(len(leaving)) % max(len(names) - 1, 1)) % len(names)
    home = home[first_nodes(whole)]
    source, target = home[whole.edge_index]
    in_mask = home != UNKNOWN
    return [
        _part(
            whole,
            name,
            in_mask if knows == "all" else home == index,
            (source == index) & (target == index),
            in_mask if knows == "all" else home == index,
        )
        for index, name in enumerate(names)
    ]


def _second_owner(whole: PartyGraph, owner: Tensor, holders: int, overlap: float, generator: torch.Generator) -> Tensor:
    """Who else has an edge, −1 for nobody: alike for both directions. Tensor[E]."""
    if overlap == 0:
        return torch.full_like(owner, UNKNOWN)
    low, high = whole.edge_index.sort(dim=0).values
    keys, pair = torch.unique(low * whole.num_nodes + high, return_inverse=True)
    shared = torch.zeros(len(keys), dtype=torch.bool)
    shared[_shuffled(torch.arange(len(keys)), generator)[: round(overlap * len(keys))]] = True
    further = 1 + torch.randint(holders - 1, (len(keys),), generator=generator)
    return torch.where(shared[pair], (owner + further[pair]) % holders, UNKNOWN)


def _deal_nodes(whole: PartyGraph, holders: int, generator: torch.Generator) -> Tensor:
    """The holder of every node, Tensor[N]: even, also among the nodes of each mask; of graphs where it has several."""
    home = torch.empty(whole.num_nodes, dtype=torch.int64)
    first = first_nodes(whole)
    heads = first == torch.arange(whole.num_nodes)
    for group in [*_masks(whole).values(), ~_in_mask(whole)]:
        nodes = _shuffled((group & heads).nonzero().reshape(-1), generator)
        home[nodes] = torch.arange(len(nodes)) % holders
    return home[first]


def first_nodes(graph: PartyGraph) -> Tensor:
    """Of every node the first of the same graph, Tensor[N]: itself where there is one graph alone to be divided."""
    nodes = torch.arange(graph.num_nodes)
    if graph.membership is None:
        return nodes
    _, place = torch.unique(graph.membership, return_inverse=True)
    return torch.full((int(place.max()) + 1,), graph.num_nodes).scatter_reduce(0, place, nodes, "amin")[place]


def _deal_classes(whole: PartyGraph, holders: int, generator: torch.Generator) -> Tensor:
    """The holder of every node in a mask by its class, −1 for the others: Tensor[N]."""
    classes = whole.num_classes or 0
    home = torch.full((whole.num_nodes,), UNKNOWN)
    for label in range(classes):
        if holders <= classes:
            among = torch.tensor([label * holders // classes])
        else:
            among = torch.tensor([holder for holder in range(holders) if holder * classes // holders == label])
        nodes = _shuffled(((whole.labels == label) & _in_mask(whole)).nonzero().reshape(-1), generator)
        home[nodes] = among[torch.arange(len(nodes)) % len(among)]
    return home


def _part(whole: PartyGraph, name: PartyId, known: Tensor, edges: Tensor, labelled: Tensor) -> HorizontalPart:
    """One holder's part: the known nodes, the given edges between them, labels and masks of the labelled ones.

    The whole is checked; that a part has nodes, and some to train and to validate on, depends on the dealing.
    """
    ids, own = known.nonzero().reshape(-1), whole.with_edges(edges)
    place = torch.full((whole.num_nodes,), UNKNOWN)
    place[ids] = torch.arange(len(ids))
    mine, labels, targets = labelled[ids], whole.labels, whole.targets
    graph = PartyGraph(
        party=name,
        features=choose_rows(whole.features, ids),
        edge_index=place[own.edge_index],
        edge_weight=own.edge_weight,
        edge_relation=own.edge_relation,
        edge_features=own.edge_features,
        relations=whole.relations,
        labels=None if labels is None else torch.where(mine, labels[ids], UNKNOWN),
        num_classes=whole.num_classes,
        targets=None if targets is None else torch.where(mine, targets[ids], torch.nan),
        membership=None if whole.membership is None else whole.membership[ids],
        **{mask: values[ids] & mine for mask, values in _masks(whole).items()},  # type: ignore[arg-type]
    )
    check_name(name)
    check_shape(name, graph.features)
    graph.check_split()
    return HorizontalPart(graph, ids)


def _masks(graph: PartyGraph) -> dict[str, Tensor]:
    return {name: getattr(graph, name) for name in MASKS if getattr(graph, name) is not None}


def _in_mask(graph: PartyGraph) -> Tensor:
    """Whether a node is in any mask, Tensor[N] bool."""
    found = torch.zeros(graph.num_nodes, dtype=torch.bool)
    for mask in _masks(graph).values():
        found |= mask
    return found


def _shuffled(values: Tensor, generator: torch.Generator) -> Tensor:
    return values[torch.randperm(len(values), generator=generator)]
