"""Scores of trees that the label holder fits at home: nothing of a node's own label is in its score."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from tests.errors import refused
from tests.paradigms.sealed.dense import STANDARD
from tests.paradigms.sealed.programs import saved, small_graphs, small_job
from tests.roles.federation import Settings, merge
from veilgraph.core.errors import RunError
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.paradigms.sealed.boosting import Examples
from veilgraph.paradigms.sealed.inputs import examples_of, own_data, with_scores
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.twin import twin_context
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.run_directory import RunDirectory

BLOCKS: Settings = merge(STANDARD, {"model": {"blocks": ["own", "boosting"]}, "train": {"learning_rate": 0.125}})


def examples(nodes: int = 60, classes: int = 2, seed: int = 1) -> Examples:
    rows = torch.randn(nodes, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Examples(rows, ((rows[:, 0] * rows[:, 1] > 0).long() + torch.arange(nodes) * (classes > 2)) % classes)


def margins(known: Examples, rows: torch.Tensor) -> torch.Tensor:
    model = HistGradientBoostingClassifier(
        max_leaf_nodes=4,
        max_iter=50,
        min_samples_leaf=5,
        l2_regularization=1.0,
        early_stopping=False,
    ).fit(known.rows.numpy(), known.labels.numpy())
    logs = torch.from_numpy(np.log(model.predict_proba(rows.numpy())))
    return logs[:, 1:] - logs[:, :1]


@pytest.mark.parametrize("classes", [2, 3])
def test_training_nodes_are_scored_without_their_fold_and_all_others_by_all(classes: int) -> None:
    known, others = examples(classes=classes), examples(20, seed=2).rows
    found = known.scores(torch.cat([known.rows, others]), classes)
    assert found.shape == (80, classes - 1)
    assert torch.allclose(found[60:], margins(known, others))
    folds = torch.from_numpy(known.folds())
    assert folds.unique().tolist() == [0, 1, 2, 3, 4]
    for fold in range(5):
        kept = folds != fold
        rest = Examples(known.rows[kept], known.labels[kept])
        assert torch.allclose(found[:60][~kept], margins(rest, known.rows[~kept]))


def test_parties_in_threads_fit_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """scikit-learn empties the process's warning filters while it fits: of two fits at a time one finds none."""
    meeting, met = threading.Barrier(2), list[bool]()

    class Meeting(HistGradientBoostingClassifier):  # type: ignore[misc]
        def fit(self, *data: Any) -> Any:
            try:
                met.append(meeting.wait(0.5) >= 0)
            except threading.BrokenBarrierError:
                met.append(False)
            return super().fit(*data)

    monkeypatch.setattr("sklearn.ensemble.HistGradientBoostingClassifier", Meeting)
    rows = examples(2).rows
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda seed: examples(seed=seed).scores(rows, 2), (1, 1))
    assert not any(met)
    assert torch.equal(one, other)


@pytest.mark.usefixtures("few_trees")
def test_a_label_is_in_no_score_of_its_own_node() -> None:
    known = examples()
    scores = known.scores(known.rows, 2)
    for node in range(0, 60, 7):
        labels = known.labels.clone()
        labels[node] = 1 - labels[node]
        others = Examples(known.rows, labels).scores(known.rows, 2)
        assert torch.equal(others[node], scores[node])
        assert not torch.equal(others, scores)


@pytest.mark.usefixtures("few_trees")
def test_a_row_that_differs_by_rounding_is_the_training_nodes_own() -> None:
    known = examples()
    known = Examples(
        torch.cat([known.rows, torch.zeros(1, 4, dtype=torch.float64)]), torch.cat([known.labels, known.labels[:1]])
    )
    scores = known.scores(known.rows, 2)
    assert torch.equal(known.scores(known.rows - 1e-15, 2), scores)
    assert not torch.equal(known.scores(known.rows + 1e-6, 2), scores)


def test_equal_rows_are_in_one_fold() -> None:
    rows = examples().rows
    folds = Examples(rows.repeat(2, 1), torch.zeros(120, dtype=torch.int64)).folds()
    assert (folds[:60] == folds[60:]).all()
    assert np.bincount(folds).tolist() == [24] * 5


@pytest.mark.parametrize("labels", [[1, 1, 1], [1], [0, 1]])
def test_too_few_training_nodes_say_nothing(labels: list[int]) -> None:
    rows = torch.arange(3 * len(labels), dtype=torch.float64).reshape(-1, 3)
    found = Examples(rows, torch.tensor(labels)).scores(torch.cat([rows, rows + 0.5]), 3)
    assert found.shape == (2 * len(labels), 2)
    assert bool((found[: len(labels)] == 0).all())
    assert bool(found.isfinite().all())


