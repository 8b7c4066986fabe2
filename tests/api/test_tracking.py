"""Epochs in TensorBoard and MLflow; stand-ins of the two, as far as they are called, for neither is needed to test."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

import veilgraph as vg
from tests.errors import refused

JOB = {"model": {"dim": 4}, "train": {"epochs": 3, "patience": None}, "data": {"dataset": "synthetic"}}
Logged = list[tuple[str, float, int]]


class Writer:
    """Of ``torch.utils.tensorboard``."""

    logged: Logged
    folders: list[str]
    flushed: list[int]

    def __init__(self, folder: str) -> None:
        self.folders.append(folder)

    def flush(self) -> None:
        self.flushed.append(len(self.logged))

    def add_scalar(self, name: str, value: float, epoch: int) -> None:
        self.logged.append((name, value, epoch))


def test_every_epochs_figures_are_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Writer.logged, Writer.folders, Writer.flushed = [], [], []
    board = ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    tool, metrics = ModuleType("mlflow"), list[tuple[dict[str, float], int]]()
    tool.log_metrics = lambda figures, step: metrics.append((figures, step))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", tool)
    notes = [vg.tracking.tensorboard(tmp_path / "board"), vg.tracking.mlflow()]

    def both(record: dict[str, object]) -> None:
        for note in notes:
            note(record)

    run = vg.fit(JOB, out=tmp_path / "run", on_epoch=both)
    figures = {name for name in run.history.columns if name != "epoch"}
    assert [step for _, step in metrics] == [1, 2, 3]
    assert all(set(told) == figures for told, _ in metrics)
    assert {(name, value, step) for told, step in metrics for name, value in told.items()} == set(Writer.logged)
    assert Writer.folders == [str(tmp_path / "board")]
    assert Writer.flushed == [len(figures) * epoch for epoch in (1, 2, 3)], "after every epoch"
    assert [told["val_accuracy"] for told, _ in metrics] == list(run.history["val_accuracy"])


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")])
def test_without_the_tool_it_says_what_to_install(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with refused(vg.VeilgraphError, key=f"tracking.{name}") as caught:
        vg.tracking.tensorboard(tmp_path / "board") if name == "tensorboard" else vg.tracking.mlflow()
    assert f"pip install {name}" in str(caught.value)
    assert not (tmp_path / "board").exists()
