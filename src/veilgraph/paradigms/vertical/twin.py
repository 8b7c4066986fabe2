"""The whole split network in one process, by ordinary autograd, with nothing hidden.

With all holders' graphs it is the plaintext twin of the federated job: same parts, same seeds, same order. With one
graph it is isolated or pooled training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.autograd import backward
from typing_extensions import override

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph, rows_between
from veilgraph.graph.pooling import holder_alone, pool
from veilgraph.mpc import ring
from veilgraph.mpc.mask import plain_sum
from veilgraph.nn.layers import build_head
from veilgraph.nn.local.build import CustomModel
from veilgraph.nn.neighbourhood import Sampler
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.vertical.network import (
    OWN_NODES,
    HolderNetwork,
    Individual,
    InitialSettings,
    ServerNetwork,
    deep_width,
    init_std,
    init_weight,
    next_input,
)
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.cut import WEIGHT_BITS, gradient_of, leaf
from veilgraph.protocol.figures import Scores
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.judge import Objective
from veilgraph.protocol.plain_fitting import Network, PlainResult, Progress, fit
from veilgraph.protocol.role import Batch, build_optimizer, precision, training_batches


class PlainEmbedding:
    """Plaintext twin of every ``InitialEmbedding``: computes and learns h^0 of all holders in one place.

    ``collaborative`` has float64 weights, each at first the sum of every holder's draw, and trains them by SGD with
    momentum and decoupled decay; x is rounded to ``feature_bits``, as in the ring. Weights of the other methods are
    trained by Adam, as those of ``own``, holders' rows of nodes that not all have.
    """

    def __init__(
        self,
        settings: InitialSettings,
        matrices: Mapping[PartyId, Tensor],
        streams: Mapping[PartyId, LearningStreams],
        dim: int,
        dtype: torch.dtype,
        *,
        feature_bits: int = 0,
        own: Mapping[PartyId, Tensor] = MappingProxyType({}),
    ) -> None:
        self._settings, self._dtype, self._common = settings, dtype, max(map(len, matrices.values()))
        columns = {owner: matrix.shape[1] for owner, matrix in matrices.items()}
        total = sum(columns.values())
        self._parts: dict[PartyId, Individual] = {}
        self._operands: dict[PartyId, ring.StaticOperand] = {}
        if settings.method == "collaborative":
            std = init_std(settings, total, dim) / len(columns) ** 0.5
            self._operands = {
                owner: ring.static_operand(matrix, lambda values: ring.rounded(values, feature_bits))
                for owner, matrix in matrices.items()
            }
            self._weights = {
                owner: plain_sum([init_weight(streams[other], owner, count, dim, std) for other in columns])
                for owner, count in columns.items()
            }
            self._momentum = {owner: torch.zeros_like(weight) for owner, weight in self._weights.items()}
        else:
            joint = total if settings.is_joint else None
            for owner, matrix in matrices.items():
                self._parts[owner] = Individual(settings, matrix, dim, streams[owner], owner, dtype, joint)
            self._weights = {owner: part.weight.data for owner, part in self._parts.items()}
        self._own = {
            owner: Individual(settings, rows, dim, streams[owner], OWN_NODES, dtype) for owner, rows in own.items()
        }

    def weights(self) -> dict[PartyId, Tensor]:
        """Owner → live W of its columns [F_owner, d]."""
        return self._weights

    def own_weights(self) -> dict[PartyId, Tensor]:
        """Owner → live W_own [F_owner, d], for holders with nodes that not all have."""
        return {owner: part.weight.data for owner, part in self._own.items()}

    def parameters(self) -> list[nn.Parameter]:
        """Weights that Adam trains."""
        return [part.weight for part in (*self._parts.values(), *self._own.values())]

    def embed(self) -> dict[PartyId, Tensor]:
        """Holder → its h^0 in the job's precision, a row for each of its nodes, without gradients."""
        found = {owner: part.embed(0, learns=True) for owner, part in self._parts.items()}
        found |= {owner: operand.times(self._weights[owner]) for owner, operand in self._operands.items()}
        if self._settings.is_joint:
            found = dict.fromkeys(found, plain_sum(list(found.values())).to(self._dtype))
        own = {owner: part.embed(0, learns=True) for owner, part in self._own.items()}
        return {party: torch.cat([h0, own[party]]) if party in own else h0 for party, h0 in found.items()}

    def learn(self, gradients: Mapping[PartyId, Tensor]) -> None:
        """Take every holder's ∂L/∂h^0 [N, d]: update W, or set the gradient of ``parameters``."""
        settings, common = self._settings, self._common
        for owner, part in self._own.items():
            part.learn(0, gradients[owner][common:])
        if settings.is_joint:
            total = plain_sum([gradient[:common] for gradient in gradients.values()])
            gradients = dict.fromkeys(gradients, total)
        for owner, part in self._parts.items():
            part.learn(0, gradients[owner].to(self._dtype))
        for owner, operand in self._operands.items():
            self._momentum[owner].mul_(settings.momentum).add_(operand.transposed_times(gradients[owner]))
            self._weights[owner].mul_(1 - settings.learning_rate * settings.weight_decay)
            self._weights[owner].sub_(self._momentum[owner], alpha=settings.learning_rate)


