"""The seam of rules: what differs from one kind of federated averaging to another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from veilgraph.core.settings import Settings


class Rule(ABC):
    """One kind of averaging, at a holder and at the server.

    Attributes:
        words: what the server makes of the holders' mean, in a sentence.
        sends_gradients: whether a holder gives its gradient in place of how its weights have changed.
    """

    words: ClassVar[str]
    sends_gradients: ClassVar[bool] = False

    def local_loss(self, loss: Tensor, weights: Sequence[Tensor], start: Sequence[Tensor]) -> Tensor:
        """What a holder trains for.

        Args:
            loss: mean cross-entropy of its training nodes.
            weights: as they are in this local epoch.
            start: as the server sent them.
        """
        return loss

    @abstractmethod
    def step(self, weights: Tensor, mean: Tensor) -> Tensor:
        """The server's next weights.

        Args:
            weights: Tensor[W] float64, as the holders had them.
            mean: Tensor[W] float64, of the holders' changes or gradients, weighted by their training nodes.
        """

    def state(self) -> dict[str, Tensor]:
        """What the server keeps from round to round, live."""
        return {}


class RuleSettings(Settings):
    """Which rule, and what it needs."""

    def build(self, size: int, learning_rate: float) -> Rule:
        """The rule, for ``size`` weights and the job's ``train.learning_rate``."""
        raise NotImplementedError
