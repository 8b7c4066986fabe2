"""The network that all holders of a job have with the same weights, each over its own graph."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.activation import ACTIVATIONS
from veilgraph.nn.dropout import dropout
from veilgraph.nn.facts import FactNetwork
from veilgraph.nn.fixed_input import FixedInput
from veilgraph.nn.linear import linear
from veilgraph.nn.local.build import build_local
from veilgraph.nn.local.custom import CustomModel
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.averaging.network_settings import NetworkSettings

_ALONE = 1
"""Nobody else has a part of a holder's graph."""


class Averaged(FactNetwork):
    """A network whose weights are averaged, whatever it computes."""

    _staying: frozenset[str] = frozenset()

    def keep_home(self, parts: Collection[str]) -> None:
        """Says, once, which parts' weights are not averaged: they are neither in ``vector`` nor taken.

        Args:
            parts: of ``input``, ``local`` and ``output``, here or in a network within (``body``).

        Raises:
            ConfigError: there is no such part with weights.
        """
        if absent := set(parts) - {_part(name) for name, _ in self.named_parameters()}:
            part = sorted(absent)[0]
            raise ConfigError(
                f"averaging.personal={part}: this job's network has no weights in that part; leave it out",
                key="averaging.personal",
                value=part,
            )
        self._staying = frozenset(parts)

    def shared(self) -> list[nn.Parameter]:
        """The weights that are averaged."""
        return [weight for name, weight in self.named_parameters() if _part(name) not in self._staying]

    def at_home(self) -> list[nn.Parameter]:
        """The others, which stay with their holder."""
        return [weight for name, weight in self.named_parameters() if _part(name) in self._staying]

    def vector(self) -> Tensor:
        """A copy of all weights that are averaged, one after another: Tensor[W]."""
        return parameters_to_vector(self.shared()).detach().clone()

    def take(self, vector: Tensor) -> None:
        """Overwrites these with a copy of what ``vector`` gave, of this network or another like it."""
        weights = self.shared()
        with torch.no_grad():
            for weight, part in zip(weights, torch.split(vector, [each.numel() for each in weights]), strict=True):
                weight.copy_(part.view_as(weight))


def _part(name: str) -> str:
    return name.removeprefix("body.").partition(".")[0]


class AveragedNetwork(Averaged):
    """A linear map, an activation, hops over the edges, a linear map.

    Args:
        settings: of the network.
        features: F.
        width: C, of the result: logits of C classes, or whatever a task has of it.
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
        width: int,
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
            self.output = linear(settings.dim, width, bias=True)
        if kept := [name for name, _ in self.named_buffers()]:
            raise ConfigError(
                f"model.local.model={settings.local.model}: its module has buffers ({', '.join(kept)}), and weights "
                "alone are averaged; leave out what counts while it trains, as batch norm does"
            )
        self._activation, self._dropout = ACTIVATIONS[settings.activation], settings.dropout
        self.to(dtype)

    def forward(self, features: FixedInput, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """Of a graph's nodes Tensor[N, C]; ``generator`` None means evaluation."""
        h = self._activation(features.times(self.input.weight.t()) + self.input.bias)
        h = dropout(h, self._dropout, generator)
        h = self.local(h, h, adjacency, generator)
        logits: Tensor = self.output(dropout(h, self._dropout, generator))
        return logits
