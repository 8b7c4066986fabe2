"""What a local model is, and where each is found by name (VFGNN 3.3, Algorithm 2 lines 4-10).

A package adds its own by an entry point of the group ``veilgraph.local_models``: a subclass of ``LocalModel``, most
easily of ``HopModel``. ``veilgraph_testing.local_model`` has the tests that it must pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.settings import Registry, Settings, named_in
from veilgraph.nn.layers import ACTIVATIONS, Activation, Probability, dropout
from veilgraph.nn.neighbourhood import Edges, Sampler
from veilgraph.nn.propagate import first_rows

LOCAL_MODELS: Final[Registry[type[LocalModel[Any]]]] = Registry(
    "veilgraph.local_models",
    {
        "sage-mean": "veilgraph.nn.local.hops:SageMean",
        "sage-lstm": "veilgraph.nn.local.hops:SageLstm",
        "sage-pool": "veilgraph.nn.local.hops:SagePool",
        "sage-vpa": "veilgraph.nn.local.hops:SageVpa",
        "gcn": "veilgraph.nn.local.hops:Gcn",
        "gat": "veilgraph.nn.local.hops:Gat",
        "gin": "veilgraph.nn.local.hops:Gin",
        "appnp": "veilgraph.nn.local.hops:Appnp",
        "relational": "veilgraph.nn.local.hops:Relational",
        "custom": "veilgraph.nn.local.build:CustomLocal",
    },
    "veilgraph.nn.local.model:LocalModel",
)


class LocalSettings(Settings):
    """Local embeddings: K hops over the holder's own edges. A model with settings of its own has a subclass."""

    model: Annotated[str, named_in(LOCAL_MODELS)] = "sage-mean"
    """of a hop; custom: your own module, from Python"""
    hops: int = Field(2, ge=0, le=32)
    """K, per exchange round; 0: edges unused"""
    activation: Activation = "tanh"
    """after every hop"""
    normalize: bool = True
    """last round's rows to length 1 (Algorithm 2, line 10)"""
    dropout: Probability = 0.0
    """before every hop"""
    fanout: int | None = Field(None, ge=1)
    """with train.batch_size: most neighbours of a node, redrawn each step; null: all"""
    learning_rate: float | None = Field(None, gt=0)
    """Adam's, for hops; null: train.learning_rate"""

    @property
    def kind(self) -> type[LocalModel[Any]]:
        """The class of ``model``."""
        return LOCAL_MODELS[self.model]


S = TypeVar("S", bound=LocalSettings)


class LocalModel(nn.Module, ABC, Generic[S]):
    """What a holder computes in one exchange round, from its own edges alone.

    Attributes:
        settings: of its jobs: the keys of ``model.local``.
        words: what a node is joined with, which ends "each holder then joins what a node has with".
        is_partitioned: whether it runs on several machines, for which it must be a ``HopModel`` whose hops are made of
            the products of ``Adjacency``, and not of single edges.
        uses_initial: whether it uses h^0 beside the round's input.
        is_fixed: whether it can be released once: it has no weights, and a hop's result at a node is of that node's
            row, of those of its neighbours and of the weights of the edges into it, which count 2 of
            ``privacy.sensitivity`` counts on.
        is_relational: whether it tells the relations of edges apart: it is made with ``relations=``, those of the
            holder's graph, and asks ``Adjacency.of_relation``.
        draws: whether in training, with a dropout of 0, it draws something or computes otherwise than in evaluation.
    """

    settings: ClassVar[type[LocalSettings]] = LocalSettings
    words: ClassVar[str]
    is_partitioned: ClassVar[bool] = False
    uses_initial: ClassVar[bool] = False
    is_fixed: ClassVar[bool] = False
    is_relational: ClassVar[bool] = False
    draws: ClassVar[bool] = True

    @abstractmethod
    def __init__(self, settings: S, dim: int, holders: int, *, normalize: bool) -> None:
        """Draw weights, of width ``dim``, from torch's process-wide generator; ``normalize``: rows to length 1."""
        super().__init__()

    @classmethod
    def check(cls, settings: S, dim: int) -> None:
        """Raise ``ValueError`` for a width ``dim`` that the model cannot have."""

    @abstractmethod
    def forward(self, h: Tensor, initial: Tensor, edges: Edges, generator: torch.Generator | None) -> Tensor:
        """Propagate the round's input h and h^0, Tensor[N, d], over the holder's edges, or those of a neighbourhood.

        Without ``generator``, the source of all draws, it is evaluation. Gives t, Tensor[T, d], of the targets: all N
        nodes of a graph, the first T of a neighbourhood.
        """

    def in_blocks(self, initial: Tensor, sampler: Sampler) -> Tensor:
        """Evaluate ``forward`` of the sampler's whole graph from h^0 [N, d]; a subclass may do so block by block."""
        return self.forward(initial, initial, sampler.adjacency, None)


