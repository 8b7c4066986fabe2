"""Data flow once: a table is parsed once in a session, and a graph is checked where it comes in."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import nightly
from tests.roles.federation import Settings
from veilgraph.graph.settings import DataSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.samples.organisations import export_dataset
from veilgraph.tables import edges, joined, nodes
from veilgraph.tables.source import column_names, stream

ONE_EPOCH: Settings = {"train": {"epochs": 1}}
HOLDERS = ("A", "B")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Table, as ``folder/file`` → how often its rows were parsed; with ``:header`` its names alone."""
    found: Counter[str] = Counter()

    def counted(whole: Any, suffix: str) -> Any:
        def call(path: Path, *arguments: Any) -> Any:
            found[f"{path.parent.name}/{path.name}{suffix}"] += 1
            return whole(path, *arguments)

        return call

    for module in (joined, edges):
        monkeypatch.setattr(module, "stream", counted(stream, ""))
    monkeypatch.setattr(nodes, "column_names", counted(column_names, ":header"))
    return found


def over(tables: dict[str, Path], **changes: Any) -> JobSettings:
    paths = {name: str(path) for name, path in tables.items()}
    return parse_job({"data": {"parties": paths}, "model": {"dim": 4}, **ONE_EPOCH, **changes})


def once(*files: str) -> dict[str, int]:
    return {f"{holder}/{file}": 1 for holder in HOLDERS for file in files}


def vertical_tables(folder: Path) -> dict[str, Path]:
    return export_dataset(DataSettings(dataset="synthetic", holders=2), folder, overlap=0.75, seed=3)


# Tables


@nightly
def test_tables_that_have_changed_are_parsed_to_predict_and_ids_once_before(
    tmp_path: Path, parsed: Counter[str]
) -> None:
    """Before they align, all say whether they have new ids."""
    tables = vertical_tables(tmp_path / "tables")
    run = train(over(tables), tmp_path / "run")
    with (tables["A"].parent / "nodes.csv").open("a", encoding="utf-8") as file:
        file.write("\n")
    parsed.clear()
    predict(run.path)
    of_nodes = once("nodes.csv", "nodes.csv:header")
    assert parsed == {**{name: 2 * count for name, count in of_nodes.items()}, **once("edges.csv")}
