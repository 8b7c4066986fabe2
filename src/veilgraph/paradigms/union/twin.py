"""The twin of a union: the same program on floating numbers in one place; baselines are the twin of one holder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph.party import PartyGraph, pairs_once
from veilgraph.graph.pooling import POOLED
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.paradigms.sealed.inputs import examples_of, padded, plan_of, with_scores
from veilgraph.paradigms.sealed.plan import Context, OwnData
from veilgraph.paradigms.sealed.program import SealedProgram, logits_of
from veilgraph.paradigms.sealed.twin import train_plain
from veilgraph.paradigms.union.inputs import (
    NOWHERE,
    Places,
    blocks_of,
    joins_holders,
    own_edges_and_columns,
    summed_once,
    symmetric_graph,
    union_sizes,
    with_coins,
    with_no_labels,
    with_own_labels,
)
from veilgraph.paradigms.union.settings import UnionJob
from veilgraph.protocol.costs import size_of
from veilgraph.protocol.plain_fitting import PlainResult, Progress


def joint_context(job: UnionJob, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> Context:
    """Build the context of the plaintext twin: all holders' sizes, plan and data, nodes at rows by ``places_by_id``."""
    plan, data, counts = plan_of(job), dict[PartyId, OwnData](), dict[PartyId, tuple[int, int]]()
    classes = max(graph.num_classes or 0 for graph in graphs)
    for graph in graphs:
        own, party = own_edges_and_columns(plan, graph, job), graph.party
        if graph.common:
            seen = symmetric_graph(with_no_labels(graph), plan)
            own = with_scores(own, seen, job, examples_of(job, seen), classes)
        data[party] = own = with_own_labels(own, graph, job, LearningStreams(job.seed, party), classes)
        counts[party] = 0 if own.rows is None else len(own.rows), 0 if own.judged is None else len(own.judged)
    blocks = blocks_of({graph.party: graph.common for graph in graphs}, counts)
    own_sizes = {graph.party: size_of(graph, job.inputs) for graph in graphs}
    sizes = union_sizes(
        job,
        blocks,
        next(graph.num_features for graph in graphs if graph.common),
        {party: padded(size.edges) for party, size in own_sizes.items()},
        classes,
        {party: size.neighbours or 0 for party, size in own_sizes.items()},
    )
    places = places_by_id(graphs, ids)
    confirmed = _usable_edges(graphs, places, sizes.nodes) if job.across is None and len(graphs) > 1 else {}
    for graph in graphs:
        party, edges = graph.party, graph.edge_index
        lost = edges[:, ~joins_holders(edges, places[party], blocks)] if party == job.across else edges[:, :0]
        if confirmed:
            lost = edges[:, ~torch.isin(_edge_keys(places[party][edges], sizes.nodes), confirmed[party])]
        at = Places(places[party], blocks[party], graph.common, lost)
        data[party] = with_coins(at.of(data[party]), sizes.nodes, system_secrets)
    return Context(sizes, plan_of(job, sizes), job.data.label_party, data)


def _edge_keys(ends: Tensor, nodes: int) -> Tensor:
    """Number each edge, int64 [2, E] of rows, by its ends: int64 [E], ``NOWHERE`` where an end is."""
    return torch.where((ends == NOWHERE).any(0), NOWHERE, ends[0] * nodes + ends[1])


def _usable_edges(graphs: Sequence[PartyGraph], places: Mapping[PartyId, Tensor], nodes: int) -> dict[PartyId, Tensor]:
    """Holder → keys, int64, of edges that it may use: between own nodes, and those that another holder has too."""
    has = {graph.party: torch.unique(_edge_keys(places[graph.party][graph.edge_index], nodes)) for graph in graphs}
    found = {}
    for graph in graphs:
        own = graph.edge_index[:, (graph.edge_index < graph.common).all(0)]
        others = torch.cat([torch.empty(0, dtype=torch.int64), *(has[name] for name in has if name != graph.party)])
        found[graph.party] = torch.cat([_edge_keys(places[graph.party][own], nodes), others[others != NOWHERE]])
    return found


