"""Loss and figures of merit, against their definitions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch import Tensor
from torch.nn import functional
from veilgraph_node_dp.choosing import calibrate, opinion_of

from tests import nightly
from tests.paradigms.cutting import CutError, cut_at
from tests.paradigms.runs import assert_same_run
from tests.roles.federation import CLASSES, Settings, small_job, small_parties
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.figures import CLASS_MEASURES, Scores
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.judge import (
    Judgement,
    Objective,
    area_under_curve,
    average_precision,
    balanced_weights,
    macro_f1,
)
from veilgraph.runtime.launch.jobs import resume, train


def pairs_ranked_right(scores: list[float], positive: list[bool]) -> float:
    """AUC by its definition: the share of pairs in which the positive one has the higher score; ties count half."""
    pairs = [
        (one, other)
        for one, is_positive in zip(scores, positive, strict=True)
        for other, also in zip(scores, positive, strict=True)
        if is_positive and not also
    ]
    return sum(1.0 if one > other else 0.5 if one == other else 0.0 for one, other in pairs) / len(pairs)


@hypothesis_settings(max_examples=30)
@given(nodes=st.integers(4, 25), classes=st.integers(2, 4), seed=st.integers(0, 1000))
def test_auc_is_the_share_of_pairs_ranked_right(nodes: int, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(classes), torch.randint(classes, (nodes,), generator=generator)])
    logits = torch.randint(-2, 3, (len(labels), classes), generator=generator).float()  # with ties
    probabilities = logits.double().softmax(dim=1)
    chosen = [1] if classes == 2 else range(classes)
    expected = [pairs_ranked_right(probabilities[:, c].tolist(), (labels == c).tolist()) for c in chosen]
    assert area_under_curve(logits, labels) == pytest.approx(sum(expected) / len(expected))


@hypothesis_settings(max_examples=30)
@given(nodes=st.integers(1, 25), classes=st.integers(2, 4), seed=st.integers(0, 1000))
def test_macro_f1_is_the_mean_over_the_classes_that_occur(nodes: int, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (nodes,), generator=generator)
    logits = torch.randn(nodes, classes, generator=generator)
    predicted = logits.argmax(dim=1)
    scores = []
    for c in set(labels.tolist()) | set(predicted.tolist()):
        hits = int(((labels == c) & (predicted == c)).sum())
        scores.append(2 * hits / (int((labels == c).sum()) + int((predicted == c).sum())))
    assert macro_f1(logits, labels) == pytest.approx(sum(scores) / len(scores))


def test_auc_is_undefined_without_a_class_or_with_what_is_no_number() -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert area_under_curve(logits, torch.tensor([0, 1, 1, 0])) is None
    assert area_under_curve(logits[:, :2], torch.tensor([1, 1, 1, 1])) is None
    assert area_under_curve(torch.full((4, 2), float("nan")), torch.tensor([0, 1, 1, 0])) is None


def a_graph(**changes: Any) -> PartyGraph:
    labels = torch.tensor([0, 0, 0, 1, 0, 1, 0, 1, 1])
    split = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])
    content: dict[str, Any] = {
        "party": "A",
        "features": torch.ones(9, 1),
        "edge_index": torch.empty(2, 0, dtype=torch.int64),
        "labels": labels,
        "train_mask": split == 0,
        "val_mask": split == 1,
        "test_mask": split == 2,
        "num_classes": 2,
    }
    return PartyGraph(**{**content, **changes})


LOGITS = torch.randn(9, 2, generator=torch.Generator().manual_seed(3))


def objective(graph: PartyGraph, **train: Any) -> Objective:
    return Objective(graph, TrainSettings(**train), torch.float32)


def test_loss_in_batches_has_the_weights_of_all_training_nodes() -> None:
    """Of a batch the weighted mean over its training nodes; the weights are of all of them, not of the batch's."""
    graph = a_graph()
    labels = graph.labels
    assert labels is not None
    each = functional.cross_entropy(LOGITS, labels, reduction="none")
    plain, balanced = objective(graph), objective(graph, class_weights="balanced")
    weights = balanced_weights(labels[:4], 2)[labels].float()
    assert float(weights[0]) != float(weights[3])
    for rows in ([0, 3, 8], [3, 1, 0, 5, 2], [0, 1, 7], [3]):
        batch, trained = torch.tensor(rows), [row for row in rows if row < 4]
        assert float(plain.training_loss(LOGITS[batch], batch)) == pytest.approx(float(each[trained].mean()))
        expected = (weights * each)[trained].sum() / weights[trained].sum()
        assert float(balanced.training_loss(LOGITS[batch], batch)) == pytest.approx(float(expected))
    everything = torch.arange(9)
    assert torch.equal(balanced.training_loss(LOGITS, everything), balanced.training_loss(LOGITS))
    untrained = torch.tensor([5, 8])
    assert float(balanced.training_loss(LOGITS[untrained], untrained)) == 0


