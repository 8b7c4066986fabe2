"""The activations a job may name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import torch
from torch import Tensor


def identity(x: Tensor) -> Tensor:
    """``x`` itself."""
    return x


Activation = Literal["none", "tanh", "relu", "sigmoid"]

ACTIVATIONS: Final[dict[Activation, Callable[[Tensor], Tensor]]] = {
    "none": identity,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
}
"""Element-wise functions by the name the settings use."""
