"""The public face of runs: what is trained, asked and found again through ``veilgraph`` alone."""

import io
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch_geometric.data import Data

import veilgraph as vg
from tests import nightly
from tests.errors import refused
from veilgraph.core.arguments import WRONG_TYPE
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.report.training import Picture, draw_curves
from veilgraph.runtime.store.results import read_compared
from veilgraph.runtime.store.run_directory import RunDirectory

SETTINGS: dict[str, object] = {
    "name": "small",
    "data": {"dataset": "synthetic"},
    "model": {"dim": 4},
    "train": {"epochs": 2, "patience": None},
}
BARE = {key: value for key, value in SETTINGS.items() if key != "data"}
"""Of holders that bring their own."""
HORIZONTAL: dict[str, object] = {"paradigm": "horizontal", "train": {"epochs": 2, "patience": None}}


@pytest.fixture(scope="module")
def whole() -> Data:
    return vg.datasets.load("synthetic", seed=3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> vg.Run:
    return vg.fit(SETTINGS, out=tmp_path_factory.mktemp("fit") / "<b>run & more", record_views=True)


def test_a_run_says_what_it_reached(run: vg.Run) -> None:
    assert run.job == vg.Job(**SETTINGS)
    assert run.metrics["test_accuracy"] == vg.load_run(run.path).metrics["test_accuracy"]
    assert [record["epoch"] for record in run.epochs] == [1, 2]
    assert run.history.index.tolist() == [1, 2]
    assert run.history["loss"].tolist() == [record["loss"] for record in run.epochs]
    assert repr(run) == f"Run('{run.path}'): small, test accuracy {run.metrics['test_accuracy']:.3f}"


def test_a_run_predicts(run: vg.Run) -> None:
    some = run.predict([5, 1])
    assert torch.equal(some.classes, run.predictions.classes[[5, 1]])
    assert torch.equal(some.probabilities, run.predictions.probabilities[[5, 1]])


def test_a_run_is_compared_audited_and_reported(run: vg.Run, tmp_path: Path) -> None:
    compared = run.compare()
    assert list(compared.summaries()) == ["A alone", "B alone", "federated", "pooled"]
    assert compared.federated == run.metrics
    assert read_compared(RunDirectory.open(run.path)) == compared.summaries()
    assert {"federated"} == set(compared.summaries()) - set(compared.references())
    found = run.audit(adversaries=["server"], attacks=["label-gradient"])
    assert {finding.attack for finding in found.findings} == {"label-gradient"}
    assert run.report() == run.path / "report.html"
    assert run.report(tmp_path / "page.html").read_bytes() == (run.path / "report.html").read_bytes()


def test_without_a_place_a_run_is_kept_under_its_name_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [vg.fit(SETTINGS) for _ in range(2)]
    assert len({run.path for run in runs}) == 2
    assert all(run.path.parent == Path("runs") and run.path.name.startswith("small-2") for run in runs)


def test_a_run_that_was_cut_off_goes_on(run: vg.Run, tmp_path: Path) -> None:
    half = vg.fit(SETTINGS, out=tmp_path / "run", link="sockets")
    (half.path / "summary.json").unlink()
    with refused(RunError, key=half.path):
        _ = half.metrics
    with refused(RunError, key=half.path):
        _ = half.comparison
    assert half.history.index.tolist() == [1, 2]
    assert "not complete" in repr(half)
    assert half.resume() is half
    assert half.metrics["test_accuracy"] == run.metrics["test_accuracy"]


def test_an_error_from_python_names_arguments_and_no_options(run: vg.Run, tmp_path: Path) -> None:
    """The same errors name options on the command line, whose tests ask for these."""
    plain = vg.fit(SETTINGS, out=tmp_path / "plain")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    calls: list[tuple[str, Callable[[], object]]] = [
        ("out=", lambda: vg.fit(SETTINGS, out=run.path)),
        ("out=", lambda: vg.fit(SETTINGS, out=tmp_path / "full")),
        ("out=", lambda: run.report(out=tmp_path / "full" / "notes" / "page.html")),
        ("record_views=True", plain.audit),
    ]
    for name, call in calls:
        with pytest.raises(RunError) as told:
            call()
        assert name in str(told.value)
        assert "--" not in str(told.value)


@pytest.mark.cases(1)
@pytest.mark.parametrize("mixed", [None, 0.5])
def test_horizontal_parts_bring_their_ids(whole: Data, tmp_path: Path, mixed: float | None) -> None:
    parts = vg.simulate.horizontally(whole, 2, mixed=mixed, seed=2)
    run = vg.fit(HORIZONTAL, parts, tmp_path / "run")
    assert [RunDirectory.open(run.path).party(name).ids() for name in "AB"] == [
        [str(node) for node in part.ids.tolist()] for part in parts
    ]
    named = vg.fit(HORIZONTAL, dict(zip("AB", parts, strict=True)), tmp_path / "named")
    assert named.history["loss"].equals(run.history["loss"])
    compared = run.compare()
    rows = [row for name in "AB" for row in (f"{name} alone", f"federated, {name}'s nodes")]
    assert list(compared.summaries()) == [*rows, "federated", "pooled"]
    assert list(compared.references()) == ["A alone", "B alone", "pooled"]
    here = compared.summaries()["federated, A's nodes"]["test_accuracy"]
    graph, likely = parts[0].graph, run.predictions.probabilities
    assert graph.labels is not None
    assert graph.test_mask is not None
    right = likely.argmax(dim=1)[graph.test_mask] == graph.labels[graph.test_mask]
    assert here == pytest.approx(float(right.double().mean()))


def test_what_is_no_party_is_refused(whole: Data, tmp_path: Path) -> None:
    graph = vg.simulate.vertically(whole)[0]
    wrong: list[object] = [[1, 2], {"A": 1, "B": 2}, {"A": graph, "B": "b.yaml"}]
    for parties in wrong:
        with refused(ConfigError, key="parties"):
            vg.fit(BARE, parties, tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_an_own_local_model_is_kept_with_the_run(tmp_path: Path) -> None:
    def keep(width: int) -> torch.nn.Module:
        return Kept()

    job = vg.Job(**{**SETTINGS, "model": {"dim": 4, "local": {"model": "custom"}}})
    run = vg.fit(job, out=tmp_path / "run", custom=keep)
    assert torch.equal(run.predict().classes, run.predictions.classes)
    assert torch.equal(vg.load_run(run.path, custom=keep).predict().classes, run.predictions.classes)


class Kept(torch.nn.Module):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return x


def test_a_paradigm_without_a_pooled_twin_says_so(tmp_path: Path) -> None:
    job = vg.Job(
        paradigm="node-dp",
        data={"dataset": "synthetic"},
        release={"features": {"epsilon": 8, "low": -9, "high": 9}},
        train={"epochs": 1},
    )
    with refused(ConfigError, key="paradigm"):
        vg.fit(job, out=tmp_path / "run").compare()


# What a notebook shows


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


def test_a_notebook_shows_a_run_with_everything_escaped(run: vg.Run) -> None:
    found = cells(run._repr_html_())
    assert found.tags == {"table", "caption", "tbody", "tr", "th", "td"}
    assert str(run.path) in found.text
    assert "small (vertical)" in found.text
    assert f"{100 * run.metrics['test_accuracy']:.1f} %" in found.text
    assert {"sent by A", "sent by B", "sent by server"} <= set(found.text)


@nightly
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
    figure = run.plot(compared)
    labels = figure.axes[1].get_legend_handles_labels()[1]
    assert sum(label.startswith(("A alone, test", "B alone, test", "pooled, test")) for label in labels) == 3
    assert isinstance(figure, Picture)
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    with refused(ConfigError, code=WRONG_TYPE, key="compared", value="pandas.DataFrame"):
        run.plot(run.comparison)