def test_an_opinion_is_calibrated_on_the_validation_nodes_and_knows_training_labels_alone() -> None:
    """Test labels and those of nobody's split change nothing: the figures on test nodes would be of their own."""
    graph = a_graph()
    labels, train, val, test = graph.labels, graph.train_mask, graph.val_mask, graph.test_mask
    assert labels is not None
    assert train is not None
    assert val is not None
    assert test is not None
    right = functional.one_hot(labels, 2).float() * 2 - 1
    logits = torch.where(val[:, None], right, -right)  # sure where it is right: validation nodes alone
    log_probabilities, opinion = opinion_of(objective(graph), graph, logits)
    assert torch.equal(log_probabilities, calibrate(logits, labels, val))
    for other in (train, test, ~val):
        assert not torch.equal(log_probabilities, calibrate(logits, labels, other))
    assert torch.equal(opinion[train], functional.one_hot(labels[train], 2).float())
    assert torch.equal(opinion[~train], log_probabilities[~train].exp())
    other_tests = a_graph(labels=torch.where(test, 1 - labels, labels))
    without = opinion_of(objective(other_tests), other_tests, logits)
    assert torch.equal(without[0], log_probabilities)
    assert torch.equal(without[1], opinion)


def test_average_precision_is_scikit_learns_with_ties_too() -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        labels = (torch.rand(60, generator=generator) < 0.2).long()
        labels[:2] = torch.arange(2)
        logits = torch.randint(-3, 3, (60, 2), generator=generator).double()
        likely = logits.softmax(dim=1)[:, 1]
        expected = average_precision_score(labels.numpy(), likely.numpy())
        assert average_precision(logits, labels) == pytest.approx(expected)
    assert average_precision(logits, torch.ones(60, dtype=torch.int64)) is None
    assert average_precision(torch.randn(9, 3), torch.arange(9) % 3) is None


def test_auc_chooses_by_the_classes_that_validation_nodes_have(caplog: pytest.LogCaptureFixture) -> None:
    labels = torch.tensor([0, 1, 2, 0, 1, 0, 0, 1, 1])  # none of class 2 for validation
    logits = torch.randn(9, 3, generator=torch.Generator().manual_seed(4))
    chosen = objective(a_graph(labels=labels, num_classes=3, val_mask=torch.arange(9) > 3), select_by="auc")
    probabilities, val = logits.double().softmax(dim=1)[4:], labels[4:]
    expected = [pairs_ranked_right(probabilities[:, c].tolist(), (val == c).tolist()) for c in (0, 1)]
    assert chosen.score(logits).values["val_auc"] == pytest.approx(sum(expected) / 2)
    assert not caplog.records


def test_that_validation_nodes_are_of_one_class_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    labelled, *others = small_parties(2)
    labels, val = labelled.labels, labelled.val_mask
    assert labels is not None
    assert val is not None
    graphs = [replace(labelled, val_mask=val & (labels == labels[val][0])), *others]
    job = small_job(2, {"train": {"epochs": 2, "select_by": "auc"}})
    train(job, tmp_path / "run", parties=graphs)
    assert caplog.text.count("party 'A': train.select_by='auc' ranks common validation nodes of one class") == 1


