"""Averaging in one process, with nothing hidden: the plaintext twin of a federated job, and its baselines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import backward

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.mask import masked_sum
from veilgraph.paradigms.averaging.network import Averaged, Own, Personalised
from veilgraph.paradigms.averaging.settings import AveragingJob
from veilgraph.paradigms.averaging.tasks import Public, Task
from veilgraph.paradigms.averaging.training import PrivateTraining, averaged, check_rule, opened, public, summand
from veilgraph.privacy.sampled import SampledPublisher
from veilgraph.protocol.figures import Judged
from veilgraph.protocol.judge import Predicted
from veilgraph.protocol.plain_fitting import Network, PlainResult, Progress, fit
from veilgraph.protocol.role import build_optimizer


def _known(job: AveragingJob, graphs: Sequence[PartyGraph]) -> Public:
    kind = job.averaging.task.kind
    columns = {graph.party: graph.num_features for graph in graphs}
    return public(job, columns, {graph.party: kind.subject.stated(graph) for graph in graphs})


class PlainAveraging:
    """All parties of a job together.

    Args:
        publishers: holder → by what it releases, where training is private; by default one without a ledger.

    Raises:
        DataError: nobody has what the task needs, or a node more neighbours than a private training allows.
    """

    def __init__(
        self,
        job: AveragingJob,
        graphs: Sequence[PartyGraph],
        publishers: Mapping[PartyId, SampledPublisher] | None = None,
    ) -> None:
        self._job = job
        self.task: Task[Any, Any] = job.averaging.task.kind(_known(job, graphs))
        self._streams = {graph.party: LearningStreams(job.seed, graph.party) for graph in graphs}
        self._own: dict[PartyId, Own] = {
            graph.party: self.task.own(graph, self._streams[graph.party]) for graph in graphs
        }
        self.network = self._network(SERVER)
        self._at_home = dict[PartyId, Personalised]()
        self._home = {graph.party: self._kept(self._network(graph.party)) for graph in graphs}
        self.network.keep_facts(sum(self.task.sums_before.sizes))
        self._memory = job.averaging.rule.memory(len(self.network.vector()))
        self._private, self._publishers = dict[PartyId, PrivateTraining](), dict(publishers or {})
        if (plan := job.training_plan) is not None:
            for graph in graphs:
                check_rule(job, graph)
                self._private[graph.party] = PrivateTraining(job, graph)
                self._publishers.setdefault(graph.party, SampledPublisher(plan, None, system_secrets))

    def _network(self, party: PartyId) -> Averaged:
        network: Averaged = self.task.network(LearningStreams(self._job.seed, party))
        network.keep_home(self._job.averaging.personal)
        return network

    @staticmethod
    def _kept(network: Averaged) -> list[Tensor]:
        return [weight.detach().clone() for weight in network.at_home()]

    def _enter(self, party: PartyId) -> None:
        with torch.no_grad():
            for weight, kept in zip(self.network.at_home(), self._home[party], strict=True):
                weight.copy_(kept)

    def gather(self, absent: Sequence[Collection[PartyId]] = ()) -> None:
        """The sums before the first round, each without those that are absent from it."""
        left = iter(absent)

        def summed(_: int, known: Tensor) -> Tensor:
            gone = next(left, ())
            return masked_sum(
                [self.task.sums_before.part(own, known) for party, own in self._own.items() if party not in gone]
            )

        self.network.gather(self.task.sums_before.sizes, summed)

    def round(self, number: int, absent: Collection[PartyId] = ()) -> float | None:
        """One round.

        Returns the mean loss, before the round; None where nobody trained.
        """
        if not self.network.has_facts:
            self.gather()
        start, summands = self.network.vector(), []
        for party, own in self._own.items():
            if party in absent and not self.network.at_home():
                continue
            self.network.take(start)
            self._enter(party)
            found = self._summand(party, own, number)
            self._home[party] = self._kept(self.network)
            if party not in absent:
                summands.append(found)
        following, loss = averaged(self._job, self._memory, start, opened(self._job, masked_sum(summands), start))
        self.network.take(following)
        return loss

    def _summand(self, party: PartyId, own: Own, number: int) -> Tensor:
        if party in self._private:
            return self._private[party].summand(self.network, self._publishers[party], number - 1)
        streams = self._streams[party]
        return summand(
            self._job, self.task, self.network, own, lambda epoch: streams.generator("dropout", number, epoch)
        )

    def infer(self, party: PartyId) -> Tensor:
        """The task's output of a holder: of classes logits of its nodes, Tensor[N, C]; with what it learnt at home."""
        self._enter(party)
        with torch.no_grad():
            output = self.task.judging.output(self.network, self._own[party])
            return self._at_home[party](output) if party in self._at_home else output

    def finish(self) -> None:
        """What holders learn at home once the last round is over."""
        given = self._job.averaging.at_home
        for party, own in self._own.items() if given is not None else ():
            if own.graph.labels is None:
                continue
            output = self.infer(party)
            home = Personalised(given, own, output.shape[1], self._streams[party], output.dtype)  # type: ignore[arg-type]
            home.learn(output)
            self._at_home[party] = home

    def predictions(self, party: PartyId) -> Predicted:
        """What a holder would have of the model."""
        output = self.infer(party)
        return self.task.judging.predictions(self.network, self._own[party], output)

    def scores(self, absent: Collection[PartyId] = ()) -> Judged:
        """Of all holders but those that are absent."""
        counted = [party for party in self._own if party not in absent]
        flat = [self.task.judging.tally(self.network, self._own[party], self.infer(party)) for party in counted]
        return self.task.judging.scores(self.network, masked_sum(flat))


class OnePlace(Network):
    """The job's network on all data of some holders, by one Adam: an epoch has as many steps as a round local epochs.

    ``streams`` are of the holder, by default of the job's seed. Raises ``DataError``: nobody has what the task needs.
    """

    def __init__(self, job: AveragingJob, *graphs: PartyGraph, streams: LearningStreams | None = None) -> None:
        self._job, self.train_settings = job, job.train
        known = replace(_known(job, graphs), transition=None)  # labels that stay at home are true ones
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
        """The task's output: of classes logits of all nodes, Tensor[N, C]."""
        with torch.no_grad():
            return self._task.judging.output(self._network, self._own)

    def score(self, logits: Tensor, *, everything: bool = False) -> Judged:
        """Scores of all splits."""
        with torch.no_grad():
            return self._task.judging.scores_here(self._network, self._own, logits, everything=everything)


def alone(
    job: AveragingJob, graph: PartyGraph, progress: Progress, streams: LearningStreams | None = None
) -> PlainResult | None:
    """Trains the job's network on one holder's data, judged on its own; None where it has nothing to train on."""
    if not job.averaging.task.kind.subject.trains_on(graph):
        return None
    place = OnePlace(job, graph, streams=streams)
    return fit(place, progress) if place.trains else None


def pooled(job: AveragingJob, graphs: Sequence[PartyGraph], progress: Progress) -> PlainResult:
    """Trains the job's network on all holders' data in one place."""
    return fit(OnePlace(job, *graphs), progress)
