"""What a holder gives in a round of a private training, the same for its role and for the twin."""

from __future__ import annotations

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.averaging.network import Averaged
from veilgraph.paradigms.averaging.row_terms import RowTerms
from veilgraph.paradigms.averaging.settings import AveragingJob
from veilgraph.paradigms.averaging.terms import Terms
from veilgraph.paradigms.averaging.training import EXTRA
from veilgraph.privacy.degree import too_many_neighbours
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
        self._plan, self._decay = plan, job.train.weight_decay
        self._terms: Terms | RowTerms | None = None
        self._train_mask = graph.train_mask
        self.refuses = broken_rule(job, graph)
        if graph.labels is not None and not self.refuses:
            model, dtype = job.model, precision(job)
            by_row = plan.hops == 0 and not model.local.normalize  # which would make the last rows of length 1
            self._terms = RowTerms(graph, model.activation, dtype) if by_row else Terms(graph, plan.hops, dtype)
        if graph.labels is None and plan.joint is not None:
            self.refuses = (
                "it has no labels, so it has nothing to add to the noise that averaging.privacy.joint_noise has all "
                "holders make: leave joint_noise out, or leave it out of the job"
            )

    def summand(self, network: Averaged, publisher: Publisher, step: int) -> Tensor:
        """A noisy gradient, no loss, and 1, with which every holder that has labels counts; zeros where it has none.

        Where noise is made jointly it is the noisy sum in whole cells of the grid, for ``training.opened``.

        Args:
            network: with the weights of the round, which stay.
            publisher: of the holder.
            step: of the training.

        Returns:
            Tensor[W + 2], of the network's dtype; float64 where noise is made jointly.

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
        total = publisher.sampled_sum(
            len(terms), terms.at(network), len(weights), step, self._numbers(publisher.watched)
        )
        if self._plan.joint is not None:
            return torch.cat([total / self._plan.cell, total.new_tensor([0.0, 1.0])])
        gradient = (total / self._plan.settings.batch).to(weights.dtype) + self._decay * weights
        return torch.cat([gradient, gradient.new_tensor([0.0, 1.0])])

    def _numbers(self, nodes: Tensor | None) -> frozenset[int]:
        """Numbers of the terms of some nodes, Tensor[w] int64: their places among the training nodes."""
        if nodes is None or self._train_mask is None:
            return frozenset()
        among = torch.isin(torch.nonzero(self._train_mask).flatten(), nodes)
        return frozenset(torch.nonzero(among).flatten().tolist())


def broken_rule(job: AveragingJob, graph: PartyGraph) -> str:
    """Return why a holder does not train: its graph breaks the rule that the count of terms rests on; else empty."""
    return "" if graph.labels is None else too_many_neighbours(job.degree_rule(graph.party), graph)


def check_rule(job: AveragingJob, graph: PartyGraph) -> None:
    """The same where all graphs are in one place.

    Raises:
        DataError: a node has more neighbours.
    """
    if reason := broken_rule(job, graph):
        raise DataError(f"party {graph.party!r}: {reason}", code="degree-bound", key="averaging.privacy.degree_bound")
