"""The task and the data set, held to what every task and data set promises; and the key ``data.made``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from veilgraph_averaging.conformance import TaskConformance
from veilgraph_testing.dataset import DataSetConformance
from veilgraph_trajectories import trajectories
from veilgraph_trajectories.settings import TrajectoriesSettings

import veilgraph as vg
from tests import nightly
from tests.cli.commands import one_error, usage_error, veilgraph
from tests.errors import refused
from tests.paradigms.averaging.own_graphs import graphs_for
from veilgraph.core.errors import ConfigError
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job import write_job
from veilgraph.protocol.job_file import read_job

SMALL: Mapping[str, Any] = {"cameras": 2, "recordings": 1, "frames": 12, "objects": 3}


class TestTask(TaskConformance):
    name = "trajectories"
    said = {"observe": 3, "predict": 4, "split": (0.4, 0.3), "batch": 1.0}  # noqa: RUF012
    model = {"dim": 4}  # noqa: RUF012

    def graphs(self) -> list[PartyGraph]:
        return graphs_for("trajectories")


class TestDataSet(DataSetConformance):
    name, has_labels = "trajectories", False
    said: ClassVar[Mapping[str, Any]] = {"made": SMALL}


# The key


def job(**data: object) -> dict[str, Any]:
    task = {"name": "trajectories"}
    return {"paradigm": "averaging", "data": {"holders": 2, **data}, "averaging": {"task": task}}


@nightly
def test_a_job_says_how_its_data_set_is_made_and_keeps_it(tmp_path: Path) -> None:
    settings = vg.Job(**job(dataset="trajectories", made=SMALL))
    assert settings.data.made == TrajectoriesSettings(**SMALL)
    write_job(settings, tmp_path / "job.yaml")
    assert "recordings: 1" in (tmp_path / "job.yaml").read_text(encoding="utf-8")
    assert read_job(tmp_path / "job.yaml") == settings
    spelled_out = vg.Job(**job(dataset="trajectories")).data.made
    assert spelled_out == TrajectoriesSettings()
    assert vg.Job().data.made is None
    assert int(vg.datasets.load("trajectories", made=SMALL).camera.max()) == 1
    assert int(vg.datasets.load("trajectories", made={"recordings": 1, "frames": 40}).camera.max()) == 2
    assert len(trajectories(cameras=3, recordings=1, frames=12, objects=3).cameras) == 3


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"dataset": "trajectories", "made": {"cameras": 1}}, "data.made.cameras"),
        ({"dataset": "trajectories", "made": {"camera": 2}}, "data.made.camera"),
        ({"dataset": "trajectories", "made": 3}, "data.made"),
        ({"dataset": "synthetic", "made": {"cameras": 2}}, "data.made"),
        ({"dataset": "synthetic", "made": {}}, "data.made"),
        ({"dataset": "synthetic", "made": TrajectoriesSettings()}, "data.made"),
        ({"graphs": {"A": "a", "B": "b"}, "made": {}}, "data.made"),
        ({"dataset": "none", "made": {}}, "data.dataset"),
    ],
)
def test_what_no_data_set_is_made_of_is_refused(data: dict[str, Any], key: str) -> None:
    with refused(ConfigError, key=key):
        vg.Job(**job(**data))


def test_whoever_brings_data_of_their_own_says_nothing_of_how_they_are_made(tmp_path: Path) -> None:
    with refused(ConfigError, key="data.made"):
        vg.fit({**job(), "data": {"made": {"cameras": 2}}}, graphs_for("trajectories"), tmp_path / "run")


# The command


def test_tables_are_written_beside_a_job_of_them(tmp_path: Path) -> None:
    changes = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    result = veilgraph("data", "export-trajectories", "--out", tmp_path / "world", *changes)
    assert result.exit_code == 0, result.output
    assert f"veilgraph train {tmp_path / 'world' / 'averaging.yaml'}" in result.stdout
    assert "is a valid party file" in veilgraph("data", "check", tmp_path / "world" / "B" / "party.yaml").stdout


def test_what_is_no_setting_of_recordings_is_refused(tmp_path: Path) -> None:
    export = ("data", "export-trajectories", "--out", tmp_path / "other")
    assert "Invalid value for --set" in usage_error(veilgraph(*export, "--set", "cameras"))
    assert "cameras=1" in one_error(veilgraph(*export, "--set", "cameras=1"))
    assert "camera is not a setting" in one_error(veilgraph(*export, "--set", "camera=1"))
    told = one_error(veilgraph("data", "export", "trajectories", "--out", tmp_path / "other"))
    assert "veilgraph data export-trajectories" in told
    parts = ("--paradigm", "averaging", "--holders", "3", "--out", tmp_path / "other")
    assert "nobody has labels" in one_error(veilgraph("data", "export", "trajectories", *parts))
    assert not (tmp_path / "other").exists()
