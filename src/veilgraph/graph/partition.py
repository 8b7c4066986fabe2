"""Simulated splits of one graph over several holders; ``graph.pooling`` is the way back.

Vertical: every holder knows all nodes; columns and edges each belong to exactly one holder (VFGNN 4.1). Horizontal:
holders have different, overlapping nodes, edges and labels, and all the same columns (SAPGNN, figure 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b, sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph.features import choose_columns, choose_rows, compact
from veilgraph.graph.party import PartyGraph, pairs_once
from veilgraph.graph.pooling import ABSENT, POOLED, UNKNOWN, HorizontalPart, append_others
from veilgraph.graph.rules import check_name, check_shape, first_of_graphs

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data

_PAIR_BYTES: Final = 16  # of two rows


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
    """Deals the columns and edges of a graph to holders at random; ``seed`` fixes it in every process.

    The two directions of an undirected edge (and every copy of it) stay together; where some edge lacks its reverse the
    graph is taken as directed and every direction is dealt by itself. Weights follow their edges.

    Proportions are shares of columns, or undirected edges, per holder in any unit, by default even; at least one column
    each. ``label_holder`` alone gets labels and masks. Raises ``DataError``: fewer columns than holders, proportions
    that do not fit, or data that breaks a party's rule.
    """
    whole = PartyGraph.from_data(label_holder, data, num_classes)  # checked, and so are its parts
    generator = torch.Generator().manual_seed(seed)
    columns = deal_columns(whole.num_features, names, feature_proportions, generator)
    owner = deal_edges(whole, names, edge_proportions, generator)
    features = compact(whole.features)
    parts = []
    for index, name in enumerate(names):
        check_name(name)
        mine = compact(choose_columns(features, columns[index]))
        parts.append(_cut_vertical(whole, name, mine, owner == index, has_labels=name == label_holder))
    return parts


def _cut_vertical(whole: PartyGraph, name: PartyId, features: Tensor, edges: Tensor, *, has_labels: bool) -> PartyGraph:
    """A holder's part of a graph: columns, some of the edges, Tensor[E] bool, and perhaps the labels."""
    labels = whole.label_fields if has_labels else dict[str, Any].fromkeys(whole.label_fields)
    return replace(
        whole.with_edges(edges), party=name, features=features, num_common=None, targets=None, membership=None, **labels
    )


def split_for_learner(
    whole: PartyGraph, *, names: Sequence[PartyId], learner: PartyId, labels_at: PartyId, seed: int
) -> list[PartyGraph]:
    """Divide a validated graph as paradigm node-dp has it: one holder knows all edges, the others' nodes the features.

    The learner gets one column of zeros; ``labels_at`` labels and masks. ``seed`` deals the columns evenly.
    """
    others = [name for name in names if name != learner]
    dealt = deal_columns(whole.num_features, others, None, torch.Generator().manual_seed(seed))
    columns = dict(zip(others, dealt, strict=True))
    whole, parts = whole.merged(), []
    for name in names:
        learns = name == learner
        features = torch.zeros(whole.num_nodes, 1) if learns else choose_columns(whole.features, columns[name])
        edges = torch.full((whole.num_edges,), learns)
        part = _cut_vertical(whole, name, compact(features), edges, has_labels=name == labels_at)
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
    cuts = _cut_points(num_features, len(names), proportions, "feature_proportions", least=1)
    return [order[start:end].sort().values for start, end in pairwise(cuts)]


def deal_edges(
    graph: PartyGraph, names: Sequence[PartyId], proportions: Sequence[float] | None, generator: torch.Generator
) -> Tensor:
    """Deal edges to holders at random, both directions together: Tensor[E] int64, indices into ``names``."""
    pair, pairs = _number_pairs(graph.edge_index, graph.num_nodes)
    cuts = _cut_points(pairs, len(names), proportions, "edge_proportions", least=0)
    owner_of_pair = torch.empty(pairs, dtype=torch.int64)
    order = torch.randperm(pairs, generator=generator)
    for holder, (start, end) in enumerate(pairwise(cuts)):
        owner_of_pair[order[start:end]] = holder
    return owner_of_pair[pair]


def _number_pairs(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, int]:
    """Number distinct edges, alike in both directions if all have a reverse: each edge's number [E], and the count."""
    source, target = edge_index
    there, back = source * num_nodes + target, target * num_nodes + source
    symmetric = torch.equal(there.unique(), back.unique())
    keys, pair = torch.unique(torch.minimum(there, back) if symmetric else there, return_inverse=True)
    return pair, len(keys)


