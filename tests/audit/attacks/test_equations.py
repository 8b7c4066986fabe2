"""Features from a model's outputs: exact where equations suffice, and each equation counts by its noise."""

import numpy as np
import pytest

from veilgraph.audit.features import LinearModel, fit_model, generated_columns, log_ratios, solve_equations
from veilgraph.audit.statistics import measure

NODES, OWN, CLASSES = 300, 5, 6


class Regression:
    """A logistic regression of own and unknown columns, and what it puts out."""

    def __init__(self, unknown: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.own = random.normal(size=(NODES, OWN))
        self.columns = (random.random((NODES, unknown)) < 0.4).astype(np.float64)
        self.weights = random.normal(size=(OWN + unknown, CLASSES))
        logits = np.concatenate([self.own, self.columns], axis=1) @ self.weights + random.normal(size=CLASSES)
        confidences = np.exp(logits)
        self.posteriors = confidences / confidences.sum(axis=1, keepdims=True)
        ratios = self.weights[:, :-1] - self.weights[:, 1:]
        bias = (log_ratios(self.posteriors) - np.concatenate([self.own, self.columns], axis=1) @ ratios)[0]
        self.model = LinearModel(ratios[:OWN], ratios[OWN:], bias, np.zeros((CLASSES - 1, CLASSES - 1)))
        self.known = np.arange(NODES) < NODES // 2
        self.hidden = np.where(self.known[:, None], self.columns, np.nan)

    def auc(self, found: np.ndarray) -> float:
        return measure(found[~self.known].ravel(), self.columns[~self.known].ravel() > 0).auc


def test_as_many_columns_as_equations_are_solved_for_exactly() -> None:
    case = Regression(unknown=CLASSES - 1)
    found = solve_equations(case.model, case.own, log_ratios(case.posteriors))
    assert found == pytest.approx(case.columns, abs=1e-6)


def test_equations_count_by_their_noise() -> None:
    case = Regression(unknown=2)
    outputs = log_ratios(case.posteriors) + np.random.default_rng(1).normal(size=(NODES, 5)) * [0, 0, 9, 9, 9]
    fitted = fit_model(case.own, case.hidden, outputs, case.known)
    assert case.auc(solve_equations(fitted, case.own, outputs)) > 0.98
    alike = LinearModel(fitted.own, fitted.columns, fitted.bias, np.zeros_like(fitted.noise))
    assert case.auc(solve_equations(alike, case.own, outputs)) < 0.9


def test_two_classes_are_one_equation() -> None:
    case = Regression(unknown=1)
    outputs = log_ratios(case.posteriors)[:, :1]
    fitted = fit_model(case.own, case.hidden, outputs, case.known)
    assert (fitted.own.shape, fitted.columns.shape, fitted.bias.shape, fitted.noise.shape) == (
        (OWN, 1),
        (1, 1),
        (1,),
        (1, 1),
    )
    assert case.auc(solve_equations(fitted, case.own, outputs)) > 0.98
    assert case.auc(generated_columns(case.own, np.nan_to_num(case.hidden), outputs, case.known, seed=0)) > 0.9
