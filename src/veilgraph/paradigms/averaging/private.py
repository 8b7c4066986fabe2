"""What a holder gives in a round of a private training, the same for its role and for the twin."""

from __future__ import annotations

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.averaging.network import Averaged
from veilgraph.paradigms.averaging.settings import AveragingJob
from veilgraph.paradigms.averaging.terms import Terms, broken_rule
from veilgraph.paradigms.averaging.training import EXTRA
from veilgraph.privacy.publish_sampled import SampledPublisher
from veilgraph.privacy.publisher import Publisher
from veilgraph.protocol.role import precision


class PrivateTraining:
    """A holder's part of a private training.

    Args:
        job: with ``averaging.privacy``.
        graph: of the holder.

    Attributes:
        refuses: why the holder does not take part; empty where it does.
    """

    def __init__(self, job: AveragingJob, graph: PartyGraph) -> None:
        plan = job.training_plan
        assert plan is not None
        self._batch, self._decay = plan.settings.batch, job.train.weight_decay
        self._terms = None
        self.refuses = broken_rule(graph, plan.settings.degree_bound)
        if graph.labels is not None and not self.refuses:
            self._terms = Terms(graph, plan.hops, precision(job))

    def summand(self, network: Averaged, publisher: Publisher, step: int) -> Tensor:
        """A noisy gradient, no loss, and 1, with which every holder that has labels counts; zeros where it has none.

        Args:
            network: with the weights of the round, which stay.
            publisher: of the holder.
            step: of the training.

        Returns:
            Tensor[W + 2], of the network's dtype.

        Raises:
            BudgetSpent: the budget does not allow it; nothing was released.
            ConfigError: the publisher is another job's.
        """
        weights = network.vector()
        if self._terms is None:
            return torch.zeros(len(weights) + EXTRA, dtype=weights.dtype)
        if not isinstance(publisher, SampledPublisher):
            raise ConfigError("averaging.privacy: a private training leaves by a publisher with a ledger alone")
        terms = self._terms
        watched = terms.within(publisher.watched)
        total = publisher.sampled_sum(
            len(terms), lambda number: terms.gradient(network, number), len(weights), step, watched
        )
        gradient = (total / self._batch).to(weights.dtype) + self._decay * weights
        return torch.cat([gradient, gradient.new_tensor([0.0, 1.0])])
