"""Random graphs of a wanted size, and the public ones of the benchmarks."""

from __future__ import annotations

from dataclasses import replace

import torch

from veilgraph.graph.dataset import load_parties
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.settings import DataSettings


def public(dataset: str) -> list[PartyGraph]:
    """Cora, CiteSeer or PubMed between two holders, split evenly."""
    return load_parties(DataSettings.model_validate({"dataset": dataset}), 0)


def random_parties(nodes: int, edges: int, features: int, classes: int, holders: int = 2) -> list[PartyGraph]:
    """Dense normal features and uniform undirected edges, divided evenly; labels at A.

    Args:
        nodes: N.
        edges: undirected, over all holders.
        features: over all holders.
        classes: of the labels.
        holders: P.
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (nodes,), generator=generator)
    split = torch.rand(nodes, generator=generator)
    parties = []
    for index in range(holders):
        pairs = torch.randint(nodes, (2, edges // holders), generator=generator)
        parties.append(
            PartyGraph(
                party=chr(ord("A") + index),
                features=torch.randn(nodes, features // holders, generator=generator).clamp_(-4, 4),
                edge_index=torch.cat([pairs, pairs.flip(0)], dim=1),
            )
        )
    train, val, test = split < 0.5, (split >= 0.5) & (split < 0.7), split >= 0.7
    labelled = replace(parties[0], labels=labels, num_classes=classes, train_mask=train, val_mask=val, test_mask=test)
    return [labelled, *parties[1:]]
