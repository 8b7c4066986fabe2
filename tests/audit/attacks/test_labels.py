"""Label inference: what is found in gradients whose labels are known, and nothing where there is nothing."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from veilgraph.audit.labels import (
    KnownLabels,
    accuracy,
    directions,
    flattened,
    matched,
    membership_scores,
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
            assert measure(*flattened(scores, labels, attacked(known))).auc > 0.99

    @pytest.mark.parametrize("attack", ATTACKS)
    def test_nothing_is_said_of_nodes_without_a_gradient(self, attack):
        labels = labels_of(2)
        known = one_of_each(labels)
        scores = found_by(attack, training_steps(labels, 3), labels, known)[NODES // 2 :]
        assert (scores == scores[0, 0]).all()
        assert accuracy(scores, labels[NODES // 2 :], np.arange(NODES // 2)) == 0.5
        assert measure(*flattened(scores, labels[NODES // 2 :], np.arange(NODES // 2))).auc == 0.5

    def test_exactly_the_training_nodes_have_a_gradient(self):
        assert measure(membership_scores(training_steps(labels_of(3), 2)), np.arange(NODES) < NODES // 2).auc == 1


class TestNoise:
    @pytest.mark.parametrize("attack", ATTACKS)
    @pytest.mark.parametrize("classes", [2, 5])
    def test_pure_noise_gives_nothing_away(self, attack, classes):
        labels, aucs, shares = labels_of(classes), [], []
        known = np.arange(3 * classes)
        for seed in range(6):
            noise = np.random.default_rng(seed).normal(size=(2, NODES, WIDTH))
            scores = found_by(attack, noise, labels, known)
            aucs.append(measure(*flattened(scores, labels, attacked(known, NODES))).auc)
            shares.append(accuracy(scores, labels, attacked(known, NODES)))
        # one AUC's standard deviation is at most √((P + N + 1)/(12·P·N)) ≈ 0.034, the mean's 0.014
        assert np.mean(aucs) == pytest.approx(0.5, abs=0.05)
        assert np.mean(shares) == pytest.approx(1 / classes, abs=0.05)

    def test_many_steps_average_noise_out(self):
        labels, steps = labels_of(3), 60
        clean = training_steps(labels, steps, rate=0.3)
        length = np.linalg.norm(clean[:, : NODES // 2], axis=2).mean()
        noisy = clean + np.random.default_rng(0).normal(size=clean.shape) * 5 * length / np.sqrt(WIDTH)
        members, known = np.arange(NODES) < NODES // 2, np.arange(9)
        assert measure(membership_scores(noisy), members).auc > 0.9 > measure(membership_scores(noisy[:1]), members).auc
        for attack in ATTACKS:
            many = accuracy(found_by(attack, noisy, labels, known), labels, attacked(known))
            one = accuracy(found_by(attack, noisy[:1], labels, known), labels, attacked(known))
            assert many > 0.95 > one + 0.1

    def test_unknown_nodes_improve_on_a_few_known_ones(self):
        random, labels = np.random.default_rng(2), labels_of(4)
        rows = 4 * np.eye(4, WIDTH)[labels] + random.normal(size=(NODES, WIDTH)) * 1.5
        known = one_of_each(labels)
        scores = {attack: found_by(attack, rows[None], labels, known) for attack in ATTACKS}
        scores["known alone"] = directions(rows) @ directions(rows[known]).T
        right = {attack: accuracy(found, labels, attacked(known, NODES)) for attack, found in scores.items()}
        assert min(right["clusters"], right["completion"]) > max(0.9, right["known alone"] + 0.2)


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

    def test_the_attacked_labels_are_not_read_and_known_order_does_not_matter(self):
        labels, known = labels_of(3), np.arange(6)
        gradients = training_steps(labels, 2)
        others = np.where(np.arange(NODES) < 6, labels, 2 - labels)
        for attack in ATTACKS:
            scores = found_by(attack, gradients, labels, known)
            assert found_by(attack, gradients, others, known).tolist() == scores.tolist()
            assert found_by(attack, gradients, labels, known[::-1]) == pytest.approx(scores, abs=1e-3)


class TestTargets:
    def test_pairs_of_node_and_class(self):
        scores = np.arange(12.0).reshape(4, 3)
        values, truth = flattened(scores, np.array([2, 0, -1, 1]), np.array([3, 0]))
        assert values.tolist() == [9, 10, 11, 0, 1, 2]
        assert truth.tolist() == [False, True, False, False, False, True]

    def test_two_classes_are_one_pair(self):
        values, truth = flattened(np.array([[1.0, 4.0], [2.0, 2.0]]), np.array([1, 0]), np.array([1, 0]))
        assert values.tolist() == [0, 3]
        assert truth.tolist() == [False, True]

    def test_equal_scores_are_guessed(self):
        scores = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 2.0, 2.0], [5.0, 0.0, 0.0]])
        assert accuracy(scores, np.array([0, 1, 0, 0]), np.arange(4)) == pytest.approx((1 / 2 + 1 / 3 + 0 + 1) / 4)

    def test_the_best_matching(self):
        assert matched(np.array([1, 1, 0, 0, 0, -1]), np.array([0, 0, 1, 1, 0, 1])).tolist() == [0, 0, 1, 1, 1, -1]
        three = matched(np.array([0, 0, 1, 2, 2, 2]), np.array([0, 0, 0, 0, 0, 0]))
        assert sorted(set(three.tolist())) == [0, 1, 2]  # one class a cluster
        assert three[3] == 0
