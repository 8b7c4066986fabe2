"""LPGNN's learning on one machine: a server, which knows the graph, trains on what nodes released."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd import backward
from veilgraph_node_dp.learner import KPropNetworks, LabelDenoising, neighbour_adjacency
from veilgraph_node_dp.mechanisms import AffineFeatures
from veilgraph_node_dp.settings import DenoiseSettings, KPropSettings

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.layers import Adam
from veilgraph.protocol.figures import Scores
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.judge import Objective
from veilgraph.protocol.plain_fitting import Network


@dataclass(frozen=True, eq=False)
class NoisyLabels:
    """Labels as a server has them after randomised response.

    Attributes:
        labels: Tensor[N] int64, read for training and validation nodes.
        transition: Tensor[c, c], P(released label = j | true label = i).
        settings: how to learn from them.
    """

    labels: Tensor
    transition: Tensor
    settings: DenoiseSettings


class LocalPrivateNetwork(Network):
    """A server's network and its training.

    With private labels the epoch is chosen by the released labels of the validation nodes and by log p(y'|x); a true
    label is read of test nodes alone.

    Args:
        labels: None: those of ``graph``.

    Raises:
        ConfigError: ``train.class_weights`` is ``balanced`` with private labels, whose classes' shares are not known.
        DataError: there are no labels or masks, or numbers of nodes or classes differ.

    Attributes:
        train_settings: of the training.
        network: the weights, of one network for each K that settings try.
    """

    def __init__(
        self,
        settings: KPropSettings,
        train: TrainSettings,
        graph: PartyGraph,
        features: AffineFeatures,
        labels: NoisyLabels | None = None,
        *,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if len(features.values) != graph.num_nodes:
            raise DataError(
                f"features: {len(features.values)} rows for a graph of {graph.num_nodes} nodes; give one row per node"
            )
        self.train_settings = train
        self._denoising = None
        if labels is not None:
            graph, self._denoising = _denoised(settings, train, graph, labels, dtype)
        self._train, self._test = graph.train_mask, graph.test_mask
        self._objective = Objective(graph, train, dtype)
        self._streams = LearningStreams(seed, SERVER)
        self.network = KPropNetworks(settings, features, graph, self._objective, streams=self._streams, dtype=dtype)
        self._optimizer = Adam(self.network.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay)

    def train_step(self, epoch: int) -> float:
        """One forward and backward pass and one update; returns the training loss."""
        self._optimizer.zero_grad()
        each = self.network(lambda: self._streams.generator("dropout", epoch))
        if self._denoising is None or self._train is None:
            losses = [self._objective.training_loss(logits) for logits in each]
        else:
            losses = [self._denoising.loss(logits, self._train) for logits in each]
        loss = torch.stack(losses).sum()
        backward(loss)
        self._optimizer.step()
        return float(loss.detach()) / len(each)

    def infer(self) -> Tensor:
        """Logits of every node's true class, Tensor[N, c], without dropout and without a graph."""
        with torch.no_grad():
            each: list[Tensor] = self.network(lambda: None)
            judged = each if self._denoising is None else [self._denoising.scores(logits) for logits in each]
            self.network.choose(judged)
            return each[int(self.network.chosen)]

    def score(self, logits: Tensor, *, everything: bool = False) -> Scores:
        """How logits do on each split; with private labels on the released ones, but for test nodes."""
        if self._denoising is not None:
            released = self._denoising.scores(logits)
            logits = released if self._test is None else torch.where(self._test.unsqueeze(1), logits, released)
        return self._objective.score(logits, everything=everything)


def _denoised(
    settings: KPropSettings, train: TrainSettings, graph: PartyGraph, labels: NoisyLabels, dtype: torch.dtype
) -> tuple[PartyGraph, LabelDenoising]:
    """The graph with the labels that may be looked at, and the loss on the released ones."""
    if train.class_weights != "none":
        raise ConfigError(
            f"train.class_weights={train.class_weights!r} needs the true labels' shares, and labels are private; set "
            "it to none"
        )
    true, train_mask, val_mask = graph.labels, graph.train_mask, graph.val_mask
    if true is None or train_mask is None or val_mask is None:
        raise DataError(
            f"party {graph.party!r}: labels: they or masks are missing; give the split and the test nodes' labels"
        )
    if labels.labels.shape != true.shape or len(labels.transition) != graph.num_classes:
        raise DataError(
            f"labels: {len(labels.labels)} of {len(labels.transition)} classes for a graph of {graph.num_nodes} nodes "
            f"and {graph.num_classes} classes; they must be the same"
        )
    known = train_mask | val_mask
    adjacency = neighbour_adjacency(graph, settings.aggregate, dtype)
    denoising = LabelDenoising(labels.labels, known, labels.transition, labels.settings, adjacency)
    return replace(graph, labels=torch.where(known, labels.labels, true)), denoising