class PlainNetwork(Network):
    """All parties' parts of a vertical job's network in one process: trains, infers and scores in plaintext."""

    def __init__(
        self,
        settings: JobSettings,
        graphs: Sequence[PartyGraph],
        label_party: PartyId,
        custom: CustomModel | None = None,
    ) -> None:
        self.settings, self.train_settings, self._label_party = settings, settings.train, label_party
        job, dtype = vertical(settings), precision(settings)
        model, count = job.model, len(graphs)
        self._dtype, self._rounds = dtype, model.rounds
        parties = [*(graph.party for graph in graphs), SERVER]
        self._streams = {party: LearningStreams(settings.seed, party) for party in parties}
        common = next(graph for graph in graphs if graph.party == label_party).common_part()
        self._nodes, self._label_adjacency = common.num_nodes, Adjacency.from_graph(common, dtype)
        self._objective = Objective(common, settings.train, dtype)
        self.holders, self._samplers = dict[PartyId, HolderNetwork](), dict[PartyId, Sampler]()
        for graph in graphs:
            adjacency = Adjacency.from_graph(graph, dtype, relational=settings.inputs.is_relational)
            own = adjacency, self._streams[graph.party], custom, graph.common
            self.holders[graph.party] = HolderNetwork(model, count, *own)
            self._samplers[graph.party] = Sampler(adjacency, model.local.hops, model.local.fanout)
        self.server = ServerNetwork(model, count, self._streams[SERVER], dtype)
        width, classes = deep_width(model, count), self._objective.classes
        self.head = build_head(width, classes, model.head, streams=self._streams[label_party], dtype=dtype)
        self.embedding = _build_embedding(settings, graphs, self._streams, dtype)
        weights = [network.weight for network in self.holders.values() if network.weight is not None]
        if model.combine.is_masked:
            weights = [ring.rounded(weight, WEIGHT_BITS) for weight in weights]
        self._weight_total = plain_sum(weights).to(dtype) if weights else None
        rates = {parameter: rate for network in self.holders.values() for parameter, rate in network.rates().items()}
        self.optimizer = build_optimizer(self.trained(), rates, settings)
        self._h0: dict[PartyId, Tensor] | None = None

    def modules(self) -> dict[str, nn.Module]:
        """``party/part`` → module, with the names the roles use."""
        holders: dict[str, nn.Module] = {f"{party}/holder": network for party, network in self.holders.items()}
        return {**holders, f"{SERVER}/server": self.server, f"{self._label_party}/head": self.head}

    def trained(self) -> list[nn.Parameter]:
        """Weights that Adam trains."""
        parameters = [parameter for module in self.modules().values() for parameter in module.parameters()]
        return [*parameters, *self.embedding.parameters()]

    def forward(self, epoch: int | None, batch: Batch | None = None) -> Tensor:
        """Logits of the common nodes, or of a batch's targets; ``epoch`` numbers dropout streams, None: evaluation."""
        if self._h0 is None:
            self._h0 = self.embedding.embed()
            if batch is not None:
                self._gradients = {party: torch.zeros_like(h0) for party, h0 in self._h0.items()}
        draws = {party: self._stream("dropout", party, epoch, batch) for party in self._streams}
        if batch is None:
            combined = self._combined(self._h0, draws)
        else:
            combined = self._combined_batch(self._h0, draws, epoch, batch)
        deep = self._cut(self.server.deep(combined, draws[SERVER]), self._label_party, deep=True)
        logits: Tensor = self.head(
            deep, self._label_adjacency, self._stream("head dropout", self._label_party, epoch, batch)
        )
        return logits

    def _stream(self, purpose: str, party: PartyId, epoch: int | None, batch: Batch | None) -> torch.Generator | None:
        if epoch is None:
            return None
        return self._streams[party].generator(purpose, *((epoch,) if batch is None else (epoch, batch.index)))

    def _combined(self, h0: Mapping[PartyId, Tensor], draws: Mapping[PartyId, torch.Generator | None]) -> Tensor:
        self._leaves = {party: leaf(rows) for party, rows in h0.items()}
        inputs = started = {
            party: network.start(self._leaves[party], draws[party]) for party, network in self.holders.items()
        }
        for round_ in range(1, self._rounds + 1):
            outputs = {}
            for party, network in self.holders.items():
                given = inputs[party], started[party], draws[party]
                outputs[party] = network.contribute(round_, *given)
            pieces = [piece for piece, _ in outputs.values()]
            combined = self.server.merge(pieces, self._weight_total).to(self._dtype)
            if round_ < self._rounds:
                inputs = {party: next_input(self._cut(combined, party), own) for party, (_, own) in outputs.items()}
        return combined

    def _combined_batch(
        self,
        h0: Mapping[PartyId, Tensor],
        draws: Mapping[PartyId, torch.Generator | None],
        epoch: int | None,
        batch: Batch,
    ) -> Tensor:
        self._leaves, self._around, pieces = {}, dict[PartyId, Tensor](), []
        for party, network in self.holders.items():
            neighbours = self._stream("neighbours", party, epoch, batch)
            assert neighbours is not None
            around = self._samplers[party].around(batch.rows, neighbours)
            self._around[party], self._leaves[party] = around.nodes, leaf(h0[party][around.nodes])
            started = network.start(self._leaves[party], draws[party])
            pieces.append(network.contribute_batch(started, around, batch.rows, draws[party]))
        return self.server.merge(pieces, None if self._weight_total is None else self._weight_total[batch.rows])

    def _cut(self, received: Tensor, party: PartyId, *, deep: bool = False) -> Tensor:
        """Pass on what a holder receives, unchanged; a subclass may alter it, or its gradient."""
        return received

    @override
    def train_step(self, epoch: int) -> float:
        """A forward and backward pass and an update, or one for each batch of an epoch; returns the mean loss."""
        return fmean(self._step(epoch, batch) for batch in training_batches(self.settings, self._nodes, epoch))

    def _step(self, epoch: int, batch: Batch | None) -> float:
        """Train on a batch, or on all nodes, once: forward, backward and update; returns the loss."""
        for parameter in self.trained():
            parameter.grad = None
        self.logits = self.forward(epoch, batch)
        loss = self._objective.training_loss(self.logits, None if batch is None else batch.rows)
        backward(loss)
        gradients = {party: gradient_of(h0) for party, h0 in self._leaves.items()}
        if batch is not None:
            for party, gradient in gradients.items():
                self._gradients[party].index_add_(0, self._around[party], gradient)
            gradients = {party: total / batch.period for party, total in self._gradients.items() if batch.period}
        if gradients:
            self.embedding.learn(gradients)
            self._h0 = None
        self.optimizer.step()
        return float(loss.detach())

    @override
    def infer(self) -> Tensor:
        with torch.no_grad():
            return self.forward(None)

    def infer_from(self, initial: Mapping[PartyId, Tensor]) -> Tensor:
        """Logits of the common nodes from given initial embeddings, holder → h^0 [N, d], not the network's own."""
        kept, self._h0 = self._h0, dict(initial)
        logits = self.infer()
        self._h0 = kept
        return logits

    @override
    def judged(self) -> Tensor:
        return self.infer()

    @override
    def score(self, logits: Tensor, *, everything: bool = False) -> Scores:
        return self._objective.score(logits, everything=everything)


