"""The label holder's output layer: logits from z_L (VFGNN CG3)."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.settings import Settings
from veilgraph.nn.dropout import Probability, dropout
from veilgraph.nn.linear import linear
from veilgraph.nn.propagate import Adjacency


class HeadSettings(Settings):
    """The label holder's output layer."""

    logit_hops: int = Field(0, ge=0, le=32, description="extra propagation of the logits over its own edges")
    logit_teleport: float = Field(
        0.1, ge=0, le=1, description="share of its own logits that a node keeps in each of them"
    )
    dropout: Probability = Field(0.0, description="before the linear map to logits")


class OutputHead(nn.Module):
    """Dropout, one linear layer, and optionally APPNP propagation of the logits over the label holder's edges
    between common nodes.

    The propagation is z ← (1 − α)·Ã·z + α·logits with Ã the mean over a node and its neighbours.
    """

    def __init__(self, in_dim: int, classes: int, settings: HeadSettings) -> None:
        super().__init__()
        self.output = linear(in_dim, classes, bias=True)
        self._settings = settings

    def forward(self, z: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """Maps z_L Tensor[N, in_dim] to logits Tensor[N, classes]; ``generator`` None means evaluation."""
        logits: Tensor = self.output(dropout(z, self._settings.dropout, generator))
        teleport = self._settings.logit_teleport
        propagated = logits
        for _ in range(self._settings.logit_hops):
            propagated = (1 - teleport) * adjacency.self_loop_mean(propagated, 1.0) + teleport * logits
        return propagated


def build_head(
    in_dim: int, classes: int, settings: HeadSettings, *, streams: LearningStreams, dtype: torch.dtype
) -> OutputHead:
    """The output layer with initial weights from the stream "head"."""
    with streams.global_generator("head"):
        return OutputHead(in_dim, classes, settings).to(dtype)