def judged(select_by: Any, evaluations: list[Scores]) -> int:
    judgement = Judgement()
    for epoch, scores in enumerate(evaluations, start=1):
        judgement = judgement.after(epoch, scores, select_by)
    return judgement.best_epoch


def found(loss: float, accuracy: float, auc: float | None, f1: float | None) -> Scores:
    return Scores(CLASS_MEASURES, 0.0, loss, {"val_accuracy": accuracy, "val_auc": auc, "val_f1": f1})


def test_the_judgement_goes_by_what_the_job_names_and_then_by_loss() -> None:
    evaluations = [
        found(3.0, 0.9, 0.5, 0.2),
        found(2.0, 0.1, 0.5, 0.4),
        found(1.5, 0.1, 0.4, 0.4),
        found(1.0, 0.1, None, 0.3),
        found(float("nan"), 0.1, None, None),
    ]
    assert {name: judged(name, evaluations) for name in ("accuracy", "auc", "f1", "loss")} == {
        "accuracy": 1, "auc": 2, "f1": 3, "loss": 4,
    }  # fmt: skip


# Whole runs

TRAIN: Settings = {"train": {"epochs": 30, "patience": 6, "learning_rate": 0.1, "checkpoint_every": 2}}


@nightly
@pytest.mark.parametrize(("select_by", "class_weights"), [("auc", "balanced")])
def test_a_run_keeps_the_best_epoch_by_the_figure_and_resumes(
    tmp_path: Path, select_by: str, class_weights: str
) -> None:
    chosen: Settings = {"train": {"select_by": select_by, "class_weights": class_weights}}
    settings = small_job(2, TRAIN, chosen)
    run = train(settings, tmp_path / "run", parties=small_parties(2))
    sign = -1 if select_by == "loss" else 1
    best = max(run.metrics, key=lambda r: (sign * r[f"val_{select_by}"], -r["val_loss"], -r["epoch"]))
    assert run.summary["best_epoch"] == best["epoch"]
    graph = small_parties(2)[0]
    assert graph.labels is not None
    for part in ("val", "test"):
        mask = getattr(graph, f"{part}_mask")
        chances, labels = run.predictions.uncalibrated[mask], graph.labels[mask]
        assert run.summary[f"{part}_auc"] == pytest.approx(auc_by_pairs(chances, labels))
        assert run.summary[f"{part}_f1"] == pytest.approx(macro_f1(chances, labels))
        right = run.predictions.classes[mask] == labels
        assert run.summary[f"{part}_accuracy"] == pytest.approx(float(right.double().mean()))
    assert torch.equal(run.predictions.classes, run.predictions.uncalibrated.argmax(dim=1))
    assert not torch.equal(run.predictions.probabilities, run.predictions.uncalibrated), "nothing is judged by these"
    if select_by != "loss":
        assert run.summary[f"val_{select_by}"] == pytest.approx(best[f"val_{select_by}"])
    with cut_at(5), pytest.raises(CutError):
        train(settings, tmp_path / "cut", parties=small_parties(2))
    assert_same_run(run, resume(tmp_path / "cut"))


def auc_by_pairs(chances: Tensor, labels: Tensor) -> float:
    each = [pairs_ranked_right(chances[:, c].tolist(), (labels == c).tolist()) for c in range(CLASSES)]
    return sum(each) / CLASSES


@pytest.mark.parametrize("select_by", ["accuracy", "auc", "f1", "loss"])
def test_what_validation_nodes_alone_say_is_what_epochs_are_chosen_by(select_by: str) -> None:
    graph = small_parties(2)[0]
    settings = TrainSettings.model_validate({"select_by": select_by})
    objective = Objective(graph, settings, torch.float64)
    logits = torch.randn(graph.num_nodes, CLASSES, generator=torch.Generator().manual_seed(0)).double()
    scores = objective.score(logits)
    found = objective.validation(logits[objective.val_nodes])
    assert found[0] == pytest.approx(scores.selection(select_by))
    assert found[1] == pytest.approx(-scores.val_loss)
