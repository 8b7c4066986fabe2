from pathlib import Path
from typing import Any

import pytest

from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.report.training import draw_curves

PNG = b"\x89PNG"


def record(epoch: int, **more: Any) -> dict[str, Any]:
    return {"epoch": epoch, "step_seconds": 0.1, "loss": 2.0 / epoch, **more}


def evaluated(epoch: int, test_accuracy: float | None = 0.5) -> dict[str, Any]:
    return record(
        epoch, train_loss=1.0, val_loss=1.1, train_accuracy=0.7, val_accuracy=0.6, test_accuracy=test_accuracy
    )


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "metrics",
    [
        [evaluated(1), evaluated(2)],
        [record(1), evaluated(2), record(3), evaluated(4)],
        [evaluated(1, None), evaluated(2, None)],
        [evaluated(1)],
        [],
    ],
    ids=["every epoch", "some epochs", "no test nodes", "one epoch", "nothing yet"],
)
def test_a_picture_is_written(metrics: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    draw_curves(metrics, path, {"A alone": 0.4}, title="job", best_epoch=1)
    assert path.read_bytes()[:4] == PNG
    assert [found.name for found in tmp_path.iterdir()] == ["curves.png"]


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused(RunError, key=tmp_path / "none" / "curves.png"):
        draw_curves([evaluated(1)], tmp_path / "none" / "curves.png")
