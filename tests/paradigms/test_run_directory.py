"""A run's files while others write them."""

from __future__ import annotations

from pathlib import Path

from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.store.run_directory import RunDirectory


def epochs(run: RunDirectory) -> list[int]:
    return [record["epoch"] for record in run.metrics()]


def test_metrics_are_those_of_the_complete_lines_whoever_writes_them_meanwhile(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", parse_job({"data": {"dataset": "synthetic"}}))
    other = RunDirectory.open(run.path)
    assert epochs(run) == []
    for epoch in (1, 2):
        other.append_metrics({"epoch": epoch})
    assert epochs(run) == [1, 2]
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"epo')
        file.flush()
        assert epochs(run) == [1, 2]
        file.write('ch": 3}\n')
    assert epochs(run) == epochs(run) == [1, 2, 3]
    other.begin_metrics(1)
    assert epochs(run) == [1]
    other.append_metrics({"epoch": 2})
    assert epochs(run) == epochs(RunDirectory.open(run.path)) == [1, 2]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", parse_job({"data": {"dataset": "synthetic"}}))
    (run.path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch" 2}\n')
    with refused(RunError, key=tmp_path / "run" / "metrics.jsonl"):
        run.metrics()
