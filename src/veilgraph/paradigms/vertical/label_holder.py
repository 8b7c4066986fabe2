"""The label holder: a data holder that also has the output layer, the loss and the judgement (VFGNN CG3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd import backward
from typing_extensions import override

from veilgraph.graph.party import PartyGraph, check_classes
from veilgraph.nn.head import OutputHead, build_head
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.vertical.data_holder import DataHolder
from veilgraph.paradigms.vertical.network import deep_width
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.privacy.local.publish_labels import LabelPublisher
from veilgraph.protocol.cut import gradient_of, leaf
from veilgraph.protocol.judge import Judge
from veilgraph.protocol.label_release import learned_graph
from veilgraph.protocol.resumption import Point, Start
from veilgraph.protocol.role import Session
from veilgraph.protocol.scores import Objective


class LabelHolder(DataHolder, Judge):
    """Holds labels and their split; neither is sent, but the gradient of z_L tells of them (docs/threat-model.md).

    With ``label_privacy`` it trains and chooses by labels that were perturbed once, before the first step.

    The joint network predicts the common nodes; labels of the holder's own nodes take no part.
    """

    def __init__(self, session: Session, graph: PartyGraph) -> None:
        super().__init__(session, graph)
        common = graph.common_part()
        self._objective = Objective(common, session.settings.train, session.dtype)
        self._common = common
        self._common_adjacency = self.adjacency if common is graph else Adjacency.from_graph(common, session.dtype)
        model = vertical(session.settings).model
        self._width = deep_width(model, len(session.holders))
        self._head: OutputHead = build_head(
            self._width, self._objective.classes, model.head, streams=session.streams, dtype=session.dtype
        ).to(session.device)

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        is_perturbed = self.session.settings.label_privacy is not None
        if self._learns and not is_perturbed:
            check_classes(self._common)
        start = super().setup(held)
        if self._learns and is_perturbed:
            self._objective = self._on_perturbed_labels()
        return start

    @override
    def _afford(self, *, begins: bool) -> tuple[int | None, str]:
        """A prediction learns from no label, and so perturbs none."""
        if isinstance(self.session.publisher, LabelPublisher) and not self._learns:
            return None, ""
        return super()._afford(begins=begins)

    def _on_perturbed_labels(self) -> Objective:
        """The loss and the judgement that others see anything of; test nodes, of which they do not, keep theirs."""
        learned, transition = learned_graph(self.session, self._common)
        return Objective(learned, self.session.settings.train, self.session.dtype, transition)

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        super().forward(step, epoch)
        batch, common = self.batch, self.graph.common
        rows = common if batch is None else len(batch.rows)
        self._deep = leaf(self._cut.combined(step, self._rounds, (rows, self._width)))
        logits = self._head(self._deep, self._common_adjacency, self.dropout(epoch, "head dropout")).cpu()
        if batch is None or epoch is not None:
            self.logits = logits
            return
        if batch.index == 0:
            self._inferred = torch.empty(common, logits.shape[1], dtype=logits.dtype)
        self._inferred[batch.rows] = logits
        self.logits = self._inferred

    @override
    def backward(self, step: int) -> None:
        rates = "train.learning_rate, model.initial.learning_rate or model.local.learning_rate"
        backward(self.training_loss(rates))
        self._cut.publish_deep_gradient(step, gradient_of(self._deep))
        super().backward(step)

    @override
    def _current_loss(self) -> Tensor:
        return self._objective.training_loss(self.logits, None if self.batch is None else self.batch.rows)

    @override
    def modules(self) -> dict[str, nn.Module]:
        return {**super().modules(), "head": self._head}
