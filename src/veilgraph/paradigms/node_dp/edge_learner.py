"""The learner of a job with ``privacy``: it computes over its edges once, with noise, and never again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.graph.ordered import in_order
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.node_dp.hops import HopLearner
from veilgraph.paradigms.node_dp.learner import LocalLearner
from veilgraph.paradigms.node_dp.settings import node_dp
from veilgraph.privacy.aggregation import pair_matrix
from veilgraph.privacy.local.affine import AffineFeatures
from veilgraph.protocol.role import Session


class EdgePrivateLearner(LocalLearner):
    """Trains the job's network without an edge, then, once, of noisy sums of what that takes each node for.

    Epochs are chosen by the first alone, which is the same at every ε. What is predicted is what serves the validation
    nodes best: the first, the network of all hops, or both as if they were independent.

    Args:
        session: of the label holder, with its publisher, which is the one door to its edges.
        graph: its own data, validated.
        features: of the C common nodes, block by block.
    """

    def __init__(self, session: Session, graph: PartyGraph, features: Sequence[AffineFeatures]) -> None:
        settings = node_dp(session.settings)
        alone = graph.with_edges(torch.zeros(graph.num_edges, dtype=torch.bool))
        super().__init__(session, alone, features, None, settings.model.model_copy(update={"hops": 0}))
        self._edges = graph.common_part()
        hops = (
            0 if settings.privacy is None or settings.privacy.aggregation is None else settings.privacy.aggregation.hops
        )
        self._hops = HopLearner(settings.model, settings.train, self._objective, hops, session.streams, session.dtype)
        self._sums: Tensor | None = None
        self._alone = torch.empty(0)

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        super().forward(step, epoch)
        if epoch is None and not self._learns:
            self._alone, opinion = self._objective.opinion(self.logits)
            second, _ = self._objective.opinion(self._hops.logits(self._summed(opinion)))
            candidates = [self._alone, second, self._alone + second]
            self.logits = candidates[self._objective.simplest(candidates)]

    @override
    def finish(self) -> None:
        with torch.no_grad():
            self.forward(0, None)
            _, opinion = self._objective.opinion(self.logits)
        with self.session.trace.span("hops"):
            self._hops.learn(self._summed(opinion))

    def _summed(self, opinion: Tensor) -> Tensor:
        """The noisy sums of all hops, Tensor[C, K·c]: made now if they never were, of nodes in an order of their own.

        Args:
            opinion: what each node is taken for without an edge, Tensor[C, c].
        """
        if self._sums is None:
            order = self._order()
            places = order.argsort()
            graph = in_order(self._edges, order)
            pairs = pair_matrix(graph.edge_index, graph.edge_weight, graph.num_nodes)
            then = lambda sums: self._next(sums[places])[order]  # noqa: E731
            self._sums = self.session.publisher.aggregated(opinion[order], pairs, len(order), then)[places]
        return self._sums

    def _next(self, sums: Tensor) -> Tensor:
        """What each node is taken for after the hops so far; a network of theirs is trained first, in a training."""
        if self._learns:
            self._hops.learn(sums)
        return self._hops.opinion(sums)

    def _order(self) -> Tensor:
        """The common nodes, in an order that is the same in every job, so that the same data have the same sums."""
        count, order = self._edges.num_nodes, self.session.publisher.order
        return torch.arange(count) if order is None else order[order < count]

    @override
    def without_releases(self) -> dict[str, float | int | None]:
        """How it does without an edge, which an ε close to 0 would leave it with."""
        scores = self._objective.score(self._alone)
        changed = int((self._alone.argmax(dim=1) != self.logits.argmax(dim=1)).sum())
        return {"val_accuracy": scores.val_accuracy, "test_accuracy": scores.test_accuracy, "changed": changed}

    @override
    def modules(self) -> dict[str, nn.Module]:
        return {**super().modules(), "hops": self._hops}

    @override
    def trained(self) -> list[nn.Parameter]:
        return [parameter for module in super().modules().values() for parameter in module.parameters()]
