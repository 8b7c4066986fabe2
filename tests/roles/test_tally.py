"""Tallies add up to the scores of all labels together."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from veilgraph.graph.party import PartyGraph
from veilgraph.nn.layers import FactNetwork
from veilgraph.paradigms.horizontal.tally import Classification
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.judge import Objective

CLASSES = 3


def labelled(nodes: int, seed: int) -> tuple[PartyGraph, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    split = torch.randint(4, (nodes,), generator=generator)
    split[:3] = torch.arange(3)
    graph = PartyGraph(
        "A",
        torch.ones(nodes, 1),
        torch.zeros(2, 0, dtype=torch.int64),
        labels=torch.where(split < 3, torch.randint(CLASSES, (nodes,), generator=generator), -1),
        train_mask=split == 0,
        val_mask=split == 1,
        test_mask=split == 2,
        num_classes=CLASSES,
    )
    return graph, torch.randn(nodes, CLASSES, generator=generator)


def part_of(graph: PartyGraph, rows: torch.Tensor) -> PartyGraph:
    assert graph.labels is not None
    masks = {name: getattr(graph, name)[rows] for name in ("train_mask", "val_mask", "test_mask")}
    return replace(graph, features=graph.features[rows], labels=graph.labels[rows], **masks)


@given(st.integers(3, 40), st.integers(0, 10**6), st.integers(1, 4))
def test_the_sum_of_tallies_scores_as_one_holder_with_all_labels(nodes: int, seed: int, holders: int) -> None:
    graph, logits = labelled(nodes, seed)
    home = torch.randint(holders, (nodes,), generator=torch.Generator().manual_seed(seed))
    task = Classification(CLASSES)
    flat = torch.stack(
        [task.tally(part_of(graph, home == holder), logits[home == holder]) for holder in range(holders)]
    )
    found = task.scores(flat.sum(dim=0))
    expected = Objective(graph, TrainSettings(), logits.dtype).score(logits, everything=True)
    for name in ("train_accuracy", "val_accuracy", "test_accuracy", "val_f1", "test_f1", "train_loss", "val_loss"):
        assert found.record()[name] == pytest.approx(expected.record()[name], abs=1e-5), name
    assert (found.values["test_auc"] is None) == (expected.values["test_auc"] is None)
    if expected.values["test_auc"] is not None:
        assert found.values["test_auc"] == pytest.approx(expected.values["test_auc"], abs=0.1)  # 50 bins, few nodes


def rare(nodes: int = 3000, share: float = 0.08) -> tuple[PartyGraph, torch.Tensor]:
    """Two classes, the second one rare, and logits that rank them well but accuse nobody."""
    generator = torch.Generator().manual_seed(3)
    labels = (torch.rand(nodes, generator=generator) < share).long()
    split = torch.randint(3, (nodes,), generator=generator)
    odds = 0.8 * torch.randn(nodes, generator=generator) + 1.5 * labels - 6
    graph = PartyGraph(
        "A",
        torch.ones(nodes, 1),
        torch.zeros(2, 0, dtype=torch.int64),
        labels=labels,
        train_mask=split == 0,
        val_mask=split == 1,
        test_mask=split == 2,
        num_classes=2,
    )
    return graph, torch.stack([torch.zeros(nodes), odds], dim=1)


def test_balanced_losses_are_those_of_one_holder_with_all_labels() -> None:
    graph, logits = rare(600)
    home, network = torch.arange(600) % 3, FactNetwork()
    parts = [part_of(graph, home == holder) for holder in range(3)]
    task = Classification(2, None, network)
    network.keep_facts(sum(task.sums_before))
    network.gather(task.sums_before, lambda _, known: sum(task.gathered(part, known) for part in parts))  # type: ignore[arg-type,return-value]
    balanced = TrainSettings(class_weights="balanced")
    expected = Objective(graph, balanced, torch.float64).score(logits.double())
    tallies = [task.tally(part, logits[home == holder]) for holder, part in enumerate(parts)]
    found = task.scores(torch.stack(tallies).sum(dim=0))
    assert found.train_loss == pytest.approx(expected.train_loss, abs=1e-5)
    assert found.val_loss == pytest.approx(expected.val_loss, abs=1e-5)
    losses = [task.loss(part, logits[home == holder]) for holder, part in enumerate(parts)]
    examples = sum(task.examples(part) for part in parts)
    assert float(torch.stack(losses).sum()) / examples == pytest.approx(expected.train_loss, abs=1e-5)
    plain = Objective(graph, TrainSettings(), torch.float64).score(logits.double())
    assert abs(plain.train_loss - expected.train_loss) > 1
