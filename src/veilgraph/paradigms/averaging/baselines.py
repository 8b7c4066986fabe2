"""What averaging is compared with: each holder alone, and all graphs in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import backward

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.averaging.settings import AveragingJob
from veilgraph.paradigms.averaging.tasks.own import Own
from veilgraph.paradigms.averaging.tasks.task import Task
from veilgraph.paradigms.averaging.training import public
from veilgraph.protocol.figures import Judged
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.plain_fitting import PlainResult, Progress, fit
from veilgraph.protocol.role import build_optimizer


class OnePlace:
    """The job's network on all data of some holders, by one Adam: an epoch has as many steps as a round local epochs.

    Args:
        job: the federated one.
        graphs: one or more, with no node in common.
        streams: of the holder, for what it draws of its data; default: those of the job's seed.

    Raises:
        DataError: nobody has what the task needs.
    """

    def __init__(self, job: AveragingJob, *graphs: PartyGraph, streams: LearningStreams | None = None) -> None:
        kind = job.averaging.task.kind
        known = public(
            job,
            {graph.party: graph.num_features for graph in graphs},
            {graph.party: kind.stated(graph) for graph in graphs},
        )
        self._job = job
        self._task: Task[Any, Any] = kind(replace(known, transition=None))  # labels that stay at home are true ones
        owns = [self._task.own(graph, streams or LearningStreams(job.seed, graph.party)) for graph in graphs]
        self._own: Own = owns[0] if len(owns) == 1 else self._task.join(owns)
        self._streams = LearningStreams(job.seed, SERVER)
        self._network = self._task.network(self._streams)
        self._network.keep_facts(sum(self._task.gathers))
        self._network.gather(self._task.gathers, lambda _, known: self._task.gathered(self._own, known))
        self._optimizer = build_optimizer(list(self._network.parameters()), {}, job)

    @property
    def trains(self) -> bool:
        """Whether there is anything to train on."""
        return self._task.examples(self._own) > 0

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
            loss = self._task.loss(self._network, self._own, generator)
            backward(loss)
            self._optimizer.step()
            losses.append(float(loss.detach()))
        return losses[0]

    def infer(self) -> Tensor:
        """The task's output: of classes logits of all nodes, Tensor[N, C]."""
        with torch.no_grad():
            return self._task.output(self._network, self._own)

    def judged(self) -> Tensor:
        """That of ``infer``."""
        return self.infer()

    def score(self, output: Tensor, *, everything: bool = False) -> Judged:
        """Scores of all splits."""
        with torch.no_grad():
            return self._task.scores_here(self._network, self._own, output, everything=everything)


def alone(
    job: AveragingJob, graph: PartyGraph, progress: Progress, streams: LearningStreams | None = None
) -> PlainResult | None:
    """Trains the job's network on one holder's data, judged on its own; None where it has nothing to train on."""
    if not job.averaging.task.kind.trains_on(graph):
        return None
    place = OnePlace(job, graph, streams=streams)
    return fit(place, progress) if place.trains else None


def pooled(job: AveragingJob, graphs: Sequence[PartyGraph], progress: Progress) -> PlainResult:
    """Trains the job's network on all holders' data in one place."""
    return fit(OnePlace(job, *graphs), progress)
