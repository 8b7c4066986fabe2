"""Label inference: what is found in gradients whose labels are known, and nothing where there is nothing."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from veilgraph.audit.labels import (
    KnownLabels,
    accuracy,
    binary_targets,
)
from veilgraph.audit.statistics import measure

NODES, WIDTH = 300, 16
ATTACKS = ("clusters", "completion")
Labels = NDArray[np.int64]
Floats = NDArray[np.float64]


def labels_of(classes: int) -> Labels:
    return np.arange(NODES) % classes


def training_steps(labels: Labels, steps: int, *, spread: float = 0.3, rate: float = 3.0) -> Floats:
    """Gradients [S, N, d] of a softmax layer on embeddings that say nothing of the labels, as it learns.

    The first half are the training nodes; the first column is a bias; ``spread`` is of the initial weights.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(len(labels), WIDTH, generator=generator, dtype=torch.float64)
    rows[:, 0] = 1
    weight = spread * torch.randn(int(labels.max()) + 1, WIDTH, generator=generator, dtype=torch.float64)
    truth, training, found = torch.from_numpy(labels), len(labels) // 2, []
    for _ in range(steps):
        z, w = rows.clone().requires_grad_(True), weight.clone().requires_grad_(True)
        torch.nn.functional.cross_entropy((z @ w.T)[:training], truth[:training]).backward()
        assert z.grad is not None
        assert w.grad is not None
        found.append(z.grad.numpy())
        weight = weight - rate * w.grad
    return np.stack(found)


def one_of_each(labels: Labels) -> Labels:
    return np.array([np.flatnonzero(labels == label)[0] for label in np.unique(labels)])


def attacked(known: Labels, stop: int = NODES // 2) -> Labels:
    return np.setdiff1d(np.arange(stop), known)


def found_by(attack: str, gradients: Floats | None, labels: Labels, known: Labels, **more: Floats) -> Floats:
    few = KnownLabels(known, labels[known], int(labels.max()) + 1, seed=0)
    return (
        few.clusters(gradients) if attack == "clusters" and gradients is not None else few.completion(gradients, **more)
    )


class TestLinearHead:
    """Gradients are Wᵀ(p − y)/n: their closed form gives everything away."""

    @pytest.mark.parametrize("attack", ATTACKS)
    @pytest.mark.parametrize("steps", [1, 20])
    def test_one_known_node_a_class_gives_all_training_labels(self, attack, steps):
        for classes in (2, 5):
            labels = labels_of(classes)
            known = one_of_each(labels)
            small = training_steps(labels, steps) * 1e-12  # the scale does not matter
            scores = found_by(attack, small.astype(np.float32), labels, known)
            assert accuracy(scores, labels, attacked(known)) > 0.99
            assert measure(*binary_targets(scores, labels, attacked(known))).auc > 0.99


class TestCompletion:
    def test_gradients_and_embeddings_complement_each_other(self):
        labels = labels_of(4)
        gradients = np.where(labels[:, None] < 2, [1.0, 0.0], [-1.0, 0.1])  # tell two pairs of classes apart
        embeddings = np.where(labels[:, None] % 2 == 0, [3.0, 1.0], [5.0, 1.0])  # tell within the pairs
        known = np.arange(4)
        both = found_by("completion", gradients[None], labels, known, embeddings=embeddings)
        assert accuracy(both, labels, attacked(known, NODES)) == 1
        single = found_by("completion", gradients[None], labels, known)
        assert accuracy(single, labels, attacked(known, NODES)) == pytest.approx(0.5, abs=0.01)
