"""What a sealed job has all parties compute, and what a holder puts in: made of its graph, within the job's bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from veilgraph.core.errors import DataError, RangeOverflow
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph, check_classes
from veilgraph.paradigms.sealed.networks import NETWORKS
from veilgraph.paradigms.sealed.networks.decoupled import own_blocks
from veilgraph.paradigms.sealed.plan import MOST_OPENED, OwnData, Plan, deviation_of
from veilgraph.paradigms.sealed.settings import SealedJob, SealedModelSettings
from veilgraph.protocol.judge import balanced_weights


def plan_of(job: SealedJob, nodes: int | None = None) -> Plan:
    """What a job has all parties compute.

    Args:
        job: validated.
        nodes: N, which noise may depend on; None: what is asked for does not depend on noise.
    """
    model, train, suits = job.model, job.train, NETWORKS[job.model.network].suits
    return Plan(
        network=model.network,
        hops=suits.hops if model.hops is None else model.hops,
        teleport=suits.teleport if model.teleport is None else model.teleport,
        symmetric=model.normalization == "symmetric",
        directed=model.directed,
        weighted_edges=model.edge_weights,
        each=model.relations == "each",
        own_hops=model.own_hops if model.network == "sign" else 0,
        hidden=model.hidden,
        # Rows that a random walk averages at a hub are nearly alike: a smaller rate suits them.
        learning_rates=train.learning_rates
        or (train.learning_rate or suits.learning_rate * (1 if model.normalization == "symmetric" else 0.5),),
        steps=train.epochs,
        momentum=train.momentum,
        weight_decay=train.weight_decay,
        batch=train.batch_size,
        weighted=train.class_weights == "balanced",
        seed=job.seed,
        unit_rows=model.unit_rows,
        output=job.output,
        release=job.release == "holders",
        votes=None if job.privacy is None else deviation_of(job, nodes),
    )


def slots_of(job: SealedJob, edges: int) -> int:
    """The number of edges that a holder seems to have: rounded up by up to a quarter, where the job states none.

    It is 1 where nothing goes over any edges but each holder's own.
    """
    if not plan_of(job).crosses:
        return 1
    return padded(edges) if job.model.edge_slots is None else job.model.edge_slots


def padded(edges: int) -> int:
    """A number of edges, rounded up by up to a quarter."""
    step = 1 << max(0, edges.bit_length() - 3)
    return max(1, -(-edges // step) * step)


def fit_bounds_to(job: SealedJob, graphs: Sequence[PartyGraph]) -> SealedJob:
    """The job, of weighted edges where some graph has weights, and of directed ones where some edge goes one way."""
    parts = [graph.common_part() for graph in graphs]
    says = {
        "edge_weights": job.model.edge_weights or any(part.edge_weight is not None for part in parts),
        "directed": job.model.directed or not all(_both_ways(part.edge_index, _weights(part)) for part in parts),
    }
    return job.model_copy(update={"model": job.model.model_copy(update=says)})


def own_data(job: SealedJob, graph: PartyGraph, *, refuses: bool = False) -> OwnData:
    """What a holder puts in.

    Args:
        job: validated.
        graph: of the holder.
        refuses: whether it takes no part anyway: then its edges are held to no bound of the job, or whether they fit
            would show in how the job ends.

    Raises:
        DataError: it does not fit the job's public bounds.
    """
    model, plan, common = job.model, plan_of(job), graph.common_part()
    if common.edge_weight is not None and not plan.weighted_edges:
        way_out = "leave weights out" if job.privacy else "set model.edge_weights: true, or leave weights out"
        raise DataError(
            f"party {graph.party!r}: its edges have weights, and model.edge_weights=false says that all count alike; "
            f"{way_out}",
            key="model.edge_weights",
            value=False,
        )
    weights = _weights(common)
    if refuses:
        pass
    elif _is_noised(job, graph.party):
        _check_slots(job, graph.party, hidden_edges(job, common))
    else:
        _check_edges(job, common, weights)
    return OwnData(_columns(model, plan, graph), hidden_edges(job, common), weights)


def _check_slots(job: SealedJob, party: PartyId, edges: Tensor) -> None:
    """Of edges that ε is about: their padded number has to fit. Jobs of one bound after another find it, and no more.

    Whether a node has more than so many edges, or an edge goes one way, would end a job too: jobs of one bound after
    another would find how many, to the last edge. Votes are counted the same whatever they are.
    """
    if job.model.edge_slots is not None and padded(edges.shape[1]) > job.model.edge_slots:
        raise DataError(
            f"party {party!r}: {padded(edges.shape[1]):,} edges, rounded up, and model.edge_slots="
            f"{job.model.edge_slots:,}: raise it",
            key="model.edge_slots",
            value=job.model.edge_slots,
        )


def _check_edges(job: SealedJob, common: PartyGraph, weights: Tensor | None) -> None:
    """Of edges that others compute over as they are."""
    model, plan, party = job.model, plan_of(job), common.party
    slots, edges = slots_of(job, common.num_edges), common.edge_index
    if plan.crosses and common.num_edges > slots:
        raise DataError(
            f"party {party!r}: {common.num_edges:,} edges, and model.edge_slots={slots:,}: raise it",
            key="model.edge_slots",
            value=slots,
        )
    rule, degree = job.inputs.degree_rules.get(party), most_edges_at_a_node(common)
    if rule is not None and degree > rule[1]:
        raise DataError(
            f"party {party!r}: the edges of a node count {degree:,.10g}, and model.max_degree={model.max_degree} "
            f"leaves each of {len(job.data.names)} holders {rule[1]:,}: raise it, or leave out edges of such nodes",
            key="model.max_degree",
            value=model.max_degree,
        )
    if not plan.directed and not _both_ways(edges, weights):
        raise DataError(
            f"party {party!r}: some of its edges go one way only, or with another weight back, and "
            "model.directed=false says that all go both ways; set model.directed: true, or give every edge in both "
            "directions",
            key="model.directed",
            value=False,
        )


def most_edges_at_a_node(graph: PartyGraph) -> float:
    """The largest number of edges into or out of a common node, or the largest sum of their weights."""
    common = graph.common_part()
    ends = (torch.bincount(each, weights=_weights(common)) for each in common.edge_index)
    return max((float(each.max()) for each in ends if each.numel()), default=0)


def hidden_edges(job: SealedJob, graph: PartyGraph) -> Tensor:
    """The edges that a holder puts in, of those between common nodes: int64 [2, E]."""
    return edges_once(graph.edge_index) if _is_noised(job, graph.party) else graph.edge_index


def _is_noised(job: SealedJob, party: PartyId) -> bool:
    """Whether a holder's edges are votes, with noise."""
    return job.privacy is not None and party in job.duties.publishing


