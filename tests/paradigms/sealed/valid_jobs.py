"""Random jobs that a consortium could submit: blocks of every kind, hubs, weights, rates and scales of columns."""

import random
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from tests.paradigms.sealed.dense import STANDARD
from tests.paradigms.sealed.programs import small_job
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.settings import SealedJob

_SCALES: Final = (1e-3, 1.0, 1.0, 30.0, 1e3)
"""Factors of all of a holder's columns, or of each by itself."""
_BLOCKS: Final = ("own", "neighbours", "pooled.1", "pooled.2", "pooled.6", "each.1", "each.3")


def hub_edges(nodes: int, degree: int, hub: int, generator: torch.Generator) -> Tensor:
    """Edges from other nodes to one hub: int64 [2, degree]."""
    others = torch.randperm(nodes, generator=generator)[: degree + 1]
    others = others[others != hub][:degree]
    return torch.stack([others, torch.full_like(others, hub)])


def federation(
    draw: random.Random,
    *,
    holders: int,
    nodes: int,
    degree: int,
    skews: bool = False,
    directed: bool = False,
    weighted: bool = False,
    same_hub: bool = False,
) -> list[PartyGraph]:
    """Graphs of holders: four classes that columns and edges tell, and a hub of ``degree`` edges at each."""
    generator = torch.Generator().manual_seed(draw.randrange(2**32))
    classes = draw.randint(2, 5)
    labels = torch.randint(classes, (nodes,), generator=generator)
    labels[:classes] = torch.arange(classes)
    train = torch.zeros(nodes, dtype=torch.bool)
    train[torch.randperm(nodes, generator=generator)[: max(classes, nodes // draw.choice([2, 4, 10]))]] = True
    if labels[train].unique().numel() < 2:
        train[:2] = True
    graphs, first = [], draw.randrange(nodes)
    for holder in range(holders):
        width = draw.randint(3, 12)
        centres = torch.randn(classes, width, generator=generator)
        features = (centres[labels] + 0.7 * torch.randn(nodes, width, generator=generator)) * (
            torch.tensor(draw.choices(_SCALES, k=width)) if skews else 1.0
        )
        sources = torch.randint(nodes, (2 * nodes,), generator=generator)
        targets = torch.randint(nodes, (2 * nodes,), generator=generator)
        alike = labels[sources] == labels[targets]
        keeps = (alike | (torch.rand(2 * nodes, generator=generator) < 0.15)) & (sources != targets)
        ends = torch.stack([sources, targets])[:, keeps]
        if degree:
            hub = first if same_hub else (first + holder) % nodes
            ends = torch.cat([ends, hub_edges(nodes, degree, hub, generator)], 1)
        weights = torch.rand(ends.shape[1], generator=generator) * draw.choice([1.0, 5.0]) if weighted else None
        if not directed:
            ends = torch.cat([ends, ends.flip(0)], 1)
            weights = None if weights is None else torch.cat([weights, weights])
        graphs.append(PartyGraph("ABC"[holder], features, ends, weights))
    graphs[0] = replace(
        graphs[0],
        labels=labels,
        num_classes=classes,
        train_mask=train,
        val_mask=~train & (torch.arange(nodes) % 2 == 0),
        test_mask=~train & (torch.arange(nodes) % 2 == 1),
    )
    return graphs


def valid_case(seed: int) -> tuple[SealedJob, list[PartyGraph]]:
    """A job and its data."""
    draw = random.Random(seed)
    holders, nodes = draw.choice([2, 2, 3]), draw.choice([30, 60, 120])
    directed, weighted, hub = draw.random() < 0.25, draw.random() < 0.3, draw.random() < 0.4
    standard = draw.random() < 0.5
    graphs = federation(
        draw,
        holders=holders,
        nodes=nodes,
        degree=draw.randint(nodes // 3, nodes - 2) if hub else 0,
        skews=draw.random() < 0.4,
        directed=directed,
        weighted=weighted,
        same_hub=draw.random() < 0.5,
    )
    model: dict[str, Any] = {
        "network": draw.choice(["linear", "mlp"]),
        "blocks": draw.sample(_BLOCKS, draw.randint(1, 4)),
        "hidden": draw.choice([4, 16]),
        "directed": directed,
        "edge_weights": weighted,
    }
    train: dict[str, Any] = {
        "epochs": draw.choice([6, 12]),
        "learning_rate": draw.choice([None, None, 0.05, 0.25] if standard else [None, None, 0.3, 2.0]),
        "batch_size": draw.choice([None, None, 7]),
        "class_weights": draw.choice(["none", "balanced"]),
        "select_by": draw.choice(["last", "last", "accuracy", "auc"]),
        "evaluate_every": 3,
    }
    settings: dict[str, Any] = {"model": model, "train": train, "output": draw.choice(["classes", "margins"])}
    if standard:
        settings |= STANDARD
    if draw.random() < 0.2:
        settings["privacy"] = {"unit": "edge", "epsilon_total": draw.choice([2, 8])}
        pooled = [block for block in model["blocks"] if block == "own" or block.startswith("pooled")]
        model |= {"network": "linear", "blocks": pooled or ["own"], "edge_weights": False, "edge_slots": 1 << 14}
        train["select_by"] = "last"
        graphs = [replace(graph, edge_weight=None) for graph in graphs]
    return small_job(holders, settings), graphs
