"""Predictions name every node as the holder's own table does, however ids are written alike to be compared."""

import csv
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.messy.holders import VERTICAL, Rows, rewrite, tables_of
from tests.paradigms.sealed.programs import small_job
from veilgraph.cli.train import show_result
from veilgraph.deploy.serve import Inference
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import read_job
from veilgraph.report.run_data import LabelledPredictions, read_predictions, read_run
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.predictions import Predictions, join_predictions
from veilgraph.runtime.store.run_directory import RunDirectory

JOBS = {"vertical": VERTICAL, "sealed": small_job(2, {}), "sealed-named": small_job(2, {"named_nodes": 8})}
WAYS = {"A": "  {}X ", "B": "{}x"}


def written(folder: Path, job: JobSettings) -> list[str]:
    """Tables of A and B, whose ids differ in case and spaces; those of A's node table."""
    tables_of(folder, job, ids={"strip": "true", "lower": "true"})
    for party, way in WAYS.items():
        for table, count in (("nodes", 1), ("edges", 2)):
            rewrite(folder / party / f"{table}.csv", partial(renamed, way, count))
    with (folder / "A" / "nodes.csv").open(newline="") as file:
        return [row[0] for row in csv.reader(file)][1:]


def renamed(way: str, count: int, rows: Rows) -> Rows:
    return [[*map(way.format, row[:count]), *row[count:]] for row in rows]


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["vertical", "sealed"])
def test_every_row_joins_the_label_holders_own_table(tmp_path: Path, name: str) -> None:
    own = written(tmp_path / "tables", JOBS[name])
    run = tmp_path / "run"
    train(read_job(tmp_path / "tables" / "job.yaml"), run)
    predicted = predict(run)
    with (run / "parties" / "A" / "predictions.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert sorted(row[0] for row in rows) == sorted(own)
    assert [row["id"] for row in predicted.records()] == [row[0] for row in rows]
    assert head[2:] == ([] if name == "sealed" else ["p_0", "p_1", "p_2"])
    assert all(("probabilities" in each) == (name == "vertical") for each in predicted.found())
    alike = own[0].strip().lower()
    assert predicted.of_ids([own[0]]).ids == predicted.of_ids([alike]).ids == (own[0],)
    told = read_predictions(read_run(RunDirectory.open(run)))
    assert isinstance(told, LabelledPredictions)
    assert len(told.test.labels) > 0


def test_nodes_are_named_as_the_table_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = written(tmp_path / "tables", JOBS["sealed-named"])
    show_result(train(read_job(tmp_path / "tables" / "job.yaml"), tmp_path / "run"))
    assert f"predict with: veilgraph predict {tmp_path / 'run'} --ids …\n" in capsys.readouterr().out
    assert predict(tmp_path / "run", ids=[own[3], own[1].strip().lower()]).ids == (own[3], own[1])


def of_holder(ids: tuple[str, ...], alike: tuple[str, ...] | None) -> Predictions:
    chances = torch.eye(2)[: len(ids)]
    return Predictions(torch.arange(len(ids)), chances.argmax(1), chances, ids, ("no", "yes"), alike=alike)


def test_a_node_of_two_holders_that_write_it_otherwise_is_one() -> None:
    first, second = of_holder(("A1 ", "B2 "), ("a1", "b2")), of_holder(("B2", "C3 "), ("b2", "c3"))
    found = join_predictions([first, second, of_holder(("c3", "d4"), None)])
    assert (found.ids, found.compared) == (("A1 ", "B2 ", "C3 ", "d4"), ("a1", "b2", "c3", "d4"))
    assert found.of_ids(["c3", "b2", "A1 "]).ids == ("C3 ", "B2 ", "A1 ")


def test_the_service_answers_by_the_id_that_is_asked_for() -> None:
    found = of_holder(("A1 ", "B2 "), ("a1", "b2"))
    answered = Inference(found, found.rows(), datetime.now(UTC)).answer(["b2", "A1 ", "x"])
    assert [(each["id"], each["class"]) for each in answered["predictions"]] == [("b2", "yes"), ("A1 ", "no")]
    assert answered["unknown"] == ["x"]
