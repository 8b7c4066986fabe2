"""Horizontal jobs that learn numbers: in their own unit, chosen by error, kept with the weights; and what they tell."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.errors import About, refused
from tests.paradigms.cutting import CutError, cut_at
from tests.paradigms.exported import edited, over
from tests.paradigms.horizontal import PLAIN, SECURE, VALUES, assert_same, brought, ids_of, valued, write_tables
from tests.paradigms.horizontal import job as small_job
from tests.reference.horizontal import federate
from tests.reference.horizontal import job as twin_job
from tests.reference.horizontal import parts_of as twin_parts
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError, DataError, VeilgraphError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.graph.dataset import load_parts
from veilgraph.graph.party import PartyGraph, load_party
from veilgraph.graph.pooling import HorizontalPart
from veilgraph.graph.settings import PartitionSettings
from veilgraph.link.view import Message
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import revelations
from veilgraph.runtime.launch.jobs import TrainResult, predict, resume, train
from veilgraph.runtime.store.results import compare
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors

QUICK: Settings = {"train": {"learning_rate": 0.05}}


def job(holders: int, *changes: Settings) -> JobSettings:
    """Of graphs that are brought, which no job divides."""
    return small_job(holders, {"data": {"partition": PartitionSettings().model_dump()}}, *changes)


def fitted(settings: JobSettings, path: Path, times: float = 1.0, plus: float = 0.0) -> TrainResult:
    parts = valued(load_parts(settings.data, settings.seed), times, plus)
    return train(settings, path, parties=[part.graph for part in parts], ids=ids_of(parts))


def written_values(run: Path, party: PartyId) -> dict[str, float]:
    rows = list(csv.reader((run / "parties" / party / "predictions.csv").read_text().splitlines()))
    assert rows[0] == ["id", "value"]
    return {name: float(value) for name, value in rows[1:]}


# The result


@nightly
def test_figures_are_those_of_the_predictions_that_holders_have(tmp_path: Path) -> None:
    """In the target's own unit, over the answers of all holders, a node's once for each that has it."""
    settings = job(3, VALUES, QUICK, SECURE)
    parts = valued(load_parts(settings.data, settings.seed))
    run = fitted(settings, tmp_path / "run")
    true, said = list[float](), list[float]()
    for part in parts:
        values = written_values(run.path, part.graph.party)
        assert list(values) == [str(node) for node in part.ids.tolist()]
        assert part.graph.targets is not None
        assert part.graph.test_mask is not None
        true += part.graph.targets[part.graph.test_mask].tolist()
        said += [values[str(node)] for node in part.ids[part.graph.test_mask].tolist()]
    errors = np.array(said) - np.array(true)
    assert run.summary["test_rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-4)
    assert run.summary["test_mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    assert run.summary["test_r2"] == pytest.approx(1 - (errors**2).mean() / np.var(true), abs=1e-4)
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]
    assert "test_accuracy" not in run.summary


@pytest.mark.cases(1)
@pytest.mark.parametrize(("by", "sign"), [("mae", -1), ("r2", 1)])
def test_the_best_epoch_has_the_least_error_and_stops_training(by: str, sign: int, tmp_path: Path) -> None:
    chosen: Settings = {"train": {"select_by": by, "epochs": 60, "patience": 4, "learning_rate": 0.4}}
    settings = job(2, VALUES, chosen)
    run = fitted(settings, tmp_path / "run")
    best = max(run.metrics, key=lambda record: (sign * record[f"val_{by}"], -record["val_loss"], -record["epoch"]))
    assert run.summary["best_epoch"] == best["epoch"]
    assert len(run.metrics) == best["epoch"] + 4 < 60


def test_a_baseline_is_on_its_own_scale_and_the_pooled_one_is_the_federation(tmp_path: Path) -> None:
    settings = job(3, VALUES, PLAIN, {"precision": "float64"})
    run = fitted(settings, tmp_path / "run")
    compared = compare(RunDirectory.open(run.path))
    assert compared.pooled["test_rmse"] == pytest.approx(run.summary["test_rmse"], rel=1e-5)
    assert compared.pooled["test_r2"] == pytest.approx(run.summary["test_r2"], abs=1e-5)
    parts = {part.graph.party: part for part in valued(load_parts(settings.data, settings.seed))}
    assert set(compared.alone) == set(parts)
    for party, summary in compared.alone.items():
        assert summary["test_rmse"] != pytest.approx(run.summary["test_rmse"], rel=1e-3), party
        assert 0 < summary["test_rmse"] < 100


# What is kept


@pytest.mark.parametrize(
    "task", [{}, pytest.param({"low": -100.0, "high": 300.0}, marks=nightly)], ids=["sums", "bounds"]
)
def test_a_run_that_was_cut_off_goes_on_as_it_would_have(task: Settings, tmp_path: Path) -> None:
    settings = job(2, VALUES, {"horizontal": {"task": task}})
    whole = fitted(settings, tmp_path / "whole")
    with cut_at(5), pytest.raises(CutError):
        fitted(settings, tmp_path / "cut")
    resumed = resume(tmp_path / "cut")
    assert resumed.summary["started_at"] == 4
    assert_same(whole, resumed)
    assert torch.equal(whole.predictions.columns["value"], resumed.predictions.columns["value"])
    kept = load_tensors(RunDirectory.open(whole.path).party("B").model_path)[0]
    assert ("holder.facts" in kept) == (not task)
    again = 1  # the scores of epoch 5, which is trained twice; sums of targets are opened once a run
    assert sums_sent(tmp_path / "cut", "B") == sums_sent(whole.path, "B") + again


def sums_sent(run: Path, party: PartyId) -> int:
    """How many sums a party sent its part of, in all sessions, beside the number of training nodes."""
    lines = map(json.loads, (run / "parties" / party / "disclosures.jsonl").read_text().splitlines())
    return sum(line["messages"] - 1 for line in lines if line["kind"] == "masked")  # a session counts training nodes


@nightly
def test_from_tables_a_run_learns_the_same_and_predicts_on_the_scale_that_it_learnt(tmp_path: Path) -> None:
    """Later tables have other targets; no sum of these is opened, and predictions are as before."""
    settings = job(2, VALUES, PLAIN, {"precision": "float64"})
    parts = valued(load_parts(settings.data, settings.seed))
    files = write_tables(parts, tmp_path / "tables", revelations(settings))
    run, reference = train(over(files, settings), tmp_path / "run"), fitted(settings, tmp_path / "reference")
    assert run.summary["test_rmse"] == pytest.approx(reference.summary["test_rmse"], rel=1e-5)
    mine, theirs = written_values(run.path, "B"), written_values(reference.path, "B")
    assert mine == pytest.approx({f"n{name}": value for name, value in theirs.items()}, rel=1e-4)
    found = load_party(RunDirectory.open(run.path).party("B").graph_path)
    assert found.targets is not None
    assert found.labels is None

    before = predict(run.path)
    for file in files.values():
        with edited(file.parent / "nodes.csv") as rows:
            for row in rows:
                row["target"] = str(float(row["target"]) * 50 + 1000) if row["target"] else ""
    again = predict(run.path)
    assert again.columns["value"].tolist() == pytest.approx(before.columns["value"].tolist())
    sent = (run.path / "parties" / "B" / "disclosures.jsonl").read_text().splitlines()
    last = [record for record in map(json.loads, sent) if record["kind"] == "masked"][-1]
    assert last["messages"] == 1, "a prediction opens the number of training nodes alone"


# What is refused

REFUSED: dict[str, tuple[Settings, About]] = {
    "perturbed labels": ({"label_privacy": {"epsilon": 1.0}}, {"key": "label_privacy.epsilon"}),
    "accuracy": ({"train": {"select_by": "accuracy"}}, {"key": "train.select_by"}),
    "balanced": ({"train": {"class_weights": "balanced"}}, {"key": "train.class_weights"}),
    "one bound": ({"horizontal": {"task": {"low": 1.0}}}, {"key": "low"}),
    "no range": ({"horizontal": {"task": {"low": 1.0, "high": 1.0}}}, {"key": "low"}),
    "bounds of classes": ({"horizontal": {"task": {"name": "classes", "low": 0.0, "high": 1.0}}}, {"key": "low"}),
    "another task": ({"horizontal": {"task": {"name": "links"}}}, {"key": "horizontal.task.name"}),
}


@pytest.mark.parametrize(("change", "about"), REFUSED.values(), ids=REFUSED.keys())
def test_what_such_a_job_cannot_say(change: Settings, about: About) -> None:
    with refused(ConfigError, **about):
        job(2, VALUES, change)


def outside(graph: PartyGraph) -> PartyGraph:
    assert graph.targets is not None
    return replace(graph, targets=torch.where(graph.targets.isnan(), graph.targets, graph.targets + 1e6))


def without_targets(graph: PartyGraph) -> PartyGraph:
    return replace(graph, targets=None, train_mask=None, val_mask=None, test_mask=None)


def untrained(graph: PartyGraph) -> PartyGraph:
    return replace(graph, train_mask=torch.zeros(graph.num_nodes, dtype=torch.bool))


def in_graphs(graph: PartyGraph) -> PartyGraph:
    return replace(graph, membership=torch.arange(graph.num_nodes), edge_index=torch.empty(2, 0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("alter", "task", "kind", "key"),
    [
        (outside, {"low": -100.0, "high": 300.0}, DataError, "targets"),
        (without_targets, {}, DataError, "targets"),
        (untrained, {}, DataError, "train_mask"),
        (in_graphs, {}, ConfigError, "membership"),
    ],
)
def test_graphs_that_such_a_job_cannot_learn_from(
    alter: Callable[[PartyGraph], PartyGraph], task: Settings, kind: type[VeilgraphError], key: str, tmp_path: Path
) -> None:
    settings = job(2, VALUES, {"horizontal": {"task": task}})
    given = brought(settings)
    given["parties"] = [alter(graph) for graph in given["parties"]]
    with refused(kind, key=key):
        train(settings, tmp_path / "run", **given)


def test_numbers_are_refused_by_a_job_that_learns_classes_with_the_way_out(tmp_path: Path) -> None:
    settings = job(2, VALUES)
    with pytest.raises(ConfigError, match="task values"):
        train(job(2), tmp_path / "run", **brought(settings))


# What it tells


def z_of(part: HorizontalPart, scale: Tensor) -> Tensor:
    assert part.graph.targets is not None
    return (part.graph.targets[part.graph.train_mask].double() - scale.mean()) / scale.std(correction=0)


def sent(seen: tuple[Message, ...], kind: Kind, sender: PartyId, receiver: PartyId, round_: int) -> Tensor:
    (found,) = (
        message.tensor
        for message in seen
        if (message.tag.kind, message.sender, message.receiver) == (kind, sender, receiver)
        and (message.tag.step, message.tag.round) == (0, round_)
    )
    return found.double()


@pytest.mark.parametrize("combine", ["max", "secure-max"])
def test_the_server_works_out_training_targets_up_to_unit_and_zero_point(combine: str) -> None:
    """What ``training-targets`` says: with weights w it is sent err·w of a node, and has the node's h itself.

    So a target is a combination of ŵ·h, the error's length and 1, with three numbers that all nodes share. With another
    step's rows, which are of other errors, no such numbers are found.
    """
    settings = twin_job(2, task={"name": "values"}, combine=combine)
    parts = twin_parts(settings)
    _, transcripts = federate(settings, parts, 1)
    every = torch.cat([part.graph.targets[part.graph.train_mask].double() for part in parts])  # type: ignore[index]
    seen = transcripts[SERVER]
    for part in parts:
        gradient = sent(seen, Kind.GRADIENT, part.graph.party, SERVER, 2)
        embedding = sent(seen, Kind.COMBINED, SERVER, part.graph.party, 2)
        rows = gradient.abs().sum(dim=1) > 0
        assert part.graph.train_mask is not None
        assert torch.equal(rows, part.graph.train_mask), "and which nodes are trained on"
        weight = torch.linalg.svd(gradient[rows])[2][0]
        known = torch.stack(
            [embedding[rows] @ weight, gradient[rows] @ weight, torch.ones(int(rows.sum())).double()], dim=1
        )
        z = z_of(part, every)
        assert unexplained(known, z) < 1e-10
        assert unexplained(known.roll(1, dims=0), z) > 0.1, "the control: rows of other nodes"


def unexplained(known: Tensor, z: Tensor) -> float:
    found = torch.linalg.lstsq(known, z.unsqueeze(1)).solution
    return float((z - (known @ found)[:, 0]).square().sum() / (z - z.mean()).square().sum())


@pytest.mark.parametrize("task", [{"name": "values"}, {"name": "values", "low": -50.0, "high": 90.0}])
def test_no_target_goes_to_the_server_but_in_gradients(task: Settings) -> None:
    """Its messages before the first gradient are the same whatever the targets are; the first gradient is not."""
    settings = twin_job(2, task=task)
    parts = twin_parts(settings)
    other = [
        replace(part, graph=replace(part.graph, targets=None if part.graph.targets is None else part.graph.targets / 2))
        for part in parts
    ]
    one, two = (federate(settings, given, 1)[1][SERVER] for given in (parts, other))
    for part in parts:
        party = part.graph.party
        for round_ in (1, 2):
            ours, theirs = (sent(seen, Kind.EMBEDDING, party, SERVER, round_) for seen in (one, two))
            assert torch.equal(ours, theirs)
        ours, theirs = (sent(seen, Kind.GRADIENT, party, SERVER, 2) for seen in (one, two))
        # on a scale of its own that is learnt from them, half of all targets is the same data
        assert torch.allclose(ours, theirs, atol=1e-6) == ("low" not in task)
    for seen in (one, two):
        kinds = {message.tag.kind for message in seen if message.receiver == SERVER}
        assert kinds == {Kind.HELLO, Kind.NODE_LIST, Kind.EMBEDDING, Kind.GRADIENT}
