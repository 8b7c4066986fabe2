"""The label holder's joint network: of use where releases say something, left out where they do not, kept and found."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.paradigms.cutting import cut_run
from tests.paradigms.once import once_job
from tests.paradigms.private import LABEL_HOLDER
from tests.paradigms.runs import assert_same_run
from tests.roles.federation import merge
from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.vertical.once import AT_ONCE, MANY, JointLearner
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.judge import Objective
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.store.run_directory import load_tensors

NODES, CLASSES, WIDTH = 400, 2, 6
NOISE = 0.04


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def party(given: bool = False) -> PartyGraph:
    """Whose own columns say nothing of its labels; two that it was given say them together, and no single one does."""
    data = synthetic_data(NODES, 4, CLASSES, 0)
    data.x = drawn(NODES, 4, seed=1)
    part = torch.arange(NODES) % 5
    data.train_mask, data.val_mask, data.test_mask = part < 3, part == 3, part == 4
    graph = PartyGraph.from_data("A", data)
    return replace(graph, features=torch.cat([graph.features, told(graph)], dim=1)) if given else graph


def told(graph: PartyGraph) -> Tensor:
    """Exclusive or."""
    assert graph.labels is not None
    first = torch.where(torch.rand(NODES, generator=torch.Generator().manual_seed(2)) < 0.5, 1.0, -1.0)
    return torch.stack([first, first * (2.0 * graph.labels - 1)], dim=1)


def released(graph: PartyGraph) -> Tensor:
    """Own rows and a sum, which say the labels, noised."""
    rows = torch.cat([told(graph), torch.zeros(NODES, WIDTH - 2)], dim=1)
    noise: Tensor = math.sqrt(NOISE) * drawn(NODES, 2 * WIDTH, seed=3)
    return torch.cat([rows, rows], dim=1) + noise


def learner(
    graph: PartyGraph,
    variances: Sequence[float] = (NOISE, NOISE),
    at_once: int = AT_ONCE,
    few: bool = False,
    many: int = MANY,
    **changes: Any,
) -> JointLearner:
    variance = torch.tensor([[each] * WIDTH for each in variances], dtype=torch.float64).ravel()
    objective = Objective(graph.common_part(), TrainSettings(patience=None, **changes), torch.float32)
    return JointLearner(graph, WIDTH, variance, objective, LearningStreams(0, "A"), torch.float32, at_once, few, many)


def accuracy(graph: PartyGraph, logits: Tensor) -> float:
    assert graph.labels is not None
    right = logits.argmax(dim=1) == graph.labels[: graph.common]
    return float(right[graph.common_part().test_mask].double().mean())


@pytest.mark.parametrize(("select_by", "given"), [("auc", False), pytest.param("accuracy", True, marks=nightly)])
def test_it_is_chosen_where_releases_or_columns_say_what_no_discriminant_can(select_by: str, given: bool) -> None:
    graph = party(given)
    trained = learner(graph, select_by=select_by)
    rows = drawn(NODES, 2 * WIDTH, seed=3) if given else released(graph)
    trained.learn(rows)
    logits = trained.logits(rows)
    assert accuracy(graph, logits) > 0.9
    nothing = torch.zeros(NODES, CLASSES)
    objective = trained._objective
    assert objective.simplest([nothing, logits.log_softmax(dim=1)]) == 1


@nightly
def test_it_is_left_out_where_releases_are_nothing_but_noise() -> None:
    """Of twenty networks on noise one in six would be taken at most by the rule; far fewer where others are better."""
    graph = party()
    assert graph.labels is not None
    first = torch.nn.functional.one_hot(graph.labels, CLASSES) + 0.7 * drawn(NODES, CLASSES, seed=4)
    taken = 0
    for seed in range(5):
        rows = 100 * drawn(NODES, 2 * WIDTH, seed=10 + seed)
        trained = learner(graph, [1e4, 1e4])
        trained.learn(rows)
        second = trained.logits(rows).log_softmax(dim=1)
        taken += trained._objective.simplest([first.log_softmax(dim=1), second]) != 0
    assert taken == 0


TRAINING = NODES * 3 // 5


@nightly
def test_of_few_columns_and_many_nodes_it_keeps_the_mean_of_its_steps() -> None:
    graph, rows = party(given=True), released(party())
    trained = learner(graph, few=True, many=TRAINING, select_by="auc")
    seen: list[dict[str, Tensor]] = []
    trained.network.register_forward_pre_hook(
        lambda module, inputs: seen.append({name: one.clone() for name, one in module.state_dict().items()})
    )
    trained.learn(rows)
    assert len(seen) == 200, "no validation node is asked"
    seen.append({})  # the last step is taken after the last pass, and is in the mean as well
    kept = trained.network.state_dict()
    for name, tensor in kept.items():
        before = torch.stack([each[name] for each in seen[21:200]]).mean(dim=0)
        last = 180 * tensor - 179 * before
        assert float((last - seen[199][name]).abs().max()) < 0.05, "a step of Adam further than the one before"
    again = learner(graph, few=True, many=TRAINING, select_by="auc")
    again.learn(rows)
    assert torch.equal(trained.logits(rows), again.logits(rows))


HOPPED: dict[str, Any] = {
    "privacy": {"unit": "edge", "aggregation": {"hops": 2, "dim": 5}},
    "model": {"combine": {"strategy": "concat"}},
}


@pytest.mark.parametrize("few", [pytest.param(False, marks=nightly), True])
def test_it_is_in_the_run_and_found_by_what_comes_after(tmp_path: Path, few: bool) -> None:
    """Without noise, so that both runs have the same release."""
    dim = 40 if few else 5
    known = {"privacy": {"aggregation": {"dim": dim, **({"own_rows": "clear"} if few else {})}}}
    settings = once_job(tmp_path / "data", merge(HOPPED, known), {"train": {"epochs": 6}}, noise_multiplier=0)
    whole = train(settings, tmp_path / "whole")
    weights = load_tensors(whole.path / "parties" / LABEL_HOLDER / "model.safetensors")[0]
    ours = {name for name in weights if name.startswith("joint.")}
    assert any(name.startswith("joint.network.own") for name in ours)
    learnt = ["joint.whitening.matrix", *(f"joint.axes.{hop}.matrix" for hop in range(2 * few))]
    assert all(float((weights[name] - torch.eye(dim)).abs().max()) > 0.1 for name in learnt)
    assert torch.equal(predict(whole.path).probabilities, whole.predictions.probabilities)
    cut = cut_run(settings, tmp_path / "cut", 3)
    resumed = resume(cut)
    assert_same_run(whole, resumed)
    assert torch.equal(resumed.predictions.probabilities, whole.predictions.probabilities)
    after = load_tensors(cut / "parties" / LABEL_HOLDER / "model.safetensors")[0]
    assert weights.keys() == after.keys()
    assert all(torch.equal(weights[name], after[name]) for name in weights)


def test_the_own_network_is_the_same_whatever_was_released(tmp_path: Path) -> None:
    found = []
    for epsilon in (0.01, 100.0):
        settings = once_job(tmp_path / f"{epsilon}", HOPPED, {"train": {"epochs": 9}}, epsilon_total=epsilon)
        run = train(settings, tmp_path / f"run {epsilon}")
        weights = load_tensors(run.path / "parties" / LABEL_HOLDER / "model.safetensors")[0]
        own = {name: value for name, value in weights.items() if not name.startswith("joint.")}
        found.append((own, run.summary["best_epoch"], run.summary["without_releases"]["test_accuracy"]))
    assert found[0][1:] == found[1][1:]
    assert found[0][0].keys() == found[1][0].keys()
    assert all(torch.equal(found[0][0][name], value) for name, value in found[1][0].items())


def test_the_page_says_from_how_many_training_nodes_on_the_mean_is_kept() -> None:
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
    assert f"With {MANY:,} training nodes or more the network then keeps the mean" in page
