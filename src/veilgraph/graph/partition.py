"""Simulated splits of one graph over several holders, and the way back.

Vertical: every holder knows all nodes; columns and edges each belong to exactly one holder (VFGNN 4.1). Horizontal:
holders have different, overlapping nodes, edges and labels, and all the same columns (SAPGNN, figure 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph.features import choose_columns, choose_rows, compact, join_columns
from veilgraph.graph.party import PartyGraph, check_aligned, find_label_holder, pairs_once
from veilgraph.graph.rules import DTYPE, EVERY, Relation, check_name, check_shape, first_of_graphs

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data

POOLED: PartyId = "pooled"
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


def holder_alone(graphs: Sequence[PartyGraph], party: PartyId, label_holder: PartyId) -> PartyGraph:
    """Return one holder's graph to train alone on, with validation and test masks over common nodes only.

    Other holders than the label holder are lent its labels and masks of the common nodes, as in the paper.
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
    """Pool all holders' data of the common nodes into one graph: an upper bound, not allowed in practice.

    Columns are concatenated in the holders' order. Edges are united: one that several holders have appears once, with
    the sum of their weights, or where ``relational`` all stay as they are, each holder's relations as relations of
    their own. Nodes of a single holder are left out, since which of them several holders share is not known here.
    Raises ``DataError``: the counts of common nodes differ, or ``label_holder`` is no holder or has no labels.
    """
    check_aligned({graph.party: graph.common for graph in graphs})
    graphs = [graph.common_part() for graph in graphs]
    labelled = find_label_holder(graphs, label_holder)
    return replace(_side_by_side(graphs) if relational else _unite_edges(graphs), **labelled.label_fields)


def _unite_edges(graphs: Sequence[PartyGraph]) -> PartyGraph:
    edges, weights = torch.cat([graph.edge_index for graph in graphs], dim=1), _join_weights(graphs, torch.float64)
    unique, place = pairs_once(edges)
    features = join_columns([graph.features for graph in graphs])
    if weights is None and unique.shape[1] == edges.shape[1]:
        return PartyGraph(POOLED, features, unique)
    total = torch.bincount(place, weights=weights, minlength=unique.shape[1])
    return PartyGraph(POOLED, features, unique, total.to(torch.float32))


def _side_by_side(graphs: Sequence[PartyGraph]) -> PartyGraph:
    """Join all holders' columns and edges, and keep all relations apart, called ``holder/name``."""
    edges, weights = torch.cat([graph.edge_index for graph in graphs], dim=1), _join_weights(graphs, torch.float32)
    relations, places = list[Relation](), []
    for graph in graphs:
        own = torch.zeros(graph.num_edges) if graph.edge_relation is None else graph.edge_relation
        places.append(own.to(DTYPE) + len(relations))
        relations += [replace(each, name=f"{graph.party}/{each.name}") for each in graph.relations or (EVERY,)]
    features = join_columns([graph.features for graph in graphs])
    told = {"edge_relation": torch.cat(places), "relations": tuple(relations)}
    weights = torch.ones(edges.shape[1]) if weights is None else weights
    return PartyGraph(POOLED, features, edges, weights, **told)  # type: ignore[arg-type]


UNKNOWN: Final = -1
"""A label, or a holder, that there is not."""
_ABSENT: Final[Mapping[str, float]] = {"labels": UNKNOWN, "targets": torch.nan, **dict.fromkeys(MASKS, False)}
"""What a node has that is no holder's own."""


@dataclass(frozen=True, eq=False)
class HorizontalPart:
    """One holder's graph, and its rows' node numbers in the whole: ``ids`` Tensor[N_p] int64, distinct, ascending."""

    graph: PartyGraph
    ids: Tensor


def without_duplicates(parts: Sequence[HorizontalPart], *, alike: bool = False) -> list[HorizontalPart]:
    """Return the parts of all holders with every directed edge at the first alone that has it.

    Copies of an edge within one holder stay. ``alike``: edges are the same only if weights and features are, too.
    """
    size = 1 + max((int(part.ids[-1]) for part in parts), default=0)
    ends = [part.ids[part.graph.edge_index] for part in parts]
    keys = torch.cat([torch.empty(0, dtype=torch.int64), *(source * size + target for source, target in ends)])
    graphs = [part.graph for part in parts]
    weights, features = _join_weights(graphs), _join_edge_features(graphs)
    if alike and (weights is not None or features is not None):
        found = [keys, weights, *(() if features is None else features.t())]
        rows = torch.stack([values.double() for values in found if values is not None], dim=1)
        _, keys = torch.unique(rows, dim=0, return_inverse=True)
    seen = torch.empty(0, dtype=torch.int64)
    kept = []
    for part, own in zip(parts, torch.split(keys, [graph.num_edges for graph in graphs]), strict=True):
        new = ~torch.isin(own, seen)
        seen = torch.cat([seen, torch.unique(own[new])])
        kept.append(replace(part, graph=part.graph.with_edges(new)))
    return kept


