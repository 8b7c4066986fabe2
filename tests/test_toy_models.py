"""A local model, a combine strategy and a task of another package: trained and reported by entry points alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import nightly
from tests.toys.installed import install, run_with
from veilgraph.core.errors import ConfigError
from veilgraph.protocol.job_file import parse_job

POINTS = {
    "veilgraph.local_models": {"smooth": "Smooth"},
    "veilgraph.combines": {"sum": "Sum"},
    "veilgraph.tasks": {"smoothed": "Smoothed"},
}
JOB: dict[str, Any] = {
    "data": {"dataset": "synthetic"},
    "model": {"dim": 4, "local": {"model": "smooth", "step": 0.25}, "combine": {"strategy": "sum", "times": 2}},
    "train": {"epochs": 2, "patience": None},
}
TASK = {
    "paradigm": "averaging",
    "data": {"dataset": "synthetic", "holders": 3},
    "averaging": {"task": {"name": "smoothed", "smoothing": 0.2}},
    "train": {"epochs": 2, "patience": None},
}
SUITE = """
from veilgraph_testing.combine import CombineConformance
from veilgraph_testing.local_model import LocalModelConformance
from veilgraph_averaging.conformance import TaskConformance


class TestSmooth(LocalModelConformance):
    name, said = "smooth", {"step": 0.25}


class TestSum(CombineConformance):
    name = "sum"


class TestSumOfHalves(CombineConformance):
    name, said = "sum", {"times": 0.5}


class TestSmoothed(TaskConformance):
    name, said = "smoothed", {"smoothing": 0.3}
"""
SCRIPT = """
import pytest
from typer.testing import CliRunner

from tests.faults.host import Forked
from veilgraph.cli import app
from veilgraph.runtime.launch import fork_server as nursery

nursery.subprocess.Popen = Forked  # processes as ever, but that everything is imported already
Forked.started, Forked.report = {}, staticmethod(lambda: None)
for command in (
    ["check", "job.yaml"],
    ["train", "job.yaml", "--out", "apart", "--processes"],
    ["train", "job.yaml", "--out", "run", "--record-views"],
    ["audit", "run", "--attack", "link-similarity", "--attack", "uniformity", "--adversary", "server"],
    ["report", "run"],
    ["train", "task.yaml", "--out", "task"],
    ["report", "task"],
):
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
assert len(Forked.started) == 3
"""
SUITES = """
import pytest

assert pytest.main(["-q", "-p", "no:cacheprovider", "suite.py"]) == 0
"""


@nightly
def test_they_train_here_and_apart_are_audited_and_reported(tmp_path: Path) -> None:
    install(tmp_path / "site", "models", POINTS)
    for name, job in {"job": JOB, "task": TASK}.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps(job), encoding="utf-8")
    run_with(tmp_path / "site", SCRIPT, tmp_path)
    kept = yaml.safe_load((tmp_path / "run" / "job.yaml").read_text(encoding="utf-8"))["model"]
    assert (kept["local"]["step"], kept["combine"]["times"]) == (0.25, 2)
    here, apart = (losses(tmp_path / run) for run in ("run", "apart"))
    assert here == pytest.approx(apart, rel=1e-6)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "joins what a node has with a share of its neighbours&#39; mean (toy), 2 hops far" in page
    assert "The server adds up what the holders publish (toy). That is masked" in page
    assert "of which it is never sure (toy)" in (tmp_path / "task" / "report.html").read_text(encoding="utf-8")


@nightly
def test_they_are_held_to_the_suites(tmp_path: Path) -> None:
    install(tmp_path / "site", "models", POINTS)
    (tmp_path / "suite.py").write_text(SUITE, encoding="utf-8")
    run_with(tmp_path / "site", SUITES, tmp_path)


def losses(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"local": {"model": "smooth"}}, "model.local.model='smooth': choose one of 'sage-mean'"),
        ({"combine": {"strategy": "sum"}}, "model.combine.strategy='sum': choose one of 'mean'"),
        ({"local": {"model": "gcn", "step": 0.25}}, "model.local.step is not a setting"),
        ({"combine": {"strategy": "mean", "times": 2}}, "model.combine.times is not a setting"),
    ],
)
def test_without_the_package_its_jobs_are_refused_with_what_there_is(model: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_job({"model": model})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ({"local": {"model": "smooth", "heads": 2}}, "local.heads"),
        ({"local": {"model": "smooth", "step": 2}}, "local.step"),
        ({"combine": {"strategy": "sum", "times": 0}}, "combine.times"),
    ],
)
def test_they_have_their_own_settings_and_no_others(
    model: dict[str, object], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "models", POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=f"model.{key}"):
        parse_job({"model": model})
