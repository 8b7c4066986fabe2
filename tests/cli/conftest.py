"""A small job and, once for all tests, a run of it."""

from pathlib import Path

import pytest

from tests.cli.commands import veilgraph

JOB = """
name: small
data: {dataset: synthetic}
model: {dim: 8}
train: {epochs: 4, patience: null, checkpoint_every: 2}
"""


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def run(job: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "run"
    result = veilgraph("train", job, "--out", path)
    assert result.exit_code == 0, result.output
    return path
