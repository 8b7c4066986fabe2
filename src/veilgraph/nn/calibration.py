"""Probabilities that are as often right as they say, by a few numbers that nodes outside the training set choose.

    q_c ∝ exp(a·log p_c + b_c)

Weighted classes shift p by their weights w, which b_c = -log w_c takes back (Saerens, Latinne & Decaestecker 2002,
Neural Computation 14). The scale, and of two classes the shifts too, are then those of least log loss (Guo et al.
2017; Platt 1999) under a Gaussian prior around a = 1 and b = -log w, so a class of few judged nodes stays near it. As
a > 0, two classes keep the order of nodes, and AUC with it; of more, a node keeps the order of unweighted classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.nn.correction import corrected_losses

_LEAST: Final = 1e-300
"""Of a probability that was rounded to 0."""
_SPREAD: Final = 1.0
"""Standard deviation of the prior, of log a and of every b."""
_STEPS: Final = 200
_PAIR: Final = 2

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """A scale and shifts of log probabilities.

    Attributes:
        scale: a > 0.
        shifts: b, one a class.
    """

    scale: float
    shifts: tuple[float, ...]

    def of(self, probabilities: Tensor) -> Tensor:
        """Calibrated probabilities of Tensor[n, C], in its dtype."""
        return self._logits(probabilities).softmax(dim=1).to(probabilities.dtype)

    def _logits(self, probabilities: Tensor) -> Tensor:
        shifts = torch.tensor(self.shifts, dtype=torch.float64)
        return self.scale * _logs(probabilities) + shifts


def _logs(probabilities: Tensor) -> Tensor:
    return probabilities.detach().double().clamp_min(_LEAST).log()


def fitted(
    probabilities: Tensor, labels: Tensor, weights: Tensor | None = None, transition: Tensor | None = None
) -> Calibration | None:
    """The calibration that judged nodes choose; None where nothing is known to correct by.

    Args:
        probabilities: Tensor[n, C], of nodes that were not trained on; n may be 0.
        labels: Tensor[n] int64.
        weights: Tensor[C], of the classes in the training loss; None: all alike.
        transition: Tensor[C, C], P(label = j | true label = i), where labels were perturbed.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - torch.optim.LBFGS imports torch's compiler: seconds

    classes = probabilities.shape[1]
    if (not len(labels) and weights is None) or not bool(probabilities.isfinite().all()):
        return None
    prior = torch.zeros(classes, dtype=torch.float64) if weights is None else -weights.double().log()
    logs = _logs(probabilities)
    free = torch.tensor(classes == _PAIR)
    certain = torch.eye(classes, dtype=torch.float64) if transition is None else transition

    def loss(values: Floats) -> tuple[float, Floats]:
        with torch.enable_grad():
            at = torch.tensor(values, requires_grad=True)
            away = (at / _SPREAD).square().sum() / 2
            total = away + corrected_losses(at[0].exp() * logs + prior + free * at[1:], labels, certain).sum()
            (slope,) = torch.autograd.grad(total, at)
        return float(total.detach()), slope.numpy()

    start = np.zeros(1 + classes)
    told = torch.from_numpy(minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x)
    return Calibration(float(told[0].exp()), tuple((prior + free * told[1:]).tolist()))
