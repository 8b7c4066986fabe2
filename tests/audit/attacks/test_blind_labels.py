"""Labels from gradients without any label known: on gradients of softmax models, and where there is nothing."""

import numpy as np
import pytest

from veilgraph.audit.labels import UNASSIGNED, blind_labels, match_clusters
from veilgraph.audit.pairs import random_pairs
from veilgraph.audit.statistics import measure


def gradients_of(classes=5, nodes=300, width=16, sure=2.0, right=1.0, steps=1, seed=0):
    """Of the embeddings under a linear softmax layer, [S, N, d], and labels; ``right``: how often it predicts them."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=nodes)
    found = []
    for _ in range(steps):
        top = random.normal(size=(classes, width)) / width**0.5
        embeddings = random.normal(size=(nodes, width)) + right * top[labels] * width**0.5
        logits = sure * embeddings @ top.T
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        found.append((shares - np.eye(classes)[labels]) @ top)
    return np.stack(found), labels


def right(found, labels):
    return float((match_clusters(found.groups, labels) == labels).mean())


@pytest.mark.parametrize("classes", [2, 3, 5, 10])
def test_groups_and_their_number_are_found_without_a_label(classes):
    gradients, labels = gradients_of(classes)
    found = blind_labels(gradients, seed=0)
    assert found.shares.shape == (300, classes)
    assert right(found, labels) > 0.99
    pairs = random_pairs(300, 2000, np.random.default_rng(0))
    assert measure(found.pair_scores(pairs), labels[pairs[:, 0]] == labels[pairs[:, 1]]).auc > 0.99


def test_embeddings_narrower_than_the_number_of_classes_are_clustered():
    gradients, labels = gradients_of(6, width=3, sure=0.3, right=0.0, seed=1)
    assert right(blind_labels(gradients, classes=6, seed=0), labels) > 0.7
    assert blind_labels(gradients, seed=0).shares.shape[1] >= 2


def test_of_nodes_without_a_gradient_nothing_is_said():
    gradients, labels = gradients_of(3)
    gradients[:, ::2] = 0
    found = blind_labels(gradients, seed=0)
    assert (found.groups[::2] == UNASSIGNED).all()
    assert (found.shares[::2] == 0).all()
    assert (match_clusters(found.groups[1::2], labels[1::2]) == labels[1::2]).mean() > 0.99
