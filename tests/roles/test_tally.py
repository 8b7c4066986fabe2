"""Tallies add up to the scores of all labels together."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.horizontal.tally import Classification
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.scores import Objective

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
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=1e-5), name
    assert found.val_auc is None


def test_rows_are_true_classes_and_columns_predicted_ones() -> None:
    graph, logits = labelled(4, 0)
    graph = replace(
        graph,
        labels=torch.tensor([2, 2, 0, 1]),
        train_mask=torch.tensor([True, True, False, False]),
        val_mask=torch.tensor([False, False, True, False]),
        test_mask=None,
    )
    logits = torch.eye(CLASSES)[[1, 2, 0, 0]] * 50
    task = Classification(CLASSES)
    found = task.tally(graph, logits)
    assert task.confusion(found)[0].tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 1]]
    assert task.confusion(found)[1].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert found[:3].tolist() == pytest.approx([50, 0, 0], abs=1e-6)
    assert task.scores(found).test_accuracy is None
    assert task.scores(found).test_f1 is None


def test_who_has_no_labels_adds_nothing() -> None:
    graph, logits = labelled(9, 1)
    without = replace(graph, labels=None, train_mask=None, val_mask=None, test_mask=None, num_classes=None)
    task = Classification(CLASSES)
    nothing = task.tally(without, logits)
    assert not nothing.any()
    assert nothing.shape == (3 + 3 * CLASSES**2,)
    assert math.isnan(task.scores(nothing).val_accuracy)
