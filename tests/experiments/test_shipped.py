from importlib.resources import files
from pathlib import Path

import pytest

from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.paradigms.vertical.settings import VerticalJob, vertical
from veilgraph.protocol.job_file import read_job
from veilgraph.samples.shipped import shipped_job, shipped_jobs, with_overrides

FOLDER = Path(__file__).parents[2] / "jobs"
JOBS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
DATASETS = {"banks": "payments", "arxiv": "ogbn-arxiv"}
"""Job → its data set, where its name does not begin with it."""


def test_all_jobs_are_package_data():
    folder = files("veilgraph.samples") / "jobs"
    assert {file.name for file in folder.iterdir()} == {f"{name}.yaml" for name in JOBS}
    assert shipped_jobs() == tuple(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_every_job_parses(name):
    settings = shipped_job(name)
    assert settings.name == name
    assert settings.data.dataset == DATASETS.get(name, name.split("-")[0])
    assert settings.data.label_party == "A"
    assert read_job(FOLDER / f"{name}.yaml") == settings


def test_an_unknown_job_names_the_choices():
    with refused(ConfigError, key="job", value="karate"):
        shipped_job("karate")


def test_overrides_replace_only_what_they_name():
    settings = VerticalJob()
    changed = with_overrides(settings, {"data.holders": 3, "model.combine.strategy": "concat", "seed": 7})
    assert (changed.data.holders, vertical(changed).model.combine.strategy, changed.seed) == (3, "concat", 7)
    assert with_overrides(changed, {"data.holders": 2, "model.combine.strategy": "mean", "seed": 0}) == settings
    assert with_overrides(settings, {}) == settings
