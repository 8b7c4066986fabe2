"""The horizontal network in one process, by ordinary autograd, with nothing hidden; and its baselines.

With all holders' parts it is the plaintext twin of the federated job. With one part that is the combined graph it is
the pooled model, which the federation's result must equal. In float64 it does to about 1e-12 after 50 steps; in float32
a node's sum h + m may round alike for two neighbours, whose gradient then goes to either, and Adam makes much of that
where gradients are tiny.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd import backward

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import MASKS, SERVER, PartyId
from veilgraph.graph.features import choose_rows
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import HorizontalPart, pool_parts, positions, without_duplicates
from veilgraph.mpc.mask import plain_sum
from veilgraph.nn.layers import Adam
from veilgraph.nn.propagate import Adjacency, FixedInput
from veilgraph.paradigms.horizontal.network import LayeredHolder, LayeredServer, total
from veilgraph.paradigms.horizontal.node_lists import SHARED
from veilgraph.paradigms.horizontal.settings import HorizontalJob, HorizontalSettings
from veilgraph.paradigms.horizontal.tally import LearntSettings, build_task
from veilgraph.protocol.figures import Scores
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.judge import Objective, Predicted
from veilgraph.protocol.plain_fitting import Network, PlainResult, Progress, fit
from veilgraph.protocol.role import precision


def counted_parts(settings: HorizontalSettings, parts: Sequence[HorizontalPart]) -> Sequence[HorizontalPart]:
    """Return the parts; with ``edges: deduplicate``, each edge only at the first part that has it."""
    return without_duplicates(parts) if settings.edges == "deduplicate" else parts


class LayeredNetwork(Network):
    """All parties of a horizontal job in one process: its plaintext twin, which trains and infers.

    ``transition`` is Tensor[C, C] float64, P(label = j | true label = i), of perturbed labels; ``task`` is by default
    classes. ``holder`` has the local weights, ``server`` the global ones; ``embeddings`` are h^(2), …, h^(L+1) of the
    last pass. Raises ``DataError``: nobody has labels, or columns or classes differ.
    """

    def __init__(
        self,
        settings: HorizontalSettings,
        train: TrainSettings,
        parts: Sequence[HorizontalPart],
        *,
        seed: int,
        dtype: torch.dtype = torch.float32,
        transition: Tensor | None = None,
        task: LearntSettings | None = None,
    ) -> None:
        self.train_settings = train
        parts = counted_parts(settings, parts)
        pooled, learnt = pool_parts(parts).graph, task or LearntSettings()
        outputs = learnt.outputs(pooled)
        if not outputs:
            raise DataError(
                f"holders: none has {learnt.answers}, and training needs some; give {learnt.answers} to one"
            )
        self._num_nodes = pooled.num_nodes
        _, self._rows = positions(parts)
        self._features = [FixedInput(part.graph.features, dtype) for part in parts]
        self._adjacencies = [Adjacency.from_graph(part.graph, dtype) for part in parts]
        degrees = [adjacency.degrees.unsqueeze(1) for adjacency in self._adjacencies]
        self._degrees = total(degrees, self._rows, self._num_nodes)
        self._streams = LearningStreams(seed, SERVER)
        columns, shared = pooled.num_features, LearningStreams(seed, SHARED)
        self.holder = LayeredHolder(settings, columns, outputs, shared, dtype, pooled.num_edge_features)
        balanced = train.class_weights == "balanced"
        self._task = build_task(learnt, self.holder, outputs, transition, balanced=balanced)
        self._graphs = [part.graph for part in parts]
        self.server = LayeredServer(settings, columns, self._streams, dtype)
        self._examples = sum(map(self._task.examples, self._graphs))
        self.holder.gather(
            self._task.sums_before,
            lambda _, known: plain_sum([self._task.gathered(graph, known) for graph in self._graphs]),
        )
        self._pooled = pooled
        self._judge = None if learnt.is_values else Objective(pooled, train, dtype, transition)
        self.optimizer = Adam(self.trained(), lr=train.learning_rate, weight_decay=train.weight_decay)
        self.embeddings: list[Tensor] = []

    def modules(self) -> dict[str, nn.Module]:
        """The shared local weights and the server's, by name."""
        return {"holder": self.holder, "server": self.server}

    def trained(self) -> list[nn.Parameter]:
        """Weights that Adam trains."""
        return [parameter for module in self.modules().values() for parameter in module.parameters()]

    def forward(self, epoch: int | None) -> Tensor:
        """Compute h^(L+1) of all nodes, Tensor[N, width]; ``epoch`` numbers dropout streams, None is evaluation."""
        generator = None if epoch is None else self._streams.generator("dropout", epoch)
        inputs: Sequence[Tensor | FixedInput] = self._features
        self.embeddings = []
        for index in range(len(self.server.layers)):
            aggregate = self.server.aggregated(index, partial(self._aggregate_layer, index, inputs))
            self.embeddings.append(self.server.layer(index).update(aggregate, generator))
            inputs = [self.embeddings[-1][at] for at in self._rows]
        return self.embeddings[-1]

    def _aggregate_layer(self, index: int, inputs: Sequence[Tensor | FixedInput]) -> Tensor:
        local = self.holder.layer(index)
        pieces = [local(h, adjacency) for h, adjacency in zip(inputs, self._adjacencies, strict=True)]
        return self.server.layer(index).combine(pieces, self._rows, self._num_nodes, self._degrees)

    def train_step(self, epoch: int) -> float:
        """Make one forward and backward pass and one update; returns the sum of the holders' losses (eq. 16)."""
        for parameter in self.trained():
            parameter.grad = None
        embedding = self.forward(epoch)
        losses = [
            self._task.loss(graph, self.holder.predict(embedding[at])) / self._examples
            for graph, at in zip(self._graphs, self._rows, strict=True)
            if self._task.examples(graph)
        ]
        loss = torch.stack(losses).sum()
        backward(loss)
        self.optimizer.step()
        return float(loss.detach())

    def infer(self) -> Tensor:
        """Logits of all nodes, Tensor[N, C], without dropout and gradients."""
        with torch.no_grad():
            logits: Tensor = self.holder.predict(self.forward(None))
            return logits

    def predictions(self) -> Predicted:
        """Evaluate, and return probabilities or values of all nodes, as the holders would have them."""
        return self._task.predictions(self.infer())

    def score(self, logits: Tensor, *, everything: bool = False) -> Scores:
        """Score logits, or values, of all N nodes on every split of the pooled graph, as ``Objective.score``."""
        if self._judge is None:
            return self._task.scores(self._task.tally(self._pooled, logits))
        return self._judge.score(logits, everything=everything)


