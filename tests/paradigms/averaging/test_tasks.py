"""Every task: its runs are its twin's, whoever drops out and wherever the data come from; and what is said of it."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.twin import OnePlace

import veilgraph as vg
from tests import nightly
from tests.errors import About, refused
from tests.paradigms.averaging.jobs import NAMES, close, dropping_out, figures_of_twin, same_as_twin, twin_of
from tests.paradigms.averaging.own_graphs import SAID, graphs_for, ids_of, task_job
from tests.paradigms.cutting import CutError, cut_at
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER, Kind
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.protocol.limits import LimitSettings, refusal
from veilgraph.protocol.messages import rows_of
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.store.results import compare
from veilgraph.runtime.store.run_directory import RunDirectory

LAST: Settings = {"train": {"select_by": "last"}}
each_task = pytest.mark.parametrize("task", SAID)


@pytest.mark.cases(1)
@each_task
def test_a_run_is_its_twin_whoever_drops_out(task: str, tmp_path: Path) -> None:
    """B out of the first sum of all, D out of scores of the second round and of weights of the third."""
    settings, graphs = task_job(task, LAST), graphs_for(task)
    before = len(PlainAveraging(settings, graphs).task.sums_before.sizes)
    dropped = {"B": {1: 2}, "D": {before + 4: 3, before + 5: 1}}
    with dropping_out(dropped):
        run = train(settings, tmp_path / "run", parties=graphs, ids=ids_of(graphs))
    same_as_twin(run, settings, dropped, graphs)


@nightly
@each_task
def test_a_run_that_was_cut_off_goes_on_as_it_would_have(task: str, tmp_path: Path) -> None:
    """With what was added up before the first round, and the same pairs held back."""
    settings, graphs = task_job(task, LAST), graphs_for(task)
    with cut_at(2), pytest.raises(CutError):
        train(settings, tmp_path / "run", parties=graphs, ids=ids_of(graphs))
    resumed = resume(tmp_path / "run")
    assert resumed.summary["started_at"] > 0
    same_as_twin(resumed, settings, given=graphs)
    again = predict(resumed.path)
    assert torch.equal(again.probabilities, resumed.predictions.probabilities)
    assert all(torch.equal(again.columns[name], resumed.predictions.columns[name]) for name in again.columns)


# Tables, and Python


HEADS = {
    "values": ["id", "value"],
    "links": ["source", "target", "probability", "edge", "test"],
    "graphs": ["graph", "class", "p0", "p1"],
    "trajectories": ["object", "frame", "x", "y"],
}


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "task", [task if task in ("graphs", "links") else pytest.param(task, marks=nightly) for task in HEADS]
)
def test_from_python_a_run_predicts_compares_and_reports(task: str, tmp_path: Path) -> None:
    from torch_geometric.data import Data  # noqa: PLC0415 - seconds to import

    graphs = graphs_for(task)
    data = {graph.party: as_data(Data, graph) for graph in graphs}
    run = vg.fit(task_job(task).model_dump(mode="json", exclude={"data"}), data, tmp_path / "run")
    assert run.job.train.select_by == run.job.measures.main.name
    store = RunDirectory.open(run.path).party("B")
    rows = list(csv.reader((store.path / "predictions.csv").read_text().splitlines()))
    assert rows[0] == HEADS[task]
    if task == "graphs":
        assert [row[0] for row in rows[1:]] == [str(number) for number in range(5)]
    elif task != "trajectories":  # of objects, not of rows
        names = set(store.ids() or ())
        ends = 1 if task == "values" else 2
        assert {name for row in rows[1:] for name in row[:ends]} <= names
    some = run.predictions
    assert run.predict(ids=[some.names()[1]]).csv().splitlines()[1] == some.csv().splitlines()[2]
    compared = compare(RunDirectory.open(run.path))
    main = run.job.measures.main
    assert set(compared.references(main.name)) == {*(f"{name} alone" for name in NAMES), "pooled"}
    assert all(f"test_{main.name}" in summary for summary in compared.summaries().values())
    page = run.report().read_text()
    assert f"Test {main.title}" in page
    assert run.job.averaging.task.kind.subject.words in page  # type: ignore[attr-defined]
    assert f"test {main.title}" in repr(run)


def as_data(kind: type, graph: PartyGraph) -> object:
    given = {"x": graph.features, "edge_index": graph.edge_index, "n_id": torch.arange(graph.num_nodes)}
    if graph.membership is not None:
        first = torch.arange(0, graph.num_nodes, 6)
        given |= {"batch": graph.membership, "y": graph.labels[first]}  # type: ignore[index]
        return kind(**given, **{name: getattr(graph, name)[first] for name in ("train_mask", "val_mask", "test_mask")})
    if graph.targets is not None:
        given["y"] = graph.targets
        given |= {name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")}
    return kind(**given)


# All data in one place


@each_task
def test_in_one_place_there_is_what_the_holders_have(task: str) -> None:
    """Outputs, tallies and examples of all holders one after another, and with them the first loss."""
    settings, graphs = task_job(task, {"model": {"dropout": 0.0}}), graphs_for(task)
    twin = PlainAveraging(settings, graphs)
    twin.gather()
    built = twin.task
    owns = [built.own(graph, LearningStreams(settings.seed, graph.party)) for graph in graphs]
    whole = built.join(owns)
    with torch.no_grad():
        apart = [built.judging.output(twin.network, own) for own in owns]
        together = built.judging.output(twin.network, whole)
        tallies = [built.judging.tally(twin.network, own, output) for own, output in zip(owns, apart, strict=True)]
        assert close(built.judging.tally(twin.network, whole, together), torch.stack(tallies).sum(dim=0))
    assert close(together, torch.cat(apart))
    assert built.examples(whole) == sum(map(built.examples, owns)) > 0
    assert all(len(tally) == built.judging.tally_size for tally in tallies)
    if not task.startswith("links"):  # which draws pairs
        one = OnePlace(settings, *graphs)
        assert one.train_step(1) == pytest.approx(twin.round(1), abs=1e-9)


# What is sent and said


@pytest.mark.parametrize(
    ("task", "needed"),
    [
        ("values", {"task-tallies", "target-sums"}),
        ("values, bounds", {"task-tallies"}),
        ("links", {"task-tallies"}),
        ("graphs", {"task-tallies"}),
        ("trajectories", {"task-tallies"}),
    ],
)
def test_a_party_accepts_a_task_by_name(task: str, needed: set[str]) -> None:
    settings = task_job(task)
    every = {"averaged-weights", *needed}
    assert refusal(LimitSettings(leakage=tuple(every)), settings, "A") is None
    for name in every:
        assert refusal(LimitSettings(leakage=tuple(every - {name} | {"score-tallies"})), settings, "A") is not None
    for ends, kind in ((("A", SERVER), Kind.MASKED), ((SERVER, "A"), Kind.AVERAGED)):
        rows = [row for row in rows_of(settings, *ends) if row.kind == kind]
        assert {told.name for row in rows for told in row.reveals} == every


REFUSED: dict[str, tuple[Settings, About]] = {
    "no such task": ({"task": {"name": "motifs"}}, {"key": "averaging.task.name", "value": "motifs"}),
    "another task's": ({"task": {"name": "values", "bins": 3}}, {"key": "averaging.task.bins"}),
    "one bound": ({"task": {"name": "values", "low": 1.0}}, {"key": "low"}),
    "bounds": ({"task": {"name": "values", "low": 1.0, "high": 1.0}}, {"key": "low", "value": 1.0}),
    "nothing left": ({"task": {"name": "links", "validation": 0.5, "test": 0.5}}, {"key": "validation", "value": 0.5}),
}


@pytest.mark.parametrize(("change", "about"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_task_cannot_be(change: Settings, about: About) -> None:
    content = task_job("graphs").model_dump(mode="json")
    with refused(ConfigError, **about):
        vg.Job(**{**content, "averaging": {**content["averaging"], **change}})


@nightly
def test_the_best_ranks_graphs_best(tmp_path: Path) -> None:
    by = "ap"
    graphs = graphs_for("graphs", nodes=72)
    settings = task_job("graphs", {"train": {"select_by": by, "epochs": 8, "learning_rate": 0.1}})
    run = train(settings, tmp_path / "run", parties=graphs, ids=ids_of(graphs))
    twin, losses, scores = twin_of(settings, given=graphs)
    assert [record["loss"] for record in run.metrics] == pytest.approx(losses, abs=1e-6)
    figures_of_twin(run, settings, twin, scores)
    best = max(run.metrics, key=lambda record: (record[f"val_{by}"], -record["val_loss"], -record["epoch"]))
    assert run.summary["best_epoch"] == best["epoch"]
    assert best["epoch"] < 8
    assert run.summary[f"test_{by}"] == pytest.approx(best[f"test_{by}"])


def test_graphs_that_lack_what_a_task_needs_are_refused(tmp_path: Path) -> None:
    one, *others = graphs_for("graphs")
    bare = [replace(one, membership=None), *others]
    with refused(DataError, key="membership", party="A"):
        train(task_job("graphs"), tmp_path / "run", parties=bare, ids=ids_of(bare))
    for task in ("values", "graphs"):
        without = [PartyGraph(each.party, each.features, each.edge_index) for each in graphs_for("links")]
        without = [replace(each, membership=torch.zeros(each.num_nodes, dtype=torch.int64)) for each in without]
        with refused(DataError, key="targets" if task == "values" else "labels"):
            train(task_job(task), tmp_path / task, parties=without, ids=ids_of(without))
    wide = graphs_for("values")
    with refused(DataError, key="targets"):
        settings = task_job("values, bounds", {"averaging": {"task": {"low": 0.0, "high": 4.0}}})
        train(settings, tmp_path / "wide", parties=wide, ids=ids_of(wide))


def test_a_saved_graph_has_its_targets_and_its_graphs(tmp_path: Path) -> None:
    for task, name in (("values", "targets"), ("graphs", "membership")):
        (graph, *_) = graphs_for(task)
        save_party(graph, tmp_path / task)
        assert torch.equal(getattr(load_party(tmp_path / task), name), getattr(graph, name))
