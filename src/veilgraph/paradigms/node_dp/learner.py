"""The roles of LPGNN once everything is released: the label holder learns, and the others have nothing left to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn
from torch.autograd import backward
from typing_extensions import override

from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph, check_classes
from veilgraph.nn.calibration import Calibration
from veilgraph.paradigms.node_dp.denoise import LabelDenoising
from veilgraph.paradigms.node_dp.kprop import KPropNetwork, neighbour_adjacency
from veilgraph.paradigms.node_dp.settings import KPropSettings, node_dp
from veilgraph.privacy.local.affine import AffineFeatures
from veilgraph.privacy.local.labels import LabelResponse
from veilgraph.protocol.judge import Judge
from veilgraph.protocol.label_release import ReleasedLabels
from veilgraph.protocol.resumption import Point, Start, alone
from veilgraph.protocol.role import IdleRole, Session
from veilgraph.protocol.scores import Objective, Scores


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
        graph: its own data, validated.
        features: of the C common nodes, block by block: its own, and what the other holders released.
        labels: what was released of another holder's labels; None where it has labels itself.
        model: of its network; None: the job's.
    """

    def __init__(
        self,
        session: Session,
        graph: PartyGraph,
        features: Sequence[AffineFeatures],
        labels: ReleasedLabels | None,
        model: KPropSettings | None = None,
    ) -> None:
        super().__init__(session)
        graph.validate()
        settings, dtype = node_dp(session.settings), session.dtype
        private = settings.label_release
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

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        """It alone has checkpoints: the others hold none."""
        if self._learns:
            check_classes(self.graph)
        return alone(held, self.session.nonce())

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        self.logits = self._network(self.dropout(epoch))

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

    @override
    def audience(self) -> list[PartyId]:
        """Nobody: the others are done."""
        return []

    @override
    def modules(self) -> dict[str, nn.Module]:
        return {"network": self._network}


def own_features(graph: PartyGraph) -> AffineFeatures:
    """The learner's own columns of the common nodes, as they are: Tensor[C, F]."""
    return AffineFeatures(graph.common_part().features)
