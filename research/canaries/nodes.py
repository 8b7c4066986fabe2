"""What nodes perturb themselves, through its publishers: features, between the ends of their range, and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override
from veilgraph_node_dp.feature_settings import FeatureReleaseSettings
from veilgraph_node_dp.mechanisms import FeatureMechanism, feature_mechanism
from veilgraph_node_dp.publisher import LocalPublisher

from research.canaries.game import DELTA, Game, Played, paying
from veilgraph.core.secrets import system_secrets
from veilgraph.privacy.label_publisher import LabelPublisher
from veilgraph.privacy.randomised_response import LabelResponse

LOW, HIGH = -1.0, 3.0
CLASSES = 3


@dataclass(frozen=True)
class Features(Game):
    """All features of a node, each as high as the range allows, or as low; and its label, where that is released.

    Attributes:
        mechanism: of ``release.features``.
        columns: d.
        labelled: whether the label is released too, with the same ε, so that both together cost twice as much.
    """

    delta: float = 0.0
    mechanism: str = "multi-bit"
    columns: int = 3
    labelled: bool = False
    gaussian: ClassVar[bool] = False

    @override
    def play(self, coins: Tensor) -> Played:
        x = torch.where(coins, HIGH, LOW).to(torch.float64)[:, None].expand(-1, self.columns)
        mechanism, response = self._made(), LabelResponse(self.epsilon, CLASSES) if self.labelled else None
        with paying(self.delta) as ledger:
            door = LocalPublisher(mechanism, response, ledger, system_secrets)
            scores = self._scores(door.features(x).to_dense().to(torch.float64))
            if self.labelled:
                labels = door.labels((~coins).to(torch.int64))
                scores += self.epsilon * ((labels == 0).to(torch.float64) - (labels == 1).to(torch.float64))
            return Played(scores, door.spent().epsilon_total)

    def _made(self) -> FeatureMechanism:
        said = {"mechanism": self.mechanism, "epsilon": self.epsilon, "low": LOW, "high": HIGH}
        return feature_mechanism(
            FeatureReleaseSettings.model_validate(said | ({"delta": self.delta} if self.delta else {})), self.columns
        )

    def _scores(self, released: Tensor) -> Tensor:
        """The likelihood ratio; for bits and Gaussian noise up to a factor."""
        if self.mechanism == "laplace":
            away = (released - LOW).abs() - (released - HIGH).abs()
            return away.sum(1) * self.epsilon / (HIGH - LOW) / self.columns
        if self.mechanism == "gaussian":
            return released.sum(1)
        bits = (released != 0).sum(1).clamp_min(1)
        return released.sum(1) * self.epsilon / bits


@dataclass(frozen=True)
class GaussianFeatures(Features):
    """The same with Gaussian noise, which has a δ."""

    delta: float = DELTA
    mechanism: str = "gaussian"
    gaussian: ClassVar[bool] = True


@dataclass(frozen=True)
class Labels(Game):
    """A label, one of two of the classes, that the label holder of a vertical job learns from."""

    delta: float = 0.0
    gaussian: ClassVar[bool] = False

    @override
    def play(self, coins: Tensor) -> Played:
        response, labels = LabelResponse(self.epsilon, CLASSES), (~coins).to(torch.int64)
        with paying(self.delta) as ledger:
            door = LabelPublisher(response, labels, ledger, system_secrets)
            found = door.perturbed()
            return Played((found == 0).to(torch.float64) - (found == 1).to(torch.float64), door.spent().epsilon_total)