def _build_embedding(
    settings: JobSettings, graphs: Sequence[PartyGraph], streams: dict[PartyId, LearningStreams], dtype: torch.dtype
) -> PlainEmbedding:
    job, common = vertical(settings), graphs[0].common
    initial, dim, bits = job.model.initial, job.model.dim, job.model.initial.feature_bits
    if not initial.is_joint:
        return PlainEmbedding(initial, {graph.party: graph.features for graph in graphs}, streams, dim, dtype)
    matrices = {graph.party: rows_between(graph.features, 0, common) for graph in graphs}
    if bits is None:
        bits = max(map(ring.fractional_bits, matrices.values())) if initial.method == "collaborative" else 0
    rows = {
        graph.party: rows_between(graph.features, common, graph.num_nodes)
        for graph in graphs
        if graph.num_nodes > common
    }
    return PlainEmbedding(initial, matrices, streams, dim, dtype, feature_bits=bits, own=rows)


def isolated(
    settings: JobSettings, graphs: Sequence[PartyGraph], party: PartyId, progress: Progress = lambda records: None
) -> PlainResult:
    """Train the job's network on one holder's own features and edges, with the labels (the paper's GraphSAGE_A)."""
    alone = holder_alone(graphs, party, settings.data.label_party)
    return fit(PlainNetwork(settings, [alone], party), progress)


def pooled(
    settings: JobSettings, graphs: Sequence[PartyGraph], progress: Progress = lambda records: None
) -> PlainResult:
    """Train the job's network on all holders' data about the common nodes, in one graph (GraphSAGE_{A+B})."""
    everything = pool(graphs, settings.data.label_party, relational=settings.inputs.is_relational)
    return fit(PlainNetwork(settings, [everything], everything.party), progress)
