"""Every partitioned model of ours computes on several machines; without the distribution a job that asks is refused."""

from pathlib import Path

import pytest
from veilgraph_machines.testing import check_machines
from veilgraph_testing.local_model import LocalModelConformance

import veilgraph as vg
from tests.errors import refused
from veilgraph.core import settings as registry
from veilgraph.core.errors import ConfigError
from veilgraph.nn.local.model import LOCAL_MODELS
from veilgraph.runtime.launch.jobs import RunOptions, train


@pytest.mark.parametrize("name", [name for name in LOCAL_MODELS.own if LOCAL_MODELS[name].is_partitioned])
def test_several_machines_compute_what_one_does(name: str) -> None:
    check_machines(type("Suite", (LocalModelConformance,), {"name": name})())


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
