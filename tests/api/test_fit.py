"""The public face of runs: what is trained, asked and found again through ``veilgraph`` alone."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data

import veilgraph as vg
from tests.errors import refused
from veilgraph.core import files
from veilgraph.core.errors import ConfigError, RunError
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
    return vg.fit(SETTINGS, out=tmp_path_factory.mktemp("fit") / "run", record_views=True)


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


def test_runs_that_begin_in_the_same_second_have_places_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    moment = datetime(2026, 1, 2, 3, 4, 5)
    monkeypatch.setattr(files, "datetime", SimpleNamespace(now=lambda: moment))
    for name in ("small-20260102-030405", "small-20260102-030405-2", "small-20260102-030405-3"):
        assert files.fresh_path("small") == Path("runs") / name
        (tmp_path / "runs" / name).mkdir(parents=True)
