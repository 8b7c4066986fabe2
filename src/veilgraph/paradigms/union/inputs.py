"""What a holder puts into a union, made from its graph: its own nodes come first, other holders' nodes follow.

The rows of a union are divided into one block for each holder. A holder places its nodes in its block as it likes,
among more rows than it has nodes, so that neither their number nor their order is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import PartyId
from veilgraph.graph.features import scale_together
from veilgraph.graph.party import PartyGraph, pairs_once, rows_between
from veilgraph.graph.pooling import UNKNOWN
from veilgraph.paradigms.sealed.inputs import columns_of, edges_once, max_degree_of, ranked_first
from veilgraph.paradigms.sealed.networks.propagation import COINS
from veilgraph.paradigms.sealed.plan import BOOSTING, MOST_JUDGED, NEIGHBOURS, QUANTILES, Block, OwnData, Plan, Sizes
from veilgraph.paradigms.union.settings import UnionJob
from veilgraph.protocol.costs import pairs_of
from veilgraph.protocol.judge import balanced_weights
from veilgraph.tables.encode import Scaling

NOWHERE = -1  # in place of a row: the node is not known to be in the union
Named = tuple[PartyGraph, list[str]]  # a graph, and the ids of its rows


def scale_own(graphs: Sequence[PartyGraph], scaling: Scaling) -> list[PartyGraph]:
    """Return the graphs with own nodes' features scaled by statistics over all holders; others' nodes have zeros."""
    own = [replace(graph, features=rows_between(graph.features, 0, graph.common)) for graph in graphs if graph.common]
    scaled = {part.party: part.features.to_dense() for part in scale_together(own, scaling)}
    return [
        replace(graph, features=pad_rows(scaled[graph.party], graph.num_nodes)) if graph.common else graph
        for graph in graphs
    ]


def pad_rows(rows: Tensor, count: int) -> Tensor:
    """Return ``rows`` [n, F] followed by rows of zeros, ``count`` in all: [count, F]."""
    return torch.cat([rows, rows.new_zeros((count - len(rows), rows.shape[1]))])


def network_of(party: PartyId, parts: Iterable[Named]) -> Named:
    """Make the graph of a holder of edges only, the parts' edges to others' nodes, and its nodes' ids ``holder/id``."""
    ends = list[list[str]]()
    for graph, ids in parts:
        names = [f"{graph.party}/{text}" if row < graph.common else text for row, text in enumerate(ids)]
        across = graph.edge_index[:, (graph.edge_index >= graph.common).any(0)]
        ends += [[names[row] for row in edge] for edge in across.T.tolist()]
    found, places = np.unique(np.array(ends, dtype=np.str_).reshape(-1, 2), return_inverse=True)
    edges, _ = pairs_once(torch.from_numpy(places.reshape(-1, 2).T.copy()))
    return PartyGraph(party, torch.zeros((len(found), 1)), edges, num_common=0), found.tolist()


def with_no_labels(graph: PartyGraph) -> PartyGraph:
    """Return the graph; where it has no labels, with all labels ``UNKNOWN`` and empty split masks."""
    if graph.labels is not None:
        return graph
    nowhere = torch.zeros(graph.num_nodes, dtype=torch.bool)
    unknown = torch.full((graph.num_nodes,), UNKNOWN)
    return replace(graph, labels=unknown, train_mask=nowhere, val_mask=nowhere, test_mask=nowhere)


def symmetric_graph(graph: PartyGraph, plan: Plan) -> PartyGraph:
    """Return the graph with relations merged and each pair of nodes once in both directions, for blocks made at home.

    A plan with no such block over edges leaves it as it is. A pair's weight is log(1 + s), s the sum of its edges'.
    """
    if not {NEIGHBOURS, QUANTILES, BOOSTING} & {*plan.home}:
        return graph
    graph, edges = graph.merged(), torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1)
    if graph.edge_weight is None:
        return replace(graph, edge_index=edges_once(edges))
    pairs, weights = summed_once(edges, graph.edge_weight.repeat(2))
    return replace(graph, edge_index=pairs, edge_weight=weights.log1p())


