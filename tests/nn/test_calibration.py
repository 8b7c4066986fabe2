"""Calibrations and corrected losses, against their definitions and in limiting cases."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from veilgraph.nn.calibration import Calibration, corrected_cross_entropy, fit_calibration, released_probabilities
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.judge import balanced_weights, rank_auc

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 3 * torch.randn(40, 5, dtype=torch.float64, generator=GENERATOR)
LABELS = torch.randint(5, (40,), generator=GENERATOR)


def test_it_is_the_cross_entropy_of_what_the_network_says_of_perturbed_labels() -> None:
    for epsilon in (0.1, 1.0, 4.0):
        transition = LabelResponse(epsilon, 5).transition()
        by_hand = functional.nll_loss(released_probabilities(LOGITS, transition).log(), LABELS)
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


RATE = 0.018


def drawn(rate: float = RATE, count: int = 20_000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Labels, and what an overconfident network says of them that learnt with balanced weights."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(count, generator=generator) < rate).long()
    logit = 1.7 * (1.6 * (torch.randn(count, generator=generator) + 1.6 * labels) - 1.28)
    return torch.stack([-logit / 2, logit / 2], 1).softmax(1), labels


def test_weighted_classes_are_right_on_average_and_in_the_same_order() -> None:
    own, labels = drawn()
    judged = slice(0, 1500)
    found = fit_calibration(own[judged], labels[judged], balanced_weights(labels, 2))
    assert found is not None
    told = found.of(own)
    rate = float(labels[1500:].double().mean())
    assert float(own[1500:, 1].mean()) > 10 * rate
    assert float(told[1500:, 1].mean()) == pytest.approx(rate, rel=0.3)
    assert torch.allclose(told.sum(1), torch.ones(len(told)))
    assert rank_auc(told[:, 1], labels == 1) == pytest.approx(rank_auc(own[:, 1], labels == 1), abs=1e-6)
    assert torch.equal(told.double()[:2000, 1].argsort(stable=True), own.double()[:2000, 1].argsort(stable=True))


@pytest.mark.parametrize("count", [0, 20, 60])
def test_few_validation_nodes_stay_near_what_the_weights_say(count: int) -> None:
    own, labels = drawn()
    weights = balanced_weights(labels, 2)
    none = labels[:5000] == 0  # not one of class 1 among them
    found = fit_calibration(own[:5000][none][:count], labels[:5000][none][:count], weights)
    assert found is not None
    mean = float(found.of(own)[:, 1].mean())
    assert RATE / 4 < mean < 4 * RATE
    if not count:
        assert found.scale == 1
        assert found.shifts == pytest.approx((-weights.log()).tolist())


def test_without_nodes_or_weights_or_with_what_is_no_number_nothing_is_corrected() -> None:
    own, labels = drawn(count=50)
    assert fit_calibration(own[:0], labels[:0]) is None
    assert fit_calibration(torch.full_like(own, torch.nan), labels) is None


def test_of_more_classes_a_node_keeps_their_order() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(900, 5, generator=generator)
    labels = torch.multinomial((logits / 3).softmax(1), 1, generator=generator).ravel()
    found = fit_calibration(logits[:600].softmax(1), labels[:600])
    assert found is not None
    assert found.scale == pytest.approx(1 / 3, rel=0.25)
    assert found.shifts == (0.0,) * 5
    assert torch.equal(found.of(logits.softmax(1)).argmax(1), logits.argmax(1))


def test_perturbed_labels_are_corrected_for() -> None:
    own, labels = drawn(0.3)
    flips = torch.rand(len(labels), generator=torch.Generator().manual_seed(5)) < 0.2
    seen = torch.where(flips, 1 - labels, labels)
    transition = torch.tensor([[0.8, 0.2], [0.2, 0.8]], dtype=torch.float64)
    rate = float(labels.double().mean())
    with_it, without = fit_calibration(own, seen, None, transition), fit_calibration(own, seen)
    assert with_it is not None
    assert without is not None
    assert float(with_it.of(own)[:, 1].mean()) == pytest.approx(rate, abs=0.02)
    assert abs(float(without.of(own)[:, 1].mean()) - rate) > 0.05


def test_a_probability_that_was_rounded_to_nothing_stays_a_probability() -> None:
    told = Calibration(2.0, (0.0, -3.0)).of(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert torch.equal(told, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