def edges_once(edges: Tensor) -> Tensor:
    """Each pair of a source and a target once, none from a node to itself: an edge is one vote, however it is recorded.

    Args:
        edges: int64 [2, E].
    """
    once: Tensor = torch.unique(edges[:, edges[0] != edges[1]], dim=1)
    return once


def with_labels(own: OwnData, graph: PartyGraph, job: SealedJob, streams: LearningStreams, classes: int) -> OwnData:
    """What the label holder puts in.

    Args:
        own: as of every holder.
        graph: its common part, with labels and masks.
        job: the job.
        streams: of the party's seed.
        classes: C.

    Raises:
        DataError: there are no training nodes, or all are of one class.
    """
    assert graph.labels is not None
    assert graph.train_mask is not None
    rows = graph.train_mask.nonzero()[:, 0]
    if not rows.numel():
        raise DataError(f"party {graph.party!r}: none of its labelled common nodes is for training; mark some")
    check_classes(graph)
    # Where a row stands among the training rows tells nothing: the order is drawn from the party's own seed.
    rows = rows[torch.randperm(rows.numel(), generator=streams.generator("rows"))]
    labels = graph.labels[rows]
    weights = None
    if job.train.class_weights == "balanced":
        weights = balanced_weights(labels, classes)[labels]
    own = replace(own, rows=rows, labels=labels, weights=weights)
    if job.train.select_by == "last":
        return own
    assert graph.val_mask is not None
    judged = graph.val_mask.nonzero()[:, 0]
    if not judged.numel():
        raise DataError(
            f"party {graph.party!r}: train.select_by=accuracy counts common validation nodes, and there are none; mark "
            "some, or set it to last",
            key="train.select_by",
            value=job.train.select_by,
        )
    return replace(own, judged=judged, judged_labels=graph.labels[judged])


def _weights(graph: PartyGraph) -> Tensor | None:
    return None if graph.edge_weight is None else graph.edge_weight.to(torch.float64)


def _both_ways(edges: Tensor, weights: Tensor | None) -> bool:
    """Whether every edge is there in both directions, as often and with the same weights in one as in the other."""
    counts = torch.ones(edges.shape[1], dtype=torch.float64) if weights is None else weights
    there, back = (torch.cat([ends.to(torch.float64), counts[None]]).numpy() for ends in (edges, edges.flip(0)))
    return np.array_equal(there[:, np.lexsort(there)], back[:, np.lexsort(back)])


def _columns(model: SealedModelSettings, plan: Plan, graph: PartyGraph) -> Tensor:
    """What a holder puts in of every common node. Hops of its own pass nodes that others do not know as well."""
    known = graph if plan.own_hops else graph.common_part()
    columns = known.features.to_dense().to(torch.float64)
    if model.unit_rows:
        columns = nn.functional.normalize(columns, dim=1)
    if plan.own_hops:
        columns = own_blocks(
            OwnData(columns, known.edge_index, _weights(known)), plan.own_hops, symmetric=plan.symmetric
        )
    columns = columns[: graph.common]
    largest = float(columns.abs().max()) if columns.numel() else 0.0
    if not largest < MOST_OPENED:
        raise RangeOverflow(
            f"party {graph.party!r}: its columns have values up to {largest:.3g}, and the ring holds {MOST_OPENED:,}: "
            "set model.unit_rows to true, or scale the columns (data.feature_scaling: standard)",
            code="beyond-the-ring",
            key="model.unit_rows",
            value=model.unit_rows,
        )
    return columns
