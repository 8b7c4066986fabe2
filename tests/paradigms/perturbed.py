"""Holders of nodes of their own that learn from perturbed labels: their graphs, and what they paid for."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from tests.roles.federation import Settings
from veilgraph.audit.labels import directions, match_clusters
from veilgraph.graph.party import PartyGraph, save_party
from veilgraph.runtime.store import LEDGER
from veilgraph.runtime.store.run_directory import RunDirectory

NODES, CLASSES = 240, 3
SPLITS = ("train_mask", "val_mask", "test_mask")
PRIVATE: Settings = {"label_privacy": {"epsilon": 2.0}}


def holders(nodes: int = NODES, count: int = 3, seed: int = 3) -> list[PartyGraph]:
    """Each has nodes of its own, labels that hang on nothing, and a split that does not hang on labels."""
    generator, size, found = torch.Generator().manual_seed(seed), nodes // count, []
    for name in "ABC"[:count]:
        part = torch.rand(size, generator=generator)
        found.append(
            PartyGraph(
                party=name,
                features=torch.randn(size, 6, generator=generator),
                edge_index=torch.randint(size, (2, 3 * size), generator=generator),
                labels=torch.randint(CLASSES, (size,), generator=generator),
                num_classes=CLASSES,
                train_mask=part < 0.5,
                val_mask=(part >= 0.5) & (part < 0.75),
                test_mask=(part >= 0.75) & (part < 0.9),
            )
        )
    return found


def brought(folder: Path, graphs: Sequence[PartyGraph]) -> Settings:
    """Saved graphs, with ids, as a job's ``data``."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {graph.party: str(folder / f"{graph.party}.safetensors") for graph in graphs}
    for graph in graphs:
        names = [f"{graph.party}{row}" for row in range(graph.num_nodes)]
        save_party(graph, folder / f"{graph.party}.safetensors", ids=names)
    return {"data": {"graphs": paths}}


def perturbed(run: Path, party: str = "A") -> Tensor:
    """The labels that a holder learned from."""
    kept = RunDirectory.open(run).party(party).keeper.get("own_release")
    assert kept is not None
    return kept[0]["labels"]


def paid(run: Path, party: str = "A") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "parties" / party / LEDGER).read_text().splitlines()[1:]]


def with_others(graph: PartyGraph) -> PartyGraph:
    """Every label is another class, those of test nodes too."""
    assert graph.labels is not None
    return replace(graph, labels=(graph.labels + 1) % CLASSES)


def assert_gradients_tell(gradient: Tensor, true: Tensor, learned: Tensor, epsilon: float | None, classes: int) -> None:
    """Gradients of a class point the same way: they tell what was learned from, and of true labels what ε allows.

    Args:
        gradient: of training nodes, as the server gets it.
        true: their labels.
        learned: those that were learned from.
        epsilon: with which they were perturbed.
        classes: how many; which cluster is which class the attack is told.
    """
    found = KMeans(classes, n_init=5, random_state=0).fit(directions(gradient.double().numpy())).labels_
    guessed = match_clusters(found, learned.numpy())
    assert float(np.mean(guessed == learned.numpy())) > 0.95
    right = float(np.mean(guessed == true.numpy()))
    if epsilon is None:
        assert right > 0.95
        return
    bound = float(np.exp(epsilon) / (np.exp(epsilon) + classes - 1))
    deviation = float(np.sqrt(bound * (1 - bound) / len(true)))
    assert bound - 5 * deviation - 0.05 < right < bound + 5 * deviation
