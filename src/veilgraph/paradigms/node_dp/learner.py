"""The label holder of a job of paradigm node-dp, which learns once everything is released; others have nothing to do.

With ``privacy`` it computes over its edges once, with noise, and never again: after each hop a network, whose opinion
the next hop adds up. Source: Sajadmanesh & Gatica-Perez, "ProGAP: Progressive graph neural networks with differential
privacy guarantees", WSDM 2024. Its modules pass on encodings; here it is probabilities of the classes, of as many
columns as there are, so that noise has few entries. All of it is computed from releases and from what is no edge, and
costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.autograd import backward
from typing_extensions import override

from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.features import in_order
from veilgraph.graph.party import PartyGraph, check_classes
from veilgraph.nn.calibration import Calibration
from veilgraph.nn.layers import ACTIVATIONS, Adam, copied_state, dropout, linear
from veilgraph.paradigms.node_dp.network import KPropNetwork, LabelDenoising, neighbour_adjacency
from veilgraph.paradigms.node_dp.settings import KPropSettings, node_dp
from veilgraph.privacy.aggregation import pair_matrix
from veilgraph.privacy.local_features import AffineFeatures
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.judge import Judge, Judgement
from veilgraph.protocol.releases import ReleasedLabels
from veilgraph.protocol.resumption import Point, Start, alone
from veilgraph.protocol.role import IdleRole, PartyModel, RoleContext
from veilgraph.protocol.scores import Objective, Scores


class HopNetwork(nn.Module):
    """Logits of nodes, of noisy sums: a hidden layer, as wide and with the activation and dropout of the job.

    As in ``KPropNetwork`` what goes in is multiplied by a constant, so that one learning rate serves any noise. Call it
    inside ``LearningStreams.global_generator``.
    """

    gain: Tensor
    """The constant, a buffer; 1 until ``scale`` finds it."""

    def __init__(self, columns: int, classes: int, settings: KPropSettings, dtype: torch.dtype) -> None:
        super().__init__()
        self._settings = settings
        self.hidden = linear(columns, settings.dim, bias=True)
        self.output = linear(settings.dim, classes, bias=True)
        self.register_buffer("gain", torch.ones(()))
        self.to(dtype)

    @torch.no_grad()
    def scale(self, sums: Tensor) -> None:
        """Takes the constant from sums, Tensor[N, columns]."""
        spread = (sums @ self.hidden.weight.T).square().mean().sqrt()
        self.gain.copy_(torch.where(spread > 0, 1 / spread, 1.0))

    def forward(self, sums: Tensor, generator: torch.Generator | None) -> Tensor:
        """Tensor[N, columns] to Tensor[N, c]; the generator is of dropout, and None means evaluation."""
        h = ACTIVATIONS[self._settings.activation](self.gain * (sums @ self.hidden.weight.T) + self.hidden.bias)
        logits: Tensor = self.output(dropout(h, self._settings.dropout, generator))
        return logits


class HopLearner(nn.Module):
    """A network after each hop, each of the sums of all hops until then."""

    def __init__(
        self,
        settings: KPropSettings,
        train: TrainSettings,
        objective: Objective,
        hops: int,
        streams: LearningStreams,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._train, self._objective, self._streams, self._dtype = train, objective, streams, dtype
        self._classes = objective.classes
        with streams.global_generator("hops"):
            made = [HopNetwork(hop * self._classes, self._classes, settings, dtype) for hop in range(1, hops + 1)]
        self._networks = made
        self.networks = nn.ModuleList(made)
        self._learnt = 0

    def opinion(self, sums: Tensor) -> Tensor:
        """What each node is taken for after k hops: its label where it is learnt from, else probabilities.

        Tensor[N, k·c], of all hops until then, to Tensor[N, c], without a graph.
        """
        with torch.no_grad():
            return self._objective.opinion(self.logits(sums))[1]

    def logits(self, sums: Tensor) -> Tensor:
        """Those of the network after so many hops: Tensor[N, k·c] to Tensor[N, c]."""
        network: HopNetwork = self._networks[sums.shape[1] // self._classes - 1]
        found: Tensor = network(sums.to(self._dtype), None)
        return found

    def learn(self, sums: Tensor) -> None:
        """Trains the networks of the k hops that there are sums of, Tensor[N, k·c], but those trained before."""
        sums = sums.to(self._dtype)
        for hop in range(self._learnt + 1, sums.shape[1] // self._classes + 1):
            self._learn(hop, sums[:, : hop * self._classes])
            self._learnt = hop

    def _learn(self, hop: int, sums: Tensor) -> None:
        network, train, objective = self._networks[hop - 1], self._train, self._objective
        network.scale(sums)
        optimizer = Adam(network.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay)
        judgement, best = Judgement(), copied_state(network)
        for epoch in range(1, train.epochs + 1):
            optimizer.zero_grad()
            backward(objective.training_loss(network(sums, self._streams.generator("hop dropout", hop, epoch))))
            optimizer.step()
            if epoch % train.evaluate_every and epoch != train.epochs:
                continue
            with torch.no_grad():
                judgement = judgement.after(epoch, objective.score(network(sums, None)), train.select_by)
            if judgement.best_epoch == epoch:
                best = copied_state(network)
            if judgement.stops(train):
                break
        network.load_state_dict(best)


class Bystander(IdleRole):
    """A party that takes no part in learning: the server, and the holders that released."""

    trains = False

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        return alone([], self.session.nonce())


class LocalLearner(Judge):
    """Knows the edges, and of features and labels what was released; its own features and labels are clear to it.

    Args:
        session: of the label holder.
        graph: its own data.
        features: of the C common nodes, block by block: its own, and what the other holders released.
        labels: what was released of another holder's labels; None where it has labels itself.
        model: of its network; None: the job's.
    """

    def __init__(
        self,
        session: RoleContext,
        graph: PartyGraph,
        features: Sequence[AffineFeatures],
        labels: ReleasedLabels | None,
        model: KPropSettings | None = None,
    ) -> None:
        super().__init__(session)
        graph.validate()
        settings, dtype = node_dp(session.settings), session.dtype
        private = settings.release.labels
        self._denoising: LabelDenoising | None = None
        common = graph.common_part()
        if labels is not None and private is not None:
            common = labels.of(common)
            transition = LabelResponse(private.epsilon, labels.classes).transition()
            adjacency = neighbour_adjacency(common, settings.model.aggregate, dtype)
            known = labels.values >= 0
            self._denoising = LabelDenoising(labels.values.clamp_min(0), known, transition, private, adjacency)
        self.graph = replace(common, party=graph.party)
        self._objective = Objective(common, settings.train, dtype)
        self._network = KPropNetwork(
            model or settings.model,
            AffineFeatures.joined(features, dtype),
            common,
            self._objective.classes,
            streams=session.streams,
            dtype=dtype,
        )
        self.model = PartyModel(session, {"network": self._network})

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        """It alone has checkpoints: the others hold none."""
        if self._learns:
            check_classes(self.graph)
        return alone(held, self.session.nonce())

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        self.logits = self._network(self._dropout(epoch))

    @override
    def backward(self, step: int) -> None:
        backward(self.training_loss("train.learning_rate"))

    @override
    def _current_loss(self) -> Tensor:
        if self._denoising is None or self.graph.train_mask is None:
            return super()._current_loss()
        return self._denoising.loss(self.logits, self.graph.train_mask)

    @override
    def scores(self, *, everything: bool = False) -> Scores:
        """With private labels on the released ones, which is all that there is."""
        logits = self.logits.detach()
        if self._denoising is not None:
            logits = self._denoising.scores(logits)
        return self._objective.score(logits, everything=everything)

    @override
    def calibration(self, probabilities: Tensor) -> Calibration | None:
        """Not by another holder's labels, of which it knows no true one."""
        return super().calibration(probabilities) if self._denoising is None else None


