"""What a holder does to the initial embeddings before its first hop."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veilgraph.nn.activation import ACTIVATIONS
from veilgraph.nn.dropout import dropout
from veilgraph.nn.settings import InitialSettings


class InitialTransform(nn.Module):
    """Activation, then dropout, on h^0; no weights."""

    def __init__(self, settings: InitialSettings) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[settings.activation]
        self._dropout = settings.dropout

    def forward(self, h0: Tensor, generator: torch.Generator | None) -> Tensor:
        """Maps Tensor[N, d] to Tensor[N, d]; ``generator`` None means evaluation."""
        return dropout(self._activation(h0), self._dropout, generator)
