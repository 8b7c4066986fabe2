"""The server's deep layers: z_L from the combined embedding (VFGNN Algorithm 2, line 15)."""

from __future__ import annotations

from itertools import pairwise

import torch
from pydantic import Field
from torch import Tensor, nn

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.settings import Settings
from veilgraph.nn.activation import ACTIVATIONS, Activation
from veilgraph.nn.dropout import Probability, dropout
from veilgraph.nn.linear import linear


class ServerSettings(Settings):
    """The server's deep layers; the paper's network is (d, d, |C|) (VFGNN 4.1)."""

    layers: int = Field(1, ge=0, le=8, description="hidden layers of width dim at the server")
    activation: Activation = Field("sigmoid", description="after every hidden layer")
    dropout: Probability = Field(0.5, description="of every hidden layer")


class Deep(nn.Module):
    """``layers`` times linear → activation → dropout, of width ``dim``.

    With ``layers=0`` only the dropout is left and the width stays ``in_dim``.
    """

    def __init__(self, in_dim: int, dim: int, settings: ServerSettings) -> None:
        super().__init__()
        widths = [in_dim] + [dim] * settings.layers
        self.layers = nn.ModuleList(linear(before, after, bias=True) for before, after in pairwise(widths))
        self._output_dim = widths[-1]
        self._activation = ACTIVATIONS[settings.activation]
        self._dropout = settings.dropout

    @property
    def output_dim(self) -> int:
        """Width of z_L."""
        return self._output_dim

    def forward(self, m: Tensor, generator: torch.Generator | None) -> Tensor:
        """Maps the combined embedding Tensor[N, in_dim] to z_L Tensor[N, output_dim].

        ``generator`` is the source of dropout; None means evaluation.
        """
        if not self.layers:
            return dropout(m, self._dropout, generator)
        for layer in self.layers:
            m = dropout(self._activation(layer(m)), self._dropout, generator)
        return m


def build_deep(
    in_dim: int, dim: int, settings: ServerSettings, *, streams: LearningStreams, dtype: torch.dtype
) -> Deep:
    """The server's layers with initial weights from the stream "deep"."""
    with streams.global_generator("deep"):
        return Deep(in_dim, dim, settings).to(dtype)