def own_features(graph: PartyGraph) -> AffineFeatures:
    """The learner's own columns of the common nodes, as they are: Tensor[C, F]."""
    return AffineFeatures(graph.common_part().features)


class EdgePrivateLearner(LocalLearner):
    """Trains the job's network without an edge, then, once, of noisy sums of what that takes each node for.

    Epochs are chosen by the first alone, which is the same at every ε. What is predicted is what serves the validation
    nodes best: the first, the network of all hops, or both as if they were independent. The session's publisher is the
    one door to its edges.
    """

    def __init__(self, session: RoleContext, graph: PartyGraph, features: Sequence[AffineFeatures]) -> None:
        settings = node_dp(session.settings)
        alone = graph.with_edges(torch.zeros(graph.num_edges, dtype=torch.bool))
        super().__init__(session, alone, features, None, settings.model.model_copy(update={"hops": 0}))
        self._edges = graph.common_part()
        privacy = settings.privacy
        hops = 0 if privacy is None or privacy.aggregation is None else privacy.aggregation.hops
        self._hops = HopLearner(settings.model, settings.train, self._objective, hops, session.streams, session.dtype)
        self._sums: Tensor | None = None
        networks = {"network": self._network, "hops": self._hops}
        self.model = PartyModel(session, networks, trained=list(self._network.parameters()))

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        super().forward(step, epoch)
        if epoch is None and not self._learns:
            first, opinion = self._objective.opinion(self.logits)
            self._alone = first
            second, _ = self._objective.opinion(self._hops.logits(self._summed(opinion)))
            candidates = [first, second, first + second]
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
            count, order = self._edges.num_nodes, self.session.publisher.order  # the same in every job: so are sums
            order = torch.arange(count) if order is None else order[order < count]
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