def alone(job: HorizontalJob, part: HorizontalPart, progress: Progress) -> PlainResult | None:
    """Train the job's network on one holder's part (SAPGNN 5.2, SP), scored on its own nodes; None without answers."""
    return _fit(job, part, progress) if job.horizontal.task.outputs(part.graph) else None


def pooled(job: HorizontalJob, parts: Sequence[HorizontalPart], progress: Progress) -> PlainResult:
    """Train the job's network on the combined graph of all parts; the federation's result equals it."""
    return _fit(job, pool_parts(counted_parts(job.model, parts)), progress)


def parts_of(graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> list[HorizontalPart]:
    """Return holders' graphs with their nodes' places among all, by id; nodes are reordered by place."""
    places = places_of(ids)
    return [_sorted_part(graph, places[graph.party]) for graph in graphs]


def places_of(ids: Mapping[PartyId, Sequence[str]]) -> dict[PartyId, torch.Tensor]:
    """Holder → place of each of its nodes among all distinct ids in sorted order: Tensor[N_p] int64."""
    places = {name: place for place, name in enumerate(sorted({name for each in ids.values() for name in each}))}
    return {party: torch.tensor([places[name] for name in each]) for party, each in ids.items()}


def _sorted_part(graph: PartyGraph, places: torch.Tensor) -> HorizontalPart:
    """Reorder a holder's nodes by their places, and return them as a part with sorted places as ids."""
    order = places.argsort()
    given = {name: getattr(graph, name) for name in ("labels", "targets", *MASKS) if getattr(graph, name) is not None}
    moved = replace(
        graph,
        features=choose_rows(graph.features, order),
        edge_index=order.argsort()[graph.edge_index],
        **{name: values[order] for name, values in given.items()},
    )
    return HorizontalPart(moved, places[order])


def _fit(job: HorizontalJob, part: HorizontalPart, progress: Progress) -> PlainResult:
    task = job.horizontal.task
    return fit(LayeredNetwork(job.model, job.train, [part], seed=job.seed, dtype=precision(job), task=task), progress)