class HopModel(LocalModel[S]):
    """Dropout, hop, activation, K times; then perhaps rows of length 1.

    A subclass says what a hop is: a module with ``forward(h, initial, adjacency, generator)``, h Tensor[N, d], h^0 as
    ``initial``, and ``generator`` None in evaluation; the result is Tensor[T, d], of the adjacency's targets, the first
    T of the N nodes. Isolated nodes and an empty edge set are allowed everywhere. ``hops`` are given where they are not
    alike; ``activates`` is whether the activation of the settings follows every hop.
    """

    activates: ClassVar[bool] = True

    def __init__(
        self, settings: S, dim: int, holders: int, *, normalize: bool, hops: Iterable[nn.Module] | None = None
    ) -> None:
        super().__init__(settings, dim, holders, normalize=normalize)
        alike = (self.hop(settings, dim, holders) for _ in range(settings.hops))
        self.hops = nn.ModuleList(alike if hops is None else hops)
        self._activation = ACTIVATIONS[settings.activation if self.activates else "none"]
        self._dropout = settings.dropout
        self._normalize = normalize

    @staticmethod
    @abstractmethod
    def hop(settings: S, dim: int, holders: int) -> nn.Module:
        """Make one hop with weights of its own; a subclass may set ``hop`` to the hop's class."""

    @override
    def forward(self, h: Tensor, initial: Tensor, edges: Edges, generator: torch.Generator | None) -> Tensor:
        for hop, adjacency in zip(self.hops, edges.layers(len(self.hops)), strict=True):
            h = self._activation(hop(dropout(h, self._dropout, generator), initial, adjacency, generator))
        h = first_rows(h, edges.num_targets)
        return normalize_rows(h) if self._normalize else h

    @override
    def in_blocks(self, initial: Tensor, sampler: Sampler) -> Tensor:
        h = initial
        for hop in self.hops:
            result = torch.empty_like(h)
            for rows, around in sampler.blocks():
                (adjacency,) = around.layers(1)
                block = self._activation(hop(h.index_select(0, around.nodes), initial[rows], adjacency, None))
                result[rows] = normalize_rows(block) if self._normalize and hop is self.hops[-1] else block
            h = result
        return normalize_rows(h) if self._normalize and not len(self.hops) else h


def normalize_rows(h: Tensor) -> Tensor:
    """Rows of length 1 (Algorithm 2, line 10); a row shorter than 1e-6 stays as it is."""
    squares = h.square().sum(dim=1, keepdim=True)  # the gradient of a shorter one would not be sound
    return h * torch.where(squares > 1e-6**2, squares, torch.ones_like(squares)).rsqrt()


def not_partitioned(settings: LocalSettings) -> str | None:
    """Why a local model does not run on several machines; None where it does."""
    if settings.kind.is_partitioned:
        return None
    others = ", ".join(name for name in LOCAL_MODELS if LOCAL_MODELS[name].is_partitioned)
    return (
        f"model.local.model={settings.model!r} does not run on several machines: it looks at single edges, or at "
        f"relations; choose one of {others}, or one machine"
    )
