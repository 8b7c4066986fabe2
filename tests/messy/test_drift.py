"""What has changed since training is told before anybody trusts a prediction: at home, and in no message."""

import csv
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.messy.holders import VERTICAL, Rows, rewrite, tables_of
from tests.paradigms.averaging.jobs import job as averaging_job
from tests.paradigms.exported import export, over
from tests.paradigms.horizontal import job as horizontal_job
from tests.paradigms.sealed.programs import small_job
from tests.tables.writing import build, party, write
from veilgraph.core.errors import ConfigError
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import read_job
from veilgraph.report.page import page_html
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.tables.drift import PROFILES, Drift, Profile, drifted, profiles
from veilgraph.tables.edges import read_edges
from veilgraph.tables.nodes import read_nodes


def apart(folder: Path, job: JobSettings) -> JobSettings:
    return over(export(folder.parent, job), job)


JOBS: dict[str, Callable[[Path], JobSettings]] = {
    "vertical": lambda folder: read_job(tables_of(folder, VERTICAL)),
    "sealed": lambda folder: read_job(tables_of(folder, small_job(2, {}))),
    "horizontal": lambda folder: apart(folder, horizontal_job(2, {"train": {"epochs": 2}})),
    "averaging": lambda folder: apart(folder, averaging_job({"data": {"holders": 2}, "train": {"epochs": 2}})),
}


@pytest.fixture(scope="module", params=JOBS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    train(JOBS[request.param](folder / "tables"), folder / "run")
    return folder / "tables", folder / "run"


@pytest.fixture
def change(trained: tuple[Path, Path]) -> Any:
    """Change a table of B until the test ends: its name and what is made of its rows."""
    kept = {path: path.read_bytes() for path in trained[0].rglob("B/*.*")}
    yield lambda table, alter: rewrite(trained[0] / "B" / f"{table}.csv", alter)
    for path, content in kept.items():
        path.write_bytes(content)


def by_deviations(column: int, count: float) -> Callable[[Rows], Rows]:
    def alter(rows: Rows) -> Rows:
        shift = count * float(np.std([float(row[column]) for row in rows]))
        return [[*row[:column], str(float(row[column]) + shift), *row[column + 1 :]] for row in rows]

    return alter


def first_column(folder: Path) -> tuple[int, str]:
    """Of features: its place and name."""
    with (folder / "B" / "nodes.csv").open(newline="") as file:
        names = next(csv.reader(file))
    return next((place, name) for place, name in enumerate(names) if name[:1] == "x" and name[1:].isdigit())


def told(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run / "parties" / "B" / "drift.json").read_text())["moved"]
    return found


