"""Evidence of noisy rows against slow, obvious computation, and its limits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from veilgraph.nn.discriminant import calibrated, class_evidence


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


def test_it_is_the_log_density_of_normal_classes_up_to_a_constant() -> None:
    rows, labels = blobs(300, 5, 2.0)
    opinion = one_hot(labels)
    means = torch.stack([rows[labels == label].mean(dim=0) for label in range(3)])
    centred = rows - means[labels]
    within = centred.T @ centred
    shared = torch.distributions.MultivariateNormal
    densities = torch.stack([shared(mean, within / len(rows)).log_prob(rows) for mean in means], dim=1)
    evidence = evidence_of(rows, opinion, 0.0)
    difference = evidence - densities
    assert float((difference - difference.mean(dim=1, keepdim=True)).abs().max()) < 1e-9


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