def test_a_class_that_no_training_node_has_is_unlikely() -> None:
    found = examples().scores(torch.zeros((1, 4), dtype=torch.float64), 3)
    assert -14 < float(found[0, 1]) < -12


@pytest.mark.usefixtures("few_trees")
def test_trees_see_own_columns_and_own_edges_alone() -> None:
    """Nodes that only the label holder knows count as neighbours; nobody else's data do."""
    job, graphs = small_job(2, BLOCKS), small_graphs(nodes=40, training=20)
    own = replace(graphs[0], num_common=30)
    known = examples_of(job, own)
    assert known is not None
    assert known.rows.shape == (20, 3 * 5 + 1)
    plain = own_data(job, own)
    found = with_scores(plain, own, job, known, 3).columns
    assert found["boosting"].shape == (30, 2)
    assert found.keys() - plain.columns.keys() == {"boosting"}
    moved = own.features.clone()
    moved[35] += 10
    changed = with_scores(plain, own, job, examples_of(job, replace(own, features=moved)), 3).columns
    assert not torch.equal(changed["boosting"], found["boosting"])
    job, others = small_job(2, BLOCKS), [graphs[0], replace(graphs[1], features=-graphs[1].features)]
    first, second = (twin_context(job, each)[1]["A"].columns["boosting"] for each in (graphs, others))
    assert torch.equal(first, second)
    assert "boosting" not in twin_context(job, graphs)[1]["B"].columns
    assert examples_of(small_job(2, STANDARD), own) is None


@pytest.mark.usefixtures("few_trees")
def test_hops_move_scores_as_they_move_columns() -> None:
    job = small_job(2, BLOCKS, {"model": {"blocks": ["boosting", "pooled.1"]}})
    context, data = twin_context(job, small_graphs(nodes=40, training=20))
    program = SealedProgram(PlainMachine(list(data)), replace(context, data=data))
    program.enter(trains=True)
    program.begin()
    assert program.network.rows is not None
    columns = torch.cat([data["A"].columns["own"], data["A"].columns["boosting"], data["B"].columns["own"]], 1)
    edges = torch.cat([own.edges for own in data.values()], 1)
    near = torch.eye(40, dtype=torch.float64)
    near.index_put_((edges[1], edges[0]), torch.ones(edges.shape[1], dtype=torch.float64), accumulate=True)
    roots = near.sum(1).rsqrt()
    moved = (roots[:, None] * near * roots)[data["A"].rows] @ columns
    assert moved.shape == (20, 5 + 2 + 6)
    found = program.network.rows.known[:20, -13:]
    assert torch.allclose(found, (moved - moved.mean(0)) / (moved.var(0, correction=0) + 2**-8).sqrt(), atol=5e-3)


def trained(folder: Path, graphs: list[PartyGraph]) -> Path:
    train(saved(folder / "graphs", small_job(2, BLOCKS, {"output": "margins"}), graphs), folder / "run")
    return folder / "run"


@pytest.mark.usefixtures("few_trees")
def test_a_later_prediction_has_the_same_trees_whatever_has_become_of_labels(tmp_path: Path) -> None:
    run = trained(tmp_path, small_graphs(nodes=40, training=20))
    before, path = predict(run).uncalibrated, run / "parties" / "A" / "graph.safetensors"
    graph = load_party(path)
    assert graph.labels is not None
    others: dict[str, Any] = {"labels": (graph.labels + 1) % 3, "train_mask": torch.arange(40) < 4}
    save_party(replace(graph, **others), path)
    assert float((predict(run).uncalibrated - before).abs().max()) < 4e-3
    save_party(replace(graph, features=graph.features.flip(0)), path)
    assert float((predict(run).uncalibrated - before).abs().max()) > 2e-2


@pytest.mark.usefixtures("few_trees")
def test_a_prediction_without_the_trees_training_nodes_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path, small_graphs(nodes=40, training=20))
    for party in ("A", "B"):
        kept = RunDirectory.open(run).party(party).keeper.get("boosting")
        assert (kept is not None) == (party == "A")
    (run / "parties" / "A" / "boosting.safetensors").unlink()
    with refused(RunError, code="lost", key="boosting", party="A"):
        predict(run)


def test_trees_of_other_columns_or_classes_are_refused() -> None:
    job, graph = small_job(2, BLOCKS), small_graphs(nodes=40, training=20)[0]
    narrow = replace(graph, features=graph.features[:, 1:])
    for changed, classes in ((narrow, 3), (graph, 2)):
        with refused(RunError, code="other-network", key="boosting", party="A"):
            with_scores(own_data(job, changed), changed, job, examples_of(job, graph), classes)
