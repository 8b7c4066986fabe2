"""The whole split network in one process, by ordinary autograd, with nothing hidden.

With all holders' graphs it is the plaintext twin of the federated job: same parts, same seeds, same order. With one
graph it is isolated or pooled training. Nothing is released here: for ``initial.method: perturbed`` the graphs of a
twin have what all holders released as their features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.autograd import backward
from typing_extensions import override

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.partition import isolate, pool
from veilgraph.graph.party import PartyGraph, rows_between
from veilgraph.mpc import ring
from veilgraph.mpc.mask import masked_sum
from veilgraph.mpc.ring import rounded
from veilgraph.nn.layers import build_head
from veilgraph.nn.local.build import CustomModel
from veilgraph.nn.neighbourhood import Sampler
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.vertical.initial import OWN_NODES, InitialSettings, init_std, init_weight
from veilgraph.paradigms.vertical.network import HolderNetwork, ServerNetwork, deep_width, next_input
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.privacy.publisher import OPEN, Publisher
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.cut import WEIGHT_BITS, Release, gradient_of, leaf
from veilgraph.protocol.job import JobSettings, TrainSettings, passes_cost, perturbed_splits
from veilgraph.protocol.judge import Objective, Scores
from veilgraph.protocol.plain_fitting import PlainResult, Progress, fit
from veilgraph.protocol.releases import with_perturbed
from veilgraph.protocol.role import Batch, build_optimizer, precision, training_batches


class PlainEmbedding(ABC):
    """All holders' initial embeddings in one place."""

    def __init__(
        self,
        weights: dict[PartyId, Tensor],
        parameters: list[nn.Parameter] | None = None,
        own_weights: dict[PartyId, Tensor] | None = None,
    ) -> None:
        self._weights, self._trained, self._own_weights = weights, parameters or [], own_weights or {}

    def weights(self) -> dict[PartyId, Tensor]:
        """Owner → live W of its columns [F_owner, d]."""
        return self._weights

    def own_weights(self) -> dict[PartyId, Tensor]:
        """Owner → W_own [F_owner, d], for those that have nodes of their own with a W_own."""
        return self._own_weights

    def parameters(self) -> list[nn.Parameter]:
        """Weights that Adam trains."""
        return self._trained

    @abstractmethod
    def embed(self) -> dict[PartyId, Tensor]:
        """Holder → its h^0 in the job's precision, a row for each of its nodes, without a graph."""

    @abstractmethod
    def learn(self, gradients: Mapping[PartyId, Tensor]) -> None:
        """Takes every holder's ∂L/∂h^0, of the same shape: updates W, or leaves gradients in ``parameters``."""


class PlainOwn(PlainEmbedding):
    """Twin of ``Individual`` and, with ``summed``, of ``SecureSum``: each W^i trained by Adam."""

    def __init__(
        self,
        settings: InitialSettings,
        matrices: Mapping[PartyId, Tensor],
        streams: Mapping[PartyId, LearningStreams],
        dim: int,
        dtype: torch.dtype,
        *,
        summed: bool,
        stream: str | None = None,
    ) -> None:
        self._summed = summed
        self._operands = {
            owner: ring.static_operand(matrix, lambda values: values.to(dtype)) for owner, matrix in matrices.items()
        }
        columns = {owner: matrix.shape[1] for owner, matrix in matrices.items()}
        total = sum(columns.values())
        self._parameters = {}
        for owner, own in columns.items():
            std = init_std(settings, total if summed else own, dim)
            weight = init_weight(streams[owner], stream or owner, own, dim, std)
            self._parameters[owner] = nn.Parameter(weight.to(dtype))
        weights = {owner: parameter.data for owner, parameter in self._parameters.items()}
        super().__init__(weights, list(self._parameters.values()))

    @override
    def embed(self) -> dict[PartyId, Tensor]:
        return self._shared({owner: operand.times(self._weights[owner]) for owner, operand in self._operands.items()})

    @override
    def learn(self, gradients: Mapping[PartyId, Tensor]) -> None:
        for owner, gradient in self._shared(gradients).items():
            self._parameters[owner].grad = self._operands[owner].transposed_times(gradient)

    def _shared(self, own: Mapping[PartyId, Tensor]) -> dict[PartyId, Tensor]:
        if not self._summed:
            return dict(own)
        total = masked_sum(list(own.values()))
        return {owner: total.to(part.dtype) for owner, part in own.items()}


