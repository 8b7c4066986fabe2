"""Learning from labels that were exchanged with known probabilities: forward correction of the loss.

Source: Patrini, Rozza, Menon, Nock & Qu, "Making deep neural networks robust to label noise: a loss correction
approach", CVPR 2017, section 3 (forward correction).
"""

from __future__ import annotations

import torch
from torch import Tensor


def corrected(logits: Tensor, transition: Tensor) -> Tensor:
    """p(y'|x) = p(y|x)·P, what the network says of the perturbed labels.

    Args:
        logits: Tensor[N, c] of the true classes.
        transition: Tensor[c, c], P(released label = j | true label = i).

    Returns:
        Tensor[N, c] of probabilities.
    """
    return logits.softmax(dim=1) @ transition


def corrected_cross_entropy(logits: Tensor, labels: Tensor, transition: Tensor) -> Tensor:
    """Mean of -log p(y'|x); the arguments are ``corrected_losses``'."""
    return corrected_losses(logits, labels, transition).mean()


def corrected_losses(logits: Tensor, labels: Tensor, transition: Tensor) -> Tensor:
    """-log p(y'|x) of each node, from logarithms alone: no probability is too small for it.

    Args:
        logits: Tensor[n, c] of the true classes.
        labels: Tensor[n] int64, perturbed.
        transition: Tensor[c, c], as for ``corrected``.

    Returns:
        Tensor[n].
    """
    likely = transition.to(torch.float64).log().to(logits.dtype).T[labels]
    return -(logits.log_softmax(dim=1) + likely).logsumexp(dim=1)
