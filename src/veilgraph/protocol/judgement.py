"""Early stopping and the choice of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from veilgraph.protocol.figures import LAST, Judged
from veilgraph.protocol.job import TrainSettings


@dataclass(frozen=True)
class Judgement:
    """Early stopping: the best evaluation so far and how many have passed since.

    ``best_score`` is what the best epoch is chosen by, higher is better.
    """

    best_epoch: int = 0
    best_score: float = -float("inf")
    best_loss: float = float("inf")
    since_best: int = 0

    def after(self, epoch: int, scores: Judged, select_by: str = "accuracy") -> Judgement:
        """The judgement with one more evaluation: the higher score wins, then the lower validation loss."""
        if select_by == LAST:
            return Judgement(epoch, 0.0, scores.val_loss)
        score = scores.selection(select_by)
        if (score, -scores.val_loss) > (self.best_score, -self.best_loss):
            return Judgement(epoch, score, scores.val_loss)
        return replace(self, since_best=self.since_best + 1)

    def stops(self, settings: TrainSettings) -> bool:
        """Whether patience is used up."""
        return settings.patience is not None and self.since_best >= settings.patience