class PlainCollaborative(PlainEmbedding):
    """Twin of ``Collaborative``: all W^i in one place, float64, SGD with momentum and decoupled decay.

    W's initial value is the sum of every holder's draw; x is rounded to ``feature_bits``, as in the ring.
    """

    def __init__(
        self,
        settings: InitialSettings,
        matrices: Mapping[PartyId, Tensor],
        streams: Mapping[PartyId, LearningStreams],
        feature_bits: int,
        dim: int,
        dtype: torch.dtype,
    ) -> None:
        self._settings, self._dtype = settings, dtype
        self._operands = {
            owner: ring.static_operand(matrix, lambda values: rounded(values, feature_bits))
            for owner, matrix in matrices.items()
        }
        columns = {owner: matrix.shape[1] for owner, matrix in matrices.items()}
        std = init_std(settings, sum(columns.values()), dim) / len(columns) ** 0.5
        weights = {
            owner: masked_sum([init_weight(streams[other], owner, columns[owner], dim, std) for other in columns])
            for owner in columns
        }
        super().__init__(weights)
        self._momentum = {owner: torch.zeros_like(weight) for owner, weight in weights.items()}

    @override
    def embed(self) -> dict[PartyId, Tensor]:
        parts = [operand.times(self._weights[owner]) for owner, operand in self._operands.items()]
        return dict.fromkeys(self._operands, masked_sum(parts).to(self._dtype))

    @override
    def learn(self, gradients: Mapping[PartyId, Tensor]) -> None:
        settings = self._settings
        gradient = masked_sum(list(gradients.values()))
        for owner, operand in self._operands.items():
            self._momentum[owner].mul_(settings.momentum).add_(operand.transposed_times(gradient))
            self._weights[owner].mul_(1 - settings.learning_rate * settings.weight_decay)
            self._weights[owner].sub_(self._momentum[owner], alpha=settings.learning_rate)


class PlainWithOwnNodes(PlainEmbedding):
    """Twin of ``WithOwnNodes``: a joint method for the C common rows and, at those that have more, x·W_own below."""

    def __init__(self, joint: PlainEmbedding, own: PlainOwn, common: int) -> None:
        super().__init__(joint.weights(), [*joint.parameters(), *own.parameters()], own.weights())
        self._joint, self._own, self._common = joint, own, common

    @override
    def embed(self) -> dict[PartyId, Tensor]:
        own = self._own.embed()
        return {
            party: torch.cat([common, own[party]]) if party in own else common
            for party, common in self._joint.embed().items()
        }

    @override
    def learn(self, gradients: Mapping[PartyId, Tensor]) -> None:
        self._joint.learn({party: gradient[: self._common] for party, gradient in gradients.items()})
        self._own.learn({party: gradients[party][self._common :] for party in self._own_weights})


