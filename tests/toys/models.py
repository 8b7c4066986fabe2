"""A local model, a combine strategy and a task, as another package has them: docs/guides/extending.md says how."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override
from veilgraph_averaging.network import Averaged, Own
from veilgraph_averaging.node_tasks import Classes, ClassSubject
from veilgraph_averaging.tasks import Subject, TaskSettings

from veilgraph.nn.combine import Combine, CombineSettings, Scale
from veilgraph.nn.local.model import HopModel, LocalSettings
from veilgraph.nn.propagate import Adjacency, first_rows


class SmoothSettings(LocalSettings):
    """How far a node goes towards its neighbours in a hop."""

    step: float = Field(0.5, ge=0, le=1, description="share of the neighbours' mean")


class SmoothHop(nn.Module):
    """(1 − step)·h + step·mean over neighbours, without weights."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self._step = step

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        return (1 - self._step) * first_rows(h, adjacency.num_targets) + self._step * adjacency.mean(h)


class Smooth(HopModel[SmoothSettings]):
    settings = SmoothSettings
    words: ClassVar[str] = "a share of its neighbours' mean (toy)"
    is_partitioned: ClassVar[bool] = True
    is_fixed: ClassVar[bool] = True
    activates: ClassVar[bool] = False

    @override
    @staticmethod
    def hop(settings: SmoothSettings, dim: int, holders: int) -> nn.Module:
        return SmoothHop(settings.step)


class SumSettings(CombineSettings):
    """How much of each embedding is added."""

    times: float = Field(1.0, gt=0, description="what it is multiplied by")


class Sum(Combine[SumSettings]):
    settings = SumSettings
    words: ClassVar[str] = "adds up what the holders publish (toy)"

    @override
    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        return Scale(torch.tensor(self.given.times, dtype=adjacency.dtype))


class SmoothedSettings(TaskSettings):
    """How much of a label is spread over all classes."""

    smoothing: float = Field(0.1, ge=0, lt=1, description="share of a label that is spread")


class Smoothed(Classes):
    """Node classification with smoothed labels."""

    settings: ClassVar[type[TaskSettings]] = SmoothedSettings
    subject: ClassVar[Subject] = ClassSubject("the class of a node, of which it is never sure (toy)")

    @override
    def loss(self, network: Averaged, own: Own, generator: torch.Generator) -> Tensor:
        graph, given = own.graph, self.given
        assert isinstance(given, SmoothedSettings)
        assert graph.labels is not None
        logits = self.logits(network, own, generator)[graph.train_mask]
        return functional.cross_entropy(logits, graph.labels[graph.train_mask], label_smoothing=given.smoothing)
