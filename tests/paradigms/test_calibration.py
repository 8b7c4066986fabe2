"""A rare class, weighted up in training: what is predicted of it is its true share, now and in later predictions."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import nightly
from veilgraph.core.tensor_file import load_tensors, save_tensors
from veilgraph.core.types import PartyId
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.partition import split_vertically
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.nn.calibration import fit_calibration
from veilgraph.protocol import judge as scores
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import TrainResult, predict, train
from veilgraph.runtime.store.predictions import load_predictions
from veilgraph.runtime.store.run_directory import RunDirectory

BALANCED: dict[str, Any] = {"class_weights": "balanced", "select_by": "auc", "patience": None}
NODES = 900


def graphs() -> dict[PartyId, PartyGraph]:
    """Two holders of the same nodes, of which one in twelve is of class 1."""
    first, second = split_vertically(
        synthetic_data(NODES, 6, 3, 0), names=["A", "B"], label_holder="A", seed=0, num_classes=3
    )
    assert first.labels is not None
    rare = (torch.arange(NODES) % 12 == 0) | ((first.labels == 0) & (torch.arange(NODES) % 25 == 0))
    generator = torch.Generator().manual_seed(0)
    moved = first.features.to_dense() + 1.2 * rare[:, None] * torch.rand(first.num_features, generator=generator)
    drawn = torch.rand(NODES, generator=generator)
    labelled = replace(
        first,
        features=moved,
        labels=rare.long(),
        num_classes=2,
        train_mask=drawn < 0.4,
        val_mask=(drawn >= 0.4) & (drawn < 0.7),
        test_mask=drawn >= 0.7,
    )
    return {"A": labelled, "B": second}


def trained(folder: Path, settings: dict[str, Any]) -> TrainResult:
    folder.mkdir(exist_ok=True)
    for party, graph in graphs().items():
        save_party(graph, folder / f"{party}.safetensors")
    saved = {name: str(folder / f"{name}.safetensors") for name in "AB"}
    return train(parse_job({"data": {"graphs": saved, "label_holder": "A"}, **settings}), folder / "run")


def shares(run: TrainResult) -> tuple[float, float, float]:
    """Of the test nodes: the true share of class 1, what the network says it is, and what is predicted."""
    graph = graphs()["A"]
    assert graph.labels is not None
    assert graph.test_mask is not None
    found = run.predictions
    said = [float(chances[graph.test_mask, 1].mean()) for chances in (found.uncalibrated, found.probabilities)]
    return float(graph.labels[graph.test_mask].double().mean()), said[0], said[1]


@nightly
def test_a_weighted_rare_class_has_its_true_share_now_and_later(tmp_path: Path) -> None:
    run = trained(tmp_path, {"train": {**BALANCED, "epochs": 25}})
    true, own, told = shares(run)
    assert own > 2 * true
    assert told == pytest.approx(true, rel=0.4)
    assert torch.equal(run.predictions.classes, run.predictions.probabilities.argmax(1))
    store = RunDirectory.open(run.path).party("A")
    rows = list(csv.DictReader((store.path / "predictions.csv").read_text().splitlines()))
    assert [float(row["p1"]) for row in rows] == pytest.approx(run.predictions.probabilities[:, 1].tolist(), abs=1e-6)
    assert [row["class"] for row in rows] == [str(int(float(row["p1"]) > 0.5)) for row in rows]
    later = predict(run.path)
    assert torch.equal(later.probabilities, run.predictions.probabilities)
    assert later.calibration == run.predictions.calibration is not None
    for place in range(3):
        assert later.of([place]).uncalibrated.tolist() == later.uncalibrated[[place]].tolist()

    tensors, _ = load_tensors(store.model_path)
    save_tensors(store.model_path, tensors, {})  # as runs had it that knew no calibration
    old = predict(run.path)
    assert torch.equal(old.probabilities, run.predictions.uncalibrated)
    assert old.calibration is None


@nightly
def test_a_sealed_job_calibrates_what_it_opens_and_no_more(tmp_path: Path) -> None:
    few: dict[str, Any] = {"paradigm": "sealed", "train": {"epochs": 4, "class_weights": "balanced"}}
    run = trained(tmp_path / "open", {**few, "output": "margins"})
    true, own, told = shares(run)
    assert own > 2 * true
    assert told == pytest.approx(true, rel=0.5)
    closed = trained(tmp_path / "closed", few)
    assert closed.predictions.calibration is None


def training_labels(run: RunDirectory) -> list[torch.Tensor]:
    graphs = [load_party(run.party(name).graph_path) for name in run.settings.data.names]
    return [graph.labels[graph.train_mask] for graph in graphs if graph.labels is not None]


@pytest.mark.parametrize("paradigm", ["averaging", "horizontal", "vertical"])
def test_weights_that_follow_from_all_holders_labels_are_taken_back(tmp_path: Path, paradigm: str) -> None:
    """Of three classes nothing but the weights shifts probabilities."""
    data = {"dataset": "synthetic", "holders": 2, "split": [0.3, 0.3, 0.4], "stratify": False}
    content = {"paradigm": paradigm, "data": data, "train": {"epochs": 2, "class_weights": "balanced"}}
    run = RunDirectory.open(train(parse_job(content), tmp_path / "run").path)
    counts = torch.stack([labels.bincount(minlength=3) for labels in training_labels(run)]).sum(0)
    assert len(set(counts.tolist())) == 3, "classes alike would hide weights that are left out"
    found = load_predictions(run.party("A")).calibration
    assert found is not None
    assert found.shifts == pytest.approx((counts * 3 / counts.sum()).log().tolist(), abs=1e-6)


def test_no_message_is_sent_to_calibrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no job: what each party sends and receives is the same, message by message, without a calibration."""
    jobs: dict[str, dict[str, Any]] = {
        "vertical": {"train": {**BALANCED, "epochs": 2}},
        "averaging": {
            "paradigm": "averaging",
            "data": {"dataset": "synthetic", "holders": 2},
            "train": {"epochs": 2, "patience": None},
        },
    }

    def sent(name: str, settings: dict[str, Any]) -> tuple[bool, list[Any]]:
        run = trained(tmp_path / name, settings)
        rows = [json.loads((run.path / "parties" / party / "traffic.json").read_text()) for party in ("A", "B")]
        return run.predictions.calibration is not None, rows

    with_it = {name: sent(name, settings) for name, settings in jobs.items()}
    monkeypatch.setattr(scores, "fit_calibration", lambda *given: None)
    without = {name: sent(f"{name}-raw", settings) for name, settings in jobs.items()}
    assert {name: told for name, (told, _) in with_it.items()} == dict.fromkeys(jobs, True)
    assert {name: told for name, (told, _) in without.items()} == dict.fromkeys(jobs, False)
    assert {name: rows for name, (_, rows) in with_it.items()} == {name: rows for name, (_, rows) in without.items()}


@nightly
@pytest.mark.parametrize("paradigm", ["vertical", "averaging"])
def test_with_private_labels_it_learns_from_the_perturbed_ones(
    paradigm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def watched(*given: Any) -> Any:
        seen.append(given)
        return fit_calibration(*given)

    monkeypatch.setattr(scores, "fit_calibration", watched)
    job = {
        "paradigm": paradigm,
        "data": {"dataset": "synthetic", "holders": 2, "split": [0.5, 0.25, 0.25], "stratify": False},
        "train": {"epochs": 2, "patience": None},
    }
    run = train(parse_job({**job, "label_privacy": {"epsilon": 1.0}}), tmp_path / "run")
    assert run.predictions.calibration is not None
    assert seen
    assert all(transition is not None for *_, transition in seen)
    store = RunDirectory.open(run.path).party("A")
    true, (_, labels, *_) = load_party(store.graph_path), seen[0]
    assert true.labels is not None
    assert true.val_mask is not None
    assert not torch.equal(labels, true.labels[true.val_mask])