class PlainNetwork:
    """All parts of a job's network together.

    Args:
        settings: the job; ``data`` is not read.
        graphs: one per holder, in the job's order; one or more.
        label_party: which of them has the labels.
        custom: for ``local.model: custom``.
        publishers: of the holders, in a job with differential privacy; they keep no ledger here.
        perturbed: Tensor[n] int64, labels of the training and validation nodes under the job's ``label_privacy``; None:
            it learns from the labels as they are.
    """

    def __init__(
        self,
        settings: JobSettings,
        graphs: Sequence[PartyGraph],
        label_party: PartyId,
        custom: CustomModel | None = None,
        publishers: Mapping[PartyId, Publisher] | None = None,
        perturbed: Tensor | None = None,
    ) -> None:
        self.settings = settings
        self._publishers = publishers or {}
        self._is_summed = any(publisher.is_summed for publisher in self._publishers.values())
        model, dtype = vertical(settings).model, precision(settings)
        self._dtype = dtype
        self._streams = {
            party: LearningStreams(settings.seed, party) for party in [*(graph.party for graph in graphs), SERVER]
        }
        told = settings.inputs.is_relational
        adjacencies = {graph.party: Adjacency.from_graph(graph, dtype, relational=told) for graph in graphs}
        self._label_party = label_party
        common = next(graph for graph in graphs if graph.party == label_party).common_part()
        self._label_adjacency = Adjacency.from_graph(common, dtype)
        self._objective = _objective(settings, common, dtype, perturbed)
        count, is_summed = len(graphs), self._is_summed
        self.holders = {}
        for graph in graphs:
            own = adjacencies[graph.party], self._streams[graph.party], dtype, custom, graph.common
            self.holders[graph.party] = HolderNetwork(model, count, *own, is_summed=is_summed)
        divisor = vertical(settings).left_divisor if self._is_summed else 1
        self.server = ServerNetwork(model, count, self._streams[SERVER], dtype, divisor)
        width, classes = deep_width(model, count), self._objective.classes
        self.head = build_head(width, classes, model.head, streams=self._streams[label_party], dtype=dtype)
        self.embedding = _embedding(settings, graphs, self._streams, dtype)
        weights = [network.weight for network in self.holders.values() if network.weight is not None]
        if model.combine.is_masked:
            weights = [rounded(weight, WEIGHT_BITS) for weight in weights]
        self._weight_total = masked_sum(weights).to(dtype) if weights else None
        self.optimizer = build_optimizer(self.trained(), self._rates(), settings)
        self._h0: dict[PartyId, Tensor] | None = None
        self._nodes = common.num_nodes
        local = model.local
        self._samplers = {
            party: Sampler(adjacency, local.hops, local.fanout) for party, adjacency in adjacencies.items()
        }

    @property
    def train_settings(self) -> TrainSettings:
        """Of the job."""
        return self.settings.train

    def modules(self) -> dict[str, nn.Module]:
        """``party/part`` → module, with the names the roles use."""
        holders: dict[str, nn.Module] = {f"{party}/holder": network for party, network in self.holders.items()}
        return {**holders, f"{SERVER}/server": self.server, f"{self._label_party}/head": self.head}

    def trained(self) -> list[nn.Parameter]:
        """Weights that Adam trains."""
        parameters = [parameter for module in self.modules().values() for parameter in module.parameters()]
        return [*parameters, *self.embedding.parameters()]

    def _rates(self) -> dict[nn.Parameter, float]:
        return {parameter: rate for network in self.holders.values() for parameter, rate in network.rates().items()}

    def weights(self) -> dict[str, Tensor]:
        """``party/part.name`` → live weight, W blocks as ``party/W``, and ``party/W_own`` where there is one."""
        own = {
            f"{part}.{name}": tensor
            for part, module in self.modules().items()
            for name, tensor in module.state_dict().items()
        }
        own.update({f"{owner}/W": weight for owner, weight in self.embedding.weights().items()})
        own.update({f"{owner}/W_own": weight for owner, weight in self.embedding.own_weights().items()})
        return own

    def forward(self, epoch: int | None) -> Tensor:
        """Logits of the common nodes; ``epoch`` counts the dropout streams, None means evaluation."""
        if self._h0 is None:
            self._h0 = self.embedding.embed()
        self._leaves = {party: leaf(h0) for party, h0 in self._h0.items()}
        generators = {
            party: None if epoch is None else stream.generator("dropout", epoch)
            for party, stream in self._streams.items()
        }
        started = {
            party: network.start(self._leaves[party], generators[party]) for party, network in self.holders.items()
        }
        inputs = started
        rounds = vertical(self.settings).model.rounds
        for round_ in range(1, rounds + 1):
            outputs = {}
            for party, network in self.holders.items():
                given = inputs[party], started[party], generators[party]
                outputs[party] = network.contribute(round_, *given, self._release(party))
            pieces = [piece for piece, _ in outputs.values()]
            combined = self.server.merge(pieces, self._weight_total).to(self._dtype)
            if round_ < rounds:
                inputs = {party: next_input(self._cut(combined, party), own) for party, (_, own) in outputs.items()}
        deep = self._cut(self.server.deep(combined, generators[SERVER]), self._label_party, deep=True)
        generator = None if epoch is None else self._streams[self._label_party].generator("head dropout", epoch)
        logits: Tensor = self.head(deep, self._label_adjacency, generator)
        return logits

    def _release(self, party: PartyId) -> Release | None:
        publisher = self._publishers.get(party, OPEN)
        if publisher.is_open:
            return None
        release = publisher.summand if publisher.is_summed else publisher.embeddings
        return lambda rows: release(rows, 0)

    def _cut(self, received: Tensor, party: PartyId, *, deep: bool = False) -> Tensor:
        """What a holder gets; the gradient that it gives back is released first."""
        publisher = self._publishers.get(party, OPEN)
        if publisher.is_open or not received.requires_grad:
            return received
        branch = received.view_as(received)

        def released(gradient: Tensor) -> Tensor:
            if publisher.is_summed and not deep:
                return publisher.summand(gradient, 0, "gradients").to(gradient.dtype)
            return publisher.gradients(gradient, 0, deep=deep)

        branch.register_hook(released)  # type: ignore[no-untyped-call]
        return branch

    def train_step(self, epoch: int) -> float:
        """A forward and backward pass and an update, or one for each batch of an epoch; returns the mean loss."""
        batches = training_batches(self.settings, self._nodes, epoch)
        return fmean(self._step(epoch) if batch is None else self._batch_step(epoch, batch) for batch in batches)

    def _batch_step(self, epoch: int, batch: Batch) -> float:
        """As ``_step``, over the neighbourhoods that the holders draw around a batch's targets."""
        if self._h0 is None:
            self._h0 = self.embedding.embed()
            self._gradients = {party: torch.zeros_like(h0) for party, h0 in self._h0.items()}
        for parameter in self.trained():
            parameter.grad = None
        pieces, leaves = [], {}
        for party, network in self.holders.items():
            stream = self._streams[party]
            around = self._samplers[party].around(batch.rows, stream.generator("neighbours", epoch, batch.index))
            leaves[party] = around.nodes, leaf(self._h0[party][around.nodes])
            generator = stream.generator("dropout", epoch, batch.index)
            started = network.start(leaves[party][1], generator)
            pieces.append(network.contribute_batch(started, around, batch.rows, generator))
        total = None if self._weight_total is None else self._weight_total[batch.rows]
        combined = self.server.merge(pieces, total)
        deep = self.server.deep(combined, self._streams[SERVER].generator("dropout", epoch, batch.index))
        generator = self._streams[self._label_party].generator("head dropout", epoch, batch.index)
        logits = self.head(deep, self._label_adjacency, generator)
        loss = self._objective.training_loss(logits, batch.rows)
        backward(loss)
        for party, (nodes, h0) in leaves.items():
            self._gradients[party].index_add_(0, nodes, gradient_of(h0))
        if batch.period:
            self.embedding.learn({party: total / batch.period for party, total in self._gradients.items()})
            self._h0 = None
        self.optimizer.step()
        return float(loss.detach())

    def _step(self, epoch: int) -> float:
        for parameter in self.trained():
            parameter.grad = None
        self.logits = self.forward(epoch)
        loss = self._objective.training_loss(self.logits)
        backward(loss)
        self.embedding.learn({party: gradient_of(h0) for party, h0 in self._leaves.items()})
        self.optimizer.step()
        self._h0 = None
        return float(loss.detach())

    def infer(self) -> Tensor:
        """Logits of the common nodes without dropout and without a graph."""
        with torch.no_grad():
            return self.forward(None)

    def infer_from(self, initial: Mapping[PartyId, Tensor]) -> Tensor:
        """As ``infer``, from other initial embeddings, holder → h^0 [N, d]."""
        kept, self._h0 = self._h0, dict(initial)
        logits = self.infer()
        self._h0 = kept
        return logits

    def judged(self) -> Tensor:
        """Logits that an epoch is judged by: those of its training pass where every pass costs, else of ``infer``."""
        return self.logits.detach() if passes_cost(self.settings) else self.infer()

    def score(self, logits: Tensor, *, everything: bool = False) -> Scores:
        """How logits do on each split; AUC and F1 as ``Objective.score`` says."""
        return self._objective.score(logits, everything=everything)


