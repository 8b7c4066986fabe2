"""Bytes on the wire against what is said of them before an averaging job runs, to the byte; tasks in ``test_tasks``."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from veilgraph_averaging.settings import AveragingJob

from tests import nightly
from tests.cli.commands import one_error, usage_error, veilgraph
from tests.paradigms.averaging.jobs import graphs, job
from tests.roles.federation import Settings
from veilgraph.core.types import SERVER
from veilgraph.protocol.costs import Costs, size_of
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.launch.jobs import train

LAST: Settings = {"train": {"select_by": "last"}}
JOBS: Mapping[str, tuple[Settings, ...]] = {
    "float32, judged every second round": ({"precision": "float32", "train": {"epochs": 3, "evaluate_every": 2}},),
    "two holders, not judged": (LAST, {"data": {"holders": 2}}),
    "gradients, another judges": (
        {"averaging": {"rule": {"name": "fedsgd"}, "local_epochs": 1}, "data": {"label_holder": "C"}},
    ),
}


def planned(settings: AveragingJob) -> Costs | None:
    sizes = {graph.party: size_of(graph) for graph in graphs(settings)}
    return paradigm_of(settings).session.costs(settings, 0, sizes)


@nightly
@pytest.mark.cases(1)
@pytest.mark.parametrize("changes", JOBS.values(), ids=JOBS)
def test_a_job_sends_what_the_plan_says(changes: tuple[Settings, ...], tmp_path: Path) -> None:
    _as_planned(job(*changes), tmp_path)


def _as_planned(settings: AveragingJob, tmp_path: Path) -> None:
    costs = planned(settings)
    assert costs is not None
    train(settings, tmp_path / "run")
    sent = dict.fromkeys((*settings.data.names, SERVER), 0)
    for row in json.loads((tmp_path / "run" / "traffic.json").read_text()):
        if row["direction"] == "sent" and row["kind"] != "hello":  # whose length follows from names and versions
            sent[row["party"]] += row["bytes"]
    assert costs.sent() == sent


def test_of_tables_columns_and_classes_are_asked_for_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("paradigm: averaging\ndata: {holders: [A, B]}\n")
    assert "--classes, and --columns of every holder" in one_error(veilgraph("check", "--costs", path))
    sizes = ["--classes", "2", "--columns", "A=8", "--columns", "B=8"]
    assert veilgraph("check", "--costs", path, *sizes).exit_code == 0
    assert "leave it out" in usage_error(veilgraph("check", "--costs", path, *sizes, "--nodes", "100"))
    assert "--classes" in usage_error(veilgraph("check", "--costs", path, *sizes[2:]))
    assert "columns" in one_error(veilgraph("check", "--costs", path, *sizes[:-1], "B=9"))
    for wrong in ("C=8", "B=8", "B=x"):
        assert "--columns" in usage_error(veilgraph("check", "--costs", path, *sizes, "--columns", wrong))


@pytest.mark.parametrize("paradigm", ["horizontal", "node-dp"])
def test_where_no_plan_is_made_no_sizes_are_asked_for(paradigm: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    release = "\nrelease: {features: {epsilon: 1}, labels: {epsilon: 1, holder: B}}" if paradigm == "node-dp" else ""
    path.write_text(f"paradigm: {paradigm}\ndata: {{holders: [A, B], label_holder: A}}{release}\n")
    assert "depends on more than sizes" in one_error(veilgraph("check", "--costs", path))
