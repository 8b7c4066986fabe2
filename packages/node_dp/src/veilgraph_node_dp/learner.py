"""The network of LPGNN: aggregation over many hops, in which the noise of perturbed features and labels cancels.

Source: Sajadmanesh & Gatica-Perez, "Locally private graph neural networks", CCS 2021: Algorithm 2 (KProp) and section
3.3 (Drop); the correction is Patrini et al. 2017.

The features are x' = scale·x* + offset with released values x*, which are few where the mechanism samples features.
Since AGGREGATE is linear, A^K·(X'·W) = scale·A^K·(X*·W) + offset·(A^K·1)(1ᵀ·W), so that X' is never formed.

The label holder of a job of paradigm node-dp, which learns once everything is released; others have nothing to do.

With ``privacy`` it computes over its edges once, with noise, and never again: after each hop a network, whose opinion
the next hop adds up. Source: Sajadmanesh & Gatica-Perez, "ProGAP: Progressive graph neural networks with differential
privacy guarantees", WSDM 2024. Its modules pass on encodings; here it is probabilities of the classes, of as many
columns as there are, so that noise has few entries. All of it is computed from releases and from what is no edge, and
costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.autograd import backward
from torch.nn import functional
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.tensor_file import Record
from veilgraph.graph.features import is_sparse, reorder_nodes
from veilgraph.graph.federation import check_classes
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.calibration import Calibration, released_probabilities
from veilgraph.nn.layers import ACTIVATIONS, Adam, dropout, linear
from veilgraph.nn.propagate import Adjacency, FixedInput
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.agreement import Point, Start, start_alone
from veilgraph.protocol.figures import Scores
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.judge import Judge, Judgement, Objective, warn_of_one_class
from veilgraph.protocol.role import PartyModel, Role, RoleContext
from veilgraph_node_dp.choosing import one_standard_error_choice, opinion_of
from veilgraph_node_dp.mechanisms import AffineFeatures
from veilgraph_node_dp.publisher import SumPublisher
from veilgraph_node_dp.released import ReleasedLabels
from veilgraph_node_dp.settings import DenoiseSettings, KPropSettings, node_dp
from veilgraph_node_dp.sums import pair_matrix

_SPREAD_HOPS: Final = 30
_SPREAD_SHARES: Final = (0.5, 0.8, 0.9)
_RANDOM_COLUMNS: Final = 256
LARGEST = 1 << 24
"""Entries of a sparse matrix that may be propagated once for all, which makes it dense: 64 MiB in float32."""


def neighbour_adjacency(graph: PartyGraph, aggregate: str, dtype: torch.dtype) -> Adjacency:
    """A linear AGGREGATE over a node's neighbours as an adjacency, whose ``sum`` is the aggregate.

    Self-loops are left out; a node without neighbours gets zero. ``gcn`` is D^-1/2·A·D^-1/2, ``mean`` D^-1·A, ``sum``
    A, with the edges' weights in A and D.
    """
    keep = graph.edge_index[0] != graph.edge_index[1]
    edge_index = graph.edge_index[:, keep]
    source, target = edge_index
    weight = torch.ones(len(source)) if graph.edge_weight is None else graph.edge_weight[keep]
    weight = weight.double()
    degrees = torch.bincount(target, weights=weight, minlength=graph.num_nodes)
    if aggregate == "gcn":
        root = torch.where(degrees > 0, degrees.rsqrt(), 0.0)
        weight = weight * root[source] * root[target]
    elif aggregate == "mean":
        weight = weight / torch.where(degrees > 0, degrees, 1.0)[target]
    return Adjacency.of_edges(edge_index, weight, graph.num_nodes, dtype)


def propagate(adjacency: Adjacency, x: Tensor, hops: int) -> Tensor:
    """Return A^hops·x, A summing over neighbours: Tensor[N, d] to Tensor[N, d]."""
    for _ in range(hops):
        x = adjacency.sum(x)
    return x


class PropagatedInput:
    """T·X' for the features X' and a fixed linear map T over the edges: A^K, or a GCN's where K is 0.

    T is applied to X once, where that makes a step cheaper and needs little memory, else to X·W in every step.
    """

    def __init__(
        self, features: AffineFeatures, graph: PartyGraph, hops: int, aggregate: str, dtype: torch.dtype
    ) -> None:
        self._map: Callable[[Tensor], Tensor]
        if hops == 0:
            self._map = Adjacency.from_graph(graph, dtype).gcn
        else:
            neighbours = neighbour_adjacency(graph, aggregate, dtype)
            self._map = lambda x: propagate(neighbours, x, hops)
        values = features.values
        self.columns = int(values.shape[1])
        self.is_propagated = _is_cheaper_propagated(values, max(hops, 1) * graph.num_edges)
        self._features = FixedInput(self._map(values.to(dtype).to_dense()) if self.is_propagated else values, dtype)
        self._scale = features.scale
        self._offset = torch.as_tensor(features.offset, dtype=dtype).expand(self.columns)
        self._reach = self._map(torch.ones(graph.num_nodes, 1, dtype=dtype)) if self._offset.any() else None

    def times(self, weight: Tensor) -> Tensor:
        """T·X'·weight: Tensor[F, d] to Tensor[N, d]."""
        product = self._features.times(weight)
        product = self._scale * (product if self.is_propagated else self._map(product))
        return product if self._reach is None else product + self._reach * (self._offset @ weight)