def _objective(settings: JobSettings, common: PartyGraph, dtype: torch.dtype, perturbed: Tensor | None) -> Objective:
    private, classes = settings.label_privacy, common.num_classes
    if perturbed is None or private is None or classes is None:
        return Objective(common, settings.train, dtype)
    transition = LabelResponse(private.epsilon, classes).transition()
    return Objective(with_perturbed(common, perturbed, perturbed_splits(settings)), settings.train, dtype, transition)


def _embedding(
    settings: JobSettings, graphs: Sequence[PartyGraph], streams: dict[PartyId, LearningStreams], dtype: torch.dtype
) -> PlainEmbedding:
    initial, dim = vertical(settings).model.initial, vertical(settings).model.dim
    if not initial.is_joint:
        return PlainOwn(initial, {graph.party: graph.features for graph in graphs}, streams, dim, dtype, summed=False)
    common = graphs[0].common
    matrices = {graph.party: rows_between(graph.features, 0, common) for graph in graphs}
    joint: PlainEmbedding
    if initial.method == "collaborative":
        bits = vertical(settings).feature_bits
        if bits is None:
            bits = max(ring.fractional_bits(matrix) for matrix in matrices.values())
        joint = PlainCollaborative(initial, matrices, streams, bits, dim, dtype)
    else:
        joint = PlainOwn(initial, matrices, streams, dim, dtype, summed=True)
    own = {
        graph.party: rows_between(graph.features, common, graph.num_nodes)
        for graph in graphs
        if graph.num_nodes > common
    }
    if not own:
        return joint
    alone = PlainOwn(initial, own, streams, dim, dtype, summed=False, stream=OWN_NODES)
    return PlainWithOwnNodes(joint, alone, common)


def isolated(
    settings: JobSettings,
    graphs: Sequence[PartyGraph],
    party: PartyId,
    progress: Progress = lambda records: None,
) -> PlainResult:
    """Trains a federated job's network on one holder's own features and edges (the paper's GraphSAGE_A, GraphSAGE_B).

    ``party`` is alone as ``isolate`` says; ``progress`` is called after every epoch.
    """
    alone = isolate(graphs, party, settings.data.label_party)
    return fit(PlainNetwork(settings, [alone], party), progress)


def pooled(
    settings: JobSettings, graphs: Sequence[PartyGraph], progress: Progress = lambda records: None
) -> PlainResult:
    """As ``isolated``, on the union of all holders' data about the common nodes (GraphSAGE_{A+B})."""
    everything = pool(graphs, settings.data.label_party, relational=settings.inputs.is_relational)
    return fit(PlainNetwork(settings, [everything], everything.party), progress)
