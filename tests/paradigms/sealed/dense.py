"""What the sealed network computes, spelled out with dense matrices."""

import torch
from torch import Tensor

from tests.paradigms.sealed.programs import small_graphs
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.inputs import own_data, plan_of
from veilgraph.paradigms.sealed.settings import SealedJob

STANDARD = {"data": {"feature_scaling": "standard"}}


def graphs_of(job: SealedJob, **sizes: int) -> list[PartyGraph]:
    """Small graphs as a job wants them."""
    model = job.model
    return small_graphs(len(job.data.names), directed=model.directed, weighted=model.edge_weights, **sizes)


def adjacency(graphs: list[PartyGraph]) -> Tensor:
    """A of these graphs together, dense."""
    found = torch.zeros((graphs[0].num_nodes,) * 2, dtype=torch.float64)
    for graph in graphs:
        weights = torch.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
        found.index_put_((graph.edge_index[1], graph.edge_index[0]), weights.to(torch.float64), accumulate=True)
    return found


def moved(rows: Tensor, graphs: list[PartyGraph], hops: int, *, standard: bool) -> Tensor:
    """Rows after K hops over the edges of some holders; from four on an eighth or sixteenth comes back in each."""
    p = adjacency(graphs) + torch.eye(len(rows))
    p *= p.sum(1)[:, None].rsqrt() * p.sum(1).rsqrt()
    start, back = rows, (0.0625 if standard else 0.125) if hops > 3 else 0.0
    for _ in range(hops):
        rows = (1 - back) * p @ rows + back * start
    return rows


def part(job: SealedJob, graphs: list[PartyGraph], holder: int, name: str) -> Tensor:
    """A holder's columns as a part of the first weights multiplies them, by its name."""
    own, (kind, *which) = own_data(job, graphs[holder]).columns, name.split(".")
    if not which:
        return own[kind]
    over = [graph for graph in graphs if graph.party in which] if "each" in name else graphs
    hops = next(int(word) for word in which if word.isdigit())
    rows = own["unit" if kind == "unit" else "own"]
    return moved(rows, over, hops, standard=plan_of(job).standard)


def whole_rows(job: SealedJob, graphs: list[PartyGraph], rows: Tensor) -> Tensor:
    """Z of every node, of the first trial's blocks: a one, and columns that are standardised over some rows."""
    plan = plan_of(job)
    names = [
        f"{block}{over}"
        for block in plan.trials[0].blocks
        for over in ([f".{graph.party}" for graph in graphs] if "each." in block else [""])
    ]
    z = torch.cat([part(job, graphs, place, name) for name in names for place in range(len(graphs))], 1)
    largest = 16.0 if plan.standard else 1.0
    z = (z - z[rows].mean(0)) * (256 * z[rows].var(0, correction=0) + 1).rsqrt() * largest
    return torch.cat([torch.ones((len(z), 1), dtype=torch.float64), z], 1)


def logits_by(z: Tensor, weights: list[Tensor], classes: int = 3, left: Tensor | int = 1) -> Tensor:
    """Logits: Z·W + relu(Z·U)·V, where ``left`` is what hidden units are multiplied by."""
    made = z @ weights[0]
    return made if len(weights) == 1 else made[:, :classes] + (made[:, classes:].relu() * left) @ weights[1]