def summed_once(edges: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return each (source, target) pair once, int64 [2, P], without self-loops, and its summed weight, [P]."""
    kept = edges[0] != edges[1]
    pairs, place = pairs_once(edges[:, kept])
    return pairs, weights.new_zeros(pairs.shape[1], dtype=torch.float64).index_add(0, place, weights[kept].double())


def own_edges_and_columns(plan: Plan, graph: PartyGraph, job: UnionJob) -> OwnData:
    """Make a holder's columns and unweighted edges for the program, with nodes numbered as in its graph.

    Edges are those into its own nodes and, in a directed plan, ``turned``: edges out of them, reversed. One without
    nodes puts in all. Raises ``DataError``: ``model.directed`` is false and an edge goes one way.
    """
    edges = pairs_of(graph, job.inputs)
    turned = edges_once(edges.flip(0))
    if not plan.directed and not torch.equal(edges, turned):
        raise DataError(
            f"party {graph.party!r}: some of its edges go one way only, and model.directed=false says that all go both "
            "ways; set model.directed: true, or give every edge in both directions",
            key="model.directed",
            value=False,
        )
    into, out = (each[:, each[1] < (graph.common or graph.num_nodes)] for each in (edges, turned))
    columns = columns_of(plan, symmetric_graph(graph, plan)) if graph.common else {}
    return OwnData(columns, into, turned=out if plan.directed else None)


def with_own_labels(own: OwnData, graph: PartyGraph, job: UnionJob, streams: LearningStreams, classes: int) -> OwnData:
    """Add training and validation nodes with their labels, and class weights, to what a holder puts in.

    Both are shuffled by the holder's stream; validation nodes are capped. A holder without labels gets ``own`` back.
    Raises ``DataError``: the label holder has no labels, or another lacks training or needed validation nodes.
    """
    labels, train, val = graph.labels, graph.train_mask, graph.val_mask
    if labels is None or train is None or val is None:
        if graph.party != job.data.label_party:
            return own
        raise DataError(
            f"party {graph.party!r}: labels: it has none, and is who says how well the model does; set "
            "data.label_holder to a holder that has labels",
            key="data.label_holder",
            value=graph.party,
            party=graph.party,
        )
    if not bool(train.any()):
        raise DataError(
            f"party {graph.party!r}: labels: there is no node of its own to train on; mark some, or leave labels out"
        )
    rows = _shuffled(train, streams, "rows")
    own = replace(own, rows=rows, labels=labels[rows])
    if job.train.class_weights == "balanced":
        own = replace(own, weights=balanced_weights(labels[rows], classes)[labels[rows]])
    if job.train.select_by == "last":
        return own
    if not bool(val.any()):
        raise DataError(
            f"party {graph.party!r}: train.select_by={job.train.select_by} judges steps by every holder's validation "
            "nodes, and it has none; mark some, or set it to last",
            key="train.select_by",
            value=job.train.select_by,
        )
    judged = _shuffled(val, streams, "judged")
    judged = judged[ranked_first(labels[judged])[: MOST_JUDGED // len(job.data.names)]]
    return replace(own, judged=judged, judged_labels=labels[judged])


def _shuffled(mask: Tensor, streams: LearningStreams, purpose: str) -> Tensor:
    """The nodes of a mask in random order, drawn from the holder's stream: int64."""
    rows = mask.nonzero()[:, 0]
    return rows[torch.randperm(rows.numel(), generator=streams.generator(purpose))]


def blocks_of(rows: Mapping[PartyId, int], counts: Mapping[PartyId, tuple[int, ...]]) -> dict[PartyId, Block]:
    """Stack blocks of so many rows; ``counts`` are a holder's training, validation and, optionally, named nodes."""
    ends = dict(zip(rows, accumulate(rows.values()), strict=True))
    return {holder: Block(slice(ends[holder] - rows[holder], ends[holder]), *counts[holder]) for holder in rows}


def union_sizes(
    job: UnionJob,
    blocks: Mapping[PartyId, Block],
    columns: int,
    edges: Mapping[PartyId, int],
    classes: int,
    neighbours: Mapping[PartyId, int],
) -> Sizes:
    """Return the public sizes of a union job; ``DataError`` where a node may have too many edges.

    ``neighbours`` are each holder's most edges at a node. The degree bound is the largest of those of holders of nodes,
    plus those of a holder of the edges across.
    """
    names = ("size", "training", "validation", "asked")
    nodes, training, validation, asked = (sum(getattr(block, name) for block in blocks.values()) for name in names)
    most = max(own for holder, own in neighbours.items() if blocks[holder].size)
    degree = max_degree_of(job, [most + sum(own for holder, own in neighbours.items() if not blocks[holder].size)])
    named = asked if job.outcome.predicts_named else None
    return Sizes(nodes, training, classes, dict.fromkeys(blocks, columns), edges, degree, validation, named, blocks)


def joins_holders(edges: Tensor, rows: Tensor, blocks: Mapping[PartyId, Block]) -> Tensor:
    """Whether each edge [2, E] joins nodes of two holders, whose ``rows`` are both known: bool [E]."""
    starts = torch.tensor([block.rows.start for block in blocks.values() if block.size])
    ends = rows[edges].contiguous()
    homes = torch.searchsorted(starts, ends, right=True)
    return (ends != NOWHERE).all(0) & (homes[0] != homes[1])


@dataclass(frozen=True)
class Places:
    """Where a holder's nodes are: rows of the union, int64 [n + others], ``NOWHERE`` for others' that are not known.

    The first ``nodes`` are its own, within ``block``. ``lost`` edges, int64 [2, E] of its graph, are left out.
    """

    rows: Tensor
    block: Block
    nodes: int
    lost: Tensor

    def of(self, own: OwnData) -> OwnData:
        """Renumber columns and nodes by slots of its block, and edges, without lost ones, by rows of the union."""
        slots = self.rows[: self.nodes] - self.block.rows.start

        def placed(part: Tensor) -> Tensor:
            return part.new_zeros((self.block.size, part.shape[1])).index_copy(0, slots, part)

        return replace(
            own,
            columns={block: placed(part) for block, part in own.columns.items()},
            edges=self._renumber_edges(own.edges, self.lost),
            turned=None if own.turned is None else self._renumber_edges(own.turned, self.lost.flip(0)),
            rows=None if own.rows is None else slots[own.rows],
            judged=None if own.judged is None else slots[own.judged],
            asked=None if own.asked is None else slots[own.asked],
        )

    def _renumber_edges(self, edges: Tensor, lost: Tensor) -> Tensor:
        places = len(self.rows)
        kept = ~torch.isin(edges[0] * places + edges[1], lost[0] * places + lost[1])
        return self.rows[edges[:, kept]]

    def own(self, found: Tensor) -> Tensor:
        """Select its own nodes, in their order, from a tensor over its block's slots: [size, …] to [nodes, …]."""
        return found[self.rows[: self.nodes] - self.block.rows.start]


def with_coins(own: OwnData, nodes: int, secrets: SecretSource) -> OwnData:
    """Add the holder's random numbers for ``check_double_entry``: int64 [nodes, 2] below ``COINS``."""
    drawn = torch.frombuffer(bytearray(secrets(2 * 2 * nodes)), dtype=torch.int16).to(torch.int64)
    return replace(own, coins=drawn.reshape(nodes, 2) % COINS)