def _cut_points(total: int, holders: int, proportions: Sequence[float] | None, argument: str, least: int) -> list[int]:
    """Return holders + 1 rising cuts of 0..``total``, by ``proportions`` (None: even); parts are ``least`` or more."""
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
    the training, validation and test nodes among them. There is one valid part per name; every node is at one of them
    at least.

    Arguments are those of ``split_vertically``, and ``overlap``: share of the edges, in [0, 1], that a second holder
    has too. The paper does not say what a holder ``knows``; its figures for separate training are nearer to ``all``.

    Raises:
        DataError: ``overlap`` is no share or there is no second holder, some holder gets no training or no validation
            node, or data breaks a party's rule.
    """
    _check_share("overlap", overlap, names)
    whole = PartyGraph.from_data(POOLED, data, num_classes)
    generator = torch.Generator().manual_seed(seed)
    owner = deal_edges(whole, names, None, generator)
    second = _second_owner(whole, owner, len(names), overlap, generator)
    home = deal_nodes(whole, len(names), generator)
    parts = []
    everywhere = torch.ones_like(home, dtype=torch.bool)
    for index, name in enumerate(names):
        edges, own = (owner == index) | (second == index), home == index
        touched = own.clone()
        touched[whole.edge_index[:, edges].reshape(-1)] = True
        known, labelled = (everywhere, everywhere) if knows == "all" else (touched, own)
        parts.append(_cut_part(whole, name, known, edges, labelled))
    return parts


def _check_share(argument: str, share: float, names: Sequence[PartyId]) -> None:
    if not 0 <= share <= 1 or (share > 0 and len(names) < 2):
        raise DataError(
            f"{argument}={share} must lie in [0, 1], and above 0 there must be a second holder (names has {len(names)})"
        )


def split_by_nodes(data: Data, *, names: Sequence[PartyId], seed: int) -> list[HorizontalPart]:
    """Deals the nodes to holders evenly and at random, also among those of each mask; every node is at one holder.

    Only edges between two nodes of one holder remain, about one in as many as there are holders. Else as
    ``split_horizontally``.
    """
    whole = PartyGraph.from_data(POOLED, data)
    return _parts_by_home(whole, names, deal_nodes(whole, len(names), torch.Generator().manual_seed(seed)))


def split_by_label(
    data: Data, *, names: Sequence[PartyId], seed: int, mixed: float, knows: Knows = "own"
) -> list[HorizontalPart]:
    """Deals the nodes to holders by class, and then ``mixed`` of each holder's to the others (SAPGNN 5.4).

    Classes go to holders in their order, as evenly as they divide: with two holders and Cora's seven the first has
    four. Where holders outnumber classes, a class is divided evenly among several (the paper does not say). Only edges
    between two nodes of one holder remain. As in the paper's figure 3, whose counts say so, nodes that are in no mask
    are left out.

    ``mixed`` is q/100, the share of each holder's nodes, drawn at random, that is dealt evenly to the others. With
    ``knows="all"`` every holder has all nodes in a mask with their labels, and the edges between those dealt to it: the
    split on which the paper measures PPGNN, which needs aligned nodes. ``ids`` are positions in ``data``, and not all
    of them occur.

    Raises:
        DataError: there are no labels, ``mixed`` is no share or there is no other holder, or a part breaks a rule.
    """
    _check_share("mixed", mixed, names)
    whole = PartyGraph.from_data(POOLED, data)
    if whole.labels is None:
        raise DataError("data.y: missing, and nodes are dealt by their class; give labels or split the edges instead")
    generator = torch.Generator().manual_seed(seed)
    home = _deal_classes(whole, len(names), generator)
    first = home.clone()
    for index in range(len(names)):
        nodes = _shuffle((first == index).nonzero().reshape(-1), generator)
        leaving = nodes[: round(mixed * len(nodes))]
        home[leaving] = (index + 1 + torch.arange(len(leaving)) % max(len(names) - 1, 1)) % len(names)
    home = home[first_nodes(whole)]
    return _parts_by_home(whole, names, home, home != UNKNOWN if knows == "all" else None)


def _parts_by_home(
    whole: PartyGraph, names: Sequence[PartyId], home: Tensor, known: Tensor | None = None
) -> list[HorizontalPart]:
    """Cut out each holder's nodes by ``home`` [N], or all ``known`` [N], with edges between two of its own nodes."""
    source, target = home[whole.edge_index]
    parts = []
    for index, name in enumerate(names):
        nodes = home == index if known is None else known
        parts.append(_cut_part(whole, name, nodes, (source == index) & (target == index), nodes))
    return parts


def split_at_home(whole: PartyGraph, names: Sequence[PartyId], home: Tensor) -> list[tuple[PartyGraph, list[str]]]:
    """Give each node to a holder, ``home`` Tensor[N] of indices in ``names``, with all edges at it; and rows' ids.

    Other holders' nodes at these edges follow as ``append_others`` appends them, with ids ``holder/node``.
    """
    source, target = home[whole.edge_index]
    parts = []
    for index, name in enumerate(names):
        nodes = (home == index).nonzero().reshape(-1)
        edges = (source == index) | (target == index)
        touched = torch.unique(whole.edge_index[:, edges])
        others = touched[home[touched] != index]
        place = torch.full((whole.num_nodes,), UNKNOWN)
        place[torch.cat([nodes, others])] = torch.arange(len(nodes) + len(others))
        own = _cut_part(whole, name, home == index, edges, home == index).graph
        graph = replace(own, edge_index=place[whole.edge_index[:, edges]])
        ids = [str(node) for node in nodes.tolist()]
        ids += [f"{names[at]}/{node}" for at, node in zip(home[others].tolist(), others.tolist(), strict=True)]
        parts.append((append_others(graph, len(others)), ids))
    return parts


