"""Evidence of noisy rows, and what a joint network sees of them, against slow, obvious computation."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import functional

from veilgraph.nn.noisy_rows import Axes, JointNetwork, Whitening, calibrated, class_evidence, shrunk
from veilgraph.nn.propagate import SparseMatrix


def blobs(nodes: int, dim: int, distance: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three classes around points on the axes, unit variance."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(nodes) % 3
    rows = torch.randn(nodes, dim, dtype=torch.float64, generator=generator)
    rows[torch.arange(nodes), labels] += distance
    return rows, labels


def evidence_of(rows: Tensor, opinion: Tensor, variance: float) -> Tensor:
    return class_evidence(rows, opinion, torch.full((rows.shape[1],), variance, dtype=torch.float64))


def one_hot(labels: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(labels, 3).double()


def test_opinions_weigh_rows() -> None:
    """Against the weighted means and covariance, added up row by row."""
    rows, _ = blobs(90, 4, 2.0)
    opinion = torch.rand(90, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    opinion /= opinion.sum(dim=1, keepdim=True)
    means, within = torch.zeros(3, 4).double(), torch.zeros(4, 4).double()
    for label in range(3):
        for weight, row in zip(opinion[:, label], rows, strict=True):
            means[label] += weight * row / opinion[:, label].sum()
    for label in range(3):
        for weight, row in zip(opinion[:, label], rows, strict=True):
            within += weight * torch.outer(row - means[label], row - means[label]) / len(rows)
    normal = torch.distributions.MultivariateNormal
    difference = evidence_of(rows, opinion, 0.0)
    difference -= torch.stack([normal(mean, within).log_prob(rows) for mean in means], dim=1)
    assert float((difference - difference.mean(dim=1, keepdim=True)).abs().max()) < 1e-9


@pytest.mark.parametrize("dim", [3, 64])
def test_nothing_but_noise_says_nothing(dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    rows = 3.0 * torch.randn(2000, dim, dtype=torch.float64, generator=generator)
    opinion = torch.rand(2000, 3, dtype=torch.float64, generator=generator)
    evidence = evidence_of(rows, opinion / opinion.sum(dim=1, keepdim=True), 9.0)
    assert float((evidence - evidence.mean(dim=1, keepdim=True)).abs().max()) < 0.15


def test_columns_of_nothing_but_noise_take_nothing_from_those_without() -> None:
    rows, labels = blobs(900, 8, 2.0)
    noise = 3e4 * torch.randn(900, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    variance = torch.tensor([0.0] * 8 + [9e8] * 8, dtype=torch.float64)
    alone = evidence_of(rows, one_hot(labels), 0.0)
    beside = class_evidence(torch.cat([rows, noise], dim=1), one_hot(labels), variance)
    assert float((beside - alone).abs().max()) < 0.2 * float(alone.abs().max())
    as_if_noisy = evidence_of(torch.cat([rows, noise], dim=1), one_hot(labels), 9e8)
    assert float(as_if_noisy.abs().max()) < 0.2 * float(alone.abs().max()), "the control: one variance for all"


def test_the_more_noise_the_less_is_said() -> None:
    rows, labels = blobs(900, 8, 2.0)
    spreads = []
    for variance in (0.0, 1.0, 16.0, 256.0, 65536.0):
        noise = torch.randn(rows.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
        evidence = evidence_of(rows + math.sqrt(variance) * noise, one_hot(labels), variance)
        spreads.append(float((evidence - evidence.mean(dim=1, keepdim=True)).abs().mean()))
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[0] > 1
    assert spreads[-1] < 0.05


def test_it_tells_classes_that_a_weak_opinion_hardly_knows() -> None:
    """What it is for: an opinion right in half of the cases is enough to learn where the classes lie."""
    rows, labels = blobs(3000, 16, 3.0)
    generator = torch.Generator().manual_seed(1)
    guessed = torch.where(
        torch.rand(3000, generator=generator) < 0.25, labels, torch.randint(3, (3000,), generator=generator)
    )
    opinion = 0.5 * one_hot(guessed) + 0.5 / 3
    assert float((guessed == labels).double().mean()) < 0.55
    found = evidence_of(rows, opinion, 0.0).argmax(dim=1)
    assert float((found == labels).double().mean()) > 0.9


@pytest.mark.parametrize("shape", [(1, 4), (2, 8), (5, 40), (40, 1)])
def test_few_rows_many_columns_and_missing_classes_stay_finite(shape: tuple[int, int]) -> None:
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    opinion = torch.zeros(shape[0], 3)
    opinion[:, 0] = 1
    evidence = evidence_of(rows, opinion, 0.0)
    assert evidence.shape == (shape[0], 3)
    assert evidence.dtype == torch.float32
    assert bool(evidence.isfinite().all())
    assert bool(evidence_of(torch.zeros(shape), opinion, 0.0).isfinite().all())


def test_calibration_takes_the_factor_with_the_smallest_loss_on_the_judged_nodes() -> None:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(3, (4000,), generator=generator)
    logits = torch.randn(4000, 3, dtype=torch.float64, generator=generator) + 2 * one_hot(labels)
    true = logits * 2  # of classes with these means and unit variance
    judged = torch.arange(4000) < 2000
    for factor in (0.25, 0.5, 1.0, 2.0, 4.0):
        assert float((calibrated(true / factor, labels, judged) - true.log_softmax(dim=1)).abs().max()) < 1e-9
    assert torch.equal(calibrated(true, labels, judged).argmax(dim=1), true.argmax(dim=1))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rows_have_length_1_times_what_noise_does_not_explain() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(shrunk(rows, 0.0), torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]], dtype=torch.float64))
    share = 1 - 2 * 2.0 / 25
    expected = torch.tensor([[0.6 * share, 0.8 * share], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(shrunk(rows, 2.0), expected)


def test_whitened_columns_have_mean_0_and_variance_1_and_no_correlation() -> None:
    rows = drawn(4000, 5) @ torch.diag(torch.tensor([10.0, 1, 0.1, 0.1, 1]).double()) @ drawn(5, 5, seed=1) + 7
    whitening = Whitening(5, torch.float64)
    whitening.learn(rows)
    found = whitening(rows)
    assert float(found.mean(dim=0).abs().max()) < 0.01, "but for what is cut off"
    assert float((found.T @ found / len(rows) - torch.eye(5)).abs().max()) < 0.02
    assert float(whitening(10 * rows).abs().max()) == 4.0
    later = whitening(rows[:3])
    assert torch.equal(later, found[:3]), "as it was learnt"


def test_whitening_leaves_out_directions_that_nothing_lies_in() -> None:
    rows = torch.cat([drawn(300, 3), torch.zeros(300, 2).double()], dim=1)
    rows[:, 4] = 1e-12 * drawn(300, 1, seed=2).ravel()
    whitening = Whitening(5, torch.float64)
    whitening.learn(rows)
    assert float(whitening(rows)[:, 3:].abs().max()) < 1e-6
    whitening.learn(torch.zeros(10, 5).double())
    assert not bool(whitening(torch.zeros(10, 5).double()).any())


def learnt(rows: Tensor, variance: float) -> Axes:
    axes = Axes(rows.shape[1], torch.float64)
    axes.learn(rows, variance)
    return axes


def test_noise_is_taken_off_along_axes_that_have_nothing_else() -> None:
    basis, _ = torch.linalg.qr(drawn(12, 3, seed=1))
    rows = drawn(2000, 3, seed=2) @ torch.diag(torch.tensor([30.0, 5, 2]).double()) @ basis.T
    noise = drawn(2000, 12, seed=3)
    axes = learnt(rows + noise, 1.0)
    assert axes.share == pytest.approx(3 / 12)
    assert float((axes.matrix - basis @ basis.T).abs().max()) < 0.05
    assert float((axes(rows + noise) - rows).square().mean()) == pytest.approx(3 / 12, abs=0.01)
    assert torch.equal(axes(rows[:5]), rows[:5] @ axes.matrix), "later rows are seen along the same"


@pytest.mark.parametrize(("nodes", "width"), [(40, 12), (400, 12), (60, 64)])
def test_noise_alone_has_no_axes(nodes: int, width: int) -> None:
    """99 times of 100; and a little more than noise has one."""
    drawings = [3 * drawn(nodes, width, seed=seed) for seed in range(30)]
    assert sum(learnt(rows, 9.0).share > 0 for rows in drawings) <= 2
    assert sum(learnt(rows, 9.0 / 1.4).share > 0 for rows in drawings) >= 20
    axes = learnt(drawings[0], 18.0)
    assert not bool(shrunk(axes(drawings[0]), 18.0 * axes.share).any())


def test_without_noise_all_that_there_is_stays() -> None:
    rows = drawn(50, 3) @ drawn(3, 8, seed=1)
    axes = learnt(rows, 0.0)
    assert axes.share == pytest.approx(3 / 8)
    assert torch.allclose(axes(rows), rows)
    assert not bool(learnt(torch.zeros(10, 8).double(), 0.0).matrix.any())


def network_of(blocks: int) -> JointNetwork:
    torch.manual_seed(0)
    return JointNetwork(4, [3] * blocks, 2, torch.float64)


def sparse(rows: Tensor) -> SparseMatrix:
    return SparseMatrix(sp.csr_array(rows.numpy().astype(np.float64)))


def test_logits_are_of_each_node_alone_and_by_hand() -> None:
    network, own, blocks = network_of(2), drawn(6, 4), [drawn(6, 3, seed=1), drawn(6, 3, seed=2)]
    found = network(sparse(own), blocks, None)
    parts = [own @ network.own.weight.T + network.own.bias, *(network.blocks[i](b) for i, b in enumerate(blocks))]
    hidden = functional.selu(network.hidden(functional.selu(torch.cat(parts, dim=1))))
    assert torch.allclose(found, network.output(hidden))
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert torch.allclose(network(sparse(own[order]), [each[order] for each in blocks], None), found[order])
    alone = network(sparse(own[:1]), [each[:1] for each in blocks], None)
    assert torch.allclose(alone, found[:1])


@pytest.mark.parametrize("part", ["own", "block"])
def test_every_part_learns(part: str) -> None:
    network = network_of(1)
    logits = network(sparse(drawn(6, 4)), [drawn(6, 3, seed=1)], torch.Generator().manual_seed(0))
    logits.square().sum().backward()
    layer = network.own if part == "own" else network.blocks[0]
    assert all(each.grad is not None and bool(each.grad.any()) for each in layer.parameters())


def test_dropout_is_of_the_generator_alone() -> None:
    network, own, blocks = network_of(1), sparse(drawn(6, 4)), [drawn(6, 3, seed=1)]
    passes = [network(own, blocks, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(passes[0], passes[1])
    assert not torch.equal(passes[0], passes[2])
