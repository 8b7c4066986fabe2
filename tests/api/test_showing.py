"""What a notebook shows of a run: tables and a picture."""

import io
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import veilgraph as vg
from tests.errors import refused
from veilgraph.api import runs
from veilgraph.core.arguments import WRONG_TYPE
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.report.training import draw_curves
from veilgraph.runtime.store import results as comparing
from veilgraph.runtime.store.run_directory import RunDirectory

SETTINGS: dict[str, Any] = {
    "name": "small",
    "data": {"dataset": "synthetic"},
    "model": {"dim": 4},
    "train": {"epochs": 2, "patience": None},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> vg.Run:
    return vg.fit(SETTINGS, out=tmp_path_factory.mktemp("showing") / "<b>run & more")


@pytest.fixture
def cut_off(tmp_path: Path) -> vg.Run:
    run = vg.fit(SETTINGS, out=tmp_path / "run")
    (run.path / "summary.json").unlink()
    return run


class Cells(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def cells(html: str) -> Cells:
    found = Cells()
    found.feed(html)
    return found


def test_a_comparison_is_a_table_of_all_trainings(run: vg.Run) -> None:
    compared = run.compare()
    table = run.comparison
    assert table.index.name == "training"
    assert list(table.index) == ["A alone", "B alone", "federated", "pooled"]
    for name, summary in compared.summaries().items():
        assert table.loc[name, "test_accuracy"] == summary["test_accuracy"]
        assert table.loc[name, "best_epoch"] == summary["best_epoch"]
    assert "sent_bytes" not in table.columns


def test_a_comparison_trains_once(run: vg.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = vg.load_run(run.path)
    made = []
    compare = comparing.compare

    def noted(directory: RunDirectory) -> comparing.Comparison:
        made.append(1)
        return compare(directory)

    monkeypatch.setattr(runs, "compare", noted)
    assert fresh.comparison.equals(fresh.comparison)
    assert len(made) == 1
    fresh.compare()
    assert len(made) == 2


def test_a_comparison_of_half_a_run_is_refused(cut_off: vg.Run) -> None:
    with refused(RunError, key=cut_off.path):
        _ = cut_off.comparison
    assert cut_off.history.index.tolist() == [1, 2]


def test_a_notebook_shows_a_run_with_everything_escaped(run: vg.Run) -> None:
    found = cells(run._repr_html_())
    assert found.tags == {"table", "caption", "tbody", "tr", "th", "td"}
    assert str(run.path) in found.text
    assert "small (vertical)" in found.text
    assert f"{100 * run.metrics['test_accuracy']:.1f} %" in found.text
    assert {"sent by A", "sent by B", "sent by server"} <= set(found.text)


def test_a_picture_is_that_of_the_curves(run: vg.Run, tmp_path: Path) -> None:
    figure = run.plot()
    assert isinstance(figure, Figure)
    loss, accuracy = figure.axes
    assert [axes.get_title() for axes in (loss, accuracy)] == ["Loss", "Accuracy"]
    lines = {str(line.get_label()): line for line in loss.get_lines()}
    assert np.asarray(lines["training"].get_ydata()).tolist() == [record["train_loss"] for record in run.epochs]
    assert f"kept: epoch {run.metrics['best_epoch']}" in lines
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    draw_curves(run.epochs, tmp_path / "curves.png", title="small", best_epoch=run.metrics["best_epoch"])
    assert (tmp_path / "curves.png").read_bytes() == picture.getvalue()


def test_a_picture_has_a_line_for_what_is_compared(run: vg.Run) -> None:
    compared = run.compare()
    labels = run.plot(compared).axes[1].get_legend_handles_labels()[1]
    assert sum(label.startswith(("A alone, test", "B alone, test", "pooled, test")) for label in labels) == 3
    with refused(ConfigError, code=WRONG_TYPE, key="compared", value="pandas.DataFrame"):
        run.plot(run.comparison)
