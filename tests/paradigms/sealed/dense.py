"""What sealed networks compute, spelled out with dense matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.paradigms.sealed.programs import small_graphs
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.inputs import own_data, plan_of
from veilgraph.paradigms.sealed.settings import SealedJob


def graphs_of(job: SealedJob, **sizes: int) -> list[PartyGraph]:
    """Small graphs as a job wants them."""
    model = job.model
    return small_graphs(len(job.data.names), directed=model.directed, weighted=model.edge_weights, **sizes)


def normalised(job: SealedJob, graphs: list[PartyGraph]) -> Tensor:
    """P of these graphs together, dense."""
    nodes = graphs[0].num_nodes
    adjacency = torch.eye(nodes, dtype=torch.float64)
    for graph in graphs:
        weights = torch.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
        adjacency.index_put_((graph.edge_index[1], graph.edge_index[0]), weights.to(torch.float64), accumulate=True)
    degrees = adjacency.sum(1)
    if job.model.normalization == "random-walk":
        return adjacency / degrees[:, None]
    return adjacency * degrees.rsqrt()[:, None] * degrees.rsqrt()


def moved(job: SealedJob, rows: Tensor, group: list[PartyGraph]) -> Tensor:
    """Rows after K hops over the edges of some holders, with teleport, by a dense matrix."""
    plan, start, p = plan_of(job), rows, normalised(job, group)
    for _ in range(plan.hops):
        rows = (1 - plan.teleport) * p @ rows + plan.teleport * start
    return rows


def summed_over(job: SealedJob, blocks: Tensor, groups: list[list[PartyGraph]]) -> Tensor:
    """Blocks of columns, each after hops over the edges of a group, added up."""
    pairs = zip(blocks.chunk(len(groups), 1), groups, strict=True)
    return torch.stack([moved(job, block, group) for block, group in pairs]).sum(0)


def spelled_out(job: SealedJob, graphs: list[PartyGraph], weights: list[Tensor]) -> Tensor:
    """Logits of every node, by dense matrices."""
    model, plan = job.model, plan_of(job)
    groups = [[graph] for graph in graphs] if plan.each else [graphs]
    x = torch.cat([own_data(job, graph).features for graph in graphs], 1)

    def side_by_side(rows: Tensor) -> Tensor:
        return torch.cat([moved(job, rows, group) for group in groups], 1)

    def summed_up(blocks: Tensor) -> Tensor:
        return summed_over(job, blocks, groups)

    if model.network == "linear":
        return side_by_side(x) @ weights[0]
    if model.network == "mlp":
        return (side_by_side(x) @ weights[0]).relu() @ weights[1]
    if model.network == "gcn":
        return summed_up(summed_up(x @ weights[0]).relu() @ weights[1])
    if model.network == "appnp":
        return summed_up((x @ weights[0]).relu() @ weights[1])
    first = [part[:, : part.shape[1] // (1 + model.own_hops)] for part in (own_data(job, g).features for g in graphs)]
    pooled = [side_by_side(torch.cat(first, 1))] if plan.hops else []
    return (torch.cat([x, *pooled], 1) @ weights[0]).relu() @ weights[1]