def places_by_id(graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> dict[PartyId, Tensor]:
    """Holder → the union's row of each node of its graph, int64 [n]; holders' own nodes are numbered in turn.

    Another holder's node, with id ``holder/id``, is ``NOWHERE`` where that holder has none of that id.
    """
    joined = graphs if len(graphs) > 1 else ()  # alone a holder knows of nobody's nodes
    own = [f"{graph.party}/{text}" for graph in joined for text in ids[graph.party][: graph.common]]
    rows, start, places = {name: row for row, name in enumerate(own)}, 0, dict[PartyId, Tensor]()
    for graph in graphs:
        others = [rows.get(text, NOWHERE) for text in ids[graph.party][graph.common :]]
        end = start + graph.common
        places[graph.party] = torch.cat([torch.arange(start, end), torch.tensor(others, dtype=torch.int64)])
        start = end
    return places


def begin_program(job: UnionJob, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> SealedProgram:
    """Return the plaintext twin's program of all holders, set up to make its first training step."""
    context = joint_context(job, graphs, ids)
    program = SealedProgram(PlainMachine(list(context.data)), context)
    program.enter(trains=True)
    program.begin()
    return program


def alone(job: UnionJob, graph: PartyGraph, ids: Sequence[str], progress: Progress) -> PlainResult:
    """Train the job's network on one holder's graph, others' nodes without features; ``output``: own nodes' logits."""
    found = _in_one_place(job, replace(graph, num_common=None), ids, progress)
    return replace(found, output=found.output[: graph.common])


def pooled(
    job: UnionJob, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]], progress: Progress
) -> PlainResult:
    """Train the job's network on ``one_graph``; ``output`` has the holders' nodes in turn."""
    whole = one_graph(graphs, ids)
    return _in_one_place(job, whole, [str(row) for row in range(whole.num_nodes)], progress)


def one_graph(graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> PartyGraph:
    """Pool all holders' nodes, in turn, and edges, each pair once: a graph that nobody may have in practice."""
    places, edges, weights = places_by_id(graphs, ids), list[Tensor](), list[Tensor]()
    owners = [with_no_labels(graph) for graph in graphs if graph.common]
    for graph in graphs:
        found = places[graph.party][graph.edge_index]
        kept = (found != NOWHERE).all(0)
        edges.append(found[:, kept])
        weights += [] if graph.edge_weight is None else [graph.edge_weight[kept]]
    pairs, weight = _merge_edges(edges, weights)
    names = [name for name in ("labels", *MASKS) if all(getattr(graph, name) is not None for graph in owners)]
    return replace(
        owners[0].merged(),
        party=POOLED,
        features=torch.cat([graph.features[: graph.common] for graph in owners]),
        edge_index=pairs,
        edge_weight=weight,
        num_classes=max(graph.num_classes or 0 for graph in owners),
        num_common=None,
        **{name: torch.cat([getattr(graph, name)[: graph.common] for graph in owners]) for name in names},  # type: ignore[arg-type]
    )


def _merge_edges(edges: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Merge holders' edges: each pair once, with the larger of two holders' weights; None unless all have weights."""
    if len(weights) < len(edges):
        return pairs_once(torch.cat(edges, 1))[0], None
    own = [summed_once(*each) for each in zip(edges, weights, strict=True)]
    pairs, place = pairs_once(torch.cat([pairs for pairs, _ in own], 1))
    sums = torch.cat([weight for _, weight in own])
    return pairs, sums.new_zeros(pairs.shape[1]).scatter_reduce(0, place, sums, "amax")


def trained_alone(job: UnionJob, graph: PartyGraph) -> Tensor:
    """Train the job's network on one graph for all its steps, and return its logits: float64 [N, C]."""
    rows = [str(row) for row in range(graph.num_nodes)]
    program = begin_program(_single_holder_job(job, graph), [graph], {graph.party: rows})
    for number in range(job.train.epochs):
        program.step(number)
    found = program.predict()
    assert found is not None  # one place knows all
    return logits_of(found)


def _in_one_place(job: UnionJob, graph: PartyGraph, ids: Sequence[str], progress: Progress) -> PlainResult:
    return train_plain(job, graph, progress, begin_program(_single_holder_job(job, graph), [graph], {graph.party: ids}))


def _single_holder_job(job: UnionJob, graph: PartyGraph) -> UnionJob:
    data = job.data.model_copy(update={"holders": (graph.party,), "label_holder": None})
    alone = {"output": "margins", "named_nodes": None, "across": None, "trust": "dealer"}
    return job.model_copy(update={"data": data, **alone})
