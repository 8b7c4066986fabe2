"""Horizontal jobs beside their twin."""

from dataclasses import replace
from typing import Any

import torch

from tests.paradigms.horizontal import valued
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.partition import split_horizontally
from veilgraph.graph.pooling import HorizontalPart
from veilgraph.link.view import Message, RecordedLink
from veilgraph.paradigms.horizontal.roles import HorizontalHolder, HorizontalServer
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.role import Role, RoleContext
from veilgraph.runtime.launch.processes import run_threads
from veilgraph.runtime.session.training import infer, train_step


def job(holders: int, **horizontal: Any) -> JobSettings:
    """Settings of the network, and with ``task`` what it learns."""
    task = horizontal.pop("task", {})
    server = {"dropout": 0.0, **horizontal.pop("server", {})}
    return parse_job(
        {
            "paradigm": "horizontal",
            "horizontal": {"task": task},
            "precision": "float64",
            "seed": 3,
            "data": {"dataset": "synthetic", "holders": holders},
            "model": {"dim": 6, "server": server, **horizontal},
            "train": {"learning_rate": 0.01},
        }
    )


def parts_of(settings: JobSettings, overlap: float = 0.3) -> list[HorizontalPart]:
    data = synthetic_data(80, 7, 3, settings.seed)
    parts = split_horizontally(data, names=settings.data.names, seed=settings.seed, overlap=overlap)
    if settings.inputs.edge_features:
        parts = [described(part) for part in parts]
    return parts if not settings.inputs.of_nodes else valued(parts)


def described(part: HorizontalPart) -> HorizontalPart:
    """With weights and features of edges, others for a copy at another holder."""
    graph, generator = part.graph, torch.Generator().manual_seed(ord(part.graph.party[0]))
    weight = torch.rand(graph.num_edges, generator=generator)
    features = torch.randn(graph.num_edges, 2, generator=generator)
    return replace(part, graph=replace(graph, edge_weight=weight, edge_features=features))


def federate(
    settings: JobSettings, parts: list[HorizontalPart], steps: int
) -> tuple[dict[PartyId, Role], dict[PartyId, tuple[Message, ...]]]:
    by_name = {part.graph.party: part for part in parts}
    links: dict[PartyId, RecordedLink] = {}

    def program(link: Link) -> Role:
        recorded = links[link.party] = RecordedLink(link, keep_transcript=True)
        session = RoleContext(settings, recorded, LearningStreams(settings.seed, link.party), system_secrets)
        role: Role
        if link.party == SERVER:
            role = HorizontalServer(session)
        else:
            part = by_name[link.party]
            role = HorizontalHolder(session, part.graph, [str(node) for node in part.ids.tolist()])
        role.setup([])
        try:
            for step in range(steps):
                train_step(role, step, step + 1)
            infer(role, steps)
        finally:
            role.close()
            recorded.close()
        return role

    roles = run_threads(dict.fromkeys([*settings.data.names, SERVER], program), 30, lambda: None)
    return roles, {party: link.transcript() for party, link in links.items()}