def _is_cheaper_propagated(values: Tensor, propagation: int) -> bool:
    """Whether T·X as a dense matrix beats T·(X·W) in time, for so many products in T, and is small enough."""
    if not is_sparse(values):
        return True
    entries = values.shape[0] * values.shape[1]
    sparse_cost = 10  # time of a multiplication in a sparse product over that in a dense one, about
    return entries <= min(LARGEST, sparse_cost * (values.values().numel() + propagation))


class KPropNetwork(nn.Module):
    """KProp, whose UPDATE is a linear map with bias and an activation; dropout; a GCN layer with class scores.

    What goes into the linear map is multiplied by a constant, such that its output has a root mean square of 1 with
    the initial weights. Adam's steps do not grow with its input, so without the constant the best learning rate would
    depend on ε, m, K and the data.

    Initial weights come from the stream "kprop"; features and labels of the graph are not read.
    """

    gain: Tensor  # the constant, a buffer

    def __init__(
        self,
        settings: KPropSettings,
        hops: int,
        features: AffineFeatures,
        graph: PartyGraph,
        classes: int,
        *,
        streams: LearningStreams,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._input = PropagatedInput(features, graph, hops, settings.aggregate, dtype)
        self._adjacency = Adjacency.from_graph(graph, dtype)
        with streams.global_generator("kprop"):
            self.update = linear(self._input.columns, settings.dim, bias=True)
            self.output = linear(settings.dim, classes, bias=True)
        self.to(dtype)
        with torch.no_grad():
            spread = self._input.times(self.update.weight.t()).square().mean().sqrt()
        self.register_buffer("gain", torch.where(spread > 0, 1 / spread, 1.0))

    def forward(self, generator: torch.Generator | None) -> Tensor:
        """Logits of every node, Tensor[N, c]; the generator is of dropout, and None means evaluation."""
        settings = self._settings
        h = self.gain * self._input.times(self.update.weight.t()) + self.update.bias
        h = dropout(ACTIVATIONS[settings.activation](h), settings.dropout, generator)
        return self._adjacency.gcn(h @ self.output.weight.t()) + self.output.bias


class KPropNetworks(nn.Module):
    """A network for each K that settings try, trained side by side, of which the validation nodes choose one.

    That costs no ε. K is kept with the weights: a prediction on other data is of the same.
    """

    chosen: Tensor  # place of the chosen network, a buffer

    def __init__(
        self,
        settings: KPropSettings,
        features: AffineFeatures,
        graph: PartyGraph,
        objective: Objective,
        *,
        streams: LearningStreams,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._objective, self.tried = objective, settings.tried
        self.networks = nn.ModuleList(
            KPropNetwork(settings, hops, features, graph, objective.classes, streams=streams, dtype=dtype)
            for hops in self.tried
        )
        self.register_buffer("chosen", torch.tensor(0))

    def forward(self, generator: Callable[[], torch.Generator | None]) -> list[Tensor]:
        """Logits of each network, Tensor[N, c]; every network draws its dropout from a generator of its own."""
        return [network(generator()) for network in self.networks]

    def choose(self, judged: Sequence[Tensor]) -> None:
        """Choose the network whose logits, Tensor[N, c], fit the validation nodes best; of equals the fewest hops."""
        nodes = self._objective.val_nodes
        scores = [self._objective.validation(logits[nodes]) for logits in judged]
        self.chosen.fill_(max(range(len(scores)), key=scores.__getitem__))


def spread_labels(adjacency: Adjacency, labels: Tensor, train: Tensor, classes: int, share: float) -> Tensor:
    """Log probabilities [N, classes] from the labels of ``train`` nodes and edges alone: label spreading.

    A node gets ``share`` of its scores from its neighbours. Source: Zhou et al., NeurIPS 2003.
    """
    own = functional.one_hot(torch.where(train, labels, 0), classes).to(adjacency.dtype) * train.unsqueeze(1)
    found = own
    for _ in range(_SPREAD_HOPS):
        found = (1 - share) * own + share * adjacency.sum(found)
    found = found + torch.finfo(adjacency.dtype).eps * own.sum(dim=0)  # where no label reaches: the classes' shares
    return (found / found.sum(dim=1, keepdim=True)).log()


def learn(
    network: nn.Module,
    train: TrainSettings,
    objective: Objective,
    logits: Callable[[torch.Generator | None], Tensor],
    dropout: Callable[[int], torch.Generator],
) -> None:
    """Train a network by itself; it then has the weights of its best epoch. ``logits`` are Tensor[N, c] of it."""
    optimizer = Adam(network.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay)
    judgement, best = Judgement(), _copied_state(network)
    for epoch in range(1, train.epochs + 1):
        optimizer.zero_grad()
        backward(objective.training_loss(logits(dropout(epoch))))
        optimizer.step()
        if epoch % train.evaluate_every and epoch != train.epochs:
            continue
        with torch.no_grad():
            judgement = judgement.after(epoch, objective.score(logits(None)), train.select_by)
        if judgement.best_epoch == epoch:
            best = _copied_state(network)
        if judgement.stops(train):
            break
    network.load_state_dict(best)


class LabelDenoising:
    """A loss on perturbed labels: compares both labels and predictions after averaging them over K_y hops.

    Both sides are the same linear function of labels: ỹ = A^K_y·Y' over its row sums, Y' being one-hot for nodes whose
    perturbed label is known and zero for others, and p̃ = A^K_y·p(y'|x) over the same. So with the true p(y|x) p̃ is
    the expectation of ỹ, whose noise falls with the number of labels in reach. Where none is, the node's own takes its
    place.

    Perturbed ``labels``, Tensor[N] int64, are read where ``known``; ``transition``: see ``released_probabilities``.
    ``targets`` are ỹ, Tensor[N, c], one-hot where settings say ``hard``.
    """

    def __init__(
        self, labels: Tensor, known: Tensor, transition: Tensor, settings: DenoiseSettings, adjacency: Adjacency
    ) -> None:
        self._transition = transition.to(adjacency.dtype)
        self._steps, self._adjacency = settings.denoise_steps, adjacency
        self._known = known.to(adjacency.dtype).unsqueeze(1)
        self._reach = propagate(adjacency, self._known, self._steps)
        own = functional.one_hot(torch.where(known, labels, 0), len(transition)).to(adjacency.dtype)
        self.targets = self._aggregate(own)
        if settings.targets == "hard":
            self.targets = functional.one_hot(self.targets.argmax(dim=1), len(transition)).to(adjacency.dtype)

    def loss(self, logits: Tensor, nodes: Tensor) -> Tensor:
        """Mean cross-entropy of p̃ against the targets, at the nodes to learn from, Tensor[N] bool."""
        predicted = self._aggregate(released_probabilities(logits, self._transition))
        least = torch.finfo(predicted.dtype).tiny
        return -(self.targets[nodes] * predicted[nodes].clamp_min(least).log()).sum(dim=1).mean()

    def scores(self, logits: Tensor) -> Tensor:
        """Logits of the perturbed labels, log p(y'|x): Tensor[N, c] to Tensor[N, c]."""
        return released_probabilities(logits, self._transition).clamp_min(torch.finfo(logits.dtype).tiny).log()

    def _aggregate(self, probabilities: Tensor) -> Tensor:
        """Average the probabilities p of known nodes over K_y hops; p where none is in reach: [N, c] to [N, c]."""
        if self._steps == 0:
            return probabilities
        total = propagate(self._adjacency, self._known * probabilities, self._steps)
        reached = self._reach > 0
        return torch.where(reached, total / torch.where(reached, self._reach, 1.0), probabilities)


class _HopNetwork(nn.Module):
    """Computes nodes' logits from noisy sums: one hidden layer with the job's width, activation and dropout.

    Scaled as in ``KPropNetwork``. Call it inside ``LearningStreams.global_generator``.
    """

    gain: Tensor  # the constant, a buffer; 1 until ``scale`` finds it

    def __init__(self, columns: int, classes: int, settings: KPropSettings, dtype: torch.dtype) -> None:
        super().__init__()
        self._settings = settings
        self.hidden = linear(columns, settings.dim, bias=True)
        self.output = linear(settings.dim, classes, bias=True)
        self.register_buffer("gain", torch.ones(()))
        self.to(dtype)

    @torch.no_grad()
    def scale(self, sums: Tensor) -> None:
        """Set ``gain`` so that the hidden layer has root mean square 1 on ``sums``, Tensor[N, columns]."""
        spread = (sums @ self.hidden.weight.T).square().mean().sqrt()
        self.gain.copy_(torch.where(spread > 0, 1 / spread, 1.0))

    def forward(self, sums: Tensor, generator: torch.Generator | None) -> Tensor:
        """Compute logits, Tensor[N, c], from sums, Tensor[N, columns]; ``generator`` None means evaluation."""
        h = ACTIVATIONS[self._settings.activation](self.gain * (sums @ self.hidden.weight.T) + self.hidden.bias)
        logits: Tensor = self.output(dropout(h, self._settings.dropout, generator))
        return logits


class Bystander(Role):
    """A party that takes no part in learning: the server, and the holders that released."""

    trains = False

    def __init__(self, session: RoleContext) -> None:
        super().__init__(session)
        self.model = PartyModel(session, {})

    @override
    def forward(self, step: int, epoch: int | None) -> None: ...

    @override
    def backward(self, step: int) -> None: ...

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        return start_alone([], self.session.nonce())


class LocalLearner(Judge):
    """The learner: knows the edges and its own features and labels, and others' as they were released."""

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
        warn_of_one_class(common, settings.train)
        self._settings = model or settings.network
        joined = AffineFeatures.joined(features, dtype)
        self._network = KPropNetworks(
            self._settings, joined, common, self._objective, streams=session.streams, dtype=dtype
        )
        self.model = PartyModel(session, {"network": self._network})

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        """Start from its own checkpoints; no other party has any."""
        if self._learns:
            check_classes(self.graph)
        return start_alone(held, self.session.nonce())

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        self._each = self._network(lambda: self._dropout(epoch))
        if epoch is None and self._learns:
            self._network.choose([self._judged_logits(logits) for logits in self._each])
        self.logits = self._each[int(self._network.chosen)]

    @override
    def backward(self, step: int) -> None:
        """Backpropagate the sum of all networks' losses, each of its own weights alone; record the mean loss."""
        loss = self.training_loss("train.learning_rate")
        self.loss = float(loss.detach()) / len(self._each)
        backward(loss)

    @override
    def _current_loss(self) -> Tensor:
        train, denoising = self.graph.train_mask, self._denoising
        if denoising is None or train is None:
            return torch.stack([self._objective.training_loss(logits) for logits in self._each]).sum()
        return torch.stack([denoising.loss(logits, train) for logits in self._each]).sum()

    def _judged_logits(self, logits: Tensor) -> Tensor:
        """Return logits to compare with the labels at hand: with private labels, logits of the perturbed labels."""
        return logits.detach() if self._denoising is None else self._denoising.scores(logits.detach())

    @override
    def scores(self, *, everything: bool = False) -> Scores:
        return self._objective.score(self._judged_logits(self.logits), everything=everything)

    @override
    def alone(self) -> Record | None:
        """Score what its own data alone reach: labels spread over edges, and networks with random extra columns.

        Random columns tell nodes apart as well: released ones are held to them. ``adds``: the validation nodes tell the
        two apart. None with private labels.
        """
        graph, objective, train = self.graph, self._objective, self.session.settings.train
        if self._denoising is not None or graph.labels is None or graph.train_mask is None:
            return None
        streams, dtype = self.session.streams, self.session.dtype
        neighbours = neighbour_adjacency(graph, "gcn", dtype)
        spread = partial(spread_labels, neighbours, graph.labels, graph.train_mask, objective.classes)
        found = [spread(share) for share in _SPREAD_SHARES]
        drawn = torch.randn(graph.num_nodes, _RANDOM_COLUMNS, generator=streams.generator("in place of releases"))
        columns = AffineFeatures.joined([AffineFeatures(graph.features), AffineFeatures(drawn)], dtype)
        for hops in self._settings.tried:
            network = KPropNetwork(
                self._settings, hops, columns, graph, objective.classes, streams=streams, dtype=dtype
            )
            learn(network, train, objective, network, partial(streams.generator, "dropout"))
            with torch.no_grad():
                found.append(network(None))
        best = max(found, key=lambda logits: objective.validation(logits[objective.val_nodes]))
        return {
            "together": dict(self.scores(everything=True).values),
            "alone": dict(objective.score(best, everything=True).values),
            "adds": bool(one_standard_error_choice(objective, graph, [best, self.logits.detach()])),
            "hops": self._network.tried[int(self._network.chosen)],
        }

    @override
    def calibration(self, probabilities: Tensor) -> Calibration | None:
        """Return the calibration on validation nodes; None with another holder's perturbed labels."""
        return super().calibration(probabilities) if self._denoising is None else None


def own_features(graph: PartyGraph) -> AffineFeatures:
    """Return the learner's own columns of the common nodes, unperturbed: [C, F]."""
    return AffineFeatures(graph.common_part().features)


class EdgePrivateLearner(LocalLearner):
    """Trains the job's network without edges, then once a network per hop on noisy sums of neighbours' predictions.

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
        hops = 0 if privacy is None else privacy.hops
        self._classes = classes = self._objective.classes
        with session.streams.global_generator("hops"):
            each = [_HopNetwork(hop * classes, classes, settings.model, session.dtype) for hop in range(1, hops + 1)]
        self._after, self._learnt = each, 0
        self._sums: Tensor | None = None
        networks = {"network": self._network, "hops": nn.ModuleDict({"networks": nn.ModuleList(each)})}
        self.model = PartyModel(session, networks, trained=list(self._network.parameters()))

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        super().forward(step, epoch)
        if epoch is None and not self._learns:
            first, opinion = opinion_of(self._objective, self.graph, self.logits)
            self._alone = first
            second, _ = opinion_of(self._objective, self.graph, self._hop_logits(self._noisy_sums(opinion)))
            candidates = [first, second, first + second]
            self.logits = candidates[one_standard_error_choice(self._objective, self.graph, candidates)]

    @override
    def alone(self) -> None:
        """Return None: noise makes the two trainings no alternatives."""

    @override
    def finish(self) -> None:
        with torch.no_grad():
            self.forward(0, None)
            _, opinion = opinion_of(self._objective, self.graph, self.logits)
        with self.session.trace.span("hops"):
            self._train_hops(self._noisy_sums(opinion))

    def _hop_logits(self, sums: Tensor) -> Tensor:
        """Return logits, Tensor[N, c], of the network for k hops, from ``sums`` of these, Tensor[N, k·c]."""
        logits: Tensor = self._after[sums.shape[1] // self._classes - 1](sums.to(self.session.dtype), None)
        return logits

    def _train_hops(self, sums: Tensor) -> None:
        """Train the networks for 1 to k hops on ``sums``, Tensor[N, k·c], but those trained before."""
        sums, streams = sums.to(self.session.dtype), self.session.streams
        for hop in range(self._learnt + 1, sums.shape[1] // self._classes + 1):
            network, known = self._after[hop - 1], sums[:, : hop * self._classes]
            network.scale(known)
            dropout = partial(streams.generator, "hop dropout", hop)
            learn(network, self.session.settings.train, self._objective, partial(network, known), dropout)
            self._learnt = hop

    def _noisy_sums(self, opinion: Tensor) -> Tensor:
        """Return all hops' noisy sums, Tensor[C, K·c], from ``opinion``, Tensor[C, c]; they are released once."""
        if self._sums is None:
            publisher = self.session.publisher
            if not isinstance(publisher, SumPublisher):
                raise ConfigError("privacy: the learner's session has no publisher of sums; give it one")
            order = publisher.order  # the same in every job: so are sums
            order = torch.arange(self._edges.num_nodes) if order is None else order
            places = order.argsort()
            graph = reorder_nodes(self._edges, order)
            pairs = pair_matrix(graph.edge_index, graph.edge_weight, graph.num_nodes)
            then = lambda sums: self._next_opinion(sums[places])[order]  # noqa: E731
            self._sums = publisher.sums(opinion[order], pairs, then)[places]
        return self._sums

    def _next_opinion(self, sums: Tensor) -> Tensor:
        """Return class probabilities [C, c] after the hops of ``sums``; in training, train their network first."""
        if self._learns:
            self._train_hops(sums)
        with torch.no_grad():
            return opinion_of(self._objective, self.graph, self._hop_logits(sums))[1]


def _copied_state(network: nn.Module) -> dict[str, Tensor]:
    """A copy of a network's weights and buffers, by name."""
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}