def _second_owner(whole: PartyGraph, owner: Tensor, holders: int, overlap: float, generator: torch.Generator) -> Tensor:
    """Draw a second holder for a share ``overlap`` of node pairs, alike for both directions: Tensor[E], −1: none."""
    if overlap == 0:
        return torch.full_like(owner, UNKNOWN)
    low, high = whole.edge_index.sort(dim=0).values
    keys, pair = torch.unique(low * whole.num_nodes + high, return_inverse=True)
    shared = torch.zeros(len(keys), dtype=torch.bool)
    shared[_shuffle(torch.arange(len(keys)), generator)[: round(overlap * len(keys))]] = True
    further = 1 + torch.randint(holders - 1, (len(keys),), generator=generator)
    return torch.where(shared[pair], (owner + further[pair]) % holders, UNKNOWN)


def deal_nodes(whole: PartyGraph, holders: int, generator: torch.Generator) -> Tensor:
    """Deal nodes, or whole graphs if there are several, to holders evenly within each mask: Tensor[N] of indices."""
    home = torch.empty(whole.num_nodes, dtype=torch.int64)
    first = first_nodes(whole)
    heads = first == torch.arange(whole.num_nodes)
    for group in [*_masks(whole).values(), ~_in_mask(whole)]:
        nodes = _shuffle((group & heads).nonzero().reshape(-1), generator)
        home[nodes] = torch.arange(len(nodes)) % holders
    return home[first]


def first_nodes(graph: PartyGraph) -> Tensor:
    """Return the first node of each node's graph, Tensor[N]; without ``membership`` each node itself."""
    return torch.arange(graph.num_nodes) if graph.membership is None else first_of_graphs(graph.membership)


def _deal_classes(whole: PartyGraph, holders: int, generator: torch.Generator) -> Tensor:
    """Deal the nodes in a mask to holders by class, evenly: Tensor[N] of holders' indices, −1 for the others."""
    classes = whole.num_classes or 0
    home = torch.full((whole.num_nodes,), UNKNOWN)
    for label in range(classes):
        if holders <= classes:
            among = torch.tensor([label * holders // classes])
        else:
            among = torch.tensor([holder for holder in range(holders) if holder * classes // holders == label])
        nodes = _shuffle(((whole.labels == label) & _in_mask(whole)).nonzero().reshape(-1), generator)
        home[nodes] = among[torch.arange(len(nodes)) % len(among)]
    return home


def _cut_part(whole: PartyGraph, name: PartyId, known: Tensor, edges: Tensor, labelled: Tensor) -> HorizontalPart:
    """Cut out one holder's part: nodes ``known``, ``edges`` between them, labels and masks of nodes ``labelled``."""
    ids, own = known.nonzero().reshape(-1), whole.with_edges(edges)
    place = torch.full((whole.num_nodes,), UNKNOWN)
    place[ids] = torch.arange(len(ids))
    values = {name: each[ids] for name, each in whole.node_values.items()}
    values |= {each: values[each].where(labelled[ids], absent) for each, absent in ABSENT.items() if each in values}
    features = choose_rows(whole.features, ids)
    graph = replace(own, party=name, features=features, edge_index=place[own.edge_index], **values)  # type: ignore[arg-type]
    # The whole is checked; that a part has nodes, and some to train and to validate on, depends on the dealing.
    check_name(name)
    check_shape(name, graph.features)
    graph.check_split()
    return HorizontalPart(graph, ids)


def _masks(graph: PartyGraph) -> dict[str, Tensor]:
    return {name: values for name, values in graph.node_values.items() if name in MASKS}


def _in_mask(graph: PartyGraph) -> Tensor:
    found = torch.zeros(graph.num_nodes, dtype=torch.bool)
    for mask in _masks(graph).values():
        found |= mask
    return found


def _shuffle(values: Tensor, generator: torch.Generator) -> Tensor:
    return values[torch.randperm(len(values), generator=generator)]


def orient_pairs(edges: Tensor, seed: int) -> Tensor:
    """Return each pair of different nodes in ``edges`` [2, E] once, in a direction drawn by a hash: int64 [2, P].

    The hash is of the seed and the two rows, lower first. Anybody can compute it, so directions and repetitions of a
    holder's edges are not revealed.
    """
    low, high = edges.aminmax(dim=0)
    pairs, _ = pairs_once(torch.stack([low, high])[:, low != high])
    ends, key = pairs.T.numpy().astype("<i8").tobytes(), sha256(f"votes/{seed}".encode()).digest()
    drawn = (
        blake2b(ends[at : at + _PAIR_BYTES], key=key, digest_size=1).digest()[0] & 1
        for at in range(0, len(ends), _PAIR_BYTES)
    )
    turns: Tensor = torch.tensor(list(drawn), dtype=torch.bool)
    return torch.where(turns, pairs.flip(0), pairs)