@pytest.mark.cases(2)
def test_a_column_moved_by_30_deviations_is_named_with_then_and_now(
    trained: tuple[Path, Path], change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder, run = trained
    place, column = first_column(folder)
    change("nodes", by_deviations(place, 30))
    with caplog.at_level(logging.WARNING, "veilgraph"):
        predict(run)
    (found,) = told(run)
    assert (found["name"], found["of_edges"]) == (column, False)
    assert found["index"] > 1
    assert "100% outside the range of training" in found["now"]
    assert "outside" not in found["then"]
    said = [each for each in caplog.messages if "has moved since training" in each]
    assert len(said) == 1
    assert f"B: has moved since training: column {column} " in said[0]
    assert found["then"] in said[0]
    assert found["now"] in said[0]
    page = page_html(RunDirectory.open(run))
    assert "Since training" in page
    assert found["now"] in page
    assert told(run)[0]["name"] == column


def messages(run: Path) -> list[tuple[Any, ...]]:
    rows = json.loads((run / "parties" / "B" / "prediction_traffic.json").read_text())
    return sorted((row["kind"], row["peer"], row["direction"], row["messages"]) for row in rows)


@pytest.mark.cases(2)
def test_a_warning_adds_no_message(trained: tuple[Path, Path], change: Any) -> None:
    folder, run = trained
    place, _ = first_column(folder)
    sent = {}
    for moves, deviations in ((0, 0.001), (1, 30.0)):
        change("nodes", by_deviations(place, deviations))
        predict(run)
        assert len(told(run)) == moves
        sent[moves] = messages(run)
    assert sent[0] == sent[1] != []


@pytest.mark.cases(2)
def test_all_edges_gone_are_told(trained: tuple[Path, Path], change: Any) -> None:
    change("edges", lambda rows: [])
    predict(trained[1])
    (found,) = told(trained[1])
    assert (found["name"], found["of_edges"]) == ("edges", True)
    assert "100% of the nodes without an edge" in found["now"]


@pytest.mark.cases(2)
def test_the_same_tables_have_not_moved(trained: tuple[Path, Path], change: Any) -> None:
    predict(trained[1])
    assert told(trained[1]) == []
    change("nodes", lambda rows: rows[::-1])
    predict(trained[1])
    assert told(trained[1]) == []


@pytest.mark.cases(1)
def test_beyond_its_own_limit_a_party_refuses_and_tells_no_column(
    trained: tuple[Path, Path], change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder, run = trained
    place, column = first_column(folder)
    path = folder / "B" / "party.yaml"
    content = yaml.safe_load(path.read_text())
    before = predict(run)
    path.write_text(yaml.safe_dump(content | {"drift": {"refuse": 100}}))
    change("nodes", by_deviations(place, 30))
    predict(run)
    path.write_text(yaml.safe_dump(content | {"drift": {"refuse": 1}}))
    with caplog.at_level(logging.WARNING, "veilgraph"), pytest.raises(ConfigError) as error:
        predict(run)
    assert "drift.refuse" in str(error.value)
    assert column not in str(error.value)
    assert f"{told(run)[0]['index']:.1f}" not in str(error.value)
    assert any(f"column {column} " in each for each in caplog.messages)
    assert [each["name"] for each in told(run)] == [column]
    assert len(before.nodes) > 0


# Profiles


def profiled(folder: Path, columns: dict[str, Any], then: Sequence[Profile] = ()) -> tuple[Profile, ...]:
    write(folder / "nodes.csv", {"id": [f"n{each}" for each in range(len(next(iter(columns.values()))))], **columns})
    names = [
        {"columns": name, "categories": ["a", "b"], "missing": "zero", "other": "zero"}
        if name == "kind"
        else {"columns": name, "missing": "zero"}
        for name in columns
    ]
    settings = party(names)
    return profiles(read_nodes(settings, folder), [], then)


def seen(folder: Path, before: dict[str, Any], after: dict[str, Any], limit: float = 0.25) -> list[Drift]:
    then = PROFILES.validate_json(PROFILES.dump_json(profiled(folder, before)))
    return drifted(then, profiled(folder, after, then), limit)


RARE = [0.0] * 950 + [float(each) for each in range(1, 51)]
DRAWN = np.random.default_rng(0)
MIXED = DRAWN.normal(size=1000).tolist()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (MIXED, [each + 1 for each in MIXED]),
        (MIXED, [10 * each for each in MIXED]),
        (MIXED, [None, *[None] * 299, *MIXED[300:]]),
        (MIXED, [1e6] * 60 + MIXED[60:]),
        ([1.0] * 1000, [1.5] * 1000),
        ([0.0] * 900 + [1.0] * 100, [0.0] * 100 + [1.0] * 900),
        (RARE, [0.0] * 400 + [float(each % 50) for each in range(600)]),
        ([None] * 1000, [1.0] * 1000),
    ],
    ids=["shifted", "scaled", "missing", "tail", "constant", "two values", "mostly zero", "all missing"],
)
def test_a_column_that_moves_is_seen(tmp_path: Path, before: list[Any], after: list[Any]) -> None:
    assert [each.name for each in seen(tmp_path, {"x": before, "y": MIXED}, {"x": after, "y": MIXED})] == ["x"]


def test_other_draws_of_one_distribution_are_no_drift(tmp_path: Path) -> None:
    drawn = np.random.default_rng(1)
    for size in (20, 60, 2000):
        columns = [{f"x{each}": drawn.normal(size=size).tolist() for each in range(20)} for _ in range(2)]
        assert seen(tmp_path, columns[0], columns[1]) == []


def test_a_relation_of_several_tables_is_counted_once(tmp_path: Path) -> None:
    ids = [f"n{each}" for each in range(200)]
    write(tmp_path / "nodes.csv", {"id": ids, "x": MIXED[:200]})
    write(tmp_path / "edges.csv", {"a": ids[:100], "b": ids[100:]})
    settings = party(edges=[{"name": "pays"}, {"name": "pays"}])
    built = build(settings, tmp_path)
    (pays,) = [each for each in built.profile if each.of_edges]
    assert (pays.name, pays.nodes, pays.mean) == ("pays", 200, 2.0)
    table = read_nodes(settings, tmp_path)
    now = profiles(table, [read_edges(settings.edges[0], tmp_path, table.ids)], built.profile)
    for later in (now, profiles(table, [], built.profile)):  # the whole relation is gone
        (found,) = drifted(built.profile, later, 0.25)
        assert (found.name, found.of_edges) == ("pays", True)
