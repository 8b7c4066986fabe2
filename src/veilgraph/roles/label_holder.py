"""The label holder: a data holder that also has the output layer, the loss and the judgement (VFGNN CG3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd import backward
from torch.nn import functional
from typing_extensions import override

from veilgraph.core.errors import DataError, RangeOverflow
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.head import Head, build_head
from veilgraph.nn.network import CustomModel, deep_width
from veilgraph.roles.cut import leaf
from veilgraph.roles.data_holder import DataHolder, gradient_of
from veilgraph.roles.role import Session


@dataclass(frozen=True)
class Scores:
    """How well logits fit the labels on each split; accuracies in [0, 1], None where the split is empty."""

    train_loss: float
    val_loss: float
    train_accuracy: float
    val_accuracy: float
    test_accuracy: float | None


class LabelHolder(DataHolder):
    """Holds labels and their split; neither is sent, but the gradient of z_L tells of them (docs/threat-model.md)."""

    def __init__(self, session: Session, graph: PartyGraph, custom: CustomModel | None = None) -> None:
        super().__init__(session, graph, custom)
        self._labels = require_labels(graph)
        model = session.settings.model
        self._width = deep_width(model, len(session.holders))
        classes = graph.num_classes or int(self._labels.max()) + 1
        self._head: Head = build_head(self._width, classes, model.head, streams=session.streams, dtype=session.dtype)
        self.logits: Tensor
        self.loss: float

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        super().forward(step, epoch)
        shape = (self.graph.num_nodes, self._width)
        self._deep = leaf(self._cut.combined(step, self._rounds, shape))
        generator = None if epoch is None else self.session.streams.generator("head dropout", epoch)
        self.logits = self._head(self._deep, self.adjacency, generator)

    @override
    def backward(self, step: int) -> None:
        loss = training_loss(self.logits, self.graph)
        self.loss = float(loss.detach())
        if not math.isfinite(self.loss):
            raise RangeOverflow(
                f"the training loss is {self.loss}: training has diverged; lower train.learning_rate, "
                "model.initial.learning_rate or model.local.learning_rate"
            )
        backward(loss)
        self._cut.publish_deep_gradient(step, gradient_of(self._deep))
        super().backward(step)

    def scores(self) -> Scores:
        """How the logits of the last forward pass do on each split."""
        return score(self.logits.detach(), self.graph)

    @override
    def modules(self) -> dict[str, nn.Module]:
        return {**super().modules(), "head": self._head}


def require_labels(graph: PartyGraph) -> Tensor:
    """The labels of a graph that must have them.

    Raises:
        DataError: it has none.
    """
    if graph.labels is None or graph.train_mask is None or graph.val_mask is None:
        raise DataError(f"{graph.party} is the label holder but has no labels or no train and validation masks")
    return graph.labels


def training_loss(logits: Tensor, graph: PartyGraph) -> Tensor:
    """Mean cross-entropy over the labelled training nodes."""
    labels = require_labels(graph)
    return functional.cross_entropy(logits[graph.train_mask], labels[graph.train_mask])


def score(logits: Tensor, graph: PartyGraph) -> Scores:
    """Loss and accuracy of logits [N, C] on the splits of a label holder's graph."""
    labels = require_labels(graph)
    correct = logits.argmax(dim=1) == labels

    def accuracy(mask: Tensor | None) -> float | None:
        if mask is None or not bool(mask.any()):
            return None
        return float(correct[mask].to(torch.float64).mean())

    def loss(mask: Tensor) -> float:
        return float(functional.cross_entropy(logits[mask], labels[mask]))

    train, val = graph.train_mask, graph.val_mask
    if train is None or val is None:
        raise DataError(f"{graph.party} is the label holder but lacks a train or validation mask")
    return Scores(loss(train), loss(val), accuracy(train) or 0.0, accuracy(val) or 0.0, accuracy(graph.test_mask))
