"""Without the distribution a job that asks for several machines is refused."""

from pathlib import Path

import pytest

import veilgraph as vg
from tests.errors import refused
from veilgraph.core import settings as registry
from veilgraph.core.errors import ConfigError
from veilgraph.runtime.launch.jobs import RunOptions, train


def test_a_job_of_several_machines_names_the_distribution_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = registry.installed
    monkeypatch.setattr(registry, "installed", lambda group: () if "machines" in group else everything(group))
    job = vg.Job(data={"dataset": "synthetic"}, train={"epochs": 1})
    with refused(ConfigError, code="not-installed", key="machines"):
        train(job, tmp_path / "run", options=RunOptions(machines={"A": 2}))
    assert not (tmp_path / "run").exists()
    train(job, tmp_path / "run")
