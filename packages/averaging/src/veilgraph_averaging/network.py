"""Rules of federated averaging: what holders train for, and what the server makes of the sum.

The network that all holders of a job have with the same weights, each over its own graph, and its parts at home.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.settings import Settings
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.layers import ACTIVATIONS, Activation, FactNetwork, Probability, dropout, linear
from veilgraph.nn.local.build import AnyLocalSettings, CustomModel, FirstSettings, build_local
from veilgraph.nn.propagate import Adjacency, FixedInput


class RuleSettings(Settings):
    """One kind of averaging: at the server, as ``words`` say, and at a holder, who gives its change or its gradient."""

    words: ClassVar[str]
    sends_gradients: ClassVar[bool] = False

    name: str

    def local_loss(self, loss: Tensor, weights: Sequence[Tensor], start: Sequence[Tensor]) -> Tensor:
        """Return the loss that a holder minimises, from its task's ``loss``, its weights and the round's first ones."""
        return loss

    def memory(self, size: int) -> dict[str, Tensor]:
        """Return the server's state before the first round, for ``size`` weights: name → Tensor; {} if it has none."""
        return {}

    def step(self, weights: Tensor, mean: Tensor, memory: Mapping[str, Tensor], learning_rate: float) -> Tensor:
        """Return the next weights, Tensor[W] float64, from the ``mean`` of changes or gradients over training nodes.

        ``memory``, the state of earlier rounds, is updated in place; ``learning_rate`` is the job's.
        """
        raise NotImplementedError


class _MeanStepSettings(RuleSettings):
    words: ClassVar[str] = "adds the mean of the holders' changes to the weights"

    server_rate: float = Field(1.0, gt=0)
    """η: the server's step along the mean change"""

    @override
    def step(self, weights: Tensor, mean: Tensor, memory: Mapping[str, Tensor], learning_rate: float) -> Tensor:
        return weights + self.server_rate * mean


class FedAvgSettings(_MeanStepSettings):
    """w ← w + η·Σ n_i·Δ_i / Σ n_i, which for η = 1 is the mean of the holders' weights.

    McMahan et al. 2017, Algorithm 1.
    """

    name: Literal["fedavg"] = Field(
        "fedavg", description="what holders train for, and what the server makes of the sum"
    )


class FedProxSettings(_MeanStepSettings):
    """As FedAvg, where a holder trains for loss + μ/2·‖w − w_start‖² (Li et al. 2020, eq. 2)."""

    name: Literal["fedprox"] = "fedprox"
    mu: float = Field(0.01, ge=0)
    """μ: pull of a holder's weights to those it received"""

    @override
    def local_loss(self, loss: Tensor, weights: Sequence[Tensor], start: Sequence[Tensor]) -> Tensor:
        away = [(now - before).square().sum() for now, before in zip(weights, start, strict=True)]
        return loss + self.mu / 2 * torch.stack(away).sum()


class FedSgdSettings(RuleSettings):
    """v ← β·v + Σ n_i·g_i / Σ n_i, w ← w − η·v, with η the job's ``train.learning_rate``.

    McMahan et al. 2017, section 2: the gradient of all holders' training nodes together, and one step of it. With
    momentum at the server (Hsu, Qi & Brown 2019, FedAvgM): what it keeps is made of what holders gave, and no more.
    """

    words: ClassVar[str] = "takes a step down the mean of the holders' gradients"
    sends_gradients: ClassVar[bool] = True

    name: Literal["fedsgd"] = "fedsgd"
    momentum: float = Field(0.0, ge=0, lt=1)
    """β: momentum of the mean gradient"""

    @override
    def memory(self, size: int) -> dict[str, Tensor]:
        return {"velocity": torch.zeros(size, dtype=torch.float64)} if self.momentum else {}

    @override
    def step(self, weights: Tensor, mean: Tensor, memory: Mapping[str, Tensor], learning_rate: float) -> Tensor:
        if not self.momentum:
            return weights - learning_rate * mean
        return weights - learning_rate * memory["velocity"].mul_(self.momentum).add_(mean)


class FedAdamSettings(RuleSettings):
    """m ← β₁·m + (1 − β₁)·Δ, v ← β₂·v + (1 − β₂)·Δ², w ← w + η·m / (√v + τ) (Reddi et al. 2021, Algorithm 2)."""

    words: ClassVar[str] = "takes a step of Adam along the mean of the holders' changes"

    name: Literal["fedadam"] = "fedadam"
    server_rate: float = Field(0.01, gt=0)
    """η: length of the server's step"""
    beta_1: float = Field(0.9, ge=0, lt=1)
    """β₁: decay of the mean change"""
    beta_2: float = Field(0.99, ge=0, lt=1)
    """β₂: decay of its square"""
    tau: float = Field(1e-3, gt=0)
    """τ: smaller changes are not lengthened"""

    @override
    def memory(self, size: int) -> dict[str, Tensor]:
        return {name: torch.zeros(size, dtype=torch.float64) for name in ("first", "second")}

    @override
    def step(self, weights: Tensor, mean: Tensor, memory: Mapping[str, Tensor], learning_rate: float) -> Tensor:
        first = memory["first"].mul_(self.beta_1).add_(mean, alpha=1 - self.beta_1)
        second = memory["second"].mul_(self.beta_2).add_(mean.square(), alpha=1 - self.beta_2)
        return weights + self.server_rate * first / (second.sqrt() + self.tau)


