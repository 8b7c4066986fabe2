"""The plaintext twin of a whole training by averaging, which no run computes: in one process, with nothing hidden."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.mask import plain_sum
from veilgraph.protocol.figures import Scores
from veilgraph.protocol.judge import Predicted
from veilgraph_averaging.at_home import AtHome, at_home
from veilgraph_averaging.network import Averaged, Own
from veilgraph_averaging.private.sampled import SampledPublisher
from veilgraph_averaging.settings import AveragingJob
from veilgraph_averaging.tasks import Task
from veilgraph_averaging.training import PrivateTraining, apply_rule, check_rule, summand, to_gradients
from veilgraph_averaging.twin import public_of


class PlainAveraging:
    """All parties of a job in one process, with sums in the clear.

    Args:
        publishers: holder → its publisher in a private training; by default one without a ledger.

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
        self.task: Task[Any, Any] = job.averaging.task.kind(public_of(job, graphs))
        self._streams = {graph.party: LearningStreams(job.seed, graph.party) for graph in graphs}
        self._own: dict[PartyId, Own] = {
            graph.party: self.task.own(graph, self._streams[graph.party]) for graph in graphs
        }
        self.network = self._make_network(SERVER)
        self._at_home = dict[PartyId, AtHome]()
        self._home = {graph.party: self._copy_weights(self._make_network(graph.party)) for graph in graphs}
        self.network.keep_facts(sum(self.task.sums_before.sizes))
        self._memory = job.averaging.rule.memory(len(self.network.vector()))
        self._private, self._publishers = dict[PartyId, PrivateTraining](), dict(publishers or {})
        if (plan := job.training_plan) is not None:
            for graph in graphs:
                check_rule(job, graph)
                self._private[graph.party] = PrivateTraining(job, graph)
                self._publishers.setdefault(graph.party, plan.paid_by(None, system_secrets))

    def _make_network(self, party: PartyId) -> Averaged:
        network: Averaged = self.task.network(LearningStreams(self._job.seed, party))
        network.keep_home(self._job.averaging.personal)
        return network

    @staticmethod
    def _copy_weights(network: Averaged) -> list[Tensor]:
        return [weight.detach().clone() for weight in network.at_home()]

    def _load_home_weights(self, party: PartyId) -> None:
        with torch.no_grad():
            for weight, kept in zip(self.network.at_home(), self._home[party], strict=True):
                weight.copy_(kept)

    def gather(self, absent: Sequence[Collection[PartyId]] = ()) -> None:
        """Compute the task's sums before the first round; ``absent``: for each sum, the holders left out of it."""
        left = iter(absent)

        def summed(_: int, known: Tensor) -> Tensor:
            gone = next(left, ())
            return plain_sum(
                [self.task.sums_before.part(own, known) for party, own in self._own.items() if party not in gone]
            )

        self.network.gather(self.task.sums_before.sizes, summed)

    def round(self, number: int, absent: Collection[PartyId] = ()) -> float | None:
        """Run round ``number`` ≥ 1 without those ``absent``; return the loss before it, None: unknown."""
        if not self.network.has_facts:
            self.gather()
        start, summands = self.network.vector(), []
        for party, own in self._own.items():
            if party in absent and not self.network.at_home():
                continue
            self.network.take(start)
            self._load_home_weights(party)
            found = self._summand(party, own, number)
            self._home[party] = self._copy_weights(self.network)
            if party not in absent:
                summands.append(found)
        following, loss = apply_rule(
            self._job, self._memory, start, to_gradients(self._job, plain_sum(summands), start)
        )
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
        """Return the task's output on a holder's data, as logits Tensor[N, C], corrected by what it learnt at home."""
        self._load_home_weights(party)
        with torch.no_grad():
            output = self.task.judging.output(self.network, self._own[party])
            return self._at_home[party](output) if party in self._at_home else output

    def finish(self) -> None:
        """After the last round, learn each holder's own correction, if ``averaging.at_home`` is set."""
        given = self._job.averaging.at_home
        if given is None:
            return
        for party, own in self._own.items():
            output = self.infer(party)
            home = at_home(given, own, output.shape[1], self._streams[party], output.dtype, self.network)
            if home is not None:
                home.learn(output)
                self._at_home[party] = home

    def predictions(self, party: PartyId) -> Predicted:
        """Return the predictions that a holder would get."""
        output = self.infer(party)
        return self.task.judging.predictions(self.network, self._own[party], output)

    def scores(self, absent: Collection[PartyId] = ()) -> Scores:
        """Return the scores over all holders but those ``absent``."""
        counted = [party for party in self._own if party not in absent]
        flat = [self.task.judging.tally(self.network, self._own[party], self.infer(party)) for party in counted]
        return self.task.judging.scores(self.network, plain_sum(flat))
