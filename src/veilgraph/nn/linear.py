"""How every trainable matrix of the split network is made."""

from __future__ import annotations

import torch
from torch import nn


def linear(in_dim: int, out_dim: int, *, bias: bool) -> nn.Linear:
    """An ``nn.Linear`` with Glorot-uniform weights and zero bias, drawn from torch's process-wide generator.

    Call it inside ``LearningStreams.global_generator``. Weights are drawn in float32 whatever the job's
    precision, so that both precisions start from the same numbers.
    """
    layer = nn.Linear(in_dim, out_dim, bias=bias, dtype=torch.float32)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
