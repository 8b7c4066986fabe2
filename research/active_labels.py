"""Active label inference: a holder that trains its own part of the network harder than it should.

What a holder's local network has learned of labels it can complete with an output layer of its own, from a few labels
that it knows (``completion`` in ``label_attacks``). A holder that deviates makes the layers above rely on it: each of
its weights moves farther than the optimiser says, the farther the longer its gradient keeps its sign, so that its
embedding predicts labels before those of the others do. The other parties see gradients and embeddings as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

from veilgraph.core.errors import ConfigError

MOST: Final = 5.0
"""As in the paper."""
_GROWTH: Final = 1.5


def amplify(optimizer: torch.optim.Optimizer, weights: Sequence[nn.Parameter], *, most: float = MOST) -> None:
    """From now on, some of an optimiser's weights take longer steps.

    A weight's step is multiplied by a factor that starts at 1, grows by half in every step in which the gradient has
    the sign that it had before, up to ``most``, and falls back to 1 where the sign changes.

    Args:
        optimizer: any; the factor is of what it changes, so that it also counts where gradients' lengths do not (Adam).
        weights: the adversary's, among the optimiser's.
        most: of the factor; 1 changes nothing.

    Raises:
        ConfigError: ``most`` is below 1.

    Source: Fu et al. 2022, "Label Inference Attacks Against Vertical Federated Learning", section 4.2 (the malicious
        local optimiser; there the factor is of the gradient and follows from its momentum).
    """
    if not most >= 1:
        raise ConfigError(f"most={most!r} must be at least 1, which changes nothing")
    factors = [torch.ones_like(weight) for weight in weights]
    signs = [torch.zeros_like(weight) for weight in weights]
    before = [weight.detach().clone() for weight in weights]

    def remember(*_: object) -> None:
        for kept, weight in zip(before, weights, strict=True):
            kept.copy_(weight.detach())

    def lengthen(*_: object) -> None:
        with torch.no_grad():
            for kept, weight, factor, sign in zip(before, weights, factors, signs, strict=True):
                if weight.grad is None:
                    continue
                now = weight.grad.sign()
                factor.mul_(_GROWTH).clamp_(max=most).masked_fill_(now != sign, 1.0)
                sign.copy_(now)
                weight.add_((factor - 1) * (weight - kept))

    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(lengthen)