def pool_parts(parts: Sequence[HorizontalPart]) -> HorizontalPart:
    """The combined graph, as no holder may have it: what the federation's result must equal.

    Every node once, with its features from the first holder that knows it and its label, or target, from the first that
    has one. Of edges alike in ends, weight and features one holder's stay. Raises ``DataError``: columns or classes
    differ.
    """
    graphs = [part.graph for part in parts]
    classes = {graph.num_classes for graph in graphs if graph.labels is not None}
    edges = {graph.num_edge_features for graph in graphs}
    columns = {graph.num_features for graph in graphs}
    for what, values in (("columns", columns), ("columns of edges", edges), ("classes", classes)):
        if len(values) > 1:
            raise DataError(f"holders: {what} differ ({sorted(map(str, values))}), and they must be the same; mend one")
    ids, rows = positions(parts)
    place = torch.cat(rows)
    name, absent = ("targets", torch.nan) if any(graph.targets is not None for graph in graphs) else ("labels", UNKNOWN)
    given = torch.cat([_values(graph, name, absent) for graph in graphs])
    first = _first_rows(place, given != UNKNOWN if name == "labels" else ~given.isnan(), len(ids))
    known, answers = first != UNKNOWN, dict[str, Tensor]()
    if name == "targets" or classes:
        answers = {mask: torch.cat([_values(graph, mask, False) for graph in graphs])[first] & known for mask in MASKS}
        answers[name] = torch.where(known, given[first], absent)

    unique = [part.graph for part in without_duplicates(parts, alike=True)]
    everywhere = torch.ones(len(place), dtype=torch.bool)
    pooled = PartyGraph(
        party=POOLED,
        features=compact(
            torch.cat([graph.features.to_dense() for graph in graphs])[_first_rows(place, everywhere, len(ids))]
        ),
        edge_index=torch.cat([at[graph.edge_index] for graph, at in zip(unique, rows, strict=True)], dim=1),
        edge_weight=_join_weights(unique),
        edge_features=_join_edge_features(unique),
        num_classes=next(iter(classes), None),
        **answers,  # type: ignore[arg-type]
    )
    return HorizontalPart(pooled, ids)


def positions(parts: Sequence[HorizontalPart]) -> tuple[Tensor, list[Tensor]]:
    """Return the union of all parts' ids, ascending, Tensor[N]; and each part's rows' indices there, Tensor[N_p]."""
    ids = torch.unique(torch.cat([part.ids for part in parts]))
    return ids, [torch.searchsorted(ids, part.ids) for part in parts]


def _first_rows(place: Tensor, among: Tensor, nodes: int) -> Tensor:
    """Return each node's first row among those that mask ``among`` selects, by ``place``; −1 without one: Tensor[N]."""
    rows = torch.arange(len(place))[among]
    last = torch.full((nodes,), len(place))
    first = last.scatter_reduce(0, place[among], rows, "amin")
    return torch.where(first < len(place), first, UNKNOWN)


def _values(graph: PartyGraph, name: str, absent: float) -> Tensor:
    """Return an attribute of all nodes, as labels or a mask: Tensor[N], of ``absent`` where the graph has none."""
    values: Tensor | None = getattr(graph, name)
    return torch.full((graph.num_nodes,), absent) if values is None else values


def _join_weights(graphs: Sequence[PartyGraph], dtype: torch.dtype | None = None) -> Tensor | None:
    """Concatenate all graphs' edge weights: Tensor[E], 1 at a graph without; None where no graph has any."""
    weights = [graph.edge_weight for graph in graphs]
    if all(each is None for each in weights):
        return None
    pairs = zip(graphs, weights, strict=True)
    return torch.cat([torch.ones(graph.num_edges) if own is None else own for graph, own in pairs]).to(dtype=dtype)


def _join_edge_features(graphs: Sequence[PartyGraph]) -> Tensor | None:
    found = [graph.edge_features for graph in graphs if graph.edge_features is not None]
    return torch.cat(found) if found else None


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


def append_others(own: PartyGraph, others: int) -> PartyGraph:
    """Append so many nodes of other holders, with zero features and no labels; the graph's own become the common ones.

    The graph's edges may already refer to the new nodes.
    """
    known = own.features
    if others:
        known = torch.cat([known.to_dense(), known.new_zeros((others, own.num_features), layout=torch.strided)])
    longer = {
        name: torch.cat([values, values.new_full((others,), _ABSENT[name])])
        for name, values in own.node_values.items()
        if name in _ABSENT
    }
    return replace(own, num_common=own.num_nodes, features=known, **longer)  # type: ignore[arg-type]


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
    values |= {each: values[each].where(labelled[ids], absent) for each, absent in _ABSENT.items() if each in values}
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
