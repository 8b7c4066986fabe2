"""The training loop, with a network that does what a script says."""

import pytest
import torch
from torch import Tensor

from veilgraph.protocol.figures import CLASS_MEASURES, Scores
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.plain_fitting import fit

VAL_ACCURACY = [0.2, 0.6, 0.5, 0.7, 0.4, 0.4, 0.9]


class Scripted:
    """Logits are the number of steps done; the scores after step e are those of ``VAL_ACCURACY[e - 1]``.

    Args:
        behind: how many steps the logits that are judged lag behind the weights, as those of a training pass do.
    """

    def __init__(self, train_settings: TrainSettings, behind: int = 0) -> None:
        self.train_settings = train_settings
        self.passes: list[str] = []
        self._behind, self._steps = behind, 0

    def train_step(self, epoch: int) -> float:
        self._steps += 1
        assert epoch == self._steps
        return float(epoch)

    def infer(self) -> Tensor:
        self.passes.append(f"after {self._steps}")
        return torch.tensor(self._steps)

    def judged(self) -> Tensor:
        return torch.tensor(self._steps - self._behind) if self._behind else self.infer()

    def score(self, logits: Tensor, *, everything: bool = False) -> Scores:
        after = int(logits)
        accuracy = VAL_ACCURACY[after - 1] if after else 0.0
        values = dict.fromkeys(("train_accuracy", "val_accuracy", "test_accuracy"), accuracy)
        return Scores(CLASS_MEASURES, 1.0, 1.0, {**values, **({"test_f1": after} if everything else {})})


@pytest.mark.parametrize(
    ("settings", "epochs", "best"),
    [
        ({"epochs": 7, "patience": None}, 7, 7),
        ({"epochs": 6, "patience": None}, 6, 4),
        ({"epochs": 7, "patience": 1}, 3, 2),
        ({"epochs": 7, "patience": 2}, 6, 4),
        ({"epochs": 7, "patience": 1, "evaluate_every": 3}, 6, 3),
        ({"epochs": 5, "patience": None, "select_by": "last"}, 5, 5),
    ],
)
def test_the_chosen_epochs_scores_are_the_runs(settings: dict[str, object], epochs: int, best: int) -> None:
    network = Scripted(TrainSettings.model_validate(settings))
    result = fit(network)
    assert [record["loss"] for record in result.metrics] == list(range(1, epochs + 1))
    every = network.train_settings.evaluate_every
    judged = [record["epoch"] for record in result.metrics if "val_accuracy" in record]
    assert judged == [epoch for epoch in range(1, epochs + 1) if epoch % every == 0 or epoch == 7]
    assert result.summary["best_epoch"] == best
    assert result.summary["test_f1"] == best, "AUC and F1 of the chosen epoch, not of the last"
    assert result.summary["test_accuracy"] == VAL_ACCURACY[best - 1]


def test_where_a_pass_costs_the_last_update_still_counts() -> None:
    network = Scripted(TrainSettings(epochs=3, patience=None, select_by="last"), behind=1)
    result = fit(network)
    assert [record["val_accuracy"] for record in result.metrics] == [0.0, *VAL_ACCURACY[:2]]
    assert result.summary["test_accuracy"] == VAL_ACCURACY[2]
    assert network.passes == ["after 0", "after 3"], "none for an evaluation alone"
