"""Class probabilities that are as often right as they say, and losses of labels that were exchanged at random.

Source of the corrected losses: Patrini, Rozza, Menon, Nock & Qu, "Making deep neural networks robust to label noise: a
loss correction approach", CVPR 2017, section 3 (forward correction).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def released_probabilities(logits: Tensor, transition: Tensor) -> Tensor:
    """p(y'|x) = p(y|x)·P, Tensor[N, c], of logits; ``transition`` is Tensor[c, c], P(released = j | true = i)."""
    return logits.softmax(dim=1) @ transition


def corrected_cross_entropy(logits: Tensor, labels: Tensor, transition: Tensor) -> Tensor:
    """Mean of -log p(y'|x); the arguments are ``corrected_losses``'."""
    return corrected_losses(logits, labels, transition).mean()


def corrected_losses(logits: Tensor, labels: Tensor, transition: Tensor) -> Tensor:
    """Return -log p(y'|x) at each perturbed label (int64 [n]), Tensor[n]; see ``released_probabilities``."""
    likely = transition.to(torch.float64).log().to(logits.dtype).T[labels]
    return -(logits.log_softmax(dim=1) + likely).logsumexp(dim=1)


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """A scale and shifts of log probabilities: q_c ∝ exp(a·log p_c + b_c), a > 0.

    Weighted classes shift p by their weights w, which b_c = -log w_c takes back (Saerens, Latinne & Decaestecker 2002,
    Neural Computation 14). The scale, and of two classes the shifts too, are then those of least log loss (Guo et al.
    2017; Platt 1999) under a Gaussian prior around a = 1 and b = -log w, so a class of few judged nodes stays near it.
    As a > 0, two classes keep the order of nodes, and AUC with it; of more, a node keeps the order of unweighted
    classes.
    """

    scale: float
    shifts: tuple[float, ...]

    def of(self, probabilities: Tensor) -> Tensor:
        """Calibrated probabilities of Tensor[n, C], in its dtype."""
        logits = self.scale * _logs(probabilities) + torch.tensor(self.shifts, dtype=torch.float64)
        return logits.softmax(dim=1).to(probabilities.dtype)


def _logs(probabilities: Tensor) -> Tensor:
    """Return log probabilities, finite, float64 and without a gradient."""
    return probabilities.detach().double().clamp_min(1e-300).log()  # one may have been rounded to 0


def fit_calibration(
    probabilities: Tensor, labels: Tensor, weights: Tensor | None = None, transition: Tensor | None = None
) -> Calibration | None:
    """Fit a ``Calibration`` to n judged nodes, not trained on; None without nodes and weights, or if p is not finite.

    Probabilities are Tensor[n, C], ``weights`` Tensor[C] of the classes in the training loss, ``transition`` Tensor[C,
    C], P(label = j | true label = i), of perturbed labels.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - torch.optim.LBFGS imports torch's compiler: seconds

    classes = probabilities.shape[1]
    if (not len(labels) and weights is None) or not bool(probabilities.isfinite().all()):
        return None
    prior = torch.zeros(classes, dtype=torch.float64) if weights is None else -weights.double().log()
    logs = _logs(probabilities)
    free = torch.tensor(classes == 2)
    certain = torch.eye(classes, dtype=torch.float64) if transition is None else transition

    def loss(values: Floats) -> tuple[float, Floats]:
        with torch.enable_grad():
            at = torch.tensor(values, requires_grad=True)
            away = at.square().sum() / 2  # the prior of log a and of every b has standard deviation 1
            total = away + corrected_losses(at[0].exp() * logs + prior + free * at[1:], labels, certain).sum()
            (slope,) = torch.autograd.grad(total, at)
        return float(total.detach()), slope.numpy()

    start = np.zeros(1 + classes)
    told = torch.from_numpy(minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x)
    return Calibration(float(told[0].exp()), tuple((prior + free * told[1:]).tolist()))
