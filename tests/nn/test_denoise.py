import pytest
import torch
from torch.nn import functional

from tests.errors import refused
from tests.nn.slow import random_graph, slow_aggregate
from veilgraph.core.errors import DataError
from veilgraph.nn.correction import corrected
from veilgraph.paradigms.node_dp.denoise import LabelDenoising
from veilgraph.paradigms.node_dp.kprop import neighbour_adjacency
from veilgraph.paradigms.node_dp.settings import DenoiseSettings

DOUBLE = torch.float64
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2])
KNOWN = torch.tensor([True, True, False, True, True, False, True, False, True])


def response(keep, classes=3):
    """Randomised response that keeps a label with probability ``keep``."""
    matrix = torch.full((classes, classes), (1 - keep) / (classes - 1), dtype=DOUBLE)
    return matrix.fill_diagonal_(keep)


def denoising(graph, steps, transition, known=KNOWN, targets="soft"):
    settings = DenoiseSettings(denoise_steps=steps, targets=targets)
    return LabelDenoising(LABELS, known, transition, settings, neighbour_adjacency(graph, "gcn", DOUBLE))


def slow_aggregated(graph, p, steps):
    """A^steps over the known nodes and its row sums, p itself where they are zero; node by node."""
    matrix = torch.linalg.matrix_power(slow_aggregate(graph, "gcn"), steps) * KNOWN
    return torch.stack([row @ p / row.sum() if row.sum() > 0 else p[v] for v, row in enumerate(matrix)])


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_loss_equals_the_dense_computation(steps):
    graph, transition = random_graph(edges=15), response(0.6)
    logits = torch.randn(9, 3, dtype=DOUBLE, requires_grad=True)
    found = denoising(graph, steps, transition)
    one_hot = functional.one_hot(LABELS, 3).to(DOUBLE)
    p = logits.softmax(1) @ transition
    target, predicted = (slow_aggregated(graph, q, steps) if steps else q for q in (one_hot, p))
    torch.testing.assert_close(found.targets[KNOWN], target[KNOWN])
    expected = -(target * predicted.log()).sum(1)[KNOWN].mean()
    torch.testing.assert_close(found.loss(logits, KNOWN), expected)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (found.loss(logits, KNOWN), expected)]
    torch.testing.assert_close(*gradients)


def test_without_noise_and_steps_it_is_the_ordinary_cross_entropy():
    logits = torch.randn(9, 3, dtype=DOUBLE)
    found = denoising(random_graph(), 0, torch.eye(3, dtype=DOUBLE)).loss(logits, KNOWN)
    torch.testing.assert_close(found, functional.cross_entropy(logits[KNOWN], LABELS[KNOWN]))


def test_rows_are_distributions_and_the_isolated_node_keeps_its_own_label():
    found = denoising(random_graph(), 2, response(0.6))
    torch.testing.assert_close(found.targets.sum(1), torch.ones(9, dtype=DOUBLE))
    assert found.targets[8].tolist() == [0, 0, 1]


def test_labels_of_other_nodes_are_not_read():
    graph, transition = random_graph(), response(0.6)
    other = torch.where(KNOWN, LABELS, -1)
    settings = DenoiseSettings(denoise_steps=1, targets="soft")
    found = LabelDenoising(other, KNOWN, transition, settings, neighbour_adjacency(graph, "gcn", DOUBLE))
    assert torch.equal(found.targets[KNOWN], denoising(graph, 1, transition).targets[KNOWN])


def test_hard_targets_are_the_largest_soft_ones():
    graph, transition = random_graph(), response(0.6)
    soft, hard = (denoising(graph, 2, transition, targets=kind).targets for kind in ("soft", "hard"))
    assert torch.equal(hard, functional.one_hot(soft.argmax(1), 3).to(DOUBLE))


def test_the_truth_minimises_the_expected_loss():
    """Where the network is right about p(y|x), its side of the comparison is the expectation of the labels' side."""
    graph, transition = random_graph(), response(0.7)
    truth = (2 * torch.randn(9, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))).requires_grad_()
    found = denoising(graph, 2, transition)
    drawn = truth.detach().softmax(1) @ transition
    labels = torch.multinomial(drawn, 3000, replacement=True, generator=torch.Generator().manual_seed(0))
    settings = DenoiseSettings(denoise_steps=2, targets="soft")
    adjacency = neighbour_adjacency(graph, "gcn", DOUBLE)
    draws = [LabelDenoising(column, KNOWN, transition, settings, adjacency).targets for column in labels.T]
    found.targets = torch.stack(draws).mean(0)
    (at_truth,) = torch.autograd.grad(found.loss(truth, KNOWN), truth)
    wrong = (-truth.detach()).requires_grad_()
    (elsewhere,) = torch.autograd.grad(found.loss(wrong, KNOWN), wrong)
    assert float(at_truth.norm()) < 0.15 * float(elsewhere.norm())


def test_corrected_probabilities():
    logits = torch.randn(4, 3, dtype=DOUBLE)
    transition = response(0.5)
    expected = [[sum(p[i] * transition[i, j] for i in range(3)) for j in range(3)] for p in logits.softmax(1)]
    torch.testing.assert_close(corrected(logits, transition), torch.tensor(expected, dtype=DOUBLE))
    found = denoising(random_graph(), 1, transition)
    torch.testing.assert_close(found.scores(logits).exp(), corrected(logits, transition))


@pytest.mark.parametrize(
    ("transition", "problem"),
    [
        (torch.ones(3, 2), {"key": "transition"}),
        (torch.eye(3) + 0.1, {"key": "transition"}),
        (2 * torch.eye(3) - 1 / 3, {"key": "transition"}),
        (torch.eye(2), {"key": "labels"}),
    ],
)
def test_what_is_refused(transition, problem):
    with refused(DataError, **problem):
        denoising(random_graph(), 1, transition)
