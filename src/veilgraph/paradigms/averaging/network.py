"""The network that all holders of a job have with the same weights, each over its own graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.activation import ACTIVATIONS
from veilgraph.nn.dropout import dropout
from veilgraph.nn.fixed_input import FixedInput
from veilgraph.nn.linear import linear
from veilgraph.nn.local.build import build_local
from veilgraph.nn.local.custom import CustomModel
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.averaging.settings import NetworkSettings

_ALONE = 1
"""Nobody else has a part of a holder's graph."""


class AveragedNetwork(nn.Module):
    """A linear map, an activation, hops over the edges, logits.

    Args:
        settings: of the network.
        features: F.
        classes: of the labels.
        streams: initial weights come from them.
        dtype: of the weights.
        custom: for ``local.model: custom``.

    Raises:
        ConfigError: the local model keeps buffers, which nothing here averages.
    """

    def __init__(
        self,
        settings: NetworkSettings,
        features: int,
        classes: int,
        streams: LearningStreams,
        dtype: torch.dtype,
        custom: CustomModel | None = None,
    ) -> None:
        super().__init__()
        with streams.global_generator("input"):
            self.input = linear(features, settings.dim, bias=True)
        self.local = build_local(
            settings.local, settings.dim, _ALONE, last_round=True, streams=streams, round=1, custom=custom, dtype=dtype
        )
        with streams.global_generator("output"):
            self.output = linear(settings.dim, classes, bias=True)
        if kept := [name for name, _ in self.named_buffers()]:
            raise ConfigError(
                f"model.local.model={settings.local.model}: its module has buffers ({', '.join(kept)}), and weights "
                "alone are averaged; leave out what counts while it trains, as batch norm does"
            )
        self._activation, self._dropout = ACTIVATIONS[settings.activation], settings.dropout
        self.to(dtype)

    def forward(self, features: FixedInput, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """Logits, Tensor[N, C], of a graph's nodes; ``generator`` None means evaluation."""
        h = self._activation(features.times(self.input.weight.t()) + self.input.bias)
        h = dropout(h, self._dropout, generator)
        h = self.local(h, h, adjacency, generator)
        logits: Tensor = self.output(dropout(h, self._dropout, generator))
        return logits

    def vector(self) -> Tensor:
        """A copy of all weights, one after another: Tensor[W]."""
        return parameters_to_vector(self.parameters()).detach().clone()

    def take(self, vector: Tensor) -> None:
        """Overwrites the weights with a copy of what ``vector`` gave, of this network or another like it."""
        weights = list(self.parameters())
        with torch.no_grad():
            for weight, part in zip(weights, torch.split(vector, [each.numel() for each in weights]), strict=True):
                weight.copy_(part.view_as(weight))