AnyRuleSettings = Annotated[
    FedAvgSettings | FedProxSettings | FedSgdSettings | FedAdamSettings, Field(discriminator="name")
]
"""Of whichever rule they name."""


@dataclass(frozen=True, eq=False)
class Own:
    """A holder's graph as the network takes it. A task that needs more of it has a subclass."""

    graph: PartyGraph
    features: FixedInput  # of its nodes
    adjacency: Adjacency  # of its edges

    @classmethod
    def of(cls, graph: PartyGraph, dtype: torch.dtype) -> Self:
        """Prepare a graph's features and edges for networks of ``dtype``."""
        return cls(graph, FixedInput(graph.features, dtype), Adjacency.from_graph(graph, dtype))


_ALONE = 1  # nobody else has a part of a holder's graph


class NetworkSettings(Settings):
    """The network that all holders train: a linear map of the features, hops over a holder's edges, logits."""

    dim: int = Field(64, ge=0, le=4096)
    """d, width of embeddings; 0, with privacy and without hops: logits are a linear map of the columns that begins at
    zero
    """
    activation: Activation = "relu"
    """after the map of the features"""
    dropout: Probability = 0.5
    """before the hops, and before the logits"""
    local: AnyLocalSettings = FirstSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("fanout", "learning_rate"):
            if (value := getattr(self.local, key)) is not None:
                raise ValueError(
                    f"local.{key}={value} is for paradigm='vertical'; leave it out: all nodes are trained on at once, "
                    "with train.learning_rate"
                )
        if self.local.kind.is_relational:
            raise ValueError(
                f"local.model={self.local.model!r} is for paradigm='vertical': it has weights for each relation of a "
                "holder, and those that are averaged must be the same at all; choose another"
            )
        if not self.dim and self.local.hops:
            raise ValueError(
                f"dim=0 with local.hops={self.local.hops}: hops move embeddings, and there are none; set local.hops to "
                "0, or a dim"
            )
        self.local.kind.check(self.local, self.dim)
        return self


class Averaged(FactNetwork):
    """A network whose weights are averaged, whatever it computes."""

    _staying: frozenset[str] = frozenset()

    def keep_home(self, parts: Collection[str]) -> None:
        """Set the parts whose weights are not averaged; ``ConfigError``: the network has no weights in one of them."""
        if absent := set(parts) - {_part_of(name) for name, _ in self.named_parameters()}:
            part = sorted(absent)[0]
            words = f"averaging.personal={part}: this job's network has no weights in that part; leave it out"
            raise ConfigError(words, key="averaging.personal", value=part)
        self._staying = frozenset(parts)

    def shared(self) -> list[nn.Parameter]:
        """The weights that are averaged."""
        return [weight for name, weight in self.named_parameters() if _part_of(name) not in self._staying]

    def at_home(self) -> list[nn.Parameter]:
        """The weights that are not averaged, and stay with their holder."""
        return [weight for name, weight in self.named_parameters() if _part_of(name) in self._staying]

    def vector(self) -> Tensor:
        """A copy of all weights that are averaged, one after another: Tensor[W]."""
        return parameters_to_vector(self.shared()).detach().clone()

    def take(self, vector: Tensor) -> None:
        """Set the averaged weights to ``vector``, Tensor[W], as the method ``vector`` returned it."""
        weights = self.shared()
        with torch.no_grad():
            for weight, part in zip(weights, torch.split(vector, [each.numel() for each in weights]), strict=True):
                weight.copy_(part.view_as(weight))


def _part_of(name: str) -> str:
    return name.removeprefix("body.").partition(".")[0]


class AveragedNetwork(Averaged):
    """A linear map, an activation, hops over the edges, a linear map.

    Raises ``ConfigError``: the local model keeps buffers, which nothing here averages.
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
        """Return logits of a graph's nodes, Tensor[N, C]; ``generator`` draws dropout, None means evaluation."""
        h = self._activation(features.times(self.input.weight.t()) + self.input.bias)
        h = dropout(h, self._dropout, generator)
        h = self.local(h, h, adjacency, generator)
        logits: Tensor = self.output(dropout(h, self._dropout, generator))
        return logits


class LinearNetwork(Averaged):
    """Logits x·Wᵀ of each node's own columns, without a bias; W, [C, F], begins at zero."""

    def __init__(self, features: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        # Without a draw of torch's process-wide generator, of which another party may be drawing in its thread.
        self.output = nn.utils.skip_init(nn.Linear, features, width, bias=False, dtype=dtype)  # type: ignore[no-untyped-call]
        nn.init.zeros_(self.output.weight)

    def forward(self, features: FixedInput, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """Return logits of a graph's nodes, Tensor[N, C]; edges and dropout have no part in them."""
        return features.times(self.output.weight.t())
