"""What averaging is compared with: each holder alone, and all graphs in one place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import backward

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER
from veilgraph.graph.parts import HorizontalPart, pool_parts
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.averaging.network import AveragedNetwork
from veilgraph.paradigms.averaging.settings import AveragingJob
from veilgraph.paradigms.averaging.training import Own
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.plain_fitting import PlainResult, Progress, fit
from veilgraph.protocol.role import build_optimizer, precision
from veilgraph.protocol.scores import Objective, Scores


class OnePlace:
    """The job's network on one graph, by one Adam: an epoch is as many steps as a round has local epochs.

    Args:
        job: the federated one.
        graph: with labels.
    """

    def __init__(self, job: AveragingJob, graph: PartyGraph) -> None:
        dtype = precision(job)
        self._job, self._own = job, Own.of(graph, dtype)
        self._objective = Objective(graph, job.train, dtype)
        self._streams = LearningStreams(job.seed, SERVER)
        self._network = AveragedNetwork(job.model, graph.num_features, self._objective.classes, self._streams, dtype)
        self._optimizer = build_optimizer(list(self._network.parameters()), {}, job)

    @property
    def train_settings(self) -> TrainSettings:
        """Of the job."""
        return self._job.train

    def train_step(self, epoch: int) -> float:
        """One epoch; returns the loss at its beginning."""
        losses = []
        for number in range(self._job.averaging.local_epochs):
            self._optimizer.zero_grad()
            generator = self._streams.generator("dropout", epoch, number)
            loss = self._objective.training_loss(self._network(self._own.features, self._own.adjacency, generator))
            backward(loss)
            self._optimizer.step()
            losses.append(float(loss.detach()))
        return losses[0]

    def infer(self) -> Tensor:
        """Logits of all nodes, Tensor[N, C]."""
        with torch.no_grad():
            logits: Tensor = self._network(self._own.features, self._own.adjacency, None)
        return logits

    def judged(self) -> Tensor:
        """Those of ``infer``."""
        return self.infer()

    def score(self, logits: Tensor, *, everything: bool = False) -> Scores:
        """As ``Objective.score``."""
        return self._objective.score(logits, everything=everything)


def alone(job: AveragingJob, graph: PartyGraph, progress: Progress) -> PlainResult | None:
    """Trains the job's network on one holder's graph, judged on its own nodes; None without labels."""
    return None if graph.labels is None else fit(OnePlace(job, graph), progress)


def pooled(job: AveragingJob, graphs: Sequence[PartyGraph], progress: Progress) -> PlainResult:
    """Trains the job's network on all holders' graphs side by side."""
    return fit(OnePlace(job, side_by_side(graphs)), progress)


def side_by_side(graphs: Sequence[PartyGraph]) -> PartyGraph:
    """One graph of several that have no node in common."""
    parts, first = [], 0
    for graph in graphs:
        parts.append(HorizontalPart(graph, torch.arange(first, first + graph.num_nodes)))
        first += graph.num_nodes
    return pool_parts(parts).graph
