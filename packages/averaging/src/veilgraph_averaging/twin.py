"""What averaging is compared with: the network of a job on the data of one holder, or of all in one place."""

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
from veilgraph.protocol.figures import Scores
from veilgraph.protocol.plain_fitting import Network, PlainResult, Progress, fit
from veilgraph.protocol.role import build_optimizer
from veilgraph_averaging.network import Own
from veilgraph_averaging.settings import AveragingJob
from veilgraph_averaging.tasks import Public, Task
from veilgraph_averaging.training import public


def public_of(job: AveragingJob, graphs: Sequence[PartyGraph]) -> Public:
    """Return what all parties know before round 1, from graphs that are in one place."""
    kind = job.averaging.task.kind
    columns = {graph.party: graph.num_features for graph in graphs}
    return public(job, columns, {graph.party: kind.subject.stated(graph) for graph in graphs})


class OnePlace(Network):
    """The job's network trained on some holders' pooled data by one Adam, with ``local_epochs`` steps an epoch.

    ``streams`` are of the holder, by default of the job's seed. Raises ``DataError``: nobody has what the task needs.
    """

    def __init__(self, job: AveragingJob, *graphs: PartyGraph, streams: LearningStreams | None = None) -> None:
        self._job, self.train_settings = job, job.train
        known = replace(public_of(job, graphs), transition=None)  # labels that stay at home are true ones
        self._task: Task[Any, Any] = job.averaging.task.kind(known)
        owns = [self._task.own(graph, streams or LearningStreams(job.seed, graph.party)) for graph in graphs]
        self._own: Own = owns[0] if len(owns) == 1 else self._task.join(owns)
        self._streams = LearningStreams(job.seed, SERVER)
        self._network = self._task.network(self._streams)
        self._network.keep_facts(sum(self._task.sums_before.sizes))
        self._network.gather(
            self._task.sums_before.sizes, lambda _, known: self._task.sums_before.part(self._own, known)
        )
        self._optimizer = build_optimizer(list(self._network.parameters()), {}, job)

    @property
    def trains(self) -> bool:
        """Whether there is anything to train on."""
        return self._task.examples(self._own) > 0

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
        """Return the task's output on all data, as logits of all nodes, Tensor[N, C]."""
        with torch.no_grad():
            return self._task.judging.output(self._network, self._own)

    def score(self, logits: Tensor, *, everything: bool = False) -> Scores:
        """Return the scores of ``infer``'s output: of all splits, or only what an epoch needs."""
        with torch.no_grad():
            found = self._task.judging.scores_here(self._network, self._own, logits, everything=everything)
        return found if everything else found.of_epoch(self.train_settings.select_by)


def alone(
    job: AveragingJob, graph: PartyGraph, progress: Progress, streams: LearningStreams | None = None
) -> PlainResult | None:
    """Train the job's network on one holder's data, and judge it on these; None where there is nothing to train on."""
    if not job.averaging.task.kind.subject.trains_on(graph):
        return None
    place = OnePlace(job, graph, streams=streams)
    return fit(place, progress) if place.trains else None


def pooled(job: AveragingJob, graphs: Sequence[PartyGraph], progress: Progress) -> PlainResult:
    """Trains the job's network on all holders' data in one place."""
    return fit(OnePlace(job, *graphs), progress)
