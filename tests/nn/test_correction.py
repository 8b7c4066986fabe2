"""The corrected loss, against its definition and in the limiting case."""

from __future__ import annotations

import torch
from torch.nn import functional

from veilgraph.nn.correction import corrected, corrected_cross_entropy
from veilgraph.privacy.local.labels import LabelResponse

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 3 * torch.randn(40, 5, dtype=torch.float64, generator=GENERATOR)
LABELS = torch.randint(5, (40,), generator=GENERATOR)


def test_it_is_the_cross_entropy_of_what_the_network_says_of_perturbed_labels() -> None:
    for epsilon in (0.1, 1.0, 4.0):
        transition = LabelResponse(epsilon, 5).transition()
        by_hand = functional.nll_loss(corrected(LOGITS, transition).log(), LABELS)
        assert abs(float(corrected_cross_entropy(LOGITS, LABELS, transition) - by_hand)) < 1e-12


def test_a_transition_that_is_not_symmetric_is_read_row_by_true_class() -> None:
    transition = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
    logits = torch.tensor([[0.0, 200.0]], dtype=torch.float64)
    assert abs(float(corrected_cross_entropy(logits, torch.tensor([0]), transition)) + torch.tensor(0.4).log()) < 1e-6


def test_without_noise_it_is_the_plain_loss() -> None:
    found = corrected_cross_entropy(LOGITS, LABELS, LabelResponse(60.0, 5).transition())
    assert abs(float(found - functional.cross_entropy(LOGITS, LABELS))) < 1e-12


def test_no_probability_is_too_small() -> None:
    logits = torch.tensor([[0.0, 400.0]], requires_grad=True)
    loss = corrected_cross_entropy(logits, torch.tensor([0]), LabelResponse(30.0, 2).transition())
    loss.backward()
    assert torch.isfinite(loss)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_its_expectation_is_least_at_the_true_shares() -> None:
    """So a network learns from perturbed labels what it would from true ones."""
    transition, shares = LabelResponse(1.0, 3).transition(), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    told = shares @ transition

    def expected(logits: torch.Tensor) -> torch.Tensor:
        each = [corrected_cross_entropy(logits[None], torch.tensor([label]), transition) for label in range(3)]
        return (told * torch.stack(each)).sum()

    logits = shares.log().requires_grad_()
    (slope,) = torch.autograd.grad(expected(logits), logits)
    assert slope.abs().max() < 1e-12
    assert expected(told.log()) > expected(logits)
