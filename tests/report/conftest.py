"""Small runs that the page's tests share; each test that changes one takes a copy."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.paradigms.runs import saved_job
from tests.report.findings import audit
from tests.report.markup import Page
from tests.roles.federation import merge
from veilgraph.protocol.job_file import parse_job
from veilgraph.report.page import page_html
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.run_directory import RunDirectory

Copy = Callable[[str], Path]
PRIVATE: dict[str, Any] = {
    "name": "private",
    "train": {"epochs": 4, "select_by": "last", "patience": None},
    "label_privacy": {"epsilon": 2.0},
}
HORIZONTAL: dict[str, Any] = {
    "name": "horizontal",
    "paradigm": "horizontal",
    "data": {"dataset": "synthetic", "holders": 2},
    "model": {"dim": 8},
    "train": {"epochs": 3, "patience": None},
}
LOCAL: dict[str, Any] = {
    "name": "local",
    "paradigm": "node-dp",
    "data": {"dataset": "synthetic", "holders": 2, "split": [0.5, 0.25, 0.25], "stratify": False},
    "release": {"features": {"epsilon": 1.5, "low": -10, "high": 10}, "labels": {"holder": "B", "epsilon": 2.0}},
    "train": {"epochs": 3, "patience": None},
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Complete runs by name: plain (audited), private, horizontal, local."""
    folder = tmp_path_factory.mktemp("pages")
    jobs = {
        "plain": saved_job(folder / "data", {"name": "plain"}),
        "private": saved_job(folder / "more-data", PRIVATE, holders=3),
        "horizontal": parse_job(HORIZONTAL),
        "local": parse_job(LOCAL),
    }
    for name, job in jobs.items():
        train(job, folder / name)
    (folder / "plain" / "audit.json").write_text(json.dumps(audit(job="plain")))
    return {name: folder / name for name in jobs}


@pytest.fixture
def copy(runs: dict[str, Path], tmp_path: Path) -> Copy:
    """Makes a copy of a run by its name."""
    return lambda name: Path(shutil.copytree(runs[name], tmp_path / name))


def page_of(run: Path) -> Page:
    """The page of a run, parsed."""
    return Page(page_html(RunDirectory.open(run)))


def part_of(run: Path, holder: str) -> Path:
    """Makes a copy of a run what an organisation without labels has of it: its own part, and the job with names."""
    for part in (run / "parties").iterdir():
        if part.name != holder:
            shutil.rmtree(part)
    for name in ("summary.json", "metrics.jsonl", "traffic.json", "audit.json", "curves.png"):
        (run / name).unlink(missing_ok=True)
    job = yaml.safe_load((run / "job.yaml").read_text())
    content = merge(job, {"data": {"graphs": None, "holders": list(job["data"]["graphs"])}})
    (run / "job.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return run
