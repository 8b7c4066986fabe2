"""Averaging in one process, with nothing hidden: the plaintext twin of a federated job."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.plain import masked_sum
from veilgraph.paradigms.averaging.network import AveragedNetwork
from veilgraph.paradigms.averaging.settings import AveragingJob
from veilgraph.paradigms.averaging.training import Own, averaged, summand
from veilgraph.paradigms.horizontal.tally import Tally, tally
from veilgraph.protocol.role import precision
from veilgraph.protocol.scores import Scores


class PlainAveraging:
    """All parties of a job together.

    Args:
        job: whose seed all parties learn from.
        graphs: one per holder.

    Raises:
        DataError: nobody has labels.
    """

    def __init__(self, job: AveragingJob, graphs: Sequence[PartyGraph]) -> None:
        dtype = precision(job)
        classes = max((graph.num_classes or 0 for graph in graphs if graph.labels is not None), default=0)
        if not classes:
            raise DataError("labels: no holder has any; give labels and masks to one")
        self._job, self._classes = job, classes
        self._own = {graph.party: Own.of(graph, dtype) for graph in graphs}
        self._streams = {graph.party: LearningStreams(job.seed, graph.party) for graph in graphs}
        streams = LearningStreams(job.seed, SERVER)
        self.network = AveragedNetwork(job.model, graphs[0].num_features, classes, streams, dtype)
        self._rule = job.averaging.rule.build(len(self.network.vector()), job.train.learning_rate)

    def round(self, number: int, absent: Collection[PartyId] = ()) -> float | None:
        """One round.

        Args:
            number: of the round, from 1.
            absent: holders that dropped out before they sent their values.

        Returns:
            The mean loss, before the round; None where nobody trained.
        """
        start, summands = self.network.vector(), []
        for party, own in self._own.items():
            if party not in absent:
                self.network.take(start)
                summands.append(self._summand(party, own, number))
        following, loss = averaged(self._rule, start, masked_sum(summands))
        self.network.take(following)
        return loss

    def _summand(self, party: PartyId, own: Own, number: int) -> Tensor:
        streams = self._streams[party]
        return summand(
            self._job, self._rule, self.network, own, lambda epoch: streams.generator("dropout", number, epoch)
        )

    def infer(self, party: PartyId) -> Tensor:
        """Logits of a holder's nodes, Tensor[N, C]."""
        own = self._own[party]
        with torch.no_grad():
            logits: Tensor = self.network(own.features, own.adjacency, None)
        return logits

    def scores(self, absent: Collection[PartyId] = ()) -> Scores:
        """Over the labels of all holders but those that are absent."""
        counted = [party for party in self._own if party not in absent]
        flat = [tally(self._own[party].graph, self.infer(party), self._classes).flat() for party in counted]
        return Tally.of_flat(masked_sum(flat), self._classes).scores()
