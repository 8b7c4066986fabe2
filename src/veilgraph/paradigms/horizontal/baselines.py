"""What a horizontal federation is compared with: each holder alone, and the combined graph in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph.features import choose_rows
from veilgraph.graph.parts import HorizontalPart, pool_parts
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.horizontal.settings import HorizontalJob
from veilgraph.paradigms.horizontal.twin import LayeredNetwork, counted_parts
from veilgraph.protocol.plain_fitting import PlainResult, Progress, fit
from veilgraph.protocol.role import precision


def alone(job: HorizontalJob, part: HorizontalPart, progress: Progress) -> PlainResult | None:
    """Trains the job's network on one holder's part (SAPGNN 5.2, SP), judged on its own nodes; None without labels."""
    return _fit(job, part, progress) if job.horizontal.task.outputs(part.graph) else None


def pooled(job: HorizontalJob, parts: Sequence[HorizontalPart], progress: Progress) -> PlainResult:
    """Trains the job's network on the combined graph, which the federation's result equals."""
    return _fit(job, pool_parts(counted_parts(job.model, parts)), progress)


def parts_of(graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> list[HorizontalPart]:
    """Holders' graphs with their places among all nodes that are named.

    Args:
        graphs: one per holder.
        ids: holder → the ids of its rows.
    """
    places = places_of(ids)
    return [_placed(graph, places[graph.party]) for graph in graphs]


def places_of(ids: Mapping[PartyId, Sequence[str]]) -> dict[PartyId, torch.Tensor]:
    """Holder → where its rows stand among all nodes that are named, in the order of their names: Tensor[N_p]."""
    places = {name: place for place, name in enumerate(sorted({name for each in ids.values() for name in each}))}
    return {party: torch.tensor([places[name] for name in each]) for party, each in ids.items()}


def _placed(graph: PartyGraph, places: torch.Tensor) -> HorizontalPart:
    order = places.argsort()
    given = {name: getattr(graph, name) for name in ("labels", "targets", *MASKS) if getattr(graph, name) is not None}
    moved = replace(
        graph,
        features=choose_rows(graph.features, order),
        edge_index=order.argsort()[graph.edge_index],
        **{name: values[order] for name, values in given.items()},
    )
    return HorizontalPart(moved, places[order])


def _fit(job: HorizontalJob, part: HorizontalPart, progress: Progress) -> PlainResult:
    task = job.horizontal.task
    return fit(LayeredNetwork(job.model, job.train, [part], seed=job.seed, dtype=precision(job), task=task), progress)
